"""Cases of `msc_core/ops/activation.py`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.op_cases.inputs import IMAGE, ROWS, SEQUENCE, Case, Direct, Fn, rand

WIDE = (5 * ROWS[0],)
SLOPES = torch.tensor([0.1, -0.5, 2.0, 0.3])

CASES: dict[str, list[Case]] = {
    "relu": [(nn.ReLU(), IMAGE), (nn.ReLU(inplace=True), ROWS), (nn.ReLU(), (torch.tensor([-3, 0, 5]),))],
    "leaky_relu": [(nn.LeakyReLU(), ROWS), (nn.RReLU(), ROWS), (nn.LeakyReLU(0.3, inplace=True), IMAGE)],
    "prelu": [
        (nn.PReLU(), IMAGE), (nn.PReLU(4), IMAGE), (Fn(F.prelu), (IMAGE[0], SLOPES)),
        (Fn(F.prelu), (rand(3, 4), SLOPES)),
        (nn.PReLU(), (rand(5),)),
    ],
    "elu": [(nn.ELU(), WIDE), (nn.ELU(0.7), IMAGE)],
    "selu": [(nn.SELU(), WIDE)],
    "celu": [(nn.CELU(), WIDE), (nn.CELU(1.7), ROWS)],
    "gelu": [(nn.GELU(), WIDE), (nn.GELU("tanh"), WIDE)],
    "silu": [(nn.SiLU(), WIDE)],
    "mish": [(nn.Mish(), (30 * ROWS[0],))],
    "hardsigmoid": [(nn.Hardsigmoid(), WIDE)],
    "hardswish": [(nn.Hardswish(), WIDE), (nn.Hardswish(), IMAGE)],
    "softplus": [(nn.Softplus(), (30 * ROWS[0],)), (nn.Softplus(2.0, 1.5), WIDE), (nn.Softplus(0.5), ROWS)],
    "log_sigmoid": [(nn.LogSigmoid(), (30 * ROWS[0],))],
    "glu": [
        (nn.GLU(), SEQUENCE), (nn.GLU(1), IMAGE),
        (Fn(lambda x: F.glu(F.threshold(x, 0.1, -20.0), 2)), (rand(2, 3, 6),)),
        (Fn(lambda x: F.glu(F.hardshrink(x, 0.4) + F.softshrink(x, 0.3) * F.tanhshrink(x))), SEQUENCE),
    ],
}  # fmt: skip

DIRECT: dict[str, list[Direct]] = {
    "softsign": [({"x": WIDE[0]}, {}, F.softsign)],
    "elu": [({"x": rand(3, 6)}, {"alpha": 1.3, "scale": 2.0, "input_scale": 0.5},
             lambda x: torch.ops.aten.elu(x, 1.3, 2.0, 0.5))],
}  # fmt: skip
