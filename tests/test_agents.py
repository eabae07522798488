"""Agents: inside the budget, deterministic, and the learning one learns."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
import torch

from experiments.models import resnet20
from msc_gym import CompressionTask
from msc_gym.agents import AGENTS, AMC, LEARNERS, Agent, Random, Uniform
from msc_gym.agents.ddpg import DDPG
from msc_gym.decisions import Choices


@pytest.fixture(scope="module")
def task(tiny_data):
    """Twelve groups; what a plan is worth comes from `worth`."""
    return CompressionTask(resnet20(), tiny_data, calibration=10)


def worth(task: CompressionTask, choices: Choices, seed: int = 0) -> float:
    """A toy proxy for accuracy: every decision hurts when it shrinks, some much more than others."""
    pain = np.random.default_rng(seed).exponential(size=len(task.decisions)) ** 2
    lost = np.array([1 - d.share(choices[d.name]) for d in task.decisions])
    return -float((pain * lost**2).sum() / pain.sum())


def play(task: CompressionTask, agent: Agent, trials: int, seed: int = 0) -> list[tuple[dict[str, int], float]]:
    told = []
    for _ in range(trials):
        counts = agent.ask()
        if counts is None:
            break
        told.append((counts, worth(task, counts, seed)))
        agent.tell(*told[-1])
    return told


NAMES = [name for name in AGENTS if name != "policy"]  # which needs one that was trained
SEARCHERS = [name for name in NAMES if name not in LEARNERS]  # `test_agents_rl` asks the same of learners
SEEDLESS = ("uniform", "greedy", "bisection", "grid")
PRUNED = [(("prune",), budget) for budget in ({"macs": 0.5}, {"macs": 0.3, "params": 0.4}, {"bytes": 0.25}, {})]
QUANTIZED = [(("quantize",), budget) for budget in ({"bops": 0.1}, {"bytes": 0.3, "bops": 0.2}, {})]
BOTH = [(("prune", "quantize"), budget) for budget in ({"macs": 0.5, "bytes": 0.1}, {})]
CASES = [
    *[(name, *case) for name in NAMES for case in PRUNED],
    *[(name, *case) for name in SEARCHERS for case in (*QUANTIZED, *BOTH)],
]


@pytest.mark.parametrize("name, decide, budget", CASES, ids=str)
def test_every_plan_is_within_the_budget(task, name, decide, budget):
    task = task.changed(decide=decide, budget=budget, bits=(4, 8, 32))
    for fill in (True, False):
        told = play(task, AGENTS[name](task, trials=5, seed=3, fill=fill), 5)
        assert told
        for choices, _ in told:
            assert list(choices) == [d.name for d in task.decisions]
            assert all(choices[d.name] in d.options for d in task.decisions)
            assert task.within_budget(choices)


@pytest.mark.parametrize("name", NAMES)
def test_an_agent_is_a_function_of_its_arguments_and_of_what_it_is_told(task, name):
    first, again = (play(task, AGENTS[name](task, trials=10, seed=5), 10) for _ in range(2))
    assert first == again
    other = play(task, AGENTS[name](task, trials=10, seed=6), 10)
    assert (first == other) == (name in SEEDLESS)


@pytest.mark.parametrize("name", SEARCHERS)
def test_plans_may_be_asked_for_in_batches(task, name):
    task = task.changed(decide=("prune", "quantize"), budget={"bops": 0.2})

    def batches() -> list[dict[str, int]]:
        agent, told = AGENTS[name](task, trials=12, seed=1), []
        for _ in range(4):
            asked = [choices for _ in range(3) if (choices := agent.ask()) is not None]
            for choices in asked:
                agent.tell(choices, worth(task, choices))
            told += asked
        return told

    told = batches()
    assert told == batches()
    assert all(task.within_budget(choices) for choices in told)
    if name in ("evolution", "greedy", "bisection", "grid"):  # what is not told yet is not proposed again either
        assert len({tuple(choices.values()) for choices in told}) == len(told)


@pytest.mark.parametrize("name", SEARCHERS)
def test_agents_leave_global_state_alone(task, name):
    def state() -> tuple[object, ...]:
        numpy = np.random.get_state()[1].tobytes()
        return random.getstate(), numpy, torch.get_rng_state().numpy().tobytes(), torch.get_num_threads()

    before = state()
    play(task, AGENTS[name](task, trials=14), 14)
    assert state() == before


def test_amc_listens(task):
    one, other = (play(task, AMC(task, trials=10, seed=0), 10, seed) for seed in (0, 1))
    assert [c for c, _ in one[:3]] == [c for c, _ in other[:3]]  # the warm-up does not
    assert [c for c, _ in one] != [c for c, _ in other]


def test_uniform_is_one_plan_as_large_as_the_budget_allows(task):
    agent = Uniform(task)
    counts = agent.ask()
    assert agent.ask() is None
    ratios = {counts[g.name] / g.size for g in task.groups}
    assert max(ratios) - min(ratios) <= 0.5  # the narrowest group can only be halved
    wide = [g for g in task.groups if g.size == 64]
    assert len({counts[g.name] for g in wide}) == 1
    more = {
        g.name: min(c for c in (*task.choices(g), g.size) if c > counts[g.name] or c == g.size) for g in task.groups
    }
    assert not task.within_budget(more)


def test_uniform_keeps_everything_without_a_budget(task):
    task = dataclasses.replace(task, budget={})
    assert Uniform(task).ask() == task.full_choices


def test_amc_begins_with_the_uniform_plan_and_tries_nothing_twice(task):
    told = play(task, AMC(task, trials=20), 20)
    assert told[0][0] == Uniform(task).ask()
    assert len({tuple(counts.values()) for counts, _ in told}) == 20
    cost = task.cost_model
    assert cost.cost(told[1][0]).macs >= cost.cost(told[0][0]).macs  # the same, filled up


def test_amc_goes_on_where_there_is_nothing_new(tiny_task):
    task = dataclasses.replace(tiny_task, divisor=16, floor=0.5, budget={"macs": 0.6})  # a handful of plans
    assert len(play(task, AMC(task, trials=30), 30)) == 30


@pytest.mark.parametrize("seed", range(2))
def test_amc_beats_random_and_uniform(task, seed):
    amc, chance = play(task, AMC(task, trials=60, seed=seed), 60, seed), play(task, Random(task, seed=seed), 60, seed)
    best = max(reward for _, reward in amc)
    assert best >= max(reward for _, reward in chance)
    assert best >= worth(task, Uniform(task).ask(), seed)
    late = np.mean([reward for _, reward in amc[-20:]])
    assert late > np.mean([reward for _, reward in amc[2:15]])  # after warm-up it proposes better plans


def test_ddpg_finds_the_best_action():
    """One step, reward highest at 0.8 where the first feature is 1 and at 0.2 where it is 0."""
    rng, agent = np.random.default_rng(0), DDPG(features=2, actions=1, capacity=1000, seed=0)
    for _ in range(400):
        state = np.array([rng.integers(2), 1], np.float32)
        action = rng.uniform(size=1).astype(np.float32)
        agent.remember(state, action, -float((action[0] - (0.2 + 0.6 * state[0])) ** 2), state, True)
    agent.learn(700)
    low, high = (agent.act(np.array([x, 1], np.float32))[0] for x in (0, 1))
    assert low == pytest.approx(0.2, abs=0.15) and high == pytest.approx(0.8, abs=0.15)
