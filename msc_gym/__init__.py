"""A gym for compressing networks: environments, agents and a measuring reward engine over `msc_core`."""

from __future__ import annotations

from msc_gym.engine.measurement import Measurement
from msc_gym.task import CompressionTask

__all__ = ["CompressionTask", "Measurement"]
