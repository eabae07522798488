"""The three networks that our published numbers are about, plus an MLP; all take (N, 1, 28, 28) float32 images."""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise

from torch import Tensor, nn


def conv_bn(in_channels: int, out_channels: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A bias-free convolution with "same" padding, then batch norm."""
    conv = nn.Conv2d(in_channels, out_channels, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(OrderedDict(conv=conv, bn=nn.BatchNorm2d(out_channels)))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, projected where the shape changes (ResNet, option B)."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.body1 = conv_bn(in_channels, out_channels, stride=stride)
        self.body2 = conv_bn(out_channels, out_channels)
        same = stride == 1 and in_channels == out_channels
        self.shortcut = nn.Identity() if same else conv_bn(in_channels, out_channels, kernel=1, stride=stride)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.body2(self.relu(self.body1(x))) + self.shortcut(x))


class ResNet20(nn.Module):
    """He et al. 2015, section 4.2, with n = 3 and projection shortcuts: 272k parameters, 31.0M MACs at 28x28."""

    def __init__(self, width: int = 16, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(OrderedDict(body=conv_bn(1, width), relu=nn.ReLU()))
        channels = [width] + [width] * 3 + [2 * width] * 3 + [4 * width] * 3
        strides = [1, 1, 1, 2, 1, 1, 2, 1, 1]
        self.blocks = nn.Sequential(
            *(BasicBlock(i, o, s) for (i, o), s in zip(pairwise(channels), strides, strict=True))
        )
        self.head = nn.Sequential(
            OrderedDict(pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), fc=nn.Linear(4 * width, classes))
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)))


class MobileNet(nn.Module):
    """Depthwise-separable blocks (MobileNetV1) at the size of a 28x28 image."""

    def __init__(self, width: int = 32, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(OrderedDict(body=conv_bn(1, width), relu=nn.ReLU6()))
        plan = [(1, 1), (2, 2), (2, 1), (4, 2), (4, 1), (4, 1)]  # (width multiple, stride) per block
        blocks, channels = [], width
        for multiple, stride in plan:
            out = multiple * width
            parts = OrderedDict(
                depthwise=conv_bn(channels, channels, stride=stride, groups=channels),
                relu1=nn.ReLU6(),
                pointwise=conv_bn(channels, out, kernel=1),
                relu2=nn.ReLU6(),
            )
            blocks.append(nn.Sequential(parts))
            channels = out
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(
            OrderedDict(pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), fc=nn.Linear(channels, classes))
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)))


class VGG(nn.Module):
    """Plain stacked 3x3 convolutions with max pooling and a linear classifier on the flattened map."""

    def __init__(self, width: int = 32, classes: int = 10, dropout: float = 0.2) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 1
        for out in (width, width, 0, 2 * width, 2 * width, 0, 4 * width, 4 * width, 0):
            if out:
                layers += [conv_bn(channels, out), nn.ReLU()]
                channels = out
            else:
                layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(
            OrderedDict(flatten=nn.Flatten(), dropout=nn.Dropout(dropout), fc=nn.Linear(channels * 9, classes))
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class MLP(nn.Module):
    """Two hidden layers on the flattened image."""

    def __init__(self, hidden: int = 128, classes: int = 10) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()
        )
        self.fc = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.layers(x))


def resnet20() -> nn.Module:
    """ResNet-20, width 16."""
    return ResNet20()


def mobilenet() -> nn.Module:
    """Six depthwise-separable blocks, width 32."""
    return MobileNet()


def vgg() -> nn.Module:
    """Six convolutions, width 32."""
    return VGG()
