"""Cases of `msc_core/ops/reduction.py`."""

from __future__ import annotations

import torch

from tests.op_cases.inputs import IMAGE, ROWS, SEQUENCE, Case, Direct, Fn, rand

BOOLS = (torch.tensor([[True, False], [True, True], [False, False]]),)
INTEGERS = (torch.tensor([[3, -1, 2], [3, 5, -7]], dtype=torch.int32),)
SCALAR = (torch.tensor(2.5),)
LARGE = (torch.tensor([[1000.0, 1001.0, 999.0], [-1e4, -1e4, -1e4], [0.1, 0.2, 0.3], [-float("inf"), 1.0, 2.0]]),)

CASES: dict[str, list[Case]] = {
    "mean": [
        (Fn(torch.mean, dim=(2, 3)), IMAGE), (Fn(torch.mean, dim=(-1,), keepdim=True), IMAGE),
        (Fn(torch.mean, dim=1), IMAGE), (Fn(torch.mean), ROWS), (Fn(torch.mean, dim=0), SEQUENCE),
        (Fn(torch.mean), SCALAR), (Fn(torch.mean, dim=1, dtype=torch.float32), INTEGERS),
    ],
    "sum": [
        (Fn(torch.sum, dim=(1, -1)), IMAGE), (Fn(torch.sum, dim=0, keepdim=True), BOOLS), (Fn(torch.sum), INTEGERS),
        (Fn(torch.sum, dim=(), keepdim=True), ROWS), (Fn(torch.sum, dim=0, dtype=torch.int8), INTEGERS),
        (Fn(torch.count_nonzero, dim=1), (ROWS[0].relu(),)), (Fn(torch.sum, dim=0), SCALAR),
    ],
    "prod": [(Fn(torch.prod), ROWS), (Fn(torch.prod, dim=-2, keepdim=True), SEQUENCE),
             (Fn(torch.prod, dim=1), INTEGERS)],
    "variance": [
        (Fn(torch.var), ROWS), (Fn(torch.var, dim=(1, -1), correction=0), IMAGE),
        (Fn(torch.var, dim=1, unbiased=False, keepdim=True), SEQUENCE), (Fn(torch.var_mean, dim=-1), SEQUENCE),
    ],
    "std": [(Fn(torch.std), ROWS), (Fn(torch.std, dim=-1, keepdim=True), SEQUENCE), (Fn(torch.std_mean, dim=0), ROWS)],
    "logsumexp": [(Fn(torch.logsumexp, dim=-1), LARGE), (Fn(torch.logsumexp, dim=(0, 1), keepdim=True), SEQUENCE)],
    "norm": [
        (Fn(torch.norm), ROWS), (Fn(torch.norm, p=1, dim=1), SEQUENCE),
        (Fn(torch.norm, p=3, dim=-1, keepdim=True), ROWS),
        (Fn(torch.linalg.vector_norm, ord=float("inf"), dim=(0, 1)), SEQUENCE),
        (Fn(torch.linalg.vector_norm, ord=-float("inf")), ROWS), (Fn(torch.linalg.norm, dim=1), ROWS),
        (Fn(torch.linalg.vector_norm, ord=0, dim=1), (ROWS[0].relu(),)),
        (Fn(torch._weight_norm, dim=0), (rand(4, 3, 2), rand(4, 1, 1))),
        (Fn(torch._weight_norm, dim=-1), (rand(4, 3), rand())),
        (Fn(torch._weight_norm, dim=2), (rand(4, 3, 2), rand(1, 1, 2))),
        (Fn(torch.linalg.vector_norm), (rand(2, 3).double(),)),
    ],
}  # fmt: skip

DIRECT: dict[str, list[Direct]] = {
    "sum": [({"x": rand(3, 6)}, {}, torch.sum),
            ({"x": INTEGERS[0]}, {"axes": (0,)}, lambda x: x.sum(0, dtype=x.dtype))],
    "prod": [({"x": rand(2, 3, 4)}, {"axes": (0, -1)}, lambda x: x.prod(2).prod(0))],
}  # fmt: skip
