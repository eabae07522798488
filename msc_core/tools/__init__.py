"""Tools: pure functions from graph to graph, or training loops that say so."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from msc_core.channels import Channels
from msc_core.errors import InvalidPlan
from msc_core.ir import MSCGraph
from msc_core.plan import Plan
from msc_core.rewrite import drop_identities, fold_batch_norm
from msc_core.tools.calibration import Inputs
from msc_core.tools.prune import surgery  # not its function, whose name the package has
from msc_core.tools.prune.importance import WITHOUT_DATA
from msc_core.tools.prune.pruner import Pruner
from msc_core.tools.prune.statistics import Statistics
from msc_core.tools.strategy import Strategy, keep_count


def apply(plan: Plan, graph: MSCGraph, data: Inputs | None = None) -> MSCGraph:
    """The graph that `plan` describes: pruned, then quantized, then cast; a pure function of its arguments.

    Weights are sliced and rounded. With calibration inputs `data`, (n, ...) or by name, layers are fitted anew in the
    order of the network, to restore accuracy. Raises `InvalidPlan` if the plan is for another graph, or names what
    this one does not have.
    """
    channels = Channels(graph)
    plan.check(graph, channels.groups)
    found = (
        surgery.prune(graph, plan.prune, channels)
        if data is None
        else Pruner(graph, data, recovery="sequential").compress(plan)
    )
    return finish(plan, found, data)


def finish(plan: Plan, graph: MSCGraph, data: Inputs | None = None) -> MSCGraph:
    """The second half of `apply`: a graph that is pruned already, and maybe trained, quantized and cast as planned.

    Weights whose rounding is "gptq" need `data` for it, without which they are rounded to the nearest.
    """
    if not (plan.quantize or plan.cast):
        return graph
    from msc_core.tools.quantize.casts import cast
    from msc_core.tools.quantize.gptq import round_weights
    from msc_core.tools.quantize.insert import quantize
    from msc_core.tools.quantize.placement import layers

    folded = drop_identities(fold_batch_norm(graph))
    rounded = {} if data is None else round_weights(folded, plan.quantize, Statistics(folded, layers(folded), data))
    return cast(quantize(folded, plan.quantize, rounded), plan.cast)


def resolve(strategy: Strategy, graph: MSCGraph, data: Inputs | None = None) -> Plan:
    """The exact plan that a strategy's rules mean for `graph`.

    `data` is calibration input (n, ...) float32, needed by criteria that look at activations and for their ranges,
    which are those of the pruned network with its accuracy restored: what `apply` with the same data returns.
    """
    casts = {node: dtype for node, dtype in strategy.decide("cast", graph).items() if dtype != "float32"}
    plan = Plan(graph.fingerprint, _kept(strategy, graph, data), cast=casts)
    if precisions := strategy.decide("quantize", graph):
        if data is None:
            raise InvalidPlan("quantization needs the ranges of activations: pass calibration data")
        from msc_core.tools.quantize.quantizer import Quantizer

        quantizer = Quantizer(apply(replace(plan, cast={}), graph, data if plan.prune else None), data)
        wanted = {name: precisions[name] for name in quantizer.layers if name in precisions}
        plan = replace(plan, quantize=quantizer.plan(wanted).quantize)
    return plan


def _kept(strategy: Strategy, graph: MSCGraph, data: Inputs | None) -> dict[str, tuple[int, ...]]:
    """The channels that each group keeps."""
    chosen = strategy.prune(graph, Channels(graph).groups)
    counts: dict[tuple[str, int], dict[str, int]] = defaultdict(dict)
    for divisor in {rule.divisor for rule in chosen.values()}:
        for group in Channels(graph, divisor).groups:
            rule = chosen.get(group.name)
            if rule and rule.divisor == divisor and (count := keep_count(group, rule.density)) < group.size:
                counts[rule.method, divisor][group.name] = count
    kept: dict[str, tuple[int, ...]] = {}
    for (method, divisor), wanted in counts.items():
        if data is None and method not in WITHOUT_DATA:
            raise InvalidPlan(
                f"method {method!r} needs calibration data to rank channels; without it: {', '.join(WITHOUT_DATA)}"
            )
        x = np.zeros(0, np.float32) if data is None else data
        kept |= Pruner(graph, x, divisor=divisor, criterion=method).plan(wanted).prune
    return kept
