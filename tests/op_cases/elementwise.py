"""Cases of `msc_core/ops/elementwise.py`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.op_cases.inputs import IMAGE, ROWS, Case, Direct, Fn, rand

CASES: dict[str, list[Case]] = {
    "relu": [(nn.ReLU(), IMAGE), (nn.ReLU(inplace=True), ROWS)],
    "relu6": [(nn.ReLU6(), (4 * IMAGE[0],)), (Fn(F.relu6), (4 * ROWS[0],)), (nn.ReLU6(inplace=True), ROWS)],
    "clip": [
        (Fn(torch.clamp, min=-0.5, max=0.25), ROWS),
        (Fn(torch.clamp, min=0.1), ROWS),
        (Fn(torch.clamp, max=0.1), ROWS),
        (nn.Hardtanh(-0.5, 0.5), ROWS),
    ],
    "dropout": [(nn.Dropout(0.3), ROWS)],
    "cast": [(Fn(torch.Tensor.to, torch.float64), ROWS), (Fn(torch.Tensor.to, torch.int32), ROWS)],
}  # fmt: skip

DIRECT: dict[str, list[Direct]] = {
    "identity": [({"x": rand(3, 6)}, {}, lambda x: x)],
    "clip": [({"x": rand(3, 6)}, {}, lambda x: x)],
}  # fmt: skip
