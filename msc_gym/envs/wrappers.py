"""Other forms of the environments: all sites in one action, options by index with masks, several tasks in turn.

They go around any of the ids, or around each other: `OneShot(Discretize(gymnasium.make("MSC/Prune-v0", task=task)))`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium.error import InvalidAction, ResetNeeded
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Space
from gymnasium.utils import RecordConstructorArgs

from msc_core.errors import MscError
from msc_gym.decisions import Decision, Part
from msc_gym.engine import Evaluator
from msc_gym.envs.environment import CompressionEnv, Info
from msc_gym.envs.episode import Episode, Observation
from msc_gym.task import CompressionTask

Env = gymnasium.Env[Observation, Any]
Wrapper = gymnasium.Wrapper[Observation, Any, Observation, Any]
Mask = np.ndarray[Any, np.dtype[np.bool_]]


class OneShot(Wrapper, RecordConstructorArgs):
    """The whole episode in one step, which terminates: the actions of all sites, one after the other.

    A `Box` becomes a longer one, a `Discrete` or `MultiDiscrete` a longer `MultiDiscrete`. The observation after
    `reset` is that of the first site; observation and info of the step are those of the last.
    """

    def __init__(self, env: Env) -> None:
        RecordConstructorArgs.__init__(self)
        gymnasium.Wrapper.__init__(self, env)
        self._sites = max(len(task.sites) for task in env.get_wrapper_attr("tasks"))
        self.action_space = _repeated(env.action_space, self._sites)

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, Info]:
        """Decide on everything. Raises `InvalidAction` for another number of numbers."""
        rows = np.asarray(action)
        if rows.shape != self.action_space.shape:
            raise InvalidAction(f"expected {self.action_space.shape} numbers; found {action!r}")
        total = 0.0
        for row in rows.reshape(self._sites, -1):
            one = int(row[0]) if isinstance(self.env.action_space, Discrete) else row
            observation, reward, terminated, truncated, info = self.env.step(one)
            total += float(reward)
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info


class Discretize(Wrapper, RecordConstructorArgs):
    """Each decision by the index of its option, ascending: `Discrete`, or `MultiDiscrete` for channels and bits.

    There are as many indices as the longest list of options has; one that a site lacks means its last. `action_masks`
    is what sb3-contrib's MaskablePPO asks for.
    """

    def __init__(self, env: Env) -> None:
        RecordConstructorArgs.__init__(self)
        gymnasium.Wrapper.__init__(self, env)
        tasks: Sequence[CompressionTask] = env.get_wrapper_attr("tasks")
        self._parts = tuple(tasks[0].decide)
        self._sizes = [max(len(d.options) for t in tasks for d in t.decisions if d.part == p) for p in self._parts]
        self.action_space = MultiDiscrete(self._sizes) if len(self._sizes) > 1 else Discrete(self._sizes[0])

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, Info]:
        """Take the options of those indices, or the nearest inside the budget. Raises `InvalidAction` for others."""
        if not self.action_space.contains(action):
            raise InvalidAction(f"expected {self.action_space}; found {action!r}")
        indices = dict(zip(self._parts, np.atleast_1d(action).tolist(), strict=True))
        episode, choices = self._episode(), dict[str, int]()
        for part, decision in _parts_of(episode).items():
            choices[decision.name] = decision.options[min(indices[part], len(decision.options) - 1)]
        numbers = episode.actions(choices)
        one = cast(CompressionEnv[Any], self.unwrapped).action_of(numbers)
        observation, reward, terminated, truncated, info = self.env.step(one)
        return observation, float(reward), terminated, truncated, info

    def action_masks(self) -> Mask:
        """Which indices are inside the budget: bools, those of channels before those of bits.

        Each part as if the other took its least at this site; where the site does not decide a part, its first index.
        Raises `ResetNeeded` where no episode is running.
        """
        episode, masks = self._episode(), []
        decisions = _parts_of(episode)
        for part, size in zip(self._parts, self._sizes, strict=True):
            mask = np.zeros(size, bool)
            if part in decisions:
                feasible = episode.feasible(decisions[part])
                mask[[decisions[part].options.index(option) for option in feasible]] = True
            else:
                mask[0] = True
            masks.append(mask)
        return np.concatenate(masks)

    def _episode(self) -> Episode:
        episode = cast(CompressionEnv[Any], self.unwrapped).episode
        if episode is None or episode.done:
            raise ResetNeeded("call reset() first: no episode is running")
        return episode


class CycleTasks(Wrapper, RecordConstructorArgs):
    """Several tasks in turn, one for each episode, for agents that shall do well on networks that they have not seen.

    The environment's own task comes first, and again after a `reset` with a seed. `tasks` are tasks or job files;
    `evaluators` may give each of them one that is shared, which stays open.
    """

    def __init__(
        self,
        env: Env,
        tasks: Sequence[CompressionTask | str | Path],
        evaluators: Sequence[Evaluator] | None = None,
    ) -> None:
        RecordConstructorArgs.__init__(self, tasks=tasks, evaluators=evaluators)
        gymnasium.Wrapper.__init__(self, env)
        first = cast(CompressionEnv[Any], env.unwrapped)
        known: Sequence[Evaluator | None] = [None] * len(tasks) if evaluators is None else evaluators
        others = [
            type(first)(task, evaluator, first.reward, first.render_mode)
            for task, evaluator in zip(tasks, known, strict=True)
        ]
        for other in others:
            if other.action_space != first.action_space:
                raise MscError(f"tasks in turn need one action space; found {first.action_space}, {other.action_space}")
        self._envs: list[Env] = [env, *others]
        self._turn = -1

    @property
    def tasks(self) -> list[CompressionTask]:
        """All of them, in the order of their turns."""
        return [task for env in self._envs for task in env.get_wrapper_attr("tasks")]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, Info]:
        """Begin an episode of the next task, of the first if there is a seed."""
        self._turn = 0 if seed is not None else (self._turn + 1) % len(self._envs)
        self.env = self._envs[self._turn]
        return self.env.reset(seed=seed, options=options)

    def close(self) -> None:
        """Close all of them; may be repeated."""
        for env in self._envs:
            env.close()


def _parts_of(episode: Episode) -> dict[Part, Decision]:
    return {decision.part: decision for decision in episode.site.decisions}


def _repeated(space: Space[Any], times: int) -> Space[Any]:
    if isinstance(space, Box):
        return Box(np.tile(space.low, times), np.tile(space.high, times), dtype=np.float32)
    if isinstance(space, MultiDiscrete):
        return MultiDiscrete(np.tile(space.nvec, times))
    if isinstance(space, Discrete):
        return MultiDiscrete([int(space.n)] * times)
    raise MscError(f"an action of all sites needs a Box, Discrete or MultiDiscrete; found {space}")
