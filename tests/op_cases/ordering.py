"""Cases of `msc_core/ops/ordering.py`."""

from __future__ import annotations

import torch

from tests.op_cases.inputs import Case, Direct, Fn, rand

CUBE = (rand(2, 5, 4),)
TIES = (torch.tensor([[3, 1, 3, 2, 1, 3], [0, 0, -5, 7, 7, 0]]),)
EDGES = torch.tensor([-1.0, 0.0, 0.5, 0.5, 2.0])


def middle(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (*torch.sort(x, dim=-1, stable=True), *torch.median(x, 1), torch.median(x), *torch.kthvalue(x, 2, 0, True))


def binned(x: torch.Tensor, edges: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows = torch.sort(x, dim=1)[0]
    return (
        torch.bucketize(x, edges),
        torch.bucketize(x, edges, right=True, out_int32=True),
        torch.searchsorted(rows, x[:, :2].contiguous(), side="right"),
        torch.searchsorted(edges, 0.5),
    )


def exclusive(x: torch.Tensor, axis: int) -> torch.Tensor:
    return torch.cumsum(x, axis) - x


def products_behind(x: torch.Tensor) -> torch.Tensor:
    """The product of all that comes after, along the middle axis."""
    behind = torch.cat([torch.ones_like(x[:, :1]), x.flip(1)[:, :-1]], 1)
    return behind.cumprod(1).flip(1)


CASES: dict[str, list[Case]] = {
    "sort": [
        (Fn(torch.sort), CUBE),
        (Fn(torch.sort, dim=1, descending=True), CUBE),
        (Fn(torch.sort, stable=True, dim=-1), TIES),
        (Fn(torch.sort, stable=True, dim=1, descending=True), (TIES[0].int(),)),
        (Fn(torch.argsort, dim=-2), CUBE),
        (Fn(torch.sort, stable=True, descending=True), (TIES[0] > 1,)),
        (Fn(torch.msort), (rand(4, 3).double(),)),
        (Fn(middle), (rand(3, 6),)),
        (Fn(binned), (rand(3, 6), EDGES)),
    ],
    "topk": [
        (Fn(torch.topk, 2), CUBE),
        (Fn(torch.topk, 3, dim=1, largest=False), CUBE),
        (Fn(torch.topk, 4, dim=-1), (torch.arange(6).roll(2).expand(2, 6) * 1,)),
    ],
    "cumsum": [
        (Fn(torch.cumsum, 1), CUBE),
        (Fn(torch.cumsum, -1), (TIES[0].int(),)),
        (Fn(torch.cumsum, 0), (TIES[0] > 1,)),
        (Fn(torch.cumsum, 0, dtype=torch.float64), (TIES[0],)),
        (Fn(torch.cumsum, 0, dtype=torch.int32), (TIES[0],)),
    ],
    "cumprod": [(Fn(torch.cumprod, 1), CUBE), (Fn(torch.cumprod, -1), TIES)],
    "logcumsumexp": [(Fn(torch.logcumsumexp, 1), (rand(2, 5, 4) * 40,)), (Fn(torch.logcumsumexp, -1), CUBE)],
    "cummax": [(Fn(torch.cummax, 1), CUBE), (Fn(torch.cummax, -1), TIES)],
    "cummin": [(Fn(torch.cummin, 0), CUBE), (Fn(torch.cummin, 1), (TIES[0].int(),))],
}  # fmt: skip

DIRECT: dict[str, list[Direct]] = {
    "topk": [
        (
            {"x": TIES[0]}, {"k": 3, "stable": True},
            lambda x: tuple(t[:, :3] for t in torch.sort(x, descending=True, stable=True)),
        ),
    ],
    "cumsum": [
        ({"x": CUBE[0]}, {"axis": 1, "exclusive": True}, lambda x: exclusive(x, 1)),
        ({"x": TIES[0]}, {"axis": 1, "reverse": True}, lambda x: x.flip(1).cumsum(1).flip(1)),
        (
            {"x": TIES[0].int()}, {"axis": 0, "reverse": True, "exclusive": True},
            lambda x: exclusive(x.flip(0), 0).flip(0).int(),
        ),
    ],
    "cumprod": [({"x": CUBE[0]}, {"axis": 1, "reverse": True, "exclusive": True}, products_behind)],
}  # fmt: skip
