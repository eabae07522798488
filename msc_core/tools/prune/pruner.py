"""One object that knows a graph's groups, their importance order and how to restore accuracy."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property

import numpy as np

from msc_core.channels import DIVISOR, ChannelGroup, Channels
from msc_core.errors import InvalidPlan, MscError, nearest
from msc_core.ir import Array, MSCGraph
from msc_core.plan import Plan
from msc_core.tools.calibration import Inputs
from msc_core.tools.prune.gradients import Gradients
from msc_core.tools.prune.importance import Evidence, Ranking, rank
from msc_core.tools.prune.recover import recover
from msc_core.tools.prune.sequential import recover_sequential, reestimate_batch_norm
from msc_core.tools.prune.statistics import Statistics, readers
from msc_core.tools.prune.surgery import prune
from msc_core.tools.threads import one_thread

VERSION = 3  # of what `compress` computes: part of every cache key
BATCH_NORM_SAMPLES = 256
RECOVERIES = ("sequential", "one-shot", "none")


class Pruner:
    """Turns kept counts into plans and plans into pruned graphs with restored accuracy, the same in every process.

    - `x`: calibration data, about 1,000 samples (n, ...), or as many for each input by name; `labels` (n, ...) are for
      criteria that look at gradients (see `Gradients`).
    - `recovery`: "one-shot" solves all layers at once from statistics of the original network, in milliseconds once
      these are there, which suits a search. "sequential" fits one after the other in a forward of both networks, which
      restores more. Both re-estimate batch norms; "none" leaves weights as they are sliced.

    Raises `MscError` for another recovery.
    """

    def __init__(
        self,
        graph: MSCGraph,
        x: Inputs,
        divisor: int = DIVISOR,
        criterion: str = "obs",
        recovery: str = "one-shot",
        labels: Array | None = None,
    ) -> None:
        if recovery not in RECOVERIES:
            raise MscError(f"unknown recovery {recovery!r}{nearest(recovery, RECOVERIES)}")
        self.graph, self.x, self.criterion, self.recovery = graph, x, criterion, recovery
        self.channels = Channels(graph, divisor)
        self.groups = [g for g in self.channels.groups if not g.reason]
        self.statistics = Statistics(graph, readers(self.groups), x)
        self.evidence = Evidence(graph, self.statistics, Gradients(graph, self.groups, x, labels))
        self._rankings: dict[str, Ranking] = {}
        digest = hashlib.sha256(f"{VERSION} {graph.fingerprint} {divisor} {criterion} {recovery}".encode())
        given = {**(x if isinstance(x, Mapping) else {"": x}), **({} if labels is None else {"labels": labels})}
        for name, array in given.items():
            digest.update(f"{name} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        self.fingerprint = digest.hexdigest()[:16]

    @cached_property
    def _by_name(self) -> dict[str, ChannelGroup]:
        return {g.name: g for g in self.groups}

    def ranking(self, group: str) -> Ranking:
        """The importance order of a group's channels and what it costs to follow it; computed once."""
        if group not in self._rankings:
            with one_thread():
                self._rankings[group] = rank(self.evidence, self._by_name[group], self.criterion)
        return self._rankings[group]

    def order(self, group: str) -> Array:
        """The channels of a group, most important first."""
        return self.ranking(group).order

    def plan(self, counts: Mapping[str, int]) -> Plan:
        """Keep the `counts[group]` most important channels of each group named.

        Raises `InvalidPlan` for a group that is not there or cannot be pruned, or a count below 1.
        """
        for name, count in counts.items():
            if name not in self._by_name:
                raise InvalidPlan(f"no group {name!r} that can be pruned{nearest(name, self._by_name)}")
            if count < 1:
                raise InvalidPlan(f"group {name!r} must keep at least 1 of {self._by_name[name].size}; found {count}")
        kept = {
            name: tuple(int(i) for i in self.order(name)[:count])
            for name, count in counts.items()
            if count < self._by_name[name].size
        }
        return Plan(self.graph.fingerprint, kept)

    def compress(self, plan: Plan) -> MSCGraph:
        """The pruned graph, with least-squares weights and re-estimated batch norms unless recovery is off.

        Raises `InvalidPlan` if the plan does not fit. A plan that prunes nothing returns the graph itself.
        """
        plan.check(self.graph, self.channels.groups)
        kept = {name: indices for name, indices in plan.prune.items() if len(indices) < self._by_name[name].size}
        if not kept:
            return self.graph
        if self.recovery == "none":
            return prune(self.graph, kept, self.channels)
        with one_thread():
            if self.recovery == "sequential":
                return recover_sequential(self.graph, kept, self.channels, self.x)
            recovered = recover(self.graph, kept, self.channels, self.statistics)
            return reestimate_batch_norm(recovered, self.x, BATCH_NORM_SAMPLES)
