"""Gymnasium environments over a compression task, and their declared rewards."""

from msc_gym.envs.environment import CompressEnv, CompressionEnv, PruneEnv, QuantizeEnv
from msc_gym.envs.episode import Episode
from msc_gym.envs.features import FEATURES
from msc_gym.envs.rewards import (
    REWARDS,
    Accuracy,
    AccuracyChange,
    AccuracyCost,
    AccuracyParams,
    Latency,
    LatencyTarget,
    Reward,
    WithinLatency,
    parse_reward,
    pay,
    settle,
)
from msc_gym.envs.vector import CompressionVectorEnv, CompressVectorEnv, PruneVectorEnv, QuantizeVectorEnv
from msc_gym.envs.wrappers import CycleTasks, Discretize, OneShot

__all__ = [
    "FEATURES",
    "REWARDS",
    "Accuracy",
    "AccuracyChange",
    "AccuracyCost",
    "AccuracyParams",
    "CompressEnv",
    "CompressVectorEnv",
    "CompressionEnv",
    "CompressionVectorEnv",
    "CycleTasks",
    "Discretize",
    "Episode",
    "Latency",
    "LatencyTarget",
    "OneShot",
    "PruneEnv",
    "PruneVectorEnv",
    "QuantizeEnv",
    "QuantizeVectorEnv",
    "Reward",
    "WithinLatency",
    "parse_reward",
    "pay",
    "settle",
]
