"""What happens to one plan: compress, count accuracy, check against torch, measure latency. A failure is a result."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from msc_core.backends import Runner, agreement, build, cores
from msc_core.data import Split
from msc_core.errors import MscError
from msc_core.infer import single
from msc_core.ir import MSCGraph
from msc_core.measure import Latency, Meter
from msc_core.plan import Plan
from msc_gym.decisions import Choices
from msc_gym.engine.accuracy import Bar, Count, count
from msc_gym.engine.measurement import Measurement
from msc_gym.engine.stages import enter, stopwatch
from msc_gym.task import CompressionTask

VERSION = 2  # of what a measurement means: part of every cache key
PAIRS, FULL_PAIRS = 30, 100  # readings per round during a search, and for finalists
LATENCY_TRIES = 2
PACKAGES = {"onnxruntime": ("onnxruntime",), "tvm": ("apache-tvm",), "openvino": ("openvino",)}


@dataclass(frozen=True)
class Scoring:
    """What to find out about a plan: accuracy on which split, whole or what a search looks at; latency or not.

    With a `bar`, counting stops for a plan that has lost against it, unless `full`.
    """

    split: str = "validation"
    full: bool = False
    latency: bool = True
    bar: Bar | None = None


Candidate = Plan | Choices  # choices stand for the plan that the task makes of them
Measure = Callable[[Candidate, Scoring], Measurement]


class Worker:
    """Measures plans of one task in this process, latency in a child of its own. Never raises for a bad plan."""

    def __init__(self, task: CompressionTask, deadline: float = 60.0) -> None:
        self.task, self.deadline = task, deadline
        self._meter: Meter | None = None

    def __getstate__(self) -> dict[str, Any]:  # another process starts a measuring process of its own
        return self.__dict__ | {"_meter": None}

    def __call__(self, candidate: Candidate, scoring: Scoring) -> Measurement:
        """The measurement of a candidate, or one that says why there is none."""
        started = time.perf_counter()
        try:
            found = self._measure(self.task.planned(candidate), scoring)
        except Exception as error:  # faults are data
            found = self.failed(candidate, scoring, error)
        return dataclasses.replace(found, seconds=time.perf_counter() - started)

    def failed(self, candidate: Candidate, scoring: Scoring, error: Exception) -> Measurement:
        """The measurement of a candidate that could not be measured."""
        text = " ".join(str(error).split()) or type(error).__name__
        reason = text if isinstance(error, MscError) else f"{type(error).__name__}: {text}"
        return Measurement(plan=candidate_hash(candidate), split=scoring.split, error=reason[:500], **self._context())

    def close(self) -> None:
        """End the measuring process; the next measurement starts another."""
        if self._meter is not None:
            self._meter.close()
            self._meter = None

    def _measure(self, plan: Plan, scoring: Scoring) -> Measurement:
        task = self.task
        enter("compress")
        graph = task.compress(plan)
        split = task.scoring_split(scoring.split, scoring.full)
        with build(graph, "torch") as reference:
            found = self._accuracy(graph, split, None if scoring.full else scoring.bar, reference)
            pairs = FULL_PAIRS if scoring.full else PAIRS
            latency = self._latency(graph, pairs, reference) if scoring.latency else None
        cost = task.cost(task.choices_of(plan))
        return Measurement(
            plan=plan.hash,
            **vars(found),
            split=scoring.split,
            macs=int(cost["macs"]),
            params=int(cost["params"]),
            bytes=int(cost["bytes"]),
            latency_ratio=latency.ratio if latency else None,
            latency_interval=latency.interval if latency else None,
            latency_valid=latency.valid if latency else False,
            **self._context(),
        )

    def _accuracy(self, graph: MSCGraph, split: Split, bar: Bar | None, reference: Runner) -> Count:
        """Top-1 through ONNX Runtime, which is several times faster than torch, on all cores: it is not timed."""
        enter("accuracy")
        with build(graph, "onnxruntime", threads=cores()) as runner:
            agreement(runner, graph, split.x[:2], reference=reference)
            return count(runner, split, bar)

    def _latency(self, graph: MSCGraph, pairs: int, reference: Runner) -> Latency:
        """Against the original, after the target's output was found right; again if the rounds disagree."""
        if self._meter is None:
            self._meter = Meter()
        enter("build")
        with build(single(graph), self.task.parsed_target) as runner:
            agreement(runner, graph, self.task.dataset.validation.x[:1], reference=reference)
            baseline = self.task.baseline_runner
            with stopwatch():
                for _ in range(LATENCY_TRIES):
                    latency = self._meter.measure(runner, against=baseline, pairs=pairs, deadline=self.deadline)
                    if latency.valid:
                        break
        return latency

    def _context(self) -> dict[str, Any]:
        target = self.task.parsed_target
        return {"target": str(target), "device": device(), "versions": versions(target.backend)}


def candidate_hash(candidate: Candidate) -> str:
    """A plan's hash; of choices one of their own, 16 hex digits too."""
    if isinstance(candidate, Plan):
        return candidate.hash
    return hashlib.sha256(json.dumps(dict(candidate), sort_keys=True).encode()).hexdigest()[:16]


@cache
def device() -> str:
    """The processor that measurements are made on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(errors="replace").splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{platform.machine()} {names[0] if names else platform.processor()}".strip()


def versions(backend: str) -> dict[str, str]:
    """The versions of the packages that a measurement depends on."""
    names = dict.fromkeys(("msc-gym", "numpy", "onnx", "onnxruntime", "torch", *PACKAGES.get(backend, ())))
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "source"
    return found
