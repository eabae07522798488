"""The surgery zoo: a pruned network computes what the whole one computes with its channels masked, or is refused.

Then it is pruned again, saved and loaded, exported to ONNX and run, and differentiated.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

from msc_core.channels import Channels
from msc_core.codegen.onnx import to_onnx
from msc_core.codegen.torch import to_torch
from msc_core.frontends.torch import from_torch
from msc_core.ir import MSCGraph
from msc_core.tools.prune import Pruner, prune
from tests.micro_networks import NETWORKS, Network
from tests.micro_networks.masking import masked, survivors

BY_NAME = {network.name: network for network in NETWORKS}
RATIOS = (0.75, 0.5, 0.25)  # of the channels stay
CRITERIA = ("random", "l1", "obs")
NOT_YET: dict[str, str] = {}  # "network" or "network-criterion" -> what is not done yet


def cases(*criteria: str) -> list[pytest.param]:
    """Every network with each way of choosing channels."""
    found = []
    for network in NETWORKS:
        for criterion in criteria:
            reason = NOT_YET.get(network.name) or NOT_YET.get(f"{network.name}-{criterion}")
            marks = [pytest.mark.xfail(reason=reason)] if reason else []
            found.append(pytest.param(network, criterion, marks=marks, id=f"{network.name}-{criterion}"))
    return found


@cache
def imported(name: str) -> tuple[nn.Module, MSCGraph, torch.Tensor]:
    """The module, its graph with a symbolic batch, and inputs."""
    module, x = BY_NAME[name].module(), BY_NAME[name].inputs()
    return module, from_torch(module, x, dynamic_shapes=({0: "N"},)), x


def pruned(graph: MSCGraph, network: Network, criterion: str, ratio: float, seed: int = 0) -> MSCGraph:
    """That part of each group stays, at least one channel."""
    channels = Channels(graph, divisor=1)
    counts = {g.name: max(1, round(ratio * g.size)) for g in channels.groups if not g.reason}
    if criterion == "random":
        rng, sizes = np.random.default_rng(seed), {g.name: g.size for g in channels.groups}
        return prune(graph, {n: np.sort(rng.permutation(sizes[n])[:k]) for n, k in counts.items()}, channels)
    pruner = Pruner(graph, network.inputs(12, seed=2).numpy(), divisor=1, criterion=criterion, recovery=False)
    return pruner.compress(pruner.plan(counts))


def run(module: nn.Module, x: torch.Tensor) -> np.ndarray:
    """With gradients on, without which PyTorch's encoder layers read parameters behind the back of their modules."""
    return module(x).detach().numpy()


def check(graph: MSCGraph, module: nn.Module, x: torch.Tensor) -> np.ndarray:
    """A pruned graph computes what the module computes with those channels masked that are no longer there."""
    found = run(to_torch(graph).eval(), x)
    expected = run(masked(module, survivors(module, graph.weights)), x)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    return found


@pytest.mark.parametrize("network", NETWORKS, ids=lambda n: n.name)
def test_what_can_be_pruned(network: Network) -> None:
    _, graph, _ = imported(network.name)
    groups = Channels(graph, divisor=1).groups
    assert tuple(sorted(g.size for g in groups if not g.reason and g.size > 1)) == network.prunable
    assert not network.refused or any(network.refused in g.reason for g in groups)


@pytest.mark.parametrize(("network", "criterion"), cases(*CRITERIA))
def test_pruned_equals_masked_twice_in_a_row(network: Network, criterion: str) -> None:
    module, graph, x = imported(network.name)
    for seed in range(2):
        smaller = pruned(graph, network, criterion, 0.6, seed)
        assert seed or sum(w.size for w in smaller.weights.values()) < sum(w.size for w in graph.weights.values())
        check(smaller, module, x)
        graph = smaller


@pytest.mark.parametrize("network", NETWORKS, ids=lambda n: n.name)
def test_pruned_is_stored_exported_and_differentiated(network: Network, tmp_path) -> None:
    module, graph, x = imported(network.name)
    graph = pruned(graph, network, "random", 0.5)
    expected = check(graph, module, x)
    graph.save(tmp_path)
    loaded = MSCGraph.load(tmp_path)
    assert loaded == graph and loaded.fingerprint == graph.fingerprint
    session = onnxruntime.InferenceSession(to_onnx(loaded).SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    trained = to_torch(loaded)
    trained(x).square().sum().backward()
    for name, parameter in trained.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name
