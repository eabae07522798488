"""`search`: let an agent propose plans for a task, measure them, keep every trial; run again, it goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from msc_core.errors import MscError, nearest
from msc_core.plan import Plan
from msc_gym.agents import AGENTS, Agent
from msc_gym.decisions import divided
from msc_gym.engine import Evaluator, Measurement, Store, TrialRow
from msc_gym.engine.worker import VERSION as ENGINE_VERSION
from msc_gym.engine.worker import device, versions
from msc_gym.envs import Reward, parse_reward, pay
from msc_gym.report import write_report
from msc_gym.report.result import SCHEMA
from msc_gym.task import CompressionTask

VERSION = 1  # of what the agents do: a change makes new runs, it does not break old ones
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
class SearchResult:
    """The trials of a search, in order, next to the original network. `resumed` of them were in the store already."""

    task: CompressionTask
    agent: str
    baseline: Measurement
    trials: tuple[Trial, ...]
    resumed: int = 0
    hits: int = 0

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
        row = _row(best.measurement) | {"kept": dict(best.choices), "plan": best.plan.hash}
        return {
            "schema": SCHEMA,
            "name": task.graph.name,
            "task": {
                "model": task.graph.name,
                "data": task.dataset.name,
                "target": str(task.target),
                "budget": dict(task.budget),
                "samples": {"calibration": len(task.calibration_inputs), "validation": best.measurement.samples},
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
) -> SearchResult:
    """Run an agent for that many trials, or until it has nothing more to propose.

    Everything is in the store as soon as it is known. The same call again replays the agent against the stored trials
    and goes on where it stopped, killed or not: agents are deterministic, so the sequence is that of a search that was
    never interrupted. Measured plans are found again by any search of the same task. A trial that fails is kept with
    its reason, paid the reward's floor, and the search goes on.

    `evaluator`, with its own store, may be shared between searches; otherwise `store` is a `Store`, its URL, or `None`
    for one in memory.
    """
    if agent not in AGENTS:
        raise MscError(f"unknown agent {agent!r}{nearest(agent, AGENTS)}")
    if isinstance(trials, bool) or not isinstance(trials, int) or trials < 1:
        raise MscError(f"trials must be an integer of at least 1; found {trials!r}")
    worth = parse_reward(reward)
    own = evaluator is None
    evaluator = evaluator or Evaluator(task, store)
    try:
        (baseline,) = evaluator.evaluate([task.identity])
        if not baseline.ok:
            raise MscError(f"the original network cannot be measured: {baseline.error}")
        run = _Run(task, agent, trials, seed, worth, evaluator, progress)
        run.go(AGENTS[agent](task, trials=trials, seed=seed, fill=worth.fills))
    finally:
        if own:
            evaluator.close()
    return SearchResult(task, agent, baseline, tuple(run.done), run.resumed, evaluator.hits)


@dataclass
class _Run:
    """One search while it runs."""

    task: CompressionTask
    agent: str
    total: int
    seed: int
    reward: Reward
    evaluator: Evaluator
    progress: Progress | None

    def go(self, agent: Agent) -> None:
        stored = self.evaluator.store.trials(self.key, self.agent)[: self.total]
        self.done: list[Trial] = []
        self.resumed = 0
        for index in range(self.total):
            choices = agent.ask()
            if choices is None:
                break
            trial = self._replayed(stored[index], choices) if index < len(stored) else self._tried(index, choices)
            self.resumed += index < len(stored)
            self.done.append(trial)
            agent.tell(choices, trial.reward)
            if self.progress is not None:
                best = best_of(self.done)
                self.progress(index, self.total, self.agent, trial.measurement, best, self.evaluator.hits)

    @property
    def key(self) -> str:
        """What the sequence of trials depends on, besides the agent."""
        installed = sorted(versions(self.task.parsed_target.backend).items())
        settings = [VERSION, ENGINE_VERSION, self.total, self.seed, repr(self.reward), installed, device()]
        return hashlib.sha256(json.dumps([self.task.search_fingerprint, *settings]).encode()).hexdigest()

    def _tried(self, index: int, choices: dict[str, int]) -> Trial:
        (measurement,) = self.evaluator.evaluate([choices])
        trial = Trial(index, self.agent, choices, measurement, pay(self.reward, measurement), self.task)
        self.evaluator.store.put_trial(self.key, self.agent, TrialRow(index, trial.reward, choices, measurement))
        return trial

    def _replayed(self, row: TrialRow, choices: dict[str, int]) -> Trial:
        if dict(row.applied) != choices:
            raise MscError(
                f"store {self.evaluator.store.safe_url}: trial {row.index} of {self.agent} chooses otherwise than this"
                " program does, so the run cannot be continued; use another store or another seed"
            )
        return Trial(row.index, self.agent, choices, row.measurement, row.reward, self.task)


def trial_dict(trial: Trial) -> dict[str, Any]:
    """A trial as plain values, in the form of `result.json`."""
    m = trial.measurement
    named = {"agent": trial.agent, "index": trial.index, "reward": trial.reward, "kept": dict(trial.choices)}
    return named | _row(m) | {"error": m.error or None}


def _row(m: Measurement) -> dict[str, Any]:
    names = ("accuracy", "macs", "params", "bytes", "latency_ratio", "latency_interval")
    return {name: getattr(m, name) for name in names}
