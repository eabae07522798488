"""Cases of `msc_core/ops/softmax.py`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.op_cases.inputs import IMAGE, ROWS, SEQUENCE, Case, Direct, Fn, rand

LOGS = torch.log_softmax(rand(5, 3), -1)
LABELS = torch.tensor([0, 2, 1, 2, 0])
PLANE = (torch.log_softmax(rand(2, 3, 4), 1), torch.tensor([[0, 1, 2, 2], [1, 0, 1, 2]]))
WEIGHT = torch.tensor([0.5, 2.0, 1.5])


def point_losses(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Those that compare two tensors, without the broadcasting that `F` does first."""
    aten = torch.ops.aten
    smooth = aten.smooth_l1_loss(a, b, 2, 0.7) + aten.smooth_l1_loss(a, b, 1, 0.0)
    return aten.mse_loss(a, b, 0) + aten.l1_loss(a, b) + aten.huber_loss(a, b, 1, 0.4) + smooth


CASES: dict[str, list[Case]] = {
    "softmax": [
        (nn.Softmax(-1), IMAGE), (nn.Softmax(1), IMAGE), (Fn(torch.softmax, 0), (torch.tensor(2.5),)),
        (Fn(torch.softmax, 1, dtype=torch.float64), ROWS), (nn.Softmin(1), (20 * ROWS[0],)),
    ],
    "log_softmax": [(nn.LogSoftmax(-1), SEQUENCE), (nn.LogSoftmax(1), (20 * IMAGE[0],))],
    "nll_loss": [
        (Fn(F.nll_loss), (LOGS, LABELS)), (Fn(F.nll_loss, reduction="none"), PLANE),
        (Fn(F.nll_loss, reduction="sum", ignore_index=2), (LOGS, LABELS)),
        (Fn(lambda x, y, w: F.nll_loss(x, y, w, ignore_index=2)), (*PLANE, WEIGHT)),
        (Fn(lambda x, y, w: F.cross_entropy(x, y, w)), (5 * PLANE[0], PLANE[1], WEIGHT)),
        (Fn(lambda x, y: F.cross_entropy(x, y) + F.nll_loss(x, torch.tensor(1))), (rand(3), torch.tensor(2))),
        (Fn(lambda x, y, z: F.nll_loss(x, y) + F.cross_entropy(x, z, label_smoothing=0.1)), (LOGS, LABELS, LOGS.exp())),
        (Fn(lambda x, y, a, b: F.nll_loss(x, y) + point_losses(a, b)),
         (LOGS, LABELS, ROWS[0], rand(6, 3).T.clone())),
    ],
}  # fmt: skip

DIRECT: dict[str, list[Direct]] = {}
