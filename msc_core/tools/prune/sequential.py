"""Restore accuracy without training, layer by layer: each is fitted to what it reads after those before it.

The original and the pruned network are walked side by side, once, over all calibration data. At each layer the pruned
one has the inputs that it will really have, and the original one says what should come out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from msc_core.channels import Channels
from msc_core.exchange import from_torch_tensor, to_torch_tensor
from msc_core.ir import Array, MSCGraph, Node, consumers
from msc_core.ops import bind
from msc_core.tools.calibration import Inputs, batches
from msc_core.tools.prune.product import Product, product
from msc_core.tools.prune.recover import surviving
from msc_core.tools.prune.statistics import MAX_COLUMNS, RIDGE, check_finite, draw, norm_behind, ridge, with_one
from msc_core.tools.prune.surgery import prune
from msc_core.tools.survivors import Positions, select, survivors

if TYPE_CHECKING:
    import torch

MEMORY = 2**31  # bytes that the live activations of both networks may take; decides how many samples are used
MAX_GAIN = 2.0
SHRINKAGE = 0.05  # times columns per sample: the ridge, as part of the mean diagonal; few samples say little

Pair = tuple[dict[Any, Any], dict[Any, Any]]  # the tensors alive in a batch, in the original and the pruned network


class Walk:
    """A network in the middle of a forward of all batches: `values[i]` are the tensors alive in batch i."""

    def __init__(self, graph: MSCGraph, fed: list[dict[str, torch.Tensor]]) -> None:
        from msc_core.codegen.torch_calls import torch_calls
        from msc_core.codegen.torch_module import Interpreter, walk

        module = Interpreter(torch_calls(graph)).eval().to(next(iter(fed[0].values())).device)
        self._walks: list[Iterator[tuple[tuple[str, ...], dict[Any, Any]]]] = [walk(module, feeds) for feeds in fed]
        self.values: list[dict[Any, Any]] = [{} for _ in fed]

    def to(self, node: Node) -> list[dict[Any, Any]]:
        """Go on to just before `node`."""
        for i, steps in enumerate(self._walks):
            self.values[i] = next(values for outputs, values in steps if outputs == node.outputs)
        return self.values

    def set(self, name: str, weight: Array) -> None:
        """Replace a weight from here on."""
        for values in self.values:
            values[name] = to_torch_tensor(weight).to(values[name].device)


@dataclass(frozen=True, eq=False)
class Shortcut:
    """A tensor that is added to what a layer gives, and the layer's results per unit of what it is added to."""

    name: str
    positions: Positions
    scale: Array


def recover_sequential(graph: MSCGraph, kept: Mapping[str, Iterable[int]], channels: Channels, x: Inputs) -> MSCGraph:
    """`prune`, with weights fitted in the order of the network to what they will really read.

    For a layer with weight W over columns X of the original network and X' of the pruned one,
    W' = argmin ||W X - W' X'||^2 + ridge ||W' - W_S||^2, the asymmetric least squares of Zhang et al. 2016, and then
    scaled so that no output varies less than it did. Where a shortcut is added, the target makes up for what that has
    lost. A layer whose inputs have not changed, or that is no product with a weight of its own, is sliced. Samples are
    as many as `MEMORY` allows. Raises `MscError` without calibration data or if an activation is not finite.
    """
    import torch

    pruned = prune(graph, kept, channels)
    fed = batches(graph, x, max(1, MEMORY // (2 * live_bytes(graph))))
    old, new = Walk(graph, fed), Walk(pruned, fed)
    left = survivors(graph, kept, [name for name in channels.axes if name not in graph.weights], channels)
    dropped, uses, weights = channels.dropped(kept), consumers(graph), dict(pruned.weights)
    generator = torch.Generator().manual_seed(0)
    fitted: set[str] = set()  # batch norms behind layers that were
    with torch.no_grad():
        for node in graph.nodes:
            found: dict[str, Array] = {}
            layer = product(graph, node.name, uses)
            if layer and layer.columns <= MAX_COLUMNS:
                grid = surviving(graph, layer, channels, dropped)
                pairs = list(zip(old.to(node), new.to(node), strict=True))
                if grid is not None and _changed(layer.source, left[layer.source], pairs):
                    shortcut = _shortcut(graph, layer, left, pairs[0])
                    found = _fit(graph, pruned, layer, grid, shortcut, pairs, generator)
                    fitted |= {norm_behind(graph, layer)} if found else set()
            elif node.op == "batch_norm" and node.name not in fitted and len(uses[node.inputs[3]]) == 1:
                pairs = list(zip(old.to(node), new.to(node), strict=True))
                if _changed(node.inputs[0], left[node.inputs[0]], pairs):
                    found = dict(zip(node.inputs[3:5], _moments([b[node.inputs[0]] for _, b in pairs]), strict=True))
            for name, weight in found.items():
                weights[name] = weight
                new.set(name, weight)
    return pruned.replace(weights=weights)


def reestimate_batch_norm(graph: MSCGraph, x: Inputs, limit: int | None = None) -> MSCGraph:
    """The graph with every batch norm's running statistics replaced by those of the first `limit` samples of `x`."""
    import torch

    uses = consumers(graph)
    norms = [n for n in graph.nodes if n.op == "batch_norm" and len(uses[n.inputs[3]]) == 1]
    if not norms:
        return graph
    weights = dict(graph.weights)
    with torch.no_grad():
        walk = Walk(graph, batches(graph, x, limit))
        for node in norms:
            values = [values[node.inputs[0]] for values in walk.to(node)]
            for name, statistic in zip(node.inputs[3:5], _moments(values), strict=True):
                weights[name] = statistic
                walk.set(name, statistic)
    return graph.replace(weights=weights)


def live_bytes(graph: MSCGraph) -> int:
    """The most bytes that a sample's activations take at once in a forward; symbolic dimensions count as 1."""
    last = {name: i for i, node in enumerate(graph.nodes) for name in node.inputs}
    size = {n: 4 * math.prod(d for d in t.shape if isinstance(d, int)) for n, t in graph.tensors.items()}
    alive = {name for name in graph.inputs}
    most = 1
    for i, node in enumerate(graph.nodes):
        alive |= set(node.outputs)
        most = max(most, sum(size[name] for name in alive))
        alive -= {name for name in (*node.inputs, *node.outputs) if last.get(name, i) <= i}
    return most


def _moments(values: list[torch.Tensor]) -> tuple[Array, Array]:
    """Mean and unbiased variance of each channel, (channels,) float32; sums over samples are in float64."""
    import torch

    count = sum(v.numel() // v.shape[1] for v in values)
    rows = [v.flatten(2) if v.ndim > 2 else v[:, :, None] for v in values]  # (samples, channels, positions)
    mean = torch.stack([r.sum(2).double().sum(0) for r in rows]).sum(0) / count
    middle = mean.to(rows[0].dtype)[:, None]
    squares = torch.stack([((r - middle) ** 2).sum(2).double().sum(0) for r in rows]).sum(0)
    return from_torch_tensor(mean.float()), from_torch_tensor((squares / max(1, count - 1)).float())


def _changed(name: str, positions: Positions, pairs: list[Pair]) -> bool:
    """Whether a tensor is another one in the pruned network than the part of the original that is left."""
    import torch

    if positions:  # what is missing may be recovered
        return True
    return not all(torch.equal(a[name], b[name]) for a, b in pairs)


def _shortcut(graph: MSCGraph, layer: Product, left: Mapping[str, Positions], pair: Pair) -> Shortcut | None:
    """What is added to a layer's output, or to that of its batch norm, if both networks have it already."""
    uses, name, scale = consumers(graph), layer.output, np.ones(1)
    if behind := norm_behind(graph, layer):
        bound = bind(graph.node(behind), graph.tensors)
        gamma, _, _, variance = (graph.weights[n].astype(np.float64) for n in bound.node.inputs[1:5])
        slope = gamma / np.sqrt(variance + bound["eps"])
        scale = np.divide(1, slope, out=np.zeros_like(slope), where=np.abs(slope) > 1e-2 * np.abs(slope).max())
        name = bound.node.outputs[0]
    adds = uses.get(name, [])
    if len(adds) != 1 or adds[0].op != "add" or name in graph.outputs:
        return None
    other = next((n for n in adds[0].inputs if n != name), name)
    known = other != name and other in pair[0] and other in pair[1] and other not in graph.weights
    if not known or graph.tensors[other].shape != graph.tensors[name].shape:
        return None
    return Shortcut(other, left[other], scale)


def _fit(
    graph: MSCGraph,
    pruned: MSCGraph,
    layer: Product,
    grid: tuple[Array, Array, Array],
    shortcut: Shortcut | None,
    pairs: list[Pair],
    generator: torch.Generator,
) -> dict[str, Array]:
    """The new weight, and the bias or the running mean of the batch norm behind; empty if the networks do not align."""
    smaller = product(pruned, layer.node, consumers(pruned))
    first, second = pairs[0]
    if smaller is None or layer.positions(first[layer.source]) != smaller.positions(second[layer.source]):
        return {}
    matrix = layer.matrix(graph.weights[layer.weight])
    bias = graph.weights[layer.bias] if layer.bias else np.zeros(matrix.shape[:2])
    whole = np.concatenate([matrix, bias.reshape(*matrix.shape[:2], 1)], axis=2)[grid[0]][:, grid[1]]
    if shortcut and len(shortcut.scale) > 1:
        shortcut = replace(shortcut, scale=shortcut.scale[(grid[0][:, None] & grid[1]).ravel()])
    gram, cross, energy = _correlate(layer, smaller, whole, grid[0], shortcut, pairs, generator)
    check_finite(layer.node, gram)
    behind = norm_behind(graph, layer)
    before = smaller.matrix(pruned.weights[smaller.weight])
    samples = sum(len(old[layer.source]) for old, _ in pairs)
    solved, shift = _solve(gram, cross, energy, before, samples, centred=bool(layer.bias or behind))
    found = {layer.weight: smaller.restore(solved).astype(np.float32)}
    if layer.bias:
        found[layer.bias] = shift.ravel().astype(np.float32)
    elif behind and len(consumers(graph)[mean := graph.node(behind).inputs[3]]) == 1:
        found[mean] = (pruned.weights[mean] - shift.ravel()).astype(np.float32)
    return found


def _correlate(
    layer: Product,
    smaller: Product,
    matrix: Array,
    groups: Array,
    shortcut: Shortcut | None,
    pairs: list[Pair],
    generator: torch.Generator,
) -> tuple[Array, Array, Array]:
    """Means over columns of x x^T, t x^T and t^2 for inputs x (and 1) of the pruned layer and targets t, float64."""
    import torch

    total: list[Any] = [0.0, 0.0, 0.0]
    count = 0
    for old, new in pairs:
        read = old[layer.source]
        places = draw(layer, read, len(read), generator)
        weight = torch.from_numpy(matrix).to(read)
        target = weight @ with_one(layer.gather(read, places))[np.flatnonzero(groups)]
        if shortcut:
            lost = select(old[shortcut.name], shortcut.positions) - new[shortcut.name]
            target += smaller.results(_scaled(lost, shortcut.scale, smaller), places)
        columns = with_one(smaller.gather(new[layer.source], places))
        parts = columns @ columns.mT, target @ columns.mT, (target**2).sum(dim=2)
        total = [a + b.double() for a, b in zip(total, parts, strict=True)]
        count += columns.shape[2]
    gram, cross, energy = (from_torch_tensor(t) / count for t in total)
    return gram, cross, energy


def _scaled(value: torch.Tensor, scale: Array, layer: Product) -> torch.Tensor:
    """Times a factor for each channel of the layer's output, or one for all."""
    import torch

    factor = torch.from_numpy(scale).to(value)
    return value * (factor.reshape(-1, *[1] * (value.ndim - 2)) if layer.window else factor)


def _solve(
    gram: Array, cross: Array, energy: Array, before: Array, samples: int, *, centred: bool
) -> tuple[Array, Array]:
    """The matrix (groups, outputs, columns), and what to add to its outputs (groups, outputs).

    Least squares make an output vary less than its target, by what cannot be recovered; it is scaled to vary as much.
    """
    mean, target = gram[:, :-1, -1], cross[:, :, -1]
    moments, cross = gram[:, :-1, :-1], cross[:, :, :-1]
    if centred:
        moments = moments - mean[:, :, None] * mean[:, None, :]
        cross = cross - target[:, :, None] * mean[:, None, :]
        energy = energy - target**2
    weight = ridge(moments, max(RIDGE, SHRINKAGE * moments.shape[1] / samples))[:, None, None]
    system = moments + weight * np.eye(moments.shape[1])
    solved = np.swapaxes(np.linalg.solve(system, np.swapaxes(cross + weight * before, 1, 2)), 1, 2)
    reached = ((solved @ moments) * solved).sum(axis=2)
    gain = np.sqrt(np.maximum(energy, 0) / np.maximum(reached, 1e-12 * energy.max() + 1e-30))
    solved = solved * np.clip(gain, 1, MAX_GAIN)[:, :, None]
    return solved, target - (solved @ mean[:, :, None])[:, :, 0]
