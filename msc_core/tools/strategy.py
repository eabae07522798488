"""Strategies: rules that a person writes; `resolve` turns them into the exact choices of a `Plan`."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from msc_core.channels import ChannelGroup
from msc_core.errors import InvalidPlan


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
