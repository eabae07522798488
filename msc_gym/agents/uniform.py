"""The same keep ratio everywhere, as large as the budget allows: the baseline that every search has to beat."""

from __future__ import annotations

from msc_core.tools.prune.ranking import uniform
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
    """The counts at the largest ratio that meets the budget; a tie goes to the larger count."""
    sizes = {group.name: group.size for group in task.groups}
    return uniform(sizes, {group.name: task.choices(group) for group in task.groups}, task.within_budget)
