"""Cases of `msc_core/ops/creation.py`."""

from __future__ import annotations

import torch

from tests.op_cases.inputs import ROWS, Case, Direct, Fn

CASES: dict[str, list[Case]] = {
    "full": [
        (Fn(lambda x: x + torch.zeros_like(x).fill_(x.shape[0])), ROWS),
    ],
}  # fmt: skip

DIRECT: dict[str, list[Direct]] = {
    "sizes": [({}, {"values": (2, 3)}, lambda: torch.tensor([2, 3]))],
    "full": [
        ({}, {"shape": (2, 3), "value": 1.5}, lambda: torch.full((2, 3), 1.5)),
        ({}, {"shape": (), "value": -2, "dtype": "int32"}, lambda: torch.tensor(-2, dtype=torch.int32)),
        ({}, {"shape": (4,), "value": True, "dtype": "bool"}, lambda: torch.ones(4, dtype=torch.bool)),
        ({}, {"shape": (1,), "value": -float("inf"), "dtype": "float64"},
         lambda: torch.full((1,), -float("inf"), dtype=torch.float64)),
    ],
    "arange": [
        ({}, {"start": 2, "end": 9, "step": 3}, lambda: torch.arange(2, 9, 3)),
        ({}, {"start": 5, "end": -1, "step": -2, "dtype": "float32"}, lambda: torch.tensor([5.0, 3.0, 1.0])),
        ({}, {"end": 4, "dtype": "int32"}, lambda: torch.arange(4, dtype=torch.int32)),
    ],
}  # fmt: skip
