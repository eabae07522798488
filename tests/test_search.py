"""Searches: exact totals, nothing lost and nothing repeated when killed, failures kept."""

from __future__ import annotations

import dataclasses
import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from msc_core import MscError
from msc_gym import CompressionTask, Evaluator, search
from msc_gym.engine import Measurement, Store, Worker
from msc_gym.search import Trial

PROGRAM = """
import sys
from msc_gym import CompressionTask, search
class Progress:
    def __call__(self, index, total, agent, measurement, best, hits):
        print(index, flush=True)
job, store, agent, trials = sys.argv[1:]
result = search(CompressionTask.from_yaml(job), agent, int(trials), store, seed=4, progress=Progress())
print("resumed", result.resumed)
"""
TRIALS = 14


def signature(trials) -> list[tuple[int, str, float]]:
    return [(t.index, t.plan.hash, t.reward) for t in trials]


@pytest.fixture(scope="module")
def uninterrupted(tiny_task, tmp_path_factory):
    """A search that nobody disturbed, and its store."""
    url = f"sqlite:///{tmp_path_factory.mktemp('whole')}/store.db"
    return search(tiny_task, "amc", TRIALS, url, seed=4), url


def start(job, url: str, agent: str = "amc") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, str(job), url, agent, str(TRIALS)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def test_a_search_is_its_trials(uninterrupted, tiny_task):
    result, _ = uninterrupted
    assert [t.index for t in result.trials] == list(range(TRIALS)) and result.resumed == 0
    assert all(tiny_task.within_budget(t.counts) for t in result.trials)
    assert result.best.reward == max(t.reward for t in result.trials)
    assert result.best.measurement.accuracy == result.best.reward + 1
    assert result.baseline.macs == tiny_task.cost_model.full.macs
    front = result.pareto()
    assert [t.measurement.macs for t in front] == sorted({t.measurement.macs for t in front})
    assert [t.measurement.accuracy for t in front] == sorted({t.measurement.accuracy for t in front})
    for trial in result.trials:
        m = trial.measurement
        assert any(f.measurement.accuracy >= m.accuracy and f.measurement.macs <= m.macs for f in front)
    with pytest.raises(MscError, match="unknown cost 'mac'"):
        result.pareto("mac")


def test_a_search_writes_its_report(uninterrupted, tmp_path):
    uninterrupted[0].report(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "<svg" in text and "amc" in text


def test_the_plan_of_a_trial_is_what_was_measured(uninterrupted, tiny_task):
    best = uninterrupted[0].best
    (again,) = Evaluator(tiny_task).evaluate([best.plan], latency=False)
    assert (again.accuracy, again.macs, again.params) == tuple(
        getattr(best.measurement, name) for name in ("accuracy", "macs", "params")
    )


def test_a_finished_search_is_a_lookup(uninterrupted, tiny_task):
    result, url = uninterrupted
    calls = []
    engine = Evaluator(tiny_task, url, worker=lambda plan, scoring: calls.append(plan))
    again = search(tiny_task, "amc", TRIALS, seed=4, evaluator=engine)
    assert signature(again.trials) == signature(result.trials) and again.resumed == TRIALS
    assert [t.measurement for t in again.trials] == [t.measurement for t in result.trials]
    assert calls == []
    engine.close()


@pytest.mark.parametrize("after", [1, 6])
def test_a_killed_search_goes_on(tiny_job, tiny_task, tmp_path, uninterrupted, after):
    url = f"sqlite:///{tmp_path}/store.db"
    killed = start(tiny_job, url)
    assert killed.stdout is not None
    told = [killed.stdout.readline() for _ in range(after)]
    assert told == [f"{i}\n" for i in range(after)], killed.stderr and killed.stderr.read()
    time.sleep(0.07)  # somewhere inside a trial
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    with Store(url) as store:
        kept = store.counts()
    assert after <= kept["trials"] < TRIALS

    measured = []
    worker = Worker(tiny_task)

    def recording(plan, scoring):
        if not scoring.full:  # the best one is measured again at the end
            measured.append(plan.hash)
        return worker(plan, scoring)

    with Evaluator(tiny_task, url, worker=recording) as engine:
        result = search(tiny_task, "amc", TRIALS, seed=4, evaluator=engine)
    worker.close()
    assert result.resumed == kept["trials"]
    assert signature(result.trials) == signature(uninterrupted[0].trials)  # as if nothing had happened
    distinct = {t.plan.hash for t in result.trials} | {tiny_task.identity.hash}
    assert len(measured) == len(set(measured)) == len(distinct) - kept["measurements"]  # none twice, before or after
    with Store(url) as store:
        assert store.counts() == {"measurements": len(distinct) + 1, "failures": 0, "trials": TRIALS}


def test_two_processes_may_run_one_search(tiny_job, tmp_path, uninterrupted, tiny_task):
    url = f"sqlite:///{tmp_path}/store.db"
    both = [start(tiny_job, url), start(tiny_job, url)]
    for process in both:
        _, errors = process.communicate(timeout=280)
        assert process.returncode == 0, errors
    again = search(tiny_task, "amc", TRIALS, url, seed=4)
    assert signature(again.trials) == signature(uninterrupted[0].trials) and again.resumed == TRIALS


# Without an engine: what a trial costs is not the point


def scored(tiny_task):
    """A worker whose accuracy is the share of channels kept."""

    def measure(plan, scoring):
        kept = sum(len(plan.prune.get(g.name, range(g.size))) / g.size for g in tiny_task.groups)
        counts = {name: len(indices) for name, indices in plan.prune.items()}
        return Measurement(plan.hash, kept / len(tiny_task.groups), 100, macs=tiny_task.cost_model.cost(counts).macs)

    return measure


def test_a_failing_trial_is_kept_and_the_search_goes_on(tiny_task):
    good, asked = scored(tiny_task), []

    def faulty(plan, scoring):
        asked.append(plan)
        return Measurement(plan.hash, error="injected") if len(asked) % 3 == 0 else good(plan, scoring)

    result = search(tiny_task, "random", 12, evaluator=Evaluator(tiny_task, worker=faulty))
    failed = [t for t in result.trials if not t.measurement.ok]
    assert len(result.trials) == 12 and failed
    assert all(t.reward == -1.0 and t.measurement.error == "injected" for t in failed)
    assert result.best.measurement.ok
    assert {t["error"] for t in result.to_dict()["trials"]} == {None, "injected"}


def test_a_failing_baseline_ends_the_search_at_once(tiny_task):
    engine = Evaluator(tiny_task, worker=lambda plan, scoring: Measurement(plan.hash, error="injected"))
    with pytest.raises(MscError, match="the original network cannot be measured: injected"):
        search(tiny_task, evaluator=engine)


def test_only_failures_have_no_best(tiny_task):
    good = scored(tiny_task)

    def faulty(plan, scoring):
        return Measurement(plan.hash, error="injected") if plan.prune else good(plan, scoring)

    result = search(tiny_task, "random", 3, evaluator=Evaluator(tiny_task, worker=faulty))
    with pytest.raises(MscError, match="no trial of random could be measured: injected"):
        _ = result.best


def test_progress_is_told_every_trial(tiny_task):
    told = []

    def progress(index, total, agent, measurement, best, hits):
        told.append((index, total, agent, measurement, best))

    result = search(tiny_task, "amc", 6, progress=progress, evaluator=Evaluator(tiny_task, worker=scored(tiny_task)))
    assert [t[:3] for t in told] == [(i, 6, "amc") for i in range(6)]
    assert [t[3] for t in told] == [t.measurement for t in result.trials]
    assert isinstance(told[-1][4], Trial) and told[-1][4] == result.best


def test_uniform_is_one_trial(tiny_task):
    result = search(tiny_task, "uniform", 50, evaluator=Evaluator(tiny_task, worker=scored(tiny_task)))
    assert len(result.trials) == 1


def test_runs_that_differ_do_not_mix(tiny_task):
    store = Store.memory()

    def run(task: CompressionTask = tiny_task, **changes):
        engine = Evaluator(task, store, worker=scored(task))
        return search(task, **({"agent": "random", "trials": 5, "evaluator": engine} | changes)).resumed

    assert run() == 0 and run() == 5
    assert run(seed=1) == run(trials=6) == run(agent="amc") == run(reward="accuracy_cost") == 0
    assert run(dataclasses.replace(tiny_task, budget={"macs": 0.6})) == 0
    assert run() == 5


def test_a_tampered_store_is_refused(tiny_task, tmp_path):
    path = tmp_path / "store.db"
    engine = Evaluator(tiny_task, str(path), worker=scored(tiny_task))
    search(tiny_task, "random", 3, evaluator=engine)
    with sqlite3.connect(path) as connection:
        connection.execute('update trials set applied = \'{"0.0": 8}\' where "index" = 1')
    connection.close()
    with pytest.raises(MscError, match="trial 1 of random chooses otherwise"):
        search(tiny_task, "random", 3, evaluator=engine)
    engine.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"agent": "amcc"}, "unknown agent 'amcc'; did you mean 'amc'"),
        ({"trials": 0}, "trials must be an integer of at least 1; found 0"),
        ({"trials": 1.5}, "trials must be an integer"),
        ({"reward": "speed"}, "unknown reward 'speed'"),
        ({"store": "nonsense://"}, "is not a database URL"),
    ],
)
def test_what_a_search_refuses(tiny_task, arguments, message):
    with pytest.raises(MscError, match=message):
        search(tiny_task, **arguments)
