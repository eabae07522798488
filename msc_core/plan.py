"""Plans: the exact choices that make a compressed network, as data.

A compressed model is a pure function of (graph, plan): `tools.apply(plan, graph)`. Agents, Optuna and people write the
same plans; `strategy.py` has the rules from which people make them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from msc_core.channels import ChannelGroup
from msc_core.errors import InvalidPlan, nearest
from msc_core.ir import MSCGraph, write_atomic
from msc_core.reading import STRICT, read

SCHEMA = 1
PARTS = ("prune", "quantize", "cast")
CASTS = ("float16", "bfloat16")
MAX_BITS = 16
ROUNDINGS = ("nearest", "gptq")


@dataclass(frozen=True)
class Quantized:
    """How one tensor is stored in integers: `round(x / scale) + zero_point`, saturated to `bits`.

    - `scale` (float32 values) and `zero_point` have one entry for the whole tensor or, with `axis`, one for each of its
      positions; with `block` too, one for each run of `block` elements of the flattened rest: (positions * blocks).
    - `consumers` are the nodes that read the integers; the others keep the float tensor. Empty: every one.
    - `rounding`, of weights: "nearest", or "gptq" where there is calibration data to compensate the errors with.
    """

    bits: int
    scale: tuple[float, ...]
    zero_point: tuple[int, ...] = (0,)
    signed: bool = True
    axis: int | None = None
    block: int = 0
    consumers: tuple[str, ...] = ()
    rounding: str = "nearest"
    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", tuple(map(float, self.scale)))
        object.__setattr__(self, "zero_point", tuple(map(int, self.zero_point)))
        object.__setattr__(self, "consumers", tuple(sorted(set(self.consumers))))
        low, high = self.limits
        if not 2 <= self.bits <= MAX_BITS:
            raise InvalidPlan(f"bits must be 2 to {MAX_BITS}; found {self.bits}")
        if not self.scale or not all(math.isfinite(s) and s > 0 for s in self.scale):
            raise InvalidPlan(f"scales must be positive numbers; found {str(self.scale)[:60]}")
        if len(self.zero_point) != len(self.scale) or not all(low <= z <= high for z in self.zero_point):
            found = f"{len(self.scale)} scales and zero points {str(self.zero_point)[:60]}"
            raise InvalidPlan(f"every scale needs a zero point from {low} to {high}; found {found}")
        if self.rounding not in ROUNDINGS:
            raise InvalidPlan(f"unknown rounding {self.rounding!r}{nearest(self.rounding, ROUNDINGS)}")
        if self.axis is None and (len(self.scale) > 1 or self.block):
            raise InvalidPlan("several scales need the axis that they are for")

    @property
    def limits(self) -> tuple[int, int]:
        """The smallest and the largest integer."""
        return (-(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1) if self.signed else (0, 2**self.bits - 1)

    @property
    def dtype(self) -> str:
        """The NumPy dtype that holds the integers: the smallest that engines know."""
        if self.bits <= 8:
            return "int8" if self.signed else "uint8"
        return "int16" if self.signed or self.bits < 16 else "uint16"

    def to_data(self) -> dict[str, Any]:
        """As JSON values; what has its default is left out."""
        return {f.name: v for f in dataclasses.fields(self) if (v := getattr(self, f.name)) != f.default}


@dataclass(frozen=True)
class Plan:
    """What to do to the graph with that fingerprint; what is not named stays as it is.

    - `prune`: the channels that each group keeps.
    - `quantize`: how each tensor is stored, by its name in the graph after pruning and folding of batch norms (a
      folded layer keeps its name, and its output has the norm's).
    - `cast`: the dtype that a node computes in, float16 or bfloat16.
    """

    graph: str
    prune: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    quantize: Mapping[str, Quantized] = field(default_factory=dict)
    cast: Mapping[str, str] = field(default_factory=dict)
    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    def __post_init__(self) -> None:
        kept = {name: tuple(sorted({int(i) for i in indices})) for name, indices in self.prune.items()}
        for name, value in (("prune", kept), ("quantize", self.quantize), ("cast", self.cast)):
            object.__setattr__(self, name, MappingProxyType(dict(sorted(value.items()))))
        for node, dtype in self.cast.items():
            if dtype not in CASTS:
                raise InvalidPlan(f"cast[{node!r}] must be one of {', '.join(CASTS)}; found {dtype!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return Plan, (self.graph, dict(self.prune), dict(self.quantize), dict(self.cast))

    @property
    def hash(self) -> str:
        """A content hash, 16 hex digits; equal plans have equal hashes."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def merge(self, other: Plan) -> Plan:
        """Both plans in one; where both speak of the same group, tensor or node, `other` wins.

        Raises `InvalidPlan` if they are for different graphs.
        """
        if self.graph != other.graph:
            raise InvalidPlan(f"one plan is for graph {self.graph[:12]}, the other for {other.graph[:12]}")
        return Plan(self.graph, *({**getattr(self, part), **getattr(other, part)} for part in PARTS))

    def diff(self, other: Plan) -> list[str]:
        """What `other` says differently: a line for each group, tensor and node, such as `"prune a: 8 kept -> 4 kept"`.

        >>> Plan("g", {"a": (0, 1)}).diff(Plan("g", {"a": (0, 2)}, cast={"b": "float16"}))
        ['prune a: 2 kept -> 2 kept (not 1; 2)', 'cast b: - -> float16']
        """
        lines = [] if self.graph == other.graph else [f"graph: {self.graph[:12]} -> {other.graph[:12]}"]
        for part in PARTS:
            old, new = getattr(self, part), getattr(other, part)
            changes = {name: (old.get(name), new.get(name)) for name in sorted(old.keys() | new.keys())}
            lines += [f"{part} {name}: {_change(*pair)}" for name, pair in changes.items() if pair[0] != pair[1]]
        return lines

    def to_json(self) -> str:
        """Canonical JSON; `quantize` and `cast` are left out where they are empty."""
        data: dict[str, Any] = {
            "schema": SCHEMA,
            "graph": self.graph,
            "prune": {k: list(v) for k, v in self.prune.items()},
        }
        if self.quantize:
            data["quantize"] = {name: q.to_data() for name, q in self.quantize.items()}
        if self.cast:
            data["cast"] = dict(self.cast)
        return json.dumps(data, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Plan:
        """Read `to_json`'s form. Raises `InvalidPlan` for anything else."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidPlan(f"not JSON: {error}") from error
        if not isinstance(data, dict) or data.pop("schema", None) != SCHEMA:
            raise InvalidPlan(f"expected a plan with schema {SCHEMA}; found {text[:60]!r}")
        return read(Plan, data, InvalidPlan)

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
        """Raise `InvalidPlan` unless the plan is for `graph` and names its groups, with indices in range.

        What it says of tensors and nodes is checked where it is applied, to the graph after pruning.
        """
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


def _brief(value: Any) -> str:
    if isinstance(value, tuple):
        return f"{len(value)} kept"
    if isinstance(value, Quantized):
        scales = f"scale {value.scale[0]:.3g}" if len(value.scale) == 1 else f"{len(value.scale)} scales"
        return f"{'' if value.signed else 'u'}int{value.bits}, {scales}"
    return str(value or "-")


def _change(old: Any, new: Any) -> str:
    """Two choices, and for prunings which channels only one of them keeps."""
    text = f"{_brief(old)} -> {_brief(new)}"
    if not (isinstance(old, tuple) and isinstance(new, tuple)):
        return text
    less, more = (", ".join(map(str, sorted(set(a) - set(b)))) for a, b in ((old, new), (new, old)))
    return f"{text} ({'; '.join(filter(None, (less and f'not {less}', more)))})"
