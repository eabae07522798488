"""Cases of `msc_core/ops/reduction.py`."""

from __future__ import annotations

import torch

from tests.op_cases.inputs import IMAGE, ROWS, SEQUENCE, Case, Direct, Fn, rand

BOOLS = (torch.tensor([[True, False], [True, True], [False, False]]),)
INTEGERS = (torch.tensor([[3, -1, 2], [3, 5, -7]], dtype=torch.int32),)
SCALAR = (torch.tensor(2.5),)
TIES = (torch.tensor([[1.0, 3.0, 3.0, 0.0], [0.0, 2.0, 0.0, 2.0]]),)
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
    "max": [
        (Fn(torch.amax, dim=(1, -1)), IMAGE), (Fn(torch.max), INTEGERS), (Fn(torch.max, dim=1, keepdim=True), TIES),
        (Fn(lambda x: torch.max(x, -1)[0]), SEQUENCE), (Fn(torch.amax, dim=0), (INTEGERS[0].short(),)),
    ],
    "min": [(Fn(torch.amin, dim=(0, 2), keepdim=True), IMAGE), (Fn(torch.min, dim=0), TIES), (Fn(torch.min), ROWS)],
    "any": [(Fn(torch.any), BOOLS), (Fn(torch.any, dim=-1), BOOLS), (Fn(torch.any, dim=(0, 1), keepdim=True), INTEGERS),
            (Fn(torch.amax, dim=1), BOOLS)],
    "all": [(Fn(torch.all), BOOLS), (Fn(torch.all, dim=1, keepdim=True), BOOLS), (Fn(torch.all, dim=0), INTEGERS)],
    "variance": [
        (Fn(torch.var), ROWS), (Fn(torch.var, dim=(1, -1), correction=0), IMAGE),
        (Fn(torch.var, dim=1, unbiased=False, keepdim=True), SEQUENCE), (Fn(torch.var_mean, dim=-1), SEQUENCE),
    ],
    "std": [(Fn(torch.std), ROWS), (Fn(torch.std, dim=-1, keepdim=True), SEQUENCE), (Fn(torch.std_mean, dim=0), ROWS)],
    "argmax": [
        (Fn(torch.argmax), TIES), (Fn(torch.argmax, dim=-1), TIES), (Fn(torch.argmax, dim=1, keepdim=True), IMAGE),
        (Fn(torch.argmax, dim=0), INTEGERS),
    ],
    "argmin": [(Fn(torch.argmin, dim=1), TIES), (Fn(torch.argmin, keepdim=True), ROWS)],
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

INFINITE = torch.tensor([[-torch.inf, -torch.inf], [-torch.inf, 1.0], [torch.inf, torch.inf]])

DIRECT: dict[str, list[Direct]] = {
    "max": [({"x": INFINITE}, {"axes": (1,), "keepdims": True}, lambda x: x.amax(1, keepdim=True))],
    "min": [({"x": INFINITE}, {"axes": (-1,)}, lambda x: x.amin(1))],
    "sum": [({"x": rand(3, 6)}, {}, torch.sum),
            ({"x": INTEGERS[0]}, {"axes": (0,)}, lambda x: x.sum(0, dtype=x.dtype))],
    "prod": [({"x": rand(2, 3, 4)}, {"axes": (0, -1)}, lambda x: x.prod(2).prod(0))],
}  # fmt: skip
