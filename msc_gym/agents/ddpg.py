"""Deep deterministic policy gradient (Lillicrap et al. 2016) as AMC sets it up, with random numbers of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from msc_core.tools.threads import one_thread

if TYPE_CHECKING:
    import torch

Floats = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class Settings:
    """AMC's, from `mit-han-lab/amc` at 65363c8."""

    hidden: tuple[int, int] = (300, 300)
    """Widths of both networks."""
    actor_lr: float = 1e-4
    """Adam."""
    critic_lr: float = 1e-3
    """Adam."""
    discount: float = 1.0
    """Every step of an episode is paid its final reward, so nothing is discounted."""
    tau: float = 0.01
    """How fast the target networks follow."""
    batch: int = 64
    """Transitions per update."""
    baseline: float = 0.5
    """Weight of the newest batch in the moving average that rewards are relative to."""
    last_layer: float = 3e-3
    """The last layers start in this range, so that actions start near one half."""


class DDPG:
    """An actor and a critic for observations of `features` numbers and `actions` numbers in [0, 1]."""

    def __init__(self, features: int, actions: int, capacity: int, seed: int, settings: Settings | None = None) -> None:
        import torch

        self.settings = settings or Settings()
        self._rng = np.random.default_rng([seed, 1])
        generator = torch.Generator().manual_seed(seed)
        last = self.settings.last_layer
        self.actor, self.actor_target = (_network(features, actions, self.settings.hidden) for _ in range(2))
        self.critic, self.critic_target = (_network(features + actions, 1, self.settings.hidden) for _ in range(2))
        for network, target in ((self.actor, self.actor_target), (self.critic, self.critic_target)):
            _initialize(network, last, generator)
            target.load_state_dict(network.state_dict())
        self._actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=self.settings.actor_lr, fused=True)
        self._critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=self.settings.critic_lr, fused=True)
        self._memory: list[tuple[Floats, Floats, float, Floats, bool]] = []
        self._capacity = capacity
        self._average: float | None = None

    def act(self, observation: Floats) -> Floats:
        """The actor's numbers (actions,), without noise."""
        import torch

        with one_thread(), torch.no_grad():
            return np.asarray(torch.sigmoid(self.actor(torch.from_numpy(observation)[None]))[0].numpy())

    def remember(self, observation: Floats, action: Floats, reward: float, after: Floats, last: bool) -> None:
        """Keep a transition; the oldest make room."""
        self._memory.append((observation, action, reward, after, last))
        del self._memory[: -self._capacity]

    def learn(self, updates: int) -> None:
        """That many gradient steps of both networks, once a batch is there."""
        if len(self._memory) >= self.settings.batch:
            with one_thread():
                for _ in range(updates):
                    self._update()

    def _update(self) -> None:
        import torch
        from torch.nn import functional as F

        s = self.settings
        chosen = self._rng.choice(len(self._memory), s.batch, replace=False)
        columns = zip(*(self._memory[i] for i in chosen), strict=True)
        state, action, reward, after, last = (torch.from_numpy(np.asarray(c, np.float32)) for c in columns)
        mean = float(reward.mean())
        self._average = mean if self._average is None else self._average + s.baseline * (mean - self._average)
        with torch.no_grad():
            following = _value(self.critic_target, after, torch.sigmoid(self.actor_target(after)))
            wanted = reward[:, None] - self._average + s.discount * (1 - last[:, None]) * following
        loss = F.mse_loss(_value(self.critic, state, action), wanted)
        self._critic_optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._critic_optimizer.step()
        self.critic.requires_grad_(False)  # only the actor's gradient is wanted, through the critic
        gain = _value(self.critic, state, torch.sigmoid(self.actor(state))).mean()
        self._actor_optimizer.zero_grad()
        (-gain).backward()  # type: ignore[no-untyped-call]
        self._actor_optimizer.step()
        self.critic.requires_grad_(True)
        for network, target in ((self.actor, self.actor_target), (self.critic, self.critic_target)):
            with torch.no_grad():
                torch._foreach_lerp_(list(target.parameters()), list(network.parameters()), s.tau)


def _value(critic: torch.nn.Module, state: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    import torch

    value: torch.Tensor = critic(torch.cat([state, action], dim=1))
    return value


def _network(inputs: int, outputs: int, hidden: tuple[int, int]) -> torch.nn.Module:
    """Two hidden layers, without drawing from torch's global generator."""
    import torch
    from torch import nn

    first, second = hidden

    def linear(i: int, o: int) -> torch.nn.Linear:
        layer: torch.nn.Linear = torch.nn.utils.skip_init(nn.Linear, i, o)  # type: ignore[no-untyped-call]
        return layer

    return nn.Sequential(linear(inputs, first), nn.ReLU(), linear(first, second), nn.ReLU(), linear(second, outputs))


def _initialize(network: torch.nn.Module, last: float, generator: torch.Generator) -> None:
    """Uniform by fan-in, and within `last` in the last layer."""
    import torch
    from torch import nn

    layers = [m for m in network.modules() if isinstance(m, nn.Linear)]
    with torch.no_grad():
        for layer in layers:
            bound = last if layer is layers[-1] else layer.in_features**-0.5
            for parameter in (layer.weight, layer.bias):
                parameter.uniform_(-bound, bound, generator=generator)
