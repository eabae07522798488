"""Small networks, one or more per structure that pruning has to get right; each takes the shape beside it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Chain(nn.Module):
    """conv-bn-relu twice, pool, linear."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.na = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.b, self.nb = nn.Conv2d(8, 12, 3, stride=2, bias=False), nn.BatchNorm2d(12)
        self.fc = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.nb(self.b(F.relu(self.na(self.a(x))))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Residual(nn.Module):
    """A basic block with a projected shortcut, then one with an identity: four convolutions share a group."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.a, self.b = nn.Conv2d(6, 10, 3, padding=1), nn.Conv2d(10, 8, 3, padding=1)
        self.project = nn.Conv2d(6, 8, 1)
        self.c, self.d = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 3, padding=1)
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = F.relu(self.b(F.relu(self.a(x))) + self.project(x))
        x = F.relu(self.d(F.relu(self.c(x))) + x)
        return self.fc(x.mean((2, 3)))


class Inverted(nn.Module):
    """MobileNetV2's inverted residual: expand, depthwise, project, add."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.expand, self.n1 = nn.Conv2d(8, 24, 1, bias=False), nn.BatchNorm2d(24)
        self.depthwise, self.n2 = nn.Conv2d(24, 24, 3, padding=1, groups=24, bias=False), nn.BatchNorm2d(24)
        self.project, self.n3 = nn.Conv2d(24, 8, 1, bias=False), nn.BatchNorm2d(8)
        self.fc = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = F.relu6(self.n2(self.depthwise(F.relu6(self.n1(self.expand(x))))))
        return self.fc(x + self.n3(self.project(y))).mean((2, 3))


class DepthMultiplier(nn.Module):
    """A depthwise convolution with two outputs per input."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 12, 3, groups=6), nn.Conv2d(12, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(torch.sigmoid(self.b(self.a(x)))).mean((2, 3))


class Grouped(nn.Module):
    """A grouped convolution between dense ones: whole groups and positions within all groups can go."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 12, 3), nn.Conv2d(12, 8, 3, groups=4), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(F.relu(self.b(F.relu(self.a(x))))).mean((2, 3))


class GroupedTwice(nn.Module):
    """Two grouped convolutions in a row whose groups do not divide alike."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 12, 1), nn.Conv2d(12, 12, 3, groups=2)
        self.c, self.d = nn.Conv2d(12, 12, 1, groups=3), nn.Conv2d(12, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.d(F.relu(self.c(F.relu(self.b(self.a(x)))))).mean((2, 3))


class Concat(nn.Module):
    """Two branches side by side, one of them also added to later."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(3, 4, 1)
        self.bn, self.c = nn.BatchNorm2d(10), nn.Conv2d(10, 6, 1)
        self.d = nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x)
        y = F.relu(self.bn(torch.cat([a, self.b(x)], 1)))
        return self.d(self.c(y) + a).mean((2, 3))


class SelfConcat(nn.Module):
    """A tensor concatenated with itself."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 3), nn.Conv2d(16, 6, 3), nn.Conv2d(6, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.a(x))
        return self.c(F.relu(self.b(torch.cat([x, x], 1)))).mean((2, 3))


class InputConcat(nn.Module):
    """The input image joins the features: its channels have no ids."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 5, 3, padding=1), nn.Conv2d(8, 6, 1)
        self.c = nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(F.relu(self.b(torch.cat([x, self.a(x)], 1)))).mean((2, 3))


class OneChannel(nn.Module):
    """A convolution with one output channel is an ordinary convolution, and its channel always stays."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 1, 3), nn.Conv2d(1, 6, 3)
        self.d = nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.d(self.c(F.relu(self.b(F.relu(self.a(x)))))).mean((2, 3))


class SqueezeExcite(nn.Module):
    """A gate of the trunk's width multiplies the trunk; its hidden width is a group of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.fc1, self.fc2 = nn.Conv2d(3, 12, 3), nn.Conv2d(12, 4, 1), nn.Conv2d(4, 12, 1)
        self.b = nn.Conv2d(12, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.a(x))
        gate = torch.sigmoid(self.fc2(F.relu(self.fc1(F.adaptive_avg_pool2d(x, 1)))))
        return self.b(x * gate).mean((2, 3))


class FlattenLinear(nn.Module):
    """A classifier on the flattened map: a channel is a block of columns."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.fc1, self.fc2 = nn.Conv2d(3, 6, 3), nn.Linear(6 * 9, 10), nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.a(x)), 2)
        return self.fc2(F.relu(self.fc1(torch.flatten(x, 1))))


class ViewConv(nn.Module):
    """linear -> view as a map -> conv: the features factor into channels and positions."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.a, self.b = nn.Linear(3 * 64, 6 * 4), nn.Conv2d(6, 8, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x.flatten(1)).view(x.shape[0], 6, 2, 2)
        return self.b(F.relu(self.a(x))).mean((2, 3))


class TiedWeights(nn.Module):
    """Two layers share one weight: it must stay one."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.c.weight = self.b.weight
        self.d = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.d(F.relu(self.c(F.relu(self.b(F.relu(self.a(x))))))).mean((2, 3))


class ScaledChannels(nn.Module):
    """A parameter of channel length is multiplied in, another added."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1)
        self.scale = nn.Parameter(torch.rand(8, 1, 1) + 0.5)
        self.shift = nn.Parameter(torch.rand(1, 8, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.relu(self.a(x) * self.scale + self.shift)).mean((2, 3))


class ChannelSoftmax(nn.Module):
    """Softmax over channels changes when one goes, so they are pinned; the layer before is not."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 5, 1), nn.Conv2d(5, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(torch.softmax(self.b(F.relu(self.a(x))), 1)).mean((2, 3))


class ChannelMean(nn.Module):
    """A mean over channels pins them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 5, 1), nn.Conv2d(1, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(F.relu(self.a(x))).mean(1, keepdim=True)).mean((2, 3))


class BatchedLinear(nn.Module):
    """Linear layers on (N, T, features)."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 12), nn.Linear(12, 12), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.a(x.mean(1)))
        return self.c(y + torch.tanh(self.b(y)))


class Pools(nn.Module):
    """Max, average and adaptive pooling, dropout, clipping; channels pass through all."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.fc = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 6, 3), nn.Linear(6 * 4, 4)
        self.dropout = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(F.max_pool2d(self.a(x), 3, 1, 1), 2)
        x = F.adaptive_avg_pool2d(torch.clamp(self.b(x), -1, 1), 2)
        return self.fc(self.dropout(x.flatten(1)))


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


SHAPES = {"BatchedLinear": (6, 8)}
MICRO_NETWORKS = (
    Chain, Residual, Inverted, DepthMultiplier, Grouped, GroupedTwice, Concat, SelfConcat, InputConcat, OneChannel,
    SqueezeExcite, FlattenLinear, ViewConv, TiedWeights, ScaledChannels, ChannelSoftmax, ChannelMean, BatchedLinear,
    Pools,
)  # fmt: skip


def randomized(module: nn.Module, seed: int = 0) -> nn.Module:
    """The module in eval mode with batch norms that do something."""
    generator = torch.Generator().manual_seed(seed)
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.copy_(torch.randn(layer.num_features, generator=generator) * 0.3)
            layer.running_var.copy_(torch.rand(layer.num_features, generator=generator) + 0.5)
            layer.weight.data.copy_(torch.rand(layer.num_features, generator=generator) + 0.5)
            layer.bias.data.copy_(torch.randn(layer.num_features, generator=generator) * 0.3)
    return module.eval()
