"""Channel groups and surgery: a pruned graph computes what the same graph computes with those channels masked."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from msc_core.channels import Channels, channel_groups
from msc_core.codegen.torch import to_torch
from msc_core.cost import cost
from msc_core.errors import InvalidPlan
from msc_core.frontends.torch import from_torch
from msc_core.ir import MSCGraph
from msc_core.tools.prune import CostModel, prune
from tests.masked_graph import masked
from tests.micro_networks import MICRO_NETWORKS, SHAPES, ChannelMean, ChannelSoftmax, RandomNet, TiedWeights, randomized


def imported(module: torch.nn.Module, shape: tuple[int, ...] = (3, 8, 8)) -> tuple[MSCGraph, torch.Tensor]:
    """The graph with a symbolic batch, and an input batch of three."""
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(1))
    return from_torch(randomized(module), x, dynamic_shapes=({0: "N"},)), x


def random_kept(channels: Channels, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """At least one channel of each prunable group, drawn at random."""
    return {
        g.name: np.sort(rng.permutation(g.size)[: int(rng.integers(1, g.size + 1))])
        for g in channels.groups
        if not g.reason
    }


def run(graph: MSCGraph, x: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        return to_torch(graph).eval()(x).numpy()


def check_rounds(graph: MSCGraph, x: torch.Tensor, rng: np.random.Generator, rounds: int) -> None:
    for _ in range(rounds):
        channels = Channels(graph, divisor=1)
        kept = random_kept(channels, rng)
        pruned = prune(graph, kept, channels)
        np.testing.assert_allclose(run(pruned, x), run(masked(graph, kept, channels), x), rtol=1e-5, atol=1e-5)
        counts = {name: len(indices) for name, indices in kept.items()}
        assert CostModel(graph, channels.groups).cost(counts) == cost(pruned)
        graph = pruned


@pytest.mark.parametrize("network", MICRO_NETWORKS, ids=lambda n: n.__name__)
@pytest.mark.parametrize("seed", range(3))
def test_pruned_equals_masked_six_rounds_in_a_row(network: type[torch.nn.Module], seed: int) -> None:
    graph, x = imported(network(), SHAPES.get(network.__name__, (3, 8, 8)))
    assert any(not g.reason for g in channel_groups(graph))
    check_rounds(graph, x, np.random.default_rng(seed), rounds=6)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_pruned_equals_masked_on_random_networks(seed: int) -> None:
    torch.manual_seed(seed)
    graph, x = imported(RandomNet(seed))
    check_rounds(graph, x, np.random.default_rng(seed), rounds=2)


def test_groups_of_resnet20() -> None:
    from experiments.models import resnet20

    graph, _ = imported(resnet20(), (1, 28, 28))
    groups = {g.name: g for g in channel_groups(graph)}
    assert len(groups) == 13
    assert groups["stem.body.conv"].size == 16
    assert {"blocks.0.body2.conv", "blocks.1.body2.conv", "blocks.2.body2.conv"} < set(groups["stem.body.conv"].nodes)
    assert groups["blocks.6.body2.conv"].counts == (8, 16, 24, 32, 40, 48, 56, 64)
    assert groups["head.fc"].reason == "reaches the graph output 'head.fc'"
    assert groups["head.fc"].counts == (10,)


def test_grouped_convolution_has_a_group_of_groups_and_one_of_positions() -> None:
    from tests.micro_networks import Grouped

    graph, x = imported(Grouped())
    channels = Channels(graph, divisor=1)
    sizes = sorted(g.size for g in channels.groups if not g.reason)
    assert sizes == [2, 3, 4]  # outputs of a group, inputs of a group, groups
    whole = next(g for g in channels.groups if g.size == 4 and not g.reason)
    pruned = prune(graph, {whole.name: [0, 3]}, channels)
    assert pruned.node("b").attrs["groups"] == 2
    assert run(pruned, x).shape == (3, 4)


@pytest.mark.parametrize(("network", "node"), [(ChannelSoftmax, "softmax"), (ChannelMean, "mean")])
def test_axes_that_are_normalized_or_reduced_are_pinned_with_the_node_named(
    network: type[torch.nn.Module], node: str
) -> None:
    graph, _ = imported(network())
    groups = {g.name: g for g in channel_groups(graph, divisor=1)}
    assert not groups["a"].reason
    assert node in groups["b"].reason


def test_tied_weights_stay_one_weight() -> None:
    graph, _ = imported(TiedWeights())
    assert "c.weight" not in graph.weights
    channels = Channels(graph, divisor=1)
    pruned = prune(graph, random_kept(channels, np.random.default_rng(0)), channels)
    assert pruned.node("b").inputs[1] == pruned.node("c").inputs[1] == "b.weight"


def test_counts_are_multiples_of_the_divisor_and_never_zero() -> None:
    graph, _ = imported(RandomNet(3))
    for divisor in (1, 4, 8, 64):
        for group in channel_groups(graph, divisor):
            assert group.counts[-1] == group.size
            assert all(c > 0 and (c % group.divisor == 0 or c == group.size) for c in group.counts)


def test_removing_every_channel_is_an_error() -> None:
    graph, _ = imported(RandomNet(3))
    channels = Channels(graph)
    name = next(g.name for g in channels.groups if not g.reason)
    with pytest.raises(InvalidPlan, match="removes every position"):
        prune(graph, {name: []}, channels)


def test_a_large_network_is_analysed_quickly_enough_to_sit_in_a_loop() -> None:
    from msc_core.ir import Node, Tensor

    width, depth = 2048, 40
    rng = np.random.default_rng(0)
    nodes, weights, tensors, last = [], {}, {"x": Tensor("x", ("N", 8))}, "x"
    for i in range(depth):
        weights[f"w{i}"] = rng.normal(size=(width, 8 if i == 0 else width)).astype(np.float32)[
            :, : 8 if i == 0 else width
        ]
        tensors[f"w{i}"] = Tensor(f"w{i}", weights[f"w{i}"].shape)
        nodes.append(Node(f"l{i}", "linear", (last, f"w{i}"), (f"l{i}",)))
        last = f"l{i}"
        tensors[last] = Tensor(last, ("N", width))
    graph = MSCGraph("wide", tuple(nodes), ("x",), (last,), weights, tensors)
    assert sum(g.size for g in channel_groups(graph)) == width * depth
