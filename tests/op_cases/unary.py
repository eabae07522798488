"""Cases of `msc_core/ops/unary.py`."""

from __future__ import annotations

import torch
from torch import nn

from tests.op_cases.inputs import IMAGE, ROWS, SEQUENCE, Case, Direct, Fn, rand

HALVES = (torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.4, -3.6]),)
INTEGERS = (torch.tensor([[-3, 0, 5], [7, -1, 2]]),)
SHORT = (torch.tensor([-3, 0, 5], dtype=torch.int8),)
POSITIVE = (rand(3, 6).abs() + 0.1,)
UNIT = (torch.tanh(rand(3, 6)),)
ODD = (torch.tensor([1.0, float("nan"), float("inf"), -float("inf"), 0.0, -2.5]),)
SMALL = (torch.tensor([-0.9, -1e-4, -1e-9, 0.0, 1e-9, 1e-4, 3e-3, 0.7, 8.0, 1e9]),)

CASES: dict[str, list[Case]] = {
    "abs": [(Fn(torch.abs), ROWS), (Fn(torch.abs), INTEGERS), (Fn(torch.abs), SHORT)],
    "negative": [(Fn(torch.neg), ROWS), (Fn(torch.neg), INTEGERS)],
    "sign": [(Fn(torch.sign), (torch.tensor([-2.0, 0.0, 3.0]),)), (Fn(torch.sign), INTEGERS)],
    "ceil": [(Fn(torch.ceil), HALVES)],
    "floor": [(Fn(torch.floor), HALVES)],
    "round": [
        (Fn(torch.round), HALVES), (Fn(torch.round, decimals=1), ROWS), (Fn(torch.round, decimals=-1), (30 * ROWS[0],))
    ],
    "trunc": [(Fn(torch.trunc), HALVES), (Fn(torch.frac), HALVES)],
    "exp": [(Fn(torch.exp), ROWS), (Fn(torch.exp), INTEGERS), (Fn(torch.exp), (ROWS[0].double(),))],
    "expm1": [(Fn(torch.expm1), ROWS), (Fn(lambda x: torch.expm1(x) * 1e6), (SMALL[0][:-3],))],
    "log": [(Fn(torch.log), POSITIVE), (Fn(torch.logit, eps=0.1), UNIT), (Fn(torch.logit), (torch.sigmoid(ROWS[0]),))],
    "log1p": [(Fn(torch.log1p), POSITIVE), (Fn(lambda x: torch.log1p(x) * 1e6), (SMALL[0][1:-2],)),
              (Fn(torch.log1p), SMALL)],
    "log2": [(Fn(torch.log2), POSITIVE)],
    "log10": [(Fn(torch.log10), POSITIVE)],
    "sqrt": [(Fn(torch.sqrt), POSITIVE), (Fn(torch.sqrt), (INTEGERS[0].abs(),))],
    "rsqrt": [(Fn(torch.rsqrt), POSITIVE)],
    "square": [(Fn(torch.square), ROWS), (Fn(torch.square), INTEGERS)],
    "reciprocal": [(Fn(torch.reciprocal), POSITIVE)],
    "sin": [(Fn(torch.sin), (20 * ROWS[0],))],
    "cos": [(Fn(torch.cos), (20 * ROWS[0],))],
    "tan": [(Fn(torch.tan), ROWS)],
    "asin": [(Fn(torch.asin), UNIT)],
    "acos": [(Fn(torch.acos), UNIT)],
    "atan": [(Fn(torch.atan), (5 * ROWS[0],))],
    "sinh": [(Fn(torch.sinh), ROWS)],
    "cosh": [(Fn(torch.cosh), ROWS)],
    "asinh": [(Fn(torch.asinh), ROWS)],
    "acosh": [(Fn(torch.acosh), (POSITIVE[0] + 1,))],
    "atanh": [(Fn(torch.atanh), UNIT)],
    "erf": [(Fn(torch.erf), ROWS), (Fn(torch.erfc), ROWS)],
    "sigmoid": [(nn.Sigmoid(), SEQUENCE), (nn.Sigmoid(), (30 * ROWS[0],))],
    "tanh": [(nn.Tanh(), SEQUENCE), (nn.Tanh(), IMAGE)],
    "erfinv": [(Fn(torch.erfinv), UNIT), (Fn(torch.erfinv), (torch.tensor([-1.0, -0.9999, 0.0, 1e-3, 1.0]),))],
    "isnan": [(Fn(torch.isnan), ODD)],
    "isinf": [(Fn(torch.isinf), ODD)],
    "isfinite": [(Fn(torch.isfinite), ODD), (Fn(lambda x: torch.isfinite(x) & ~torch.isfinite(x.float())), INTEGERS)],
}  # fmt: skip

DIRECT: dict[str, list[Direct]] = {"identity": [({"x": rand(3, 6)}, {}, lambda x: x)]}  # fmt: skip
