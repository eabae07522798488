"""Importance criteria against loops in NumPy; gradients against finite differences and plain torch."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import msc_core as msc
from msc_core.channels import ChannelGroup, Channels
from msc_core.codegen.torch import to_torch
from msc_core.errors import MscError
from msc_core.tools.prune import Pruner
from msc_core.tools.prune.gradients import Gradients
from msc_core.tools.prune.importance import CRITERIA, MINIBATCH, WITHOUT_DATA
from tests.micro_networks import NETWORKS as ZOO
from tests.micro_networks import (
    Chain,
    Concat,
    FlattenLinear,
    Grouped,
    Inverted,
    Network,
    Residual,
    SelfConcat,
    SqueezeExcite,
    TiedWeights,
    randomized,
)


class Attention(nn.Module):
    """Four heads of width three over eight tokens: groups on composite axes, and a residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Linear(24, 10), nn.LayerNorm(10)
        self.q, self.k, self.v, self.o = nn.Linear(10, 12), nn.Linear(10, 12), nn.Linear(10, 12), nn.Linear(12, 10)
        self.fc = nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x.transpose(1, 2).flatten(2))
        y = self.norm(x)
        q, k, v = (layer(y).unflatten(-1, (4, 3)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.fc((x + self.o(y)).mean(1))


NETWORKS = (
    Chain, Concat, FlattenLinear, Grouped, Inverted, Residual, SelfConcat, SqueezeExcite, TiedWeights, Attention,
)  # fmt: skip


@functools.cache
def graph_of(network: type[nn.Module]) -> msc.MSCGraph:
    torch.manual_seed(0)
    return msc.from_torch(randomized(network()), torch.zeros(2, 3, 8, 8), dynamic_shapes=({0: "N"},))


def imported(network: type[nn.Module], samples: int = 40) -> tuple[msc.MSCGraph, np.ndarray, np.ndarray]:
    """A graph with calibration inputs and labels."""
    graph, rng = graph_of(network), np.random.default_rng(0)
    x = rng.normal(size=(samples, 3, 8, 8)).astype(np.float32)
    classes = graph.tensors[graph.outputs[0]].shape[-1]
    return graph, x, rng.integers(0, classes, samples)


def groups_of(graph: msc.MSCGraph) -> list[ChannelGroup]:
    return [g for g in Channels(graph, divisor=1).groups if not g.reason]


def filters(graph: msc.MSCGraph, group: ChannelGroup, channel: int) -> np.ndarray:
    """All that produces one channel, gathered position by position."""
    seen, parts = set(), []
    for m in group.members:
        w = graph.weights[m.tensor].astype(np.float64)
        if m.contracted or w.size == w.shape[m.axis] or (m.tensor, m.axis, tuple(m.index)) in seen:
            continue
        seen.add((m.tensor, m.axis, tuple(m.index)))
        parts += [np.take(w, p, axis=m.axis).ravel() for p in range(len(m.index)) if m.index[p] == channel]
    return np.concatenate(parts)


def expected_scores(graph: msc.MSCGraph, group: ChannelGroup, criterion: str) -> list[float]:
    rows = [filters(graph, group, c) for c in range(group.size)]
    energy = [float((row**2).sum()) for row in rows]
    return {
        "l1": [float(np.abs(row).sum()) for row in rows],
        "l2": energy,
        "fpgm": [sum(float(np.linalg.norm(row - other)) for other in rows) for row in rows],
        "lamp": [e / sum(other for other in energy if other >= e) for e in energy],
    }[criterion]


@pytest.mark.parametrize("network", NETWORKS, ids=lambda n: n.__name__)
@pytest.mark.parametrize("criterion", ["l1", "l2", "fpgm", "lamp"])
def test_weight_criteria_are_their_definitions(network: type[nn.Module], criterion: str) -> None:
    graph, x, _ = imported(network, samples=0)
    pruner = Pruner(graph, x, divisor=1, criterion=criterion)
    for group in pruner.groups:
        scores = np.asarray(expected_scores(graph, group, criterion))
        ranking = pruner.ranking(group.name)
        np.testing.assert_allclose(-np.diff(ranking.loss), scores[ranking.order], rtol=1e-6)
        assert (np.diff(scores[ranking.order]) <= 1e-9 * scores.max()).all()


def test_norm_scales_are_averaged_over_the_norms_that_a_channel_passes() -> None:
    graph, x, _ = imported(Inverted, samples=0)
    pruner = Pruner(graph, x, divisor=1, criterion="bn_scale")
    expected = (np.abs(graph.weights["n1.weight"]) + np.abs(graph.weights["n2.weight"])) / 2
    ranking = pruner.ranking("expand")
    np.testing.assert_allclose(-np.diff(ranking.loss), expected[ranking.order], rtol=1e-6)


def test_norm_scales_where_there_is_no_norm_are_refused() -> None:
    graph, x, _ = imported(Residual, samples=0)
    with pytest.raises(MscError, match="'bn_scale' ranks by the scales of norms, and group 'stem' passes none"):
        Pruner(graph, x, criterion="bn_scale").order("stem")


def double_loss(graph: msc.MSCGraph, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The cross entropy of each sample, in double precision."""
    with torch.no_grad():
        logits = to_torch(graph).double().eval()(torch.from_numpy(x).double())
        return F.cross_entropy(logits, torch.from_numpy(y), reduction="none").numpy()


def faded(graph: msc.MSCGraph, group: ChannelGroup, channel: int, gate: float) -> msc.MSCGraph:
    """The graph in which every layer that reads the channel reads it times `gate`."""
    weights = {name: w.astype(np.float64) for name, w in graph.weights.items()}
    tensors = {
        n: t.__class__(n, t.shape, "float64" if t.dtype == "float32" else t.dtype) for n, t in graph.tensors.items()
    }
    read = [m for m in group.members if m.contracted] or group.members  # q and k only meet each other
    for tensor, axis, index in {(m.tensor, m.axis, tuple(m.index)) for m in read}:
        scale = np.where(np.asarray(index) == channel, gate, 1.0)
        weights[tensor] = weights[tensor] * scale.reshape([-1 if i == axis else 1 for i in range(weights[tensor].ndim)])
    return graph.replace(weights=weights, tensors=tensors)


@pytest.mark.parametrize("network", NETWORKS, ids=lambda n: n.__name__)
def test_slopes_are_finite_differences_of_each_samples_loss(network: type[nn.Module]) -> None:
    graph, x, y = imported(network, samples=5)
    pruner = Pruner(graph, x, divisor=1, criterion="fisher", labels=y)
    for group in pruner.groups:
        expected = np.empty(group.size)
        for channel in range(group.size):
            above, below = (double_loss(faded(graph, group, channel, 1 + h), x, y) for h in (1e-4, -1e-4))
            expected[channel] = 0.5 * (((above - below) / 2e-4) ** 2).mean()
        ranking = pruner.ranking(group.name)
        np.testing.assert_allclose(-np.diff(ranking.loss), expected[ranking.order], rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("network", [Residual, Grouped, Attention], ids=lambda n: n.__name__)
def test_taylor_squares_the_gradient_of_each_minibatch(network: type[nn.Module]) -> None:
    graph, x, y = imported(network, samples=2 * MINIBATCH)
    pruner = Pruner(graph, x, divisor=1, criterion="taylor", labels=y)
    slopes: dict[str, list[np.ndarray]] = {g.name: [] for g in pruner.groups}
    for half in (slice(0, MINIBATCH), slice(MINIBATCH, None)):
        module = to_torch(graph).eval()
        F.cross_entropy(module(torch.from_numpy(x[half])), torch.from_numpy(y[half])).backward()
        for group in pruner.groups:
            slope = np.zeros(group.size)
            for m in [m for m in group.members if m.contracted] or group.members:
                weight = module.get_parameter(m.tensor)
                product = np.moveaxis((weight * weight.grad).detach().numpy(), m.axis, 0)
                for p, channel in enumerate(m.index):
                    slope[channel] += product[p].sum() if channel >= 0 else 0
            slopes[group.name].append(slope)
    for group in pruner.groups:
        expected = np.mean(np.square(slopes[group.name]), axis=0)
        ranking = pruner.ranking(group.name)
        np.testing.assert_allclose(-np.diff(ranking.loss), expected[ranking.order], rtol=1e-3, atol=1e-9)


class Two(nn.Module):
    """Linear, relu, linear."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 10), nn.Linear(10, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x)))


def two(outputs: int, repeated: int) -> tuple[msc.MSCGraph, np.ndarray, np.ndarray]:
    """The network, one input many times over, and what its second layer reads."""
    torch.manual_seed(1)
    graph = msc.from_torch(Two(outputs).eval(), torch.zeros(2, 6), dynamic_shapes=({0: "N"},))
    x = np.repeat(np.random.default_rng(1).normal(size=(1, 6)).astype(np.float32) * 2, repeated, axis=0)
    hidden = np.maximum(x[0] @ graph.weights["a.weight"].T + graph.weights["a.bias"], 0)
    return graph, x, hidden


def test_without_labels_classes_are_drawn_as_the_network_sees_them() -> None:
    """Each row must be the slope for some class, and each class must come as often as its probability says."""
    graph, x, hidden = two(3, 256)
    logits = hidden @ graph.weights["b.weight"].T + graph.weights["b.bias"]
    probability = np.exp(logits) / np.exp(logits).sum()
    slopes = np.stack([((probability - np.eye(3)[y]) @ graph.weights["b.weight"]) * hidden for y in range(3)])
    rows = Gradients(graph, groups_of(graph), x).gates["b", "b.weight", 1]
    distances = np.abs(rows[:, None] - slopes[None]).max(axis=2)
    assert distances.min(axis=1).max() < 1e-5
    frequencies = np.bincount(distances.argmin(axis=1), minlength=3) / 256
    np.testing.assert_allclose(frequencies, probability, atol=0.08)


def test_without_labels_other_outputs_are_drawn_from_a_normal_distribution() -> None:
    graph, x, hidden = two(1, 256)
    rows = Gradients(graph, groups_of(graph), x).gates["b", "b.weight", 1]
    noise = -rows / np.where(hidden > 0, graph.weights["b.weight"][0] * hidden, 1)
    noise = noise[:, hidden > 0]
    np.testing.assert_allclose(noise, np.broadcast_to(noise[:, :1], noise.shape), rtol=1e-3, atol=1e-3)
    assert abs(noise[:, 0].mean()) < 0.2
    assert 0.85 < noise[:, 0].std() < 1.15


def test_float_labels_are_targets_and_a_loss_may_be_given() -> None:
    graph, x, hidden = two(2, 4)
    target = np.random.default_rng(2).normal(size=(4, 2)).astype(np.float32)
    output = hidden @ graph.weights["b.weight"].T + graph.weights["b.bias"]
    expected = ((output - target) @ graph.weights["b.weight"]) * hidden
    found = Gradients(graph, groups_of(graph), x, target).gates["b", "b.weight", 1]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    twice = Gradients(graph, groups_of(graph), x, target, loss=lambda out, t: ((out - t) ** 2).sum())
    np.testing.assert_allclose(twice.gates["b", "b.weight", 1], 2 * expected, rtol=1e-4, atol=1e-5)


def test_a_tied_weight_has_a_slope_for_each_use() -> None:
    graph, x, y = imported(TiedWeights, samples=3)
    gates = Gradients(graph, groups_of(graph), x, y).gates
    b, c = (gates[node, "b.weight", 1] for node in ("b", "c"))
    assert np.abs(b - c).max() > 1e-4
    module = to_torch(graph).eval()
    F.cross_entropy(module(torch.from_numpy(x[:1])), torch.from_numpy(y[:1])).backward()
    weight = module.get_parameter("b.weight")
    np.testing.assert_allclose(b[0] + c[0], (weight * weight.grad).sum((0, 2, 3)).detach().numpy(), atol=1e-5)


@pytest.mark.parametrize("criterion", ["taylor", "fisher"])
def test_gradient_criteria_without_data_are_refused(criterion: str) -> None:
    """Never silently as in tools that read `weight.grad` and find none."""
    graph, _, _ = imported(Inverted, samples=0)
    pruner = Pruner(graph, np.zeros((0, 3, 8, 8), np.float32), criterion=criterion)
    with pytest.raises(MscError, match="gradients needs calibration data; found no inputs"):
        pruner.plan({"expand": 8})


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros((4, 3, 8, 8), np.float32), np.zeros(3, np.int64), r"equally many; found \[3, 4\]"),
        (np.zeros((4, 3, 8, 8), np.float32), np.full(4, 5), "labels must be 0 to 4; found 5 to 5"),
        (
            np.zeros((4, 3, 8, 8), np.float32),
            np.zeros((4, 2), np.float32),
            r"targets are \[1, 2\]; expected .* \[1, 5\]",
        ),
        (np.full((4, 3, 8, 8), np.nan, np.float32), np.zeros(4, np.int64), "is not finite on the calibration data"),
    ],
)
def test_data_that_does_not_fit_is_refused(x: np.ndarray, y: np.ndarray, message: str) -> None:
    graph, _, _ = imported(Chain, samples=0)
    with pytest.raises(MscError, match=message):
        Pruner(graph, x, divisor=1, criterion="taylor", labels=y).order("a")


def test_activation_is_the_variance_that_a_channel_sends_on() -> None:
    graph, _, _ = two(3, 1)
    x = np.random.default_rng(0).normal(size=(300, 6)).astype(np.float32)
    hidden = np.maximum(x @ graph.weights["a.weight"].T + graph.weights["a.bias"], 0)
    energy = (graph.weights["b.weight"] ** 2).sum(0) * hidden.var(axis=0)
    ranking = Pruner(graph, x, divisor=1, criterion="activation").ranking("a")
    np.testing.assert_allclose(-np.diff(ranking.loss), np.sort(energy / energy.sum())[::-1], rtol=1e-3)


@pytest.mark.parametrize("criterion", ["activation", "obs"])
def test_channels_of_q_and_k_are_ranked_by_what_meets(criterion: str) -> None:
    graph, x, _ = imported(Attention)
    group = next(g for g in groups_of(graph) if set(g.nodes) == {"q", "k"})
    q, k = (np.square(graph.weights[f"{n}.weight"]).reshape(4, 3, -1).sum((0, 2)) for n in "qk")
    ranking = Pruner(graph, x, divisor=1, criterion=criterion).ranking(group.name)
    np.testing.assert_allclose(-np.diff(ranking.loss), np.sort(q * k / (q @ k))[::-1], rtol=1e-5)


@pytest.mark.parametrize("network", [Chain, Residual, Grouped, Attention], ids=lambda n: n.__name__)
@pytest.mark.parametrize("criterion", [c for c in CRITERIA if c != "bn_scale"])
def test_rankings_order_all_channels_and_losses_grow(network: type[nn.Module], criterion: str) -> None:
    graph, x, y = imported(network)
    pruner = Pruner(graph, x, divisor=1, criterion=criterion, labels=y)
    for group in pruner.groups:
        ranking = pruner.ranking(group.name)
        assert sorted(ranking.order.tolist()) == list(range(group.size))
        assert ranking.loss.shape == (group.size + 1,)
        assert ranking.loss[-1] == 0
        assert (np.diff(ranking.loss) <= 0).all()
        assert pruner.order(group.name).tolist() == ranking.order.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("network", ZOO, ids=lambda n: n.name)
def test_every_channel_of_the_zoo_has_a_rank(network: Network) -> None:
    x = network.inputs()
    graph = msc.from_torch(network.module(), x, dynamic_shapes=({0: "N"},))
    for criterion in ("l1", "fpgm", "lamp", "taylor", "fisher"):
        pruner = Pruner(graph, x.numpy(), divisor=1, criterion=criterion)
        for group in pruner.groups:
            ranking = pruner.ranking(group.name)
            assert sorted(ranking.order.tolist()) == list(range(group.size))
            assert np.isfinite(ranking.loss).all()
            assert (np.diff(ranking.loss) <= 0).all()
            assert ranking.loss[0] > 0 or criterion == "fpgm", "somewhere the score must see something"


def test_rankings_do_not_depend_on_the_number_of_threads_and_labels_are_in_the_fingerprint() -> None:
    graph, x, y = imported(Residual)
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            pruner = Pruner(graph, x, divisor=1, criterion="fisher", labels=y)
            found.append([pruner.ranking(g.name).loss for g in pruner.groups])
    finally:
        torch.set_num_threads(before)
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))
    others = [Pruner(graph, x, 1, "fisher", labels=labels).fingerprint for labels in (None, (y + 1) % 4)]
    assert len({pruner.fingerprint, *others}) == 3


@pytest.mark.parametrize("criterion", WITHOUT_DATA)
def test_criteria_of_weights_need_no_data(criterion: str) -> None:
    graph, _, _ = imported(Chain, samples=0)
    assert len(Pruner(graph, np.zeros(0, np.float32), criterion=criterion, divisor=1).order("a")) == 8


def test_an_unknown_criterion_names_the_nearest() -> None:
    graph, x, _ = imported(Chain)
    with pytest.raises(MscError, match="unknown importance criterion 'tailor'; did you mean 'taylor'"):
        Pruner(graph, x, criterion="tailor").order("a")
