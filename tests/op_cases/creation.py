"""Cases of `msc_core/ops/creation.py`."""

from __future__ import annotations

import torch

from tests.op_cases.inputs import Case, Direct

CASES: dict[str, list[Case]] = {}  # fmt: skip

DIRECT: dict[str, list[Direct]] = {
    "sizes": [({}, {"values": (2, 3)}, lambda: torch.tensor([2, 3]))],
}  # fmt: skip
