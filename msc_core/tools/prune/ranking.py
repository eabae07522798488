"""How many channels each group keeps: the least damage, by some ranking, that meets a budget.

All rankings are lists of steps, each of which takes one group down to its next allowed count at a price. The cheapest
steps are taken until the budget is met; then, from the dearest on, those that were not needed are undone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import TYPE_CHECKING

from msc_core.channels import ChannelGroup
from msc_core.cost import Cost
from msc_core.errors import MscError, nearest
from msc_core.tools.prune.budget import CostModel
from msc_core.tools.prune.importance import RELATIVE

if TYPE_CHECKING:
    from msc_core.tools.prune.pruner import Pruner

FLOOR = 0.2  # AMC's lower bound
RANKINGS = ("global", "local", "uniform")
BUDGET_KEYS = tuple(f.name for f in dataclasses.fields(Cost))

UNWEIGHTED = (*RELATIVE, "bn_scale")  # sizes are no losses: divided by a cost, cheap layers are emptied

Counts = dict[str, int]
Choices = Mapping[str, tuple[int, ...]]  # group -> the counts that it may keep, ascending


@dataclass(frozen=True)
class Step:
    """Group `group` goes down to `count` channels; a cheaper step goes first."""

    price: float
    group: str
    count: int


def allocate(
    pruner: Pruner,
    budget: Mapping[str, float],
    ranking: str = "global",
    *,
    floor: float = FLOOR,
    ceiling: float = 1.0,
    floors: Mapping[str, float] | None = None,
    ceilings: Mapping[str, float] | None = None,
    per_cost: bool | None = None,
) -> Counts:
    """Counts for `pruner.plan` that meet `budget`: fractions of the original `macs`, `params` or `bytes` that may stay.

    - "global": scores of the pruner's criterion are compared across groups; `per_cost` divides them by what a channel
      costs, by default unless scores are mere sizes (`UNWEIGHTED`). "local": every group gives
      up the same share of its own importance. "uniform": every group keeps the same density, as its counts allow.
    - A group keeps a share of its channels from `floor` to `ceiling`; `floors` and `ceilings` say otherwise for groups
      by name or glob, the last that matches wins. Counts are the group's own: multiples of its divisor, or all.

    Raises `MscError` for options out of range, unknown names, or a budget that cannot be met, with what can be.
    """
    check_budget(budget, ranking)
    choices = bounds(pruner.groups, floor, ceiling, floors, ceilings)
    model = CostModel(pruner.graph, pruner.groups)
    limits = {key: share * getattr(model.full, key) for key, share in budget.items()}
    return search(pruner, model, choices, limits, ranking, per_cost)


def check_budget(budget: Mapping[str, float], ranking: str) -> None:
    """Raise `MscError` unless the budget and the ranking are ones that `allocate` knows."""
    for key, share in budget.items():
        if key not in BUDGET_KEYS:
            raise MscError(f"unknown budget {key!r}{nearest(key, BUDGET_KEYS)}")
        if not 0 < share <= 1:
            raise MscError(f"budget {key} must be a fraction in (0, 1]; found {share!r}")
    if not budget:
        raise MscError(f"an empty budget; expected some of {', '.join(BUDGET_KEYS)}")
    if ranking not in RANKINGS:
        raise MscError(f"unknown ranking {ranking!r}{nearest(ranking, RANKINGS)}")


def bounds(
    groups: Iterable[ChannelGroup],
    floor: float = FLOOR,
    ceiling: float = 1.0,
    floors: Mapping[str, float] | None = None,
    ceilings: Mapping[str, float] | None = None,
) -> dict[str, tuple[int, ...]]:
    """The counts from floor to ceiling of each group, ascending. Raises `MscError` where there are none."""
    groups = list(groups)
    least = _shares("floor", floor, floors or {}, groups)
    most = _shares("ceiling", ceiling, ceilings or {}, groups)
    choices = {}
    for group in groups:
        low, high = least[group.name] * group.size - 1e-9, most[group.name] * group.size + 1e-9
        choices[group.name] = tuple(count for count in group.counts if low <= count <= high)
        if not choices[group.name]:
            wanted = f"{least[group.name]:g} to {most[group.name]:g} of {group.size}"
            raise MscError(f"group {group.name!r} can keep {_listed(group.counts)} channels; none is in {wanted}")
    return choices


def search(
    pruner: Pruner,
    model: CostModel,
    choices: Choices,
    limits: Mapping[str, float],
    ranking: str,
    per_cost: bool | None = None,
) -> Counts:
    """What `allocate` returns, for choices and limits in absolute numbers."""
    check_reachable(model, choices, limits)
    if ranking == "uniform":
        return uniform(model.sizes, choices, lambda counts: within(model, limits, counts))
    prices = _prices(pruner, model, choices, limits, ranking, per_cost)
    steps = [step for name, rates in prices.items() for step in rates]
    return take(choices, steps, lambda counts: within(model, limits, counts), undo=True)


def check_reachable(model: CostModel, choices: Choices, limits: Mapping[str, float]) -> None:
    """Raise `MscError`, saying what can be reached, if the limits are missed with every group at its lowest count."""
    lowest = {name: counts[0] for name, counts in choices.items()}
    if not within(model, limits, lowest):
        spent = model.cost(lowest)
        reached = ", ".join(f"{k} {getattr(spent, k) / getattr(model.full, k):.3f}" for k in limits)
        asked = ", ".join(f"{k} {limit / getattr(model.full, k):.3f}" for k, limit in limits.items())
        raise MscError(f"the budget cannot be met: asked for {asked}; with every group at its floor {reached} remain")


def within(model: CostModel, limits: Mapping[str, float], counts: Mapping[str, int]) -> bool:
    """Whether those counts meet every limit (absolute numbers)."""
    if limits.keys() == {"macs"}:  # the usual budget, and half the work
        return sum(model.layer_macs(counts).values()) <= limits["macs"] + 1e-6
    spent = model.cost(counts)
    return all(getattr(spent, key) <= limit + 1e-6 for key, limit in limits.items())


def uniform(sizes: Mapping[str, int], choices: Choices, meets: Callable[[Counts], bool]) -> Counts:
    """The counts nearest to the largest common density that meets the budget, the larger of two.

    `sizes` are those of the whole groups. With every group at its lowest count the budget must be met.
    """
    steps = [  # each is taken where the density falls below the middle of two counts
        Step(1 - (above + below) / 2 / sizes[name], name, below)
        for name, counts in choices.items()
        for below, above in reversed(list(pairwise(counts)))
    ]
    return take(choices, steps, meets, undo=False)


def take(choices: Choices, steps: Iterable[Step], meets: Callable[[Counts], bool], undo: bool) -> Counts:
    """The counts after the cheapest steps that meet the budget; steps of one price are taken together.

    Prices of a group's steps must not fall. All steps together must meet the budget. With `undo`, steps that turn out
    not to be needed are taken back, the dearest first.
    """
    ordered = sorted(steps, key=lambda step: step.price)
    ends = [i + 1 for i, step in enumerate(ordered) if i + 1 == len(ordered) or ordered[i + 1].price > step.price]
    full = {name: counts[-1] for name, counts in choices.items()}

    def after(end: int) -> Counts:
        return full | {step.group: step.count for step in ordered[:end]}

    ends = [0, *ends]
    low, high = 0, len(ends) - 1
    while low < high:
        middle = (low + high) // 2
        if meets(after(ends[middle])):
            high = middle
        else:
            low = middle + 1
    counts = after(ends[low])
    return _undone(counts, choices, ordered[: ends[low]], meets) if undo else counts


def _undone(counts: Counts, choices: Choices, taken: list[Step], meets: Callable[[Counts], bool]) -> Counts:
    stuck: set[str] = set()
    for step in reversed(taken):
        name = step.group
        if name not in stuck and counts[name] == step.count:
            back = counts | {name: choices[name][choices[name].index(step.count) + 1]}
            if meets(back):
                counts = back
            else:
                stuck.add(name)
    return counts


def _prices(
    pruner: Pruner, model: CostModel, choices: Choices, limits: Mapping[str, float], ranking: str, per_cost: bool | None
) -> dict[str, list[Step]]:
    """The steps of each group, from its largest count down."""
    found: dict[str, list[Step]] = {}
    weighted = pruner.criterion not in UNWEIGHTED if per_cost is None else per_cost
    for name, counts in choices.items():
        if len(counts) < 2:
            continue
        loss = pruner.ranking(name).loss
        if ranking == "local":
            found[name] = [Step(float(loss[c]) / (float(loss[0]) or 1.0), name, c) for c in counts[-2::-1]]
            continue
        unit = _saving(model, name, counts, limits) if weighted else 1.0
        unit *= float(loss[0]) / (len(loss) - 1) or 1.0 if pruner.criterion in RELATIVE else 1.0
        rates = [(float(loss[low] - loss[high]) / unit, high - low) for low, high in pairwise(counts)][::-1]
        prices = _rising([rate / width for rate, width in rates], [width for _, width in rates])
        found[name] = [Step(p, name, c) for p, c in zip(prices, counts[-2::-1], strict=True)]
    return found


def _saving(model: CostModel, name: str, counts: tuple[int, ...], limits: Mapping[str, float]) -> float:
    """What one channel fewer saves, in fractions of the limited costs."""
    less = model.cost({name: counts[-2]})
    shares = [(getattr(model.full, key) - getattr(less, key)) / max(1, getattr(model.full, key)) for key in limits]
    return float(max(sum(shares), 1e-12)) / (counts[-1] - counts[-2])


def _rising(values: list[float], widths: list[int]) -> list[float]:
    """The nearest sequence that never falls: neighbours that do are averaged by width (pool adjacent violators)."""
    pools: list[tuple[float, int, int]] = []  # (mean, width, how many)
    for value, width in zip(values, widths, strict=True):
        pool = (value, width, 1)
        while pools and pools[-1][0] > pool[0]:
            mean, wide, many = pools.pop()
            total = wide + pool[1]
            pool = (mean * wide + pool[0] * pool[1]) / total, total, many + pool[2]
        pools.append(pool)
    return [mean for mean, _, many in pools for _ in range(many)]


def _shares(kind: str, share: float, special: Mapping[str, float], groups: list[ChannelGroup]) -> dict[str, float]:
    """The floor or ceiling of each group."""
    for name, value in {kind: share, **special}.items():
        if not 0 <= value <= 1:
            raise MscError(f"{kind} of {name!r} must be a share in [0, 1]; found {value!r}")
    names = [g.name for g in groups]
    for pattern in special:
        if not any(name == pattern or fnmatchcase(name, pattern) for name in names):
            raise MscError(f"{kind}s: no channel group {pattern!r}{nearest(pattern, names)}")
    found = dict.fromkeys(names, share)
    for pattern, value in special.items():
        found |= {name: value for name in names if name == pattern or fnmatchcase(name, pattern)}
    return found


def _listed(counts: tuple[int, ...]) -> str:
    return ", ".join(map(str, counts)) if len(counts) <= 4 else f"{counts[0]}, {counts[1]}, ..., {counts[-1]}"
