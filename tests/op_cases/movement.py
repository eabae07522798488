"""Cases of `msc_core/ops/movement.py`."""

from __future__ import annotations

import torch
from torch import nn

from tests.op_cases.inputs import IMAGE, PAIR, ROWS, SEQUENCE, Case, Direct, Fn, rand

MIXED = (rand(2, 3), torch.arange(6).reshape(2, 3), torch.arange(6).reshape(2, 3) > 2)
NARROW = (rand(1, 3, 1, 2),)

CASES: dict[str, list[Case]] = {
    "flatten": [
        (nn.Flatten(), IMAGE), (nn.Flatten(2), IMAGE), (nn.Flatten(0, 1), IMAGE), (nn.Flatten(1, -2), IMAGE),
        (Fn(torch.ravel), ROWS),
    ],
    "reshape": [
        (Fn(torch.reshape, (2, 4, 63)), IMAGE),
        (Fn(torch.reshape, (8, -1)), IMAGE),
        (Fn(torch.Tensor.view, 2, 2, 2, 9, 7), IMAGE),
        (Fn(torch.unflatten, -1, (3, -1)), ROWS),
        (Fn(lambda a, b: a.view_as(b)), (rand(3, 4), rand(2, 6))),
    ],
    "squeeze": [
        (Fn(torch.squeeze), NARROW), (Fn(torch.squeeze, -2), NARROW), (Fn(torch.squeeze, (0, 2)), NARROW),
    ],
    "expand_dims": [
        (Fn(torch.unsqueeze, 0), ROWS), (Fn(torch.unsqueeze, -1), ROWS), (Fn(torch.unsqueeze, -2), ROWS),
        (Fn(lambda x: x[:, None, :, None]), ROWS),
    ],
    "permute_dims": [
        (Fn(torch.permute, (0, 2, 3, 1)), IMAGE), (Fn(torch.permute, (-1, 0, -2)), SEQUENCE),
        (Fn(torch.transpose, 1, -1), IMAGE), (Fn(torch.t), ROWS), (Fn(lambda x: x.mT), SEQUENCE),
        (Fn(torch.movedim, (0, -1), (1, 0)), SEQUENCE), (Fn(torch.swapaxes, 0, 2), SEQUENCE),
        (Fn(torch.permute, (1, 0)), MIXED[2:]),
    ],
    "concat": [
        (Fn(lambda *parts: torch.cat(parts, 1)), PAIR),
        (Fn(lambda *parts: torch.cat(parts, -1)), PAIR),
        (Fn(lambda x: torch.cat((x, x, x))), ROWS),
        (Fn(lambda *parts: torch.cat(parts, 1)), MIXED),
        (Fn(lambda x: torch.cat((torch.zeros(0), x, x), 1)), SEQUENCE),
        (Fn(lambda *parts: torch.stack(parts)), PAIR), (Fn(lambda *parts: torch.stack(parts, -1)), PAIR),
        (Fn(lambda a, b: torch.dstack((torch.hstack((a, b)), torch.vstack((a, b)).reshape(2, 4)))),
         (rand(2, 2), rand(2, 2))),
        (Fn(lambda a, b: torch.cat((torch.column_stack((a, b)), torch.vstack((a, b)).T,
                                    torch.dstack((a, b)).squeeze(0)))),
         (rand(3), rand(3))),
        (Fn(lambda *parts: torch.hstack(parts)), (rand(3), rand(2))),
    ],
}  # fmt: skip

DIRECT: dict[str, list[Direct]] = {
    "expand_dims": [({"x": rand(2, 3)}, {"axes": (0, -1)}, lambda x: x[None, ..., None])],
    "squeeze": [({"x": NARROW[0]}, {"axes": (-2, 0)}, lambda x: x.squeeze())],
}
