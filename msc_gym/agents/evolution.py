"""Evolution: the best plans so far have children, with a few decisions changed, that are fitted to the budget."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

import numpy as np

from msc_gym.agents.fitting import fitted, numbers_of
from msc_gym.agents.uniform import uniform_choices
from msc_gym.decisions import Choices
from msc_gym.task import CompressionTask

ATTEMPTS = 20  # to find a plan that was not tried


class Evolution:
    """A (mu + 1) strategy that starts from the uniform plan and tries nothing twice.

    - `parents`: how many of the best plans have children; of `contest` drawn at random, the best becomes the parent.
    - `crossover`: how often a child takes half of its decisions from a second parent.
    - `mutations`: how many decisions of a child change, on average; `step`: by how much, the standard deviation of what
      is added to a ratio.
    """

    def __init__(
        self,
        task: CompressionTask,
        trials: int = 100,
        seed: int = 0,
        fill: bool = True,
        parents: int = 16,
        contest: int = 4,
        crossover: float = 0.5,
        mutations: float = 2.0,
        step: float = 0.35,
    ) -> None:
        self._task, self._fill = task, fill
        self._contest, self._crossover, self._mutations, self._step = contest, crossover, mutations, step
        self._rng = np.random.default_rng(seed)
        self._capacity = parents
        self._parents: list[tuple[float, int, dict[str, float]]] = []  # best first: minus reward, trial, numbers
        self._asked: set[tuple[int, ...]] = set()
        self._told = 0

    def ask(self) -> dict[str, int] | None:
        """The uniform plan, then children."""
        choices = uniform_choices(self._task)
        for attempt in range(ATTEMPTS):
            if tuple(choices.values()) not in self._asked:
                break
            choices = fitted(self._task, self._child(1.2**attempt), self._fill)
        self._asked.add(tuple(choices.values()))
        return choices

    def tell(self, choices: Choices, reward: float, values: Sequence[float] = ()) -> None:
        """A plan that is good enough becomes a parent."""
        insort(self._parents, (-reward, self._told, numbers_of(self._task, choices)))
        del self._parents[self._capacity :]
        self._told += 1

    def _child(self, widen: float) -> dict[str, float]:
        if not self._parents:
            return self._mutated(numbers_of(self._task, uniform_choices(self._task)), widen)
        child = dict(self._parent())
        if self._rng.uniform() < self._crossover:
            other = self._parent()
            child = {name: other[name] if self._rng.uniform() < 0.5 else number for name, number in child.items()}
        return self._mutated(child, widen)

    def _parent(self) -> dict[str, float]:
        return self._parents[int(self._rng.integers(len(self._parents), size=self._contest).min())][2]

    def _mutated(self, numbers: dict[str, float], widen: float) -> dict[str, float]:
        """At least one number changes; at the ends of [0, 1] it bounces back."""
        chance = widen * self._mutations / len(numbers)
        chosen = {int(self._rng.integers(len(numbers)))} | set(
            np.flatnonzero(self._rng.uniform(size=len(numbers)) < chance).tolist()
        )
        noise = self._rng.normal(0, self._step * widen, size=len(numbers))
        return {
            name: max(0.0, 1 - abs(1 - abs(number + float(noise[i])))) if i in chosen else number
            for i, (name, number) in enumerate(numbers.items())
        }
