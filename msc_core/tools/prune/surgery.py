"""Remove channels: slice every weight along every axis by the positions that survive, and fix sizes in attributes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from msc_core import dims
from msc_core.channels import Channels
from msc_core.dims import Dim
from msc_core.errors import InvalidPlan, nearest
from msc_core.factors import positions
from msc_core.infer import infer
from msc_core.ir import Array, MSCGraph, Node
from msc_core.ops import Bound, bind


def prune(graph: MSCGraph, kept: Mapping[str, Iterable[int]], channels: Channels | None = None) -> MSCGraph:
    """The graph with only the `kept` channels of each named group.

    It computes what `graph` computes with the dropped channels masked; norms over an axis that lost channels are those
    of the channels that remain. `channels` may be passed to save its analysis. Raises `InvalidPlan` for a group that
    does not exist or cannot be pruned, an index that is out of range or comes twice, and an axis that would be empty.
    """
    channels = channels or Channels(graph)
    chosen = {name: tuple(indices) for name, indices in kept.items()}
    check(chosen, channels)
    dropped = channels.dropped(chosen)
    weights = {name: _slice(name, array, channels, dropped) for name, array in graph.weights.items()}
    nodes = []
    for node in graph.nodes:
        bound = bind(node, graph.tensors)
        nodes.append(_resize(bound, channels, dropped))
        weights |= _renumber(bound, channels, dropped, weights)
    sliced = {name: dataclasses.replace(graph.tensors[name], shape=array.shape) for name, array in weights.items()}
    return infer(graph.replace(nodes=tuple(nodes), weights=weights, tensors={**graph.tensors, **sliced}))


def check(kept: Mapping[str, tuple[int, ...]], channels: Channels) -> None:
    """Raise `InvalidPlan` if these channels are not there or cannot go."""
    groups = {group.name: group for group in channels.groups}
    for name, indices in kept.items():
        if name not in groups:
            raise InvalidPlan(f"no channel group {name!r}{nearest(name, groups)}")
        group = groups[name]
        if wrong := [i for i in indices if not 0 <= i < group.size]:
            raise InvalidPlan(f"channel {wrong[0]} of group {name!r}, which has {group.size}")
        if len(set(indices)) < len(indices):
            raise InvalidPlan(f"a channel of group {name!r} is named twice")
        if group.reason and len(indices) < group.size:
            raise InvalidPlan(f"group {name!r} cannot be pruned: it {group.reason}")
        if not indices:
            raise InvalidPlan(f"the plan removes every position of group {name!r}")


def kept_positions(name: str, shape: tuple[int, ...], channels: Channels, dropped: Array) -> list[Array]:
    """For each axis of a weight, the positions that survive, ascending."""
    axes = channels.axes.get(name, [None] * len(shape))  # a weight that no node reads has none
    masks = [channels.survivors(ids, size, dropped) for ids, size in zip(axes, shape, strict=True)]
    return [np.flatnonzero(mask) for mask in masks]


def _slice(name: str, array: Array, channels: Channels, dropped: Array) -> Array:
    for axis, keep in enumerate(kept_positions(name, array.shape, channels, dropped)):
        if len(keep) < array.shape[axis]:
            array = np.take(array, keep, axis=axis)
    return array


def _masks(bound: Bound, channels: Channels, dropped: Array) -> dict[str, Array]:
    """For each letter of a node that loses positions, which ones remain."""
    letters = channels.letters.get(bound.node.name, {})
    masks = {x: channels.survivors(ids, 1, dropped) for x, ids in letters.items() if ids is not None}
    return {letter: mask for letter, mask in masks.items() if not mask.all()}


def _resize(bound: Bound, channels: Channels, dropped: Array) -> Node:
    """The node with attributes that mention sizes or positions (groups, targets, begins) brought up to date."""
    op, changes = bound.op, dict[str, Any]()
    masks = _masks(bound, channels, dropped) if op.sized or op.resize else {}
    for attr, letter in op.sized.items():
        if letter == "output":
            shape = tuple(
                _remaining(size, channels.survivors(ids, positions(size), dropped))
                for size, ids in zip(bound.out[0].shape, channels.axes[bound.out[0].name], strict=True)
            )
            if shape != bound.out[0].shape:
                changes[attr] = shape
        elif letter in masks:
            changes[attr] = int(masks[letter].sum())
    if op.resize and masks:
        changes |= op.resize(bound, masks)
    return dataclasses.replace(bound.node, attrs={**bound.node.attrs, **changes}) if changes else bound.node


def _remaining(size: Dim, mask: Array) -> Dim:
    """An axis of that size when only some of its positions remain; `"4*N"` has a mask for 4."""
    return size if mask.all() else dims.floordiv(dims.mul(size, int(mask.sum())), len(mask))


def _renumber(bound: Bound, channels: Channels, dropped: Array, weights: Mapping[str, Array]) -> dict[str, Array]:
    """Constant indices into an axis that lost positions, counted among those that remain."""
    indices = bound.op.indices(bound) if bound.op.indices else {}
    masks = _masks(bound, channels, dropped) if indices else {}
    found = {}
    for operand, letter in indices.items():
        name = bound.input(operand).name
        if letter in masks and name in weights:
            index = weights[name]
            places = np.cumsum(masks[letter]) - 1
            found[name] = places[index].astype(index.dtype)
    return found
