"""Importance and closed-form recovery, against closed forms and on the trained baselines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import msc_core as msc
from msc_core.backends import build, score
from msc_core.channels import Channels
from msc_core.codegen.torch import to_torch
from msc_core.data import Dataset, Split, fashion_mnist
from msc_core.errors import MscError
from msc_core.tools.prune import Pruner
from msc_core.tools.prune.recover import recover
from msc_core.tools.strategy import keep_count
from tests.micro_networks import Chain, FlattenLinear, Grouped, Inverted, Residual, SelfConcat, randomized

BASELINES = Path(__file__).parents[1] / "experiments" / "baselines"
NETWORKS = (Chain, FlattenLinear, Grouped, Inverted, Residual, SelfConcat)


def imported(network: type[torch.nn.Module], samples: int = 200) -> tuple[msc.MSCGraph, np.ndarray]:
    torch.manual_seed(0)
    x = np.random.default_rng(0).normal(size=(samples, 3, 8, 8)).astype(np.float32)
    graph = msc.from_torch(randomized(network()), torch.zeros(2, 3, 8, 8), dynamic_shapes=({0: "N"},))
    return graph, x


def run(graph: msc.MSCGraph, x: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return to_torch(graph).eval()(torch.from_numpy(x)).numpy()


@pytest.fixture(scope="module")
def data() -> Dataset:
    return fashion_mnist()


def accuracy(graph: msc.MSCGraph, images: Split) -> float:
    with build(graph, "onnxruntime", threads=2) as runner:
        return score(runner, images)


@pytest.mark.parametrize("network", NETWORKS, ids=lambda n: n.__name__)
@pytest.mark.parametrize("criterion", ["l1", "l2", "activation", "obs"])
def test_every_criterion_orders_all_channels(network: type[torch.nn.Module], criterion: str) -> None:
    graph, x = imported(network)
    pruner = Pruner(graph, x, divisor=1, criterion=criterion)
    for group in pruner.groups:
        assert sorted(pruner.order(group.name).tolist()) == list(range(group.size))


def test_an_unknown_criterion_names_the_nearest() -> None:
    graph, x = imported(Chain)
    with pytest.raises(MscError, match="unknown importance criterion 'l3'"):
        Pruner(graph, x, criterion="l3").order("a")


def test_a_plan_that_keeps_everything_changes_nothing() -> None:
    graph, x = imported(Residual)
    pruner = Pruner(graph, x)
    assert pruner.compress(pruner.plan({g.name: g.size for g in pruner.groups})) == graph


@pytest.mark.parametrize("network", NETWORKS, ids=lambda n: n.__name__)
def test_recovery_of_redundant_channels_is_exact(network: type[torch.nn.Module]) -> None:
    """Channels that are copies of others can be removed without any loss: least squares must find that."""
    graph, x = imported(network)
    channels = Channels(graph, divisor=1)
    group = next(g for g in channels.groups if not g.reason and g.size % 2 == 0)
    weights = {name: w.copy() for name, w in graph.weights.items()}
    for member in group.members:
        if not member.contracted:
            first = [np.flatnonzero(member.index == c) for c in range(group.size // 2)]
            second = [np.flatnonzero(member.index == c + group.size // 2) for c in range(group.size // 2)]
            moved = np.moveaxis(weights[member.tensor], member.axis, 0)
            moved[np.concatenate(second)] = moved[np.concatenate(first)]
    doubled = graph.replace(weights=weights)
    pruner = Pruner(doubled, x, divisor=1)
    kept = {group.name: range(group.size // 2)}
    recovered = recover(doubled, kept, pruner.channels, pruner.statistics)
    np.testing.assert_allclose(run(recovered, x), run(doubled, x), rtol=1e-3, atol=2e-3)
    assert np.abs(run(msc.apply(msc.Plan(doubled.fingerprint, kept), doubled), x) - run(doubled, x)).max() > 2e-2


def test_recovery_is_the_least_squares_solution() -> None:
    """A linear layer on random inputs: the weights must be those of `numpy.linalg.lstsq`."""

    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(6, 10), torch.nn.Linear(10, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(torch.relu(self.a(x)))

    torch.manual_seed(0)
    x = np.random.default_rng(0).normal(size=(500, 6)).astype(np.float32)
    graph = msc.from_torch(Two(), torch.zeros(2, 6), dynamic_shapes=({0: "N"},))
    pruner = Pruner(graph, x, divisor=1)
    kept = [0, 2, 3, 7]
    recovered = recover(graph, {"a": kept}, pruner.channels, pruner.statistics)
    hidden = np.maximum(x @ graph.weights["a.weight"].T + graph.weights["a.bias"], 0)
    target = hidden @ graph.weights["b.weight"].T + graph.weights["b.bias"]
    design = np.concatenate([hidden[:, kept], np.ones((500, 1))], axis=1)
    solution = np.linalg.lstsq(design, target, rcond=None)[0]
    np.testing.assert_allclose(recovered.weights["b.weight"], solution[:-1].T, atol=2e-3)
    np.testing.assert_allclose(recovered.weights["b.bias"], solution[-1], atol=2e-3)


def test_surgeon_removes_a_copied_channel_first() -> None:
    """Of two equal channels one is free to go, though both are large: magnitude cannot see that, the Hessian can."""
    graph, x = imported(Chain)
    weights = {name: w.copy() for name, w in graph.weights.items()}
    for name, w in weights.items():
        if name.startswith(("a.", "na.")):
            w[5] = w[2]
    weights["a.weight"][[2, 5]] *= 3
    graph = graph.replace(weights=weights)
    assert Pruner(graph, x, divisor=1, criterion="obs").order("a")[-1] in (2, 5)
    assert Pruner(graph, x, divisor=1, criterion="l1").order("a")[-1] not in (2, 5)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((0, 3, 8, 8), np.float32), "calibration needs at least one input"),
        (np.full((4, 3, 8, 8), np.nan, np.float32), "is not finite on the calibration data"),
    ],
)
def test_bad_calibration_data_is_refused(x: np.ndarray, message: str) -> None:
    graph, _ = imported(Chain)
    pruner = Pruner(graph, x, divisor=1)
    with pytest.raises(MscError, match=message):
        pruner.plan({"a": 4})


def test_dead_channels_do_not_break_the_algebra() -> None:
    graph, x = imported(Chain)
    weights = {name: w.copy() for name, w in graph.weights.items()}
    weights["na.weight"][:4] = 0
    weights["na.bias"][:4] = -1  # relu then gives exactly zero
    dead = graph.replace(weights=weights)
    pruner = Pruner(dead, x, divisor=1)
    assert set(pruner.order("a")[-4:].tolist()) == {0, 1, 2, 3}
    pruned = recover(dead, pruner.plan({"a": 4}).prune, pruner.channels, pruner.statistics)
    np.testing.assert_allclose(run(pruned, x), run(dead, x), rtol=1e-4, atol=1e-4)


def test_plans_and_recovered_weights_do_not_depend_on_the_number_of_threads() -> None:
    graph, x = imported(Residual)
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            pruner = Pruner(graph, x, divisor=1)
            plan = pruner.plan({g.name: g.size // 2 for g in pruner.groups})
            found.append((plan, pruner.compress(plan)))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1]


def test_recovery_of_resnet20_without_training(data: Dataset) -> None:
    """Half of each block's inner channels costs at most 2 points of accuracy, three quarters at most 9."""
    graph = msc.MSCGraph.load(BASELINES / "resnet20")
    pruner = Pruner(graph, data.train.x[:1000], divisor=4)
    images = Split(data.validation.x[:2000], data.validation.y[:2000])
    full = accuracy(graph, images)
    for density, most in ((0.5, 0.02), (0.25, 0.09)):
        plan = pruner.plan({g.name: keep_count(g, density) for g in pruner.groups if "body1" in g.name})
        lost = full - accuracy(pruner.compress(plan), images)
        assert lost <= most
        assert full - accuracy(msc.apply(plan, graph), images) > lost + 0.3, "slicing alone should have collapsed"


@pytest.mark.slow
def test_layer_by_layer_restores_more_of_resnet20(data: Dataset) -> None:
    """With a quarter of all channels of each block, at least 2 points more than all layers at once."""
    graph = msc.MSCGraph.load(BASELINES / "resnet20")
    found = {}
    for recovery in ("one-shot", "sequential"):
        pruner = Pruner(graph, data.train.x[:1000], divisor=4, criterion="activation", recovery=recovery)
        plan = pruner.plan({g.name: keep_count(g, 0.25) for g in pruner.groups if "body1" in g.name})
        found[recovery] = accuracy(pruner.compress(plan), data.validation)
    assert found["sequential"] >= found["one-shot"] + 0.02


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("resnet20", 0.93),
        pytest.param("vgg", 0.925, marks=pytest.mark.slow),
        pytest.param("mobilenet", 0.92, marks=pytest.mark.slow),
    ],
)
def test_baselines_reach_their_test_accuracy(name: str, least: float, data: Dataset) -> None:
    import json

    graph = msc.MSCGraph.load(BASELINES / name)
    found = accuracy(graph, data.test)
    assert found >= least
    assert found == pytest.approx(json.loads((BASELINES / name / "training.json").read_text())["test"], abs=3e-4)
    assert sum(f.stat().st_size for f in (BASELINES / name).iterdir()) < 2 * 2**20


def test_splits_refuse_nothing_at_all() -> None:
    with pytest.raises(MscError, match="at least one"):
        Split(np.zeros((0, 3), np.float32), np.zeros(0, np.int64))
