"""Cases of `msc_core/ops/pool.py`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.op_cases.inputs import IMAGE, Case, Direct, rand

ASYMMETRIC = {"padding": (1, 0, 2, 1)}  # top, left, bottom, right
CASES: dict[str, list[Case]] = {
    "max_pool2d": [
        (nn.MaxPool2d(2), IMAGE),
        (nn.MaxPool2d((3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)), IMAGE),
        (nn.MaxPool2d(2, ceil_mode=True), IMAGE),
        (nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True), (rand(1, 2, 8, 10),)),
    ],
    "avg_pool2d": [
        (nn.AvgPool2d(2), IMAGE),
        (nn.AvgPool2d(3, stride=2, padding=1), IMAGE),
        (nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False), IMAGE),
        (nn.AvgPool2d(2, ceil_mode=True), IMAGE),
        (nn.AvgPool2d(3, stride=2, padding=1, ceil_mode=True), (rand(1, 2, 8, 10),)),
        (nn.AvgPool2d(3, stride=2, padding=1, ceil_mode=True, count_include_pad=False), (rand(1, 2, 8, 10),)),
    ],
    "adaptive_avg_pool2d": [(nn.AdaptiveAvgPool2d(1), IMAGE), (nn.AdaptiveAvgPool2d((3, 1)), IMAGE)],
}  # fmt: skip

DIRECT: dict[str, list[Direct]] = {
    "max_pool2d": [
        (
            {"x": rand(2, 4, 9, 7) - 5},
            ASYMMETRIC | {"kernel": (3, 3), "stride": (2, 2)},
            lambda x: F.max_pool2d(F.pad(x, (0, 1, 1, 2), value=-torch.inf), 3, 2),
        ),
    ],
    "avg_pool2d": [
        (
            {"x": rand(2, 4, 9, 7)},
            ASYMMETRIC | {"kernel": (3, 3), "stride": (2, 2)},
            lambda x: F.avg_pool2d(F.pad(x, (0, 1, 1, 2)), 3, 2),
        ),
    ],
}  # fmt: skip
