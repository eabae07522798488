"""Cases of `msc_core/ops/norm.py`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.op_cases.inputs import IMAGE, ROWS, Case, Direct, Fn, Norm, rand


class Norm1d(nn.BatchNorm1d):
    """Batch norm of vectors or sequences with statistics that are not 0 and 1."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        for tensor in (self.weight, self.bias, self.running_mean, self.running_var):
            nn.init.uniform_(tensor, 0.5, 1.5)


CORE = torch.ops.aten._native_batch_norm_legit_no_training.default
CASES: dict[str, list[Case]] = {
    "batch_norm": [
        (Norm(4), IMAGE),
        (Norm(4, eps=0.1, momentum=0.3), IMAGE),
        (Norm1d(6), ROWS),
        (Norm1d(4), (rand(2, 4, 5),)),
        (nn.BatchNorm3d(4, affine=False), (rand(2, 4, 3, 2, 5),)),
        (Fn(lambda *x: CORE(*x, 0.1, 1e-3)[0]), (*IMAGE, rand(4), rand(4), rand(4), rand(4).abs())),
        (Fn(lambda *x: CORE(x[0], None, None, *x[1:], 0.1, 1e-3)[0]), (*IMAGE, rand(4), rand(4).abs())),
    ],
}  # fmt: skip

DIRECT: dict[str, list[Direct]] = {
    "local_response_norm": [
        (
            {"x": 3 * rand(2, 7, 3, 4)},
            {"size": 3, "alpha": 0.3, "beta": 0.5, "k": 2.0},
            lambda x: F.local_response_norm(x, 3, 0.3, 0.5, 2.0),
        ),
        ({"x": 3 * rand(2, 7, 3)}, {"size": 5, "alpha": 0.2}, lambda x: F.local_response_norm(x, 5, 0.2)),
    ],
}  # fmt: skip
