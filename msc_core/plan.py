"""Plans and strategies. A `Strategy` is rules that a person writes; a `Plan` is the exact choices, as data.

A compressed model is a pure function of (graph, plan): `tools.apply(plan, graph)`. Agents, Optuna and people write the
same plans.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msc_core.channels import ChannelGroup
from msc_core.errors import InvalidPlan, nearest
from msc_core.ir import MSCGraph, write_atomic

SCHEMA = 1
FIELDS = ("schema", "graph", "prune")


@dataclass(frozen=True)
class Plan:
    """Which channels of each group are kept, for the graph with that fingerprint. Groups not named stay whole."""

    graph: str
    prune: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kept = {name: tuple(sorted({int(i) for i in indices})) for name, indices in sorted(self.prune.items())}
        object.__setattr__(self, "prune", MappingProxyType(kept))

    def __reduce__(self) -> tuple[Any, ...]:
        return Plan, (self.graph, dict(self.prune))

    @property
    def hash(self) -> str:
        """A content hash, 16 hex digits; equal plans have equal hashes."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """Canonical JSON."""
        kept = {name: list(indices) for name, indices in self.prune.items()}
        return json.dumps({"schema": SCHEMA, "graph": self.graph, "prune": kept}, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Plan:
        """Read `to_json`'s form. Raises `InvalidPlan` for anything else."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidPlan(f"not JSON: {error}") from error
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise InvalidPlan(f"expected a plan with schema {SCHEMA}; found {str(data)[:60]!r}")
        for key in data:
            if key not in FIELDS:
                raise InvalidPlan(f"unknown key {key!r}{nearest(key, FIELDS)}")
        kept = data.get("prune")
        if not isinstance(data.get("graph"), str) or not isinstance(kept, dict):
            raise InvalidPlan("expected keys 'graph' (a fingerprint) and 'prune' ({group: [kept indices]})")
        for name, indices in kept.items():
            if not isinstance(indices, list) or not all(type(i) is int for i in indices):
                raise InvalidPlan(f"prune[{name!r}] must be a list of integers; found {str(indices)[:60]}")
        return Plan(data["graph"], {name: tuple(indices) for name, indices in kept.items()})

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON, atomically."""
        write_atomic(Path(path), (self.to_json() + "\n").encode())

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Read a plan file; raises `InvalidPlan` naming the file."""
        try:
            return Plan.from_json(Path(path).read_text("utf-8"))
        except (OSError, UnicodeDecodeError, InvalidPlan) as error:
            raise InvalidPlan(f"plan {path}: {error}") from error

    def check(self, graph: MSCGraph, groups: list[ChannelGroup]) -> None:
        """Raise `InvalidPlan` unless the plan is for `graph` and names its groups, with indices in range."""
        if self.graph != graph.fingerprint:
            raise InvalidPlan(f"the plan is for graph {self.graph[:12]}, but this graph is {graph.fingerprint[:12]}")
        known = {g.name: g for g in groups}
        for name, kept in self.prune.items():
            if name not in known:
                raise InvalidPlan(f"no channel group {name!r}{nearest(name, known)}")
            group = known[name]
            if not kept or kept[0] < 0 or kept[-1] >= group.size:
                raise InvalidPlan(f"group {name!r} has channels 0 to {group.size - 1}; the plan keeps {list(kept)}")
            if group.reason and len(kept) < group.size:
                raise InvalidPlan(f"group {name!r} cannot be pruned: {group.reason}")


@dataclass(frozen=True)
class Rule:
    """Keep `density` of the channels of every group whose name matches the glob `groups`, ranked by `method`."""

    density: float
    groups: str = "*"
    method: str = "obs"

    def __post_init__(self) -> None:
        if not 0 < self.density <= 1:
            raise InvalidPlan(f"density must be in (0, 1]; found {self.density}")


@dataclass(frozen=True)
class Strategy:
    """Rules in order; for each group the last one that matches wins, and a group that none matches stays whole."""

    rules: tuple[Rule, ...]

    def rule(self, group: ChannelGroup) -> Rule | None:
        """The rule that decides on `group`."""
        return next((r for r in reversed(self.rules) if fnmatchcase(group.name, r.groups)), None)


def keep_count(group: ChannelGroup, density: float) -> int:
    """The allowed count nearest to `density * size`; ties go to the larger."""
    wanted = density * group.size
    return min(group.counts, key=lambda count: (abs(count - wanted), -count))
