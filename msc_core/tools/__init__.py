"""Tools: pure functions from graph to graph, or training loops that say so."""

from __future__ import annotations

import numpy as np

from msc_core.channels import Channels
from msc_core.errors import InvalidPlan
from msc_core.ir import Array, MSCGraph
from msc_core.plan import Plan
from msc_core.tools.prune import surgery  # not its function, whose name the package has
from msc_core.tools.prune.pruner import Pruner
from msc_core.tools.strategy import Strategy, keep_count


def apply(plan: Plan, graph: MSCGraph) -> MSCGraph:
    """The graph that `plan` describes, weights sliced and otherwise untouched; a pure function.

    Raises `InvalidPlan` if the plan is for another graph or does not fit its groups.
    """
    channels = Channels(graph)
    plan.check(graph, channels.groups)
    return surgery.prune(graph, plan.prune, channels)


def resolve(strategy: Strategy, graph: MSCGraph, data: Array | None = None) -> Plan:
    """The exact plan that a strategy's rules mean for `graph`.

    `data` is calibration input (n, ...) float32, needed by the methods that look at activations.
    """
    chosen = [(g, rule) for g in Channels(graph).groups if (rule := strategy.rule(g)) and not g.reason]
    counts = {g.name: (rule.method, keep_count(g, rule.density)) for g, rule in chosen}
    methods = {method for g, _ in chosen for method, count in [counts[g.name]] if count < g.size}
    if data is None and (needed := methods - {"l1", "l2"}):
        raise InvalidPlan(f"method {min(needed)!r} ranks channels by activations: pass calibration data")
    x = np.zeros(0, np.float32) if data is None else data
    kept: dict[str, tuple[int, ...]] = {}
    for method in methods:
        pruner = Pruner(graph, x, criterion=method)
        kept |= pruner.plan({name: count for name, (by, count) in counts.items() if by == method}).prune
    return Plan(graph.fingerprint, kept)
