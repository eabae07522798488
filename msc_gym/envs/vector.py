"""Many episodes in lock step: what ends in the same step is measured as one batch, which a pool of workers shares."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import iterate

from msc_core.errors import MscError
from msc_gym.engine import Evaluator
from msc_gym.envs.environment import CompressEnv, CompressionEnv, PruneEnv, QuantizeEnv
from msc_gym.envs.rewards import Reward
from msc_gym.task import CompressionTask


class CompressionVectorEnv(SyncVectorEnv):
    """What a `SyncVectorEnv` of so many environments returns, to the last bit, but measured in batches.

    `autoreset_mode` is gymnasium's: by default the step after an ending resets, and its action is ignored. An
    `evaluator` that is passed in is shared and stays open; its pool is what measures several plans at once. Use
    `gymnasium.make_vec("msc_gym:MSC/Prune-v0", num_envs=8, task=task)`.
    """

    kind: ClassVar[type[CompressionEnv[Any]]]

    def __init__(
        self,
        num_envs: int,
        task: CompressionTask | str | Path,
        evaluator: Evaluator | None = None,
        reward: Reward | str | None = None,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    ) -> None:
        if isinstance(num_envs, bool) or not isinstance(num_envs, int) or num_envs < 1:
            raise MscError(f"num_envs must be an integer of at least 1; found {num_envs!r}")
        task = CompressionTask.from_yaml(task) if isinstance(task, (str, Path)) else task
        self.task = task.deciding(*self.kind.decide)
        self.evaluator = evaluator or Evaluator(self.task)
        self._owns_evaluator = evaluator is None
        make = partial(self.kind, self.task, self.evaluator, reward, render_mode)
        super().__init__([make] * num_envs, autoreset_mode=autoreset_mode)
        self._each = [cast(CompressionEnv[Any], env.unwrapped) for env in self.envs]

    def step(self, actions: Any) -> Any:
        """Step every episode; those that end are measured together first, and found again by their environments."""
        pairs = zip(self._each, iterate(self.action_space, actions), self._autoreset_envs, strict=True)
        endings = [env.ending(action) for env, action, resets in pairs if not resets]
        known = [choices for choices in endings if choices is not None]
        if known:
            self.evaluator.evaluate(known, latency=not self._each[0].reward.deterministic)
        return super().step(actions)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environments, and the evaluator if it was not passed in."""
        super().close_extras(**kwargs)
        if self._owns_evaluator:
            self.evaluator.close()


class PruneVectorEnv(CompressionVectorEnv):
    """Many `PruneEnv`."""

    kind = PruneEnv


class QuantizeVectorEnv(CompressionVectorEnv):
    """Many `QuantizeEnv`."""

    kind = QuantizeEnv


class CompressVectorEnv(CompressionVectorEnv):
    """Many `CompressEnv`."""

    kind = CompressEnv
