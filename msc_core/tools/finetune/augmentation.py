"""Random changes of images that leave their label as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


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
