"""Cases of `msc_core/ops/activation.py`."""

from __future__ import annotations

import torch
from torch import nn

from tests.op_cases.inputs import IMAGE, ROWS, Case, Direct

CASES: dict[str, list[Case]] = {
    "relu": [(nn.ReLU(), IMAGE), (nn.ReLU(inplace=True), ROWS), (nn.ReLU(), (torch.tensor([-3, 0, 5]),))],
}  # fmt: skip

DIRECT: dict[str, list[Direct]] = {}  # fmt: skip
