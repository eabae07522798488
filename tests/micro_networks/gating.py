"""Products with gates, parameters and constants of channel length; learned activations."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.micro_networks.network import Network


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


class ScaledChannels(nn.Module):
    """A parameter of channel length is multiplied in, another added."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1)
        self.scale = nn.Parameter(torch.rand(8, 1, 1) + 0.5)
        self.shift = nn.Parameter(torch.rand(1, 8, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.relu(self.a(x) * self.scale + self.shift)).mean((2, 3))


class MobileNetV3(nn.Module):
    """MobileNetV3's block: expand, depthwise, squeeze and excite with a hard sigmoid, hard-swish, project, add."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.expand, self.n1 = nn.Conv2d(8, 16, 1, bias=False), nn.BatchNorm2d(16)
        self.depthwise, self.n2 = nn.Conv2d(16, 16, 5, padding=2, groups=16, bias=False), nn.BatchNorm2d(16)
        self.squeeze, self.excite = nn.Conv2d(16, 6, 1), nn.Conv2d(6, 16, 1)
        self.project, self.n3, self.head = nn.Conv2d(16, 8, 1, bias=False), nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.hardswish(self.stem(x))
        y = self.n2(self.depthwise(F.hardswish(self.n1(self.expand(x)))))
        y = y * F.hardsigmoid(self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(y, 1)))))
        return self.head((x + self.n3(self.project(F.hardswish(y)))).mean((2, 3)))


class LinearExcite(nn.Module):
    """Squeeze and excite with linear layers, whose result is viewed as a map."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.fc1, self.fc2 = nn.Conv2d(3, 12, 3), nn.Linear(12, 4), nn.Linear(4, 12)
        self.head = nn.Conv2d(12, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.a(x))
        gate = torch.sigmoid(self.fc2(F.relu(self.fc1(x.mean((2, 3))))))
        return self.head(x * gate.view(x.shape[0], -1, 1, 1)).mean((2, 3))


class GatedUnit(nn.Module):
    """GLU: the halves of one layer's output stay aligned."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(8, 24), nn.Linear(12, 20), nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.glu(self.b(F.glu(self.a(x)))))


class SwiGlu(nn.Module):
    """The gated MLP of language models: two layers side by side, multiplied, projected, added."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Linear(6, 12), nn.RMSNorm(12)
        self.gate, self.up = nn.Linear(12, 20, bias=False), nn.Linear(12, 20, bias=False)
        self.down, self.head = nn.Linear(20, 12, bias=False), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        y = self.norm(x)
        return self.head(x + self.down(F.silu(self.gate(y)) * self.up(y)))


class NafGate(nn.Module):
    """The halves of a map multiplied, then a gate of the trunk's width."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 1), nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.attention, self.head = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.b(self.a(x)).chunk(2, 1)
        x = left * right
        return self.head(x * self.attention(F.adaptive_avg_pool2d(x, 1))).mean((2, 3))


class Prelu(nn.Module):
    """PReLU with a slope for each channel, and with one for all."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.each, self.b, self.all = nn.Conv2d(3, 8, 3), nn.PReLU(8), nn.Conv2d(8, 6, 1), nn.PReLU()
        self.head = nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.all(self.b(self.each(self.a(x))))).mean((2, 3))


class LayerScale(nn.Module):
    """Two residual branches scaled by a parameter of the trunk's width, as in ConvNeXt and CaiT."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 12, 1), nn.Conv2d(12, 8, 1)
        self.gamma, self.head = nn.Parameter(torch.rand(8)), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.b(F.gelu(self.a(x))).permute(0, 2, 3, 1) * self.gamma
        return self.head((x + y.permute(0, 3, 1, 2)).mean((2, 3)))


class Constants(nn.Module):
    """A normalization by buffers of channel length, and a position code of the trunk's width."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 6, 1), nn.Linear(6, 4)
        self.register_buffer("mean", torch.rand(1, 8, 1, 1))
        self.register_buffer("deviation", torch.rand(8)[:, None, None] + 0.5)
        self.register_buffer("positions", torch.rand(6, 6, 6))

    def forward(self, x: Tensor) -> Tensor:
        x = (self.a(x) - self.mean) / (self.deviation.abs() + 1)
        return self.head(F.relu(self.b(x) + self.positions).mean((2, 3)))


class ChannelAttention(nn.Module):
    """ECA: a convolution along the channels makes the gate, so that they stay."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.gate = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 8, 3), nn.Conv1d(1, 1, 3, padding=1)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.b(F.relu(self.a(x))))
        gate = self.gate(x.mean((2, 3)).unsqueeze(1)).squeeze(1)
        return self.head(x * torch.sigmoid(gate)[:, :, None, None]).mean((2, 3))


class Maxout(nn.Module):
    """The larger of each pair of neighbouring channels: they go together."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Conv2d(3, 12, 3), nn.Conv2d(6, 8, 1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x).unflatten(1, (-1, 2)).amax(2)
        return self.head(F.relu(self.b(x)).mean((2, 3)))


class Experts(nn.Module):
    """A soft mixture of MLPs whose weights are stacked: one hidden width, and the experts as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.router, self.head = nn.Linear(6, 12), nn.Linear(12, 3), nn.Linear(12, 4)
        self.enter, self.leave = nn.Parameter(torch.randn(3, 12, 16)), nn.Parameter(torch.randn(3, 16, 12))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        hidden = F.gelu(torch.einsum("nld,edh->nleh", x, self.enter))
        found = torch.einsum("nleh,ehd->nled", hidden, self.leave)
        return self.head(x + (found * self.router(x).softmax(-1).unsqueeze(-1)).sum(2))


class FeatureModulation(nn.Module):
    """FiLM: a branch predicts a scale and a shift for each channel of the other, in one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.condition, self.film = nn.Linear(3, 6), nn.Linear(6, 16)
        self.a, self.head = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        scale, shift = self.film(F.relu(self.condition(x.mean((2, 3))))).chunk(2, 1)
        return self.head(F.relu(self.a(x) * (1 + scale[:, :, None, None]) + shift[:, :, None, None])).mean((2, 3))


class Embeddings(nn.Module):
    """Token and position embeddings summed, then linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(11, 16), nn.Parameter(torch.rand(5, 16))
        self.a, self.head = nn.Linear(16, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.a(self.tokens(x) + self.positions)).mean(1))


class TextConvolution(nn.Module):
    """Embeddings read by convolutions of several lengths, the maxima concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(13, 10)
        self.two, self.three = nn.Conv1d(10, 6, 2), nn.Conv1d(10, 8, 3)
        self.head = nn.Linear(14, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tokens(x).transpose(1, 2)
        return self.head(torch.cat([F.relu(layer(x)).amax(2) for layer in (self.two, self.three)], 1))


class BatchedLinear(nn.Module):
    """Linear layers and a residual sum on (N, T, features)."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 12), nn.Linear(12, 12), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.a(x.mean(1)))
        return self.c(y + torch.tanh(self.b(y)))


GATING = (
    Network(SqueezeExcite, (4, 12)),
    Network(ScaledChannels, (8,)),
    Network(MobileNetV3, (6, 8, 16)),
    Network(LinearExcite, (4, 12)),
    Network(GatedUnit, (10, 12), (8,)),
    Network(SwiGlu, (12, 20), (5, 6)),
    Network(NafGate, (8,)),
    Network(Prelu, (6, 8)),
    Network(LayerScale, (8, 12)),
    Network(Constants, (6, 8)),
    Network(ChannelAttention, (6,), refused="windowed"),
    Network(Maxout, (6, 8)),
    Network(Experts, (12, 16), (5, 6), refused="softmax"),
    Network(FeatureModulation, (6, 8)),
    Network(Embeddings, (12, 16), (5,), tokens=11),
    Network(TextConvolution, (6, 8, 10), (7,), tokens=13),
    Network(BatchedLinear, (12,), (6, 8)),
)
