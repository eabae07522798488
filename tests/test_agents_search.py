"""Searchers without gradients: evolution, greedy, bisection and grid, and how they stay inside the budget."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from experiments.models import resnet20
from msc_gym import CompressionTask
from msc_gym.agents import AGENTS, Bisection, Evolution, Greedy, Grid, Random, Uniform
from msc_gym.agents.bisection import line
from msc_gym.agents.fitting import fitted, nearest_option, numbers_of
from tests.test_agents import play, worth


@pytest.fixture(scope="module")
def task(tiny_data):
    return CompressionTask(resnet20(), tiny_data, calibration=10, budget={"macs": 0.3})


@pytest.fixture(scope="module")
def mixed(task):
    return task.changed(decide=("prune", "quantize"), bits=(4, 8, 32), budget={"macs": 0.5, "bytes": 0.1})


def random_numbers(task, seed):
    return dict(zip(task.full_choices, np.random.default_rng(seed).uniform(size=len(task.decisions)), strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_what_is_fitted_fills_the_budget(mixed, seed):
    choices = fitted(mixed, random_numbers(mixed, seed), fill=True)
    assert mixed.within_budget(choices)
    for d in mixed.decisions:
        for more in d.options[d.options.index(choices[d.name]) + 1 :]:
            assert not mixed.within_budget(choices | {d.name: more})


def test_without_fill_nothing_exceeds_what_is_wanted(mixed):
    wanted = random_numbers(mixed, 0)
    choices = fitted(mixed, wanted, fill=False)
    assert all(choices[d.name] <= nearest_option(d, wanted[d.name]) for d in mixed.decisions)


@pytest.mark.parametrize("fill", [True, False])
def test_without_a_budget_it_is_what_is_wanted(mixed, fill):
    free, wanted = mixed.changed(budget={}), random_numbers(mixed, 1)
    assert fitted(free, wanted, fill) == {d.name: nearest_option(d, wanted[d.name]) for d in free.decisions}


def test_only_ratios_between_the_numbers_matter(task):
    wanted = random_numbers(task, 2)
    assert fitted(task, wanted, True) == fitted(task, {name: x / 2 for name, x in wanted.items()}, True)


@pytest.mark.parametrize("seed", range(3))
def test_numbers_stand_for_their_choices(mixed, seed):
    choices = fitted(mixed, random_numbers(mixed, seed), fill=True)
    assert fitted(mixed, numbers_of(mixed, choices), fill=False) == choices


@pytest.mark.parametrize("name", ["tpe", "cmaes", "nsga2", "evolution", "greedy"])
def test_it_beats_random_and_uniform(task, name):
    """On average over toy proxies: there may be one for which a random plan is good."""
    best = []
    for seed in range(3):
        agents = AGENTS[name](task, trials=60, seed=seed), Random(task, seed=seed), Uniform(task)
        best.append([max(reward for _, reward in play(task, agent, 60, seed)) for agent in agents])
    found, chance, uniform = np.mean(best, axis=0)
    assert found > chance and found > uniform


@pytest.mark.parametrize("name", ["tpe", "gp", "cmaes", "nsga2", "evolution", "greedy", "grid", "bisection"])
@pytest.mark.parametrize("which", ["task", "mixed"])
def test_the_first_plan_is_the_uniform_one(request, which, name):
    of = request.getfixturevalue(which)
    assert AGENTS[name](of, trials=10).ask() == Uniform(of).ask()


@pytest.mark.parametrize("agent", [Evolution, Greedy, Grid, Bisection])
def test_no_plan_comes_twice(mixed, agent):
    told = play(mixed, agent(mixed, trials=40), 40)
    assert len({tuple(choices.values()) for choices, _ in told}) == len(told)


@pytest.mark.parametrize("agent", [Greedy, Grid, Bisection])
def test_it_ends_where_there_is_nothing_new(tiny_task, agent):
    few = tiny_task.changed(divisor=16, floor=0.5, budget={"macs": 0.6})
    assert len(play(few, agent(few, trials=500), 500)) < 100


def test_evolution_goes_on_where_there_is_nothing_new(tiny_task):
    few = tiny_task.changed(floor=0.7, budget={"macs": 0.95})  # eight plans at most
    assert len(play(few, Evolution(few, trials=40), 40)) == 40


def test_greedy_takes_from_what_is_least_sensitive(task):
    """The second plan is by sensitivity: it loses less by the pruner's own account than the uniform one."""
    (uniform, _), (second, _) = play(task, Greedy(task), 2)

    def loss(choices):
        return sum(task.pruner.ranking(name).loss[count] for name, count in choices.items())

    assert loss(second) < loss(uniform)


def test_greedy_gives_bits_to_the_layers_that_need_them(task):
    """A layer whose weights are small but for one of each channel loses all of them to few bits."""
    graph = task.graph
    name = task.kernels["blocks.4.body1.conv"]
    outliers = np.sign(graph.weights[name]) * np.float32(0.06)
    outliers[:, 0, 0, 0] = 1
    spoilt = CompressionTask(
        graph.replace(weights={**graph.weights, name: outliers}), task.dataset, calibration=10,
        decide=("quantize",), bits=(4, 8), budget={"bops": 0.06},
    )  # fmt: skip
    (_, _), (second, _) = play(spoilt, Greedy(spoilt), 2)
    assert second["blocks.4.body1.conv bits"] == 8 and 4 in second.values()


def test_greedy_climbs(task):
    told = play(task, Greedy(task), 40)
    assert max(reward for _, reward in told[2:]) > max(reward for _, reward in told[:2])


@pytest.mark.parametrize("peak", [0.3, 0.55, 1.0])
def test_bisection_finds_the_peak(task, peak):
    """A reward that rises with the ratio up to a peak and falls after it, as one with a limit on latency does."""
    free = task.changed(budget={})
    plans = line(free)

    def reward(choices):
        macs = free.spent(choices)["bops"] / free.cost({})["bops"]
        return macs if macs <= peak else peak - 2 * (macs - peak)

    agent, told = Bisection(free), []
    while (choices := agent.ask()) is not None:
        agent.tell(choices, reward(choices))
        told.append(reward(choices))
    assert max(told) == max(reward(plan) for plan in plans)
    assert len(told) <= 2 + 2 * np.ceil(np.log2(len(plans)))


def test_the_plans_of_bisection_shrink(mixed):
    plans = line(mixed)
    assert plans[0] == Uniform(mixed).ask() and len(plans) > 3
    for more, less in itertools.pairwise(plans):
        assert more != less and all(less[name] <= count for name, count in more.items())


def test_a_grid_has_one_number_for_a_third(task):
    free = task.changed(budget={}, decide=("quantize",), bits=(2, 4, 8, 32))
    plans = [choices for choices, _ in play(free, Grid(free, trials=30), 30)]
    assert len(plans) == 30
    bits = [[plan[site.decisions[0].name] for site in free.sites] for plan in plans]
    assert all(sum(a != b for a, b in itertools.pairwise(row)) <= 2 for row in bits)
    assert worth(free, plans[0]) == 0
