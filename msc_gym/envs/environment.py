"""`MSC/Prune-v0`, `MSC/Quantize-v0`, `MSC/Compress-v0`: one step per site; the last is paid with a measurement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import gymnasium
import numpy as np
from gymnasium.error import InvalidAction, ResetNeeded
from gymnasium.spaces import Box, Discrete, Space

from msc_core.plan import Plan
from msc_gym.decisions import FLOAT, Choices, Part
from msc_gym.engine import Evaluator, Measurement
from msc_gym.envs.episode import Episode, Observation
from msc_gym.envs.features import FEATURES
from msc_gym.envs.render import image, table
from msc_gym.envs.rewards import Accuracy, Reward, parse_reward, pay, settle
from msc_gym.task import CompressionTask

Floats = np.ndarray[Any, np.dtype[np.float32]]
Action = TypeVar("Action")
Info = dict[str, Any]


class CompressionEnv(gymnasium.Env[Observation, Action], ABC):
    """One step per site of the task (see `msc_gym.decisions`), in network order.

    - Observation: `msc_gym.envs.FEATURES`, float32 in [0, 1].
    - Action: see the subclasses. The nearest option inside the budget is applied (`Episode` has the rules); `info` says
      which.
    - Reward: 0 until the last step, which terminates with `reward(measurement)`; a plan that cannot be measured is paid
      the reward's floor, with the reason in `info["error"]`.
    - Info, the same keys at every step: `site` (index of the one decided, -1 after reset), `applied` (the ratio of
      channels kept there, 1 where none are decided), `count` (of channels, 0 there), `bits` (32 where the layer stays
      float), `macs` (share left), `accuracy` and `plan` (hash), both empty until the end, `error`; and `latency_ratio`
      for rewards that are not deterministic, which are the only ones that measure latency.

    `task` is a `CompressionTask` or the path of a job file; what it decides is the environment's part. An `evaluator`
    that is passed in is shared and stays open. The environment draws no random numbers: an episode is a function of its
    actions.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # noqa: RUF012
    decide: ClassVar[tuple[Part, ...]]

    def __init__(
        self,
        task: CompressionTask | str | Path,
        evaluator: Evaluator | None = None,
        reward: Reward | str | None = None,
        render_mode: str | None = None,
    ) -> None:
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise gymnasium.error.UnsupportedMode(f"no render mode {render_mode!r}: {self.metadata['render_modes']}")
        task = CompressionTask.from_yaml(task) if isinstance(task, (str, Path)) else task
        self.task = task.deciding(*self.decide)
        self.reward = Accuracy() if reward is None else parse_reward(reward)
        self.render_mode = render_mode
        self.evaluator = evaluator or Evaluator(self.task)
        self._owns_evaluator = evaluator is None
        self.observation_space = Box(0.0, 1.0, (len(FEATURES),), np.float32)
        self.action_space = self._actions()
        self._episode: Episode | None = None
        self.measurement: Measurement | None = None  # of the last episode that ended

    @property
    def tasks(self) -> tuple[CompressionTask, ...]:
        """The task, in the form of wrappers that have several."""
        return (self.task,)

    @property
    def episode(self) -> Episode | None:
        """The episode that runs or has ended."""
        return self._episode

    @property
    def choices(self) -> dict[str, int]:
        """The option that was applied, by decision, of the episode so far."""
        return {} if self._episode is None else dict(self._episode.choices)

    @property
    def plan(self) -> Plan | None:
        """The plan of the episode that has ended, else `None`."""
        return self.task.plan(self._episode.choices) if self._episode is not None and self._episode.done else None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, Info]:
        """Begin at the first site; there is nothing to seed and there are no options."""
        super().reset(seed=seed)
        self._episode = Episode(self.task, fill=self.reward.fills)
        return self._episode.observation(), self._info(self._episode, None)

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, Info]:
        """Decide on one site. Raises `ResetNeeded` before `reset` and after the end, `InvalidAction` for a NaN."""
        episode = self._episode
        if episode is None or episode.done:
            raise ResetNeeded("call reset() first: no episode is running")
        episode.step(self._numbers(action))
        if not episode.done:
            return episode.observation(), 0.0, False, False, self._info(episode, None)
        self.measurement = self._measured(episode.choices)
        reward = pay(self._worth, self.measurement)
        return episode.observation(), reward, True, False, self._info(episode, self.measurement)

    def ending(self, action: Action) -> Choices | None:
        """The choices that the episode would end with by that action; `None` if it would not end. Changes nothing."""
        if self._episode is None or self._episode.index != len(self.task.sites) - 1:
            return None
        last = self._episode.copy()
        last.step(self._numbers(action))
        return last.choices

    @abstractmethod
    def action_of(self, numbers: Sequence[float]) -> Action:
        """The action that means those numbers, one in [0, 1] for each part that is decided, as `Episode.step` takes."""

    def render(self) -> Any:
        """`ansi`: a table of the sites; `rgb_array`: bars for each site, uint8 (height, width, 3)."""
        episode = self._episode
        if self.render_mode is None or episode is None:
            return None
        return image(episode) if self.render_mode == "rgb_array" else table(episode)

    def close(self) -> None:
        """End what the environment started; may be repeated."""
        if self._owns_evaluator:
            self.evaluator.close()

    @cached_property
    def _worth(self) -> Reward:
        return settle(self.reward, lambda: self._measured(self.task.identity))

    def _measured(self, candidate: Plan | Choices) -> Measurement:
        (measurement,) = self.evaluator.evaluate([candidate], latency=not self.reward.deterministic)
        return measurement

    @abstractmethod
    def _actions(self) -> Space[Action]:
        """The action space."""

    @abstractmethod
    def _numbers(self, action: Action) -> list[float]:
        """A number in [0, 1] for each part that is decided."""

    def _info(self, episode: Episode, measurement: Measurement | None) -> Info:
        decided = self.task.sites[episode.index - 1].decisions if episode.index else ()
        options = {d.part: (episode.choices[d.name], d) for d in decided}
        count, group = options.get("prune", (0, None))
        info: Info = {
            "site": episode.index - 1,
            "applied": float(group.share(count)) if group else 1.0,
            "count": count,
            "bits": options.get("quantize", (FLOAT, None))[0],
            "macs": float(episode.macs()),
            "accuracy": float(measurement.accuracy) if measurement else 0.0,
            "plan": measurement.plan if measurement else "",
            "error": measurement.error if measurement else "",
        }
        if not self.reward.deterministic:
            info["latency_ratio"] = float((measurement and measurement.latency_ratio) or 0.0)
        return info


class PruneEnv(CompressionEnv[Floats]):
    """A step for each group. One number in [-1, 1], the symmetric range that stable-baselines3 asks for; the ratio of
    channels to keep is `(1 + action) / 2`."""

    decide: ClassVar[tuple[Part, ...]] = ("prune",)

    def action_of(self, numbers: Sequence[float]) -> Floats:  # noqa: D102
        return np.asarray([2 * number - 1 for number in numbers], np.float32)

    def _actions(self) -> Space[Floats]:
        return Box(-1.0, 1.0, (len(self.decide),), np.float32)

    def _numbers(self, action: Floats) -> list[float]:
        values = np.asarray(action, np.float64).reshape(-1)
        if values.size != len(self.decide) or np.isnan(values).any():
            raise InvalidAction(f"expected {len(self.decide)} number(s) in [-1, 1]; found {action!r}")
        return [(1 + min(max(value, -1.0), 1.0)) / 2 for value in values.tolist()]


class QuantizeEnv(CompressionEnv[int]):
    """A step for each layer. The action is the index of one of `task.bits`, which ascend."""

    decide: ClassVar[tuple[Part, ...]] = ("quantize",)

    def action_of(self, numbers: Sequence[float]) -> int:  # noqa: D102
        return min(int(numbers[0] * len(self.task.bits)), len(self.task.bits) - 1)

    def _actions(self) -> Space[int]:
        return cast(Space[int], Discrete(len(self.task.bits)))

    def _numbers(self, action: int) -> list[float]:
        if not self.action_space.contains(action):
            raise InvalidAction(f"expected an integer from 0 to {len(self.task.bits) - 1}; found {action!r}")
        return [(int(action) + 0.5) / len(self.task.bits)]


class CompressEnv(PruneEnv):
    """A step for each layer, with the group that begins there. Two numbers in [-1, 1]: the ratio as in `PruneEnv`, and
    the bits, -1 for the least of `task.bits` to 1 for the most. Where a site decides only one, the other has no effect.
    """

    decide: ClassVar[tuple[Part, ...]] = ("prune", "quantize")
