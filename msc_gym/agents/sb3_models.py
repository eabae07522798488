"""Models of stable-baselines3, driven by hand: they choose the actions of an episode, and learn from whole episodes.

SB3 would rather step an environment itself; here somebody else measures plans, many at once perhaps. So the buffers are
filled with episodes that are over, and the model's own `train` does the rest. The reward of an episode is the return of
each of its steps, since nothing is paid before the end and nothing is discounted; off-policy ones learn that return
as it is, without guessing it from the next step's value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import gymnasium
import numpy as np
from gymnasium.spaces import Box, MultiDiscrete, Space

from msc_gym.agents.learner import Floats, Path, truncated
from msc_gym.agents.policy import Layer, allowed_levels, level_number, linear_layers
from msc_gym.envs import FEATURES, Episode

if TYPE_CHECKING:
    import torch

LEVELS = 20  # per part, of actions that can be masked
CAPACITY = 20_000  # steps that off-policy algorithms remember
OFF_POLICY = ("ddpg", "td3", "sac")
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Step:
    """One step of an episode as a model took it; on-policy algorithms need what they thought at the time."""

    observation: Floats
    action: np.ndarray[Any, Any]
    value: torch.Tensor | None = None
    log_prob: torch.Tensor | None = None
    allowed: np.ndarray[Any, np.dtype[np.bool_]] | None = None


class Model(Protocol):
    """What `SB3` needs of a model. Calls are made with generators that the model may use up."""

    activation: str
    output: str

    def act(self, episode: Episode, progress: float) -> tuple[list[float], Step]:
        """The numbers for the next step of an episode; `progress` is the share of trials that are over."""
        ...

    def learn(self, task: int, proposed: list[Step], applied: Path, reward: float) -> None:
        """Learn from an episode; `proposed` is empty if the model did not propose it."""
        ...

    def layers(self) -> list[Layer]:
        """Copies of the layers of the deterministic policy."""
        ...


class Rewards:
    """Rewards of episodes relative to those of the same task: median 0, quartiles at 0.67, never beyond 3."""

    def __init__(self) -> None:
        self._told: dict[int, list[float]] = {}

    def add(self, task: int, reward: float) -> None:
        """One more."""
        self._told.setdefault(task, []).append(reward)

    def relative(self, task: int, reward: float) -> float:
        """What it is worth among all that were added."""
        low, middle, high = np.percentile(self._told[task], [25, 50, 75])
        spread = (high - low) / 1.349
        return float(np.clip((reward - middle) / spread, -3, 3)) if spread > 0 else float(np.sign(reward - middle))


class OffPolicy:
    """DDPG, TD3 or SAC: every step of every episode goes to the replay buffer, as an episode of its own."""

    activation, output = "relu", "tanh"

    def __init__(self, name: str, parts: int, seed: int, values: Values) -> None:
        rest = dict(values)
        self._warm_up, self._updates = rest.pop("warm_up"), rest.pop("updates")
        self._first, self._last = rest.pop("first_noise"), rest.pop("last_noise")
        self._batch, self._rng = rest["batch_size"], np.random.default_rng(seed)
        network = {"net_arch": list(rest.pop("hidden"))}
        space = Box(-1.0, 1.0, (parts,), np.float32)
        self._parts = parts
        self._model = _made(name, space, seed, network, rest | {"buffer_size": CAPACITY, "gamma": 1.0})
        self._owner = np.zeros(CAPACITY, np.int64)  # the episode of every step in the buffer
        self._episodes: list[tuple[int, float]] = []  # task and reward
        self._rewards = Rewards()

    def act(self, episode: Episode, progress: float) -> tuple[list[float], Step]:
        """See `Model.act`."""
        observation = episode.observation()
        if progress < self._warm_up:
            numbers = self._rng.uniform(size=self._parts).astype(np.float32)
        else:
            explores = self._first == 0  # its own noise, as SAC has
            action, _ = self._model.predict(observation, deterministic=not explores)
            numbers = (1 + action) / 2
            if not explores:
                share = (progress - self._warm_up) / (1 - self._warm_up) if self._warm_up < 1 else 1.0
                numbers = truncated(self._rng, numbers, self._first * (self._last / self._first) ** min(1.0, share))
        return [float(number) for number in numbers], Step(observation, numbers)

    def learn(self, task: int, proposed: list[Step], applied: Path, reward: float) -> None:
        """See `Model.learn`."""
        self._rewards.add(task, reward)
        buffer = self._model.replay_buffer
        for observation, action in applied:
            self._owner[buffer.pos] = len(self._episodes)
            buffer.add(observation, observation, 2 * action - 1, np.zeros(1), np.ones(1), [{}])
        self._episodes.append((task, reward))
        filled = CAPACITY if buffer.full else buffer.pos
        if filled >= self._batch and len(self._episodes) > 1:
            worth = np.asarray([self._rewards.relative(*episode) for episode in self._episodes], np.float32)
            buffer.rewards[:filled, 0] = worth[self._owner[:filled]]
            self._model.train(gradient_steps=self._updates * len(applied), batch_size=self._batch)

    def layers(self) -> list[Layer]:
        """See `Model.layers`."""
        actor = self._model.actor
        return linear_layers(*((actor.latent_pi, actor.mu) if hasattr(actor, "latent_pi") else (actor.mu,)))


class OnPolicy:
    """PPO, A2C, TRPO, or PPO with masks: learns from so many episodes that it proposed itself, then forgets them."""

    activation = "tanh"

    def __init__(self, name: str, parts: int, seed: int, values: Values) -> None:
        rest = dict(values)
        self._episodes: int = rest.pop("episodes")
        network = {"net_arch": list(rest.pop("hidden"))}
        self._masked = "log_std_init" not in rest
        if not self._masked:
            network["log_std_init"] = rest.pop("log_std_init")
        self.output = "levels" if self._masked else "clip"
        space: Space[Any] = MultiDiscrete([LEVELS] * parts) if self._masked else Box(-1.0, 1.0, (parts,), np.float32)
        self._model = _made(name, space, seed, network, rest | {"gamma": 1.0, "gae_lambda": 1.0})
        self._waiting: list[tuple[int, float, list[Step]]] = []
        self._rewards = Rewards()

    def act(self, episode: Episode, progress: float) -> tuple[list[float], Step]:
        """See `Model.act`."""
        import torch

        observation = episode.observation()
        allowed = allowed_levels(episode, LEVELS) if self._masked else None
        masks = {} if allowed is None else {"action_masks": allowed.reshape(1, -1)}
        with torch.no_grad():
            actions, value, log_prob = self._model.policy(torch.from_numpy(observation)[None], **masks)
        action = actions[0].numpy()
        if allowed is None:
            numbers = [float(number) for number in (1 + np.clip(action, -1, 1)) / 2]
        else:
            numbers = [level_number(int(level), LEVELS) for level in action]
        return numbers, Step(observation, action, value, log_prob, allowed)

    def learn(self, task: int, proposed: list[Step], applied: Path, reward: float) -> None:
        """See `Model.learn`."""
        self._rewards.add(task, reward)
        if proposed:
            self._waiting.append((task, reward, proposed))
        if len(self._waiting) == self._episodes:
            self._fill()
            self._model.train()
            self._waiting = []

    def layers(self) -> list[Layer]:
        """See `Model.layers`."""
        policy = self._model.policy
        return linear_layers(policy.mlp_extractor.policy_net, policy.action_net)

    def _fill(self) -> None:
        """A rollout buffer of exactly the episodes that wait."""
        import torch

        model = self._model
        size = sum(len(steps) for _, _, steps in self._waiting)
        spaces = model.observation_space, model.action_space
        buffer = model.rollout_buffer_class(size, *spaces, "cpu", gamma=model.gamma, gae_lambda=model.gae_lambda)
        for task, reward, steps in self._waiting:
            for index, step in enumerate(steps):
                paid = self._rewards.relative(task, reward) if index == len(steps) - 1 else 0.0
                masks = {} if step.allowed is None else {"action_masks": step.allowed.reshape(1, -1)}
                start = np.asarray([index == 0])
                buffer.add(step.observation, step.action, np.asarray([paid]), start, step.value, step.log_prob, **masks)
        buffer.compute_returns_and_advantage(torch.zeros(1, 1), np.ones(1, np.bool_))
        model.rollout_buffer = buffer


def make_model(name: str, parts: int, seed: int, values: Values) -> Model:
    """A model of that algorithm for so many parts; the generators of the process should be its own."""
    return (OffPolicy if name in OFF_POLICY else OnPolicy)(name, parts, seed, values)


class _Spaces(gymnasium.Env[Floats, Any]):
    """The spaces, which is all that a model is asked to know of an environment."""

    def __init__(self, action_space: Space[Any]) -> None:
        self.observation_space = Box(0.0, 1.0, (len(FEATURES),), np.float32)
        self.action_space = action_space


def _made(name: str, space: Space[Any], seed: int, network: dict[str, Any], values: Values) -> Any:
    import sb3_contrib
    import stable_baselines3
    from stable_baselines3.common.logger import Logger

    classes = {
        "ddpg": stable_baselines3.DDPG, "td3": stable_baselines3.TD3, "sac": stable_baselines3.SAC,
        "ppo": stable_baselines3.PPO, "a2c": stable_baselines3.A2C,
        "trpo": sb3_contrib.TRPO, "maskable_ppo": sb3_contrib.MaskablePPO,
    }  # fmt: skip
    made: Any = classes[name]
    model = made("MlpPolicy", _Spaces(space), seed=seed, device="cpu", policy_kwargs=network, **values)
    model.set_logger(Logger(None, []))
    return model
