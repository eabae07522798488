"""Cases of `msc_core/ops/extremes.py`."""

from __future__ import annotations

import torch

from tests.op_cases.inputs import IMAGE, ROWS, SEQUENCE, Case, Direct, Fn
from tests.op_cases.reduction import BOOLS, INTEGERS

TIES = (torch.tensor([[1.0, 3.0, 3.0, 0.0], [0.0, 2.0, 0.0, 2.0]]),)
INFINITE = torch.tensor([[-torch.inf, -torch.inf], [-torch.inf, 1.0], [torch.inf, torch.inf]])

CASES: dict[str, list[Case]] = {
    "max": [
        (Fn(torch.amax, dim=(1, -1)), IMAGE), (Fn(torch.max), INTEGERS), (Fn(torch.max, dim=1, keepdim=True), TIES),
        (Fn(lambda x: torch.max(x, -1)[0]), SEQUENCE), (Fn(torch.amax, dim=0), (INTEGERS[0].short(),)),
    ],
    "min": [(Fn(torch.amin, dim=(0, 2), keepdim=True), IMAGE), (Fn(torch.min, dim=0), TIES), (Fn(torch.min), ROWS)],
    "any": [(Fn(torch.any), BOOLS), (Fn(torch.any, dim=-1), BOOLS), (Fn(torch.any, dim=(0, 1), keepdim=True), INTEGERS),
            (Fn(torch.amax, dim=1), BOOLS)],
    "all": [(Fn(torch.all), BOOLS), (Fn(torch.all, dim=1, keepdim=True), BOOLS), (Fn(torch.all, dim=0), INTEGERS)],
    "argmax": [
        (Fn(torch.argmax), TIES), (Fn(torch.argmax, dim=-1), TIES), (Fn(torch.argmax, dim=1, keepdim=True), IMAGE),
        (Fn(torch.argmax, dim=0), INTEGERS),
    ],
    "argmin": [(Fn(torch.argmin, dim=1), TIES), (Fn(torch.argmin, keepdim=True), ROWS)],
}  # fmt: skip

DIRECT: dict[str, list[Direct]] = {
    "max": [({"x": INFINITE}, {"axes": (1,), "keepdims": True}, lambda x: x.amax(1, keepdim=True))],
    "min": [({"x": INFINITE}, {"axes": (-1,)}, lambda x: x.amin(1))],
}  # fmt: skip
