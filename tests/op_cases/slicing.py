"""Cases of `msc_core/ops/slicing.py` and `repeating.py`."""

from __future__ import annotations

import torch

from tests.op_cases.inputs import IMAGE, ROWS, SEQUENCE, Case, Direct, Fn, rand

WHOLE = (torch.arange(24).reshape(2, 3, 4),)

CASES: dict[str, list[Case]] = {
    "strided_slice": [
        (Fn(lambda x: x[:, 1:]), ROWS), (Fn(lambda x: x[..., -3:-1]), ROWS), (Fn(lambda x: x[1:99, ::2]), ROWS),
        (Fn(lambda x: x[:, -1]), SEQUENCE), (Fn(lambda x: x[:, 0, 1:5:3]), SEQUENCE), (Fn(lambda x: x[-1]), WHOLE),
        (Fn(torch.narrow, -1, 2, 3), ROWS), (Fn(torch.narrow, 1, -2, 2), ROWS), (Fn(lambda x: x[:, 2:2]), ROWS),
        (Fn(lambda x: x[:, :, 1:-1, 2:-2]), IMAGE), (Fn(torch.roll, (1, -2), (0, 1)), ROWS), (Fn(torch.roll, 7), ROWS),
        (Fn(torch.diagonal, 1), ROWS), (Fn(torch.diagonal, -1, 1, -1), SEQUENCE),
        (Fn(torch.Tensor.unfold, 1, 3, 2), ROWS), (Fn(lambda x: x.unfold(2, 3, 2).unfold(3, 2, 1)), IMAGE),
    ],
    "split": [
        (Fn(torch.split, 2, -1), SEQUENCE), (Fn(torch.split, 4, 1), ROWS), (Fn(torch.split, [1, 3, 2], 1), ROWS),
        (Fn(torch.chunk, 4, 1), ROWS), (Fn(torch.tensor_split, 4, 1), ROWS), (Fn(torch.unbind, 1), SEQUENCE),
        (Fn(torch.chunk, 2), (torch.arange(6),)), (Fn(lambda x: x.split(3, 2)[1]), SEQUENCE),
    ],
    "broadcast_to": [
        (Fn(lambda x: x.expand(2, -1, 6) + 0), ROWS), (Fn(torch.broadcast_to, (4, 3, 5)), (rand(3, 1),)),
        (Fn(lambda a, b: a.expand_as(b) * 1), (rand(3, 1), rand(2, 3, 4))),
        (Fn(torch.broadcast_to, (2, 3)), (torch.tensor(True),)),
    ],
    "tile": [
        (Fn(torch.Tensor.repeat, 2, 1, 3), SEQUENCE), (Fn(torch.Tensor.repeat, 2, 3, 2), ROWS),
        (Fn(torch.tile, (2,)), ROWS), (Fn(torch.Tensor.repeat, 2, 1), (torch.arange(3),)),
    ],
    "repeat": [
        (Fn(torch.repeat_interleave, 3, 1), SEQUENCE), (Fn(torch.repeat_interleave, 2, -1), ROWS),
        (Fn(torch.repeat_interleave, 2), ROWS),
    ],
    "flip": [
        (Fn(torch.flip, (0,)), ROWS), (Fn(torch.flip, (1, -1)), SEQUENCE), (Fn(torch.fliplr), WHOLE),
        (Fn(torch.rot90), ROWS),
    ],
    "tril": [(Fn(torch.tril), ROWS), (Fn(torch.tril, -1), SEQUENCE), (Fn(torch.tril, 2), WHOLE),
             (Fn(lambda x: (x > 0).tril()), ROWS)],
    "triu": [(Fn(torch.triu), ROWS), (Fn(torch.triu, 1), SEQUENCE), (Fn(torch.triu, -1), (WHOLE[0].int(),))],
}  # fmt: skip

DIRECT: dict[str, list[Direct]] = {
    "strided_slice": [
        ({"x": ROWS[0]}, {"axes": (-1, 0), "begin": (-4, 1), "end": (2**63 - 1, 3), "strides": (3, 1)},
         lambda x: x[1:3, -4::3]),
    ],
    "flip": [({"x": SEQUENCE[0]}, {"axes": (-1, 0)}, lambda x: x.flip((0, 2)))],
}  # fmt: skip
