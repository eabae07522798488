"""Positions that move: reshapes, cuts, shuffles, turns, repetitions, picks."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.micro_networks.network import Network


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
        x = self.fc(x.flatten(1)).view(x.shape[0], -1, 2, 2)
        return self.b(F.relu(self.a(x))).mean((2, 3))


class PermutedFlatten(nn.Module):
    """Channels last before the flattening: a channel is every eighth column."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.fc, self.head = nn.Conv2d(3, 8, 3, stride=3), nn.Linear(4 * 8, 10), nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.fc(F.relu(self.a(x)).permute(0, 2, 3, 1).flatten(1))))


class Unflattened(nn.Module):
    """A decoder: features become a map, which is transposed-convolved."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.unflatten = nn.Linear(12, 6 * 4), nn.Unflatten(1, (-1, 2, 2))
        self.up, self.head = nn.ConvTranspose2d(6, 8, 2, 2), nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.up(self.unflatten(F.relu(self.fc(x))))))


class Patches(nn.Module):
    """Patches as tokens, read by a linear layer and summed up."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.fc, self.head = nn.Conv2d(3, 16, 4, 4), nn.Linear(16, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.gelu(self.fc(self.patch(x).flatten(2).transpose(1, 2))).mean(1))


class Squeezed(nn.Module):
    """Axes of size one that come and go: a signal as an image of height one."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Conv1d(3, 8, 3), nn.Conv2d(8, 6, (1, 3)), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.a(x)).unsqueeze(2)
        return self.head(F.relu(self.b(x)).squeeze(2).mean(2))


class Chunked(nn.Module):
    """Half of the channels is convolved, the other half goes around."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 1), nn.Conv2d(8, 8, 3, padding=1)
        self.c, self.head = nn.Conv2d(16, 6, 1), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        left, right = F.relu(self.a(x)).chunk(2, 1)
        return self.head(self.c(torch.cat([left, F.relu(self.b(right))], 1)).mean((2, 3)))


class SplitUnevenly(nn.Module):
    """Parts of different widths go to layers of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 14, 1)
        self.b, self.c, self.d = nn.Conv2d(4, 6, 1), nn.Conv2d(8, 6, 3, padding=1), nn.Conv2d(2, 6, 1)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        a, b, c = torch.split(F.relu(self.a(x)), [4, 8, 2], 1)
        return self.head(F.relu(self.b(a) + self.c(b) + self.d(c)).mean((2, 3)))


class Sliced(nn.Module):
    """Overlapping slices: the channels in the middle are read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 12, 3), nn.Conv2d(8, 6, 1), nn.Conv2d(8, 6, 1)
        self.head = nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.a(x))
        return self.head(F.relu(self.b(x[:, :8]) + self.c(x[:, 4:]))).mean((2, 3))


class Strided(nn.Module):
    """Even and odd channels by slices with a step."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Conv2d(3, 12, 1), nn.Conv2d(6, 8, 1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        return self.head(F.relu(self.b(x[:, ::2] * torch.sigmoid(x[:, 1::2]))).mean((2, 3)))


class ShuffleUnit(nn.Module):
    """ShuffleNetV2's unit: split, one half through a depthwise convolution, concatenated, shuffled."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 1)
        self.a, self.b, self.c = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 8, 1)
        self.last, self.head = nn.Conv2d(16, 12, 1), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.stem(x).chunk(2, 1)
        right = F.relu(self.c(self.b(F.relu(self.a(right)))))
        x = torch.cat([left, right], 1)
        batch, channels, height, width = x.shape
        x = x.view(batch, 2, channels // 2, height, width).transpose(1, 2).reshape(batch, channels, height, width)
        return self.head(F.relu(self.last(x)).mean((2, 3)))


class GroupShuffle(nn.Module):
    """ShuffleNet's unit: grouped convolution, channel shuffle over three groups, grouped convolution, sum."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a = nn.Conv2d(3, 12, 1), nn.Conv2d(12, 12, 1, groups=3)
        self.shuffle, self.b = nn.ChannelShuffle(3), nn.Conv2d(12, 12, 1, groups=3)
        self.head = nn.Conv2d(12, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(F.relu(x + self.b(self.shuffle(F.relu(self.a(x)))))).mean((2, 3))


class PixelShuffle(nn.Module):
    """Super-resolution: four channels become one at twice the size."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.shuffle = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 24, 3), nn.PixelShuffle(2)
        self.head = nn.Conv2d(6, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.shuffle(self.b(F.relu(self.a(x))))))


class PixelUnshuffle(nn.Module):
    """Space to depth: one channel becomes four."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.unshuffle, self.b = nn.Conv2d(3, 5, 3, padding=1), nn.PixelUnshuffle(2), nn.Conv2d(20, 8, 1)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.b(self.unshuffle(F.relu(self.a(x))))).mean((2, 3)))


class Focus(nn.Module):
    """Slices over space become channels: the four phases of a map, concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(24, 8, 1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.a(x))
        x = torch.cat([x[:, :, ::2, ::2], x[:, :, 1::2, ::2], x[:, :, ::2, 1::2], x[:, :, 1::2, 1::2]], 1)
        return self.head(F.relu(self.b(x)).mean((2, 3)))


class Flipped(nn.Module):
    """A map and its mirror image over channels are concatenated (CReLU's kind)."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Conv2d(3, 6, 3), nn.Conv2d(12, 8, 1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        return self.head(F.relu(self.b(F.relu(torch.cat([x, -x.flip(1)], 1)))).mean((2, 3)))


class Rolled(nn.Module):
    """Channels moved around by two before they are read."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 6, 1), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.b(F.relu(self.a(x)).roll(2, 1))).mean((2, 3)))


class TemporalShift(nn.Module):
    """A quarter of the channels comes from the frame before, a quarter from the one after."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(6, 16), nn.Linear(16, 10), nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.a(x))
        past, future, rest = x[..., :4], x[..., 4:8], x[..., 8:]
        x = torch.cat([F.pad(past, (0, 0, 1, 0))[:, :-1], F.pad(future, (0, 0, 0, 1))[:, 1:], rest], -1)
        return self.head(F.relu(self.b(x)).mean(1))


class Tiled(nn.Module):
    """Channels repeated one behind the other."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Conv2d(3, 6, 3), nn.Conv2d(18, 8, 1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.b(F.relu(self.a(x)).repeat(1, 3, 1, 1))).mean((2, 3)))


class Interleaved(nn.Module):
    """Each channel repeated in place."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Conv2d(3, 6, 3), nn.Conv2d(12, 8, 1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.b(F.relu(self.a(x)).repeat_interleave(2, 1))).mean((2, 3)))


class Picked(nn.Module):
    """Channels picked by constant indices, one of them twice and two never."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Conv2d(3, 8, 3), nn.Conv2d(7, 6, 1), nn.Linear(6, 4)
        self.register_buffer("order", torch.tensor([5, 0, 3, 3, 7, 1, 2]))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.b(F.relu(self.a(x))[:, self.order])).mean((2, 3)))


class Gathered(nn.Module):
    """A permutation of channels by `index_select`, with a branch that is not permuted."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 6, 1), nn.Linear(6, 4)
        self.c = nn.Conv2d(8, 6, 1)
        self.register_buffer("order", torch.tensor([5, 0, 3, 4, 7, 1, 2, 6]))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.a(x))
        return self.head(F.relu(self.b(torch.index_select(x, 1, self.order)) + self.c(x)).mean((2, 3)))


class PaddedShortcut(nn.Module):
    """The shortcut of the original ResNets: every second pixel, missing channels filled with zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.a, self.b = nn.Conv2d(6, 8, 3, 2, 1), nn.Conv2d(8, 10, 3, padding=1)
        self.head = nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        y = self.b(F.relu(self.a(x)))
        return self.head(F.relu(y + F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2))).mean((2, 3)))


class Contracted(nn.Module):
    """A layer written with einsum, and two branches contracted with each other."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(6, 8)
        self.mix, self.head = nn.Parameter(torch.randn(8, 10)), nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.a(x), torch.relu(self.b(x))
        affinity = torch.einsum("nlc,nmc->nlm", a, b)
        return self.head(torch.einsum("nlm,nmc,cd->nld", affinity, b, self.mix).mean(1))


class Mixer(nn.Module):
    """MLP-Mixer: one MLP across tokens, one across channels, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 12)
        self.n1, self.n2 = nn.LayerNorm(12), nn.LayerNorm(12)
        self.t1, self.t2 = nn.Linear(5, 9), nn.Linear(9, 5)
        self.c1, self.c2, self.head = nn.Linear(12, 16), nn.Linear(16, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        x = x + self.t2(F.gelu(self.t1(self.n1(x).transpose(1, 2)))).transpose(1, 2)
        return self.head((x + self.c2(F.gelu(self.c1(self.n2(x))))).mean(1))


MOVEMENT = (
    Network(FlattenLinear, (6, 10)),
    Network(ViewConv, (6, 8)),
    Network(PermutedFlatten, (8, 10)),
    Network(Unflattened, (6, 8), (12,)),
    Network(Patches, (12, 16)),
    Network(Squeezed, (6, 8), (3, 10)),
    Network(Chunked, (6, 8, 8, 8)),
    Network(SplitUnevenly, (2, 4, 6, 8)),
    Network(Sliced, (4, 4, 4, 6)),
    Network(Strided, (6, 8)),
    Network(ShuffleUnit, (8, 8, 8, 12)),
    Network(GroupShuffle, (4,)),
    Network(PixelShuffle, (6, 8)),
    Network(PixelUnshuffle, (5, 8)),
    Network(Focus, (6, 8)),
    Network(Flipped, (6, 8)),
    Network(Rolled, (2, 6, 6)),
    Network(TemporalShift, (4, 4, 8, 10), (5, 6)),
    Network(Tiled, (6, 8)),
    Network(Interleaved, (6, 8)),
    Network(Picked, (5, 6), refused="no layer reads"),
    Network(Gathered, (6, 8)),
    Network(PaddedShortcut, (6, 8), refused="fixed axis"),
    Network(Contracted, (8, 10), (5, 6)),
    Network(Mixer, (9, 12, 16), (5, 6)),
)
