"""Bias correction (Nagel et al. 2019): rounding shifts the mean of every output channel, and a bias shifts it back."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping

import numpy as np

from msc_core.infer import bind_symbols
from msc_core.ir import Array, MSCGraph, Node, Tensor, unique
from msc_core.plan import Quantized
from msc_core.tools.calibration import Inputs, named
from msc_core.tools.quantize.insert import quantize
from msc_core.tools.quantize.placement import LAYERS
from msc_core.tools.quantize.run import evaluate

SAMPLES = 256  # whose activations are held all at once; means need no more


def correct_bias(
    graph: MSCGraph, how: Mapping[str, Quantized], x: Inputs, rounded: Mapping[str, Array] | None = None
) -> MSCGraph:
    """The float graph with biases such that quantized layers have the mean outputs that float ones have on `x`.

    Layers are corrected in order, each behind the corrected ones in front of it, on up to 256 samples; one without a
    bias gets one. `quantize` the result with the same `how` and `rounded`. Raises `MscError` where there is no sample.
    """
    sizes = [d for name in graph.inputs for d in graph.tensors[name].shape[:1] if isinstance(d, int)]
    count = sizes[0] if sizes else SAMPLES
    samples = {name: array[:count] for name, array in named(graph, x).items()}
    graph = _with_biases(graph, how)
    uses = Counter(name for node in graph.nodes for name in node.inputs)
    layers = [node for node in graph.nodes if _reads_integers(node, how) and uses[_bias(node)] == 1]
    layers = [node for node in layers if _bias(node) in graph.weights and _bias(node) not in graph.outputs]
    if not layers:
        return graph
    fixed = bind_symbols(graph, **_symbols(graph, samples))
    wanted = evaluate(fixed.replace(outputs=tuple(node.outputs[0] for node in layers)), samples)
    weights = dict(graph.weights)
    walk = _Walk(quantize(fixed, how, rounded), samples)
    for node in layers:
        found = walk.until(node.name)
        shift = _means(node, found) - _means(node, wanted[node.outputs[0]])
        axes = [-1 if i == _channels(node, found.ndim) else 1 for i in range(found.ndim)]
        walk.values[node.outputs[0]] = (found - shift.reshape(axes)).astype(np.float32)
        bias = weights[node.inputs[2]]
        weights[node.inputs[2]] = (bias - shift).astype(bias.dtype)
    return graph.replace(weights=weights)


class _Walk:
    """Evaluates a graph piece by piece; `values` may be changed between two pieces."""

    def __init__(self, graph: MSCGraph, samples: Mapping[str, Array]) -> None:
        self.graph, self.done = graph, 0
        self.values: dict[str, Array] = dict(samples)
        self.last = {name: i for i, node in enumerate(graph.nodes) for name in node.inputs}

    def until(self, name: str) -> Array:
        """The first output of a node, which is further on than what was evaluated before."""
        stop = next(i for i, node in enumerate(self.graph.nodes) if node.name == name) + 1
        nodes = self.graph.nodes[self.done : stop]
        result = nodes[-1].outputs[0]
        made = [t for node in nodes for t in node.outputs]
        read = dict.fromkeys(t for node in nodes for t in node.inputs if t in self.values)
        kept = [t for t in made if t == result or self.last.get(t, 0) >= stop]
        piece = self.graph.replace(nodes=nodes, inputs=tuple(read), outputs=tuple(kept))
        feeds = {t: self.values[t] for t in read}
        found = evaluate(piece, feeds)
        self.values = {t: v for t, v in (self.values | found).items() if t == result or self.last.get(t, 0) >= stop}
        self.done = stop
        return found[result]


def _symbols(graph: MSCGraph, samples: Mapping[str, Array]) -> dict[str, int]:
    """The sizes that the symbols of the inputs have."""
    pairs = [p for name, array in samples.items() for p in zip(graph.tensors[name].shape, array.shape, strict=True)]
    return {dim: size for dim, size in pairs if isinstance(dim, str)}


def _with_biases(graph: MSCGraph, how: Mapping[str, Quantized]) -> MSCGraph:
    """Zeros for the quantized layers that have no bias."""
    weights, tensors, nodes = dict(graph.weights), dict(graph.tensors), []
    for node in graph.nodes:
        if _reads_integers(node, how) and node.inputs[1] in graph.weights and not _bias(node):
            shape = graph.tensors[node.outputs[0]].shape
            channels = int(shape[_channels(node, len(shape))])
            name = unique(f"{node.name}.bias", tensors)
            weights[name], tensors[name] = np.zeros(channels, np.float32), Tensor(name, (channels,))
            node = dataclasses.replace(node, inputs=(*node.inputs[:2], name))
        nodes.append(node)
    return graph.replace(nodes=tuple(nodes), weights=weights, tensors=tensors)


def _reads_integers(node: Node, how: Mapping[str, Quantized]) -> bool:
    """Whether it is a quantized layer that can have a bias."""
    return node.op in LAYERS and node.op != "matmul" and any(name in how for name in node.inputs[:2])


def _bias(node: Node) -> str:
    return node.inputs[2] if len(node.inputs) > 2 else ""


def _channels(node: Node, rank: int) -> int:
    return rank - 1 if node.op == "linear" else 1


def _means(node: Node, value: Array) -> Array:
    """The mean of each channel, float64."""
    axes = tuple(i for i in range(value.ndim) if i != _channels(node, value.ndim))
    return np.asarray(value.mean(axis=axes, dtype=np.float64))
