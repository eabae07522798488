"""Strategies: rules that a person writes; `resolve` turns them into the exact choices of a `Plan`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, ClassVar

from msc_core.channels import DIVISOR, ChannelGroup
from msc_core.errors import InvalidPlan, nearest
from msc_core.ir import MSCGraph, Node
from msc_core.ops import OPS
from msc_core.plan import CASTS
from msc_core.reading import STRICT
from msc_core.tools.quantize.precision import Precision

MSC_NAMES = {op.msc for op in OPS.values() if op.msc}
OUTPUTS = "outputs"


@dataclass(frozen=True)
class Prune:
    """Keep the share `density` of a group's channels, in multiples of `divisor`, ranked by `method`."""

    density: float
    method: str = "obs"
    divisor: int = DIVISOR
    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    def __post_init__(self) -> None:
        if not 0 < self.density <= 1:
            raise InvalidPlan(f"density must be in (0, 1]; found {self.density}")
        if self.divisor < 1:
            raise InvalidPlan(f"divisor must be at least 1; found {self.divisor}")


@dataclass(frozen=True)
class Distill:
    """Hold the tensors that a layer makes near the original's while fine-tuning, by a `loss` of that `weight`."""

    loss: str = "lp"
    weight: float = 1.0
    power: float = 2.0
    temperature: float = 1.0
    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    def __post_init__(self) -> None:
        if self.loss not in ("lp", "kl"):
            raise InvalidPlan(f"unknown loss {self.loss!r}{nearest(self.loss, ('lp', 'kl'))}")
        if self.weight < 0 or self.power <= 0 or self.temperature <= 0:
            raise InvalidPlan(f"weight must be at least 0, power and temperature above 0; found {self}")


@dataclass(frozen=True)
class Rule:
    """What to do with the layers that all of its selectors match; a selector is globs, any of which may match.

    - `ops`: operators, by our name or MSC's. `names`: nodes or channel groups. `scopes`: the modules that nodes are in.
      `tensors`: what nodes make or own. `marks`: names that the strategy gives to sets of nodes and tensors.
    - `prune`, `quantize`, `cast` ("float16", "bfloat16", or "float32" for no cast), `distill`, `track` (whether the
      tracker compares the layer's outputs): what is not given is left to other rules.
    """

    ops: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    prune: Prune | None = None
    quantize: Precision | None = None
    cast: str | None = None
    distill: Distill | None = None
    track: bool | None = None
    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    def __post_init__(self) -> None:
        for op in self.ops:
            if not _glob(op) and op not in OPS and op not in MSC_NAMES:
                raise InvalidPlan(f"no operator {op!r}{nearest(op, [*OPS, *MSC_NAMES])}")
        if self.cast not in (None, "float32", *CASTS):
            raise InvalidPlan(f"cast must be one of float32, {', '.join(CASTS)}; found {self.cast!r}")


@dataclass(frozen=True)
class Strategy:
    """Rules in order: for each layer and action the last rule that matches and speaks of it wins.

    `marks` name sets of nodes and tensors, by globs; the mark "outputs" is there already: what the graph returns.
    """

    rules: tuple[Rule, ...]
    marks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    def __post_init__(self) -> None:
        object.__setattr__(self, "marks", MappingProxyType(dict(self.marks)))
        for mark in (mark for rule in self.rules for mark in rule.marks):
            if mark not in (OUTPUTS, *self.marks):
                raise InvalidPlan(f"no mark {mark!r}{nearest(mark, [OUTPUTS, *self.marks])}")

    def decide(self, action: str, graph: MSCGraph) -> dict[str, Any]:
        """What the rules say of `action` ("quantize", "cast", "distill", "track") for each node that any matches.

        Raises `InvalidPlan` for a name without wildcards that nothing in the graph has.
        """
        self._check(graph, ())
        found = {node.name: self._last(action, graph, [node]) for node in graph.nodes}
        return {name: value for name, value in found.items() if value is not None}

    def prune(self, graph: MSCGraph, groups: Iterable[ChannelGroup]) -> dict[str, Prune]:
        """What the rules say of each group, by its name or by the layers that produce its channels."""
        groups = list(groups)
        self._check(graph, [g.name for g in groups])
        found = {}
        for group in groups:
            producers = dict.fromkeys(m.node for m in group.members if not m.contracted) or group.nodes
            if (value := self._last("prune", graph, [graph.node(n) for n in producers], group.name)) is not None:
                found[group.name] = value
        return found

    def _last(self, action: str, graph: MSCGraph, nodes: list[Node], *also: str) -> Any:
        speaking = (rule for rule in reversed(self.rules) if getattr(rule, action) is not None)
        matching = (rule for rule in speaking if any(self._matches(rule, graph, node, also) for node in nodes))
        return next((getattr(rule, action) for rule in matching), None)

    def _matches(self, rule: Rule, graph: MSCGraph, node: Node, also: tuple[str, ...]) -> bool:
        tensors = (*node.outputs, *(name for name in node.inputs if name in graph.weights))
        marks = {**self.marks, OUTPUTS: graph.outputs}
        conditions = (
            (rule.ops, (node.op, OPS[node.op].msc)),
            (rule.names, (node.name, *also)),
            (rule.scopes, (node.scope,)),
            (rule.tensors, tensors),
            (rule.marks and sum((marks[mark] for mark in rule.marks), ()), (node.name, *also, *tensors)),
        )
        return all(_any(patterns, values) for patterns, values in conditions if patterns)

    def _check(self, graph: MSCGraph, also: Iterable[str]) -> None:
        nodes = {*(node.name for node in graph.nodes), *also}
        scopes = {node.scope for node in graph.nodes}
        known = {"names": nodes, "scopes": scopes, "tensors": set(graph.tensors)}
        marked = [("marks", p, nodes | set(graph.tensors)) for patterns in self.marks.values() for p in patterns]
        named = [(key, p, known[key]) for rule in self.rules for key in known for p in getattr(rule, key)]
        for key, pattern, there in named + marked:
            if not _glob(pattern) and pattern not in there:
                raise InvalidPlan(f"{key}: nothing in the graph is called {pattern!r}{nearest(pattern, there)}")

    def to_json(self) -> str:
        """JSON that `from_data` reads; what has its default is left out."""
        return json.dumps(
            {"rules": [_plain(r) for r in self.rules], "marks": {k: list(v) for k, v in self.marks.items()}}
        )


def keep_count(group: ChannelGroup, density: float) -> int:
    """The allowed count nearest to `density * size`; ties go to the larger."""
    wanted = density * group.size
    return min(group.counts, key=lambda count: (abs(count - wanted), -count))


def _plain(value: Any) -> Any:
    if not hasattr(value, "__dataclass_fields__"):
        return list(value) if isinstance(value, tuple) else value
    return {f.name: _plain(v) for f in fields(value) if (v := getattr(value, f.name)) != f.default}


def _any(patterns: tuple[str, ...], values: Iterable[str]) -> bool:
    return any(value == pattern or fnmatchcase(value, pattern) for pattern in patterns for value in values)


def _glob(pattern: str) -> bool:
    return any(c in pattern for c in "*?[")
