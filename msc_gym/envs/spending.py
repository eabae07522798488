"""What the choices of an episode cost, kept up to date: a choice changes only the layers and weights that depend on it.

`CompressionTask.cost` says the same from scratch; this is for the thousands of what-ifs of a search.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import ge, le
from weakref import WeakKeyDictionary

from msc_core.tools.prune.budget import REMEMBERED
from msc_gym.decisions import FLOAT, Site, bits_of, divided
from msc_gym.task import CompressionTask, factors

Amounts = tuple[int, ...]  # in the order of the limits, then MACs; of bytes eighths, the bits


@dataclass(frozen=True)
class Term:
    """The layers and weights that depend on the same decisions, and that the same site is the last to touch.

    `amounts` takes an option for each of `names`. `last` is a site's index, -1 where none touches them.
    """

    names: tuple[str, ...]
    last: int
    amounts: Callable[..., Amounts]


class Ledger:
    """The terms of a task, and which of them a decision changes. `Ledger.of(task)` makes it once."""

    def __init__(self, task: CompressionTask) -> None:
        self.keys = (*task.limits, "macs")
        bounds = [_bounds(key, limit) for key, limit in task.limits.items()]
        self.most, self.least = [most for most, _ in bounds], [least for _, least in bounds]
        self.full_macs = max(1, task.cost_model.full.macs)
        self.terms = _terms(task)
        self.last = [term.last for term in self.terms]
        self.changed = {d.name: [i for i, t in enumerate(self.terms) if d.name in t.names] for d in task.decisions}
        self.depending = {name: [self.terms[i] for i in indices] for name, indices in self.changed.items()}
        self.lean = Spending(self, task.floor_choices)
        self.whole = Spending(self, task.full_choices)

    @staticmethod
    def of(task: CompressionTask) -> Ledger:
        """The task's ledger."""
        if task not in _LEDGERS:
            _LEDGERS[task] = Ledger(task)
        return _LEDGERS[task]


class Spending:
    """The running cost of one option for every decision."""

    def __init__(self, ledger: Ledger, options: Mapping[str, int]) -> None:
        self._ledger, self._options = ledger, dict(options)
        self._amounts = [t.amounts(*[options[name] for name in t.names]) for t in ledger.terms]
        self._totals = [sum(column) for column in zip(*self._amounts, strict=True)]
        self._fixed: tuple[str, list[int]] = ("", [])  # a decision, and what does not depend on it

    def copy(self) -> Spending:
        """The same, to go its own way."""
        other = object.__new__(Spending)
        other._ledger, other._options, other._totals = self._ledger, self._options.copy(), self._totals
        other._amounts, other._fixed = self._amounts.copy(), self._fixed
        return other

    def choose(self, name: str, option: int) -> None:
        """Take an option."""
        self._totals = self._after(name, option)
        self._fixed = ("", [])
        for index, amounts in zip(self._ledger.changed[name], self._changed(name, option), strict=True):
            self._amounts[index] = amounts
        self._options[name] = option

    def meets(self, name: str, option: int) -> bool:
        """Whether every limit is met if that option is taken."""
        return all(map(le, self._after(name, option), self._ledger.most))

    def reaches(self, name: str, option: int) -> bool:
        """Whether any limit is reached if that option is taken."""
        return any(map(ge, self._after(name, option), self._ledger.least))

    def spent(self) -> dict[str, int]:
        """What the options cost now, in the budget's terms."""
        return {key: spent(key, n) for key, n in zip(self._ledger.keys, self._totals, strict=True)}

    @property
    def macs(self) -> float:
        """The share of MACs that remains."""
        return sum([amounts[-1] for amounts in self._amounts]) / self._ledger.full_macs

    def rest(self, index: int) -> float:
        """The share of MACs in layers that the site of that index, or a later one, touches."""
        pairs = zip(self._amounts, self._ledger.last, strict=True)
        return sum([amounts[-1] for amounts, last in pairs if last >= index]) / self._ledger.full_macs

    def _after(self, name: str, option: int) -> list[int]:
        """The totals if that option were taken."""
        if self._fixed[0] != name:
            others = zip(self._totals, *[self._amounts[i] for i in self._ledger.changed[name]], strict=True)
            self._fixed = name, [total - sum(parts) for total, *parts in others]
        return list(map(sum, zip(self._fixed[1], *self._changed(name, option), strict=True)))

    def _changed(self, name: str, option: int) -> list[Amounts]:
        """The terms that depend on a decision, if that option were taken."""
        options = self._options
        before, options[name] = options[name], option
        changed = [t.amounts(*[options[n] for n in t.names]) for t in self._ledger.depending[name]]
        options[name] = before
        return changed


def spent(key: str, amount: int) -> int:
    """An amount in the budget's terms."""
    return round(amount / 8) if key == "bytes" else amount


def _bounds(key: str, limit: float) -> tuple[int, int]:
    """The largest amount that meets a limit, and the least that reaches it."""
    near = round(limit * (8 if key == "bytes" else 1))
    around = range(near - 16, near + 17)
    met = (n for n in around if spent(key, n) <= limit + 1e-6)
    return max(met), min(n for n in around if spent(key, n) >= limit)


def touched(task: CompressionTask, site: Site) -> set[str]:
    """The layers that a site touches: those that follow its group, and the one whose bits it decides."""
    groups = {g.name: g.nodes for g in task.groups}
    return {node for d in site.decisions for node in (groups[d.of] if d.part == "prune" else (d.of,))}


def _terms(task: CompressionTask) -> list[Term]:
    """The layers of the task by what they depend on, and its weights, if a limit is about them."""
    decided = {d.name for d in task.decisions}
    last = {node: index for index, site in enumerate(task.sites) for node in touched(task, site)}
    alike: dict[tuple[tuple[str, ...], int], tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for layer, kernel in task.cost_model.kernels.items():
        names = tuple(n for n in (*task.cost_model.groups_of(kernel), bits_of(layer)) if n in decided)
        alike[names, last.get(layer, -1)][0].append(layer)
    for weight in task.graph.weights if {"params", "bytes"} & task.limits.keys() else ():
        names = tuple(n for n in task.cost_model.groups_of(weight) if n in decided)
        alike[names, -1][1].append(weight)
    return [Term(names, site, _amounts(task, names, *found)) for (names, site), found in alike.items()]


def _amounts(
    task: CompressionTask, names: tuple[str, ...], layers: list[str], weights: list[str]
) -> Callable[..., Amounts]:
    """What those layers and weights cost, for an option of each name."""
    model, keys = task.cost_model, (*task.limits, "macs")

    @lru_cache(REMEMBERED)
    def amounts(*options: int) -> Amounts:
        counts, bits = divided(dict(zip(names, options, strict=True)))
        found = {"macs": 0, "params": 0, "bytes": 0, "bops": 0, "latency": 0}
        for layer in layers:
            macs, width = model.macs_of(layer, counts), bits.get(layer)
            found["macs"] += macs
            found["bops"] += macs * factors(width)
            found["latency"] += task.latency_of(layer, counts, width) if "latency" in keys else 0
            found["bytes"] -= model.elements(model.kernels[layer], counts) * (FLOAT - width) if width else 0
        for weight in weights:
            params, size = model.weight_cost(weight, counts)
            found["params"] += params
            found["bytes"] += 8 * size
        return tuple(found[key] for key in keys)

    return amounts


_LEDGERS: WeakKeyDictionary[CompressionTask, Ledger] = WeakKeyDictionary()
