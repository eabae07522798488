"""The oracle: what a network computes with channels masked, in PyTorch and without any of the code under test.

`distinct` gives every element of a parameter another value. So the values that are left in a pruned network say which
positions of each parameter survived. All other positions are set to zero in a copy of the whole network, and norms
take their statistics over the positions that survived.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

Survivors = Mapping[str, list[np.ndarray]]  # parameter or buffer -> a mask over the positions of each axis


def survivors(module: nn.Module, pruned: Mapping[str, np.ndarray]) -> Survivors:
    """Which positions of the module's parameters and buffers are still there in those of a pruned network.

    A parameter that is not found by its name (it was stacked with others, or transposed) is looked for in all that is.
    """
    known = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))
    anywhere = np.concatenate([np.zeros(0, np.float32), *(v.ravel() for k, v in pruned.items() if k not in known)])
    by_tensor = {id(known[name]): array for name, array in pruned.items() if name in known}  # whatever a tie is called
    found = {}
    for name, value in known.items():
        if value.is_floating_point() and value.dim():
            left = np.isin(value.detach().numpy(), by_tensor.get(id(value), anywhere))
            found[name] = [left.any(axis=tuple(set(range(left.ndim)) - {axis})) for axis in range(left.ndim)]
    return found


def masked(module: nn.Module, left: Survivors) -> nn.Module:
    """A copy with zeros where nothing survived; its norms do not see those positions."""
    module = copy.deepcopy(module)
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if name in left:
            tensor.data.mul_(_outer(left[name]))
    for name, norm in module.named_modules():
        if isinstance(norm, nn.LayerNorm | nn.RMSNorm | nn.GroupNorm):
            axes = left[f"{name}.weight"] if norm.weight is not None else left[norm.follows][:1]
            norm.forward = partial(_group_norm if isinstance(norm, nn.GroupNorm) else _norm, norm, _outer(axes))
    return module


def _outer(axes: list[np.ndarray]) -> Tensor:
    """The product of masks over axes."""
    product = torch.ones(())
    for axis in axes:
        product = product[..., None] * torch.from_numpy(axis).float()
    return product


def _norm(norm: nn.LayerNorm | nn.RMSNorm, keep: Tensor, x: Tensor) -> Tensor:
    """Layer or RMS norm over the trailing positions that are kept."""
    axes = tuple(range(-keep.dim(), 0))
    mean = torch.zeros(()) if isinstance(norm, nn.RMSNorm) else (x * keep).sum(axes, keepdim=True) / keep.sum()
    power = ((x - mean).square() * keep).sum(axes, keepdim=True) / keep.sum()
    y = (x - mean) * torch.rsqrt(power + (torch.finfo(x.dtype).eps if norm.eps is None else norm.eps)) * keep
    y = y if norm.weight is None else y * norm.weight
    return y if getattr(norm, "bias", None) is None else y + norm.bias


def _group_norm(norm: nn.GroupNorm, keep: Tensor, x: Tensor) -> Tensor:
    """Group norm over the channels of each group that are kept."""
    groups = x.reshape(len(x), norm.num_groups, -1, *x.shape[2:])
    keep = keep.reshape(norm.num_groups, -1, *[1] * (x.dim() - 2))
    axes = tuple(range(2, groups.dim()))
    count = keep.expand(groups.shape[1:]).sum(tuple(range(1, keep.dim())), keepdim=True).clamp(min=1)
    mean = (groups * keep).sum(axes, keepdim=True) / count
    power = ((groups - mean).square() * keep).sum(axes, keepdim=True) / count
    y = ((groups - mean) * torch.rsqrt(power + norm.eps) * keep).reshape(x.shape)
    shape = (-1, *[1] * (x.dim() - 2))
    return y * norm.weight.view(shape) + norm.bias.view(shape)
