"""Cross-layer equalization (Nagel et al. 2019): the channels of two layers in a row come to have like ranges.

Between them only positively homogeneous operators may be, f(s x) = s f(x) for s > 0. Then channel i of the first can
be divided by s_i and what reads it multiplied, and with s_i = sqrt(r1_i / r2_i), r the largest absolute weights, both
have the range sqrt(r1_i r2_i), which a single scale covers better.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from msc_core.ir import Array, MSCGraph, Node, consumers
from msc_core.ops import bind
from msc_core.rewrite import drop_identities, fold_batch_norm
from msc_core.tools.quantize.placement import LAYERS

ELEMENTWISE = ("relu", "leaky_relu")
SPATIAL = (  # channels are axis 1, and no others are mixed
    "max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool2d",
    "adaptive_max_pool2d", "flatten",
)  # fmt: skip
ROUNDS = 20  # over all pairs: what one pair changes, its neighbours have to follow


@dataclass(frozen=True)
class Pair:
    """Two layers with one reader each; an input of `second` is channel `index // spread` of `first`."""

    first: Node
    second: Node
    axis: int  # of the second weight, along its inputs
    spread: int


def equalize(graph: MSCGraph) -> MSCGraph:
    """The graph with batch norms folded and neighbouring layers equalized; it computes the same, up to rounding."""
    graph = drop_identities(fold_batch_norm(graph))
    pairs = find_pairs(graph)
    weights = {name: array.astype(np.float64) for name, array in graph.weights.items()}
    for _ in range(ROUNDS if pairs else 0):
        for pair in pairs:
            _equalize(pair, weights)
    changed = {name for pair in pairs for node in (pair.first, pair.second) for name in node.inputs[1:] if name}
    return graph.replace(weights={**graph.weights, **{n: weights[n].astype(graph.weights[n].dtype) for n in changed}})


def find_pairs(graph: MSCGraph) -> list[Pair]:
    """Every pair that can be equalized, in order."""
    readers = consumers(graph)
    producer = {name: node for node in graph.nodes for name in node.outputs}

    def own(node: Node) -> bool:
        """Whether the weights of a layer are constants that nothing else reads."""
        return all(n in graph.weights and readers[n] == [node] and n not in graph.outputs for n in node.inputs[1:] if n)

    pairs = []
    for second in (node for node in graph.nodes if node.op in LAYERS and own(node)):
        name, between = second.inputs[0], list[Node]()
        while (node := producer.get(name)) and node.op in (*ELEMENTWISE, *SPATIAL) and _private(graph, readers, name):
            between.append(node)
            name = node.inputs[0]
        if node is None or node.op not in LAYERS or not own(node) or not _private(graph, readers, name):
            continue
        if (found := _pair(graph, node, second, between)) is not None:
            pairs.append(found)
    return pairs


def _private(graph: MSCGraph, readers: dict[str, list[Node]], name: str) -> bool:
    return len(readers.get(name, [])) == 1 and name not in graph.outputs


def _pair(graph: MSCGraph, first: Node, second: Node, between: list[Node]) -> Pair | None:
    """The pair, where inputs of the second are whole channels of the first."""
    spatial = [n.op.startswith("conv") for n in (first, second)]
    flattened = [n for n in between if n.op == "flatten"]
    if flattened:
        whole = all(len(graph.tensors[n.outputs[0]].shape) == 2 for n in flattened)
        if spatial != [True, False] or len(flattened) > 1 or not whole or flattened[0].attrs.get("start", 0) != 1:
            return None
    elif spatial[0] != spatial[1] or (not spatial[0] and any(n.op in SPATIAL for n in between)):
        return None
    groups = [bind(n, graph.tensors)["groups"] if n.op.startswith("conv") else 1 for n in (first, second)]
    shape = graph.weights[second.inputs[1]].shape
    channels = graph.weights[first.inputs[1]].shape[LAYERS[first.op]]
    transposed = second.op.endswith("_transpose")
    if first.op.endswith("_transpose") and groups[0] > 1:
        return None
    if groups[1] == 1:
        axis = 0 if transposed or second.op == "matmul" else 1
    elif groups[1] == channels and shape[1] == 1 and not transposed:  # depthwise: an output is one input's
        axis = 0
    else:
        return None
    return None if shape[axis] % channels else Pair(first, second, axis, shape[axis] // channels)


def _equalize(pair: Pair, weights: dict[str, Array]) -> None:
    first, second = pair.first.inputs[1], pair.second.inputs[1]
    out = LAYERS[pair.first.op] % weights[first].ndim
    one = _largest(weights[first], out)
    two = _largest(weights[second], pair.axis).reshape(-1, pair.spread).max(axis=1)
    alive = (one > 0) & (two > 0)
    scale = np.sqrt(np.where(alive, one, 1) / np.where(alive, two, 1))
    weights[first] = weights[first] / _along(scale, out, weights[first].ndim)
    for bias in filter(None, pair.first.inputs[2:]):
        weights[bias] = weights[bias] / scale
    weights[second] = weights[second] * _along(np.repeat(scale, pair.spread), pair.axis, weights[second].ndim)


def _largest(weight: Array, axis: int) -> Array:
    return np.asarray(np.abs(weight).max(axis=tuple(i for i in range(weight.ndim) if i != axis)))


def _along(values: Array, axis: int, rank: int) -> Array:
    return values.reshape([-1 if i == axis else 1 for i in range(rank)])
