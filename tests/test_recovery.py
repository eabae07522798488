"""Statistics and closed-form recovery of layers of every kind, against NumPy, torch and exact solutions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import msc_core as msc
from msc_core.codegen.torch import to_torch
from msc_core.errors import InvalidPlan, MscError
from msc_core.ir import consumers
from msc_core.tools.calibration import batches
from msc_core.tools.prune import Pruner
from msc_core.tools.prune.product import product
from msc_core.tools.prune.sequential import reestimate_batch_norm
from msc_core.tools.prune.statistics import Statistics
from tests.micro_networks import NETWORKS, Chain, Inverted, Residual, randomized
from tests.micro_networks.network import Network

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2), (4, 17)),
    "conv2d": (lambda: nn.Conv2d(4, 6, (3, 2), stride=(1, 2), padding=(2, 1), dilation=(2, 1)), (4, 9, 8)),
    "grouped": (lambda: nn.Conv2d(6, 4, 3, groups=2, padding=1, bias=False), (6, 7, 7)),
    "depthwise": (lambda: nn.Conv2d(5, 10, 3, groups=5), (5, 6, 7)),
    "conv3d": (lambda: nn.Conv3d(2, 3, (2, 3, 1), padding=(1, 0, 2)), (2, 4, 5, 3)),
    "transposed1d": (lambda: nn.ConvTranspose1d(4, 3, 4, stride=3, padding=1, output_padding=2), (4, 6)),
    "transposed2d": (lambda: nn.ConvTranspose2d(4, 6, (3, 2), stride=2, dilation=(2, 1), groups=2), (4, 5, 4)),
    "transposed3d": (lambda: nn.ConvTranspose3d(2, 3, 2, stride=2, padding=1), (2, 3, 3, 3)),
    "linear": (lambda: nn.Linear(7, 5), (7,)),
    "sequence": (lambda: nn.Linear(7, 5, bias=False), (3, 4, 7)),
}


class Multiplied(nn.Module):
    """A product with a matrix parameter, as ONNX files have it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(7, 5))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


LAYERS["matmul"] = Multiplied, (3, 7)


class Single(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x)
        return result


def imported(module: nn.Module, shape: tuple[int, ...], samples: int = 6) -> tuple[msc.MSCGraph, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(samples, *shape)).astype(np.float32)
    return msc.from_torch(module.eval(), torch.zeros(2, *shape), dynamic_shapes=({0: "N"},)), x


def run(graph: msc.MSCGraph, x: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return to_torch(graph).eval()(torch.from_numpy(x)).numpy()


@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_is_its_matrix_times_its_columns(kind: str) -> None:
    """What torch's layer gives, position by position; and the matrix turns back into the weight."""
    torch.manual_seed(0)
    make, shape = LAYERS[kind]
    graph, x = imported(Single(make()), shape)
    layer = next(filter(None, (product(graph, n.name, consumers(graph)) for n in graph.nodes)))
    value, expected = torch.from_numpy(x), torch.from_numpy(run(graph, x))
    weight = graph.weights[layer.weight]
    matrix = layer.matrix(weight)
    np.testing.assert_array_equal(layer.restore(matrix).astype(np.float32), weight)
    places = torch.randperm(int(np.prod(layer.positions(value))))[:30]
    bias = graph.weights[layer.bias].reshape(*matrix.shape[:2], 1) if layer.bias else 0
    found = matrix @ layer.gather(value, places).double().numpy() + bias
    np.testing.assert_allclose(found, layer.results(expected, places).numpy(), rtol=1e-4, atol=1e-4)


def test_statistics_are_the_second_moments_of_all_columns() -> None:
    graph, x = imported(Single(nn.Linear(7, 5)), (7,), samples=120)
    layer = Statistics(graph, [n.name for n in graph.nodes], x).layers["layer"]
    columns = np.append(x, np.ones((120, 1)), axis=1)
    np.testing.assert_allclose(layer.gram[0], columns.T @ columns / 120, atol=1e-5)
    np.testing.assert_allclose(layer.moments[0], np.cov(x.T, bias=True), atol=1e-5)


@pytest.mark.parametrize("network", NETWORKS, ids=lambda n: n.name)
def test_every_network_is_ordered_and_recovered(network: Network) -> None:
    """Recurrent layers, embeddings and tied weights too: what cannot be solved is sliced, and all stays finite."""
    torch.manual_seed(0)
    module, given = network.module(), network.inputs()
    inputs = given if isinstance(given, tuple) else (given,)
    graph = msc.from_torch(module, *inputs)
    x = {name: np.ascontiguousarray(t.numpy()) for name, t in zip(graph.inputs, inputs, strict=True)}
    for recovery in ("one-shot", "sequential"):
        pruner = Pruner(graph, x, divisor=1, recovery=recovery)
        plan = pruner.plan({g.name: max(1, g.size // 2) for g in pruner.groups})
        recovered = pruner.compress(plan)
        sliced = msc.apply(plan, graph)
        assert {n: w.shape for n, w in recovered.weights.items()} == {n: w.shape for n, w in sliced.weights.items()}
        for name, weight in sliced.weights.items():
            if weight.dtype.kind == "f":
                np.testing.assert_array_equal(np.isfinite(recovered.weights[name]), np.isfinite(weight))


class Deep(nn.Module):
    """A stem, a block with a shortcut, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.inner = nn.Linear(6, 12), nn.Linear(12, 16)
        self.outer, self.head = nn.Linear(16, 12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = x + self.outer(torch.relu(self.inner(x)))
        result: Tensor = self.head(torch.relu(x))
        return result


@pytest.mark.parametrize("network", [Chain, Inverted, Residual], ids=lambda n: n.__name__)
def test_sequential_is_closer_than_slicing(network: type[nn.Module]) -> None:
    torch.manual_seed(0)
    graph, x = imported(randomized(network()), (3, 8, 8), samples=200)
    pruner = Pruner(graph, x, divisor=1, recovery="sequential")
    plan = pruner.plan({g.name: max(1, g.size // 2) for g in pruner.groups})
    target = run(graph, x)
    error = {name: ((run(g, x) - target) ** 2).mean() for name, g in (
        ("sliced", msc.apply(plan, graph)), ("sequential", pruner.compress(plan)),
    )}  # fmt: skip
    assert error["sequential"] < 0.7 * error["sliced"]


def test_a_last_layer_is_fitted_to_what_it_reads_after_the_others() -> None:
    """The head against `numpy.linalg.lstsq` on the pruned network's own activations: the best that it can do."""
    torch.manual_seed(0)
    graph, x = imported(Deep(), (6,), samples=400)
    pruner = Pruner(graph, x, divisor=1, recovery="sequential")
    kept = {g.name: range(g.size // 2) for g in pruner.groups}
    recovered = pruner.compress(msc.Plan(graph.fingerprint, kept))
    read = run(recovered.replace(outputs=(recovered.node("head").inputs[0],)), x)
    design = np.append(read, np.ones((len(x), 1)), axis=1)
    best = design @ np.linalg.lstsq(design, run(graph, x), rcond=None)[0]
    centred = best - best.mean(axis=0)
    gain = np.clip(run(graph, x).std(axis=0) / best.std(axis=0), 1, 2)
    np.testing.assert_allclose(run(recovered, x), best.mean(axis=0) + gain * centred, atol=5e-3)


def test_batch_norms_get_the_statistics_that_torch_finds() -> None:
    torch.manual_seed(0)
    graph, x = imported(randomized(Chain()), (3, 8, 8), samples=120)
    found = reestimate_batch_norm(graph, x)
    norms = [n for n in graph.nodes if n.op == "batch_norm"]
    with torch.no_grad():
        read = to_torch(found.replace(outputs=tuple(n.inputs[0] for n in norms))).eval()(torch.from_numpy(x))
    values = read if isinstance(read, tuple) else (read,)
    for node, value in zip(norms, values, strict=True):
        np.testing.assert_allclose(found.weights[node.inputs[3]], value.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found.weights[node.inputs[4]], value.transpose(0, 1).flatten(1).var(1), rtol=1e-3)


def test_solutions_are_looked_up_the_second_time() -> None:
    torch.manual_seed(0)
    graph, x = imported(randomized(Chain()), (3, 8, 8), samples=60)
    pruner = Pruner(graph, x, divisor=1)
    plan = pruner.plan({g.name: g.size // 2 for g in pruner.groups})
    first = pruner.compress(plan)
    solved = dict(pruner.statistics.solutions)
    assert solved and pruner.compress(plan) == first
    assert all(pruner.statistics.solutions[key] is value for key, value in solved.items())


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"a": 0}, "group 'a' must keep at least 1 of"),
        ({"aa": 2}, "no group 'aa' that can be pruned"),
    ],
)
def test_plans_that_cannot_be_are_refused(counts: dict[str, int], message: str) -> None:
    graph, x = imported(randomized(Chain()), (3, 8, 8))
    with pytest.raises(InvalidPlan, match=message):
        Pruner(graph, x, divisor=1, criterion="l1").plan(counts)


@pytest.mark.parametrize("recovery", ["one-shot", "sequential"])
@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((0, 3, 8, 8), np.float32), "calibration needs at least one input"),
        (np.full((4, 3, 8, 8), np.nan, np.float32), "is not finite on the calibration data"),
        ({"y": np.zeros((4, 3, 8, 8), np.float32)}, "calibration: no input 'y'"),
    ],
)
def test_bad_calibration_data_is_refused(x: np.ndarray, message: str, recovery: str) -> None:
    graph, _ = imported(randomized(Chain()), (3, 8, 8))
    pruner = Pruner(graph, x, divisor=1, criterion="l1", recovery=recovery)
    with pytest.raises(MscError, match=message):
        pruner.compress(pruner.plan({"a": 4}))


def test_an_unknown_recovery_names_the_nearest() -> None:
    graph, x = imported(randomized(Chain()), (3, 8, 8))
    with pytest.raises(MscError, match=r"unknown recovery 'sequental'.*sequential"):
        Pruner(graph, x, recovery="sequental")


def test_a_fixed_batch_is_fed_in_batches_of_that_size() -> None:
    graph = msc.from_torch(Single(nn.Linear(7, 5)), torch.zeros(4, 7))
    x = np.zeros((11, 7), np.float32)
    assert [len(feeds["x"]) for feeds in batches(graph, x)] == [4, 4]
    with pytest.raises(MscError, match="takes 4 samples at once; found 3"):
        batches(graph, x[:3])
