"""The cost of a pruned graph without building it: every axis shrinks by the kept counts of the groups on it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache

from msc_core.channel_ids import NONE
from msc_core.channels import ChannelGroup
from msc_core.cost import Cost, cost, macs_by_node
from msc_core.ir import Array, MSCGraph
from msc_core.ops import bind

REMEMBERED = 2**14  # combinations of counts for each weight

Cells = tuple[tuple[tuple[str, ...], int], ...]  # of an axis: groups, and how many positions need exactly those


class CostModel:
    """Exact MACs, parameters and bytes for any kept counts; agrees with `cost(prune(graph, ...))`.

    A position of an axis that several groups share survives with each of them, so their fractions multiply. What a
    weight keeps depends on the groups on its axes only (`groups_of`), and is remembered for their counts.
    """

    def __init__(self, graph: MSCGraph, groups: Sequence[ChannelGroup]) -> None:
        self.graph = graph
        self.sizes = {g.name: g.size for g in groups}
        self._macs = macs_by_node(graph)
        self.kernels: dict[str, str] = {}  # node -> the weight whose axes its MACs are proportional to
        statistics: set[str] = set()
        for node in graph.nodes:
            if node.name in self._macs:
                self.kernels[node.name] = node.inputs[1]
            statistics |= {node.inputs[i] for i in bind(node, graph.tensors).op.statistics if i < len(node.inputs)}
        self._statistics = statistics
        members: dict[tuple[str, int], dict[str, Array]] = {}  # (weight, axis) -> group -> positions that follow it
        for group in groups:
            for member in group.members:
                covered = members.setdefault((member.tensor, member.axis), {})
                covered[group.name] = covered.get(group.name, False) | (member.index != NONE)
        axes: dict[str, list[tuple[int, Cells]]] = {}
        for (weight, axis), covered in members.items():
            size = graph.weights[weight].shape[axis]
            cells = Counter(tuple(name for name, mask in covered.items() if mask[p]) for p in range(size))
            axes.setdefault(weight, []).append((size, tuple(cells.items())))
        self._shares = {weight: _share(found, self.sizes) for weight, found in axes.items()}

    @cached_property
    def full(self) -> Cost:
        """The cost of the graph as it is."""
        return cost(self.graph)

    def cost(self, counts: Mapping[str, int]) -> Cost:
        """The cost when each group named keeps that many channels."""
        params, size = 0, 0
        for name in self.graph.weights:
            more = self.weight_cost(name, counts)
            params, size = params + more[0], size + more[1]
        return Cost(macs=sum(self.layer_macs(counts).values()), params=params, bytes=size)

    def weight_cost(self, weight: str, counts: Mapping[str, int]) -> tuple[int, int]:
        """Parameters and bytes of one weight; the running statistics of a batch norm are bytes only."""
        elements = self.elements(weight, counts)
        return 0 if weight in self._statistics else elements, elements * self.graph.weights[weight].itemsize

    def elements(self, weight: str, counts: Mapping[str, int]) -> int:
        """How many numbers of a weight remain."""
        return round(self.graph.weights[weight].size * self._fraction(weight, counts))

    def layer_macs(self, counts: Mapping[str, int]) -> dict[str, int]:
        """MACs of each convolution and linear layer for those counts."""
        return {node: self.macs_of(node, counts) for node in self._macs}

    def macs_of(self, node: str, counts: Mapping[str, int]) -> int:
        """MACs of one convolution or linear layer."""
        return round(self._macs[node] * self._fraction(self.kernels[node], counts))

    def groups_of(self, weight: str) -> tuple[str, ...]:
        """The groups whose counts decide what remains of a weight."""
        return self._shares[weight][0] if weight in self._shares else ()

    def _fraction(self, weight: str, counts: Mapping[str, int]) -> float:
        """Which part of a weight's elements survives."""
        if weight not in self._shares:
            return 1.0
        groups, share = self._shares[weight]
        return share(*[counts.get(name, self.sizes[name]) for name in groups])


def _share(axes: Sequence[tuple[int, Cells]], sizes: Mapping[str, int]) -> tuple[tuple[str, ...], Callable[..., float]]:
    """The groups on the axes of a weight, and which part of its elements survives for counts in that order."""
    groups = tuple(dict.fromkeys(name for _, cells in axes for names, _ in cells for name in names))

    @lru_cache(REMEMBERED)
    def share(*counts: int) -> float:
        kept = {name: count / sizes[name] for name, count in zip(groups, counts, strict=True)}
        return math.prod(
            sum(n * math.prod(kept[g] for g in names) for names, n in cells) / size for size, cells in axes
        )

    return groups, share
