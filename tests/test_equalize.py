"""Equalization keeps the function and makes ranges alike; corrected biases take the mean error away."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import msc_core as msc
from msc_core.errors import MscError
from msc_core.ir import MSCGraph
from msc_core.plan import Plan
from msc_core.tools.quantize.correct import correct_bias
from msc_core.tools.quantize.equalize import equalize, find_pairs
from msc_core.tools.quantize.insert import quantize
from msc_core.tools.quantize.precision import Precision
from msc_core.tools.quantize.quantizer import Quantizer
from msc_core.tools.quantize.run import evaluate, outputs
from tests.micro_networks import (
    NETWORKS,
    Chain,
    Concat,
    FlattenLinear,
    Inverted,
    Network,
    Residual,
    SqueezeExcite,
    randomized,
)

RNG = np.random.default_rng(0)


def slow_unless(quick: bool, network: Network):
    return pytest.param(network, marks=[] if quick else [pytest.mark.slow], id=network.name)


def imported(module: nn.Module, x: torch.Tensor) -> MSCGraph:
    return msc.from_torch(module, x, dynamic_shapes=({0: "N"},))


def computed(graph: MSCGraph, x: torch.Tensor) -> np.ndarray:
    return next(iter(outputs(graph, graph.outputs, x.numpy())))[graph.outputs[0]]


@pytest.mark.parametrize("network", [slow_unless(i % 6 == 0, n) for i, n in enumerate(NETWORKS)])
def test_the_function_stays(network: Network) -> None:
    x = network.inputs(2)
    graph = imported(network.module(), x)
    wanted, found = computed(graph, x), computed(equalize(graph), x)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


def sequence(*layers: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*layers)


CHAINS = {  # what lies between two layers, and how many pairs there are
    "relu": (sequence(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 3)), 1),
    "depthwise": (sequence(nn.Conv2d(3, 6, 1), nn.ReLU(), nn.Conv2d(6, 6, 3, groups=6), nn.Conv2d(6, 4, 1)), 2),
    "multiplied": (sequence(nn.Conv2d(3, 6, 1), nn.LeakyReLU(), nn.Conv2d(6, 12, 3, groups=6), nn.Conv2d(12, 4, 1)), 2),
    "flattened": (sequence(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.MaxPool2d(3), nn.Flatten(), nn.Linear(24, 5)), 1),
    "linear": (sequence(nn.Flatten(), nn.Linear(192, 9), nn.ReLU(), nn.Linear(9, 5)), 1),
    "transposed": (sequence(nn.ConvTranspose2d(3, 6, 2), nn.ConvTranspose2d(6, 4, 2), nn.Conv2d(4, 2, 1)), 2),
    "rows": (sequence(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 5)), 1),
    # these look alike and are not: a width that is the channels, half the channels, a bounded ReLU, mixed rows
    "width": (sequence(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Linear(8, 5)), 0),
    "grouped": (sequence(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 3, groups=2)), 0),
    "relu6": (sequence(nn.Conv2d(3, 6, 3), nn.ReLU6(), nn.Conv2d(6, 4, 3)), 0),
    "rows flattened": (sequence(nn.Linear(8, 6), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)), 0),
    "columns": (sequence(nn.Conv2d(3, 8, 3, padding=1), nn.Flatten(2), nn.Linear(64, 5)), 0),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_both_sides_have_the_same_range(name: str) -> None:
    make, pairs = CHAINS[name]
    torch.manual_seed(0)
    x, module = torch.randn(2, 3, 8, 8), make().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(torch.rand(len(parameter), *[1] * (parameter.dim() - 1)) * 9 + 0.1)
    graph = imported(module, x)
    found = equalize(graph)
    assert len(find_pairs(found)) == pairs
    for pair in find_pairs(found):
        made, read = (np.abs(found.weights[n.inputs[1]]) for n in (pair.first, pair.second))
        out = 1 if pair.first.op.endswith("transpose") else 0
        one = made.max(axis=tuple(i for i in range(made.ndim) if i != out))
        two = read.max(axis=tuple(i for i in range(read.ndim) if i != pair.axis)).reshape(len(one), -1).max(axis=1)
        np.testing.assert_allclose(one, two, rtol=1e-2)
    wanted = computed(graph, x)
    np.testing.assert_allclose(computed(found, x), wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


def test_dead_channels_are_left_alone() -> None:
    graph = imported(randomized(Chain()), torch.zeros(2, 3, 8, 8))
    dead = {name: array.copy() for name, array in graph.weights.items()}
    dead["a.weight"][1] = 0
    dead["b.weight"][:, 2] = 0
    found = equalize(graph.replace(weights=dead))
    assert all(np.isfinite(array).all() for array in found.weights.values())
    assert not found.weights["a.weight"][1].any() and found.weights["a.weight"][2].any()


def test_one_scale_for_all_channels_is_better_after_it() -> None:
    torch.manual_seed(1)
    module, x = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 3)).eval(), torch.randn(64, 3, 8, 8)
    with torch.no_grad():
        module[0].weight.mul_(torch.logspace(-2, 2, 16)[:, None, None, None])
        module[2].weight.div_(torch.logspace(-2, 2, 16)[None, :, None, None])
    graph = imported(module, x)

    def error(graph: MSCGraph) -> float:
        quantizer = Quantizer(graph, x.numpy())
        found = quantizer.compress(quantizer.plan(Precision(per_channel=False)))
        return float(np.square(computed(found, x) - computed(graph, x)).mean())

    assert error(equalize(graph)) < error(graph) / 10


# Bias correction


@pytest.mark.parametrize("network", [Chain, Residual, Inverted, Concat, SqueezeExcite, FlattenLinear])
@pytest.mark.parametrize(("precision", "left"), [(Precision(4, 0), 0.01), (Precision(4, 8), 0.3)])
def test_corrected_layers_have_the_mean_of_float_ones(
    network: type[nn.Module], precision: Precision, left: float
) -> None:
    """Exactly where biases are floats; up to half a step of the integer sum where they are not."""
    x = torch.from_numpy(RNG.normal(size=(60, 3, 8, 8)).astype(np.float32))
    quantizer = Quantizer(imported(randomized(network()), x[:2]), x.numpy())
    how = quantizer.plan(precision).quantize
    names = tuple(n.outputs[0] for n in quantizer.folded.nodes if n.name in quantizer.layers)

    def means(graph: MSCGraph) -> list[np.ndarray]:
        found = evaluate(graph.replace(outputs=names), {graph.inputs[0]: x.numpy()})
        return [value.mean(axis=(0, *range(2, value.ndim))) for value in found.values()]

    corrected = correct_bias(quantizer.folded, how, x.numpy())
    wanted = means(quantizer.folded)
    errors = [
        sum(np.abs(a - b).mean() / np.abs(b).mean() for a, b in zip(means(quantize(graph, how)), wanted, strict=True))
        for graph in (quantizer.folded, corrected)
    ]
    assert errors[1] < left * errors[0]


def test_a_layer_without_a_bias_gets_one_and_needs_data() -> None:
    module = nn.Sequential(nn.Conv2d(3, 6, 3, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(216, 5, bias=False))
    x = torch.randn(20, 3, 8, 8)
    graph = imported(module.eval(), x)
    quantizer = Quantizer(graph, x.numpy())
    plan = quantizer.plan(Precision(3, 8))
    found = quantizer.compress(plan, correct=True)
    assert all(len(n.inputs) == 3 for n in found.nodes if n.op in ("conv2d", "linear"))
    assert np.abs((computed(found, x) - computed(graph, x)).mean(0)).max() < 1e-2
    assert quantizer.compress(plan) == msc.apply(plan, graph)
    with pytest.raises(MscError, match="needs at least one input"):
        Quantizer(graph, x[:0].numpy()).compress(plan, correct=True)
    assert quantizer.compress(Plan(graph.fingerprint), correct=True) == quantizer.folded
