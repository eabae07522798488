"""Cases of `msc_core/ops/recurrent.py`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from tests.op_cases.inputs import Case, Direct, rand

STEPS, BATCHES = rand(5, 3, 4), rand(3, 5, 4)


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


def operands(gates: int, states: int, directions: int = 1) -> dict[str, torch.Tensor | None]:
    """The inputs of a row: from 4 features to 6 units, states of zeros."""
    shapes = [(gates * 6, 4), (gates * 6, 6), (gates * 6,), (gates * 6,)] * directions
    absent = {f"h{i}": None for i in range(states)}
    return {"x": STEPS, **absent, **{f"w{i}": rand(*s) / 2 + i / 8 for i, s in enumerate(shapes)}}


def backwards(layer: Callable[..., tuple[torch.Tensor, ...]], states: int) -> Callable[..., object]:
    """A torch layer that reads its input from the end."""

    def run(x: torch.Tensor, *rest: torch.Tensor) -> object:
        zeros = torch.zeros(1, x.shape[1], 6)
        hx = (zeros, zeros) if states == 2 else zeros
        y, *last = layer(x.flip(0), hx, rest[states:], True, 1, 0.0, False, False, False)
        return y.flip(0), *last

    return run


def reset_before(x: torch.Tensor, h: torch.Tensor | None, *w: torch.Tensor) -> object:
    """A GRU as in the first paper, in both directions."""
    ends, results = [], []
    for direction in range(len(w) // 4):
        w_ih, w_hh, b_ih, b_hh = w[4 * direction : 4 * direction + 4]
        state = torch.zeros(x.shape[1], 6) if h is None else h[direction]
        steps = []
        for step in reversed(x) if direction else x:
            r, z, n = (step @ w_ih.T + b_ih).chunk(3, 1)
            r, z = (
                torch.sigmoid(a + state @ u.T + b)
                for a, u, b in zip((r, z), w_hh.split(6), b_hh.split(6), strict=False)
            )
            n = torch.tanh(n + (r * state) @ w_hh[12:].T + b_hh[12:])
            state = (1 - z) * n + z * state
            steps.append(state)
        results.append(torch.stack(steps[::-1] if direction else steps))
        ends.append(state)
    return torch.cat(results, 2), torch.stack(ends)


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

DIRECT: dict[str, list[Direct]] = {
    "lstm": [(operands(4, 2), {"direction": "reverse"}, backwards(torch.lstm, 2))],
    "gru": [
        (operands(3, 1), {"direction": "reverse"}, backwards(torch.gru, 1)),
        (operands(3, 1), {"reset_after": False}, reset_before),
        (
            operands(3, 1, 2) | {"h0": rand(2, 3, 6)}, {"direction": "bidirectional", "reset_after": False},
            reset_before,
        ),
    ],
    "rnn": [(operands(1, 1), {"direction": "reverse", "activation": "relu"}, backwards(torch.rnn_relu, 1))],
}  # fmt: skip
