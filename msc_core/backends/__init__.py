"""Targets: build a graph for one, run it, export it and load it again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from msc_core.backends import onnxruntime, torch, tvm
from msc_core.backends.runner import Runner, check_feeds, compare, cores, load_manifest, save_manifest, score
from msc_core.backends.target import Target
from msc_core.errors import MscError, Unavailable
from msc_core.ir import Array, MSCGraph

__all__ = [
    "BACKENDS",
    "INTEGER_TOLERANCE",
    "Backend",
    "Runner",
    "Target",
    "agreement",
    "available",
    "build",
    "check_feeds",
    "compare",
    "cores",
    "load",
    "load_manifest",
    "save_manifest",
    "score",
]


TOLERANCE, INTEGER_TOLERANCE = 1e-3, 0.05  # errors relative to the largest output; engines may round one step apart


class Backend(Protocol):
    """What a module of this package defines; it imports its framework only when it is used."""

    def available(self, options: tuple[str, ...] = ()) -> tuple[bool, str]:
        """Whether it can be used on this machine with these options, and if not, why."""
        ...

    def build(self, graph: MSCGraph, target: Target, threads: int) -> Runner:
        """Build a graph."""
        ...

    def load(self, folder: str | Path, target: Target, threads: int) -> Runner:
        """Load what `Runner.export` wrote."""
        ...


BACKENDS: Mapping[str, Backend] = {"onnxruntime": onnxruntime, "torch": torch, "tvm": tvm}


def available(target: str | Target) -> tuple[bool, str]:
    """Whether the target's backend can be used on this machine, and if not, why."""
    target = Target.parse(target) if isinstance(target, str) else target
    if target.backend not in BACKENDS:
        return False, "no backend for it in this version yet"
    return BACKENDS[target.backend].available(target.options)


def build(graph: MSCGraph, target: str | Target, threads: int = 1) -> Runner:
    """Build the graph for a target, to run on that many threads.

    Raises `Unavailable` if the backend is missing, `UnsupportedOperator` if it cannot say a node.
    """
    target = Target.parse(target) if isinstance(target, str) else target
    return _usable(target).build(graph, target, threads)


def load(folder: str | Path, threads: int = 1) -> Runner:
    """The runner that `Runner.export` wrote to a folder. Raises `MscError` if the folder does not hold one."""
    target = load_manifest(folder)["target"]
    return _usable(target).load(folder, target, threads)


def agreement(
    runner: Runner, graph: MSCGraph, x: Array, tolerance: float | None = None, reference: Runner | None = None
) -> float:
    """The runner's largest error against torch on input `x`, relative to the largest output.

    `reference` is the graph built for torch, if it is at hand. Raises `MscError` where the error exceeds `tolerance`,
    by default `INTEGER_TOLERANCE` for a graph that quantizes: a fast engine with wrong answers is no result.
    """
    if reference is None:
        with build(graph, "torch") as reference:
            return agreement(runner, graph, x, tolerance, reference)
    if tolerance is None:
        tolerance = INTEGER_TOLERANCE if any(node.op == "quantize" for node in graph.nodes) else TOLERANCE
    error = compare(runner, reference, {graph.inputs[0]: np.ascontiguousarray(x)})
    if not error <= tolerance:
        raise MscError(f"target '{runner.target}' differs from torch by {error:.2g} of the output's range")
    return error


def _usable(target: Target) -> Backend:
    usable, reason = available(target)
    if not usable:
        raise Unavailable(f"target '{target}': {reason}")
    return BACKENDS[target.backend]
