"""`MSC/Prune-v0`: choose how many channels each group keeps; the last step is paid with a measurement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import InvalidAction, ResetNeeded
from gymnasium.spaces import Box

from msc_core.plan import Plan
from msc_gym.engine import Evaluator, Measurement
from msc_gym.envs.episode import FEATURES, Episode, Observation
from msc_gym.envs.rewards import Accuracy, Reward, parse_reward, pay
from msc_gym.task import CompressionTask

Action = np.ndarray[Any, np.dtype[np.float32]]
Info = dict[str, Any]
BAR, STRIPE, HEIGHT = 24, 4, 96  # pixels of `rgb_array`


class PruneEnv(gymnasium.Env[Observation, Action]):
    """One step per prunable group, in network order.

    - Observation: `msc_gym.envs.episode.FEATURES`, float32 in [0, 1].
    - Action: one number in [-1, 1], the symmetric range that stable-baselines3 asks for; the keep ratio is
      `(1 + action) / 2`, so 1 keeps the group whole. The nearest count inside the budget is applied (`Episode` has the
      rules), and `info["applied"]` is its ratio.
    - Reward: 0 until the last step, which terminates with `reward(measurement)`; a plan that cannot be measured is paid
      the reward's floor, with the reason in `info["error"]`.
    - Info, the same keys at every step: `group` (index of the one decided, -1 after reset), `applied`, `count`, `macs`
      (share left), `accuracy` and `plan` (hash), both empty until the end, `error`; and `latency_ratio` for rewards
      that are not deterministic, which are the only ones that measure latency.

    `task` is a `CompressionTask` or the path of a job file. An `evaluator` that is passed in is shared and stays open.
    The environment draws no random numbers: an episode is a function of its actions.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # noqa: RUF012

    def __init__(
        self,
        task: CompressionTask | str | Path,
        evaluator: Evaluator | None = None,
        reward: Reward | str | None = None,
        render_mode: str | None = None,
    ) -> None:
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise gymnasium.error.UnsupportedMode(f"no render mode {render_mode!r}: {self.metadata['render_modes']}")
        self.task = CompressionTask.from_yaml(task) if isinstance(task, (str, Path)) else task
        self.reward = Accuracy() if reward is None else parse_reward(reward)
        self.render_mode = render_mode
        self.evaluator = evaluator or Evaluator(self.task)
        self._owns_evaluator = evaluator is None
        self.observation_space = Box(0.0, 1.0, (len(FEATURES),), np.float32)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)
        self._episode: Episode | None = None
        self.plan: Plan | None = None  # of the last episode that ended
        self.measurement: Measurement | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, Info]:
        """Begin at the first group; there is nothing to seed and there are no options."""
        super().reset(seed=seed)
        self._episode = Episode(self.task, fill=self.reward.fills)
        return self._episode.observation(), self._info(self._episode, None)

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, Info]:
        """Decide on one group. Raises `ResetNeeded` before `reset` and after the end, `InvalidAction` for a NaN."""
        episode = self._episode
        if episode is None or episode.done:
            raise ResetNeeded("call reset() first: no episode is running")
        value = np.asarray(action, np.float64).reshape(-1)
        if value.size != 1 or np.isnan(value[0]):
            raise InvalidAction(f"expected one number in [-1, 1]; found {action!r}")
        episode.step((1 + float(np.clip(value[0], -1, 1))) / 2)
        if not episode.done:
            return episode.observation(), 0.0, False, False, self._info(episode, None)
        self.plan = self.task.pruner.plan(episode.counts)
        (self.measurement,) = self.evaluator.evaluate([self.plan], latency=not self.reward.deterministic)
        reward = pay(self.reward, self.measurement)
        return episode.observation(), reward, True, False, self._info(episode, self.measurement)

    def render(self) -> Any:
        """`ansi`: a line for each group; `rgb_array`: a bar for each group, uint8 (height, width, 3)."""
        episode = self._episode
        if self.render_mode is None or episode is None:
            return None
        ratios = [episode.counts.get(g.name, 0) / g.size for g in self.task.groups]
        if self.render_mode == "rgb_array":
            return _bars(ratios, episode.index)
        lines = [f"{g.name:32} {self._line(episode, i)}" for i, g in enumerate(self.task.groups)]
        return "\n".join([*lines, f"{'MACs left':32} {episode.macs():.3f}"])

    def close(self) -> None:
        """End what the environment started; may be repeated."""
        if self._owns_evaluator:
            self.evaluator.close()

    def _line(self, episode: Episode, index: int) -> str:
        group = self.task.groups[index]
        if index >= episode.index:
            return "?" if index > episode.index else "<"
        count = episode.counts[group.name]
        return f"{'#' * round(20 * count / group.size):20} {count}/{group.size}"

    def _info(self, episode: Episode, measurement: Measurement | None) -> Info:
        group = self.task.groups[episode.index - 1] if episode.index else None
        info: Info = {
            "group": episode.index - 1,
            "applied": float(episode.previous),
            "count": episode.counts[group.name] if group else 0,
            "macs": float(episode.macs()),
            "accuracy": float(measurement.accuracy) if measurement else 0.0,
            "plan": measurement.plan if measurement else "",
            "error": measurement.error if measurement else "",
        }
        if not self.reward.deterministic:
            info["latency_ratio"] = float((measurement and measurement.latency_ratio) or 0.0)
        return info


def _bars(ratios: list[float], decided: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A bar of the kept share for each decided group, a grey stripe under the open ones."""
    image = np.full((HEIGHT, len(ratios) * BAR, 3), 255, np.uint8)
    for index, ratio in enumerate(ratios):
        columns = slice(index * BAR + STRIPE, (index + 1) * BAR)
        if index < decided:
            image[HEIGHT - round(HEIGHT * ratio) :, columns] = (31, 119, 180)
        else:
            image[HEIGHT - STRIPE :, columns] = 180
    return image
