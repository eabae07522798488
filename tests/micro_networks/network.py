"""What a row of the table says about a network, and parameters with which every channel can be told from the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Network:
    """A network: how it is made, what it reads, and the sizes, ascending, of the groups that can lose channels."""

    build: Callable[[], nn.Module]
    prunable: tuple[int, ...]
    shape: tuple[int, ...] = (3, 8, 8)  # of one sample
    tokens: int = 0  # inputs are integers below this, if it is not zero
    refused: str = ""  # what the reason says for the group that has to stay, if the network is about one

    @property
    def name(self) -> str:
        return self.build.__name__

    def module(self) -> nn.Module:
        """In eval mode, with the same parameters each time."""
        return distinct(self.build())

    def inputs(self, batch: int = 3, seed: int = 1) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        if self.tokens:
            return torch.randint(self.tokens, (batch, *self.shape), generator=generator)
        return torch.randn(batch, *self.shape, generator=generator)


def distinct(module: nn.Module, seed: int = 0) -> nn.Module:
    """The module in eval mode; norms do something, and no two elements of a parameter or of a buffer are equal."""
    generator = torch.Generator().manual_seed(seed)
    positive = {id(p) for m in module.modules() for p in scales(m)}
    for tensor in [*module.parameters(), *module.buffers()]:
        if tensor.is_floating_point():
            order = torch.randperm(tensor.numel(), generator=generator).to(tensor.dtype)
            values = ((order + 0.5) / tensor.numel()).reshape(tensor.shape)  # in (0, 1), each once
            fan_in = tensor[0].numel() if tensor.dim() > 1 else 9
            tensor.data.copy_(values + 0.5 if id(tensor) in positive else (values * 2 - 1) * (3 / fan_in) ** 0.5)
    return module.eval()


def scales(module: nn.Module) -> list[Tensor]:
    """The parameters and buffers of a norm that are about one."""
    if hasattr(module, "running_var"):
        return [t for t in (module.weight, module.running_var) if t is not None]
    if isinstance(module, nn.LayerNorm | nn.RMSNorm | nn.GroupNorm):
        return [module.weight] if module.weight is not None else []
    return []


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
