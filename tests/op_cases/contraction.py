"""Cases of `msc_core/ops/contraction.py`."""

from __future__ import annotations

import torch.nn.functional as F
from torch import nn

from tests.op_cases.inputs import IMAGE, ROWS, SEQUENCE, Case, Direct, rand

ASYMMETRIC = {"padding": (1, 0, 2, 1)}  # top, left, bottom, right
CASES: dict[str, list[Case]] = {
    "conv2d": [
        (nn.Conv2d(4, 6, 3), IMAGE),
        (nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2), bias=False), IMAGE),
        (nn.Conv2d(4, 6, 3, groups=2), IMAGE),
        (nn.Conv2d(4, 8, 3, groups=4, padding="same", dilation=2), IMAGE),
        (nn.Conv2d(4, 6, (2, 4), padding="same"), IMAGE),
        (nn.Conv2d(4, 6, 3, padding="valid"), IMAGE),
    ],
    "linear": [
        (nn.Linear(6, 5), ROWS),
        (nn.Linear(6, 5, bias=False), ROWS),
        (nn.Linear(6, 5), SEQUENCE),
        (nn.Linear(6, 5, bias=False), SEQUENCE),
    ],
}  # fmt: skip

DIRECT: dict[str, list[Direct]] = {
    "conv2d": [
        ({"x": rand(2, 4, 9, 7), "w": rand(6, 4, 3, 3)}, ASYMMETRIC, lambda x, w: F.conv2d(F.pad(x, (0, 1, 1, 2)), w)),
    ],
}  # fmt: skip
