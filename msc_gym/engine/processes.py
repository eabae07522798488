"""A pool of processes that can be killed one by one: a candidate that hangs, crashes or eats the memory costs no other.

`concurrent.futures` cannot end one task, so this is a loop over `multiprocessing.connection`: a child tells which stage
it enters, and the parent kills the ones that stay too long.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import psutil

from msc_core.backends import Target
from msc_core.errors import DeadlineExceeded, MscError
from msc_gym.engine import stages
from msc_gym.engine.measurement import Measurement
from msc_gym.engine.pool import Job, Limits, attempt, failed, here
from msc_gym.engine.scratch import Scratch
from msc_gym.engine.worker import Measure

TICK = 0.2  # seconds between two looks at clocks and memory
MEMORY_SHARE = 0.8  # of the host's memory, for all workers together
START = "start"


class ProcessPool:
    """Measures in `size` child processes, each with a worker of its own that lives until the pool is closed.

    `threads` is what one child computes with. Children start when there is something to do. The worker travels to each
    once, so it must be picklable and its class importable.
    """

    def __init__(self, size: int, limits: Limits | None = None, threads: int = 1) -> None:
        check_count("size", size)
        check_count("threads", threads)
        self.size, self.threads = size, threads
        self.limits = shared(limits or Limits(), size)
        self._packed: tuple[Measure, Parcel] | None = None
        self._children: list[Child] = []
        self._scratch: Scratch | None = None
        self._end: Callable[[], object] = lambda: None

    def run(self, measure: Measure, jobs: Sequence[Job], target: Target) -> Iterator[tuple[int, Measurement]]:
        """See `Pool.run`. Raises `MscError` if the worker cannot be sent to another process."""
        if self._packed is None or self._packed[0] is not measure:
            self._packed = measure, pack(measure)
        for index, found in self.outcomes(self._packed[1], jobs):
            yield index, found if isinstance(found, Measurement) else failed(measure, jobs[index], found)

    def outcomes(self, parcel: Parcel, jobs: Sequence[Job]) -> Iterator[tuple[int, Measurement | Exception]]:
        """`run` for a worker that is packed already, with faults as they are."""
        waiting, busy = deque(enumerate(jobs)), dict[Child, int]()
        try:
            while waiting or busy:
                while waiting and len(busy) < self.size:
                    index, job = waiting.popleft()
                    child = self._idle(busy)
                    busy[child] = index
                    child.begin(parcel, job)
                wait([child.connection for child in busy], TICK)
                for child, index in list(busy.items()):
                    found = child.poll()
                    if found is not None:
                        del busy[child]
                        yield index, found
        finally:  # whoever asked may have stopped listening
            for child in busy:
                child.end()

    def place(self, target: Target) -> tuple[str, dict[str, str]]:
        """See `Pool.place`."""
        return here(target)

    def close(self) -> None:
        """See `Pool.close`."""
        self._end()
        self._packed = self._scratch = None

    def _idle(self, busy: dict[Child, int]) -> Child:
        """A child with nothing to do: a new one in the place of one that was killed."""
        self._children[:] = [child for child in self._children if child.alive]
        for child in self._children:
            if child not in busy:
                return child
        if self._scratch is None:
            self._scratch = Scratch()
            self._end = weakref.finalize(self, _end, self._children, self._scratch, os.getpid())
        self._children.append(Child(self._scratch.path, self.limits, self.threads))
        return self._children[-1]


def _end(children: list[Child], scratch: Scratch, owner: int) -> None:
    if os.getpid() == owner:  # not in a fork
        for child in children:
            child.end()
        children.clear()
        scratch.close()


def shared(limits: Limits, size: int) -> Limits:
    """The limits, with a share of the host's memory if they say nothing about it."""
    total: int = psutil.virtual_memory().total
    return limits if limits.memory else replace(limits, memory=int(total * MEMORY_SHARE / size))


def check_count(name: str, value: object) -> None:
    """Raise `MscError` unless a pool can have so many of them."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise MscError(f"{name} of a pool must be an integer of at least 1; found {value!r}")


@dataclass(frozen=True, eq=False)
class Parcel:
    """A worker, packed once for all processes."""

    content: bytes


def pack(measure: Measure) -> Parcel:
    """Pack a worker. Raises `MscError` if that is impossible."""
    try:
        return Parcel(bytes(ForkingPickler.dumps(measure)))
    except Exception as error:  # whatever a class's own methods raise
        raise MscError(
            f"the worker {measure!r} cannot be sent to another process: {error}; it must be picklable, and its class"
            " at the top of a module"
        ) from error


class Child:
    """One process with a worker, as its parent sees it: `begin` a job, then `poll` until it is over.

    A fault is an exception that `poll` returns. After one that ended the process, `alive` is false.
    """

    def __init__(self, folder: Path, limits: Limits, threads: int) -> None:
        self.limits, self.alive = limits, True
        self.folder = Path(tempfile.mkdtemp(prefix="worker-", dir=folder))
        self.connection, remote = Pipe()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)}
        environment |= {f"{name}_NUM_THREADS": str(threads) for name in ("OMP", "MKL", "OPENBLAS", "TVM")}
        program = f"from msc_gym.engine.processes import serve; serve({remote.fileno()}, {str(self.folder)!r})"
        with remote, self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                pass_fds=[remote.fileno()],
                start_new_session=True,  # Ctrl-C is for the parent
            )
        self._family = [psutil.Process(self._process.pid)]
        self._ready = False
        self._held: Parcel | None = None
        self._order: tuple[Parcel, Job] | None = None
        self._enter(START, time.monotonic())

    @property
    def _log(self) -> Path:
        return self.folder / "output.txt"

    def begin(self, parcel: Parcel, job: Job) -> None:
        """Hand a job over, as soon as the process listens; `parcel` is sent if it has another one."""
        self._order = parcel, job
        if self._ready:
            self._hand_over()

    def poll(self) -> Measurement | Exception | None:
        """What came of the job; `None` while it is under way."""
        try:
            while self.connection.poll():
                found = self._heard(*self.connection.recv())
                if found is not None:
                    return found
        except (EOFError, OSError):
            return self._dead()
        except Exception as error:  # whatever is raised by reading what it sent
            return self._killed(MscError(f"{self._stage}: the worker's answer cannot be read: {error}"))
        limit = self.limits.seconds(self._stage)
        if time.monotonic() > self._entered + limit:
            return self._killed(DeadlineExceeded(f"{self._stage} took longer than {limit:g} s; the worker was killed"))
        memory = self._memory()
        if self.limits.memory is not None and memory > self.limits.memory:
            text = f"{self._stage} took {memory / 1e6:.0f} MB of memory, more than {self.limits.memory / 1e6:.0f} MB"
            return self._killed(MscError(f"{text}; the worker was killed"))
        return None

    def end(self) -> None:
        """Kill the process with all its children, and remove its files."""
        if not self.alive:
            return
        self.alive = False
        self._memory()  # finds the latest children
        for process in self._family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        psutil.wait_procs(self._family, 2)
        self.connection.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _heard(self, kind: str, *values: Any) -> Measurement | Exception | None:
        if kind == "found":
            found: Measurement | Exception = values[0]
            return found
        if kind == "ready":
            self._ready = True
            self._hand_over()
        else:
            self._enter(*values)
        return None

    def _hand_over(self) -> None:
        if self._order is None:
            return
        (parcel, job), self._order = self._order, None
        with suppress(OSError):  # its death is found out when it is polled
            if self._held is not parcel:
                self._enter(START, time.monotonic())
                self.connection.send(True)
                self.connection.send_bytes(parcel.content)
                self._held = parcel
            self.connection.send(job)

    def _enter(self, stage: str, entered: float) -> None:
        self._stage, self._entered = stage, entered

    def _memory(self) -> int:
        """Bytes that the process and its children hold."""
        with suppress(psutil.NoSuchProcess):
            self._family = [self._family[0], *self._family[0].children(recursive=True)]
        held = 0
        for process in self._family:
            with suppress(psutil.Error):
                held += process.memory_info().rss
        return held

    def _killed(self, fault: Exception) -> Exception:
        self.end()
        return fault

    def _dead(self) -> Exception:
        """What the process died of by itself."""
        status = self._process.wait()
        cause = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit code {status}"
        last = self._log.read_text(errors="replace").strip().splitlines()[-1:]
        return self._killed(MscError(f"{self._stage}: the worker {cause}{': ' if last else ''}{''.join(last)}"))


# What follows runs in the child.


def serve(descriptor: int, folder: str) -> None:
    """Measure what arrives until the parent is gone."""
    os.environ["TMPDIR"] = tempfile.tempdir = folder  # the parent removes it
    threading.Thread(target=_follow, args=(os.getppid(),), daemon=True).start()
    connection = Connection(descriptor)
    stages.report_to(lambda stage: connection.send(("stage", stage, time.monotonic())))
    measure: Measure | Exception | None = None
    connection.send(("ready",))
    while True:
        job = connection.recv()
        if job is True:
            measure = _unpacked(connection.recv)
            continue
        stages.enter(stages.STAGES[0])
        assert measure is not None
        connection.send(("found", measure if isinstance(measure, Exception) else attempt(measure, job)))


def _unpacked(receive: Callable[[], Measure]) -> Measure | Exception:
    try:
        return receive()
    except Exception as error:
        return MscError(f"start: the worker cannot be made: {type(error).__name__}: {error}")


def _follow(parent: int) -> None:
    """End with the parent, whatever the other thread is doing, and take the children along."""
    while os.getppid() == parent:
        time.sleep(TICK)
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    os.kill(os.getpid(), signal.SIGKILL)
