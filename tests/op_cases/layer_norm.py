"""Cases of `msc_core/ops/layer_norm.py`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.op_cases.inputs import IMAGE, ROWS, SEQUENCE, Case, Direct, Fn, rand


def random(module: nn.Module) -> nn.Module:
    """The module with parameters that are not 0 and 1."""
    for parameter in module.parameters():
        nn.init.uniform_(parameter, 0.5, 1.5)
    return module


NATIVE_LAYER = torch.ops.aten.native_layer_norm.default
NATIVE_GROUP = torch.ops.aten.native_group_norm.default
CASES: dict[str, list[Case]] = {
    "layer_norm": [
        (random(nn.LayerNorm(6)), SEQUENCE),
        (random(nn.LayerNorm((9, 7), eps=0.1)), IMAGE),
        (nn.LayerNorm(6, elementwise_affine=False), ROWS),
        (random(nn.LayerNorm(6, bias=False)), SEQUENCE),
        (Fn(lambda x, w, b: NATIVE_LAYER(x, (6,), w, b, 1e-3)), (*SEQUENCE, rand(6), rand(6))),
        (random(nn.LayerNorm(6)).double(), (SEQUENCE[0].double(),)),
    ],
    "rms_norm": [
        (random(nn.RMSNorm(6)), SEQUENCE),
        (random(nn.RMSNorm((9, 7), eps=0.1)), IMAGE),
        (Fn(F.rms_norm, (6,)), ROWS),
    ],
    "group_norm": [
        (random(nn.GroupNorm(2, 4)), IMAGE),
        (random(nn.GroupNorm(4, 4, eps=0.1)), IMAGE),
        (nn.GroupNorm(3, 6, affine=False), (rand(2, 6, 5),)),
        (random(nn.GroupNorm(1, 6)), ROWS),
        (Fn(lambda x, w, b: NATIVE_GROUP(x, w, b, 2, 4, 63, 2, 1e-3)), (*IMAGE, rand(4), rand(4))),
        (random(nn.GroupNorm(2, 4)).double(), (IMAGE[0].double(),)),
    ],
    "instance_norm": [
        (random(nn.InstanceNorm2d(4, affine=True)), IMAGE),
        (nn.InstanceNorm1d(3, eps=0.1), SEQUENCE),
        (nn.InstanceNorm3d(2).double(), (rand(1, 2, 3, 2, 4).double(),)),
    ],
}  # fmt: skip

DIRECT: dict[str, list[Direct]] = {}  # fmt: skip
