"""The one door to the reward engine: agents, environments and the command line all ask here."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Self

from msc_core.errors import MscError, nearest
from msc_core.plan import Plan
from msc_gym.decisions import divided
from msc_gym.engine.accuracy import Bar, recount
from msc_gym.engine.measurement import Measurement
from msc_gym.engine.pool import Pool, SerialPool
from msc_gym.engine.processes import ProcessPool
from msc_gym.engine.ray_pool import RayPool
from msc_gym.engine.store import Store
from msc_gym.engine.worker import VERSION, Candidate, Measure, Scoring, Worker, candidate_hash
from msc_gym.task import CompressionTask

POOL = re.compile(r"\w+(:(?P<count>[1-9]\d*))?(@(?P<address>\S+))?")
PARTS_OF = {"serial": (), "processes": ("count",), "ray": ("count", "address")}


class Evaluator:
    """Measures plans of a task, each one once.

    - `store` is a `Store`, its URL, or `None` for one in memory. A measurement is found again under everything that it
      depends on: graph, plan, data, recovery, target, versions, device. So is a failure, unless `retry_failed`: what
      failed may be mended.
    - `worker` replaces what measures a plan, for tests and toy problems.
    - `pool` is where that happens: a `Pool`, which stays its owner's to close, or what `parse_pool` reads. Results are
      the same in all of them, but for clocks.

    `hits` and `misses` count lookups that found something, and that did not.
    """

    def __init__(
        self,
        task: CompressionTask,
        store: Store | str | None = None,
        worker: Measure | None = None,
        pool: Pool | str | None = None,
        retry_failed: bool = False,
    ) -> None:
        self.task = task
        self._pool = parse_pool(pool or "serial") if pool is None or isinstance(pool, str) else pool
        self._owns_pool = pool is None or isinstance(pool, str)
        self.store = store if isinstance(store, Store) else Store.memory() if store is None else Store(store)
        self._owns_store = not isinstance(store, Store)
        self._worker = worker or Worker(task)
        self._retry_failed = retry_failed
        self._tried: set[str] = set()  # keys of failures of this evaluator, which come out the same again
        self.hits = self.misses = 0

    def __deepcopy__(self, memo: object) -> Evaluator:  # shared; gymnasium copies an environment's arguments
        return self

    @property
    def workers(self) -> int:
        """How many candidates are measured at once."""
        return self._pool.size

    def evaluate(
        self,
        plans: Sequence[Candidate],
        split: str = "validation",
        full: bool = False,
        latency: bool = True,
        bar: float | None = None,
    ) -> list[Measurement]:
        """The measurement of each plan, in order; `full` counts on every sample of the split, for finalists.

        A plan may be given as the choices that it comes from; where they quantize, the worker makes the plan of them.
        What is not known yet goes to the pool together, and is in the store as soon as it is measured. Counting stops
        for a plan that has lost against the accuracy `bar`, unless `full`; see `Bar` for how surely.

        Never raises for a plan that cannot be measured: its measurement has an `error`.
        """
        scoring = Scoring(split, full, latency, None if full or bar is None else self._bar(bar, split))
        self.task.scoring_split(split, full)  # a wrong name is the caller's mistake, not a plan's
        candidates = [self._candidate(plan) for plan in plans]
        keys = [self.key(candidate, scoring) for candidate in candidates]
        known, missing = dict[str, Measurement](), dict[str, Candidate]()
        for key, candidate in zip(keys, candidates, strict=True):
            if key in known or key in missing:
                continue
            found = self._known(candidate, scoring) or self._failure(key)
            if found is None:
                missing[key] = candidate
            else:
                known[key] = found
        self.hits, self.misses = self.hits + len(keys) - len(missing), self.misses + len(missing)
        known |= self._measured(missing, scoring)
        return [known[key] for key in keys]

    def key(self, candidate: Candidate, scoring: Scoring, stopped: bool = False) -> str:
        """The cache key: a hash of everything that the measurement depends on; not the bar.

        A count that was `stopped` has a key of its own: it answers for bars as high as its own only.
        """
        parts = [self._context, candidate_hash(candidate), scoring.split, scoring.full, scoring.latency, stopped]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def close(self) -> None:
        """End the measuring processes, and the store's connections if the evaluator opened them. May be repeated."""
        if isinstance(self._worker, Worker):
            self._worker.close()
        if self._owns_pool:
            self._pool.close()
        if self._owns_store and self.store.url != "sqlite://":
            self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @cached_property
    def _context(self) -> list[Any]:
        device, versions = self._pool.place(self.task.parsed_target)
        return [VERSION, self.task.fingerprint, sorted(versions.items()), device]

    def _candidate(self, plan: Candidate) -> Candidate:
        """Choices that only prune are as good as their plan, which costs nothing; the worker says what is wrong."""
        if isinstance(plan, Plan) or divided(plan)[1]:
            return plan
        try:
            return self.task.planned(plan)
        except MscError:
            return plan

    def _measured(self, missing: dict[str, Candidate], scoring: Scoring) -> dict[str, Measurement]:
        keys, found = list(missing), dict[str, Measurement]()
        jobs = [(candidate, scoring) for candidate in missing.values()]
        for index, measurement in self._pool.run(self._worker, jobs, self.task.parsed_target):
            key, candidate = keys[index], missing[keys[index]]
            found[key] = measurement
            self._keep(
                self.key(candidate, scoring, stopped=True) if measurement.stopped else key, candidate, measurement
            )
        return found

    def _bar(self, accuracy: float, split: str) -> Bar:
        (original,) = self.evaluate([self.task.identity], split, latency=False)
        return Bar(accuracy, original.right)

    def _known(self, candidate: Candidate, scoring: Scoring) -> Measurement | None:
        """What the store says: with a bar, what counting against it would have found."""
        whole = self.store.get(self.key(candidate, scoring))
        if scoring.bar is None or (whole and not whole.right):
            return whole
        for found in (whole, self.store.get(self.key(candidate, scoring, stopped=True))):
            again = found and recount(found.count, len(self.task.scoring_split(scoring.split)), scoring.bar)
            if found and again:
                return found.counted(again)
        return None

    def _failure(self, key: str) -> Measurement | None:
        return None if self._retry_failed and key not in self._tried else self.store.failure(key)

    def _keep(self, key: str, plan: Candidate, measurement: Measurement) -> None:
        self.store.put(key, plan.to_json() if isinstance(plan, Plan) else json.dumps(dict(plan)), measurement)
        if not measurement.ok:
            self._tried.add(key)


def parse_pool(text: str) -> Pool:
    """The pool of a text: `serial`, `processes:4`, `ray:4` for a cluster on this host, or `ray:4@ADDRESS`.

    Without a number, there are as many workers as processors. Raises `MscError` for anything else.

    >>> parse_pool("processes:4").size
    4
    """
    found, kind = POOL.fullmatch(text), re.split("[:@]", text)[0]
    if kind not in PARTS_OF:
        raise MscError(f"unknown pool {text!r}{nearest(kind, PARTS_OF)}")
    if found is None or any(value and part not in PARTS_OF[kind] for part, value in found.groupdict().items()):
        raise MscError(f"cannot read pool {text!r}; expected serial, processes:N, ray:N or ray:N@ADDRESS")
    size = int(found["count"] or os.cpu_count() or 1)
    if kind == "serial":
        return SerialPool()
    if kind == "processes":
        return ProcessPool(size)
    return RayPool(size, found["address"])
