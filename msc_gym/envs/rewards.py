"""Rewards: what a measurement is worth, as declared objects."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, runtime_checkable

from msc_core.errors import MscError, nearest
from msc_gym.engine import Measurement


class Reward(Protocol):
    """A value for a measurement; higher is better.

    - `deterministic`: no clock value enters, so the same plan is always worth the same.
    - `floor`: the finite value of a failure, and of anything below it.
    - `fills`: a larger network is never worth less by itself, so an episode should use the whole budget.
    """

    @property
    def deterministic(self) -> bool: ...  # noqa: D102

    @property
    def floor(self) -> float: ...  # noqa: D102

    @property
    def fills(self) -> bool: ...  # noqa: D102

    def __call__(self, measurement: Measurement) -> float:
        """The value of a measurement without an error."""
        ...


@runtime_checkable
class Relative(Protocol):
    """A reward that compares with the original network."""

    def against(self, original: Measurement) -> Reward:
        """The same reward, once that is measured."""
        ...


@dataclass(frozen=True)
class Accuracy:
    """`-error`, AMC's reward for search under a budget."""

    deterministic: ClassVar[bool] = True
    floor: ClassVar[float] = -1.0
    fills: ClassVar[bool] = True

    def __call__(self, measurement: Measurement) -> float:
        """-1 (all wrong) to 0."""
        return measurement.accuracy - 1.0


@dataclass(frozen=True)
class AccuracyCost:
    """`-error * log(macs)`, AMC's reward for accuracy that pays for every MAC; needs no budget."""

    deterministic: ClassVar[bool] = True
    floor: ClassVar[float] = -64 * math.log(2)  # all wrong with 2^64 MACs
    fills: ClassVar[bool] = False

    def __call__(self, measurement: Measurement) -> float:
        """About -17 * error for ten million MACs."""
        return (measurement.accuracy - 1.0) * math.log(max(2, measurement.macs))


@dataclass(frozen=True)
class AccuracyParams:
    """`-error * log(params)`, AMC's reward for accuracy that pays for every parameter; needs no budget."""

    deterministic: ClassVar[bool] = True
    floor: ClassVar[float] = AccuracyCost.floor
    fills: ClassVar[bool] = False

    def __call__(self, measurement: Measurement) -> float:
        """About -12 * error for three hundred thousand parameters."""
        return (measurement.accuracy - 1.0) * math.log(max(2, measurement.params))


@dataclass(frozen=True)
class AccuracyChange:
    """`0.1 * (accuracy - original)` in percentage points, HAQ's reward (Wang et al. 2019).

    `original` is the accuracy, 0 to 1, of the network before; environments and searches fill it in.
    """

    original: float = 1.0
    deterministic: ClassVar[bool] = True
    floor: ClassVar[float] = -10.0  # all wrong, where the original was all right
    fills: ClassVar[bool] = True

    def against(self, original: Measurement) -> AccuracyChange:
        """As accurate as the original is worth 0."""
        return replace(self, original=original.accuracy) if original.ok else self

    def __call__(self, measurement: Measurement) -> float:
        """-0.1 for each point lost."""
        return 10 * (measurement.accuracy - self.original)


@dataclass(frozen=True)
class Latency:
    """`-error - weight * latency ratio`: error and measured time traded at a fixed price; noisy as all clocks are."""

    weight: float = 0.1
    deterministic: ClassVar[bool] = False
    fills: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.weight) and self.weight >= 0):
            raise MscError(f"the weight of latency must be a finite number of at least 0; found {self.weight}")

    @property
    def floor(self) -> float:
        """All wrong, and four times as slow as the original."""
        return -1.0 - 4 * self.weight

    def __call__(self, measurement: Measurement) -> float:
        """A measurement without latency counts as failed."""
        if measurement.latency_ratio is None:
            return self.floor
        return measurement.accuracy - 1.0 - self.weight * measurement.latency_ratio


@dataclass(frozen=True)
class LatencyTarget:
    """`accuracy + beta * |latency ratio / target - 1|`, Galen's r6 (2023): too fast is as bad as too slow.

    Accuracy is 0 to 1, so with Galen's `beta` the target comes first: missing it by a tenth costs half of all accuracy.
    """

    target: float = 0.5
    beta: float = -5.0
    deterministic: ClassVar[bool] = False
    fills: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not (0 < self.target <= 1 and math.isfinite(self.beta) and self.beta <= 0):
            raise MscError(f"a latency target is a ratio in (0, 1], its beta at most 0; found {self}")

    @property
    def floor(self) -> float:
        """All wrong, and four times as slow as the original."""
        return self.beta * (4 / self.target - 1)

    def __call__(self, measurement: Measurement) -> float:
        """A measurement without latency counts as failed."""
        if measurement.latency_ratio is None:
            return self.floor
        return measurement.accuracy + self.beta * abs(measurement.latency_ratio / self.target - 1)


@dataclass(frozen=True)
class WithinLatency:
    """Another reward, less `weight` for each unit of latency ratio above `limit`: a soft budget on measured time."""

    reward: Reward
    limit: float
    weight: float = 0.5
    deterministic: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not (0 < self.limit <= 1 and math.isfinite(self.weight) and self.weight >= 0):
            raise MscError(f"a latency limit is a ratio in (0, 1], its weight at least 0; found {self}")

    @property
    def floor(self) -> float:
        """The other reward's floor, four times as slow as the original."""
        return self.reward.floor - 4 * self.weight

    @property
    def fills(self) -> bool:
        """As the other reward: MACs and latency are only loosely related."""
        return self.reward.fills

    def __call__(self, measurement: Measurement) -> float:
        """A measurement without latency counts as failed."""
        if measurement.latency_ratio is None:
            return self.floor
        return self.reward(measurement) - self.weight * max(0.0, measurement.latency_ratio - self.limit)


REWARDS: Mapping[str, Reward] = {
    "accuracy": Accuracy(),
    "accuracy_cost": AccuracyCost(),
    "accuracy_params": AccuracyParams(),
    "accuracy_change": AccuracyChange(),
    "latency": Latency(),
    "latency_target": LatencyTarget(),
}


def parse_reward(reward: Reward | str, latency_limit: float | None = None) -> Reward:
    """The reward that a job file or `gym.make` names; objects pass through. Raises `MscError` for an unknown name.

    `latency_limit` puts a `WithinLatency` around it.
    """
    if isinstance(reward, str):
        if reward not in REWARDS:
            raise MscError(f"unknown reward {reward!r}{nearest(reward, REWARDS)}")
        reward = REWARDS[reward]
    return reward if latency_limit is None else WithinLatency(reward, latency_limit)


def settle(reward: Reward, original: Callable[[], Measurement]) -> Reward:
    """The reward, told about the original network if it is relative to that; otherwise `original` is not called."""
    if isinstance(reward, WithinLatency):
        return replace(reward, reward=settle(reward.reward, original))
    return reward.against(original()) if isinstance(reward, Relative) else reward


def pay(reward: Reward, measurement: Measurement) -> float:
    """What an episode that ended in `measurement` is paid: a finite Python float, the floor for a failure."""
    value = float(reward(measurement)) if measurement.ok else reward.floor
    return max(value, reward.floor) if math.isfinite(value) else reward.floor
