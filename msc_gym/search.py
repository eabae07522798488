"""`search`: let an agent propose plans for a task, measure them, keep every trial; run again, it goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import Any, Protocol

from msc_core.errors import MscError, nearest
from msc_core.plan import Plan
from msc_gym.agents import AGENTS, Agent
from msc_gym.decisions import divided
from msc_gym.engine import Evaluator, Measurement, Store, TrialRow
from msc_gym.engine.worker import VERSION as ENGINE_VERSION
from msc_gym.engine.worker import device, versions
from msc_gym.envs import Reward, parse_reward, pay, settle
from msc_gym.objectives import beats, check_objective, hypervolume, objective_values
from msc_gym.report import write_report
from msc_gym.report.result import SCHEMA
from msc_gym.task import CompressionTask

VERSION = 3  # of what the agents do: a change makes new runs, it does not break old ones
PARETO_COSTS = ("macs", "params", "bytes", "latency_ratio")


@dataclass(frozen=True)
class Trial:
    """One proposal and what came of it; `choices` has the option of every decision."""

    index: int
    agent: str
    choices: Mapping[str, int]
    measurement: Measurement
    reward: float
    task: CompressionTask = field(repr=False, compare=False)

    @property
    def counts(self) -> Mapping[str, int]:
        """The kept channels of each group."""
        return divided(self.choices)[0]

    @cached_property
    def plan(self) -> Plan:
        """The exact plan, made of the choices anew."""
        return self.task.plan(self.choices)


class Progress(Protocol):
    """Told about every trial, those that a resumed search finds in the store included."""

    def __call__(
        self, index: int, total: int, agent: str, measurement: Measurement, best: Trial | None, hits: int
    ) -> None:
        """`index` counts from 0; `hits` is how many measurements the cache has saved so far."""
        ...


@dataclass(frozen=True)
class Settings:
    """What a search is besides its task."""

    agent: str
    trials: int
    seed: int
    reward: Reward
    batch: int = 1
    objectives: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def timed(self) -> bool:
        """Whether every trial needs its latency; finalists are timed in any case."""
        return not self.reward.deterministic or "latency" in self.objectives

    def make(self, task: CompressionTask) -> Agent:
        """A fresh agent."""
        factory: Any = AGENTS[self.agent]
        looks = self.objectives and "objectives" in signature(factory).parameters  # others are told the reward only
        several = {"objectives": len(self.objectives)} if looks else {}
        try:
            made: Agent = factory(
                task, trials=self.trials, seed=self.seed, fill=self.reward.fills, **several, **self.options
            )
        except TypeError as error:
            raise MscError(f"agent {self.agent!r}: {error}") from error
        return made

    def key(self, task: CompressionTask) -> str:
        """What the sequence of trials depends on, besides the agent's name: a hash."""
        installed = sorted(versions(task.parsed_target.backend).items())
        parts = [VERSION, ENGINE_VERSION, self.trials, self.seed, repr(self.reward), self.batch, self.objectives]
        options = {name: repr(value) for name, value in sorted(self.options.items())}
        return hashlib.sha256(
            json.dumps([task.search_fingerprint, *parts, options, installed, device()]).encode()
        ).hexdigest()


@dataclass(frozen=True)
class SearchResult:
    """The trials of a search, in order, next to the original network. `resumed` of them were in the store already.

    `final` is the best one measured again: on the whole validation split, and on the target, which trials are only if
    the reward or an objective is about latency.
    """

    task: CompressionTask
    settings: Settings
    baseline: Measurement
    trials: tuple[Trial, ...]
    final: Measurement
    resumed: int = 0
    hits: int = 0

    @property
    def agent(self) -> str:
        """The agent's name."""
        return self.settings.agent

    @property
    def front(self) -> list[Trial]:
        """The trials that no other beats in every objective, in order; without objectives, accuracy and MACs."""
        return [t for t in self.trials if t.measurement.ok and t.index in self._indices]

    @property
    def hypervolume(self) -> float:
        """How much of the unit cube of objectives the front covers, 1 at best: a cost counts from the original's."""
        return hypervolume([self._point(t) for t in self.front])

    @cached_property
    def _indices(self) -> set[int]:
        points = {t.index: self._point(t) for t in self.trials if t.measurement.ok}
        return {index for index, point in points.items() if not any(beats(p, point) for p in points.values())}

    def _point(self, trial: Trial) -> tuple[float, ...]:
        return objective_values(trial.measurement, self.task, self.settings.objectives or ("accuracy", "macs"))

    @property
    def best(self) -> Trial:
        """The trial with the highest reward, the first of equals. Raises `MscError` if every trial failed."""
        best = best_of(self.trials)
        if best is None:
            reason = f": {self.trials[-1].measurement.error}" if self.trials else ""
            raise MscError(f"no trial of {self.agent} could be measured{reason}")
        return best

    def pareto(self, cost: str = "macs") -> list[Trial]:
        """The trials that no other beats in both accuracy and cost (a field of `Measurement`), cheapest first."""
        if cost not in PARETO_COSTS:
            raise MscError(f"unknown cost {cost!r}{nearest(cost, PARETO_COSTS)}")
        known = [t for t in self.trials if t.measurement.ok and getattr(t.measurement, cost) is not None]
        front: list[Trial] = []
        for trial in sorted(known, key=lambda t: (getattr(t.measurement, cost), -t.measurement.accuracy, t.index)):
            if not front or trial.measurement.accuracy > front[-1].measurement.accuracy:
                front.append(trial)
        return front

    def to_dict(self) -> dict[str, Any]:
        """The search as plain values, in the form of `result.json`."""
        task, best = self.task, self.best
        row = _row(self.final) | {"kept": dict(best.choices), "plan": best.plan.hash}
        return {
            "schema": SCHEMA,
            "name": task.graph.name,
            "task": {
                "model": task.graph.name,
                "data": task.dataset.name,
                "target": str(task.target),
                "budget": dict(task.budget),
                "samples": {"calibration": len(task.calibration_inputs), "search": best.measurement.samples},
                "groups": [
                    {"name": g.name, "size": g.size, "divisor": g.divisor, "nodes": g.nodes} for g in task.groups
                ],
            },
            "baseline": _row(self.baseline),
            "best": row | {"agent": self.agent},
            "agents": {self.agent: row | {"trials": len(self.trials)}},
            "trials": [trial_dict(trial) for trial in self.trials],
            "environment": {"device": best.measurement.device, "versions": dict(best.measurement.versions)},
        }

    def report(self, path: str | Path) -> None:
        """Write an HTML report, one self-contained file."""
        write_report(self.to_dict(), path)


def best_of(trials: tuple[Trial, ...] | list[Trial]) -> Trial | None:
    """The measured trial with the highest reward, the first of equals."""
    measured = [t for t in trials if t.measurement.ok]
    return max(measured, key=lambda t: (t.reward, -t.index)) if measured else None


def search(
    task: CompressionTask,
    agent: str = "amc",
    trials: int = 100,
    store: Store | str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    *,
    reward: Reward | str = "accuracy",
    evaluator: Evaluator | None = None,
    workers: int | str = 1,
    batch: int = 0,
    objectives: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
) -> SearchResult:
    """Run an agent for that many trials, or until it has nothing more to propose.

    Everything is in the store as soon as it is known. The same call again replays the agent against the stored trials
    and goes on where it stopped, killed or not: agents are deterministic, so the sequence is that of a search that was
    never interrupted. Measured plans are found again by any search of the same task. A trial that fails is kept with
    its reason, paid the reward's floor, and the search goes on.

    - `evaluator`, with its own store, may be shared between searches; otherwise `store` is a `Store`, its URL, or
      `None` for one in memory, and `workers` how many processes measure, or a pool as `Evaluator` takes it.
    - `batch`: how many plans are asked for before the agent is told about them, by default one for each worker. It
      decides which plans are tried, `workers` does not.
    - `objectives`: two or more of `OBJECTIVES`, which the `front` is by; an agent that can looks for it instead of for
      one best plan. The reward, which `best` is by, is paid all the same.
    - `options`: further keywords of the agent.
    """
    if agent not in AGENTS:
        raise MscError(f"unknown agent {agent!r}{nearest(agent, AGENTS)}")
    for name, value, least in (("trials", trials, 1), ("batch", batch, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise MscError(f"{name} must be an integer of at least {least}; found {value!r}")
    asked = tuple(check_objective(name) for name in objectives)
    worth, own = parse_reward(reward), evaluator is None
    evaluator = evaluator or Evaluator(task, store, pool=parse_workers(workers))
    try:
        baseline = original(evaluator)
        worth = settle(worth, lambda: baseline)
        settings = Settings(agent, trials, seed, worth, batch or evaluator.workers, asked, dict(options or {}))
        run = _Run(task, settings, evaluator, progress)
        run.go()
        best = best_of(run.done)
        final = evaluator.evaluate([best.choices], full=True)[0] if best else baseline
    finally:
        if own:
            evaluator.close()
    return SearchResult(task, settings, baseline, tuple(run.done), final, run.resumed, evaluator.hits)


def original(evaluator: Evaluator) -> Measurement:
    """The measurement of the original network, without latency. Raises `MscError` if there is none."""
    (baseline,) = evaluator.evaluate([evaluator.task.identity], latency=False)
    if not baseline.ok:
        raise MscError(f"the original network cannot be measured: {baseline.error}")
    return baseline


def check_replayed(store: Store, agent: str, row: TrialRow, choices: dict[str, int]) -> None:
    """Raises `MscError` if an agent that is asked again chooses otherwise than it did."""
    if dict(row.applied) != choices:
        raise MscError(
            f"store {store.safe_url}: trial {row.index} of {agent} chooses otherwise than this program does, so the"
            " run cannot be continued; use another store or another seed"
        )


def parse_workers(workers: int | str) -> str:
    """The pool that a number of workers means; a pool's name is itself. Raises `MscError` for a number below 1."""
    if isinstance(workers, str) and not workers.isdecimal():
        return workers
    if isinstance(workers, bool) or int(workers) < 1:
        raise MscError(f"workers must be an integer of at least 1, or a pool; found {workers!r}")
    return "serial" if int(workers) == 1 else f"processes:{int(workers)}"


@dataclass
class _Run:
    """One search while it runs."""

    task: CompressionTask
    settings: Settings
    evaluator: Evaluator
    progress: Progress | None

    def go(self) -> None:
        total, agent = self.settings.trials, self.settings.make(self.task)
        self.key = self.settings.key(self.task)
        stored = self.evaluator.store.trials(self.key, self.settings.agent)[:total]
        self.done: list[Trial] = []
        self.resumed = 0
        for start in range(0, total, self.settings.batch):
            count = min(self.settings.batch, total - start)
            asked = [choices for _ in range(count) if (choices := agent.ask()) is not None]
            known = [self._replayed(*pair) for pair in zip(stored[start:], asked, strict=False)]
            self.resumed += len(known)
            for trial in [*known, *self._tried(start + len(known), asked[len(known) :])]:
                self.done.append(trial)
                agent.tell(trial.choices, trial.reward, self._values(trial))
                self._say(trial)
            if len(asked) < count:
                break

    def _tried(self, start: int, asked: list[dict[str, int]]) -> list[Trial]:
        done = []
        measured = self.evaluator.evaluate(asked, latency=self.settings.timed)
        for index, (choices, found) in enumerate(zip(asked, measured, strict=True), start):
            trial = Trial(index, self.settings.agent, choices, found, pay(self.settings.reward, found), self.task)
            row = TrialRow(index, trial.reward, choices, found)
            self.evaluator.store.put_trial(self.key, self.settings.agent, row)
            done.append(trial)
        return done

    def _replayed(self, row: TrialRow, choices: dict[str, int]) -> Trial:
        check_replayed(self.evaluator.store, self.settings.agent, row, choices)
        return Trial(row.index, self.settings.agent, choices, row.measurement, row.reward, self.task)

    def _values(self, trial: Trial) -> tuple[float, ...]:
        return objective_values(trial.measurement, self.task, self.settings.objectives)

    def _say(self, trial: Trial) -> None:
        if self.progress is not None:
            best, name = best_of(self.done), self.settings.agent
            self.progress(trial.index, self.settings.trials, name, trial.measurement, best, self.evaluator.hits)


def trial_dict(trial: Trial) -> dict[str, Any]:
    """A trial as plain values, in the form of `result.json`."""
    m = trial.measurement
    named = {"agent": trial.agent, "index": trial.index, "reward": trial.reward, "kept": dict(trial.choices)}
    return named | _row(m) | {"error": m.error or None}


def _row(m: Measurement) -> dict[str, Any]:
    names = ("accuracy", "macs", "params", "bytes", "latency_ratio", "latency_interval")
    return {name: getattr(m, name) for name in names}
