"""What the cases share: functions as modules, and inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import nn

Case = tuple[nn.Module, tuple[torch.Tensor, ...]]
Direct = tuple[dict[str, torch.Tensor], dict[str, object], Callable[..., torch.Tensor]]


class Fn(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., torch.Tensor], *arguments: object, **keywords: object) -> None:
        super().__init__()
        self.call = functools.partial(lambda *tensors: function(*tensors, *arguments, **keywords))

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return self.call(*tensors)


class Norm(nn.BatchNorm2d):
    """Batch norm with statistics that are not 0 and 1."""

    def __init__(self, channels: int, **keywords: object) -> None:
        super().__init__(channels, **keywords)
        for tensor in (self.weight, self.bias, self.running_mean, self.running_var):
            nn.init.uniform_(tensor, 0.5, 1.5)


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


torch.manual_seed(0)
IMAGE, ROWS, SEQUENCE = (rand(2, 4, 9, 7),), (rand(3, 6),), (rand(2, 3, 6),)
PAIR = (rand(2, 3, 4), rand(2, 3, 4))
BROADCAST = (rand(2, 3, 4), rand(3, 1))
