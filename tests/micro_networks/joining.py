"""Branches that meet: sums, concatenations, products, pyramids."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.micro_networks.network import Network


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


class Bottleneck(nn.Module):
    """Two bottleneck blocks, the first with a strided projection."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.a, self.b, self.c = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 4, 3, 2, 1), nn.Conv2d(4, 16, 1)
        self.project, self.n = nn.Conv2d(8, 16, 1, 2), nn.BatchNorm2d(16)
        self.d, self.e, self.f = nn.Conv2d(16, 6, 1), nn.Conv2d(6, 5, 3, padding=1), nn.Conv2d(5, 16, 1)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = F.relu(self.n(self.c(F.relu(self.b(F.relu(self.a(x)))))) + self.project(x))
        x = F.relu(self.f(F.relu(self.e(F.relu(self.d(x))))) + x)
        return self.head(x.mean((2, 3)))


class Dense(nn.Module):
    """A dense block: each layer reads all that came before, norms included; then a transition."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.n1, self.a = nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3, padding=1)
        self.n2, self.b = nn.BatchNorm2d(12), nn.Conv2d(12, 4, 3, padding=1)
        self.n3, self.transition = nn.BatchNorm2d(16), nn.Conv2d(16, 10, 1)
        self.head = nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = torch.cat([x, self.a(F.relu(self.n1(x)))], 1)
        x = torch.cat([x, self.b(F.relu(self.n2(x)))], 1)
        return self.head(F.avg_pool2d(self.transition(F.relu(self.n3(x))), 2).mean((2, 3)))


class Res2Net(nn.Module):
    """Scales of a split map, each convolved with the sum of itself and the one before, concatenated again."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 16, 1)
        self.scales = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))
        self.b, self.head = nn.Conv2d(16, 6, 1), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        parts = F.relu(self.a(x)).chunk(4, 1)
        found, last = [parts[0]], None
        for part, convolution in zip(parts[1:], self.scales, strict=True):
            last = F.relu(convolution(part if last is None else part + last))
            found.append(last)
        return self.head(self.b(torch.cat(found, 1)).mean((2, 3)))


class Stacked(nn.Module):
    """Branches stacked along a new axis and summed over it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 1), nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 5, padding=2)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(torch.stack([self.a(x), self.b(x), self.c(x)], 1).sum(1))).mean((2, 3))


class SelectiveKernel(nn.Module):
    """Branches weighted by a softmax over them, from a squeezed sum of them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 1), nn.Conv2d(3, 8, 3, padding=1)
        self.squeeze, self.excite = nn.Linear(8, 6), nn.ModuleList(nn.Linear(6, 8) for _ in range(2))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        branches = torch.stack([self.a(x), self.b(x)], 1)
        squeezed = F.relu(self.squeeze(branches.sum(1).mean((2, 3))))
        weights = torch.stack([layer(squeezed) for layer in self.excite], 1).softmax(1)
        return self.head((branches * weights[:, :, :, None, None]).sum(1).mean((2, 3)))


class UNet(nn.Module):
    """Down, up by a transposed convolution, and the skip concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.down = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 12, 3, 2, 1)
        self.up, self.leave = nn.ConvTranspose2d(12, 8, 2, 2), nn.Conv2d(14, 10, 3, padding=1)
        self.head = nn.Conv2d(10, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = F.relu(self.enter(x))
        x = self.up(F.relu(self.down(skip)))
        return self.head(F.relu(self.leave(torch.cat([skip, x], 1))))


class Pyramid(nn.Module):
    """A feature pyramid: laterals added to the upsampled level above, one head for both levels."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 12, 3, 2, 1)
        self.fine, self.coarse = nn.Conv2d(8, 10, 1), nn.Conv2d(12, 10, 1)
        self.smooth, self.head = nn.Conv2d(10, 6, 3, padding=1), nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = F.relu(self.a(x))
        coarse = self.coarse(F.relu(self.b(fine)))
        fine = self.fine(fine) + F.interpolate(coarse, scale_factor=2.0, mode="nearest")
        levels = [self.head(F.relu(self.smooth(level))).flatten(2) for level in (fine, coarse)]
        return torch.cat(levels, 2)


class Highway(nn.Module):
    """A gate mixes a layer with what it reads: one width in all three places."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.layer, self.gate = nn.Linear(8, 12), nn.Linear(12, 12), nn.Linear(12, 12)
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.enter(x))
        gate = torch.sigmoid(self.gate(x))
        return self.head(gate * F.relu(self.layer(x)) + (1 - gate) * x)


class Extremes(nn.Module):
    """The larger and the smaller of two branches, a quotient, a choice between them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Conv2d(3, 8, 1), nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.a(x), self.b(x)
        y = torch.maximum(a, b) / (1 + torch.minimum(a, b).abs()) + torch.where(a > b, a, b * 0.5)
        return self.head(y).mean((2, 3))


class ResNet18(nn.Module):
    """Its shape at a fraction of the width: four stages of two basic blocks."""

    def __init__(self) -> None:
        super().__init__()
        widths = (4, 4, 6, 6, 8, 8, 10, 10)
        self.stem, self.norm = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        sizes = list(zip((4, *widths), widths, strict=False))
        strides = [2 if i != o else 1 for i, o in sizes]
        self.first = nn.ModuleList(nn.Conv2d(i, o, 3, s, 1) for (i, o), s in zip(sizes, strides, strict=True))
        self.second = nn.ModuleList(nn.Conv2d(o, o, 3, 1, 1) for _, o in sizes)
        self.shortcut = nn.ModuleList(
            nn.Conv2d(i, o, 1, 2) if s > 1 else nn.Identity() for (i, o), s in zip(sizes, strides, strict=True)
        )
        self.head = nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        for first, second, shortcut in zip(self.first, self.second, self.shortcut, strict=True):
            x = F.relu(second(F.relu(first(x))) + shortcut(x))
        return self.head(x.mean((2, 3)))


JOINING = (
    Network(Residual, (4, 6, 8, 10)),
    Network(Inverted, (8, 24)),
    Network(Concat, (4, 6)),
    Network(SelfConcat, (6, 8)),
    Network(InputConcat, (5, 6)),
    Network(Bottleneck, (4, 4, 5, 6, 8, 16)),
    Network(Dense, (4, 4, 8, 10)),
    Network(Res2Net, (4, 4, 4, 4, 4, 6)),
    Network(Stacked, (8,)),
    Network(SelectiveKernel, (6, 8)),
    Network(UNet, (6, 8, 10, 12)),
    Network(Pyramid, (6, 8, 10, 12)),
    Network(Highway, (12,), (8,)),
    Network(Extremes, (8,)),
    Network(ResNet18, (4, 4, 4, 6, 6, 6, 8, 8, 8, 10, 10, 10)),
)
