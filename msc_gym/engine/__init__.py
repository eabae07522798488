"""The reward engine: plans in, measurements out; a plan that was tried before costs a lookup."""

from msc_gym.engine.evaluator import Evaluator, parse_pool
from msc_gym.engine.measurement import Measurement
from msc_gym.engine.pool import Limits, Pool, SerialPool
from msc_gym.engine.processes import ProcessPool
from msc_gym.engine.ray_pool import RayPool
from msc_gym.engine.store import Store, TrialRow
from msc_gym.engine.worker import Scoring, Worker

__all__ = [
    "Evaluator",
    "Limits",
    "Measurement",
    "Pool",
    "ProcessPool",
    "RayPool",
    "Scoring",
    "SerialPool",
    "Store",
    "TrialRow",
    "Worker",
    "parse_pool",
]
