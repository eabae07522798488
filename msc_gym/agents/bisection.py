"""Bisection: one ratio for all, the one that is worth most; a dozen trials find it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise

from msc_gym.agents.fitting import edges, nearest_option
from msc_gym.agents.uniform import uniform_choices
from msc_gym.decisions import Choices
from msc_gym.task import CompressionTask


class Bisection:
    """Halves the gaps next to the best ratio so far, beginning with the largest ratio and the least.

    For rewards that rise up to some ratio and fall after it: with a limit on measured latency they do, and the peak is
    the largest ratio that meets it. Where both parts are decided, bits are those of the uniform plan. It ends with the
    best ratio's neighbours tried.
    """

    def __init__(self, task: CompressionTask, trials: int = 100, seed: int = 0, fill: bool = True) -> None:
        self._plans = line(task)
        self._rewards: dict[int, float] = {}
        self._asked: list[int] = []
        self._pending: deque[int] = deque()

    def ask(self) -> dict[str, int] | None:
        """A plan between two that were tried, until the best one's neighbours were."""
        index = self._next()
        if index is None:
            return None
        self._asked.append(index)
        self._pending.append(index)
        return dict(self._plans[index])

    def tell(self, choices: Choices, reward: float, values: Sequence[float] = ()) -> None:
        """The best of all moves the search to its neighbours."""
        self._rewards[self._pending.popleft()] = reward

    def _next(self) -> int | None:
        ends = (0, len(self._plans) - 1)
        for index in ends:
            if index not in self._asked:
                return index
        best = max(self._rewards, key=lambda i: (self._rewards[i], -i), default=0)
        gaps = [(low, high) for low, high in pairwise(sorted(self._asked)) if high - low > 1]
        near = [gap for gap in gaps if best in gap]
        if not near and not self._pending:
            return None
        low, high = max(near or gaps, key=lambda gap: gap[1] - gap[0], default=(0, 0))
        return (low + high) // 2 if high else None


def line(task: CompressionTask) -> list[dict[str, int]]:
    """The plans with one ratio for all that are within the budget, the largest first; all differ."""
    part = task.decide[0]
    moved = [d for d in task.decisions if d.part == part]
    start = uniform_choices(task)
    ratios = sorted({0.0, 1.0, *(edge for d in moved for edge in edges(d))}, reverse=True)
    plans = [start | {d.name: nearest_option(d, ratio) for d in moved} for ratio in ratios]
    distinct = {tuple(plan.values()): plan for plan in plans}
    return [plan for plan in distinct.values() if task.within_budget(plan)]
