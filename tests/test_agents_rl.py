"""Agents that learn: deterministic, resumable, alone with their randomness; what they learn goes to other networks."""

from __future__ import annotations

import dataclasses
import json
import random
import threading
import time

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from experiments.models import resnet20
from msc_core import MscError
from msc_gym import CompressionTask
from msc_gym.agents import AGENTS, AMC, LEARNERS, SB3, ApplyPolicy, Policy, Random, Uniform
from msc_gym.agents.policy import POLICY_FILE, TENSORS_FILE, allowed_levels
from msc_gym.agents.sb3 import ALGORITHMS, hyperparameters
from msc_gym.agents.sb3_models import LEVELS, Rewards
from msc_gym.envs import FEATURES, Episode
from tests.test_agents import play

QUICK = {"ddpg": {"updates": 1}, "td3": {"updates": 1}, "sac": {"updates": 1}}


@pytest.fixture(scope="module")
def task(tiny_data):
    """Twelve groups; what a plan is worth comes from `worth`."""
    return CompressionTask(resnet20(), tiny_data, calibration=10)


@pytest.fixture
def mixed(tiny_task):
    """Channels and bits."""
    return tiny_task.changed(decide=("prune", "quantize"), bits=(4, 8, 32), budget={"bops": 0.4})


def make(name: str, task: CompressionTask, trials: int = 12, seed: int = 0, **options):
    return LEARNERS[name](task, trials=trials, seed=seed, **QUICK.get(name, {}), **options)


def states() -> tuple:
    return random.getstate(), np.random.get_state()[1].tobytes(), bytes(torch.get_rng_state()), torch.get_num_threads()


def drive(agent, task: CompressionTask, sizes: list[int]) -> list[dict[str, int]]:
    """Rounds of so many asks, each followed by as many tells."""
    told = []
    for size in sizes:
        asked = [agent.ask() for _ in range(size)]
        for choices in asked:
            agent.tell(choices, len(told) % 5 / 5 - 1)
            told.append(choices)
    return told


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize("decide", [("prune",), ("quantize",), ("prune", "quantize")], ids="+".join)
def test_learners_decide_whatever_a_task_decides(tiny_task, name, decide):
    task = tiny_task.changed(decide=decide, bits=(4, 8, 32), budget={"bops": 0.4})
    for choices in drive(make(name, task), task, [1] * 12):
        assert list(choices) == [d.name for d in task.decisions]
        assert all(choices[d.name] in d.options for d in task.decisions)
        assert task.within_budget(choices)


@pytest.mark.parametrize("name", LEARNERS)
def test_asked_in_batches_they_are_deterministic_too(tiny_task, name):
    one, again = (drive(make(name, tiny_task, seed=3), tiny_task, [1, 4, 4, 3]) for _ in range(2))
    assert one == again
    first = [make(name, tiny_task, seed=3).ask() for _ in range(2)]
    assert first == [one[0], one[0]]


@pytest.mark.parametrize("name", ["amc", "ppo"])
def test_a_batch_is_not_one_plan_many_times(task, name):
    assert len({tuple(c.values()) for c in drive(make(name, task), task, [8])}) > 4


@pytest.mark.parametrize("name", LEARNERS)
def test_learners_leave_the_process_as_it_was(tiny_task, name):
    before, threads = states(), threading.enumerate()
    agent = make(name, tiny_task)
    drive(agent, tiny_task, [1, 6, 5])
    agent.policy()
    assert states() == before
    assert threading.enumerate() == threads


def test_others_who_draw_random_numbers_change_nothing(tiny_task):
    quiet, loud = make("ppo", tiny_task), make("ppo", tiny_task)
    for _ in range(10):
        np.random.rand(), torch.rand(3), random.random()
        one, other = quiet.ask(), loud.ask()
        assert one == other
        torch.manual_seed(1)
        quiet.tell(one, -0.1), loud.tell(other, -0.1)


@pytest.mark.parametrize("name", ["amc", *ALGORITHMS])
def test_the_first_trial_is_the_uniform_plan(task, name):
    assert make(name, task).ask() == Uniform(task).ask()


def test_ppo_beats_random_within_a_minute_and_a_rerun_is_identical(task):
    start = time.process_time()
    told = play(task, SB3(task, trials=100), 100)
    assert time.process_time() - start < 60
    chance = [reward for _, reward in play(task, Random(task), 100)]
    late = [reward for _, reward in told[-25:]]
    assert np.mean(late) > np.mean(chance) + np.std(chance) / 4
    assert max(late) > np.quantile(chance, 0.9)
    assert play(task, SB3(task, trials=100), 100) == told


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in LEARNERS if name != "ppo"])
def test_every_learner_gets_better(task, name):
    told = [reward for _, reward in play(task, LEARNERS[name](task, trials=120), 120)]
    assert np.mean(told[-25:]) > np.mean([reward for _, reward in play(task, Random(task), 120)])


def test_settings_are_checked(task):
    assert set(hyperparameters()) == set(ALGORITHMS)
    with pytest.raises(MscError, match=r"agent 'ppo' has no setting 'learning_rat'; did you mean 'learning_rate'"):
        SB3(task, learning_rat=0.1)
    with pytest.raises(MscError, match="unknown algorithm 'pppo'; did you mean 'ppo'"):
        SB3(task, algorithm="pppo")
    assert SB3(task, learning_rate=0.5).policy().head.settings["learning_rate"] == 0.5


def test_rewards_are_relative_to_their_task_and_one_failure_does_not_dwarf_the_rest():
    rewards = Rewards()
    for task, values in enumerate([(-0.1, -0.2, -0.3, -0.4, -17.0), (5.0, 6.0, 7.0)]):
        for value in values:
            rewards.add(task, value)
    assert rewards.relative(0, -0.3) == 0 and rewards.relative(1, 6.0) == 0
    assert rewards.relative(0, -0.1) > 0.5 and rewards.relative(0, -17.0) == -3
    assert rewards.relative(1, 7.0) > 0 > rewards.relative(1, 5.0)


# AMC as published


def test_the_published_amc_warms_up_at_random_and_then_learns_what_it_proposed(task):
    agent = AMC(task, trials=20, exact=True)
    asked = []
    for index in range(20):
        before = agent.policy().layers[0][0].tobytes()
        asked.append(agent.ask())
        agent.tell(asked[-1], -0.1 * index)
        learned = agent.policy().layers[0][0].tobytes() != before
        assert learned == (index > 5)  # after a quarter of the trials, and one more, as in the released loop
    assert asked[0] != Uniform(task).ask()
    assert asked == [c for c, _ in play_told(task, AMC(task, trials=20, exact=True))]


def play_told(task, agent):
    told = []
    for index in range(20):
        told.append((agent.ask(), -0.1 * index))
        agent.tell(*told[-1])
    return told


def test_the_published_amc_takes_a_hundred_random_episodes_where_there_are_enough(task):
    first, other = (AMC(task, trials=trials, exact=True) for trials in (400, 4000))
    assert play(task, first, 30) == play(task, other, 30)


# Masks


def test_a_mask_has_a_level_for_every_feasible_option(mixed):
    episode = Episode(mixed)
    while not episode.done:
        allowed = allowed_levels(episode, LEVELS)
        assert allowed.shape == (2, LEVELS) and allowed.any(axis=1).all()
        parts = {d.part: d for d in episode.site.decisions}
        for row, part in enumerate(mixed.decide):
            most = len(episode.feasible(parts[part])) if part in parts else 1
            assert 1 <= allowed[row].sum() <= most
        episode.step([1.0, 1.0])


def test_a_masked_level_takes_an_option_that_is_feasible(tiny_task):
    episode = Episode(tiny_task)
    (decision,) = episode.site.decisions
    taken = set()
    for level in np.flatnonzero(allowed_levels(episode, LEVELS)[0]):
        fresh = Episode(tiny_task)
        taken |= set(fresh.step([(level + 1) / LEVELS]).values())
    assert taken == set(episode.feasible(decision))


# Policies


@pytest.mark.parametrize("name", LEARNERS)
def test_a_saved_policy_does_the_same(mixed, tmp_path, name):
    agent = make(name, mixed)
    drive(agent, mixed, [1] * 12)
    policy = agent.policy()
    policy.save(tmp_path)
    loaded = Policy.load(tmp_path)
    rng = np.random.default_rng(0)
    for observation in rng.uniform(size=(20, len(FEATURES))).astype(np.float32):
        assert loaded.act(observation) == policy.act(observation)
        assert len(policy.act(observation)) == 2 and all(0 <= number <= 1 for number in policy.act(observation))
    assert loaded.choices(mixed) == policy.choices(mixed)
    assert loaded.head.agent == name.removesuffix("_paper") and loaded.head.features == FEATURES


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_policy_is_what_the_model_predicts(mixed, name):
    agent = make(name, mixed)
    drive(agent, mixed, [1] * 12)
    policy, model = agent.policy(), agent._model._model
    for observation in np.random.default_rng(1).uniform(size=(10, len(FEATURES))).astype(np.float32):
        action, _ = model.predict(observation, deterministic=True)
        numbers = (action + 1) / LEVELS if name == "maskable_ppo" else (action + 1) / 2
        assert policy.act(observation) == pytest.approx(numbers.tolist(), abs=1e-6)


def test_an_actor_is_its_policy(task):
    agent = make("amc", task)
    drive(agent, task, [1] * 12)
    observation = Episode(task).observation()
    assert agent.policy().act(observation) == pytest.approx(agent._ddpg.act(observation).tolist(), abs=1e-6)


@pytest.fixture
def saved(tiny_task, tmp_path):
    agent = make("ppo", tiny_task)
    drive(agent, tiny_task, [1] * 9)
    agent.policy().save(tmp_path)
    return tmp_path


def test_a_policy_goes_to_another_network(task, saved):
    agent = AGENTS["policy"](task, trials=5, seed=1, path=saved)
    asked = drive(agent, task, [1, 4])
    assert asked[0] == Policy.load(saved).choices(task)
    assert all(task.within_budget(choices) for choices in asked)
    assert len({tuple(c.values()) for c in asked}) > 1
    assert asked == drive(AGENTS["policy"](task, trials=5, seed=1, path=saved), task, [5])


def test_a_policy_fits_only_tasks_that_decide_the_same(mixed, task, saved):
    with pytest.raises(MscError, match="the policy of ppo decides prune; the task prune and quantize"):
        ApplyPolicy(mixed, path=saved)
    with pytest.raises(MscError, match="the task decides prune and quantize; the agent prune"):
        make("amc", task).visit(mixed)
    with pytest.raises(MscError, match="option path"):
        ApplyPolicy(task)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"output": "tanh"}, "do not belong together, or were edited"),
        ({"schema": 7}, "expected a policy with schema 1"),
        ({"features": ["index"]}, "trained on other observations"),
        ({"activation": "gelu"}, "activation"),
        ({"more": 1}, "unknown key"),
    ],
)
def test_an_edited_policy_is_refused(saved, change, message):
    head = json.loads((saved / POLICY_FILE).read_text())
    (saved / POLICY_FILE).write_text(json.dumps(head | change))
    with pytest.raises(MscError, match=message):
        Policy.load(saved)


def test_damaged_tensors_are_refused(saved):
    content = (saved / TENSORS_FILE).read_bytes()
    tensors = load_file(saved / TENSORS_FILE)
    save_file(tensors | {"0.w": tensors["0.w"] + 1}, saved / TENSORS_FILE)
    with pytest.raises(MscError, match="do not belong together"):
        Policy.load(saved)
    (saved / TENSORS_FILE).write_bytes(content[:-8])
    with pytest.raises(MscError, match="do not belong together"):
        Policy.load(saved)
    (saved / TENSORS_FILE).unlink()
    with pytest.raises(MscError, match=TENSORS_FILE):
        Policy.load(saved)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([(4, 3)], "do not follow each other"),
        ([(4, len(FEATURES)), (1, 5)], "do not follow each other"),
        ([(4, len(FEATURES)), (2, 4)], "ends in 2 numbers, read as clip"),
        ([], "do not follow each other"),
    ],
)
def test_layers_must_fit(saved, layers, message):
    head = Policy.load(saved).head
    arrays = tuple((np.zeros(shape, np.float32), np.zeros(shape[0], np.float32)) for shape in layers)
    with pytest.raises(MscError, match=message):
        Policy(head, arrays)


def test_numbers_of_a_policy_are_finite(saved):
    policy = Policy.load(saved)
    weight, bias = policy.layers[0]
    with pytest.raises(MscError, match="not finite"):
        dataclasses.replace(policy, layers=((weight * np.inf, bias), *policy.layers[1:]))
