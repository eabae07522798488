"""The evaluator: plans in, measurements out, in order, each measured once; a failure is a measurement."""

from __future__ import annotations

import dataclasses

import numpy as np
import psutil
import pytest

from msc_core import MscError, MSCGraph, backends
from msc_core.backends import build
from msc_core.cost import cost
from msc_core.data import Split, accuracy
from msc_core.plan import Plan
from msc_gym import CompressionTask, Evaluator
from msc_gym.engine import Measurement, Store, Worker, evaluator, pool, worker


@pytest.fixture(scope="module")
def engine(tiny_task):
    with Evaluator(tiny_task) as engine:
        yield engine


def half(task: CompressionTask) -> Plan:
    return task.pruner.plan({g.name: g.size // 2 for g in task.groups})


def by_torch(graph: MSCGraph, split: Split) -> float:
    with build(graph, "torch") as runner:
        return accuracy(runner.run({graph.inputs[0]: split.x})[graph.outputs[0]], split.y)


class Counting:
    """A worker that measures nothing and remembers what it was asked."""

    def __init__(self, error: str = "") -> None:
        self.plans: list[str] = []
        self.error = error

    def __call__(self, plan, scoring):
        self.plans.append(plan.hash)
        return Measurement(plan.hash, accuracy=0.5, samples=1, error=self.error)


def test_a_plan_is_measured(engine, tiny_task):
    plan = half(tiny_task)
    (measured,) = engine.evaluate([plan])
    assert measured.error == "" and measured.plan == plan.hash
    graph = tiny_task.pruner.compress(plan)
    expected = cost(graph)
    assert (measured.macs, measured.params, measured.bytes) == (expected.macs, expected.params, expected.bytes)
    assert measured.samples == 300
    assert measured.accuracy == pytest.approx(by_torch(graph, tiny_task.scoring_split()), abs=1 / 300)
    low, high = measured.latency_interval
    assert low <= measured.latency_ratio <= high
    assert measured.versions["onnxruntime"] and measured.device and measured.seconds > 0


def test_the_identity_is_the_baseline(engine, tiny_task):
    (baseline,) = engine.evaluate([tiny_task.identity])
    assert baseline.macs == tiny_task.cost_model.full.macs
    assert baseline.accuracy == pytest.approx(by_torch(tiny_task.graph, tiny_task.scoring_split()), abs=1 / 300)
    low, high = baseline.latency_interval
    assert low <= 1 <= high or not baseline.latency_valid


def test_finalists_are_counted_on_everything(engine, tiny_task):
    plans = [tiny_task.identity]
    (whole,) = engine.evaluate(plans, full=True, latency=False)
    (test,) = engine.evaluate(plans, split="test", latency=False)
    assert (whole.samples, whole.split, test.samples, test.split) == (400, "validation", 200, "test")
    assert whole.latency_ratio is None
    with pytest.raises(MscError, match="unknown split 'tst'; did you mean 'test'"):
        engine.evaluate(plans, split="tst")


def test_order_is_kept_and_repeats_are_lookups(tiny_task):
    a, b = tiny_task.identity, half(tiny_task)
    count = Counting()
    with Evaluator(tiny_task, worker=count) as engine:
        assert [m.plan for m in engine.evaluate([b, a, b, a])] == [b.hash, a.hash, b.hash, a.hash]
        assert count.plans == [b.hash, a.hash]
        assert (engine.hits, engine.misses) == (2, 2)
        assert engine.evaluate([]) == []


def test_measurements_outlive_the_evaluator(tiny_task, tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    with Evaluator(tiny_task, url) as engine:
        first = engine.evaluate([half(tiny_task)])
    count = Counting()
    with Evaluator(tiny_task, Store(url), worker=count) as engine:
        assert engine.evaluate([half(tiny_task)]) == first  # to the last bit
    assert count.plans == []


@pytest.mark.parametrize("what", ["weights", "calibration", "validation", "labels", "divisor", "target"])
def test_a_changed_task_misses(tiny_task, what):
    task, graph, data = tiny_task, tiny_task.graph, tiny_task.dataset
    (name, weight), *_ = graph.weights.items()
    relabelled = dataclasses.replace(data.validation, y=9 - data.validation.y)
    changes = {
        "weights": {"model": graph.replace(weights={**graph.weights, name: np.nextafter(weight, np.float32(1))})},
        "calibration": {"calibration": 199},
        "validation": {"validation": 299},
        "labels": {"data": dataclasses.replace(data, validation=relabelled)},
        "divisor": {"divisor": 4},
        "target": {"target": "torch"},
    }[what]  # fmt: skip
    other = dataclasses.replace(task, **changes)
    store = Store.memory()
    count = Counting()
    for each in (task, other, task):
        Evaluator(each, store, worker=count).evaluate([each.identity])
    assert len(count.plans) == 2


@pytest.mark.parametrize("name", ["device", "versions", "VERSION"])
def test_another_machine_misses(tiny_task, monkeypatch, name):
    store, count = Store.memory(), Counting()
    Evaluator(tiny_task, store, worker=count).evaluate([tiny_task.identity])
    other = {"device": lambda: "another", "versions": lambda backend: {"torch": "0"}, "VERSION": -1}[name]
    monkeypatch.setattr(evaluator if name == "VERSION" else pool, name, other)
    Evaluator(tiny_task, store, worker=count).evaluate([tiny_task.identity])
    assert len(count.plans) == 2


def test_split_size_and_latency_are_part_of_the_key(tiny_task):
    count = Counting()
    engine = Evaluator(tiny_task, worker=count)
    for changes in ({}, {"full": True}, {"split": "test"}, {"latency": False}) * 2:
        engine.evaluate([tiny_task.identity], **changes)
    assert len(count.plans) == 4


# Faults are data


def test_a_plan_for_another_graph_is_a_failure(engine):
    (failed,) = engine.evaluate([Plan("0" * 64, {})])
    assert not failed.ok and "the plan is for graph 000000000000" in failed.error
    assert (failed.accuracy, failed.samples) == (0.0, 0)


def test_a_plan_that_does_not_fit_is_a_failure_among_results(engine, tiny_task):
    bad = Plan(tiny_task.graph.fingerprint, {"nowhere": (0,)})
    good, failed, again = engine.evaluate([tiny_task.identity, bad, tiny_task.identity], latency=False)
    assert good.ok and again.ok and "no channel group 'nowhere'" in failed.error


@pytest.mark.parametrize(
    ("module", "place", "fault", "message"),
    [
        (worker, "build", RuntimeError("the engine\nbroke"), "RuntimeError: the engine broke"),
        (worker, "build", MemoryError(), "MemoryError"),
        (backends, "compare", None, "target 'onnxruntime' differs from torch by 0.5"),
        (worker, "count", ZeroDivisionError(), "ZeroDivisionError"),
    ],
)
def test_a_fault_is_a_measurement(tiny_task, monkeypatch, module, place, fault, message):
    def broken(*arguments, **named):
        if fault is not None:
            raise fault
        return 0.5

    monkeypatch.setattr(module, place, broken)
    with Evaluator(tiny_task) as engine:
        (failed,) = engine.evaluate([half(tiny_task)])
        assert message in failed.error and "\n" not in failed.error
        monkeypatch.undo()
        assert engine.evaluate([half(tiny_task)]) == [failed]  # remembered, by whoever has the store
        assert Evaluator(tiny_task, engine.store).evaluate([half(tiny_task)]) == [failed]
        with Evaluator(tiny_task, engine.store, retry_failed=True) as again:  # what failed may be mended
            assert again.evaluate([half(tiny_task)])[0].ok
        assert engine.evaluate([half(tiny_task)])[0].ok
        assert engine.store.counts() == {"measurements": 1, "failures": 0, "trials": 0}


def test_a_hung_measurement_ends(tiny_task):
    slow = Worker(tiny_task, deadline=0.02)
    with Evaluator(tiny_task, worker=slow) as engine:
        (failed,) = engine.evaluate([half(tiny_task)])
        assert "took longer than 0.02 s" in failed.error
    slow.close()


def test_an_output_that_is_not_finite_is_a_failure(tiny_task):
    graph = tiny_task.graph
    name = next(n for n in reversed(graph.weights) if graph.weights[n].ndim == 1)
    poisoned = graph.replace(weights={**graph.weights, name: np.full_like(graph.weights[name], np.nan)})
    with Evaluator(dataclasses.replace(tiny_task, model=poisoned)) as engine:
        (failed,) = engine.evaluate([Plan(poisoned.fingerprint)])
        assert not failed.ok


def test_closing_leaves_nothing(tiny_task):
    before = set(psutil.Process().children(recursive=True))
    engine = Evaluator(tiny_task)
    engine.evaluate([tiny_task.identity])
    assert set(psutil.Process().children(recursive=True)) - before
    engine.close()
    engine.close()
    assert not set(psutil.Process().children(recursive=True)) - before
    assert engine.evaluate([half(tiny_task)])[0].ok  # and it may be used again
    engine.close()
