"""`MSC/Quantize-v0`: the conformance suite, what it decides and what is refused."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
from gymnasium.error import InvalidAction

from msc_gym.envs import FEATURES, QuantizeEnv
from tests.conformance.env_suite import Golden, rollout
from tests.env_tiny import BITS, TinySuite


class TestQuantize(TinySuite):
    """The golden episodes are on ResNet-20 at a tenth of its MACs times bits."""

    name, parts, largest = "Quantize", ("quantize",), 2
    budget: ClassVar = {"bops": 0.1}
    episodes: ClassVar = [
        Golden(
            0,
            [0] * 22,
            [4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 32, 8, 32],
            [12.0, 2.0, 12.562, 12.516, 9.19, 13.5, 19.444, 1.0, 0.0, 23.0, 0.0, 0.0, 11.242, 23.0, 5.625],
        ),
        Golden(
            1,
            [0] * 22,
            [8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 32],
            [12.0, 2.0, 12.562, 12.516, 9.19, 13.5, 19.444, 1.0, 0.0, 23.0, 0.0, 0.0, 11.242, 23.0, 7.25],
        ),
        Golden(
            2,
            [0] * 22,
            [32, 32, 8, 8, 8, 8, 4, 8, 4, 8, 4, 4, 4, 4, 4, 4, 8, 4, 4, 4, 4, 32],
            [12.0, 2.0, 12.562, 12.516, 9.19, 13.5, 19.444, 1.0, 0.0, 23.0, 0.0, 0.0, 11.242, 23.0, 7.25],
        ),
    ]


@pytest.fixture(scope="module")
def task(tiny_task):
    return tiny_task.changed(decide=("quantize",), bits=BITS, budget={})


def test_an_action_is_one_of_the_bits(task):
    env = QuantizeEnv(task)
    steps = rollout(env, [2, 1, np.int64(0), np.array(2), 2])
    assert [info["bits"] for *_, info in steps] == [32, 32, 8, 4, 32, 32]
    assert [info["count"] for *_, info in steps] == [0] * 6 and [info["applied"] for *_, info in steps] == [1.0] * 6
    assert [info["site"] for *_, info in steps] == [-1, 0, 1, 2, 3, 4]
    assert {w: p.bits for w, p in env.plan.quantize.items() if p.bits < 8} == {task.kernels[task.sites[2].layer]: 4}
    assert steps[-1][4]["macs"] == 1.0 and steps[-1][4]["plan"] == env.measurement.plan
    rows = [dict(zip(FEATURES, step[0], strict=True)) for step in steps]
    assert [row["previous_bits"] for row in rows] == [1, 1, 0.25, 0.125, 1, 1]
    assert {row["previous"] for row in rows} == {1} and {(row["prunes"], row["quantizes"]) for row in rows} == {(0, 1)}
    env.close()


def test_what_the_environment_refuses(task):
    env = QuantizeEnv(task)
    env.reset()
    for action in (3, -1, 0.5, np.array([1]), None):
        with pytest.raises(InvalidAction, match="an integer from 0 to 2"):
            env.step(action)
