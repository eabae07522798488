"""Cases of `msc_core/ops/comparison.py`."""

from __future__ import annotations

import torch

from tests.op_cases.inputs import BROADCAST, ROWS, Case, Direct, Fn, rand

INTEGERS = (torch.tensor([3, -1, 2, 0]), torch.tensor([[3], [-1]]))
SHORT = (torch.tensor([3, -1, 2], dtype=torch.int8), torch.tensor([3, 1, -2], dtype=torch.int8))
BOOLS = (torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False]))
MIXED = (rand(2, 4).round(), INTEGERS[0])
ODD = (torch.tensor([1.0, float("nan"), float("inf"), -float("inf"), 0.0, -2.5]),)
SHIFTED = (torch.tensor([1, -3, 5, 100]), torch.tensor([1, 2, 0, 3]))
FAR = (torch.tensor([1, -3, 5, 100, -100], dtype=torch.int32), torch.tensor([31, 32, 40, -1, 31], dtype=torch.int32))
CHOICE = (BOOLS[0], rand(3, 4), rand(4))

CASES: dict[str, list[Case]] = {
    "equal": [(Fn(torch.eq), MIXED), (Fn(torch.eq), INTEGERS), (Fn(torch.eq, 2), SHORT[:1]), (Fn(torch.eq), BOOLS)],
    "not_equal": [(Fn(torch.ne), MIXED), (Fn(torch.ne), INTEGERS), (Fn(torch.ne), BOOLS)],
    "less": [(Fn(torch.lt), BROADCAST), (Fn(torch.lt, 0.5), INTEGERS[:1]), (Fn(torch.lt), SHORT)],
    "less_equal": [(Fn(torch.le), INTEGERS), (Fn(torch.le), MIXED)],
    "greater": [(Fn(torch.gt), BROADCAST), (Fn(torch.gt, 0), ROWS), (Fn(torch.gt), BOOLS)],
    "greater_equal": [(Fn(torch.ge), INTEGERS), (Fn(torch.ge), SHORT)],
    "logical_and": [(Fn(torch.logical_and), BOOLS), (Fn(torch.logical_and), INTEGERS)],
    "logical_or": [(Fn(torch.logical_or), BOOLS), (Fn(torch.logical_or), MIXED)],
    "logical_xor": [(Fn(torch.logical_xor), BOOLS), (Fn(torch.bitwise_xor), BOOLS)],
    "logical_not": [(Fn(torch.logical_not), BOOLS[:1]), (Fn(torch.logical_not), INTEGERS[:1]),
                    (Fn(lambda x: ~(x > 0)), ROWS)],
    "bitwise_and": [(Fn(torch.bitwise_and), INTEGERS), (Fn(torch.bitwise_and, 6), SHORT[:1])],
    "bitwise_or": [(Fn(torch.bitwise_or), INTEGERS), (Fn(lambda x: x | 5), INTEGERS[:1])],
    "bitwise_xor": [(Fn(torch.bitwise_xor), SHORT)],
    "bitwise_not": [(Fn(torch.bitwise_not), INTEGERS[:1])],
    "left_shift": [(Fn(torch.bitwise_left_shift), SHIFTED), (Fn(torch.bitwise_left_shift), FAR),
                    (Fn(torch.bitwise_left_shift, 3), SHIFTED[:1])],
    "right_shift": [
        (Fn(torch.bitwise_right_shift), SHIFTED), (Fn(torch.bitwise_right_shift), FAR),
        (Fn(lambda x: x >> 1), (SHIFTED[0].abs().to(torch.uint8),))
    ],
    "where": [
        (Fn(torch.xlogy), (torch.tensor([0.0, 0.0, 2.0, 1.0]), torch.tensor([0.0, float("nan"), 3.0, 0.0]))),
        (Fn(torch.logaddexp), (torch.tensor([1e3, 0.5, -float("inf")]), torch.tensor([1e3, 0.2, -float("inf")]))),
        (Fn(torch.fmax), (ODD[0], rand(6))), (Fn(torch.fmin), (rand(6), ODD[0])),
        (Fn(torch.nan_to_num), ODD), (Fn(torch.nan_to_num, 1.0, 5.0, -7.0), ODD),
        (Fn(torch.where), CHOICE), (Fn(lambda c, a: torch.where(c, a, 0.0)), CHOICE[:2]),
        (Fn(lambda c, a: torch.where(c, a, 2)), (BOOLS[0], INTEGERS[0])),
        (Fn(lambda a, c: a.masked_fill(c, float("-inf")).exp()), (CHOICE[1], BOOLS[1])),
        (Fn(torch.where), (BOOLS[0], *BOOLS)), (Fn(torch.where), (BOOLS[0][:3], *(t.short() for t in SHORT))),
        (Fn(lambda q: q.masked_fill(torch.ones(4, 4).tril() == 0, float("-inf")).softmax(-1)), (rand(2, 4, 4),)),
        (Fn(lambda c, a, b: torch.where(c, a, b)), (BOOLS[0], INTEGERS[0], rand(2, 1))),
    ],
}  # fmt: skip

DIRECT: dict[str, list[Direct]] = {}  # fmt: skip
