"""A pool of Ray actors, on this host or on a cluster; each measures in a child process that it can kill."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from msc_core.backends import Target
from msc_core.errors import MscError, Unavailable
from msc_gym.engine.measurement import Measurement
from msc_gym.engine.pool import Job, Limits, failed, here
from msc_gym.engine.processes import Parcel, ProcessPool, check_count, pack, shared
from msc_gym.engine.scratch import Scratch, remove_stale
from msc_gym.engine.worker import Measure

LABEL = "target:"  # custom resource of a host, such as "target:tvm": that it may measure for TVM
SHARE = 0.001  # of a label or a GPU that one worker takes: they say where to be, readings are one at a time anyway
STORE_BYTES = 200_000_000  # of Ray's object store, besides twice the worker
CLOSING = 10.0  # seconds for an idle worker to remove its files


class RayPool:
    """Measures in `size` Ray actors, each with a child process that computes with `threads`.

    Without `address`, on a Ray that is already connected, or else one of its own on this host, without dashboard, that
    ends with the pool. `address` is of a cluster, `auto` for the one on this host; see `ray.init`.

    Actors are placed by the target: `tensorrt` needs a GPU; where any host of the cluster has a custom resource
    `target:NAME`, only the hosts with that of the target are used. Raises `Unavailable` if there is none, and
    `MscError` if their processors or versions differ, since then their latencies cannot be compared.
    """

    def __init__(self, size: int, address: str | None = None, limits: Limits | None = None, threads: int = 1) -> None:
        check_count("size", size)
        check_count("threads", threads)
        self.size, self.address, self.threads = size, address, threads
        limits = limits or Limits()
        self.limits = limits if address else shared(limits, size)  # who knows how many share a host of a cluster
        self._holds: tuple[Measure, Target] | None = None
        self._parcel: Any = None
        self._actors: list[Any] = []
        self._missing = 0
        self._places: dict[Target, tuple[str, dict[str, str]]] = {}
        self._scratch: Scratch | None = None
        self._connected = False

    def run(self, measure: Measure, jobs: Sequence[Job], target: Target) -> Iterator[tuple[int, Measurement]]:
        """See `Pool.run`. Raises `MscError` if the worker cannot be sent, or no host can be had."""
        ray = _ray()
        self._hold(measure, target)
        waiting, busy = deque(enumerate(jobs)), dict[Any, tuple[Any, int]]()
        try:
            while waiting or busy:
                free = [actor for actor in self._actors if actor not in [used for used, _ in busy.values()]]
                for actor, (index, job) in zip(free, list(waiting), strict=False):
                    waiting.popleft()
                    busy[actor.measure.remote(job)] = actor, index
                for done in ray.wait(list(busy))[0]:
                    actor, index = busy.pop(done)
                    found = self._outcome(done, actor, target)
                    yield index, found if isinstance(found, Measurement) else failed(measure, jobs[index], found)
        finally:
            for actor, _ in busy.values():
                self._drop(actor)

    def place(self, target: Target) -> tuple[str, dict[str, str]]:
        """See `Pool.place`; of a cluster, by one of its hosts."""
        if self.address is None:
            return here(target)
        if target not in self._places:
            ray = _ray()
            self._connect()
            asked = ray.remote(here).options(**self._needs(target) | {"num_cpus": 0}).remote(target)
            self._places[target] = ray.get(asked, timeout=self.limits.start)
        return self._places[target]

    def close(self) -> None:
        """See `Pool.close`."""
        if not self._connected:
            return
        ray = _ray()
        if closing := [actor.close.remote() for actor in self._actors]:
            ray.wait(closing, num_returns=len(closing), timeout=CLOSING)
        for actor in list(self._actors):
            self._drop(actor)
        self._holds = self._parcel = None
        self._connected = False
        if self._scratch is not None:
            ray.shutdown()
            self._scratch.close()
            self._scratch = None
        remove_stale()

    def _connect(self, room: int = 0) -> None:
        ray = _ray()
        if not self._connected and not ray.is_initialized():
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            options: dict[str, Any] = {"address": self.address}
            self._scratch = Scratch()
            if self.address is None:
                options = {"address": "local", "num_cpus": self.size * self.threads, "include_dashboard": False}
                options |= {"object_store_memory": STORE_BYTES + room, "_temp_dir": str(self._scratch.path)}
            try:
                ray.init(**options, log_to_driver=False, logging_level="WARNING")
            except (OSError, RuntimeError, ValueError) as error:
                self._scratch.close()
                self._scratch = None
                raise Unavailable(f"no Ray at {self.address or 'this host'}: {' '.join(str(error).split())}") from error
        self._connected = True

    def _hold(self, measure: Measure, target: Target) -> None:
        """Actors for that worker and target."""
        ray = _ray()
        if self._holds is not None and self._holds[0] is measure and self._holds[1] == target:
            self._replace(target)
            return
        parcel = pack(measure)
        self._connect(2 * len(parcel.content))
        for actor in list(self._actors):
            self._drop(actor)
        self._parcel = ray.put(parcel.content)
        self._holds, self._missing = None, self.size
        self._replace(target)
        self._holds = measure, target

    def _replace(self, target: Target) -> None:
        """Start the actors that are missing, or as many as there is room for."""
        ray, count = _ray(), self._missing
        if count == 0:
            return
        kind = ray.remote(Measurer).options(**self._needs(target))
        actors = [kind.remote(self._parcel, self.limits, self.threads) for _ in range(count)]
        asked = {actor.place.remote(target): actor for actor in actors}
        ready, late = ray.wait(list(asked), num_returns=count, timeout=self.limits.start)
        for one in late:
            ray.kill(asked[one])
        if not ready and not self._actors:
            raise Unavailable(
                f"no worker started in the Ray cluster within {self.limits.start:g} s: each takes {self._needs(target)}"
            )
        self._actors += [asked[one] for one in ready]
        self._missing = 0
        try:
            places = ray.get(ready)
        except ray.exceptions.RayError as error:
            raise Unavailable(f"a worker could not start in Ray: {' '.join(str(error).split())[-300:]}") from error
        for found in places:
            if found != self.place(target):
                raise MscError(
                    f"workers for {target} are on hosts that differ, so their latencies cannot be compared:"
                    f" {found} and {self.place(target)}; give the resource {LABEL}{target.backend} to hosts of one kind"
                )

    def _needs(self, target: Target) -> dict[str, Any]:
        """What Ray must find on a host to place a worker there."""
        ray = _ray()
        needs: dict[str, Any] = {"num_cpus": self.threads}
        if target.backend == "tensorrt":
            needs["num_gpus"] = SHARE
        offered = sorted(name for name in ray.cluster_resources() if name.startswith(LABEL))
        if offered:
            needs["resources"] = {LABEL + target.backend: SHARE}
            if LABEL + target.backend not in offered:
                raise Unavailable(f"no host of the Ray cluster has {LABEL + target.backend!r}; found {offered}")
        return needs

    def _outcome(self, done: Any, actor: Any, target: Target) -> Measurement | Exception:
        """What came of a job; an actor that died is replaced."""
        ray = _ray()
        try:
            found: Measurement | Exception = ray.get(done)
        except ray.exceptions.RayError as error:
            self._drop(actor)
            self._replace(target)
            return MscError(f"the worker's host or its actor died: {' '.join(str(error).split())[:200]}")
        return found

    def _drop(self, actor: Any) -> None:
        ray = _ray()
        self._actors.remove(actor)
        self._missing += 1
        ray.kill(actor)


def _ray() -> Any:
    """Ray, which takes a second to import; its own types know too little of what it offers."""
    import ray

    return ray


class Measurer:
    """What an actor does: measure, one job at a time, in a child process with deadlines."""

    def __init__(self, content: bytes, limits: Limits, threads: int) -> None:
        self._parcel = Parcel(content)
        self._pool = ProcessPool(1, limits, threads)

    def measure(self, job: Job) -> Measurement | Exception:
        """The measurement, or the fault."""
        ((_, found),) = self._pool.outcomes(self._parcel, [job])
        return found

    def place(self, target: Target) -> tuple[str, dict[str, str]]:
        """This host's processor and versions."""
        return here(target)

    def close(self) -> None:
        """End the child process and remove its files."""
        self._pool.close()
