"""Rewrites keep what a graph computes; torch, run on the graph, is the oracle."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from experiments import models
from msc_core import MSCGraph, Node, Tensor, build, from_torch, to_torch
from msc_core.infer import infer
from msc_core.rewrite import drop_identities, flush_denormals, fold_batch_norm
from tests.micro_networks import randomized


def same(before: MSCGraph, after: MSCGraph, *inputs: torch.Tensor) -> None:
    """Both graphs are consistent, have the same inputs and outputs, and compute the same to 1e-5."""
    assert infer(after) == after
    assert (after.inputs, after.outputs) == (before.inputs, before.outputs)
    with torch.no_grad():
        expected, found = (to_torch(graph).eval()(*inputs) for graph in (before, after))
    for e, f in zip(*(x if isinstance(x, tuple) else (x,) for x in (expected, found)), strict=True):
        assert (e - f).abs().max() <= 1e-5 * e.abs().max().clamp(min=1)


def ops(graph: MSCGraph) -> list[str]:
    return [node.op for node in graph.nodes]


class Tied(nn.Module):
    """One convolution twice, with a norm behind the first use only."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(torch.relu(self.bn(self.conv(x))))


class Branch(nn.Module):
    """A convolution that a norm and an addition read."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        return y + self.bn(y)


class BothOut(Branch):
    """A convolution whose output is a graph output too."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.conv(x)
        return y, self.bn(y)


class Norm1d(nn.BatchNorm1d):
    """A norm with statistics that are not 0 and 1."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        for tensor in (self.weight, self.bias, self.running_mean, self.running_var):
            nn.init.uniform_(tensor, 0.5, 1.5)


class Sequence(nn.Module):
    """A linear layer on (n, t, c) and a norm over t, which is not the layer's output axis."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.bn = nn.Linear(6, 5), Norm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.bn(self.fc(x))


FOLDED = {
    "without bias": (models.conv_bn(3, 5), (2, 3, 6, 6)),
    "with bias": (nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5)), (2, 3, 6, 6)),
    "grouped": (models.conv_bn(6, 4, groups=2), (2, 6, 6, 6)),
    "depthwise": (models.conv_bn(6, 6, groups=6), (2, 6, 6, 6)),
    "linear": (nn.Sequential(nn.Linear(6, 5), Norm1d(5)), (4, 6)),
    "tied": (Tied(), (2, 3, 6, 6)),
    "resnet20": (models.ResNet20(8), (2, 1, 28, 28)),
    "mobilenet": (models.MobileNet(8), (2, 1, 28, 28)),
}


@pytest.mark.parametrize("name", FOLDED)
def test_every_norm_behind_a_layer_folds(name):
    module, shape = FOLDED[name]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    graph = from_torch(randomized(module), x)
    folded = fold_batch_norm(graph)
    assert "batch_norm" not in ops(folded)
    assert [n.name for n in folded.nodes] == [n.name for n in graph.nodes if n.op != "batch_norm"]
    same(graph, folded, x)
    assert fold_batch_norm(folded) is folded


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (Branch(), (2, 3, 6, 6)),
        (BothOut(), (2, 3, 6, 6)),
        (Sequence(), (2, 3, 6)),
        (nn.Sequential(nn.BatchNorm2d(3), nn.ReLU()), (2, 3, 6, 6)),
        (nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU(), nn.BatchNorm2d(3)), (2, 3, 6, 6)),
        (models.MLP(8), (2, 1, 28, 28)),
    ],
)
def test_what_cannot_fold_stays_as_it_is(module, shape):
    graph = from_torch(randomized(module), torch.randn(shape))
    assert fold_batch_norm(graph) is graph


def test_names_of_weights_stay_and_a_tied_weight_is_copied():
    graph = from_torch(randomized(models.conv_bn(3, 5)), torch.randn(1, 3, 6, 6))
    assert list(fold_batch_norm(graph).weights) == ["conv.weight", "conv.bias"]
    graph = from_torch(randomized(Tied()), torch.randn(1, 3, 6, 6))
    folded = fold_batch_norm(graph)
    for name in ("conv.weight", "conv.bias"):
        np.testing.assert_array_equal(folded.weights[name], graph.weights[name])
    assert len(folded.weights) == 4


def test_a_symbolic_batch_stays():
    graph = from_torch(randomized(models.ResNet20(8)), torch.randn(2, 1, 28, 28), dynamic_shapes=({0: "N"},))
    assert fold_batch_norm(graph).tensors[graph.outputs[0]].shape == ("N", 10)


def test_dropout_is_dropped_inside_and_kept_where_it_names_an_output():
    x = torch.randn(2, 6)
    module = nn.Sequential(nn.Dropout(), nn.Linear(6, 5), nn.Dropout(), nn.Dropout(), nn.ReLU(), nn.Dropout()).eval()
    graph = from_torch(module, x)
    dropped = drop_identities(graph)
    assert ops(dropped) == ["linear", "relu", "dropout"]
    same(graph, dropped, x)
    assert drop_identities(dropped) is dropped


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_weights_below_the_smallest_normal_are_flushed(dtype):
    import ml_dtypes

    smallest = float(ml_dtypes.finfo(dtype).smallest_normal)
    values = np.asarray([0, 1, -1, smallest, -smallest, smallest / 2, -smallest / 4], np.dtype(dtype))
    tensors = {name: Tensor(name, (7,), dtype) for name in "xwy"}
    graph = MSCGraph("g", (Node("n", "add", ("x", "w"), ("y",)),), ("x",), ("y",), {"w": values}, tensors)
    flushed = flush_denormals(graph)
    expected = values if dtype == "float16" else np.where(np.arange(7) < 5, values, np.zeros_like(values))
    assert flushed.weights["w"].tobytes() == expected.tobytes()
    assert flush_denormals(flushed) is flushed


@pytest.mark.parametrize("target", ["tvm", "tvm:stock"])
def test_tvm_builds_with_denormals_flushed(target):
    x = torch.full((1, 3, 4, 4), 1e20)
    module = nn.Conv2d(3, 8, 3, bias=False)
    with torch.no_grad():
        module.weight[:4] *= 1e-39
        assert module(x)[:, :4].abs().min() > 0
        graph = from_torch(module, x)
    with build(graph, target) as runner:
        (found,) = runner.run({graph.inputs[0]: x.numpy()}).values()
    assert (found[:, :4] == 0).all() and (found[:, 4:] != 0).all()
