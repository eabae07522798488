"""Cases of `msc_core/ops/reduction.py`."""

from __future__ import annotations

import torch
from torch import nn

from tests.op_cases.inputs import IMAGE, ROWS, Case, Direct, Fn

CASES: dict[str, list[Case]] = {
    "mean": [
        (Fn(torch.mean, dim=(2, 3)), IMAGE),
        (Fn(torch.mean, dim=(-1,), keepdim=True), IMAGE),
        (Fn(torch.mean, dim=1), IMAGE),
        (Fn(torch.mean), ROWS),
    ],
    "sum": [(Fn(torch.sum, dim=(1, -1)), IMAGE), (Fn(torch.sum, dim=0, keepdim=True), (torch.ones(2, 3, dtype=torch.bool),))],
    "softmax": [(nn.Softmax(-1), IMAGE), (nn.Softmax(1), IMAGE)],
}  # fmt: skip

DIRECT: dict[str, list[Direct]] = {}  # fmt: skip
