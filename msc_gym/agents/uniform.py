"""The same keep ratio everywhere, as large as the budget allows: the baseline that every search has to beat."""

from __future__ import annotations

from itertools import pairwise

from msc_core.tools.strategy import keep_count
from msc_gym.task import CompressionTask, Counts


class Uniform:
    """One plan, then nothing more. Each group keeps the allowed count nearest to the ratio, the larger of two."""

    def __init__(self, task: CompressionTask, trials: int = 1, seed: int = 0, fill: bool = True) -> None:
        self._counts: dict[str, int] | None = uniform_counts(task)

    def ask(self) -> dict[str, int] | None:
        """The plan, the first time."""
        counts, self._counts = self._counts, None
        return counts

    def tell(self, counts: Counts, reward: float) -> None:
        """There is nothing to learn."""


def uniform_counts(task: CompressionTask) -> dict[str, int]:
    """The counts at the largest ratio that meets the budget.

    Only ratios at which some group moves to its next count matter, and cost grows with the ratio, so a bisection over
    them is exact. A tie goes to the larger count. (The lowest is the floor, which the task has found feasible.)
    """
    steps = {0.0, 1.0}
    for group in task.groups:
        choices = task.choices(group)
        steps |= {(a + b) / 2 / group.size + 1e-12 for a, b in pairwise(choices)}
    ratios = sorted(steps)
    low, high = 0, len(ratios) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if task.within_budget(_at(task, ratios[middle])):
            low = middle
        else:
            high = middle - 1
    return _at(task, ratios[low])


def _at(task: CompressionTask, ratio: float) -> dict[str, int]:
    return {g.name: max(keep_count(g, ratio), task.choices(g)[0]) for g in task.groups}
