"""Costs that were counted by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from experiments.models import MLP, VGG, MobileNet, ResNet20
from msc_core import from_torch
from msc_core.cost import Cost, cost, macs_by_node
from msc_core.infer import bind_symbols


@pytest.mark.parametrize(
    ("module", "shape", "macs", "params"),
    [
        (nn.Linear(6, 5), (1, 6), 30, 35),
        (nn.Linear(6, 5, bias=False), (3, 6), 90, 30),
        (nn.Linear(6, 5), (2, 3, 6), 180, 35),
        (nn.Conv2d(3, 8, 3), (1, 3, 10, 10), 8 * 8 * 8 * 27, 8 * 27 + 8),
        (nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), (1, 3, 10, 10), 8 * 5 * 5 * 27, 8 * 27),
        (nn.Conv2d(4, 8, 3, padding=1, groups=2), (1, 4, 5, 5), 8 * 25 * 2 * 9, 8 * 18 + 8),
        (nn.Conv2d(4, 4, (1, 3), groups=4, bias=False), (1, 4, 5, 5), 4 * 5 * 3 * 3, 12),
        (nn.BatchNorm2d(4), (1, 4, 5, 5), 0, 8),
        (nn.ReLU(), (2, 3), 0, 0),
    ],
)
def test_one_layer(module, shape, macs, params):
    found = cost(from_torch(module, torch.ones(shape)))
    assert (found.macs, found.params) == (macs, params)


def test_running_statistics_are_bytes_but_no_parameters():
    assert cost(from_torch(nn.BatchNorm2d(4), torch.ones(1, 4, 2, 2))) == Cost(macs=0, params=8, bytes=64)


@pytest.mark.parametrize("model", [ResNet20, MobileNet, VGG, MLP])
def test_parameters_are_torchs(model):
    module = model()
    assert cost(from_torch(module, torch.ones(1, 1, 28, 28))).params == sum(p.numel() for p in module.parameters())


def test_resnet20_is_as_published():
    found = cost(from_torch(ResNet20(), torch.ones(1, 1, 28, 28)))
    stem, wide = 28 * 28 * 16 * 9, 28 * 28 * 16 * 16 * 9
    stage1 = 6 * wide
    stage2 = 14 * 14 * 32 * 9 * (16 + 5 * 32) + 14 * 14 * 32 * 16
    stage3 = 7 * 7 * 64 * 9 * (32 + 5 * 64) + 7 * 7 * 64 * 32
    assert found.macs == stem + stage1 + stage2 + stage3 + 640 == pytest.approx(31.0e6, rel=2e-3)
    assert found.params == pytest.approx(272e3, rel=5e-3)


def test_a_symbolic_batch_counts_as_one_sample():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 6 * 6, 2))
    open_batch = from_torch(module, torch.ones(2, 3, 8, 8), dynamic_shapes=({0: "N"},))
    one = cost(from_torch(module, torch.ones(1, 3, 8, 8)))
    assert cost(open_batch) == one
    assert cost(bind_symbols(open_batch, N=1)) == one
    assert cost(bind_symbols(open_batch, N=5)).macs == 5 * one.macs


def test_macs_by_node_names_the_layers():
    module = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    assert macs_by_node(from_torch(module, torch.ones(1, 6))) == {"0": 30, "2": 10}


def test_a_tied_weight_counts_once_and_works_twice():
    layer = nn.Linear(4, 4, bias=False)
    assert cost(from_torch(nn.Sequential(layer, layer), torch.ones(1, 4))) == Cost(macs=32, params=16, bytes=64)
