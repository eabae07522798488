"""Calibration data: samples of a graph's inputs, checked once and fed in batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from msc_core.errors import MscError, nearest
from msc_core.ir import Array, MSCGraph

if TYPE_CHECKING:
    import torch

Inputs = Array | Mapping[str, Array]  # samples (n, ...) of the only input, or of each by name
BATCH = 50


def named(graph: MSCGraph, x: Inputs) -> dict[str, Array]:
    """The samples of each input, in the graph's order.

    Raises `MscError` unless every input is named and has as many samples, at least one.
    """
    given = dict(x) if isinstance(x, Mapping) else {graph.inputs[0]: x}
    if unknown := [name for name in given if name not in graph.inputs]:
        raise MscError(f"calibration: no input {unknown[0]!r}{nearest(unknown[0], graph.inputs)}")
    if missing := [name for name in graph.inputs if name not in given]:
        raise MscError(f"calibration: input {missing[0]!r} is missing; found {', '.join(given)}")
    counts = {name: len(array) for name, array in given.items()}
    if not all(counts.values()):
        raise MscError("calibration needs at least one input; found none")
    if len(set(counts.values())) > 1:
        raise MscError(f"calibration needs as many samples of every input; found {counts}")
    return {name: np.ascontiguousarray(given[name]) for name in graph.inputs}


def batches(graph: MSCGraph, x: Inputs, limit: int | None = None) -> list[dict[str, torch.Tensor]]:
    """The first `limit` samples as inputs of `to_torch(graph)`, on the GPU if there is one.

    Batches are of `BATCH` samples or, if the graph has a fixed batch, of that; what then remains is left out. Raises
    `MscError` if there are too few for one, and as `named` does.
    """
    import torch

    samples = named(graph, x)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    fixed = next((d for n in graph.inputs for d in graph.tensors[n].shape[:1] if isinstance(d, int)), 0)
    count = len(next(iter(samples.values())))
    if count < fixed:
        raise MscError(f"calibration: graph {graph.name!r} takes {fixed} samples at once; found {count}")
    count = max(fixed, min(count, limit or count))
    starts = range(0, count - fixed + 1, fixed) if fixed else range(0, count, BATCH)
    return [
        {name: torch.from_numpy(a[i : min(count, i + (fixed or BATCH))]).to(device) for name, a in samples.items()}
        for i in starts
    ]
