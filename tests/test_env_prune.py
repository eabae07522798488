"""`MSC/Prune-v0`: the conformance suite, the budget's walls, rewards and what is refused."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium.error import InvalidAction

from experiments.models import mobilenet, resnet20
from msc_core import MscError
from msc_gym import CompressionTask, Evaluator
from msc_gym.envs import (
    FEATURES,
    Episode,
    Latency,
    PruneEnv,
    pay,
)
from tests.conformance.env_suite import Golden, failing, rollout
from tests.env_tiny import TinySuite

KEEP, DROP = np.ones(1, np.float32), -np.ones(1, np.float32)


class TestPrune(TinySuite):
    """The golden episodes are on ResNet-20 at half its MACs."""

    name, parts, largest = "Prune", ("prune",), KEEP
    budget: ClassVar = {"macs": 0.5}
    episodes: ClassVar = [
        Golden(
            np.array([-1.0], np.float32),
            [8, 8, 8, 8, 8, 16, 24, 32, 56, 64, 64, 56],
            [32] * 12,
            [7.0, 0.0, 8.0, 7.016, 5.312, 7.5, 13.0, 2.113, 13.0, 0.0, 0.0, 4.746, 6.177, 9.25, 13.0],
        ),
        Golden(
            np.array([0.0], np.float32),
            [8, 8, 8, 8, 16, 16, 16, 32, 64, 64, 64, 56],
            [32] * 12,
            [7.0, 0.0, 8.0, 7.016, 5.312, 7.5, 13.0, 2.113, 13.0, 0.0, 0.0, 4.702, 6.199, 9.375, 13.0],
        ),
        Golden(
            np.array([1.0], np.float32),
            [16, 16, 16, 16, 32, 24, 8, 8, 16, 16, 24, 16],
            [32] * 12,
            [7.0, 0.0, 8.0, 7.016, 5.312, 7.5, 13.0, 2.113, 13.0, 0.0, 0.0, 2.153, 6.45, 8.375, 13.0],
        ),
    ]


def test_what_an_episode_says(tiny_task):
    env = PruneEnv(tiny_task, reward="latency")
    steps = rollout(env, [KEEP, DROP, KEEP, KEEP])
    infos = [step[4] for step in steps]
    assert [info["site"] for info in infos] == [-1, 0, 1, 2, 3]
    counts = [info["count"] for info in infos[1:]]
    assert counts == list(
        env.unwrapped.plan and [len(env.plan.prune.get(g.name, range(g.size))) for g in tiny_task.groups]
    )
    assert [info["applied"] for info in infos[1:]] == [
        c / g.size for c, g in zip(counts, tiny_task.groups, strict=True)
    ]
    assert infos[-1]["plan"] == env.plan.hash and infos[-1]["error"] == ""
    assert infos[-1]["macs"] == pytest.approx(env.measurement.macs / tiny_task.cost_model.full.macs)
    assert steps[-1][1] == pay(Latency(), env.measurement) and infos[-1]["latency_ratio"] > 0
    env.close()


def test_observations_are_amcs_features(tiny_task):
    env = PruneEnv(tiny_task, Evaluator(tiny_task, worker=failing))
    rows = [dict(zip(FEATURES, step[0], strict=True)) for step in rollout(env, [DROP] * 4)]
    assert [row["index"] for row in rows[:4]] == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert [row["channels_out"] for row in rows[:4]] == pytest.approx([16 / 48, 32 / 48, 32 / 48, 1])
    assert [row["channels_in"] for row in rows[:4]] == pytest.approx([1 / 32, 16 / 32, 1, 1])
    assert [row["positions"] for row in rows[:4]] == pytest.approx([1, 0.25, 0.25, 16 / 196])
    assert [row["stride"] for row in rows[:4]] == [1, 1, 0.5, 1] and {row["kernel"] for row in rows} == {1}
    assert {row["type"] for row in rows} == {0}
    reduced = [row["reduced"] for row in rows]
    assert reduced[0] == 0 and reduced == sorted(reduced) and reduced[-1] > 0.5
    rest = [row["rest"] for row in rows]
    assert rest[0] == 1 and rest == sorted(rest, reverse=True) and rest[-1] == 0
    assert rows[0]["previous"] == 1 and rows[1]["previous"] == 0.5


# The budget


@pytest.fixture(scope="module")
def large(tiny_data):
    """Untrained networks with many groups: enough for everything but accuracy."""
    return {net.__name__: CompressionTask(net(), tiny_data, calibration=10) for net in (resnet20, mobilenet)}


@pytest.mark.parametrize("name", ["resnet20", "mobilenet"])
def test_filled_episodes_use_the_budget(large, name):
    task, rng = large[name], np.random.default_rng(0)
    for _ in range(20):
        episode = Episode(task, fill=True)
        while not episode.done:
            episode.step([rng.uniform() * rng.uniform()])
        last = task.groups[-1]
        more = [c for c in task.choices(last) if c > episode.choices[last.name]]
        assert not any(task.within_budget(episode.choices | {last.name: c}) for c in more)
        assert task.cost_model.cost(episode.choices).macs >= 0.45 * task.cost_model.full.macs


def test_without_a_budget_actions_are_free(large):
    task = dataclasses.replace(large["resnet20"], budget={})
    for ratio, counts in ((0.0, task.floor_choices), (1.0, task.full_choices)):
        episode = Episode(task)
        while not episode.done:
            episode.step([ratio])
        assert episode.choices == counts


# What is refused


def test_what_the_environment_refuses(tiny_task):
    with pytest.raises(MscError, match="unknown reward 'acuracy'; did you mean 'accuracy'"):
        PruneEnv(tiny_task, reward="acuracy")
    with pytest.raises(gymnasium.error.UnsupportedMode):
        PruneEnv(tiny_task, render_mode="human")
    with pytest.raises(MscError, match="no such job file"):
        PruneEnv("nowhere.yaml")
    env = PruneEnv(tiny_task)
    env.reset()
    for action in (np.array([np.nan]), np.zeros(2)):
        with pytest.raises(InvalidAction):
            env.step(action)
