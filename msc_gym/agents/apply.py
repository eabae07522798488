"""A policy that was learned before, perhaps on another network, applied to a task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from msc_core.errors import MscError
from msc_gym.agents.learner import truncated
from msc_gym.agents.policy import Policy
from msc_gym.decisions import Choices
from msc_gym.envs import Episode
from msc_gym.task import CompressionTask

NOISE = 0.1  # of the range of a number


class ApplyPolicy:
    """The first trial is what the policy does; the others do so with truncated normal noise, and nothing is learned.

    `path` is the folder of a saved policy. Raises `MscError` if there is none that decides what the task decides.
    """

    def __init__(
        self, task: CompressionTask, trials: int = 1, seed: int = 0, fill: bool = True,
        path: str | Path = "", noise: float = NOISE,
    ) -> None:  # fmt: skip
        if not path:
            raise MscError("agent 'policy' applies a saved policy and needs its folder: option path")
        self._task, self._fill, self._noise = task, fill, noise
        self._policy = Policy.load(path)
        self._policy.check(task)
        self._rng = np.random.default_rng(seed)
        self._first = True

    def ask(self) -> dict[str, int] | None:
        """What the policy does, then something near it."""
        if self._first:
            self._first = False
            return self._policy.choices(self._task, self._fill)
        episode = Episode(self._task, self._fill)
        while not episode.done:
            numbers = np.asarray(self._policy.decide(episode), np.float32)
            episode.step([float(number) for number in truncated(self._rng, numbers, self._noise)])
        return episode.choices

    def tell(self, choices: Choices, reward: float, values: Sequence[float] = ()) -> None:
        """There is nothing to learn."""
