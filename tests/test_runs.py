"""Runs: recorded, measured again, and refused where they were changed; fronts of several objectives."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msc_core import MscError
from msc_gym import Evaluator, search
from msc_gym.cli import run as command
from msc_gym.config import load_job
from msc_gym.engine import Measurement
from msc_gym.objectives import OBJECTIVES, beats, hypervolume, objective_values
from msc_gym.runs import RUN_FILE, job_evaluator, job_search, load_run, record, validate
from msc_gym.search import parse_workers


@pytest.fixture(scope="module")
def folder(tiny_job, tiny_task, tmp_path_factory):
    """The run folder of two short searches."""
    out = tmp_path_factory.mktemp("run")
    job = load_job(tiny_job).model_copy(update={"out": str(out)})
    job = job.model_copy(update={"search": job.search.model_copy(update={"trials": 3})})
    with job_evaluator(job, tiny_task) as evaluator:
        record(out, job, evaluator, [job_search(job, agent, evaluator) for agent in ("random", "uniform")])
    return out


def test_a_run_is_what_its_searches_found(folder, tiny_task):
    run = load_run(folder)
    assert [s.agent for s in run.searches] == ["random", "uniform"] and run.task == tiny_task.fingerprint
    assert run.versions["torch"] and run.device and run.python
    for found in run.searches:
        assert all(k.samples == len(tiny_task.dataset.validation) for k in found.kept)  # finalists: all of it
        assert 0 < found.hypervolume < 1


def test_a_run_measured_again_is_the_same(folder, tiny_task):
    with Evaluator(tiny_task) as evaluator:
        checks = validate(load_run(folder), tiny_task, evaluator)
    assert checks and not any(check.differences for check in checks)
    assert command(["validate", str(folder)]) == 0


@pytest.mark.parametrize("name", ["accuracy", "macs", "plan"])
def test_a_tampered_run_is_found_out(folder, tmp_path, name, capsys):
    data = json.loads((folder / RUN_FILE).read_text())
    kept = data["searches"][0]["kept"][0]
    kept[name] = "0" * 16 if name == "plan" else kept[name] * 2 if name == "macs" else kept[name] / 2
    (tmp_path / RUN_FILE).write_text(json.dumps(data))
    assert command(["validate", str(tmp_path)]) == 1
    assert f"{name} was {kept[name]}, is" in capsys.readouterr().out


def test_what_is_no_run_is_refused(folder, tmp_path, tiny_task, capsys):
    assert command(["validate", str(tmp_path)]) == 2 and RUN_FILE in capsys.readouterr().err
    text = (folder / RUN_FILE).read_text()
    for wrong, message in (
        (text[: len(text) // 2], RUN_FILE),
        (text.replace('"schema": 1', '"schema": 9', 1), "expected a run with schema 1"),
        (text.replace('"seed"', '"sead"', 1), "unknown key"),
        (json.dumps(json.loads(text) | {"task": "0"}), "the run is about task 0"),
    ):
        (tmp_path / RUN_FILE).write_text(wrong)
        assert command(["validate", str(tmp_path)]) == 2
        assert message in capsys.readouterr().err


def test_scalars_can_be_read_back(tiny_job, tmp_path, capsys):
    pytest.importorskip("tensorboard", reason="the package tensorboard is missing")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    arguments = ["search", str(tiny_job), "--agent", "random", "--trials", "2", "--out", str(tmp_path), "--tensorboard"]
    assert command(arguments) == 0
    events = EventAccumulator(str(tmp_path / "tensorboard" / "random"))
    events.Reload()
    assert [event.step for event in events.Scalars("trial/accuracy")] == [0, 1]


# Several objectives


def test_a_front_is_what_nothing_beats(tiny_task):
    with Evaluator(tiny_task, worker=toy(tiny_task)) as evaluator:
        found = search(tiny_task, "random", 12, evaluator=evaluator, objectives=["accuracy", "macs"], batch=4)
    points = {t.index: objective_values(t.measurement, tiny_task, ("accuracy", "macs")) for t in found.trials}
    front = {t.index for t in found.front}
    assert front and all(
        (index in front) == (not any(beats(other, point) for other in points.values()))
        for index, point in points.items()
    )
    assert found.hypervolume == pytest.approx(hypervolume(list(points.values())))


def toy(task):
    """A worker that takes what is kept for accuracy."""

    def measure(plan, scoring):
        cost = task.cost(task.choices_of(plan))
        return Measurement(plan.hash, cost["params"] / task.cost({})["params"], 100, macs=int(cost["macs"]))

    return measure


@given(st.lists(st.tuples(*[st.floats(-0.5, 1)] * 3), min_size=1, max_size=6))
def test_hypervolume_is_the_share_of_what_is_dominated(points):
    """Against the inclusion-exclusion formula."""
    from itertools import combinations
    from math import prod

    inside = [p for p in points if min(p) > 0]
    expected = sum(
        (-1) ** (size + 1) * sum(prod(map(min, zip(*chosen, strict=True))) for chosen in combinations(inside, size))
        for size in range(1, len(inside) + 1)
    )
    assert hypervolume(points) == pytest.approx(expected, abs=1e-9)


def test_objectives_are_worth_what_is_saved(tiny_task):
    full = tiny_task.cost({})
    m = Measurement("p", 0.9, 10, macs=int(full["macs"]) // 4, params=int(full["params"]), bytes=int(full["bytes"]) * 3)
    values = dict(zip(OBJECTIVES, objective_values(m, tiny_task, OBJECTIVES), strict=True))
    assert values["accuracy"] == 0.9 and values["macs"] == pytest.approx(0.75, abs=1e-3)
    assert values["params"] == 0 and values["bytes"] == -1 and values["latency"] == -1
    with pytest.raises(MscError, match="unknown objective 'mac'; did you mean 'macs'"):
        search(tiny_task, "random", 1, objectives=["mac"])


@pytest.mark.parametrize(
    ("workers", "pool"), [(1, "serial"), ("1", "serial"), (3, "processes:3"), ("2", "processes:2"), ("ray:4", "ray:4")]
)
def test_workers_are_a_pool(workers, pool):
    assert parse_workers(workers) == pool


@pytest.mark.parametrize("workers", [0, "0", True])
def test_no_workers_are_refused(workers):
    with pytest.raises(MscError, match="workers must be"):
        parse_workers(workers)
