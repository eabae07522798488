"""Tools: pure functions from graph to graph, or training loops that say so."""

from __future__ import annotations

import numpy as np

from msc_core.channels import Channels
from msc_core.errors import InvalidPlan
from msc_core.ir import Array, MSCGraph
from msc_core.plan import Plan, Strategy, keep_count
from msc_core.tools.prune.pruner import Pruner
from msc_core.tools.prune.surgery import prune


def apply(plan: Plan, graph: MSCGraph) -> MSCGraph:
    """The graph that `plan` describes, weights sliced and otherwise untouched; a pure function.

    Raises `InvalidPlan` if the plan is for another graph or does not fit its groups.
    """
    channels = Channels(graph)
    plan.check(graph, channels.groups)
    return prune(graph, plan.prune, channels)


def resolve(strategy: Strategy, graph: MSCGraph, data: Array | None = None) -> Plan:
    """The exact plan that a strategy's rules mean for `graph`.

    `data` is calibration input (n, ...) float32, needed by the methods that look at activations.
    """
    needed = {rule.method for rule in strategy.rules} - {"l1", "l2"}
    if data is None and needed:
        raise InvalidPlan(f"method {sorted(needed)[0]!r} ranks channels by activations: pass calibration data")
    kept: dict[str, tuple[int, ...]] = {}
    x = np.zeros(0, np.float32) if data is None else data
    pruners = {method: Pruner(graph, x, criterion=method) for method in {r.method for r in strategy.rules}}
    for group in Channels(graph).groups:
        rule = strategy.rule(group)
        if rule is not None and not group.reason:
            plan = pruners[rule.method].plan({group.name: keep_count(group, rule.density)})
            kept |= plan.prune
    return Plan(graph.fingerprint, kept)
