"""What the learning agents share: the steps of an episode that is told of, noise, and a policy at the end."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from msc_core.errors import MscError
from msc_gym.agents.agent import Agent
from msc_gym.agents.policy import Policy
from msc_gym.decisions import Choices
from msc_gym.envs import Episode
from msc_gym.task import CompressionTask

Floats = np.ndarray[Any, np.dtype[np.float32]]
Path = list[tuple[Floats, Floats]]  # of an episode: observation and action of each step


class Learner(Agent, Protocol):
    """An agent that learns from what it is told, and leaves a policy that other tasks can use."""

    def visit(self, task: CompressionTask) -> None:
        """Ask about this task from now on. Raises `MscError` if it decides other parts."""
        ...

    def policy(self) -> Policy:
        """What was learned so far."""
        ...


def check_parts(before: CompressionTask, task: CompressionTask) -> None:
    """Raises `MscError` if the tasks decide different parts: a policy has a number for each."""
    if tuple(before.decide) != tuple(task.decide):
        names = " and ".join(task.decide), " and ".join(before.decide)
        raise MscError(f"graph {task.graph.name!r}: the task decides {names[0]}; the agent {names[1]}")


def replay(task: CompressionTask, choices: Choices) -> Path:
    """What an episode with those choices sees; the budget allows them, so only the lower wall must be off."""
    episode, steps = Episode(task, fill=False), []
    while not episode.done:
        action = episode.actions(choices)
        steps.append((episode.observation(), np.asarray(action, np.float32)))
        episode.step(action)
    return steps


def truncated(rng: np.random.Generator, means: Floats, sigma: float) -> Floats:
    """Draws from the normal around each number, truncated to [0, 1]."""
    return np.asarray([_truncated(rng, float(mean), sigma) for mean in means], np.float32)


def _truncated(rng: np.random.Generator, mean: float, sigma: float) -> float:
    for _ in range(100):
        value = float(rng.normal(mean, sigma))
        if 0 <= value <= 1:
            return value
    return mean
