"""Which positions of every tensor are left when a graph is pruned: how activations of both are compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from msc_core.channels import Channels
from msc_core.ir import Array, MSCGraph

Positions = tuple[tuple[int, Array], ...]  # (axis, the positions that survive), of axes that lose some


def survivors(
    graph: MSCGraph, prune: Mapping[str, Iterable[int]], names: Iterable[str], channels: Channels | None = None
) -> dict[str, Positions]:
    """For each tensor named, what `select` takes so that it has its shape in the graph with `prune`'s channels only.

    `channels` may be passed to save its analysis.
    """
    if not prune:
        return {name: () for name in names}
    channels = channels or Channels(graph)
    dropped = channels.dropped(prune)
    found: dict[str, Positions] = {}
    for name in names:
        kept = []
        for axis, (ids, size) in enumerate(zip(channels.axes[name], graph.tensors[name].shape, strict=True)):
            mask = channels.survivors(ids, size, dropped) if isinstance(size, int) else np.ones(1, bool)
            if not mask.all():
                kept.append((axis, np.flatnonzero(mask)))
        found[name] = tuple(kept)
    return found


def select(value: Any, positions: Positions) -> Any:
    """The positions of a NumPy array or a torch tensor."""
    for axis, kept in positions:
        value = value[(slice(None),) * axis + (kept,)]
    return value


def selected_shape(shape: tuple[int | str, ...], positions: Positions) -> tuple[int | str, ...]:
    """The shape that `select` gives."""
    sizes = {axis: len(kept) for axis, kept in positions}
    return tuple(sizes.get(axis, size) for axis, size in enumerate(shape))
