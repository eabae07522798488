"""A gym for compressing networks: environments, agents and a measuring reward engine over `msc_core`.

Importing it registers the environments: `gymnasium.make("msc_gym:MSC/Prune-v0", task=...)`.
"""

from __future__ import annotations

import gymnasium

from msc_gym.engine import Evaluator, Measurement
from msc_gym.search import SearchResult, search
from msc_gym.task import CompressionTask

__all__ = ["CompressionTask", "Evaluator", "Measurement", "SearchResult", "register_envs", "search"]

ENVIRONMENTS = {
    f"MSC/{name}-v0": (f"msc_gym.envs.environment:{name}Env", f"msc_gym.envs.vector:{name}VectorEnv")
    for name in ("Prune", "Quantize", "Compress")
}


def register_envs() -> None:
    """Make Gymnasium know the ids; what is registered already stays."""
    for name, (one, many) in ENVIRONMENTS.items():
        if name not in gymnasium.registry:
            gymnasium.register(id=name, entry_point=one, vector_entry_point=many)


register_envs()
