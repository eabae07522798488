"""Grid: a ratio, and a place among the bits, for the first, the middle and the last third of the network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from msc_gym.agents.fitting import fitted
from msc_gym.agents.uniform import uniform_choices
from msc_gym.decisions import Choices
from msc_gym.task import CompressionTask

THIRDS = 3
PATTERNS = 8  # for each trial, that the finest grid has at most: many come to the same plan


class Grid:
    """Every pattern of two levels, then of three, and so on, as the budget allows; no plan comes twice.

    What is proposed does not depend on rewards. The first plan is the uniform one.
    """

    def __init__(self, task: CompressionTask, trials: int = 100, seed: int = 0, fill: bool = True) -> None:
        self._plans = _plans(task, fill, PATTERNS * trials)

    def ask(self) -> dict[str, int] | None:
        """The next plan of the grid."""
        return next(self._plans, None)

    def tell(self, choices: Choices, reward: float, values: Sequence[float] = ()) -> None:
        """There is nothing to learn."""


def _plans(task: CompressionTask, fill: bool, most: int) -> Iterator[dict[str, int]]:
    first = uniform_choices(task)
    yield first
    seen = {tuple(first.values())}
    for wanted in _patterns(task, most):
        choices = fitted(task, wanted, fill)
        key = tuple(choices.values())
        if key not in seen:
            seen.add(key)
            yield choices


def _patterns(task: CompressionTask, most: int) -> Iterator[dict[str, float]]:
    """A number for each decision, by its third and part; the larger levels come first."""
    zones = list(product(range(THIRDS), task.decide))
    zone_of = {d.name: (i * THIRDS // len(task.sites), d.part) for i, s in enumerate(task.sites) for d in s.decisions}
    levels = 2
    while levels ** len(zones) <= most:
        for numbers in product([i / levels for i in range(levels, 0, -1)], repeat=len(zones)):
            chosen = dict(zip(zones, numbers, strict=True))
            yield {name: chosen[zone] for name, zone in zone_of.items()}
        levels += 1
