"""Graph -> graph rewrites that keep what the graph computes: one function each, none needs a framework."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np

from msc_core.ir import Array, MSCGraph, Node, Tensor, consumers, unique
from msc_core.ops import bind

IDENTITIES = ("dropout",)
SMALLEST_NORMAL = {"bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1022}


def fold_batch_norm(graph: MSCGraph) -> MSCGraph:
    """Fold each `batch_norm` into the `conv2d` or `linear` in front of it, which gains a bias.

    1. Only where nothing else reads the layer's output, and the layer's weight and bias are weights of the graph.
    2. The layer keeps its name and takes over the norm's output, so graph outputs keep their names.
    3. A weight that only this layer uses keeps its name; a tied one is copied, so its other users are unaffected.

    The arithmetic is in float64 and rounded once. A graph in which nothing folds is returned as it is.
    """
    readers = consumers(graph)
    uses = Counter(name for node in graph.nodes for name in node.inputs)
    producer = {name: node for node in graph.nodes for name in node.outputs}
    folded: dict[str, Node] = {}  # name of the layer -> what replaces it
    gone: set[str] = set()  # names of the norms
    weights, tensors = dict(graph.weights), dict(graph.tensors)
    for norm in graph.nodes:
        layer = producer.get(norm.inputs[0]) if norm.op == "batch_norm" else None
        if layer is None or not _foldable(graph, layer, norm, readers):
            continue
        weight, bias = _folded_weights(graph, layer, norm)
        names = [layer.inputs[1], layer.inputs[2] if len(layer.inputs) > 2 else ""]
        for i, (array, suffix) in enumerate(((weight, "weight"), (bias, "bias"))):
            if not names[i] or uses[names[i]] != 1 or names[i] in graph.outputs:
                names[i] = unique(f"{layer.name}.{suffix}", tensors)
            weights[names[i]] = array
            tensors[names[i]] = Tensor(names[i], array.shape, array.dtype.name)
        inputs = (layer.inputs[0], *names)
        folded[layer.name] = dataclasses.replace(layer, inputs=inputs, outputs=norm.outputs)
        gone.add(norm.name)
    if not folded:
        return graph
    nodes = tuple(folded.get(node.name, node) for node in graph.nodes if node.name not in gone)
    return graph.replace(nodes=nodes, weights=weights, tensors=tensors)


def drop_identities(graph: MSCGraph) -> MSCGraph:
    """Drop the nodes that do nothing at inference (`dropout`).

    One whose output is a graph output stays, because the output's name would go with it.
    """
    alias: dict[str, str] = {}
    nodes = []
    for node in graph.nodes:
        inputs = tuple(alias.get(name, name) for name in node.inputs)
        if node.op in IDENTITIES and node.outputs[0] not in graph.outputs:
            alias[node.outputs[0]] = inputs[0]
        else:
            nodes.append(node if inputs == node.inputs else dataclasses.replace(node, inputs=inputs))
    return graph.replace(nodes=tuple(nodes)) if alias else graph


def flush_denormals(graph: MSCGraph) -> MSCGraph:
    """Zero for each weight below the smallest normal number of its dtype; the same graph if there are none.

    Processors work out such numbers hundreds of times slower. Those of float16 stay: they start at 6e-5, which counts.
    """
    flushed = {}
    for name, array in graph.weights.items():
        smallest = SMALLEST_NORMAL.get(array.dtype.name, 0)
        values = np.abs(array.astype(np.float64))
        if ((values > 0) & (values < smallest)).any():
            flushed[name] = np.where(values < smallest, np.zeros((), array.dtype), array)
    return graph.replace(weights={**graph.weights, **flushed}) if flushed else graph


def _foldable(graph: MSCGraph, layer: Node, norm: Node, readers: dict[str, list[Node]]) -> bool:
    """Rule 1. The norm acts on axis 1, so a `linear` must have a matrix as output."""
    (output,) = layer.outputs
    constant = [name in graph.weights for name in (*layer.inputs[1:], *norm.inputs[1:]) if name]
    return (
        layer.op in ("conv2d", "linear")
        and (layer.op == "conv2d" or len(graph.tensors[output].shape) == 2)
        and readers[output] == [norm]
        and output not in graph.outputs
        and all(constant)
    )


def _folded_weights(graph: MSCGraph, layer: Node, norm: Node) -> tuple[Array, Array]:
    """Weight and bias of the layer with the norm in it: both have the output channels first."""
    weight = graph.weights[layer.inputs[1]]
    named = len(layer.inputs) > 2 and layer.inputs[2]
    bias = graph.weights[layer.inputs[2]] if named else np.zeros(len(weight))
    gamma, beta, mean, variance = (graph.weights[name].astype(np.float64) for name in norm.inputs[1:5])
    scale = gamma / np.sqrt(variance + bind(norm, graph.tensors)["eps"])
    columns = scale.reshape(-1, *[1] * (weight.ndim - 1))
    return (weight * columns).astype(weight.dtype), ((bias - mean) * scale + beta).astype(weight.dtype)
