"""`train`: let a learning agent practise on one or several tasks, and keep the policy that it has learned.

A policy sees a layer by its features, not by its name, so what was learned on some networks can be applied to others:
`search(task, "policy", options={"path": FOLDER})`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from msc_core.errors import MscError, nearest
from msc_core.ir import write_atomic
from msc_gym.agents import LEARNERS, Learner, Policy
from msc_gym.engine import Evaluator, Measurement, Store, TrialRow
from msc_gym.envs import Reward, parse_reward, pay
from msc_gym.envs.rewards import settle
from msc_gym.scalars import Scalars
from msc_gym.search import Progress, Settings, Trial, best_of, check_replayed, original, parse_workers, trial_dict
from msc_gym.task import CompressionTask

SCHEMA = 1
TRAINING_FILE = "training.json"


@dataclass(frozen=True)
class TrainResult:
    """A trained policy. Episode i was about the task i modulo their number; `resumed` of them were in the store.

    `final` is what the policy itself, without noise, reaches on each task.
    """

    settings: Settings
    tasks: tuple[CompressionTask, ...]
    baselines: tuple[Measurement, ...]
    trials: tuple[Trial, ...]
    policy: Policy
    final: tuple[Measurement, ...]
    resumed: int = 0

    def best(self, task: int = 0) -> Trial | None:
        """The best episode of a task, if one could be measured."""
        return best_of(self.trials[task :: len(self.tasks)])

    def to_dict(self) -> dict[str, Any]:
        """The training as plain values, in the form of `training.json`."""
        pairs = zip(self.tasks, self.baselines, self.final, strict=True)
        tasks = [
            {"name": t.graph.name, "fingerprint": t.search_fingerprint, "baseline": b.to_dict(), "policy": f.to_dict()}
            for t, b, f in pairs
        ]
        s = self.settings
        named = {"schema": SCHEMA, "agent": s.agent, "episodes": s.trials, "seed": s.seed, "reward": repr(s.reward)}
        return {**named, "options": dict(s.options), "tasks": tasks, "trials": [trial_dict(t) for t in self.trials]}


def train(
    tasks: CompressionTask | Sequence[CompressionTask],
    agent: str = "ppo",
    episodes: int = 300,
    store: Store | str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    *,
    out: str | Path | None = None,
    reward: Reward | str = "accuracy",
    workers: int | str = 1,
    batch: int = 0,
    options: Mapping[str, Any] | None = None,
    tensorboard: bool = False,
) -> TrainResult:
    """Train an agent for so many episodes, on the tasks by turns; they must decide the same parts.

    As in `search`, everything is in the store as soon as it is known, and the same call again goes on where it stopped.
    `store`, `workers`, `batch`, `reward` and `options` mean the same as there, too.

    - `agent`: one of `LEARNERS`.
    - `progress` is told the best episode of the task that the episode is about.
    - `out`: a folder for the policy and `training.json`; `tensorboard` writes scalars to its folder of that name.
    """
    chosen = (tasks,) if isinstance(tasks, CompressionTask) else tuple(tasks)
    if agent not in LEARNERS:
        raise MscError(f"agent {agent!r} does not learn{nearest(agent, LEARNERS)}")
    for name, value, least in (("episodes", episodes, 1), ("batch", batch, 0), ("tasks", len(chosen), 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise MscError(f"{name} must be an integer of at least {least}; found {value!r}")
    if tensorboard and out is None:
        raise MscError("scalars need a folder: out")
    with ExitStack() as stack:
        kept = store if isinstance(store, Store) else Store.memory() if store is None else Store(store)
        if not isinstance(store, Store):
            stack.callback(kept.close)
        evaluators = [stack.enter_context(Evaluator(task, kept, pool=parse_workers(workers))) for task in chosen]
        scalars = stack.enter_context(Scalars(Path(out) / "tensorboard")) if out and tensorboard else None
        baselines = tuple(original(evaluator) for evaluator in evaluators)
        settings = Settings(
            agent, episodes, seed, parse_reward(reward), batch or evaluators[0].workers, (), dict(options or {})
        )
        run = _Training(settings, evaluators, baselines, progress, scalars)
        run.go()
        policy = run.learner.policy()
        final = [
            e.evaluate([policy.choices(e.task, settings.reward.fills)], latency=settings.timed)[0] for e in evaluators
        ]
    result = TrainResult(settings, chosen, baselines, tuple(run.done), policy, tuple(final), run.resumed)
    if out is not None:
        policy.save(out)
        write_atomic(Path(out) / TRAINING_FILE, (json.dumps(result.to_dict(), indent=1) + "\n").encode())
    return result


@dataclass
class _Training:
    """A training while it runs."""

    settings: Settings
    evaluators: list[Evaluator]
    baselines: tuple[Measurement, ...]
    progress: Progress | None
    scalars: Scalars | None
    done: list[Trial] = field(default_factory=list)
    resumed: int = 0

    def go(self) -> None:
        total, store = self.settings.trials, self.evaluators[0].store
        self.learner = cast(Learner, self.settings.make(self.evaluators[0].task))
        keys = [self.settings.key(evaluator.task) for evaluator in self.evaluators]
        self.key = hashlib.sha256(json.dumps(["train", *keys]).encode()).hexdigest()
        self.rewards = [self._settled(baseline) for baseline in self.baselines]
        stored = store.trials(self.key, self.settings.agent)[:total]
        for start in range(0, total, self.settings.batch):
            asked = [self._asked(index) for index in range(start, min(start + self.settings.batch, total))]
            for row, choices in zip(stored[start:], asked, strict=False):
                check_replayed(store, self.settings.agent, row, choices)
            known = [replace(row, applied=choices) for row, choices in zip(stored[start:], asked, strict=False)]
            self.resumed += len(known)
            for row in [*known, *self._tried(start + len(known), asked[len(known) :])]:
                self._tell(row)

    def _settled(self, baseline: Measurement) -> Reward:
        return settle(self.settings.reward, lambda: baseline)

    def _asked(self, index: int) -> dict[str, int]:
        self.learner.visit(self._evaluator(index).task)
        choices = self.learner.ask()
        assert choices is not None  # a learner always has something to try
        return choices

    def _tried(self, start: int, asked: list[dict[str, int]]) -> list[TrialRow]:
        """New episodes, measured together for each task, and stored in order."""
        found: dict[int, Measurement] = {}
        for place, evaluator in enumerate(self.evaluators):
            mine = [i for i in range(start, start + len(asked)) if i % len(self.evaluators) == place]
            measured = evaluator.evaluate([asked[i - start] for i in mine], latency=self.settings.timed)
            found |= dict(zip(mine, measured, strict=True))
        rows = []
        for index, choices in enumerate(asked, start):
            reward = pay(self.rewards[index % len(self.rewards)], found[index])
            rows.append(TrialRow(index, reward, choices, found[index]))
            self.evaluators[0].store.put_trial(self.key, self.settings.agent, rows[-1])
        return rows

    def _tell(self, row: TrialRow) -> None:
        evaluator, name = self._evaluator(row.index), self.settings.agent
        self.learner.tell(row.applied, row.reward)
        self.done.append(Trial(row.index, name, dict(row.applied), row.measurement, row.reward, evaluator.task))
        place = row.index % len(self.evaluators)
        best = best_of(self.done[place :: len(self.evaluators)])
        if self.scalars is not None:
            self.scalars.add(row.index, **self._scalars(place, row, best))
        if self.progress is not None:
            hits = sum(e.hits for e in self.evaluators)
            self.progress(row.index, self.settings.trials, name, row.measurement, best, hits)

    def _scalars(self, place: int, row: TrialRow, best: Trial | None) -> dict[str, float]:
        """What TensorBoard shows of an episode, under the name of its network."""
        names = [evaluator.task.graph.name for evaluator in self.evaluators]
        name = names[place] if names.count(names[place]) == 1 else f"{names[place]} {place + 1}"
        share = row.measurement.macs / max(1, self.baselines[place].macs)
        known = {"reward": row.reward, "accuracy": row.measurement.accuracy, "macs": share}
        known |= {} if best is None else {"best": best.reward}
        return {f"{name}/{key}": value for key, value in known.items()}

    def _evaluator(self, index: int) -> Evaluator:
        return self.evaluators[index % len(self.evaluators)]
