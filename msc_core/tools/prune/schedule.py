"""Prune in rounds: channels are ranked anew after each, and the rounds' plans become one plan for the original."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from msc_core.channel_ids import NONE
from msc_core.channels import Channels
from msc_core.errors import InvalidPlan, MscError, nearest
from msc_core.ir import Array, MSCGraph
from msc_core.plan import Plan
from msc_core.tools.prune.budget import CostModel
from msc_core.tools.prune.ranking import bounds, check_budget, check_reachable, search
from msc_core.tools.prune.surgery import kept_positions, prune

if TYPE_CHECKING:
    from msc_core.tools.prune.pruner import Pruner

SHAPES: Mapping[str, Callable[[float, float], float]] = {
    "linear": lambda final, t: 1 - (1 - final) * t,
    "cubic": lambda final, t: final + (1 - final) * (1 - t) ** 3,  # Zhu and Gupta 2017: fast at first
    "geometric": lambda final, t: final**t,  # the same share of what is left in every round
}


@dataclass(frozen=True)
class Schedule:
    """How much of a cost may stay after each of `rounds` rounds.

    >>> [round(share, 3) for share in Schedule(4, "cubic").shares(0.2)]
    [0.538, 0.3, 0.213, 0.2]
    """

    rounds: int = 4
    shape: str = "cubic"

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise MscError(f"rounds must be at least 1; found {self.rounds}")
        if self.shape not in SHAPES:
            raise MscError(f"unknown schedule {self.shape!r}{nearest(self.shape, SHAPES)}")

    def shares(self, final: float) -> tuple[float, ...]:
        """The share after each round; the last is `final`."""
        return (*(SHAPES[self.shape](final, i / self.rounds) for i in range(1, self.rounds)), final)


@dataclass(frozen=True)
class Rounds:
    """What `prune_in_rounds` found: `plan` is for the original graph, `graph` has what recovery and training made."""

    plan: Plan
    graph: MSCGraph


def prune_in_rounds(
    graph: MSCGraph,
    pruner: Callable[[MSCGraph], Pruner],
    budget: Mapping[str, float],
    schedule: Schedule,
    between: Callable[[MSCGraph, int], MSCGraph] | None = None,
    ranking: str = "global",
    **options: Any,
) -> Rounds:
    """Meet `budget` (see `allocate`, whose other options these are) round by round.

    `pruner` makes the pruner of each round's graph. `between(graph, round)` may train it and returns it with other
    weights; it is called after every round. Floors, ceilings and divisors are of the original's groups.
    Raises what `allocate` raises, before the first round where the budget is the reason.
    """
    check_budget(budget, ranking)
    per_cost = options.pop("per_cost", None)
    now, plan, current = pruner(graph), Plan(graph.fingerprint), graph
    channels, choices, model = now.channels, bounds(now.groups, **options), CostModel(graph, now.groups)
    shares = {key: schedule.shares(final) for key, final in budget.items()}
    limits = [{key: shares[key][i] * getattr(model.full, key) for key in budget} for i in range(schedule.rounds)]
    check_reachable(model, choices, limits[-1])
    for i in range(schedule.rounds):
        if i > 0:
            now = pruner(current)
            model = CostModel(current, now.groups)
        origins = trace(channels, plan.prune, now.channels)
        left = {
            g.name: tuple(count for count in choices[origins[g.name][0]] if count <= g.size)
            for g in now.groups
            if g.name in origins and origins[g.name][0] in choices
        }
        step = now.plan(search(now, model, left, limits[i], ranking, per_cost))
        plan, current = _followed(plan, step, origins), now.compress(step)
        current = between(current, i) if between is not None else current
    return Rounds(plan, current)


def compose(graph: MSCGraph, first: Plan, second: Plan) -> Plan:
    """The plan for `graph` that prunes what `first` and then `second`, a plan for the result of `first`, prune.

    Raises `InvalidPlan` if `second` does not fit that result, or if its channels cannot be traced to the original's.
    """
    if first.quantize or first.cast:
        raise InvalidPlan("a plan that quantizes or casts cannot be followed by another")
    before = Channels(graph)
    after = Channels(prune(graph, first.prune, before))
    sizes = {g.name: g.size for g in after.groups}
    for name, indices in second.prune.items():
        if name not in sizes:
            raise InvalidPlan(f"no channel group {name!r}{nearest(name, sizes)}")
        if not all(0 <= i < sizes[name] for i in indices):
            raise InvalidPlan(f"group {name!r} has {sizes[name]} channels left; the plan keeps {list(indices)}")
    return _followed(first, second, trace(before, first.prune, after))


def trace(before: Channels, kept: Mapping[str, tuple[int, ...]], after: Channels) -> dict[str, tuple[str, Array]]:
    """Where the groups of a pruned graph come from: {name: (name of the original's group, its index of each channel)}.

    `before` is of the original, `kept` what was pruned, `after` of the result. Names alone would not do: a group of
    which one channel is left is none any more, and another may take over its name. A group that cannot be traced with
    certainty is left out.
    """
    dropped, positions = before.dropped(kept), {}
    members: dict[tuple[str, str, int], list[tuple[str, Array]]] = {}
    for group in before.groups:
        for m in group.members:
            if m.tensor not in positions:
                positions[m.tensor] = kept_positions(m.tensor, before.graph.weights[m.tensor].shape, before, dropped)
            left = m.index[positions[m.tensor][m.axis]]
            members.setdefault((m.node, m.tensor, m.axis), []).append((group.name, left))
    found: dict[str, tuple[str, Array]] = {}
    origins = {g.name: np.asarray(kept.get(g.name, range(g.size))) for g in before.groups}
    for group in after.groups:
        for name, origin in origins.items():
            if len(origin) == group.size and all(
                any(
                    name == other and np.array_equal(left, np.where(m.index == NONE, NONE, origin[m.index]))
                    for other, left in members.get((m.node, m.tensor, m.axis), [])
                )
                for m in group.members
            ):
                found[group.name] = name, origin
    return found


def _followed(first: Plan, second: Plan, origins: Mapping[str, tuple[str, Array]]) -> Plan:
    """`second`, in the original's channels, on top of `first`."""
    kept = dict(first.prune)
    for name, indices in second.prune.items():
        if name not in origins:
            raise InvalidPlan(f"the channels of group {name!r} cannot be traced to those of the original")
        group, origin = origins[name]
        kept[group] = tuple(origin[list(indices)].tolist())
    return replace(second, graph=first.graph, prune=kept)
