"""Agents: plain objects that propose choices and are told the reward."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Protocol

from msc_gym.agents.agent import Agent
from msc_gym.agents.amc import AMC
from msc_gym.agents.apply import ApplyPolicy
from msc_gym.agents.bisection import Bisection
from msc_gym.agents.evolution import Evolution
from msc_gym.agents.greedy import Greedy
from msc_gym.agents.grid import Grid
from msc_gym.agents.learner import Learner
from msc_gym.agents.optuna import SAMPLERS, OptunaAgent
from msc_gym.agents.policy import Policy
from msc_gym.agents.random import Random
from msc_gym.agents.sb3 import ALGORITHMS, SB3
from msc_gym.agents.uniform import Uniform
from msc_gym.task import CompressionTask

__all__ = [
    "AGENTS",
    "AMC",
    "LEARNERS",
    "SB3",
    "Agent",
    "AgentFactory",
    "ApplyPolicy",
    "Bisection",
    "Evolution",
    "Greedy",
    "Grid",
    "Learner",
    "OptunaAgent",
    "Policy",
    "Random",
    "Uniform",
]


class AgentFactory(Protocol):
    """How an agent is made: `trials` is how many are planned, `fill` whether the reward wants the budget used up.

    An agent that has options of its own takes them as further keywords, with defaults.
    """

    def __call__(self, task: CompressionTask, trials: int = ..., seed: int = ..., fill: bool = ...) -> Agent:
        """A fresh agent."""
        ...


LEARNERS: Mapping[str, AgentFactory] = {  # each makes a `Learner`
    "amc": AMC,
    "amc_paper": partial(AMC, exact=True),
    **{name: partial(SB3, algorithm=name) for name in ALGORITHMS},
}
SEARCHERS: Mapping[str, AgentFactory] = {  # without gradients
    **{name: partial(OptunaAgent, sampler=name) for name in SAMPLERS},
    "evolution": Evolution,
    "greedy": Greedy,
    "bisection": Bisection,
    "grid": Grid,
}
AGENTS: Mapping[str, AgentFactory] = {
    **LEARNERS, "policy": ApplyPolicy, **SEARCHERS, "uniform": Uniform, "random": Random
}  # fmt: skip
