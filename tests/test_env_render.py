"""What an episode looks like: a table, and bars."""

from __future__ import annotations

import numpy as np
import pytest

from msc_gym import Evaluator
from msc_gym.envs import CompressEnv, QuantizeEnv
from msc_gym.envs.render import BAR, COLOURS, HEIGHT, OPEN, STRIPE
from tests.conformance.env_suite import failing
from tests.env_tiny import BITS


@pytest.fixture
def task(tiny_task):
    return tiny_task.changed(decide=("prune", "quantize"), bits=BITS, budget={})


def played(task, mode):
    """After two of five sites: half of 16 channels with 8 bits, all of 32 left as they are."""
    env = CompressEnv(task, Evaluator(task, worker=failing), render_mode=mode)
    assert env.render() is None
    env.reset()
    env.step(np.array([0.0, 0.0]))
    env.step(np.array([1.0, 1.0]))
    return env


def test_the_table(task):
    lines = played(task, "ansi").render().split("\n")
    assert lines[0].split() == ["site", "channels", "bits"] and set(lines[1]) == {"-", " "}
    assert [line.split() for line in lines[2:7]] == [
        [task.sites[0].name, "#" * 10, "8/16", "8"],
        [task.sites[1].name, "#" * 20, "32/32", "32"],
        [task.sites[2].name, "<", "<"],
        [task.sites[3].name, "?", "?"],
        [task.sites[4].name, "?"],  # the head decides only bits
    ]
    assert lines[7].startswith("MACs left: 0.") and len(lines) == 8


def test_the_image(task):
    picture = played(task, "rgb_array").render()
    assert picture.dtype == np.uint8 and picture.shape == (HEIGHT, 5 * BAR, 3)
    width = (BAR - STRIPE) // 2
    channels, bits = STRIPE, STRIPE + width  # the first pixel of each bar

    def height(column, colour):
        return int((picture[:, column] == colour).all(axis=1).sum())

    assert height(channels, COLOURS["prune"]) == HEIGHT // 2 and height(bits, COLOURS["quantize"]) == HEIGHT // 4
    assert height(BAR + channels, COLOURS["prune"]) == height(BAR + bits, COLOURS["quantize"]) == HEIGHT
    assert height(2 * BAR + channels, (OPEN,) * 3) == height(4 * BAR + bits, (OPEN,) * 3) == STRIPE
    assert (picture[:, 4 * BAR + channels] == 255).all()  # no channels there


def test_one_part_has_the_whole_column(task):
    env = QuantizeEnv(task.deciding("quantize"), Evaluator(task, worker=failing), render_mode="rgb_array")
    env.reset()
    env.step(2)
    assert (env.render()[:, STRIPE:BAR] == COLOURS["quantize"]).all()
