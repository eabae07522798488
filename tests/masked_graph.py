"""The oracle for pruned graphs: the same graph with the weights of the dropped channels at zero.

A norm over an axis that loses channels is that of the channels that remain: it is given those alone, and zeros take the
places of the others behind it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np

from msc_core.channels import Channels
from msc_core.infer import outputs
from msc_core.ir import MSCGraph, Node, Tensor
from msc_core.ops import bind
from msc_core.tools.prune.surgery import kept_positions

NORMS = ("layer_norm", "rms_norm", "group_norm")


def masked(graph: MSCGraph, kept: Mapping[str, Iterable[int]], channels: Channels) -> MSCGraph:
    """`graph`, computing what it computes without the channels that are not kept."""
    dropped = channels.dropped(kept)
    weights = {}
    for name, array in graph.weights.items():
        keep = np.zeros(array.shape, bool)
        keep[np.ix_(*kept_positions(name, array.shape, channels, dropped))] = True
        weights[name] = np.where(keep | (array.dtype.kind in "biu"), array, 0).astype(array.dtype)
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes += _norm(node, graph, channels, dropped, weights) if node.op in NORMS else [node]
    tensors = {name: graph.tensors[name] for name in graph.inputs}
    tensors |= {name: Tensor(name, w.shape, w.dtype.name) for name, w in weights.items()}
    for node in nodes:
        tensors |= {t.name: t for t in outputs(bind(node, tensors))}
    return graph.replace(nodes=tuple(nodes), weights=weights, tensors=tensors)


def _norm(node: Node, graph: MSCGraph, channels: Channels, dropped: np.ndarray, weights: dict) -> list[Node]:
    """The norm between a gathering of the channels that remain and their return to their places."""
    bound = bind(node, graph.tensors)
    shape = bound.input(0).shape
    axes = [1] if node.op == "group_norm" else range(bound["axis"] % len(shape), len(shape))
    masks = {}
    for axis in axes:
        ids = channels.axes[node.inputs[0]][axis]
        mask = channels.survivors(ids, 1, dropped)
        if not mask.all():
            masks[axis] = mask
    if not masks:
        return [node]
    nodes, x = [], node.inputs[0]
    parameters = list(node.inputs[1:])
    for axis, mask in masks.items():
        x = _taken(nodes, f"{node.name}.in{axis}", x, axis, np.flatnonzero(mask), weights)
        for i, name in enumerate(parameters):
            if name:
                parameters[i] = f"{node.name}.parameter{i}.{axis}"
                weights[parameters[i]] = np.compress(mask, weights[name], axis - min(axes))
    attrs = dict(node.attrs)
    if node.op == "group_norm":
        attrs["groups"] = int(channels.survivors(channels.letters[node.name]["g"], 1, dropped).sum())
    nodes.append(dataclasses.replace(node, inputs=(x, *parameters), outputs=(f"{node.name}.small",), attrs=attrs))
    x = f"{node.name}.small"
    for axis, mask in masks.items():
        count, name = int(mask.sum()), f"{node.name}.out{axis}"
        weights[f"{name}.zero"] = np.zeros((), np.float32)
        nodes.append(
            Node(f"{name}.one", "strided_slice", (x,), (f"{name}.one",), {"axes": (axis,), "begin": (0,), "end": (1,)})
        )
        nodes.append(Node(f"{name}.nothing", "multiply", (f"{name}.one", f"{name}.zero"), (f"{name}.nothing",)))
        nodes.append(Node(f"{name}.both", "concat", (x, f"{name}.nothing"), (f"{name}.both",), {"axis": axis}))
        index = np.where(mask, np.cumsum(mask) - 1, count)
        x = _taken(nodes, name, f"{name}.both", axis, index, weights)
    nodes[-1] = dataclasses.replace(nodes[-1], outputs=node.outputs)
    return nodes


def _taken(nodes: list[Node], name: str, x: str, axis: int, index: np.ndarray, weights: dict) -> str:
    weights[f"{name}.index"] = index.astype(np.int64)
    nodes.append(Node(name, "take", (x, f"{name}.index"), (name,), {"axis": axis}))
    return name
