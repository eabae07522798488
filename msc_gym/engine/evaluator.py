"""The one door to the reward engine: agents, environments and the command line all ask here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Self

from msc_core.plan import Plan
from msc_gym.decisions import divided
from msc_gym.engine.measurement import Measurement
from msc_gym.engine.store import Store
from msc_gym.engine.worker import VERSION, Candidate, Measure, Scoring, Worker, candidate_hash, device, versions
from msc_gym.task import CompressionTask


class Evaluator:
    """Measures plans of a task, each one once.

    `store` is a `Store`, its URL, or `None` for one in memory. A measurement is found again under everything that it
    depends on: graph, plan, data, recovery, target, versions, device. Failures are remembered for the life of the
    evaluator only, since what failed may be mended. `worker` replaces what measures a plan, for tests and toy problems;
    a pool of processes has its place there. `hits` and `misses` count lookups that found something, and that did not.
    """

    def __init__(
        self,
        task: CompressionTask,
        store: Store | str | None = None,
        worker: Measure | None = None,
        pool: str = "serial",
    ) -> None:
        self.task = task
        self.store = store if isinstance(store, Store) else Store.memory() if store is None else Store(store)
        self._owns_store = not isinstance(store, Store)
        self._worker = worker or Worker(task)
        self._failures: dict[str, Measurement] = {}
        self.hits = self.misses = 0
        self.workers = 1  # how many candidates are measured at once

    def __deepcopy__(self, memo: object) -> Evaluator:  # shared; gymnasium copies an environment's arguments
        return self

    def evaluate(
        self, plans: Sequence[Candidate], split: str = "validation", full: bool = False, latency: bool = True
    ) -> list[Measurement]:
        """The measurement of each plan, in order; `full` counts on every sample of the split, for finalists.

        A plan may be given as the choices that it comes from; where they quantize, the worker makes the plan of them.

        Never raises for a plan that cannot be measured: its measurement has an `error`.
        """
        scoring = Scoring(split, full, latency)
        self.task.scoring_split(split, full)  # a wrong name is the caller's mistake, not a plan's
        return [self._one(self._candidate(plan), scoring) for plan in plans]

    def key(self, candidate: Candidate, scoring: Scoring) -> str:
        """The cache key: a hash of everything that the measurement depends on."""
        parts = [self._context, candidate_hash(candidate), scoring.split, scoring.full, scoring.latency]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def close(self) -> None:
        """End the measuring process, and the store's connections if the evaluator opened them. May be repeated."""
        if isinstance(self._worker, Worker):
            self._worker.close()
        if self._owns_store and self.store.url != "sqlite://":
            self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @cached_property
    def _context(self) -> list[Any]:
        installed = versions(self.task.parsed_target.backend)
        return [VERSION, self.task.fingerprint, sorted(installed.items()), device()]

    def _candidate(self, plan: Candidate) -> Candidate:
        """Choices that only prune are as good as their plan, which costs nothing."""
        pruned = not isinstance(plan, Plan) and not divided(plan)[1]
        return self.task.planned(plan) if pruned else plan

    def _one(self, plan: Candidate, scoring: Scoring) -> Measurement:
        key = self.key(plan, scoring)
        known = self._failures.get(key) or self.store.get(key)
        if known is not None:
            self.hits += 1
            return known
        self.misses += 1
        measurement = self._worker(plan, scoring)
        if measurement.ok:
            self.store.put(key, plan.to_json() if isinstance(plan, Plan) else json.dumps(dict(plan)), measurement)
        else:
            self._failures[key] = measurement
        return measurement
