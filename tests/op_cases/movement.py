"""Cases of `msc_core/ops/movement.py`."""

from __future__ import annotations

import torch
from torch import nn

from tests.op_cases.inputs import IMAGE, PAIR, ROWS, Case, Direct, Fn

CASES: dict[str, list[Case]] = {
    "flatten": [(nn.Flatten(), IMAGE), (nn.Flatten(2), IMAGE), (nn.Flatten(0, 1), IMAGE), (nn.Flatten(1, -2), IMAGE)],
    "reshape": [
        (Fn(torch.reshape, (2, 4, 63)), IMAGE),
        (Fn(torch.reshape, (8, -1)), IMAGE),
        (Fn(torch.Tensor.view, 2, 2, 2, 9, 7), IMAGE),
    ],
    "concat": [
        (Fn(lambda *parts: torch.cat(parts, 1)), PAIR),
        (Fn(lambda *parts: torch.cat(parts, -1)), PAIR),
        (Fn(lambda x: torch.cat((x, x, x))), ROWS),
    ],
}  # fmt: skip

DIRECT: dict[str, list[Direct]] = {}  # fmt: skip
