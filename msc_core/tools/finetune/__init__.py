"""Fine-tune a compressed graph: task loss mixed with distillation from the original, weights return into the graph."""

from __future__ import annotations

from msc_core.tools.finetune.augmentation import augment
from msc_core.tools.finetune.loop import Report, Trained, fit
from msc_core.tools.finetune.recipe import Recipe
from msc_core.tools.finetune.teacher import Teacher
from msc_core.tools.finetune.tuning import finetune

__all__ = ["Recipe", "Report", "Teacher", "Trained", "augment", "finetune", "fit"]
