"""Compare two stages or back ends tensor by tensor, and find the first layer that went wrong."""

from __future__ import annotations

from msc_core.tools.track.compare import Comparison, Difference, track
from msc_core.tools.track.stages import COMPARE_TO, Stage, track_stages

__all__ = ["COMPARE_TO", "Comparison", "Difference", "Stage", "track", "track_stages"]
