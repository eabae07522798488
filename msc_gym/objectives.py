"""Several objectives at once: what each is worth, which plan beats which, and how good a front is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from msc_core.errors import MscError, nearest
from msc_gym.config import ObjectiveName
from msc_gym.engine import Measurement
from msc_gym.task import CompressionTask

OBJECTIVES: tuple[str, ...] = get_args(ObjectiveName)
Point = tuple[float, ...]


def check_objective(name: str) -> str:
    """The name itself. Raises `MscError` if it is none of `OBJECTIVES`."""
    if name not in OBJECTIVES:
        raise MscError(f"unknown objective {name!r}{nearest(name, OBJECTIVES)}")
    return name


def objective_values(measurement: Measurement, task: CompressionTask, objectives: Sequence[str]) -> Point:
    """What each objective is worth, higher is better: accuracy, and for a cost the share of the original that is saved.

    What failed or was not measured is worth 0 accuracy and -1 of a cost.
    """
    return tuple(_value(measurement, task, name) for name in objectives)


def _value(measurement: Measurement, task: CompressionTask, name: str) -> float:
    if name == "accuracy":
        return measurement.accuracy
    if name == "latency":
        ratio = measurement.latency_ratio
    else:
        ratio = getattr(measurement, name) / task.cost({})[name] if measurement.ok else None
    return -1.0 if ratio is None else max(-1.0, 1.0 - ratio)


def beats(a: Point, b: Point) -> bool:
    """Whether `a` is at least as good in every objective and better in one.

    >>> beats((1.0, 0.5), (1.0, 0.4)), beats((1.0, 0.5), (1.0, 0.5))
    (True, False)
    """
    return a != b and all(x >= y for x, y in zip(a, b, strict=True))


def hypervolume(points: Sequence[Point]) -> float:
    """The volume between the origin and the points (Zitzler and Thiele 1998), by slices along the last objective.

    >>> hypervolume([(1.0, 0.5), (0.5, 1.0)])
    0.75
    """
    inside = sorted((p for p in points if all(x > 0 for x in p)), key=lambda p: p[-1])
    if not inside:
        return 0.0
    if len(inside[0]) == 1:
        return inside[-1][0]
    volume, below = 0.0, 0.0
    for i, point in enumerate(inside):
        volume += (point[-1] - below) * hypervolume([p[:-1] for p in inside[i:]])
        below = point[-1]
    return volume
