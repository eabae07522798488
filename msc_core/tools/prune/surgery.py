"""Remove channels: slice every weight along every axis by the positions that survive, and fix sizes in attributes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from msc_core.channels import Channels
from msc_core.errors import InvalidPlan
from msc_core.infer import infer
from msc_core.ir import Array, MSCGraph, Node
from msc_core.ops import bind


def prune(graph: MSCGraph, kept: Mapping[str, Iterable[int]], channels: Channels | None = None) -> MSCGraph:
    """The graph with only the `kept` channels of each named group.

    It computes what `graph` computes with the dropped channels masked. `channels` may be passed to save its analysis.
    Raises `InvalidPlan` if an axis would lose all its positions.
    """
    channels = channels or Channels(graph)
    dropped = channels.dropped(kept)
    weights = {name: _slice(name, array, channels, dropped) for name, array in graph.weights.items()}
    nodes = tuple(_resize(node, graph, channels, dropped) for node in graph.nodes)
    return infer(graph.replace(nodes=nodes, weights=weights, tensors={n: graph.tensors[n] for n in graph.tensors} | {
        name: dataclasses.replace(graph.tensors[name], shape=array.shape) for name, array in weights.items()
    }))  # fmt: skip


def kept_positions(name: str, shape: tuple[int, ...], channels: Channels, dropped: Array) -> list[Array]:
    """For each axis of a weight, the positions that survive, ascending."""
    masks = [
        channels.survivors(ids, size, dropped) for ids, size in zip(channels.axes[name], shape, strict=True)
    ]  # fmt: skip
    for axis, mask in enumerate(masks):
        if not mask.any():
            raise InvalidPlan(f"the plan removes every position of axis {axis} of {name!r}")
    return [np.flatnonzero(mask) for mask in masks]


def _slice(name: str, array: Array, channels: Channels, dropped: Array) -> Array:
    for axis, keep in enumerate(kept_positions(name, array.shape, channels, dropped)):
        if len(keep) < array.shape[axis]:
            array = np.take(array, keep, axis=axis)
    return array


def _resize(node: Node, graph: MSCGraph, channels: Channels, dropped: Array) -> Node:
    """The node with attributes that repeat a size (groups, reshape targets) brought up to date."""
    bound = bind(node, graph.tensors)
    changes: dict[str, Any] = {}
    for attr, letter in bound.op.sized.items():
        if letter == "output":
            tensor = bound.out[0]
            sizes = [d if isinstance(d, int) else 1 for d in tensor.shape]
            masks = [channels.survivors(i, s, dropped) for i, s in zip(channels.axes[tensor.name], sizes, strict=True)]
            new = tuple(d if isinstance(d, str) else int(m.sum()) for d, m in zip(tensor.shape, masks, strict=True))
            if new != tensor.shape:
                changes[attr] = new
        else:
            size = bound[attr]
            count = int(channels.survivors(channels.letters[node.name].get(letter), size, dropped).sum())
            if count != size:
                changes[attr] = count
    return dataclasses.replace(node, attrs={**node.attrs, **changes}) if changes else node
