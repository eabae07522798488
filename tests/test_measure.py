"""Latency: intervals that tell equal from different under noise, and a child process that survives what it meets."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import msc_core as msc
from msc_core import MscError, MSCGraph, from_torch
from msc_core.backends import Runner, available, build
from msc_core.errors import DeadlineExceeded
from msc_core.ir import Tensor
from msc_core.measure import Meter, agree, random_feeds, summarize, take_rounds

# Statistics, on a model of noise: load offset, slow drift, jitter, and preemptions that last several readings.


class Machine:
    """Readings of two models whose true times differ by `ratio`."""

    def __init__(self, seed: int, ratio: float, jitter: float, preempted: float) -> None:
        self.random = np.random.default_rng(seed)
        self.times = np.array([1.0, ratio * np.exp(self.random.normal(0, 0.003))]) * 1e-3
        self.jitter, self.preempted = jitter, preempted
        self.drift, self.busy = 0.0, False

    def reading(self, side: int) -> float:
        self.drift = 0.98 * self.drift + self.random.normal(0, 0.004)
        self.busy = self.random.random() < (0.6 if self.busy else self.preempted)
        slow = 1 + self.random.exponential(1.5) if self.busy else 1.0
        return float(self.times[side] * np.exp(self.drift + abs(self.random.normal(0, self.jitter))) * slow)

    def round(self) -> np.ndarray:
        readings = np.empty((50, 2))
        for i in range(50):
            for side in (0, 1) if i % 2 else (1, 0):
                readings[i, side] = self.reading(side)
        return readings


NOISE = {"quiet": (0.01, 0.002), "busy neighbour": (0.03, 0.03), "shared core": (0.05, 0.3)}  # jitter, preemptions
RUNS = 200


@pytest.mark.parametrize("noise", NOISE)
def test_the_interval_contains_1_for_equal_models(noise):
    measured = [summarize(take_rounds(Machine(seed, 1.0, *NOISE[noise]).round)) for seed in range(RUNS)]
    assert sum(m.interval[0] <= 1 <= m.interval[1] for m in measured) >= 0.95 * RUNS
    assert all(m.interval[0] <= m.ratio <= m.interval[1] for m in measured)


@pytest.mark.parametrize("ratio", [0.8, 1.25])
@pytest.mark.parametrize("noise", NOISE)
def test_the_interval_excludes_1_for_models_20_percent_apart(noise, ratio):
    measured = [summarize(take_rounds(Machine(seed, ratio, *NOISE[noise]).round)) for seed in range(RUNS)]
    assert sum(m.interval[0] > 1 or m.interval[1] < 1 for m in measured) >= 0.95 * RUNS
    assert sum(m.interval[0] <= ratio <= m.interval[1] for m in measured) >= 0.95 * RUNS
    assert sum(m.valid for m in measured) >= 0.95 * RUNS


def test_quiet_intervals_are_narrow():
    measured = [summarize(take_rounds(Machine(seed, 1.0, *NOISE["quiet"]).round)) for seed in range(RUNS)]
    assert np.median([m.interval[1] - m.interval[0] for m in measured]) < 0.04


def test_a_summary_by_hand():
    rounds = np.array([[[2.0, 1.0], [4.0, 3.0]], [[2.5, 1.25], [6.0, 3.0]]])
    latency = summarize(rounds, threads=2, core=3)
    assert (latency.ratio, latency.pairs, latency.threads, latency.core, latency.valid) == (0.5, 2, 2, 3, True)
    assert latency.baseline.minimum == 2
    assert (latency.median, latency.candidate.p25, latency.candidate.p75) == (2.125, 1.1875, 3)
    assert latency.interval == (0.5 / 1.01, 0.75 * 1.01)


def test_rounds_that_disagree_are_taken_once_more_and_then_do_not_count():
    def rounds(*ratios: float) -> np.ndarray:
        queue = list(ratios)
        taken = take_rounds(lambda: np.full((5, 2), [1.0, queue.pop(0)]))
        assert not queue
        return taken

    assert agree(rounds(1.0, 1.02))
    assert summarize(rounds(1.0, 1.1, 1.05, 1.06)).ratio == pytest.approx(1.05)
    assert not summarize(rounds(1.0, 1.1, 1.0, 1.1)).valid


# The process


def graph(width: int, seed: int = 0, depth: int = 3) -> MSCGraph:
    torch.manual_seed(seed)
    layers = [nn.Conv2d(3, width, 3, padding=1), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
    return from_torch(nn.Sequential(*layers).eval(), torch.randn(2, 3, 16, 16), dynamic_shapes=({0: "N"},))


@pytest.fixture(scope="module")
def meter():
    with Meter() as meter:
        yield meter


@pytest.fixture(scope="module")
def runners() -> dict[str, Runner]:
    return {
        "one": build(graph(32), "onnxruntime"),
        "equal": build(graph(32, seed=1), "onnxruntime"),
        "half": build(graph(16), "onnxruntime"),
        "torch": build(graph(32), "torch"),
    }


def test_equal_models_come_out_as_equal(meter, runners):
    measured = [meter.measure(runners["equal"], runners["one"], seed=seed) for seed in range(5)]
    assert sum(m.interval[0] <= 1 <= m.interval[1] for m in measured) >= 4


def test_different_models_come_out_as_different(meter, runners):
    latency = meter.measure(runners["half"], runners["one"])
    assert latency.interval[1] < 1
    assert 0 < latency.candidate.minimum <= latency.candidate.p25 <= latency.median <= latency.candidate.p75
    assert latency.candidate.minimum < latency.baseline.minimum
    assert (latency.pairs, latency.threads) == (50, 1)


def test_backends_can_be_compared(meter, runners):
    latency = meter.measure(runners["torch"], runners["one"], pairs=10)
    assert latency.pairs == 10
    assert latency.ratio > 0
    if available("tvm")[0]:  # its batch is fixed, which is the same at batch 1
        assert meter.measure(build(graph(16), "tvm"), runners["one"], pairs=5).ratio > 0


def test_without_a_baseline_the_ratio_is_1(meter, runners):
    latency = meter.measure(runners["one"], pairs=10)
    assert latency.ratio == pytest.approx(1, abs=0.5)
    assert latency.interval[0] <= 1 <= latency.interval[1]


def test_the_child_is_pinned_and_stays(meter, runners):
    meter.measure(runners["one"], pairs=5)
    process = meter._child._process
    cores = os.sched_getaffinity(0)
    expected = {max(cores)} if len(cores) > 1 else cores
    assert os.sched_getaffinity(process.pid) == expected
    assert meter.measure(runners["half"], pairs=5).core == (max(cores) if len(cores) > 1 else None)
    assert meter._child._process is process
    assert os.sched_getaffinity(0) == cores


def test_only_the_baseline_is_kept(meter, runners):
    meter.measure(runners["half"], runners["one"], pairs=5)
    first = [p for p in meter._child._folder.iterdir() if p.is_dir()]
    meter.measure(runners["equal"], runners["one"], pairs=5)
    assert [p for p in meter._child._folder.iterdir() if p.is_dir()] == first
    assert len(first) == 1


def test_pairs_shrink_to_fit_the_deadline(meter, runners):
    assert 5 <= meter.measure(runners["half"], runners["one"], pairs=10**6, deadline=8).pairs < 10**6


class Fake:
    """Exports another runner's files and then does what it is told to them."""

    def __init__(self, runner: Runner, change) -> None:
        self.runner, self.change = runner, change
        self.target, self.inputs, self.outputs = runner.target, runner.inputs, runner.outputs

    def export(self, folder: Path) -> None:
        self.runner.export(folder)
        self.change(folder)


def test_a_runner_that_cannot_be_loaded_is_an_error_and_the_next_call_works(meter, runners):
    with pytest.raises(MscError, match=r"measuring onnxruntime: .*model\.onnx is damaged"):
        meter.measure(Fake(runners["one"], lambda folder: (folder / "model.onnx").write_bytes(b"")))
    process = meter._child._process
    assert meter.measure(runners["one"], pairs=5).pairs == 5
    assert meter._child._process is process


def test_a_failed_export_leaves_no_files(meter, runners):
    def fail(folder: Path) -> None:
        raise MscError("no space")

    before = sorted(meter._child._folder.iterdir())
    with pytest.raises(MscError, match="no space"):
        meter.measure(Fake(runners["one"], fail))
    assert sorted(meter._child._folder.iterdir()) == before


def test_outputs_must_be_finite(meter):
    net = graph(8)
    weights = {name: np.full_like(array, np.nan) for name, array in net.weights.items()}
    with pytest.raises(MscError, match=r"output '.*' is not finite"):
        meter.measure(build(net.replace(weights=weights), "onnxruntime"))


def test_inputs_must_be_the_same(meter, runners):
    other = build(from_torch(nn.Linear(3, 2), torch.ones(2, 3)), "onnxruntime")
    with pytest.raises(MscError, match="the runners take different inputs"):
        meter.measure(other, runners["one"])


def test_past_its_deadline_the_child_is_killed_and_replaced(meter, runners):
    meter.measure(runners["one"], pairs=5)
    process = meter._child._process
    with pytest.raises(DeadlineExceeded, match=r"measuring onnxruntime took longer than 0\.02 s"):
        meter.measure(runners["one"], deadline=0.02)
    assert process.poll() is not None
    assert meter.measure(runners["one"], pairs=5).pairs == 5


def test_a_crashed_child_is_named_and_replaced(meter, runners):
    meter.measure(runners["one"], pairs=5)
    process = meter._child._process
    killer = threading.Timer(0.2, process.kill)
    killer.start()
    with pytest.raises(MscError, match=r"measuring torch: the measuring process ended by signal SIGKILL"):
        while True:
            meter.measure(runners["torch"], runners["one"], pairs=500)
    killer.join()
    assert meter.measure(runners["one"], pairs=5).pairs == 5


def test_a_child_that_died_between_two_calls_is_replaced(meter, runners):
    meter.measure(runners["one"], pairs=5)
    meter._child._process.kill()
    meter._child._process.wait()
    assert meter.measure(runners["one"], pairs=5).pairs == 5


def test_closing_leaves_nothing(runners):
    with Meter() as meter:
        meter.measure(runners["one"], pairs=5)
        process, folder = meter._child._process, meter._child._folder
        assert folder.is_dir()
    assert process.poll() is not None
    assert not folder.exists()
    with pytest.raises(MscError, match="the meter is closed"):
        meter.measure(runners["one"])


def test_the_default_meter_ends_with_the_process(tmp_path):
    program = f"""
import sys, numpy as np
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import msc_core as msc
from msc_core import MSCGraph, Node, Tensor
tensors = {{n: Tensor(n, ("N", 4)) for n in "xy"}}
runner = msc.build(MSCGraph("r", (Node("y", "relu", ("x",), ("y",)),), ("x",), ("y",), {{}}, tensors), "onnxruntime")
print(msc.measure(runner, pairs=5).valid is not None)
from msc_core.measure import _meters
(meter,) = _meters.values()
print(meter._child._process.pid, meter._child._folder)
"""
    result = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    valid, where = result.stdout.splitlines()
    pid, folder = where.split()
    assert valid == "True"
    assert not Path(folder).exists()
    end = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


def test_measure_is_public():
    assert msc.measure.__name__ == "measure"


def test_random_feeds_fit_any_input():
    inputs = (Tensor("x", ("N", 3)), Tensor("i", (2,), "int64"), Tensor("b", (), "bool"), Tensor("h", (2,), "float16"))
    feeds = random_feeds(inputs, 7)
    assert {name: (a.dtype.name, a.shape) for name, a in feeds.items()} == {
        "x": ("float32", (1, 3)), "i": ("int64", (2,)), "b": ("bool", ()), "h": ("float16", (2,))
    }  # fmt: skip
    assert set(feeds["i"].tolist()) <= {0, 1}
    np.testing.assert_array_equal(feeds["x"], random_feeds(inputs, 7)["x"])
    assert not np.array_equal(feeds["x"], random_feeds(inputs, 8)["x"])
