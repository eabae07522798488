"""Cases of `msc_core/ops/elementwise.py`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.op_cases.inputs import IMAGE, ROWS, Case, Direct, Fn, rand

INTEGERS = (torch.tensor([[-3, 0, 5], [7, -1, 2]]),)
POINTS = torch.tensor([0, 1, 2, 3], dtype=torch.int32)
FRACTIONS = (torch.tensor([-2.7, -0.5, 0.0, 0.5, 3.9]),)

CASES: dict[str, list[Case]] = {
    "relu6": [(nn.ReLU6(), (4 * IMAGE[0],)), (Fn(F.relu6), (4 * ROWS[0],)), (nn.ReLU6(inplace=True), ROWS)],
    "clip": [
        (Fn(torch.clamp, min=-0.5, max=0.25), ROWS),
        (Fn(torch.clamp, min=0.1), ROWS),
        (Fn(torch.clamp, max=0.1), ROWS),
        (nn.Hardtanh(-0.5, 0.5), ROWS),
        (Fn(torch.clamp, min=-1, max=4), INTEGERS),
        (Fn(torch.clamp, min=0.5), INTEGERS),
        (Fn(torch.clamp, max=2), (INTEGERS[0].short(),)),
        (Fn(torch.clamp, min=-0.5, max=0.25), (ROWS[0].double(),)),
        (Fn(torch.fake_quantize_per_tensor_affine, 0.25, 3, -8, 7), ROWS),
        (Fn(lambda x, s: torch.fake_quantize_per_channel_affine(x, s.abs(), POINTS, 1, 0, 255)), (*IMAGE, rand(4))),
    ],
    "dropout": [
        (nn.Dropout(0.3), ROWS), (nn.Dropout2d(), IMAGE), (nn.AlphaDropout(), ROWS), (nn.FeatureAlphaDropout(), IMAGE)
    ],
    "cast": [
        (Fn(torch.Tensor.to, torch.float64), ROWS), (Fn(torch.Tensor.to, torch.int32), FRACTIONS),
        (Fn(torch.Tensor.bool), FRACTIONS), (Fn(lambda x: (x > 0).to(x.dtype)), ROWS),
        (Fn(torch.Tensor.to, "cpu", torch.int8), INTEGERS),
        (Fn(torch.Tensor.half), ROWS), (Fn(torch.Tensor.type_as), (ROWS[0], INTEGERS[0])),
    ],
}  # fmt: skip

DIRECT: dict[str, list[Direct]] = {"clip": [({"x": rand(3, 6)}, {}, lambda x: x)]}
