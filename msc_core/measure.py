"""Latency of one runner against another, measured in a process of its own that stays alive between measurements.

Machines are noisy, so times are taken in short blocks, candidate and baseline by turns, in two rounds that must agree.
What counts is the ratio of the two minima; the interval says how far it can be trusted.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import math
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from msc_core.backends import Runner, load
from msc_core.errors import DeadlineExceeded, MscError
from msc_core.ir import Array, Tensor

BLOCK = 2e-3  # seconds of work per reading
AGREEMENT = 0.03  # two rounds whose ratios differ by more do not count
RESOLUTION = 0.01  # two loads of one model differ by up to this, so no interval is narrower
CHUNKS = 10  # parts of a round, whose ratios say how much the ratio varies
STARTUP = 120.0  # seconds until a new process must be ready
MIN_PAIRS = 5


@dataclass(frozen=True)
class Spread:
    """Seconds per run: the least, the quartiles and the median of the readings."""

    minimum: float
    p25: float
    median: float
    p75: float


@dataclass(frozen=True)
class Latency:
    """A measurement. Without a baseline the candidate is its own, and the ratio is 1.

    `ratio` is candidate / baseline of the minima; below 1 the candidate is faster. `interval` contains the true ratio
    in at least 95% of measurements. `valid` says that the rounds agreed; do not use the ratio otherwise. `pairs` counts
    the readings per round, `core` is the one that the process was pinned to.
    """

    candidate: Spread
    baseline: Spread
    ratio: float
    interval: tuple[float, float]
    valid: bool
    pairs: int
    threads: int
    core: int | None

    @property
    def median(self) -> float:
        """Seconds per run of the candidate."""
        return self.candidate.median


def summarize(rounds: Array, threads: int = 1, core: int | None = None) -> Latency:
    """The measurement that readings amount to: `rounds` is float[rounds, pairs, (baseline, candidate)] in seconds."""
    baseline, candidate = (_spread(rounds[:, :, i].ravel()) for i in range(2))
    ratio = candidate.minimum / baseline.minimum
    return Latency(candidate, baseline, ratio, _interval(rounds), agree(rounds), rounds.shape[1], threads, core)


def _spread(readings: Array) -> Spread:
    return Spread(*(float(v) for v in np.percentile(readings, [0, 25, 50, 75])))


def agree(rounds: Array) -> bool:
    """Whether the ratios of minima of all rounds are within 3% of each other."""
    ratios = _ratios(rounds)
    return bool(ratios.max() / ratios.min() <= 1 + AGREEMENT)


def _ratios(rounds: Array) -> Array:
    minima: Array = rounds.min(axis=1)
    return np.asarray(minima[:, 1] / minima[:, 0])


def _interval(rounds: Array) -> tuple[float, float]:
    """Covers three things: the median ratio of minima of chunks, each round's ratio of minima, and the resolution.

    A chunk is a tenth of a round; its minimum escapes most interruptions. The median's interval is that of the sign
    test (order statistics), which holds for any noise that hits both alike, at 99% because neighbouring chunks are
    correlated. Resampling is no use: a bootstrapped minimum hardly moves.
    """
    chunks = [chunk for one in rounds for chunk in np.array_split(one, min(CHUNKS, len(one)))]
    ratios = np.sort(_ratios(np.stack([chunk.min(axis=0) for chunk in chunks])[:, None]))
    rank = max(0, math.floor((ratios.size - 2.576 * math.sqrt(ratios.size)) / 2))
    edges = [ratios[rank], ratios[-1 - rank], *_ratios(rounds)]
    return float(min(edges)) / (1 + RESOLUTION), float(max(edges)) * (1 + RESOLUTION)


def take_rounds(take: Callable[[], Array]) -> Array:
    """Two rounds from `take`, or two more if they do not agree."""
    rounds = np.stack([take(), take()])
    return rounds if agree(rounds) else np.stack([take(), take()])


def measure(
    runner: Runner, against: Runner | None = None, *, deadline: float = 60.0, pairs: int = 50, seed: int = 0
) -> Latency:
    """`Meter.measure` with a meter that lives as long as this process does."""
    return _default_meter().measure(runner, against, deadline=deadline, pairs=pairs, seed=seed)


_meters: dict[int, Meter] = {}  # by process id: a forked process must not talk to its parent's child


def _default_meter() -> Meter:
    if os.getpid() not in _meters:
        _meters[os.getpid()] = Meter()
    return _meters[os.getpid()]


class Meter:
    """Measures runners in one child process, which starts when first needed and is pinned to one core.

    `core` is the last available one unless given; `threads` is what runners are loaded with. The child keeps the
    baseline loaded from one call to the next. `close`, or the end of this process, leaves neither process nor files.
    """

    def __init__(self, core: int | None = None, threads: int = 1) -> None:
        self._child = _Child(_choose_core() if core is None else core, threads)
        self._lock = threading.Lock()
        self._baseline: tuple[weakref.ref[Runner] | None, str] = (None, "")
        weakref.finalize(self, self._child.close)

    def measure(
        self,
        runner: Runner,
        against: Runner | None = None,
        *,
        deadline: float = 60.0,
        pairs: int = 50,
        seed: int = 0,
        alike: bool = True,
    ) -> Latency:
        """The latency of `runner` at batch 1 (every symbol is 1), on random inputs that `seed` fixes.

        Fewer pairs are taken if `pairs` would not fit into the deadline. Raises `DeadlineExceeded` after `deadline`
        seconds, and `MscError` if the two runners have different inputs though they should be `alike`, the child cannot
        load or run one, an output is not finite, or the child dies. The next call works again.
        """
        if alike and against is not None and _at_batch_1(against.inputs) != _at_batch_1(runner.inputs):
            raise MscError(f"the runners take different inputs: {runner.inputs} and {against.inputs}")
        with self._lock:
            candidate = self._child.store(runner)
            try:
                baseline = candidate if against is None else self._store_baseline(against)
                request = {"candidate": candidate, "baseline": baseline, "pairs": pairs, "seed": seed}
                reply = self._child.ask(request | {"deadline": deadline}, deadline, f"measuring {runner.target}")
            finally:
                self._child.keep({self._baseline[1]})
        return summarize(np.asarray(reply["rounds"]), self._child.threads, self._child.core)

    def _store_baseline(self, runner: Runner) -> str:
        known, key = self._baseline
        if known is None or known() is not runner:
            key = self._child.store(runner)
            self._baseline = weakref.ref(runner), key
        return key

    def close(self) -> None:
        """End the child process and remove its files."""
        self._child.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _at_batch_1(inputs: tuple[Tensor, ...]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """dtype and shape of each input, where every symbol is 1."""
    return {t.name: (t.dtype, tuple(1 if isinstance(d, str) else d for d in t.shape)) for t in inputs}


def _choose_core() -> int | None:
    """The last core that this process may use, if it may use several."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return cores[-1] if len(cores) > 1 else None


class _Child:
    """The child process and the folder through which runners reach it; a runner's key is the hash of its files."""

    def __init__(self, core: int | None, threads: int) -> None:
        self.core, self.threads = core, threads
        self._owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = Path(tempfile.mkdtemp(prefix="msc-meter-"))

    def store(self, runner: Runner) -> str:
        """Export a runner; the key of what it wrote."""
        if self._folder is None:
            raise MscError("the meter is closed")
        fresh = Path(tempfile.mkdtemp(prefix="new-", dir=self._folder))
        try:
            runner.export(fresh)
            digest = hashlib.sha256()
            for path in sorted(p for p in fresh.rglob("*") if p.is_file()):
                digest.update(str(path.relative_to(fresh)).encode() + b"\0" + path.read_bytes())
            key = digest.hexdigest()
            if not (self._folder / key).exists():
                fresh.rename(self._folder / key)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        return key

    def keep(self, keys: set[str]) -> None:
        """Remove the files of all other runners."""
        for path in self._folder.iterdir() if self._folder else ():
            if path.is_dir() and path.name not in keys:
                shutil.rmtree(path, ignore_errors=True)

    def ask(self, request: Mapping[str, Any], deadline: float, doing: str) -> dict[str, Any]:
        """The child's answer. Whatever goes wrong on the way, the next request meets a healthy child."""
        try:
            process = self._started()
            assert process.stdin is not None
            process.stdin.write(json.dumps(request).encode() + b"\n")
            reply = self._read(process, deadline, doing)
        except BrokenPipeError:
            raise self._dead(doing) from None
        except BaseException:
            self.stop()
            raise
        if "error" in reply:
            raise MscError(f"{doing}: {reply['error']}")
        return reply

    def _started(self) -> subprocess.Popen[bytes]:
        if self._folder is None:
            raise MscError("the meter is closed")
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.stop()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)}
        environment |= {f"{name}_NUM_THREADS": str(self.threads) for name in ("OMP", "MKL", "TVM")}
        core = "None" if self.core is None else str(int(self.core))
        program = f"from msc_core.measure import serve; serve({str(self._folder)!r}, {core}, {int(self.threads)})"
        with (self._folder / "stderr.txt").open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environment,
                start_new_session=True,
                bufsize=0,
            )
        self._read(self._process, STARTUP, "starting the measuring process")
        return self._process

    def _read(self, process: subprocess.Popen[bytes], timeout: float, doing: str) -> dict[str, Any]:
        """The next line from the child."""
        assert process.stdout is not None
        end, line = time.monotonic() + timeout, b""
        while not line.endswith(b"\n"):
            if not select.select([process.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
                raise DeadlineExceeded(f"{doing} took longer than {timeout:g} s; the process was killed")
            part = os.read(process.stdout.fileno(), 1 << 16)
            if not part:
                raise self._dead(doing)
            line += part
        return dict(json.loads(line))

    def _dead(self, doing: str) -> MscError:
        """What the child died of."""
        assert self._process is not None and self._folder is not None
        status = self._process.wait()
        cause = f"by signal {signal.Signals(-status).name}" if status < 0 else f"with exit code {status}"
        last = (self._folder / "stderr.txt").read_text(errors="replace").strip().splitlines()[-1:]
        self.stop()
        return MscError(f"{doing}: the measuring process ended {cause}{': ' if last else ''}{''.join(last)}")

    def stop(self) -> None:
        """Kill the child with all its processes."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def close(self) -> None:
        """Stop the child and remove the folder; does nothing in a fork of the process that made it."""
        if self._owner == os.getpid() and self._folder is not None:
            self.stop()
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


# What follows runs in the child.


def serve(folder: str, core: int | None, threads: int) -> None:
    """Answer requests, a JSON line each, until the standard input ends."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what frameworks print must not mix with the replies
    if core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    runners: dict[str, Runner] = {}
    print(json.dumps({"ready": True}), file=replies)
    for line in sys.stdin:
        request = json.loads(line)
        signal.alarm(math.ceil(request["deadline"]) + 1)  # in case the parent is gone and nobody kills us
        try:
            reply: dict[str, Any] = {"rounds": _answer(request, Path(folder), runners, threads).tolist()}
        except Exception as error:
            reply = {"error": str(error) if isinstance(error, MscError) else f"{type(error).__name__}: {error}"}
        signal.alarm(0)
        print(json.dumps(reply), file=replies)


def _answer(request: Mapping[str, Any], folder: Path, runners: dict[str, Runner], threads: int) -> Array:
    """The rounds of readings that a request asks for."""
    end = time.perf_counter() + request["deadline"]
    keys = [request["baseline"], request["candidate"]]
    for key in runners.keys() - set(keys):
        runners.pop(key).close()
    for key in keys:
        if key not in runners:
            runners[key] = load(folder / key, threads)
    feeds = [random_feeds(runners[key].inputs, request["seed"]) for key in keys]
    for name, array in runners[keys[1]].run(feeds[1]).items():
        if not np.isfinite(array).all():
            raise MscError(f"output {name!r} is not finite")
    sides = [_Side(runners[key], given) for key, given in zip(keys, feeds, strict=True)]
    pair = sum(side.seconds for side in sides)
    pairs = max(MIN_PAIRS, min(request["pairs"], int((end - time.perf_counter()) / (8 * pair))))  # up to 4 rounds
    gc.collect()
    gc.disable()
    try:
        return take_rounds(lambda: _round(sides[0], sides[1], pairs))
    finally:
        gc.enable()


def random_feeds(inputs: tuple[Tensor, ...], seed: int) -> dict[str, Array]:
    """Standard normal floats, and zeros and ones where integers or booleans are wanted; every symbol is 1."""
    generator = np.random.default_rng(seed)
    feeds = {}
    for name, (dtype, shape) in _at_batch_1(inputs).items():
        is_float = np.dtype(dtype).kind == "f"
        values = generator.standard_normal(shape) if is_float else generator.integers(0, 2, shape)
        feeds[name] = values.astype(dtype)
    return feeds


class _Side:
    """One runner on fixed inputs, warmed up; a reading is a block of runs."""

    def __init__(self, runner: Runner, feeds: Mapping[str, Array]) -> None:
        self._runner, self._feeds, self._count = runner, feeds, 1
        end, times = time.perf_counter() + 10 * BLOCK, list[float]()
        while len(times) < 5 or time.perf_counter() < end:
            times.append(self.read())
        self._count = max(1, round(BLOCK / min(times)))
        self.seconds = self._count * sum(times) / len(times)  # that a reading takes

    def read(self) -> float:
        """Seconds per run."""
        run, feeds = self._runner.run, self._feeds
        start = time.perf_counter()
        for _ in range(self._count):
            run(feeds)
        return (time.perf_counter() - start) / self._count


def _round(baseline: _Side, candidate: _Side, pairs: int) -> Array:
    """float[pairs, (baseline, candidate)]; who goes first alternates."""
    readings = np.empty((pairs, 2))
    for i in range(pairs):
        for side in (0, 1) if i % 2 else (1, 0):
            readings[i, side] = (baseline, candidate)[side].read()
    return readings
