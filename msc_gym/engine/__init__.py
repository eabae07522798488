"""The reward engine: plans in, measurements out; a plan that was tried before costs a lookup."""

from msc_gym.engine.measurement import Measurement

__all__ = ["Measurement"]
