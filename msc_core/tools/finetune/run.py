"""The state of a training run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(eq=False)
class Run:
    """All that a step changes, which is what a checkpoint holds."""

    module: torch.nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    average: torch.optim.swa_utils.AveragedModel | None
    generator: torch.Generator
    step: int = 0
    loss: float = math.nan
    waited: int = 0
    history: list[tuple[int, float]] = field(default_factory=list)
    best: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def result(self) -> torch.nn.Module:
        """The module that is validated and returned."""
        return self.module if self.average is None else self.average.module
