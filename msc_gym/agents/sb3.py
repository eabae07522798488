"""Algorithms of stable-baselines3 and sb3-contrib as agents; `hyperparameters.yaml` has their settings.

The first trial on a task is the uniform plan, so that the result is never below it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from msc_core.errors import MscError, nearest
from msc_gym.agents.learner import check_parts, replay
from msc_gym.agents.policy import Policy, make_policy
from msc_gym.agents.randomness import OwnRandom
from msc_gym.agents.sb3_models import Step, make_model
from msc_gym.agents.uniform import uniform_choices
from msc_gym.decisions import Choices
from msc_gym.envs import Episode
from msc_gym.task import CompressionTask

ALGORITHMS = ("ddpg", "td3", "sac", "ppo", "a2c", "trpo", "maskable_ppo")


@cache
def hyperparameters() -> Mapping[str, Mapping[str, Any]]:
    """The settings of each algorithm."""
    text = files("msc_gym.agents").joinpath("hyperparameters.yaml").read_text("utf-8")
    values: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return values


class SB3:
    """A learning agent; `changes` are settings other than `hyperparameters.yaml` has them.

    Raises `MscError` for an unknown algorithm or setting.
    """

    def __init__(
        self, task: CompressionTask, trials: int = 100, seed: int = 0, fill: bool = True,
        algorithm: str = "ppo", **changes: Any,
    ) -> None:  # fmt: skip
        if algorithm not in ALGORITHMS:
            raise MscError(f"unknown algorithm {algorithm!r}{nearest(algorithm, ALGORITHMS)}")
        known = hyperparameters()[algorithm]
        for name in changes.keys() - known.keys():
            raise MscError(f"agent {algorithm!r} has no setting {name!r}{nearest(name, known)}")
        self._settings = {**known, **changes}
        self._task, self._fill, self._trials, self._algorithm = task, fill, trials, algorithm
        self._random = OwnRandom()
        with self._random:
            self._model = make_model(algorithm, len(task.decide), seed, self._settings)
        self._asked = 0
        self._numbers: dict[CompressionTask, int] = {}
        self._pending: deque[tuple[CompressionTask, list[Step]]] = deque()  # episodes that were asked

    def visit(self, task: CompressionTask) -> None:
        """Ask about this task from now on."""
        check_parts(self._task, task)
        self._task = task

    def ask(self) -> dict[str, int] | None:
        """An episode of the policy as it is now."""
        steps: list[Step] = []
        if self._task in self._numbers:
            choices = self._episode(steps)
        else:
            self._numbers[self._task] = len(self._numbers)
            choices = uniform_choices(self._task)
        self._asked += 1
        self._pending.append((self._task, steps))
        return choices

    def tell(self, choices: Choices, reward: float, values: Sequence[float] = ()) -> None:
        """Learn from a finished trial."""
        task, proposed = self._pending.popleft()
        with self._random:
            self._model.learn(self._numbers[task], proposed, replay(task, choices), reward)

    def policy(self) -> Policy:
        """What the network would do without noise."""
        model = self._model
        return make_policy(self._algorithm, self._task, model.activation, model.output, model.layers(), self._settings)

    def _episode(self, steps: list[Step]) -> dict[str, int]:
        episode = Episode(self._task, self._fill)
        with self._random:
            while not episode.done:
                numbers, step = self._model.act(episode, self._asked / self._trials)
                steps.append(step)
                episode.step(numbers)
        return episode.choices
