"""Cases of `msc_core/ops/contraction.py`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.op_cases.inputs import ROWS, SEQUENCE, Case, Direct, Fn, rand

MATRICES = (rand(3, 4), rand(4, 5))
BATCHES = (rand(2, 3, 4), rand(2, 4, 5))
CASES: dict[str, list[Case]] = {
    "linear": [
        (nn.Linear(6, 5), ROWS),
        (nn.Linear(6, 5, bias=False), ROWS),
        (nn.Linear(6, 5), SEQUENCE),
        (nn.Linear(6, 5, bias=False), SEQUENCE),
        (nn.Linear(6, 5), (rand(6),)),
    ],
    "matmul": [
        (Fn(torch.matmul), MATRICES),
        (Fn(torch.matmul), (rand(2, 1, 3, 4), rand(5, 4, 2))),
        (Fn(torch.matmul), (rand(4), rand(2, 4, 5))),
        (Fn(torch.matmul), (rand(2, 3, 4), rand(4))),
        (Fn(torch.dot), (rand(4), rand(4))),
        (Fn(torch.matmul), (torch.arange(6).reshape(2, 3), torch.arange(6).reshape(3, 2))),
        (Fn(torch.mm), MATRICES),
        (Fn(torch.mv), (rand(3, 4), rand(4))),
        (Fn(torch.bmm), BATCHES),
        (Fn(torch.addmm), (rand(5), *MATRICES)),
        (Fn(torch.addmm, beta=0.5, alpha=2), (rand(3, 5), *MATRICES)),
        (Fn(torch.addmv, beta=0, alpha=3), (rand(3), rand(3, 4), rand(4))),
        (Fn(torch.baddbmm, alpha=0.3), (rand(2, 1, 5), *BATCHES)),
        (Fn(lambda *x: torch.linalg.multi_dot(x)), (*MATRICES, rand(5, 2))),
    ],
    "einsum": [
        (Fn(lambda a, b: torch.einsum("b i j, b j k", a, b)), BATCHES),
        (Fn(lambda a, b: torch.einsum("bhld,bhsd->bhls", a, b)), (rand(2, 3, 4, 5), rand(2, 3, 6, 5))),
        (Fn(lambda a, b: torch.einsum("...ij,jk->...ki", a, b)), (rand(2, 2, 3, 4), rand(4, 5))),
        (Fn(lambda a, b: torch.einsum("...i,...j->...ij", a, b)), (rand(2, 3, 4), rand(3, 5))),
        (Fn(lambda a, b: torch.einsum("...ij,...jk->...ik", a, b)), (rand(1, 3, 4), rand(2, 4, 5))),
        (Fn(lambda a: torch.einsum("ij->j", a)), ROWS),
        (Fn(lambda a: torch.einsum("ba", a)), ROWS),
        (Fn(lambda a, b, c: torch.einsum("ij,jk,kl->il", a, b, c)), (*MATRICES, rand(5, 2))),
        (Fn(torch.outer), (rand(3), rand(4))),
        (Fn(torch.inner), (rand(2, 4), rand(3, 4))),
        (Fn(torch.tensordot, dims=([0, 2], [1, 0])), (rand(2, 3, 4), rand(4, 2, 5))),
        (Fn(torch.addbmm, beta=2), (rand(3, 5), *BATCHES)),
        (Fn(torch.addr), (rand(3, 4), rand(3), rand(4))),
        (nn.Bilinear(3, 4, 5), (rand(2, 3), rand(2, 4))),
    ],
}  # fmt: skip

DIRECT: dict[str, list[Direct]] = {
    "einsum": [
        ({"x": rand(4, 4)}, {"equation": "ii->i"}, torch.diagonal),
        ({"x": rand(4, 4)}, {"equation": "ii->"}, torch.trace),
    ],
    "linear": [({"x": rand(2, 3), "w": rand(4, 3)}, {}, F.linear)],
}  # fmt: skip
