"""Structured pruning: groups and plans in, smaller graphs with restored accuracy out."""

from msc_core.tools.prune.budget import CostModel
from msc_core.tools.prune.pruner import Pruner
from msc_core.tools.prune.surgery import prune

__all__ = ["CostModel", "Pruner", "prune"]
