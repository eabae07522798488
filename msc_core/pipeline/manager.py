"""The compile manager: runs the stages in order, never without its accuracy figures, and reports every number."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

from msc_core.backends import INTEGER_TOLERANCE, Target, agreement, available, build, cores, score
from msc_core.cost import Cost, cost
from msc_core.data import Dataset
from msc_core.errors import MscError, Unavailable, nearest
from msc_core.infer import single
from msc_core.ir import MSCGraph
from msc_core.measure import Latency, Meter
from msc_core.pipeline.export import FORMATS, Artefact, engines, export
from msc_core.plan import Plan
from msc_core.tools import finish
from msc_core.tools.finetune import Recipe, finetune
from msc_core.tools.prune import Pruner

STAGES = ("prepare", "baseline", "optimize", "finetune", "compile", "export")
CHECKED = 8  # samples on which engines are compared
PAIRS = 100


class Planner(Protocol):
    """Whoever proposes a plan: rules, a plan file, a search."""

    def plan(self, graph: MSCGraph, config: Config) -> Plan:
        """A plan for `graph`."""
        ...


@dataclass(frozen=True)
class Fixed:
    """The planner that already has its plan."""

    chosen: Plan

    def plan(self, graph: MSCGraph, config: Config) -> Plan:
        """The plan, whatever the graph; it is checked when it is applied."""
        return self.chosen


@dataclass(frozen=True)
class Config:
    """What a run needs besides the model. `pruner` may be given where one has gathered its statistics already."""

    data: Dataset
    planner: Planner
    out: Path
    target: str = "onnxruntime"
    finetune: Recipe = field(default_factory=lambda: Recipe(steps=0))
    export: tuple[str, ...] = ("torch", "onnx", "tvm")
    calibration: int = 1000
    tolerance: float = 1e-3
    pruner: Pruner | None = None


@dataclass(frozen=True)
class Row:
    """A network in the final table: top-1 accuracies in [0, 1], latency relative to the original by target."""

    accuracy: float
    test_accuracy: float
    cost: Cost
    latency: Mapping[str, Latency]


@dataclass(frozen=True)
class Report:
    """What `Manager.run` returns. `before` is the validation accuracy before fine-tuning."""

    graph: MSCGraph
    plan: Plan
    baseline: Row
    best: Row
    before: float
    artefacts: Mapping[str, Artefact]
    seconds: Mapping[str, float]


Listen = Callable[[str, int, int, str], None]  # (stage, done, total, text)


class Manager:
    """Takes a graph through all stages; `listen` is told of each stage and step."""

    def __init__(self, model: MSCGraph, config: Config, listen: Listen | None = None) -> None:
        self.graph, self.config = model, config
        self._listen = listen or (lambda stage, done, total, text: None)
        self._seconds: dict[str, float] = {}

    def run(self) -> Report:
        """Prepare, baseline, optimize, finetune, compile, export.

        Raises `MscError` before any long work if a target or format is unknown or missing here.
        """
        config = self.config
        with self._stage("prepare"):
            self._prepare()
        with self._stage("baseline"):
            original = self._accuracies(self.graph)
        with self._stage("optimize"):
            plan = config.planner.plan(self.graph, config)
            pruned = self.pruner.compress(plan)
            before = self._accuracy(pruned, "validation")
        with self._stage("finetune"):
            recipe = config.finetune
            tuned = finetune(pruned, config.data.train, recipe, teacher=self.graph, report=self._step)
            best = finish(plan, tuned)
        with self._stage("compile"):
            baseline = Row(*original, cost(self.graph), self._latencies(self.graph))
            row = Row(*self._accuracies(best), cost(best), self._latencies(best))
        with self._stage("export"):
            plan.save(config.out / "plan.json")
            x = config.data.validation.x[:CHECKED]
            artefacts = {
                name: export(best, name, config.out / name, x, self._tolerance(best)) for name in config.export
            }
        return Report(best, plan, baseline, row, before, artefacts, self._seconds)

    @cached_property
    def pruner(self) -> Pruner:
        """The pruner that plans are applied with."""
        return self.config.pruner or Pruner(self.graph, self.config.data.train.x[: self.config.calibration])

    @cached_property
    def target(self) -> Target:
        """Where latency counts."""
        return Target.parse(self.config.target)

    def _prepare(self) -> None:
        for name in self.config.export:
            if name not in FORMATS:
                raise MscError(f"unknown export format {name!r}{nearest(name, FORMATS)}")
        for target in [self.target, *(Target.parse(FORMATS[name].target) for name in self.config.export)]:
            usable, reason = available(target)
            if not usable:
                raise Unavailable(f"target '{target}': {reason}")
        self.config.out.mkdir(parents=True, exist_ok=True)

    def _accuracies(self, graph: MSCGraph) -> tuple[float, float]:
        return self._accuracy(graph, "validation"), self._accuracy(graph, "test")

    def _accuracy(self, graph: MSCGraph, split: str) -> float:
        with build(graph, "onnxruntime", threads=cores()) as runner:
            return score(runner, getattr(self.config.data, split))

    def _latencies(self, graph: MSCGraph) -> dict[str, Latency]:
        """Against the original, on every engine; each engine's output is compared with torch first."""
        x = self.config.data.validation.x[:1]
        found = {}
        with Meter() as meter:
            for target in engines(self.target, self.config.export):
                with build(single(graph), target) as runner, build(single(self.graph), target) as original:
                    agreement(runner, single(graph), x, self._tolerance(graph))
                    found[str(target)] = meter.measure(runner, against=original, pairs=PAIRS)
        return found

    def _tolerance(self, graph: MSCGraph) -> float:
        """How far engines may be apart: those that round to integers may round one step apart."""
        stepped = any(node.op == "quantize" for node in graph.nodes)
        return max(self.config.tolerance, INTEGER_TOLERANCE if stepped else 0.0)

    def _step(self, done: int, total: int, loss: float) -> None:
        self._listen("finetune", done, total, f"loss {loss:.3f}")

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        self._listen(name, 0, 0, "")
        started = time.perf_counter()
        yield
        self._seconds[name] = time.perf_counter() - started
