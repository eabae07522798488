"""The same keep ratio everywhere, as large as the budget allows: the baseline that every search has to beat."""

from __future__ import annotations

from collections.abc import Sequence

from msc_core.tools.prune.ranking import uniform
from msc_gym.decisions import Choices
from msc_gym.task import CompressionTask

BITS = 8  # what all layers have where pruning can meet the rest of the budget


class Uniform:
    """One plan, then nothing more. Each group keeps the allowed count nearest to the ratio, the larger of two."""

    def __init__(self, task: CompressionTask, trials: int = 1, seed: int = 0, fill: bool = True) -> None:
        self._choices: dict[str, int] | None = uniform_choices(task)

    def ask(self) -> dict[str, int] | None:
        """The plan, the first time."""
        choices, self._choices = self._choices, None
        return choices

    def tell(self, choices: Choices, reward: float, values: Sequence[float] = ()) -> None:
        """There is nothing to learn."""


def uniform_choices(task: CompressionTask) -> dict[str, int]:
    """The counts at the largest ratio that meets the budget; a tie goes to the larger count.

    Layers have the same bits: the most that meet the budget, where only bits are decided; with pruning beside them, the
    least of 8 and more that can meet it.
    """
    pruned = {d.name: d for d in task.decisions if d.part == "prune"}
    named = [d.name for d in task.decisions if d.part == "quantize"]
    for width in _widths(task, bool(pruned)) if named else (0,):
        bits = dict.fromkeys(named, width)
        if task.within_budget(task.floor_choices | bits):
            break
    sizes = {name: d.full for name, d in pruned.items()}
    counts = uniform(sizes, {n: d.options for n, d in pruned.items()}, lambda c: task.within_budget({**c, **bits}))
    return {d.name: bits[d.name] if d.name in bits else counts[d.name] for d in task.decisions}


def _widths(task: CompressionTask, pruned: bool) -> list[int]:
    """Bits in the order in which they are tried."""
    most = sorted(task.bits, reverse=True)
    return sorted(most, key=lambda width: (width < BITS, width if width >= BITS else -width)) if pruned else most
