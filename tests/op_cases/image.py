"""Cases of `msc_core/ops/image.py`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.op_cases.inputs import IMAGE, Case, Direct, Fn, rand

SQUARES = (rand(2, 8, 4, 6),)
CASES: dict[str, list[Case]] = {
    "pad": [
        (Fn(F.pad, (1, 2, 0, 3)), IMAGE),
        (Fn(F.pad, (1, 2, 0, 3), value=-2.5), IMAGE),
        (Fn(F.pad, (-1, 2, 1, -3, 0, 1)), IMAGE),
        (nn.ReflectionPad2d((1, 2, 3, 0)), IMAGE),
        (nn.ReplicationPad2d((1, 0, 3, 2)), IMAGE),
        (nn.CircularPad2d((1, 2, 0, 3)), IMAGE),
        (nn.ReflectionPad1d(2), (rand(3, 5),)),
        (nn.ReplicationPad3d(1), (rand(1, 2, 3, 4, 2),)),
        (nn.ConstantPad1d((2, 1), 3.0), (rand(2, 3, 4),)),
        (Fn(F.pad, (1, 2), value=3), (torch.arange(6).reshape(2, 3),)),
        (nn.ZeroPad2d(1), (rand(3, 2, 2) > 0,)),
    ],
    "pixel_shuffle": [(nn.PixelShuffle(2), SQUARES), (nn.PixelShuffle(3), (rand(9, 2, 4),))],
    "pixel_unshuffle": [(nn.PixelUnshuffle(2), SQUARES), (nn.PixelUnshuffle(2), (rand(1, 2, 3, 4, 2),))],
}  # fmt: skip

DIRECT: dict[str, list[Direct]] = {
    "pad": [
        (
            {"x": rand(3, 4, 5)},
            {"padding": (1, 2, 0, 2, 0, 1), "mode": "reflect"},
            lambda x: x[[1, 0, 1, 2, 1, 0]][:, [2, 1, 0, 1, 2, 3]][:, :, [0, 1, 2, 3, 4, 3]],
        ),
        (
            {"x": rand(3, 4)},
            {"padding": (2, -1, 1, 1), "mode": "circular"},
            lambda x: x[[1, 2, 0, 1, 2, 0]][:, [1, 2, 3, 1]],
        ),
    ],
}  # fmt: skip
