"""`MSC/Compress-v0`: the conformance suite, and how its two numbers are taken."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
from gymnasium.error import InvalidAction

from msc_gym.envs import FEATURES, CompressEnv
from tests.conformance.env_suite import Golden, rollout
from tests.env_tiny import BITS, TinySuite

LARGEST = np.ones(2, np.float32)


class TestCompress(TinySuite):
    """The golden episodes are on ResNet-20 at a twentieth of its MACs times bits, in an eighth of its bytes."""

    name, parts, largest = "Compress", ("prune", "quantize"), LARGEST
    budget: ClassVar = {"bops": 0.05, "bytes": 0.125}
    episodes: ClassVar = [
        Golden(
            np.array([-1.0, -1.0], np.float32),
            [8, 8, 0, 8, 0, 8, 0, 8, 8, 0, 8, 0, 8, 0, 16, 16, 0, 40, 0, 64, 0, 0],
            [4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 32, 32, 32, 8, 32],
            [12.0, 2.0, 12.562, 12.516, 9.19, 13.5, 19.444, 2.41, 12.0, 23.0, 0.0, 11.904, 8.981, 11.25, 7.375],
        ),
        Golden(
            np.array([0.0, 1.0], np.float32),
            [8, 8, 0, 8, 0, 8, 0, 16, 8, 0, 8, 0, 8, 0, 24, 16, 0, 16, 0, 16, 0, 0],
            [32, 32, 32, 32, 8, 8, 8, 4, 4, 8, 8, 4, 4, 4, 4, 4, 8, 4, 4, 4, 4, 32],
            [12.0, 2.0, 12.562, 12.516, 9.19, 13.5, 19.444, 2.41, 12.0, 23.0, 0.0, 11.877, 8.986, 8.625, 8.875],
        ),
        Golden(
            np.array([1.0, 0.0], np.float32),
            [16, 16, 0, 16, 0, 16, 0, 32, 32, 0, 32, 0, 32, 0, 64, 64, 0, 16, 0, 16, 0, 0],
            [8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 4, 8, 4, 4, 4, 4, 32],
            [12.0, 2.0, 12.562, 12.516, 9.19, 13.5, 19.444, 2.41, 12.0, 23.0, 0.0, 0.699, 11.155, 19.25, 6.625],
        ),
    ]


@pytest.fixture(scope="module")
def task(tiny_task):
    return tiny_task.changed(decide=("prune", "quantize"), bits=BITS, budget={})


def test_an_action_is_a_ratio_and_bits(task):
    env = CompressEnv(task)
    steps = rollout(env, [LARGEST, np.array([0.0, -1.0]), np.array([-1.0, 0.0]), np.array([1.0, 1.0]), np.zeros(2)])
    infos = [step[4] for step in steps]
    assert [info["count"] for info in infos] == [0, 16, 16, 8, 48, 0]
    assert [info["applied"] for info in infos] == [1.0, 1.0, 0.5, 0.25, 1.0, 1.0]
    assert [info["bits"] for info in infos] == [32, 32, 4, 8, 32, 8]  # the head decides only bits
    changed = {d.name: env.choices[d.name] for d in task.decisions if env.choices[d.name] < d.full}
    assert env.task.choices_of(env.plan) == changed
    rows = [dict(zip(FEATURES, step[0], strict=True)) for step in steps]
    assert [row["prunes"] for row in rows] == [1, 1, 1, 1, 0, 0] and {row["quantizes"] for row in rows} == {1}
    assert [row["previous"] for row in rows] == [1, 1, 0.5, 0.25, 1, 1]
    assert [row["previous_bits"] for row in rows] == [1, 1, 0.125, 0.25, 1, 0.25]
    env.close()


def test_what_the_environment_refuses(task):
    env = CompressEnv(task)
    env.reset()
    for action in (np.array([0.0]), np.array([0.0, np.nan]), np.zeros(3)):
        with pytest.raises(InvalidAction, match=r"expected 2 number\(s\)"):
            env.step(action)
