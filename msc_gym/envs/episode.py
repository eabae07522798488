"""One episode, without an engine: which option each decision takes, in network order, inside the budget.

Environments and agents share it, so that both see the same observations and the same walls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import numpy as np

from msc_gym.decisions import Choices, Decision, Site
from msc_gym.envs.features import FEATURES, static_features
from msc_gym.envs.spending import Ledger
from msc_gym.task import CompressionTask

Observation = np.ndarray[Any, np.dtype[np.float32]]


class Episode:
    """Walks over `task.sites` once.

    Two walls keep it inside the budget. From above, AMC's preserve form: an option is allowed if the open decisions at
    their least would still meet every limit. From below, if `fill`: an option is allowed if the open decisions left
    whole would still reach a limit; less could only waste accuracy. Where the walls cross, the upper one holds.
    """

    def __init__(self, task: CompressionTask, fill: bool = True) -> None:
        self.task = task
        self.fill = fill and any(fraction < 1 for fraction in task.budget.values())
        self.choices: dict[str, int] = {}
        self.index = 0
        self.previous = {"prune": 1.0, "quantize": 1.0}
        ledger = Ledger.of(task)
        self._lean, self._whole = (
            ledger.lean.copy(),
            ledger.whole.copy(),
        )  # open decisions at their least, at their most
        self._static = static_features(task)

    def copy(self) -> Episode:
        """The same so far, to go its own way."""
        other = copy(self)
        other.choices, other.previous = self.choices.copy(), self.previous.copy()
        other._lean, other._whole = self._lean.copy(), self._whole.copy()
        return other

    @property
    def done(self) -> bool:
        """Whether everything is decided."""
        return self.index == len(self.task.sites)

    @property
    def site(self) -> Site:
        """What to decide next."""
        return self.task.sites[self.index]

    def feasible(self, decision: Decision) -> tuple[int, ...]:
        """The options of an open decision between the walls, ascending; never empty."""
        options = decision.options
        high = max(0, _last(options, lambda option: self._lean.meets(decision.name, option)))
        if not self.fill or high == 0:
            return options[: high + 1]
        low = _last(options, lambda option: not self._whole.reaches(decision.name, option)) + 1
        return options[min(low, high) : high + 1]

    def step(self, action: Sequence[float]) -> dict[str, int]:
        """Decide on the next site, from one number in [0, 1] for each part in `task.decide`; what was applied.

        Of channels it is the ratio to keep: the nearest feasible count is taken, the larger of two. Of bits it picks an
        option, 0 the least and 1 the most.
        """
        applied: dict[str, int] = {}
        numbers = dict(zip(self.task.decide, action, strict=True))
        for decision in self.site.decisions:
            number = numbers[decision.part]
            if decision.part == "prune":
                wanted = number * decision.full
            else:
                wanted = decision.options[min(int(number * len(decision.options)), len(decision.options) - 1)]
            option = min(self.feasible(decision), key=lambda o: (abs(o - wanted), -o))
            self.choices[decision.name] = applied[decision.name] = option
            self.previous[decision.part] = decision.share(option)
            self._lean.choose(decision.name, option)
            self._whole.choose(decision.name, option)
        self.index += 1
        return applied

    def actions(self, choices: Choices) -> list[float]:
        """The numbers with which `step` takes those choices at the next site; 1 where it has no such part."""
        numbers = dict.fromkeys(self.task.decide, 1.0)
        for decision in self.site.decisions:
            option = choices[decision.name]
            if decision.part == "prune":
                numbers["prune"] = decision.share(option)
            else:
                numbers["quantize"] = (decision.options.index(option) + 0.5) / len(decision.options)
        return list(numbers.values())

    def macs(self) -> float:
        """The share of MACs that remains with the open groups whole."""
        return min(1.0, self._whole.macs)

    def observation(self) -> Observation:
        """The features of the site to decide on; after the last one those of the last."""
        values = np.empty(len(FEATURES), np.float32)
        values[:-4] = self._static[min(self.index, len(self._static) - 1)]
        values[-4:] = (1 - self.macs(), min(1.0, self._whole.rest(self.index)), *self.previous.values())
        return values


def _last(options: tuple[int, ...], holds: Callable[[int], bool]) -> int:
    """The index of the last option for which `holds` (true up to some option, then false); -1 if none."""
    low, high = -1, len(options) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if holds(options[middle]):
            low = middle
        else:
            high = middle - 1
    return low
