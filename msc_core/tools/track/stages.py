"""Stages of a compression compared with those before them, as MSC's tracker did by `compare_to`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from msc_core.backends import Target
from msc_core.errors import MscError, nearest
from msc_core.ir import MSCGraph
from msc_core.plan import Plan
from msc_core.tools.calibration import Inputs
from msc_core.tools.track.compare import Comparison, track

COMPARE_TO: Mapping[str, Sequence[str]] = MappingProxyType(
    {"optimize": ("baseline",), "compile": ("optimize", "baseline")}
)


@dataclass(frozen=True)
class Stage:
    """A graph on a target; `plan` is what made it from an earlier stage, for the channels that both have."""

    graph: MSCGraph
    target: str | Target = "torch"
    plan: Plan | None = None


def track_stages(
    stages: Mapping[str, Stage], inputs: Inputs, compare_to: Mapping[str, Sequence[str]] = COMPARE_TO, **options: Any
) -> dict[tuple[str, str], Comparison]:
    """{(stage, earlier stage): comparison} for every pair that `compare_to` names; `options` are those of `track`.

    Raises `MscError` before any work for a stage that there is not.
    """
    wanted = [(name, other) for name, others in compare_to.items() for other in others]
    for name in (name for pair in wanted for name in pair):
        if name not in stages:
            raise MscError(f"no stage {name!r}{nearest(name, stages)}")
    found = {}
    for name, other in wanted:
        stage, before = stages[name], stages[other]
        fits = stage.plan is not None and stage.plan.graph == before.graph.fingerprint
        found[name, other] = track(
            before.graph, stage.graph, inputs, stage.target, before.target, plan=stage.plan if fits else None, **options
        )
    return found
