"""Latency of a compressed network without building it: the sum of its blocks, each measured once and by itself.

A block is a layer that multiplies with weights, and whatever follows it up to the next ones: what engines compute along
with it. Blocks of equal structure and shape are one entry, whatever network they are in.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from msc_core.backends import Runner, Target, build
from msc_core.channels import Channels
from msc_core.errors import MscError
from msc_core.infer import single
from msc_core.ir import Array, MSCGraph, Node, Tensor, unique
from msc_core.measure import Meter
from msc_core.plan import Quantized
from msc_core.rewrite import drop_identities, fold_batch_norm
from msc_core.tools.prune.budget import CostModel
from msc_core.tools.prune.surgery import prune
from msc_core.tools.quantize.insert import quantize
from msc_core.tools.quantize.placement import LAYERS, TABLE, layers, place
from msc_core.tools.quantize.precision import Precision
from msc_core.tools.quantize.weight_scales import weight_scales

PAIRS = 20  # readings per round of one block
BITS = 8  # what integer kernels have; fewer bits run on the same ones
Counts = Mapping[str, int]  # channels that each group keeps
Sample = tuple[Counts, Mapping[str, int], float]  # counts, bits by layer, and the latency ratio that was measured


@dataclass(frozen=True)
class TableError:
    """How far predictions are from measurements: relative errors, and Spearman's rank correlation."""

    median: float
    maximum: float
    rank: float
    samples: int


class LatencyTable:
    """Predicts the latency ratio of a pruned and quantized network.

    - `measure` gives the latency of one block as a ratio to the whole original network: a `BlockMeter`, or data.
    - `memo` keeps the entries by key; what is in it is not measured. Clock values differ from day to day, so a search
      that is to be repeated keeps it.

    The ratio is 1 for the original network, and changes as the sum of blocks does: what a block costs only because it
    runs by itself, it costs in any size. `fit` finds the slope of that from a few networks measured whole. What a layer
    costs depends on the channels around it and on its own bits; its neighbours' bits are taken to be the same.
    """

    def __init__(
        self,
        graph: MSCGraph,
        channels: Channels,
        measure: Callable[[MSCGraph], float],
        target: Target | str = "onnxruntime",
        memo: MutableMapping[str, float] | None = None,
    ) -> None:
        self.graph, self.channels, self.measure = graph, channels, measure
        self.target = Target.parse(target) if isinstance(target, str) else target
        self.memo: MutableMapping[str, float] = {} if memo is None else memo
        self.cost = CostModel(graph, channels.groups)
        self.layers = layers(drop_identities(fold_batch_norm(graph)))
        self._sizes = {g.name: g.size for g in channels.groups}
        self._blocks = lru_cache(1)(self._cut)
        self._keys: dict[tuple[str, tuple[tuple[str, int], ...], bool], str] = {}
        self.slope = 1.0  # latency ratio per unit of the sum

    def entry(self, layer: str, counts: Counts, bits: int | None = None) -> float:
        """One block's latency as a ratio to the whole original network; with `bits`, in integers."""
        around = self.around(layer)
        kept = tuple((g, counts.get(g, self._sizes[g])) for g in around)
        known = layer, kept, bits is not None
        if known not in self._keys or self._keys[known] not in self.memo:
            block = self._blocks(kept)[layer]
            block = in_integers(block, layer, self.target) if bits is not None else block
            self._keys[known] = key = block_key(block)
            if key not in self.memo:
                self.memo[key] = self.measure(block)
        return self.memo[self._keys[known]]

    def around(self, layer: str) -> tuple[str, ...]:
        """The groups whose counts an entry depends on."""
        return self.cost.groups_of(self.cost.kernels[layer])

    def total(self, counts: Counts, bits: Mapping[str, int] | None = None) -> float:
        """The sum of the blocks."""
        return sum(self.entry(layer, counts, (bits or {}).get(layer)) for layer in self.layers)

    def ratio(self, counts: Counts, bits: Mapping[str, int] | None = None) -> float:
        """The predicted latency ratio."""
        return sum(self.part(layer, counts, (bits or {}).get(layer)) for layer in self.layers)

    def part(self, layer: str, counts: Counts, bits: int | None = None) -> float:
        """What a layer contributes to the predicted ratio; what all networks cost is divided evenly."""
        return self.slope * self.entry(layer, counts, bits) + (1 - self.slope * self.total({})) / len(self.layers)

    def share(self, layer: str) -> float:
        """A layer's part of the original network's latency, as blocks have it."""
        return self.entry(layer, {}) / self.total({})

    def fit(self, samples: Sequence[Sample]) -> None:
        """Find the slope by least squares, through the original network.

        Raises `MscError` if no sample differs from that.
        """
        whole = self.total({})
        changes = np.array([(self.total(counts, bits) - whole, ratio - 1) for counts, bits, ratio in samples])
        if not len(changes) or not (changes[:, 0] ** 2).sum() > 0:
            raise MscError("a latency table is fitted to networks other than the original; found none")
        self.slope = float((changes[:, 0] * changes[:, 1]).sum() / (changes[:, 0] ** 2).sum())

    def errors(self, samples: Sequence[Sample]) -> TableError:
        """How well the table predicts these."""
        found = np.array([self.ratio(counts, bits) for counts, bits, _ in samples])
        truth = np.array([ratio for _, _, ratio in samples])
        off = np.abs(found / truth - 1)
        return TableError(float(np.median(off)), float(off.max()), rank_correlation(found, truth), len(samples))

    def prepare(self, options: Mapping[str, Sequence[int]], integers: bool = False) -> int:
        """Measure every block that these counts of the groups can make; how many entries there are then."""
        for layer in self.layers:
            around = [g for g in self.around(layer) if g in options]
            for counts in itertools.product(*(options[g] for g in around)):
                for bits in (None, BITS) if integers else (None,):
                    self.entry(layer, dict(zip(around, counts, strict=True)), bits)
        return len(self.memo)

    def _cut(self, kept: tuple[tuple[str, int], ...]) -> dict[str, MSCGraph]:
        pruned = prune(self.graph, {g: range(n) for g, n in kept if n < self._sizes[g]}, self.channels)
        return cut(drop_identities(fold_batch_norm(single(pruned))))


class BlockMeter:
    """Measures blocks against a whole network, which is built for the same target."""

    def __init__(self, baseline: Runner, meter: Meter | None = None) -> None:
        self.baseline, self.meter = baseline, meter or Meter()

    def __call__(self, block: MSCGraph) -> float:
        """The block's latency as a ratio to the network's."""
        with build(block, self.baseline.target) as runner:
            return self.meter.measure(runner, self.baseline, pairs=PAIRS, alike=False).ratio


def cut(graph: MSCGraph) -> dict[str, MSCGraph]:
    """The network's blocks by layer; nodes in front of the first layer are with none.

    A node belongs to the last layer that any of its inputs comes from.
    """
    order = {name: index for index, name in enumerate(layers(graph))}
    owner: dict[str, int] = {}
    members: dict[int, list[Node]] = {}
    for node in graph.nodes:
        own = order.get(node.name, max((owner.get(name, -1) for name in node.inputs), default=-1))
        members.setdefault(own, []).append(node)
        owner |= dict.fromkeys(node.outputs, own)
    return {name: _part(graph, name, members[index]) for name, index in order.items()}


def _part(graph: MSCGraph, name: str, nodes: list[Node]) -> MSCGraph:
    made = {output for node in nodes for output in node.outputs}
    names = {node.name for node in nodes}
    read = {name for node in graph.nodes if node.name not in names for name in node.inputs} | {*graph.outputs}
    inputs = [t for node in nodes for t in node.inputs if t and t not in made and t not in graph.weights]
    outputs = [t for node in nodes for t in node.outputs if t in read]
    return graph.replace(name=name, nodes=tuple(nodes), inputs=tuple(dict.fromkeys(inputs)), outputs=tuple(outputs))


def in_integers(block: MSCGraph, layer: str, target: Target) -> MSCGraph:
    """The block as it is in a network that is quantized throughout: integers go in and come out."""
    placement, kernel = TABLE[target.backend], block.node(layer).inputs[1]
    inner = place(block.replace(outputs=()), {layer}, placement, block.inputs)
    how = Quantized(BITS, (0.05,), (0 if placement.signed else 128,), placement.signed)
    weight = weight_scales(block.weights[kernel], LAYERS[block.node(layer).op], Precision(BITS, BITS), layer)
    found = quantize(block, dict.fromkeys(inner, how) | {kernel: weight})
    stored = {n.inputs[0]: n.outputs[0] for n in found.nodes if n.op == "quantize" and n.inputs[0] in block.inputs}
    nodes = [n for n in found.nodes if n.outputs[0] not in stored.values()]
    weights, tensors, outputs = dict(found.weights), dict(found.tensors), list(found.outputs)
    for i, name in enumerate(outputs):
        if name not in inner:
            continue
        scale, zero, whole = (unique(f"{name}.{part}", tensors) for part in ("step", "zero", "whole"))
        for constant, value in ((scale, np.float32(how.scale[0])), (zero, np.dtype(how.dtype).type(how.zero_point[0]))):
            weights[constant] = np.asarray(value)
            tensors[constant] = Tensor(constant, (), weights[constant].dtype.name)
        tensors[whole] = replace(tensors[name], name=whole, dtype=how.dtype)
        nodes.append(Node(whole, "quantize", (name, scale, zero), (whole,), {"dtype": how.dtype}))
        outputs[i] = whole
    inputs = tuple(stored.get(name, name) for name in block.inputs)
    return found.replace(nodes=tuple(nodes), inputs=inputs, outputs=tuple(outputs), weights=weights, tensors=tensors)


def block_key(block: MSCGraph) -> str:
    """A hash of structure and shapes, 16 hex digits; neither names nor the weights' values count."""
    index: dict[str, int] = {"": -1}
    rows = []
    for name in block.inputs:
        index[name] = len(index)
    for node in block.nodes:
        for name in (*node.inputs, *node.outputs):
            index.setdefault(name, len(index))
        rows.append(
            [node.op, repr(sorted(node.attrs.items())), *([index[n] for n in p] for p in (node.inputs, node.outputs))]
        )
    kinds = [[list(block.tensors[n].shape), block.tensors[n].dtype, n in block.weights] for n in index if n]
    text = json.dumps([rows, kinds, len(block.inputs), [index[n] for n in block.outputs]])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def rank_correlation(a: Array, b: Array) -> float:
    """Spearman's, ties in the order of appearance; 1 where there is nothing to compare."""
    if len(a) < 2:
        return 1.0
    first, second = (np.argsort(np.argsort(v, kind="stable"), kind="stable") for v in (a, b))
    return float(np.corrcoef(first, second)[0, 1])
