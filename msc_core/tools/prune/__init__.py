"""Structured pruning: groups and plans in, smaller graphs with restored accuracy out; masks for sparsity without."""

from msc_core.tools.prune.budget import CostModel
from msc_core.tools.prune.masks import Masks
from msc_core.tools.prune.pruner import Pruner
from msc_core.tools.prune.ranking import allocate
from msc_core.tools.prune.schedule import Rounds, Schedule, compose, prune_in_rounds
from msc_core.tools.prune.surgery import prune

__all__ = ["CostModel", "Masks", "Pruner", "Rounds", "Schedule", "allocate", "compose", "prune", "prune_in_rounds"]
