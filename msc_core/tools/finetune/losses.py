"""Losses as functions of tensors; every one is a mean over the batch, so that batch sizes do not change its scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msc_core.errors import MscError

if TYPE_CHECKING:
    import torch


def channel_axis(rank: int) -> int:
    """Where classes or channels are: the last axis of (N, C) and of sequences (N, T, C), the second of maps."""
    return 1 if rank > 3 else -1


def task_loss(task: str, output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy of logits (N, C) with class labels (N,), or the mean squared error to numbers (N,)."""
    from torch.nn import functional as F

    if task == "cross_entropy":
        return F.cross_entropy(output, labels)
    if output.numel() != labels.numel():
        raise MscError(f"task 'mse': expected one output for each of {len(labels)} labels; found {list(output.shape)}")
    return F.mse_loss(output.reshape(labels.shape), labels.to(output.dtype))


def kl(student: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
    """temperature**2 * KL(teacher || student) of softened distributions (Hinton et al. 2015); inputs are logits."""
    from torch.nn import functional as F

    axis = channel_axis(student.ndim)
    target = F.log_softmax(teacher / temperature, dim=axis)
    found = F.log_softmax(student / temperature, dim=axis)
    divergence = F.kl_div(found, target, reduction="none", log_target=True).sum(axis).mean()
    return temperature**2 * divergence


def lp(student: torch.Tensor, teacher: torch.Tensor, power: float) -> torch.Tensor:
    """The mean of |student - teacher| ** power."""
    return (student - teacher).abs().pow(power).mean()


def feature_loss(student: torch.Tensor, teacher: torch.Tensor, matching: str, power: float) -> torch.Tensor:
    """How far a feature is from the teacher's.

    "channels": `lp` in units of the teacher's mean |value| ** power, for equal shapes. "attention": `lp` of the
    attention maps, times the number of positions.
    """
    if matching == "channels":
        return lp(student, teacher, power) / teacher.abs().pow(power).mean().clamp_min(1e-12)
    found, target = attention_map(student), attention_map(teacher)
    return lp(found, target, power) * found.shape[1]


def attention_map(x: torch.Tensor) -> torch.Tensor:
    """(N, positions): the mean square over channels, scaled to an L2 norm of 1 (Zagoruyko & Komodakis 2017)."""
    from torch.nn import functional as F

    return F.normalize(x.square().mean(channel_axis(x.ndim)).flatten(1), dim=1)
