"""The surgery zoo: a pruned network computes what the whole one computes with its channels masked, or is refused.

Then it is pruned again, saved and loaded, exported to ONNX and run, and differentiated. The slow half is any batch and
more ratios.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

from msc_core.channels import Channels
from msc_core.codegen.onnx import to_onnx
from msc_core.codegen.torch import to_torch
from msc_core.errors import InvalidPlan
from msc_core.frontends.torch import from_torch
from msc_core.ir import MSCGraph
from msc_core.tools.prune import Pruner, prune
from tests.micro_networks import NETWORKS, Network
from tests.micro_networks.masking import masked, survivors

pytestmark = pytest.mark.filterwarnings("ignore:The tensor attributes")  # of recurrent layers, by torch.export
RATIOS = [0.5, *(pytest.param(ratio, marks=pytest.mark.slow) for ratio in (0.8, 0.3, 0.01))]  # of the channels stay


@dataclass(frozen=True)
class Subject:
    """A network of the table, as a module and as a graph."""

    network: Network
    module: nn.Module
    graph: MSCGraph
    x: torch.Tensor


@pytest.fixture(
    scope="module",
    params=[
        *(pytest.param((n, None), id=n.name) for n in NETWORKS),
        *(pytest.param((n, ({0: "N"},)), id=f"{n.name} of any batch", marks=pytest.mark.slow) for n in NETWORKS),
    ],
)
def subject(request: pytest.FixtureRequest) -> Subject:
    network, shapes = request.param
    module, x = network.module(), network.inputs()
    return Subject(network, module, from_torch(module, x, dynamic_shapes=shapes), x)


def at_random(seed: int) -> Callable[[MSCGraph, torch.Tensor, float], MSCGraph]:
    """Prunes a graph to that part of each group, at least one channel."""

    def choose(graph: MSCGraph, x: torch.Tensor, ratio: float) -> MSCGraph:
        channels, rng = Channels(graph, divisor=1), np.random.default_rng(seed)
        kept = {g.name: rng.permutation(g.size)[:k] for g, k in counts(channels, ratio)}
        return prune(graph, {name: np.sort(indices) for name, indices in kept.items()}, channels)

    return choose


def by(criterion: str) -> Callable[[MSCGraph, torch.Tensor, float], MSCGraph]:
    """The same, with the channels that matter most."""

    def choose(graph: MSCGraph, x: torch.Tensor, ratio: float) -> MSCGraph:
        pruner = Pruner(graph, x.numpy(), divisor=1, criterion=criterion, recovery="none")
        return pruner.compress(pruner.plan({g.name: k for g, k in counts(pruner.channels, ratio)}))

    return choose


def counts(channels: Channels, ratio: float) -> list[tuple]:
    return [(g, max(1, int(ratio * g.size))) for g in channels.groups if not g.reason]


def run(module: nn.Module, x: torch.Tensor) -> np.ndarray:
    """With gradients on, without which PyTorch's encoder layers read parameters behind the back of their modules."""
    return module(x).detach().numpy()


def check(graph: MSCGraph, subject: Subject) -> np.ndarray:
    """A pruned graph computes what the module computes with those channels masked that are no longer there."""
    found = run(to_torch(graph).eval(), subject.x)
    expected = run(masked(subject.module, survivors(subject.module, graph.weights)), subject.x)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    return found


def parameters(graph: MSCGraph) -> int:
    return sum(weight.size for weight in graph.weights.values())


def check_derivatives(graph: MSCGraph, x: torch.Tensor) -> None:
    """Every parameter of the module has a finite gradient."""
    module = to_torch(graph)
    module(x).square().sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name


def test_what_can_be_pruned(subject: Subject) -> None:
    groups = Channels(subject.graph, divisor=1).groups
    assert tuple(sorted(g.size for g in groups if not g.reason and g.size > 1)) == subject.network.prunable
    assert not subject.network.refused or any(subject.network.refused in g.reason for g in groups)


def test_nothing_happens_when_a_group_would_lose_all_its_channels(subject: Subject) -> None:
    channels, before = Channels(subject.graph, divisor=1), subject.graph.replace()
    for group in channels.groups:
        if not group.reason:
            with pytest.raises(InvalidPlan, match="removes every position"):
                prune(subject.graph, {group.name: []}, channels)
    assert subject.graph == before


@pytest.mark.parametrize("ratio", RATIOS)
def test_twice_at_random_then_stored_exported_and_differentiated(subject: Subject, ratio: float, tmp_path) -> None:
    once = at_random(0)(subject.graph, subject.x, ratio)
    assert parameters(once) < parameters(subject.graph)
    check(once, subject)
    twice = at_random(1)(once, subject.x, 0.7)
    expected = check(twice, subject)
    twice.save(tmp_path)
    loaded = MSCGraph.load(tmp_path)
    assert loaded == twice and loaded.fingerprint == twice.fingerprint
    session = onnxruntime.InferenceSession(to_onnx(loaded).SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: subject.x.numpy()})[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    check_derivatives(loaded, subject.x)


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("criterion", ["l1", "obs"])
def test_by_importance(subject: Subject, criterion: str, ratio: float) -> None:
    smaller = by(criterion)(subject.graph, subject.x, ratio)
    assert parameters(smaller) < parameters(subject.graph)
    check(smaller, subject)


@pytest.mark.parametrize("name", ["SelfConcat", "ResNet18", "FusedQkv"])
def test_again_and_again_down_to_one_channel_of_each_group(name: str) -> None:
    network = next(n for n in NETWORKS if n.name == name)
    module, x = network.module(), network.inputs()
    graph = from_torch(module, x, dynamic_shapes=({0: "N"},))
    for seed in range(20):
        graph = at_random(seed)(graph, x, 0.8)
        if seed % 4 == 1:
            check(graph, Subject(network, module, graph, x))
    assert all(group.reason for group in Channels(graph, divisor=1).groups)  # one channel is no group
    assert min(min(weight.shape) for weight in graph.weights.values()) == 1
