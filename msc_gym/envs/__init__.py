"""Gymnasium environments over a compression task, and their declared rewards."""

from msc_gym.envs.environment import CompressEnv, CompressionEnv, PruneEnv, QuantizeEnv
from msc_gym.envs.episode import Episode
from msc_gym.envs.features import FEATURES
from msc_gym.envs.rewards import REWARDS, Accuracy, AccuracyCost, Latency, Reward, WithinLatency, parse_reward, pay

__all__ = [
    "FEATURES",
    "REWARDS",
    "Accuracy",
    "AccuracyCost",
    "CompressEnv",
    "CompressionEnv",
    "Episode",
    "Latency",
    "PruneEnv",
    "QuantizeEnv",
    "Reward",
    "WithinLatency",
    "parse_reward",
    "pay",
]
