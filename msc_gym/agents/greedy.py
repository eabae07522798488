"""Greedy: what is least sensitive gives first, then measured moves from the best plan, as in NetAdapt (Yang 2018).

Sensitivity is free: what the pruner's ranking says that fewer channels cost, and how far fewer bits are from the
weights. It only decides what is tried first; measurements decide what stays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from msc_core.ir import Array
from msc_core.tools.prune.ranking import Step
from msc_gym.agents.fitting import fills, spend
from msc_gym.agents.uniform import uniform_choices
from msc_gym.decisions import FLOAT, Choices, Decision
from msc_gym.task import CompressionTask

SIZES = (1, 2, 4)  # options that a decision moves at once


@dataclass(frozen=True)
class Move:
    """One decision goes `size` options up, or another goes down, or both; the rest pays, or gets what is saved."""

    up: str
    down: str
    size: int


class Greedy:
    """The uniform plan, the plan by sensitivity, then moves from the best plan so far; no plan comes twice.

    A move that made the best plan is tried again first, then those that have failed least, the promising before others:
    to raise what is most sensitive for what it costs, to lower what is least. It ends where no move of one or two
    decisions is new. It draws no random numbers.
    """

    def __init__(self, task: CompressionTask, trials: int = 100, seed: int = 0, fill: bool = True) -> None:
        self._task, self._fills = task, fills(task, fill)
        self._best: tuple[float, dict[str, int]] = -np.inf, uniform_choices(task)
        self._asked: set[tuple[int, ...]] = set()
        self._pending: deque[Move | None] = deque()
        self._failures: dict[Move, int] = {}

    def ask(self) -> dict[str, int] | None:
        """The plan of the most promising move that leads to a new one."""
        for move, choices in self._candidates():
            key = tuple(choices.values())
            if key not in self._asked:
                self._asked.add(key)
                self._pending.append(move)
                return choices
        return None

    def tell(self, choices: Choices, reward: float, values: Sequence[float] = ()) -> None:
        """A better plan is where moves start from now on."""
        move, better = self._pending.popleft(), reward > self._best[0]
        if better:
            self._best = reward, dict(choices)
        if move is not None:
            self._failures[move] = -1 if better else max(0, self._failures.get(move, 0)) + 1

    def _candidates(self) -> Iterator[tuple[Move | None, dict[str, int]]]:
        yield None, uniform_choices(self._task)
        yield None, spend(self._task, {d.name: d.options for d in self._task.decisions}, self._steps)
        plan = self._best[1]
        by_price = sorted(self._prices, key=lambda name: self._price(name, plan[name]))
        singles = [m for low, high in zip(by_price, by_price[::-1], strict=True) for m in (("", low), (high, ""))]
        pairs = [(high, low) for low, high in product(by_price, by_price[::-1]) if high != low]
        for ends in (singles, pairs):
            moves = [Move(*end, size) for size in SIZES for end in ends]
            for move in sorted(moves, key=lambda m: self._failures.get(m, 0)):
                moved = self._moved(plan, move)
                if moved is not None:
                    yield move, moved

    def _moved(self, plan: Choices, move: Move) -> dict[str, int] | None:
        """The plan after a move; `None` where there is no such option, or nothing that could pay for it."""
        options = {
            d.name: tuple(o for o in d.options if not move.up or o <= plan[d.name]) for d in self._task.decisions
        }
        if self._fills and not move.up:  # the others may get what is saved
            options = {d.name: tuple(o for o in d.options if o >= plan[d.name]) for d in self._task.decisions}
        elif not move.up:
            options = {name: (option,) for name, option in plan.items()}
        for name, distance in ((move.up, move.size), (move.down, -move.size)):
            if name:
                known = self._decisions[name].options
                index = known.index(plan[name]) + distance
                if not 0 <= index < len(known):
                    return None
                options[name] = (known[index],)
        if not self._task.within_budget({name: allowed[0] for name, allowed in options.items()}):
            return None
        steps = [s for s in self._steps if s.count in options[s.group][:-1]]
        return spend(self._task, options, steps)

    @cached_property
    def _decisions(self) -> Mapping[str, Decision]:
        return {d.name: d for d in self._task.decisions}

    @cached_property
    def _prices(self) -> dict[str, list[float]]:
        """What each step down costs in sensitivity for what it saves, for the options but the last, ascending."""
        return {d.name: _prices(self._task, d) for d in self._task.decisions}

    @cached_property
    def _steps(self) -> list[Step]:
        return [
            Step(price, d.name, option)
            for d in self._task.decisions
            for option, price in zip(d.options, self._prices[d.name], strict=False)
        ]

    def _price(self, name: str, option: int) -> float:
        """Of the next step down; of the last one where none is left."""
        prices = self._prices[name]
        return prices[max(0, self._decisions[name].options.index(option) - 1)] if prices else 0.0


def _prices(task: CompressionTask, decision: Decision) -> list[float]:
    """The loss of each step down over what it saves; falling towards more, as a step waits for the one before it."""
    loss = [_loss(task, decision, option) for option in decision.options]
    spent = [_share(task, {decision.name: option}) for option in decision.options]
    rates = np.maximum(-np.diff(loss), 0) / np.maximum(np.diff(spent), 1e-12)
    return [float(rate) for rate in np.maximum.accumulate(rates[::-1])[::-1]]


def _share(task: CompressionTask, choices: Choices) -> float:
    """What remains of everything that is limited; without limits, of bit operations."""
    cost, whole = task.cost(choices), task.cost({})
    return sum(cost[key] / max(1, whole[key]) for key in task.budget or ("bops",))


def _loss(task: CompressionTask, decision: Decision, option: int) -> float:
    """The relative error of what reads the channels, or of the layer's weights."""
    if decision.part == "prune":
        return float(task.pruner.ranking(decision.of).loss[option])
    return 0.0 if option == FLOAT else _rounding(task.graph.weights[task.kernels[decision.of]], option)


def _rounding(weight: Array, bits: int) -> float:
    """The squared error of integers with a scale for each of the first axis, relative to the weight's energy."""
    rows = weight.reshape(len(weight), -1).astype(np.float64)
    scale = np.maximum(np.abs(rows).max(axis=1, keepdims=True), 1e-30) / (2 ** (bits - 1) - 1)
    return float(((np.rint(rows / scale) * scale - rows) ** 2).sum() / max(float((rows**2).sum()), 1e-30))
