"""Pools: the same results in the same order everywhere; a worker that hangs or dies costs one trial."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import itertools
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import gymnasium
import psutil
import pytest

from msc_core import MscError
from msc_core.backends import Target
from msc_core.plan import Plan
from msc_gym import Evaluator
from msc_gym.engine import Limits, Measurement, ProcessPool, RayPool, Scoring, SerialPool, Worker, parse_pool, stages
from msc_gym.engine.scratch import Scratch
from tests.pool_tools import accuracies, scratches, temporary  # noqa: F401

TARGET = Target.parse("onnxruntime")
SCORING = Scoring(latency=False)
LIMITS = Limits(compress=3.0, build=1.0, measure=1.0, memory=400_000_000)
FOREVER = 600.0


class Toy:
    """A worker that does what its candidate says, and measures who did it: accuracy 0.01 per unit of `value`."""

    made = 0

    def __init__(self, content: bytes = b"") -> None:
        Toy.made += 1
        self.content = content

    def __reduce__(self):
        return type(self), (self.content,)

    def __call__(self, candidate: Mapping[str, int], scoring: Scoring) -> Measurement:
        for name, value in candidate.items():
            if name != "value":
                getattr(self, name)(value)
        found = {"pid": os.getpid(), "made": Toy.made, "content": len(self.content), "tmp": tempfile.gettempdir()}
        versions = {name: str(value) for name, value in found.items()}
        return Measurement(f"p{candidate['value']}", accuracy=candidate["value"] / 100, samples=1, versions=versions)

    def sleep(self, hundredths: int) -> None:
        time.sleep(hundredths / 100)

    def hang(self, stage: int) -> None:
        """With the interpreter locked, as compiled code may."""
        if stages.STAGES[stage] == "measure":
            with stages.stopwatch():
                ctypes.PyDLL(None).sleep(600)
        stages.enter(stages.STAGES[stage])
        ctypes.PyDLL(None).sleep(600)

    def kill(self, number: int) -> None:
        stages.enter("build")
        os.kill(os.getpid(), number)

    def leave(self, code: int) -> None:
        print("the compiler gave up", flush=True)
        os._exit(code)

    def eat(self, megabytes: int) -> None:
        held = []
        for _ in range(megabytes // 10):
            held.append(b"x" * 10_000_000)
            time.sleep(0.01)
        time.sleep(FOREVER)

    def fail(self, _: int) -> None:
        raise RuntimeError("the engine broke")

    def read(self, hundredths: int) -> None:
        with stages.stopwatch():
            started = time.monotonic()
            time.sleep(hundredths / 100)
            with (Path(self.content.decode()) / str(os.getpid())).open("a") as log:
                log.write(f"{started} {time.monotonic()}\n")

    def litter(self, _: int) -> None:
        """A child process and a file, as a meter or a compiler leaves them."""
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        tempfile.mkstemp()


class Unreadable:
    """Packs as what cannot be unpacked again."""

    def __reduce__(self):
        return int, ("no number",)


class Babbling(Toy):
    """Answers with that."""

    def __call__(self, candidate, scoring):
        return Unreadable() if candidate["value"] == 0 else super().__call__(candidate, scoring)


class Unmakeable(Toy):
    """Arrives, but cannot be made there."""

    def __reduce__(self):
        return int, ("no number",)


def run(pool, jobs, worker=None):
    """What each candidate came to, in order."""
    found = dict(pool.run(worker or Toy(), [(job, SCORING) for job in jobs], TARGET))
    return [found[index] for index in range(len(jobs))]


def values(count: int, **first: int) -> list[dict[str, int]]:
    """Candidates of which the first does something besides."""
    return [{"value": i} | (first if i == 0 else {}) for i in range(count)]


def told(measured, name: str) -> set[str]:
    return {m.versions[name] for m in measured if m.ok}


def children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


@pytest.fixture(scope="module")
def pool():
    with contextlib.closing(ProcessPool(2, LIMITS)) as two:
        yield two


@pytest.fixture
def both_busy(pool):
    """The pool with two workers that are ready."""
    run(pool, [{"value": i, "sleep": 30} for i in range(4)])
    return pool


# Results


def test_every_pool_gives_the_same_in_the_same_order(pool):
    jobs = [{"value": i, "sleep": 20 - 5 * i} for i in range(5)]  # later ones are over sooner
    expected = [0.0, 0.01, 0.02, 0.03, 0.04]
    assert accuracies(run(SerialPool(), jobs)) == accuracies(run(pool, jobs)) == expected


def test_workers_are_processes_that_stay(both_busy):
    first = run(both_busy, [{"value": i, "sleep": 20} for i in range(4)])
    again = run(both_busy, [{"value": i, "sleep": 20} for i in range(4)])
    assert told(first, "pid") == told(again, "pid") and len(told(first, "pid")) == 2
    assert str(os.getpid()) not in told(first, "pid")


def test_the_worker_travels_once_to_each(both_busy):
    worker = Toy(b"x" * 1_000_000)
    made = told(run(both_busy, [{"value": i, "sleep": 20} for i in range(2)], worker), "made")
    found = run(both_busy, [{"value": i, "sleep": 5} for i in range(8)], worker)
    assert told(found, "made") == made and told(found, "content") == {"1000000"}


def test_results_come_as_soon_as_they_are_known(both_busy):
    jobs = [({"value": 0, "sleep": 200}, SCORING), ({"value": 1}, SCORING)]
    started, order = time.monotonic(), []
    for index, _ in both_busy.run(Toy(), jobs, TARGET):
        order.append((index, time.monotonic() - started > 1.9))
    assert order == [(1, False), (0, True)]


def test_whoever_stops_listening_leaves_nothing_running(both_busy):
    found = both_busy.run(Toy(), [({"value": 0}, SCORING), ({"value": 1, "hang": 1}, SCORING)], TARGET)
    assert next(found)[0] == 0
    found.close()
    assert accuracies(run(both_busy, values(2))) == [0.0, 0.01]


@pytest.mark.parametrize("size", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_workers_measure_what_this_process_measures(tiny_task, size):
    """The real worker: plans, choices, and a plan that fails."""
    groups = tiny_task.groups
    plans = [tiny_task.pruner.plan({groups[i % len(groups)].name: groups[i % len(groups)].size // 2}) for i in (0, 1)]
    plans += [tiny_task.identity, Plan("0" * 64), {"nowhere": 8}, plans[0]]
    found = []
    for where in ("serial", f"processes:{size}"):
        with Evaluator(tiny_task, pool=where) as evaluator:
            measured = evaluator.evaluate(plans, latency=False)
            found.append([dataclasses.replace(m, seconds=0.0) for m in measured])
            assert (evaluator.hits, evaluator.misses, evaluator.workers) == (1, 5, size if where != "serial" else 1)
    assert found[0] == found[1]
    assert [m.ok for m in found[0]] == [True, True, True, False, False, True]


def test_latency_is_measured_in_the_workers(tiny_task):
    before = children(), scratches()
    group = tiny_task.groups[0]
    plans = [tiny_task.identity, tiny_task.pruner.plan({group.name: group.size // 2})]
    with Evaluator(tiny_task, pool="processes:2") as evaluator:
        assert all(m.ok and m.latency_ratio for m in evaluator.evaluate(plans))
    assert (children(), scratches()) == before  # the measuring processes of the workers included


# Faults


class Dying(Worker):
    """The real worker, whose process dies while it builds anything but the whole network."""

    def __call__(self, candidate, scoring):
        if candidate != self.task.identity:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(candidate, scoring)


def test_an_episode_outlives_its_worker(tiny_task):
    with Evaluator(tiny_task, worker=Dying(tiny_task), pool="processes:1") as evaluator:
        env = gymnasium.make("msc_gym:MSC/Prune-v0", task=tiny_task, evaluator=evaluator)
        env.reset(seed=0)
        done, reward, info = False, 0.0, {}
        while not done:
            _, reward, done, _, info = env.step(env.action_space.sample())
    assert math.isfinite(reward) and "the worker was killed by SIGKILL" in str(info)


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_stage_that_hangs_is_killed_within_two_seconds(both_busy, stage):
    name, started = stages.STAGES[stage], time.monotonic()
    (hung,) = run(both_busy, values(1, hang=stage))
    limit = LIMITS.seconds(name)
    assert hung.error == f"{name} took longer than {limit:g} s; the worker was killed"
    assert limit <= time.monotonic() - started < limit + 2
    assert all(m.ok for m in run(both_busy, values(4)))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"kill": signal.SIGKILL}, "build: the worker was killed by SIGKILL"),
        ({"kill": signal.SIGSEGV}, "build: the worker was killed by SIGSEGV"),
        ({"leave": 7}, "compress: the worker ended with exit code 7: the compiler gave up"),
        ({"eat": 4000}, "MB of memory, more than 400 MB; the worker was killed"),
        ({"fail": 1}, "RuntimeError: the engine broke"),
    ],
    ids=["killed", "crashed", "left", "memory", "raised"],
)
def test_a_fault_costs_one_trial(both_busy, fault, message):
    failed, *others = run(both_busy, values(5, **fault))
    assert message in failed.error and not failed.ok
    assert accuracies(others) == [0.01, 0.02, 0.03, 0.04]


def test_this_process_turns_exceptions_into_measurements():
    failed, other = run(SerialPool(), values(2, fail=1))
    assert failed.error == "RuntimeError: the engine broke" and other.ok


def test_a_dead_worker_leaves_no_child_and_no_file(both_busy):
    before = children()
    run(both_busy, values(4, litter=1, sleep=30, kill=signal.SIGKILL))
    run(both_busy, [{"value": i, "sleep": 30} for i in range(2)])
    assert len(children()) == len(before)
    kept = [path.name for folder in scratches() for path in folder.rglob("*") if path.is_file()]
    assert not [name for name in kept if name.startswith("tmp")]


def test_waiting_for_a_worker_is_no_part_of_a_deadline():
    with contextlib.closing(ProcessPool(1, Limits(compress=2.0))) as one:
        found = run(one, [{"value": i, "sleep": 50} for i in range(5)])  # 2.5 seconds, one after the other
    assert all(m.ok for m in found)


def test_readings_are_taken_one_at_a_time(both_busy, tmp_path):
    worker = Toy(str(tmp_path).encode())
    found = run(both_busy, [{"value": i, "read": 20} for i in range(6)], worker)  # more than the limit, all together
    assert all(m.ok for m in found)
    lines = [line.split() for path in tmp_path.iterdir() for line in path.read_text().splitlines()]
    spans = sorted((float(start), float(end)) for start, end in lines)
    assert len(spans) == 6 and len(list(tmp_path.iterdir())) == 2  # two workers took turns
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_a_worker_that_cannot_be_made_is_a_fault(pool):
    (failed,) = run(pool, values(1), Unmakeable())
    assert failed.error.startswith("start: the worker cannot be made: ValueError: invalid literal for int()")
    assert run(pool, values(1))[0].ok


def test_an_answer_that_cannot_be_read_is_a_fault(pool):
    failed, other = run(pool, values(2), Babbling())
    assert failed.error.startswith("compress: the worker's answer cannot be read") and other.ok


def test_a_worker_that_cannot_be_sent_is_the_callers_mistake(pool):
    with pytest.raises(MscError, match="cannot be sent to another process"):
        run(pool, values(1), lambda candidate, scoring: None)


def test_a_faulty_candidate_is_not_measured_again(tiny_task, pool):
    faulty = {"value": 1, "kill": 9}
    with Evaluator(tiny_task, worker=Toy(), pool=pool) as evaluator:
        evaluator._candidate = lambda plan: plan  # these are no choices of the task
        first = evaluator.evaluate([faulty, {"value": 2}, faulty])
        assert [m.ok for m in first] == [False, True, False]
        assert evaluator.evaluate([faulty]) == first[:1]
        assert (evaluator.hits, evaluator.misses) == (2, 2)
    assert pool._children  # which the evaluator did not open, so it does not close it


# Closing


def test_closing_leaves_nothing_and_the_pool_may_be_used_again():
    before = children(), scratches()
    pool = ProcessPool(1, LIMITS)
    assert (children(), scratches()) == before  # nothing starts before there is something to do
    for _ in range(2):
        tmp = told(run(pool, values(2, litter=1)), "tmp")
        assert all(Path(folder).is_dir() for folder in tmp) and children() - before[0]
        pool.close()
        pool.close()
        assert (children(), scratches()) == before


PROGRAM = """
import sys
from tests.test_pool import ProcessPool, Toy, SCORING, TARGET, LIMITS
pool = ProcessPool(1, LIMITS)
jobs = [({"value": 1, "litter": 1}, SCORING), ({"value": 2, "sleep": 90}, SCORING)]
for _, found in pool.run(Toy(), jobs, TARGET):
    print(found.versions["pid"], found.versions["tmp"], flush=True)
"""


@pytest.mark.parametrize("killed", [False, True], ids=["ended", "killed"])
def test_the_end_of_the_program_is_the_end_of_its_workers(killed):
    before = scratches()
    root = Path(__file__).parents[1]
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, cwd=root) as program:
        pid, folder = program.stdout.readline().split()
        worker = psutil.Process(int(pid))
        family = [worker, *worker.children(recursive=True)]
        assert len(family) == 2 and Path(folder).is_dir()
        if killed:
            program.kill()
        program.communicate()
    assert not psutil.wait_procs(family, 20)[1]
    if killed:
        assert Path(folder).is_dir()  # nobody was left to remove it
        Scratch().close()  # until somebody comes
    assert scratches() == before


def test_a_living_owner_keeps_its_folder():
    first = Scratch()
    second = Scratch()
    assert first.path.is_dir() and second.path.is_dir()
    first.close()
    first.close()
    assert not first.path.exists() and second.path.is_dir()
    second.close()


# Names


@pytest.mark.parametrize(
    ("text", "kind", "size"),
    [
        ("serial", SerialPool, 1),
        ("processes:3", ProcessPool, 3),
        ("processes", ProcessPool, os.cpu_count()),
        ("ray:2", RayPool, 2),
        ("ray@auto", RayPool, os.cpu_count()),
        ("ray:4@10.0.0.1:6379", RayPool, 4),
    ],
)
def test_a_pool_by_name(text, kind, size):
    found = parse_pool(text)
    assert isinstance(found, kind) and found.size == size
    if kind is RayPool:
        assert found.address == (text.partition("@")[2] or None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("proceses:2", "unknown pool 'proceses:2'; did you mean 'processes'?"),
        ("", "unknown pool ''"),
        ("serial:2", "cannot read pool 'serial:2'; expected serial, processes:N"),
        ("processes:0", "cannot read pool"),
        ("processes:two", "cannot read pool"),
        ("processes:2@auto", "cannot read pool"),
        ("ray:", "cannot read pool"),
    ],
)
def test_what_is_no_pool_is_refused(text, message):
    with pytest.raises(MscError, match=re.escape(message)):
        parse_pool(text)


@pytest.mark.parametrize("make", [lambda: ProcessPool(0), lambda: RayPool(0), lambda: ProcessPool(1, threads=0)])
def test_a_pool_has_workers(make):
    with pytest.raises(MscError, match="must be an integer of at least 1; found 0"):
        make()


def test_limits_are_above_zero():
    with pytest.raises(MscError, match="limit build must be above 0; found 0"):
        Limits(build=0)
