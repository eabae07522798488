"""Networks of blocks that are drawn at random."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F


class RandomNet(nn.Module):
    """Blocks drawn at random: plain, residual, depthwise, grouped, concatenated, gated."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)
        width = int(rng.choice([4, 8, 12]))
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.kinds, self.blocks = [], nn.ModuleList()
        for _ in range(int(rng.integers(1, 5))):
            kind = str(rng.choice(["plain", "residual", "depthwise", "grouped", "concat", "gate"]))
            out = int(rng.choice([4, 8, 12])) if kind in ("plain", "concat") else width
            groups = {"depthwise": width, "grouped": int(rng.choice([2, 4]))}.get(kind, 1)
            conv = nn.Conv2d(width, out, 3, padding=1, groups=groups, bias=bool(rng.integers(2)))
            self.blocks.append(nn.Sequential(conv, nn.BatchNorm2d(out)) if rng.integers(2) else nn.Sequential(conv))
            self.kinds.append(kind)
            width = width + out if kind == "concat" else out
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for kind, block in zip(self.kinds, self.blocks, strict=True):
            y = block(x)
            if kind == "residual":
                y = y + x
            elif kind == "concat":
                y = torch.cat([y, x], 1)
            elif kind == "gate":
                y = x * torch.sigmoid(y)
            x = F.relu(y)
        return self.head(x.mean((2, 3)))
