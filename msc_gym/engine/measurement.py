"""What is known about one plan after it was tried: accuracy, cost and speed, or the reason why there is none."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

from msc_core.errors import MscError
from msc_gym.engine.accuracy import Count


@dataclass(frozen=True)
class Measurement:
    """One plan, tried. Every float is finite, so that it is JSON.

    - `plan`: the plan's hash; `split` and `samples`: what `accuracy` (top-1, 0 to 1) was counted on. `stopped` says
      that counting ended early, since the plan had lost against a bar; then `accuracy` is an estimate. `right` says
      which of the samples were right, as hexadecimal digits.
    - `macs`, `params`, `bytes`: of the compressed graph, exact.
    - `latency_ratio`: time of the compressed over the original network on `target`, with a confidence interval; `None`
      where latency was not asked for. `latency_valid` says that repeated rounds agreed; trust no ratio without it.
    - `device`, `versions`, `seconds`: where, with what, and how long it took. Clock values: no part of any reward that
      calls itself deterministic.
    - `error`: why it failed; then `accuracy` is 0 and `samples` is 0.
    """

    plan: str
    accuracy: float = 0.0
    samples: int = 0
    stopped: bool = False
    right: str = ""
    split: str = "validation"
    macs: int = 0
    params: int = 0
    bytes: int = 0
    latency_ratio: float | None = None
    latency_interval: tuple[float, float] | None = None
    latency_valid: bool = False
    target: str = ""
    device: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    error: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "versions", MappingProxyType(dict(self.versions)))
        numbers = [self.accuracy, self.seconds, self.latency_ratio or 0.0, *(self.latency_interval or ())]
        if not all(math.isfinite(number) for number in numbers):
            raise MscError(f"measurement of plan {self.plan} holds a number that is not finite: {numbers}")

    def __reduce__(self) -> tuple[Any, ...]:
        return Measurement.from_dict, (self.to_dict(),)

    @property
    def ok(self) -> bool:
        """Whether the plan could be measured."""
        return not self.error

    @property
    def count(self) -> Count:
        """What was counted."""
        return Count(self.accuracy, self.samples, self.right, self.stopped)

    def counted(self, count: Count) -> Measurement:
        """The same plan with another count."""
        return replace(self, **vars(count))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `from_dict` reads them."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return values | {"versions": dict(self.versions)}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Measurement:
        """Read `to_dict`'s form. Raises `MscError` for anything else."""
        try:
            values = dict(data)
            if values.get("latency_interval") is not None:
                low, high = values["latency_interval"]
                values["latency_interval"] = (float(low), float(high))
            measurement = Measurement(**values)
            for f in fields(Measurement):
                _check(f.name, getattr(measurement, f.name))
        except (TypeError, ValueError, KeyError) as error:
            raise MscError(f"not a measurement: {error}") from error
        return measurement

    def to_json(self) -> str:
        """Canonical JSON."""
        return json.dumps(self.to_dict(), sort_keys=True, allow_nan=False)

    @staticmethod
    def from_json(text: str) -> Measurement:
        """Read `to_json`'s form. Raises `MscError` for anything else."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise MscError(f"not a measurement: {error}") from error
        if not isinstance(data, dict):
            raise MscError(f"not a measurement: {text[:60]!r}")
        return Measurement.from_dict(data)


_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "plan": str, "right": str, "split": str, "target": str, "device": str, "error": str,
    "samples": int, "macs": int, "params": int, "bytes": int,
    "accuracy": (int, float), "seconds": (int, float), "latency_ratio": (int, float, type(None)),
    "latency_interval": (tuple, type(None)), "latency_valid": bool, "stopped": bool, "versions": Mapping,
}  # fmt: skip


def _check(name: str, value: object) -> None:
    if not isinstance(value, _TYPES[name]) or (isinstance(value, bool) and _TYPES[name] is not bool):
        raise TypeError(f"{name} is {value!r}")
