"""The cost of a pruned graph without building it: every axis shrinks by the kept counts of the groups on it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property

from msc_core.channel_ids import NONE
from msc_core.channels import ChannelGroup
from msc_core.cost import Cost, cost, macs_by_node
from msc_core.ir import Array, MSCGraph
from msc_core.ops import bind


class CostModel:
    """Exact MACs, parameters and bytes for any kept counts; agrees with `cost(prune(graph, ...))`.

    A position of an axis that several groups share survives with each of them, so their fractions multiply.
    """

    def __init__(self, graph: MSCGraph, groups: Sequence[ChannelGroup]) -> None:
        self.graph = graph
        self.sizes = {g.name: g.size for g in groups}
        self._macs = macs_by_node(graph)
        self._kernel: dict[str, str] = {}  # node -> the weight whose axes its MACs are proportional to
        statistics: set[str] = set()
        for node in graph.nodes:
            if node.name in self._macs:
                self._kernel[node.name] = node.inputs[1]
            statistics |= {node.inputs[i] for i in bind(node, graph.tensors).op.statistics if i < len(node.inputs)}
        self._statistics = statistics
        members: dict[tuple[str, int], dict[str, Array]] = {}  # (weight, axis) -> group -> positions that follow it
        for group in groups:
            for member in group.members:
                covered = members.setdefault((member.tensor, member.axis), {})
                covered[group.name] = covered.get(group.name, False) | (member.index != NONE)
        self._axes: dict[str, list[tuple[int, list[tuple[tuple[str, ...], int]]]]] = {}
        for (weight, axis), covered in members.items():
            size = graph.weights[weight].shape[axis]
            cells = Counter(tuple(name for name, mask in covered.items() if mask[p]) for p in range(size))
            self._axes.setdefault(weight, []).append((size, list(cells.items())))

    @cached_property
    def full(self) -> Cost:
        """The cost of the graph as it is."""
        return cost(self.graph)

    def cost(self, counts: Mapping[str, int]) -> Cost:
        """The cost when each group named keeps that many channels."""
        elements = {name: self.elements(name, counts) for name in self.graph.weights}
        return Cost(
            macs=sum(self.layer_macs(counts).values()),
            params=round(sum(n for name, n in elements.items() if name not in self._statistics)),
            bytes=round(sum(n * self.graph.weights[name].itemsize for name, n in elements.items())),
        )

    def elements(self, weight: str, counts: Mapping[str, int]) -> float:
        """How many numbers of a weight remain."""
        return self.graph.weights[weight].size * self._fraction(weight, counts)

    def layer_macs(self, counts: Mapping[str, int]) -> dict[str, int]:
        """MACs of each convolution and linear layer for those counts."""
        return {
            node: round(macs * self._fraction(self._kernel[node], counts)) for node, macs in self._macs.items()
        }  # fmt: skip

    def _fraction(self, weight: str, counts: Mapping[str, int]) -> float:
        """Which part of a weight's elements survives."""
        fraction = 1.0
        for size, cells in self._axes.get(weight, []):
            kept = sum(n * math.prod(counts.get(g, self.sizes[g]) / self.sizes[g] for g in names) for names, n in cells)
            fraction *= kept / size
        return fraction
