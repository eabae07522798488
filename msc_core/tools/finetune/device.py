"""Where modules train."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def device() -> str:
    """The GPU when there is one."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def place(module: torch.nn.Module, where: str) -> torch.nn.Module:
    """The module there, the weights of 2-d convolutions in the layout that is fastest."""
    import torch

    module.to(where)
    for parameter in module.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return module
