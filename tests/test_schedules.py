"""Counts under a budget against sweeps, floors and ceilings, rounds and the one plan that they become."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch import nn

import msc_core as msc
from msc_core.channels import Channels
from msc_core.cost import cost
from msc_core.errors import InvalidPlan, MscError
from msc_core.plan import Plan
from msc_core.tools.prune import CostModel, Pruner, prune
from msc_core.tools.prune.ranking import RANKINGS, Step, allocate, take
from msc_core.tools.prune.schedule import Schedule, compose, prune_in_rounds
from msc_core.tools.strategy import keep_count
from tests.micro_networks import (
    Chain,
    Concat,
    FlattenLinear,
    Grouped,
    Inverted,
    Residual,
    SelfConcat,
    SqueezeExcite,
    TiedWeights,
    randomized,
)

NETWORKS = (Chain, Concat, FlattenLinear, Grouped, Inverted, Residual, SelfConcat, SqueezeExcite, TiedWeights)


@functools.cache
def graph_of(network: type[nn.Module]) -> msc.MSCGraph:
    torch.manual_seed(0)
    return msc.from_torch(randomized(network()), torch.zeros(2, 3, 8, 8), dynamic_shapes=({0: "N"},))


def by_l1(graph: msc.MSCGraph) -> Pruner:
    return Pruner(graph, np.zeros(0, np.float32), divisor=1, criterion="l1", recovery="none")


def share(graph: msc.MSCGraph, counts: dict[str, int], key: str) -> float:
    """What part of a cost is left when the graph is really pruned."""
    pruned = prune(graph, {name: range(count) for name, count in counts.items()})
    return getattr(cost(pruned), key) / getattr(cost(graph), key)


@pytest.mark.parametrize("network", [Concat, Grouped, Inverted, SelfConcat], ids=lambda n: n.__name__)
@pytest.mark.parametrize("ranking", RANKINGS)
@pytest.mark.parametrize("budget", [{"macs": 0.5}, {"params": 0.3}, {"bytes": 0.6, "macs": 0.4}], ids=str)
def test_budgets_are_met_and_filled(network: type[nn.Module], ranking: str, budget: dict[str, float]) -> None:
    graph = graph_of(network)
    pruner = by_l1(graph)
    counts = allocate(pruner, budget, ranking, floor=0.1)
    assert counts.keys() == {g.name for g in pruner.groups}
    assert all(share(graph, counts, key) <= limit for key, limit in budget.items())
    for group in pruner.groups:
        assert counts[group.name] in group.counts
        assert counts[group.name] >= 0.1 * group.size
        if ranking != "uniform" and counts[group.name] < group.size:
            more = counts | {group.name: counts[group.name] + 1}
            assert any(share(graph, more, key) > limit for key, limit in budget.items()), "there was room for more"


@pytest.mark.parametrize("network", NETWORKS, ids=lambda n: n.__name__)
def test_uniform_is_the_largest_common_density_that_meets_the_budget(network: type[nn.Module]) -> None:
    graph = graph_of(network)
    pruner = Pruner(graph, np.zeros(0, np.float32), divisor=2, criterion="l1")
    model = CostModel(graph, pruner.groups)
    sweep = ({g.name: keep_count(g, density) for g in pruner.groups} for density in np.linspace(1, 0, 2001))
    expected = next(counts for counts in sweep if model.cost(counts).macs <= 0.45 * model.full.macs)
    assert allocate(pruner, {"macs": 0.45}, "uniform", floor=0) == expected


def test_global_ranking_keeps_what_is_above_one_threshold() -> None:
    """All channels of all groups by score per cost; without the last one that goes the budget would be missed."""
    graph = graph_of(Chain)
    scores = {"a": np.asarray([8, 7, 6, 5, 4, 3, 2, 1.0]), "b": np.asarray([9.5, 8.5, 7.5, 6.5, *[0.5] * 8])}
    steps = [Step(float(s[c]), name, c) for name, s in scores.items() for c in range(len(s) - 1, 0, -1)]
    choices = {name: tuple(range(1, len(s) + 1)) for name, s in scores.items()}

    def meets(counts: dict[str, int]) -> bool:
        return share(graph, counts, "macs") <= 0.4

    counts = take(choices, steps, meets, undo=False)
    thresholds = [{n: max(1, int((s > t).sum())) for n, s in scores.items()} for t in np.arange(0.25, 10, 0.5)]
    assert counts == next(c for c in thresholds if meets(c))
    filled = take(choices, steps, meets, undo=True)
    assert meets(filled)
    assert all(filled[name] >= counts[name] for name in counts)


def scaled(graph: msc.MSCGraph, factors: dict[str, float]) -> msc.MSCGraph:
    return graph.replace(weights={n: w * np.float32(factors.get(n, 1)) for n, w in graph.weights.items()})


def test_floors_hold_for_every_group_in_global_ranking() -> None:
    """The case of a layer whose scores are far below all others: the most that may go is honoured there too."""
    graph = scaled(graph_of(Residual), {"a.weight": 1e-6, "a.bias": 1e-6})
    pruner = Pruner(graph, np.random.default_rng(0).normal(size=(50, 3, 8, 8)).astype(np.float32), 1, "activation")
    free = allocate(pruner, {"macs": 0.6}, floor=0.1)
    held = allocate(pruner, {"macs": 0.6}, floor=0.5)
    sizes = {g.name: g.size for g in pruner.groups}
    assert all(held[name] >= 0.5 * size for name, size in sizes.items())
    assert min(free[name] / size for name, size in sizes.items()) < 0.5


def test_floors_and_ceilings_of_groups_by_name_and_glob() -> None:
    pruner = by_l1(graph_of(Residual))
    counts = allocate(pruner, {"macs": 0.5}, floors={"*": 0.3, "a": 1.0, "stem": 0.5}, ceilings={"[bc]": 0.5})
    sizes = {g.name: g.size for g in pruner.groups}
    assert counts["a"] == sizes["a"]
    assert counts["stem"] >= 0.5 * sizes["stem"]
    assert all(counts[name] >= 0.3 * size for name, size in sizes.items())
    assert all(counts[name] <= 0.5 * sizes[name] for name in ("b", "c") if name in counts)


def test_local_ranking_takes_the_same_share_of_importance_everywhere() -> None:
    pruner = by_l1(graph_of(Residual))
    counts = allocate(pruner, {"macs": 0.5}, "local", floor=0)
    lost, next_lost = {}, {}
    for name, count in counts.items():
        loss = pruner.ranking(name).loss / pruner.ranking(name).loss[0]
        lost[name], next_lost[name] = loss[count], loss[count - 1] if count > 1 else np.inf
    assert max(lost.values()) <= min(next_lost.values())


def test_magnitudes_are_compared_relative_to_their_layer() -> None:
    """A layer in front of a batch norm may have weights of any scale, which says nothing of its importance."""
    graph = graph_of(Chain)
    large = scaled(graph, {"b.weight": 1000})
    assert allocate(by_l1(large), {"macs": 0.4}) == allocate(by_l1(graph), {"macs": 0.4})


def test_divisors_are_respected() -> None:
    pruner = Pruner(graph_of(Inverted), np.zeros(0, np.float32), divisor=4, criterion="l1")
    for ranking in RANKINGS:
        counts = allocate(pruner, {"macs": 0.6}, ranking)
        assert all(counts[g.name] in g.counts for g in pruner.groups)


def test_pruning_again_and_again_ends_with_an_error_and_not_with_nothing() -> None:
    graph, sizes = graph_of(Residual), []
    message = r"cannot be met: asked for macs 0.500; with every group at its floor macs 0\.\d+"
    with pytest.raises(MscError, match=message):
        for _ in range(20):
            pruner = by_l1(graph)
            graph = pruner.compress(pruner.plan(allocate(pruner, {"macs": 0.5})))
            sizes.append(min(size for weight in graph.weights.values() for size in weight.shape))
    assert len(sizes) > 2
    assert min(sizes) >= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": {"mac": 0.5}}, "unknown budget 'mac'; did you mean 'macs'"),
        ({"budget": {"macs": 1.5}}, r"budget macs must be a fraction in \(0, 1\]; found 1.5"),
        ({"budget": {}}, "an empty budget; expected some of macs, params, bytes"),
        ({"ranking": "globl"}, "unknown ranking 'globl'; did you mean 'global'"),
        ({"budget": {"macs": 0.001}}, "asked for macs 0.001; with every group at its floor macs 0.[0-9]{3} remain"),
        ({"floors": {"stm": 0.5}}, "floors: no channel group 'stm'; did you mean 'stem'"),
        ({"floor": 2}, r"floor of 'floor' must be a share in \[0, 1\]; found 2"),
        ({"ceilings": {"stem": 0.1}}, "group 'stem' can keep 1, 2, ..., 6 channels; none is in 0.2 to 0.1 of 6"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(MscError, match=message):
        allocate(by_l1(graph_of(Residual)), **{"budget": {"macs": 0.5}, **options})  # type: ignore[arg-type]


def test_schedules_are_their_formulas() -> None:
    t = np.arange(1, 6) / 5
    np.testing.assert_allclose(Schedule(5, "linear").shares(0.2), 1 - 0.8 * t)
    np.testing.assert_allclose(Schedule(5, "cubic").shares(0.2), 0.2 + 0.8 * (1 - t) ** 3)  # Zhu and Gupta's equation 1
    np.testing.assert_allclose(Schedule(5, "geometric").shares(0.2), 0.2**t)
    for shape in ("linear", "cubic", "geometric"):
        assert Schedule(1, shape).shares(0.3) == (0.3,)


@pytest.mark.parametrize("network", NETWORKS, ids=lambda n: n.__name__)
@pytest.mark.parametrize("seed", range(3))
def test_a_composed_plan_does_what_its_parts_do_in_turn(network: type[nn.Module], seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = graph_of(network)
    plan, current = Plan(graph.fingerprint), graph
    for _ in range(3):
        kept = {}
        for group in Channels(current, 1).groups:
            if not group.reason and group.size > 1 and rng.random() < 0.7:
                kept[group.name] = tuple(rng.permutation(group.size)[: rng.integers(1, group.size + 1)].tolist())
        step = Plan(current.fingerprint, kept)
        plan, current = compose(graph, plan, step), msc.apply(step, current)
        assert msc.apply(plan, graph) == current


def test_a_group_whose_name_another_takes_over_is_traced() -> None:
    """When one group of a grouped convolution is left, the widths in it are the first channels of the layer."""
    graph = graph_of(Grouped)
    first = Plan(graph.fingerprint, {"a": (3,), "a_1": (0, 2)})
    second = Plan(msc.apply(first, graph).fingerprint, {"a": (1,)})
    composed = compose(graph, first, second)
    assert dict(composed.prune) == {"a": (3,), "a_1": (2,)}
    assert msc.apply(composed, graph) == msc.apply(second, msc.apply(first, graph))


def test_plans_that_cannot_follow_each_other_are_refused() -> None:
    graph = graph_of(Residual)
    first = Plan(graph.fingerprint, {"stem": (0, 3)})
    with pytest.raises(InvalidPlan, match="no channel group 'stam'; did you mean 'stem'"):
        compose(graph, first, Plan("", {"stam": (0,)}))
    with pytest.raises(InvalidPlan, match=r"'stem' has 2 channels left; the plan keeps \[2\]"):
        compose(graph, first, Plan("", {"stem": (2,)}))
    with pytest.raises(InvalidPlan, match="quantizes or casts cannot be followed"):
        compose(graph, Plan(graph.fingerprint, cast={"stem": "float16"}), first)


@pytest.mark.parametrize("shape", ["linear", "cubic", "geometric"])
@pytest.mark.parametrize("network", [Chain, Residual, Inverted], ids=lambda n: n.__name__)
def test_rounds_become_one_plan(network: type[nn.Module], shape: str) -> None:
    graph = graph_of(network)
    seen: list[float] = []

    def between(pruned: msc.MSCGraph, index: int) -> msc.MSCGraph:
        assert index == len(seen)
        seen.append(cost(pruned).macs / cost(graph).macs)
        return pruned

    schedule = Schedule(3, shape)
    rounds = prune_in_rounds(graph, by_l1, {"macs": 0.3}, schedule, between, floor=0.1)
    assert msc.apply(rounds.plan, graph) == rounds.graph
    assert all(found <= wanted for found, wanted in zip(seen, schedule.shares(0.3), strict=True))
    assert seen == sorted(seen, reverse=True)
    for group in Channels(graph, 1).groups:
        assert len(rounds.plan.prune.get(group.name, range(group.size))) >= 0.1 * group.size


def test_channels_are_ranked_anew_in_each_round() -> None:
    """What training makes of the weights between rounds decides the next one."""
    graph = graph_of(Chain)
    weakest = by_l1(graph).order("a")[:4]  # the strongest at first

    def weaken(pruned: msc.MSCGraph, index: int) -> msc.MSCGraph:
        left = 8 - pruned.weights["a.weight"].shape[0]
        if index > 0:
            return pruned
        assert left < 4
        weights = {n: w.copy() for n, w in pruned.weights.items()}
        strong = by_l1(pruned).order("a")[:2]
        weights["a.weight"][strong] *= 1e-3
        return pruned.replace(weights=weights)

    options = {"floors": {"a": 0.5, "b": 1.0}}
    plain = prune_in_rounds(graph, by_l1, {"macs": 0.6}, Schedule(2, "linear"), **options)
    trained = prune_in_rounds(graph, by_l1, {"macs": 0.6}, Schedule(2, "linear"), weaken, **options)
    strongest = set(weakest[:2].tolist())
    assert strongest <= set(plain.plan.prune["a"])
    assert not strongest & set(trained.plan.prune["a"])


def test_a_budget_that_rounds_cannot_meet_is_refused_before_the_first() -> None:
    called: list[int] = []

    def between(graph: msc.MSCGraph, index: int) -> msc.MSCGraph:
        called.append(index)
        return graph

    with pytest.raises(MscError, match=r"asked for macs 0\.010; with every group at its floor"):
        prune_in_rounds(graph_of(Chain), by_l1, {"macs": 0.01}, Schedule(4), between, floor=0.5)
    assert not called


def test_schedules_that_make_no_sense_are_refused() -> None:
    with pytest.raises(MscError, match="rounds must be at least 1; found 0"):
        Schedule(0)
    with pytest.raises(MscError, match="unknown schedule 'cubik'; did you mean 'cubic'"):
        Schedule(3, "cubik")
