"""Error-compensating rounding against closed forms: what it equals, what it never exceeds, what it is worth."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
import torch
from torch import nn

import msc_core as msc
from msc_core.tools.prune.statistics import Statistics
from msc_core.tools.quantize.gptq import compensate, output_error, round_weights
from msc_core.tools.quantize.insert import integers, quantize
from msc_core.tools.quantize.precision import Precision
from msc_core.tools.quantize.quantizer import Quantizer
from msc_core.tools.quantize.weight_scales import weight_scales

LIMITS = (-8, 7)


def problem(seed: int, groups: int = 2, rows: int = 5, columns: int = 7) -> tuple[np.ndarray, ...]:
    """A weight, its scales and zero points, and the second moments of correlated inputs."""
    generator = np.random.default_rng(seed)
    weight = generator.normal(size=(groups, rows, columns))
    scale = np.broadcast_to(np.abs(weight).max(2, keepdims=True) / 7, weight.shape)
    x = generator.normal(size=(groups, columns, 4)) @ generator.normal(size=(groups, 4, 50))
    x += 0.1 * generator.normal(size=x.shape)
    return weight, scale, np.zeros(weight.shape), x @ x.swapaxes(1, 2) / 50


def nearest(weight: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return np.rint(weight / scale).clip(*LIMITS)


def test_with_independent_inputs_it_rounds_to_nearest() -> None:
    weight, scale, zero, hessian = problem(0)
    diagonal = hessian * np.eye(7)
    np.testing.assert_array_equal(compensate(weight, scale, zero, LIMITS, diagonal), nearest(weight, scale))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("columns", [7, 300])
def test_correlated_inputs_lose_less_than_with_nearest(seed: int, columns: int) -> None:
    weight, scale, zero, hessian = problem(seed, columns=columns)
    kept = weight.copy()
    found = compensate(weight, scale, zero, LIMITS, hessian)
    np.testing.assert_array_equal(weight, kept)
    assert found.min() >= LIMITS[0] and found.max() <= LIMITS[1]
    errors = [output_error(q * scale - weight, hessian).sum() for q in (found, nearest(weight, scale))]
    assert errors[0] < 0.8 * errors[1]


def test_two_columns_in_closed_form() -> None:
    """The second column takes the whole error of the first, times their correlation, before it is rounded."""
    weight, one = np.array([[[0.4, 0.3]]]), np.ones((1, 1, 2))
    hessian = np.array([[[2.0, 0.8], [0.8, 1.0]]])
    # the first becomes 0, its error 0.4 is 0.4 * 0.8 / 1 in units of the second: 0.3 + 0.32 rounds to 1
    np.testing.assert_array_equal(compensate(weight, one, 0 * one, LIMITS, hessian), [[[0, 1]]])
    choices = np.array(list(itertools.product((-1, 0, 1), repeat=2)), float)[None]
    best = output_error(choices - weight, hessian).argmin()
    np.testing.assert_array_equal(choices[0, best], [0, 1])


class Net(nn.Module):
    """Every kind of layer with a weight: groups, depthwise, transposed, 1-d behind 2-d, linear."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.c, self.d = nn.Conv2d(8, 8, 3, groups=8), nn.ConvTranspose2d(8, 6, 2, stride=2)
        self.e, self.fc = nn.Conv1d(6, 8, 3), nn.Linear(8, 16)
        self.tied = nn.Linear(16, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.b(torch.relu(self.a(x))))
        x = torch.relu(self.d(torch.relu(self.c(x))))
        x = torch.relu(self.e(x.mean(3)))
        return self.tied(torch.relu(self.tied(torch.relu(self.fc(x.mean(2))))))


@functools.cache
def network() -> tuple[msc.MSCGraph, np.ndarray]:
    torch.manual_seed(0)
    mixing = torch.randn(3, 3)
    x = torch.einsum("oi,nihw->nohw", mixing, torch.randn(64, 3, 8, 8).cumsum(3))
    graph = msc.from_torch(Net().eval(), torch.zeros(2, 3, 8, 8), dynamic_shapes=({0: "N"},))
    return graph, x.numpy()


def run(graph: msc.MSCGraph, x: np.ndarray) -> np.ndarray:
    with msc.build(graph, "onnxruntime") as runner:
        (found,) = runner.run({graph.inputs[0]: x}).values()
    return found


def gathered(quantizer: Quantizer, x: np.ndarray) -> Statistics:
    return Statistics(quantizer.folded, quantizer.layers, x)


@pytest.mark.parametrize("precision", [
    Precision(4, 0, rounding="gptq"), Precision(3, 0, "mse", rounding="gptq"),
    Precision(4, 0, symmetric=False, rounding="gptq"), Precision(4, 0, per_channel=False, rounding="gptq"),
])  # fmt: skip
def test_every_layer_loses_less(precision: Precision) -> None:
    graph, x = network()
    quantizer = Quantizer(graph, x)
    plan = quantizer.plan(precision)
    rounded = round_weights(quantizer.folded, plan.quantize, gathered(quantizer, x))
    assert rounded.keys() == {f"{name}.weight" for name in ("a", "b", "c", "d", "e", "fc")}, "tied ones are nearest"
    for name, found in rounded.items():
        how = plan.quantize[name]
        assert found.dtype == how.dtype and found.shape == graph.weights[name].shape
        assert found.min() >= how.limits[0] and found.max() <= how.limits[1]
        tap = graph.replace(outputs=graph.node(name.removesuffix(".weight")).outputs)
        expected = run(tap, x)
        both = (quantize(tap, {name: how}, {name: found}), quantize(tap, {name: how}))
        lost = [np.square(run(quantized, x) - expected).mean() for quantized in both]
        assert (found != integers(graph.weights[name], how)).any() and lost[0] < lost[1], name


def test_compress_rounds_so_and_mends_the_mean() -> None:
    graph, x = network()
    quantizer = Quantizer(graph, x)
    plan = quantizer.plan(Precision(4, 0, rounding="gptq"))
    rounded = round_weights(quantizer.folded, plan.quantize, gathered(quantizer, x))
    assert quantizer.compress(plan) == quantize(quantizer.folded, plan.quantize, rounded)
    mended = run(quantizer.compress(plan, correct=True), x) - run(graph, x)
    assert np.abs(mended.mean(0)).max() < 0.5 * np.abs((run(quantizer.compress(plan), x) - run(graph, x)).mean(0)).max()


def test_blocks_of_a_row_have_scales_of_their_own() -> None:
    graph, x = network()
    quantizer = Quantizer(graph, x)
    plan = quantizer.plan({"fc": Precision(4, 0, block=4, rounding="gptq")})
    assert len(plan.quantize["fc.weight"].scale) == 16 * 2
    (found,) = round_weights(quantizer.folded, plan.quantize, gathered(quantizer, x)).values()
    graph = quantizer.compress(plan)
    stored = next(w for name, w in graph.weights.items() if name.endswith(".int"))
    np.testing.assert_array_equal(stored.reshape(found.shape), found)


def test_without_gptq_nothing_is_gathered() -> None:
    graph, x = network()
    plan = Quantizer(graph, x).plan(Precision(4, 0))
    assert round_weights(graph, plan.quantize, Statistics(graph, ("fc",), x[:0])) == {}


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [3, 4, 8])
def test_scales_of_least_error_lose_less_than_those_of_the_range(bits: int, symmetric: bool) -> None:
    weight = np.random.default_rng(0).standard_t(4, size=(6, 5, 3, 3)).astype(np.float32) + (not symmetric)
    lost = []
    for method in ("minmax", "mse"):
        how = weight_scales(weight, 0, Precision(bits, 0, method, symmetric=symmetric))
        whole = integers(weight, how).astype(np.float64)
        scale, zero = (np.reshape(part, (6, 1, 1, 1)) for part in (how.scale, how.zero_point))
        lost.append(np.square((whole - zero) * scale - weight).sum(axis=(1, 2, 3)))
        assert symmetric == (not any(how.zero_point))
    assert (lost[1] <= lost[0] * (1 + 1e-6)).all() and (bits == 8 or lost[1].sum() < lost[0].sum())
