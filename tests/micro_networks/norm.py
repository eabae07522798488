"""Norms over axes that are pruned, and other statistics of channels."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.micro_networks.network import Network


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


class ChannelSum(nn.Module):
    """A sum over channels reads them like a layer whose weights are one."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 5, 1), nn.Conv2d(1, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.b(F.relu(self.a(x)))).sum(1, keepdim=True)).mean((2, 3))


class SigmoidSum(nn.Module):
    """A sum of sigmoids: a channel that is masked adds a half, one that is gone adds nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 5, 1), nn.Conv2d(1, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.sigmoid(self.b(F.relu(self.a(x)))).sum(1, keepdim=True)).mean((2, 3))


class LayerNormMlp(nn.Module):
    """Layer norms over the width of a residual trunk."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.n1, self.n2 = nn.Linear(6, 12), nn.LayerNorm(12), nn.LayerNorm(12)
        self.a, self.b, self.head = nn.Linear(12, 16), nn.Linear(16, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        return self.head(self.n2(x + self.b(F.gelu(self.a(self.n1(x))))))


class ConvNext(nn.Module):
    """Depthwise convolution, channels last, layer norm, MLP, channels first, sum."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 2, 2)
        self.depthwise, self.norm = nn.Conv2d(12, 12, 3, padding=1, groups=12), nn.LayerNorm(12)
        self.a, self.b, self.head = nn.Linear(12, 20), nn.Linear(20, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        x = x + self.b(F.gelu(self.a(y))).permute(0, 3, 1, 2)
        return self.head(x.mean((2, 3)))


class MapLayerNorm(nn.Module):
    """Layer norm over channels and both axes of the map."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.LayerNorm((8, 6, 6)), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.norm(self.a(x)))).mean((2, 3))


class PlainLayerNorm(nn.Module):
    """Layer norm without parameters of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.head = nn.Linear(6, 12), nn.LayerNorm(12, elementwise_affine=False), nn.Linear(12, 4)
        self.norm.follows = "a.weight"

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.norm(self.a(x))))


class GroupNorm(nn.Module):
    """Group norm: whole groups can go, and positions within all groups."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Conv2d(3, 12, 3), nn.GroupNorm(4, 12), nn.Conv2d(12, 6, 1)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.b(F.relu(self.norm(self.a(x))))).mean((2, 3)))


class GroupNormResidual(nn.Module):
    """Group norms of different group counts on one trunk, one of them with a single group."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.n1, self.n2 = nn.Conv2d(3, 8, 1), nn.GroupNorm(4, 8), nn.GroupNorm(1, 8)
        self.a, self.head = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(self.n2(x + self.a(F.relu(self.n1(x)))).mean((2, 3)))


class InstanceNorm(nn.Module):
    """Instance norm with and without parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.na, self.b = nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8, affine=True), nn.Conv2d(8, 6, 1)
        self.nb, self.head = nn.InstanceNorm2d(6), nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.nb(self.b(F.relu(self.na(self.a(x))))))).mean((2, 3))


class RmsNorm(nn.Module):
    """RMS norms over a residual trunk."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.n1, self.n2 = nn.Linear(6, 12), nn.RMSNorm(12), nn.RMSNorm(12)
        self.a, self.b, self.head = nn.Linear(12, 16), nn.Linear(16, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        return self.head(self.n2(x + self.b(F.silu(self.a(self.n1(x))))))


class WrittenNorm(nn.Module):
    """RMS norm written out: the mean over channels would divide by another number, so the trunk stays."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.scale = nn.Linear(6, 12), nn.Parameter(torch.ones(12))
        self.a, self.b, self.head = nn.Linear(12, 16), nn.Linear(16, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale
        return self.head(x + self.b(F.relu(self.a(y))))


class GlobalResponse(nn.Module):
    """ConvNeXt V2's norm: a channel's length relative to the mean of all, so that they stay."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.gamma = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 8, 3), nn.Parameter(torch.rand(1, 8, 1, 1))
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.b(F.relu(self.a(x))))
        length = x.pow(2).sum((2, 3), keepdim=True).sqrt()
        return self.head(self.gamma * x * length / (length.mean(1, keepdim=True) + 1e-6) + x).mean((2, 3))


class BatchNorm1d(nn.Module):
    """Batch norms of features, before the activation and behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.na, self.b, self.nb = nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Linear(12, 8), nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.nb(torch.sigmoid(self.b(F.relu(self.na(self.a(x)))))))


class ResponseNorm(nn.Module):
    """Local response norm reads neighbouring channels: they stay."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Conv2d(3, 8, 3), nn.LocalResponseNorm(3, alpha=2.0), nn.Conv2d(8, 6, 1)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.b(self.norm(F.relu(self.a(x))))).mean((2, 3)))


NORM = (
    Network(LayerNormMlp, (12, 16), (5, 6)),
    Network(ConvNext, (12, 20)),
    Network(MapLayerNorm, (8,)),
    Network(PlainLayerNorm, (12,), (5, 6)),
    Network(GroupNorm, (3, 4, 6)),
    Network(GroupNormResidual, (2, 4)),
    Network(InstanceNorm, (6, 8)),
    Network(RmsNorm, (12, 16), (5, 6)),
    Network(WrittenNorm, (16,), (5, 6), refused="mean"),
    Network(GlobalResponse, (6,), refused="mean"),
    Network(BatchNorm1d, (8, 12), (6,)),
    Network(ResponseNorm, (6,), refused="avg_pool3d"),
    Network(ChannelSoftmax, (6,), refused="softmax"),
    Network(ChannelMean, (6,), refused="mean"),
    Network(ChannelSum, (5, 6)),
    Network(SigmoidSum, (6,), refused="reduced"),
)
