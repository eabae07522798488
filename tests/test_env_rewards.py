"""Rewards: what they are worth, alone and paid by an environment or a search."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from msc_core import MscError
from msc_gym import Evaluator, Measurement, search
from msc_gym.envs import (
    REWARDS,
    Accuracy,
    AccuracyChange,
    AccuracyCost,
    AccuracyParams,
    Latency,
    LatencyTarget,
    PruneEnv,
    WithinLatency,
    parse_reward,
    pay,
    settle,
)
from tests.conformance.env_suite import Toy, rollout


@pytest.mark.parametrize("reward", REWARDS.values(), ids=REWARDS)
def test_rewards_rank_what_they_are_about(reward):
    def worth(**values):
        return pay(
            reward,
            Measurement("p", **({"accuracy": 0.9, "macs": 10**6, "params": 10**5, "latency_ratio": 0.5} | values)),
        )

    assert worth(accuracy=0.91) > worth()
    assert worth(error="no") == reward.floor <= worth(accuracy=0.0)
    assert reward.fills == (worth(macs=10, params=10) == worth() and worth(latency_ratio=0.1) == worth())
    assert type(worth()) is float and math.isfinite(worth())


def test_rewards_are_those_of_amc():
    m = Measurement("p", accuracy=0.9, macs=10**6, params=10**4)
    assert Accuracy()(m) == pytest.approx(-0.1)
    assert AccuracyCost()(m) == pytest.approx(-0.1 * math.log(10**6))
    assert AccuracyParams()(m) == pytest.approx(-0.1 * math.log(10**4))
    assert pay(Latency(2.0), m) == Latency(2.0).floor  # nothing was measured
    with pytest.raises(MscError, match="weight of latency"):
        Latency(-1)


def test_a_latency_limit_charges_only_what_is_above_it():
    reward = parse_reward("accuracy", latency_limit=0.7)
    assert reward == WithinLatency(Accuracy(), 0.7)
    assert reward.fills and not reward.deterministic

    def worth(ratio):
        return pay(reward, Measurement("p", accuracy=0.9, latency_ratio=ratio))

    assert worth(0.5) == worth(0.7) == pytest.approx(-0.1)
    assert worth(0.8) == pytest.approx(-0.1 - 0.1 * reward.weight)
    assert worth(None) == reward.floor < worth(3.0)
    with pytest.raises(MscError, match="a ratio in"):
        WithinLatency(Accuracy(), 1.5)


def test_haqs_reward_is_in_points_from_the_original():
    reward = settle(AccuracyChange(), lambda: Measurement("whole", accuracy=0.92))
    assert pay(reward, Measurement("p", accuracy=0.92)) == 0
    assert pay(reward, Measurement("p", accuracy=0.90)) == pytest.approx(-0.2)  # two points
    assert settle(AccuracyChange(), lambda: Measurement("whole", error="no")) == AccuracyChange()
    both = settle(WithinLatency(AccuracyChange(), 0.5), lambda: Measurement("whole", accuracy=0.92))
    assert both == WithinLatency(reward, 0.5)
    assert settle(Accuracy(), lambda: pytest.fail("not asked for")) == Accuracy()


def test_galens_reward_is_highest_at_the_target():
    def worth(ratio, reward=REWARDS["latency_target"]):
        return pay(reward, Measurement("p", accuracy=0.9, latency_ratio=ratio))

    assert worth(0.5) == 0.9
    assert worth(0.55) == pytest.approx(0.9 - 5 * 0.1) == worth(0.45)
    assert worth(0.3, LatencyTarget(0.25, beta=-0.5)) == pytest.approx(0.9 - 0.5 * 0.2)
    assert worth(None) == worth(9.0) == LatencyTarget().floor
    for target, beta in ((0, -1), (1.5, -1), (0.5, 1), (0.5, math.nan)):
        with pytest.raises(MscError, match="a latency target is"):
            LatencyTarget(target, beta)


def test_the_original_is_worth_nothing_to_haq(tiny_task):
    task = tiny_task.changed(budget={})
    env = PruneEnv(task, Evaluator(task, worker=Toy(task, goal=0.9)), reward="accuracy_change")
    keep = [np.ones(1, np.float32)] * len(task.sites)
    assert rollout(env, keep)[-1][1] == 0
    assert rollout(env, [np.zeros(1, np.float32)] * len(task.sites))[-1][1] < 0
    found = search(task, "uniform", 1, reward="accuracy_change", evaluator=env.evaluator)
    assert found.best.reward == 0  # without a budget, uniform keeps everything


@dataclass(frozen=True)
class Odd:
    """A reward of one's own."""

    deterministic: ClassVar[bool] = True
    floor: ClassVar[float] = -7.0
    fills: ClassVar[bool] = False

    def __call__(self, measurement):
        return math.nan if measurement.accuracy > 0.9 else measurement.accuracy


def test_a_reward_of_ones_own_is_an_object(tiny_task):
    task = tiny_task.changed(budget={})
    env = PruneEnv(task, Evaluator(task, worker=Toy(task, goal=1.0)), reward=Odd())
    assert rollout(env, [np.ones(1, np.float32)] * len(task.sites))[-1][1] == -7.0  # not a number is the floor
    assert 0 < rollout(env, [np.zeros(1, np.float32)] * len(task.sites))[-1][1] < 0.9
