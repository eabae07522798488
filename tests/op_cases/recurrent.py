"""Cases of `msc_core/ops/recurrent.py`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from tests.op_cases.inputs import Case, Direct, Fn, rand

STEPS, BATCHES = rand(5, 3, 4), rand(3, 5, 4)


def last(layer: nn.Module) -> nn.Module:
    """What is mostly read of a layer: its last step."""
    return Fn(lambda x, module=layer: module(x)[0][:, -1])


class Last(nn.Module):
    """A batch-first layer of which only the last step is read."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0][:, -1]


class States(nn.Module):
    """A layer whose initial states are inputs too."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor, *states: torch.Tensor) -> object:
        return self.layer(x, states if len(states) > 1 else states[0])


def weights(gates: int, directions: int = 1, biased: bool = True) -> dict[str, torch.Tensor]:
    """Weights of a layer from 4 features to 6 units, and its input."""
    shapes = [(gates * 6, 4), (gates * 6, 6), (gates * 6,), (gates * 6,)] * directions
    return {f"w{i}": rand(*s) / 2 for i, s in enumerate(shapes) if biased or len(s) > 1}


def reverse(layer: Callable[..., tuple[torch.Tensor, ...]], states: int) -> Callable[..., object]:
    """A torch layer that runs backwards, on the rows' operands."""

    def run(x: torch.Tensor, *w: torch.Tensor) -> object:
        zeros = torch.zeros(1, x.shape[1], 6)
        y, *_ = layer(x.flip(0), (zeros, zeros) if states == 2 else zeros, w, True, 1, 0.0, False, False, False)
        return y.flip(0)

    return run


CASES: dict[str, list[Case]] = {
    "lstm": [
        (nn.LSTM(4, 6), (STEPS,)),
        (Last(nn.LSTM(4, 6, num_layers=2, bidirectional=True, batch_first=True)), (BATCHES,)),
        (nn.LSTM(4, 6, bias=False, bidirectional=True), (rand(1, 3, 4),)),
        (States(nn.LSTM(4, 6, num_layers=2, dropout=0.5)), (STEPS, rand(2, 3, 6), rand(2, 3, 6))),
        (States(nn.LSTM(4, 6, bidirectional=True)), (STEPS, rand(2, 3, 6), rand(2, 3, 6))),
    ],
    "gru": [
        (nn.GRU(4, 6), (STEPS,)),
        (Last(nn.GRU(4, 6, num_layers=2, bidirectional=True, batch_first=True)), (BATCHES,)),
        (nn.GRU(4, 6, bias=False), (STEPS,)),
        (States(nn.GRU(4, 6, bidirectional=True)), (STEPS, rand(2, 3, 6))),
    ],
    "rnn": [
        (nn.RNN(4, 6), (STEPS,)),
        (Last(nn.RNN(4, 6, nonlinearity="relu", batch_first=True, bidirectional=True)), (BATCHES,)),
        (States(nn.RNN(4, 6, nonlinearity="relu", bias=False)), (STEPS, rand(1, 3, 6))),
    ],
}  # fmt: skip

DIRECT: dict[str, list[Direct]] = {}  # fmt: skip
