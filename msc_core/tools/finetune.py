"""Fine-tune a compressed graph: task loss mixed with distillation from the original, weights return into the graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msc_core.data import Split
from msc_core.errors import MscError
from msc_core.ir import MSCGraph

if TYPE_CHECKING:
    import torch

Report = Callable[[int, int, float], None]  # (step, steps, loss)


@dataclass(frozen=True)
class Recipe:
    """SGD with Nesterov momentum on a one-cycle schedule that counts steps."""

    steps: int = 800
    """Optimizer steps; 0 leaves the graph as it is."""
    lr: float = 0.02
    """Peak learning rate."""
    batch: int = 128
    """Samples per step."""
    weight_decay: float = 1e-4
    """L2 penalty on weights, not on biases or norms."""
    distill: float = 0.7
    """Share of the distillation loss; the rest is cross entropy with the labels."""
    temperature: float = 2.0
    """Softens both distributions in the distillation loss (Hinton et al. 2015)."""
    augment: bool = True
    """Flip and shift images; needs inputs (N, C, H, W)."""
    seed: int = 0
    """Seeds the order of samples and the augmentation."""

    def __post_init__(self) -> None:
        if self.steps < 0 or self.batch < 1 or self.lr <= 0 or not 0 <= self.distill <= 1 or self.temperature <= 0:
            raise MscError(f"fine-tuning needs steps >= 0, batch >= 1, lr > 0, 0 <= distill <= 1; found {self}")


def finetune(
    graph: MSCGraph, train: Split, recipe: Recipe, teacher: MSCGraph | None = None, report: Report | None = None
) -> MSCGraph:
    """The graph with weights trained on `train` (x float32, y int64 class labels).

    `teacher` is the original graph; without one the loss is cross entropy alone. Uses the GPU when there is one.
    Raises `MscError` if the loss stops being finite.
    """
    import torch
    from torch.nn import functional as F

    from msc_core.codegen.torch import from_module, to_torch

    if recipe.steps == 0:
        return graph
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(recipe.seed)
    x, y = torch.from_numpy(train.x), torch.from_numpy(train.y)
    student = _ready(to_torch(graph).train(), device)
    guide = _ready(to_torch(teacher).eval(), device) if teacher else None
    optimizer, schedule = _optimizer(student, recipe)
    for step in range(recipe.steps):
        index = torch.randint(len(x), (recipe.batch,), generator=generator)
        batch, labels = x[index], y[index].to(device)
        batch = augment(batch, generator) if recipe.augment and batch.ndim == 4 else batch
        batch = batch.to(device)
        logits = student(batch)
        loss = F.cross_entropy(logits, labels)
        if guide is not None and recipe.distill > 0:
            with torch.no_grad():
                target = F.softmax(guide(batch) / recipe.temperature, dim=-1)
            divergence = F.kl_div(F.log_softmax(logits / recipe.temperature, dim=-1), target, reduction="batchmean")
            loss = (1 - recipe.distill) * loss + recipe.distill * recipe.temperature**2 * divergence
        if not torch.isfinite(loss):
            raise MscError(f"fine-tuning diverged at step {step} of {recipe.steps}: loss {loss.item()}; lower lr")
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        if report is not None:
            report(step + 1, recipe.steps, loss.item())
    return from_module(graph, student.cpu())


def augment(x: torch.Tensor, generator: torch.Generator, shift: int = 2) -> torch.Tensor:
    """Random horizontal flips, and shifts of up to `shift` pixels, of images (N, C, H, W)."""
    import torch
    from torch.nn import functional as F

    n, _, height, width = x.shape
    flip = torch.rand(n, generator=generator) < 0.5
    x = torch.where(flip[:, None, None, None], x.flip(3), x)
    padded = F.pad(x, (shift,) * 4, value=float(x.min()))
    dy, dx = torch.randint(0, 2 * shift + 1, (2, n), generator=generator)
    rows = dy[:, None] + torch.arange(height)
    columns = dx[:, None] + torch.arange(width)
    index = torch.arange(n)[:, None, None]
    shifted = padded[index, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    return shifted.contiguous(memory_format=torch.channels_last)


def one_cycle(step: int, steps: int) -> float:
    """The share of the peak learning rate at a step: a linear rise over the first fifth, then a cosine to zero.

    >>> [round(one_cycle(step, 10), 2) for step in range(10)]
    [0.5, 1.0, 1.0, 0.96, 0.85, 0.69, 0.5, 0.31, 0.15, 0.04]
    """
    rise = max(1, steps // 5)
    return (step + 1) / rise if step < rise else (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise))) / 2


def _ready(module: torch.nn.Module, device: str) -> torch.nn.Module:
    """The module on its device, weights in the layout that convolutions are fastest in."""
    import torch

    return module.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _optimizer(
    module: torch.nn.Module, recipe: Recipe
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    import torch

    groups = [
        {"params": [p for p in module.parameters() if p.ndim > 1], "weight_decay": recipe.weight_decay},
        {"params": [p for p in module.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.SGD(groups, lr=recipe.lr, momentum=0.9, nesterov=True)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: one_cycle(step, recipe.steps))
