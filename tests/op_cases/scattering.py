"""Cases of `msc_core/ops/scattering.py`."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tests.op_cases.inputs import ROWS, SEQUENCE, Case, Direct, Fn, rand

ONCE = torch.tensor([[0, 2, 1], [2, 1, 0]])
OFTEN = torch.tensor([[0, 1, 1], [0, 2, 1]])
LIST, GRID = torch.tensor([2, 0]), torch.tensor([[-1, 0], [1, -3]])
WHOLE = torch.arange(12).reshape(3, 4)
MASK = WHOLE % 3 == 0


def fill(write: Callable[[torch.Tensor], object]) -> Fn:
    """A function that writes to a copy of its input."""

    def function(x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        y = x * 1
        write(y, *others)
        return y

    return Fn(function)


def parts(y: torch.Tensor, *others: torch.Tensor) -> None:
    y[:, 0] = 1
    y[0, 1:3] = 5
    y[..., -1] *= 2
    y[:, ::2] = 0.5
    y[y > 1] = -3
    y[1].zero_()


def diagonal(y: torch.Tensor) -> None:
    y.diagonal(1).copy_(torch.arange(float(y.diagonal(1).shape[-1])))


def put(*index: object, accumulate: bool = False) -> Fn:
    """`x[index] = values`, where ints pick the tensors that come behind the first."""

    def function(x: torch.Tensor, values: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        places = tuple(tensors[i] if isinstance(i, int) else i for i in index)
        return torch.ops.aten.index_put(x, places, values, accumulate)

    return Fn(function)


def reduce(kind: str, include: bool = True) -> Fn:
    return Fn(lambda x, i, s: x.scatter_reduce(0, i, s, kind, include_self=include))


SCATTER = (rand(3, 4), OFTEN, rand(2, 3))
CASES: dict[str, list[Case]] = {
    "scatter_elements": [
        (Fn(lambda x, i, s: x.scatter(1, i, s)), (rand(3, 4), ONCE, rand(2, 3))),
        (Fn(lambda x, i: x.scatter(-2, i, 7)), (WHOLE, ONCE)), (Fn(lambda x, i, s: x.scatter_add(0, i, s)), SCATTER),
        (Fn(lambda x, i, s: x.scatter(1, i, s, reduce="multiply")), (rand(3, 4), OFTEN, rand(2, 5))),
        (reduce("sum"), SCATTER), (reduce("prod"), SCATTER), (reduce("amax"), SCATTER),
        (reduce("amin", False), SCATTER),
        (reduce("mean"), SCATTER), (reduce("mean", False), SCATTER), (reduce("prod", False), SCATTER),
        (Fn(lambda x, i, s: x.index_add(-1, i, s, alpha=2)), (rand(3, 4), torch.tensor([1, 1]), rand(3, 2))),
        (Fn(lambda x, i, s: x.index_copy(0, i, s)), (rand(3, 4), LIST, rand(2, 4))),
        (Fn(lambda x, i: x.index_fill(1, i, -1)), (SEQUENCE[0], LIST)), (fill(parts), SEQUENCE), (fill(parts), ROWS),
        (Fn(lambda x, m, s: x.masked_scatter(m, s).index_fill(0, LIST, 1)), (rand(3, 4), MASK, rand(2, 3))),
    ],
    "scatter_nd": [
        (put(0), (rand(3, 4), rand(4), LIST)), (put(None, 0, accumulate=True), (rand(3, 4), rand(2, 2), GRID)),
        (put(0, 1), (SEQUENCE[0], rand(2, 6), torch.tensor([[0], [1]]), torch.tensor([1, -1]))),
        (put(0, None, 1), (rand(2, 3, 4), rand(2, 3), LIST - 1, LIST)),
        (put(None, 0, 1), (rand(2, 4, 5), rand(1), LIST, LIST)),
        (fill(diagonal), (rand(3, 4),)),
    ],
}  # fmt: skip

DIRECT: dict[str, list[Direct]] = {
    "scatter_nd": [
        ({"x": rand(3, 4), "i": torch.tensor([[0], [-1], [0]]), "u": rand(3, 4)},
         {"reduction": kind, "wrap": True},
         lambda x, i, u, name=name: x.index_reduce(0, i[:, 0] % 3, u, name))
        for kind, name in (("mul", "prod"), ("max", "amax"), ("min", "amin"))
    ] + [
        ({"x": rand(3, 4), "i": torch.tensor([[0, 1], [2, 3]], dtype=torch.int32), "u": rand(2)}, {},
         lambda x, i, u: x.index_put(tuple(i.long().T), u)),
        ({"x": WHOLE, "i": torch.tensor([[0, 1], [2, 3], [0, 1]]), "u": WHOLE[0, :3]}, {"reduction": "max"},
         lambda x, i, u: x.clone().index_put((i[1:, 0], i[1:, 1]), torch.maximum(x[[2, 0], [3, 1]], u[1:]))),
    ],
    "scatter_elements": [
        ({"x": rand(3, 4), "i": torch.tensor([[-1, 1]], dtype=torch.int32), "u": rand(1, 2)},
         {"axis": -1, "wrap": True},
         lambda x, i, u: x.scatter(1, i.long() % 4, u)),
    ],
}  # fmt: skip
