"""Gymnasium environments over a compression task, and their declared rewards."""

from msc_gym.envs.episode import FEATURES, Episode
from msc_gym.envs.prune import PruneEnv
from msc_gym.envs.rewards import REWARDS, Accuracy, AccuracyCost, Latency, Reward, WithinLatency, parse_reward, pay

__all__ = [
    "FEATURES",
    "REWARDS",
    "Accuracy",
    "AccuracyCost",
    "Episode",
    "Latency",
    "PruneEnv",
    "Reward",
    "WithinLatency",
    "parse_reward",
    "pay",
]
