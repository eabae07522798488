"""Cases of `msc_core/ops/indexing.py` and `scattering.py`."""

from __future__ import annotations

import torch

from tests.op_cases.inputs import IMAGE, ROWS, SEQUENCE, Case, Direct, Fn, rand

LIST, GRID = torch.tensor([2, 0, 1, 2]), torch.tensor([[-1, 0], [1, -2]])
CLASSES = torch.tensor([[3, 0], [1, 4]])
GATHERED = torch.tensor([[0, 1, 2], [2, 2, 0]])


def nd(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return x[tuple(index[..., i] for i in range(index.shape[-1]))]


CASES: dict[str, list[Case]] = {
    "take": [
        (Fn(lambda x, i: x.index_select(0, i)), (ROWS[0], LIST)),
        (Fn(lambda x, i: x.index_select(-1, i)), (SEQUENCE[0], LIST)),
        (Fn(lambda x, i: x[i]), (ROWS[0], GRID)), (Fn(lambda x, i: x[:, i]), (SEQUENCE[0], GRID)),
        (Fn(lambda x, i: x[..., i.int()]), (ROWS[0], GRID)), (Fn(torch.take), (ROWS[0], GRID)),
        (Fn(lambda x: x[:, [0, -1, 2]]), SEQUENCE),
        (Fn(lambda i, x: x[i]), (LIST, ROWS[0] > 0)),
    ],
    "gather_elements": [
        (Fn(lambda x, i: x.gather(0, i)), (rand(3, 4), GATHERED)),
        (Fn(lambda x, i: x.gather(-1, i)), (rand(3, 4), GATHERED)),
        (Fn(lambda x, i: torch.take_along_dim(x, i, 1)), (rand(2, 4), GRID)),
        (Fn(lambda x, i: torch.take_along_dim(x, i, 0)), (rand(2, 4), GRID[:, :1])),
        (Fn(lambda x: x.gather(1, (x > 0).long())), ROWS),
    ],
    "gather_nd": [
        (Fn(lambda x, i, j: x[i, j]), (SEQUENCE[0], GRID, LIST[1:3])),
        (Fn(lambda x, i, j: x[:, i, :, j]), (IMAGE[0], LIST, LIST)),
        (Fn(lambda x, i, j: x[:, i, j]), (IMAGE[0], GRID, LIST[1:3])),
        (Fn(lambda x: x[torch.arange(3), [0, 5, -1]]), ROWS),
    ],
}  # fmt: skip

DIRECT: dict[str, list[Direct]] = {
    "gather_nd": [
        ({"x": SEQUENCE[0], "i": torch.tensor([[[2], [0]], [[1], [2]]])}, {"batch_dims": 1},
         lambda x, i: torch.stack([x[b][i[b, :, 0]] for b in range(2)])),
        ({"x": SEQUENCE[0], "i": torch.tensor([[[-1], [0]], [[1], [-3]]])}, {"batch_dims": 1, "wrap": True},
         lambda x, i: torch.stack([x[b][i[b, :, 0]] for b in range(2)])),
        ({"x": SEQUENCE[0], "i": torch.tensor([[0, 1, 5], [1, 0, 0]], dtype=torch.int32)}, {}, nd),
    ],
    "gather_elements": [
        ({"x": rand(3, 4), "i": torch.tensor([[-1, 2], [0, -4]])}, {"axis": 1, "wrap": True},
         lambda x, i: x.gather(1, i % 4)),
        ({"x": rand(3, 4), "i": torch.tensor([[1, 2], [0, 0]], dtype=torch.int32)}, {"axis": -2},
         lambda x, i: x.gather(0, i.long())),
    ],
    "take": [({"x": rand(3, 4), "i": torch.tensor([[1, 2], [0, 0]], dtype=torch.uint8)}, {"axis": -1},
              lambda x, i: x[:, i.long()]),
             ({"x": rand(3, 4), "i": torch.tensor(-1)}, {"axis": -1, "wrap": True}, lambda x, i: x[:, -1])],
}  # fmt: skip
