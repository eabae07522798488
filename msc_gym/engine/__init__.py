"""The reward engine: plans in, measurements out; a plan that was tried before costs a lookup."""

from msc_gym.engine.evaluator import Evaluator
from msc_gym.engine.measurement import Measurement
from msc_gym.engine.store import Store, TrialRow
from msc_gym.engine.worker import Scoring, Worker

__all__ = ["Evaluator", "Measurement", "Scoring", "Store", "TrialRow", "Worker"]
