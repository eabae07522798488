"""Random choices inside the budget: the baseline that a learning agent has to beat (Li et al., CVPR 2022)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from msc_gym.decisions import Choices
from msc_gym.envs import Episode
from msc_gym.task import CompressionTask


class Random:
    """Every number is drawn uniformly from [0, 1]; the episode's walls keep the budget, as for every agent."""

    def __init__(self, task: CompressionTask, trials: int = 1, seed: int = 0, fill: bool = True) -> None:
        self._task, self._fill = task, fill
        self._rng = np.random.default_rng(seed)

    def ask(self) -> dict[str, int] | None:
        """Another random plan."""
        episode = Episode(self._task, self._fill)
        while not episode.done:
            episode.step([float(self._rng.uniform()) for _ in self._task.decide])
        return episode.choices

    def tell(self, choices: Choices, reward: float, values: Sequence[float] = ()) -> None:
        """There is nothing to learn."""
