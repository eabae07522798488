"""Convolutions: dense, grouped, depthwise, transposed, over one to three axes; and pooling."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.micro_networks.network import Network


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


class OneChannel(nn.Module):
    """A convolution with one output channel is an ordinary convolution, and its channel always stays."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 1, 3), nn.Conv2d(1, 6, 3)
        self.d = nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.d(self.c(F.relu(self.b(F.relu(self.a(x)))))).mean((2, 3))


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


class Vgg(nn.Module):
    """Three stages of plain convolutions with odd widths, and a classifier of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(i, o, 3, padding=1) for i, o in ((3, 7), (7, 13), (13, 11)))
        self.hidden, self.head = nn.Linear(11 * 4, 18), nn.Linear(18, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.b(F.relu(self.a(x)))), 2)
        x = F.max_pool2d(F.relu(self.c(x)), 2)
        return self.head(F.relu(self.hidden(torch.flatten(x, 1))))


class Dilated(nn.Module):
    """Convolutions of one input side by side with different dilations, summed."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 1)
        self.branches = nn.ModuleList(nn.Conv2d(8, 10, 3, padding=d, dilation=d) for d in (1, 2, 3))
        self.head = nn.Conv2d(10, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        return self.head(F.relu(self.branches[0](x) + self.branches[1](x) + self.branches[2](x))).mean((2, 3))


class Convolution1d(nn.Module):
    """A signal with one channel: strided, causal by padding one side, depthwise."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.na = nn.Conv1d(1, 8, 5, stride=2), nn.BatchNorm1d(8)
        self.b, self.c = nn.Conv1d(8, 8, 3, groups=8), nn.Conv1d(8, 12, 1)
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.na(self.a(x)))
        return self.head(F.gelu(self.c(self.b(F.pad(x, (2, 0))))).mean(2))


class Convolution3d(nn.Module):
    """A volume: dense, grouped, pooled."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.na = nn.Conv3d(2, 8, 3, padding=1), nn.BatchNorm3d(8)
        self.b, self.head = nn.Conv3d(8, 8, (1, 3, 3), groups=2), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool3d(F.relu(self.na(self.a(x))), 2)
        return self.head(F.relu(self.b(F.pad(x, (1, 1, 1, 1)))).mean((2, 3, 4)))


class Transposed1d(nn.Module):
    """A decoder of audio: halved in length and doubled again."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.up = nn.Conv1d(2, 12, 4, stride=2), nn.ConvTranspose1d(12, 8, 4, stride=2)
        self.head = nn.Conv1d(8, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.leaky_relu(self.up(F.leaky_relu(self.a(x), 0.1)), 0.1))


class Transposed2d(nn.Module):
    """Two transposed convolutions with a batch norm between."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.up, self.n = nn.Conv2d(3, 6, 1), nn.ConvTranspose2d(6, 10, 3, 2, 1, 1), nn.BatchNorm2d(10)
        self.b, self.head = nn.ConvTranspose2d(10, 5, 2), nn.Conv2d(5, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.b(F.relu(self.n(self.up(F.relu(self.a(x))))))))


class Transposed3d(nn.Module):
    """A volume upsampled."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.up, self.head = nn.Conv3d(1, 6, 1), nn.ConvTranspose3d(6, 4, 2, 2), nn.Conv3d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.elu(self.up(F.elu(self.a(x)))))


class GroupedTransposed(nn.Module):
    """Grouped and depthwise transposed convolutions, the latter as a learned upsampling."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 1), nn.ConvTranspose2d(8, 12, 3, groups=4)
        self.c, self.up = nn.Conv2d(12, 6, 1), nn.ConvTranspose2d(6, 6, 4, 2, 1, groups=6, bias=False)
        self.head = nn.Conv2d(6, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.up(F.relu(self.c(F.relu(self.b(F.relu(self.a(x))))))))


class ResNeXt(nn.Module):
    """A bottleneck with a grouped convolution in the middle, and a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.n = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.a, self.na = nn.Conv2d(16, 12, 1, bias=False), nn.BatchNorm2d(12)
        self.b, self.nb = nn.Conv2d(12, 12, 3, padding=1, groups=3, bias=False), nn.BatchNorm2d(12)
        self.c, self.head = nn.Conv2d(12, 16, 1), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.n(self.stem(x)))
        y = self.c(F.relu(self.nb(self.b(F.relu(self.na(self.a(x)))))))
        return self.head(F.relu(x + y).mean((2, 3)))


class ConvolutionByParts(nn.Module):
    """A depthwise convolution as long strips, then one point by point, as in separable convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 10, 1)
        self.rows, self.columns = nn.Conv2d(10, 10, (1, 5), groups=10), nn.Conv2d(10, 10, (5, 1), groups=10)
        self.point, self.head = nn.Conv2d(10, 14, 1), nn.Linear(14, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.hardswish(self.point(self.columns(self.rows(F.silu(self.a(x)))))).mean((2, 3)))


CONVOLUTION = (
    Network(Chain, (8, 12)),
    Network(Vgg, (7, 11, 13, 18)),
    Network(DepthMultiplier, (2, 6)),
    Network(Grouped, (2, 3, 4)),
    Network(GroupedTwice, (2, 4, 6)),
    Network(OneChannel, (6, 16)),
    Network(Pools, (6, 8)),
    Network(Dilated, (8, 10)),
    Network(Convolution1d, (8, 12), (1, 24)),
    Network(Convolution3d, (2, 4, 4), (2, 4, 6, 6)),
    Network(Transposed1d, (8, 12), (2, 16)),
    Network(Transposed2d, (5, 6, 10)),
    Network(Transposed3d, (4, 6), (1, 3, 4, 4)),
    Network(GroupedTransposed, (2, 3, 4, 6)),
    Network(ResNeXt, (3, 4, 4, 16)),
    Network(ConvolutionByParts, (10, 14)),
)
