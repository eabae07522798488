"""Recurrent layers and cells between layers: hidden units and inputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.micro_networks.network import Network


class Lstm(nn.Module):
    """Linear, recurrent layer, layer norm, linear."""

    kind: type[nn.RNNBase] = nn.LSTM
    layers, bidirectional = 1, False

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(6, 10)
        self.layer = self.kind(10, 8, num_layers=self.layers, bidirectional=self.bidirectional, batch_first=True)
        self.norm = nn.LayerNorm(16 if self.bidirectional else 8)
        self.head = nn.Linear(self.norm.normalized_shape[0], 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.layer(F.relu(self.before(x)))[0]))


class BidirectionalLstm(Lstm):
    """Both directions: hidden units of each."""

    bidirectional = True


class StackedLstm(Lstm):
    """Two layers in both directions: the second reads both directions of the first."""

    layers, bidirectional = 2, True


class Gru(Lstm):
    """The same with a GRU."""

    kind = nn.GRU


class StackedGru(Lstm):
    """Two layers of a GRU."""

    kind, layers = nn.GRU, 2


class BidirectionalGru(Lstm):
    """Both directions of a GRU."""

    kind, bidirectional = nn.GRU, True


class Rnn(Lstm):
    """Elman's network."""

    kind = nn.RNN


class Tagger(nn.Module):
    """Embeddings, an LSTM in both directions, a label for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(11, 10), nn.Linear(16, 4)
        self.layer = nn.LSTM(10, 8, bidirectional=True, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.tokens(x))[0])


class FinalState(nn.Module):
    """The last hidden states of both directions side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.GRU(6, 8, bidirectional=True, batch_first=True), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        state = self.layer(x)[1]
        return self.head(torch.cat([state[0], state[1]], 1))


class LastStep(nn.Module):
    """The output of the last step alone, by a negative index."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.a, self.head = nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.a(self.layer(x)[0][:, -1])))


class ResidualLstm(nn.Module):
    """The input of the layer is added to its output: inputs and hidden units are one group."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.layer, self.head = nn.Linear(6, 8), nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        return self.head(x + self.layer(x)[0])


class Crnn(nn.Module):
    """Convolutions whose columns are a sequence, then a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.layer = nn.Conv2d(3, 8, 3, padding=1), nn.GRU(16, 6, batch_first=True)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.a(x)), (4, 1)).permute(0, 3, 1, 2).flatten(2)
        return self.head(self.layer(x)[0])


class Cell(nn.Module):
    """A GRU cell for three steps, its state starting at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.cell, self.head = nn.Linear(6, 10), nn.GRUCell(10, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for step in self.before(x[:, :3]).unbind(1):
            state = self.cell(step, state)
        return self.head(state)


class WrittenLstm(nn.Module):
    """An LSTM cell written out: the gates are quarters of one layer's output."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.states, self.head = nn.Linear(6, 32), nn.Linear(8, 32, bias=False), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        gates = self.inputs(x)
        forget, keep, new, out = gates[:, 0].chunk(4, 1)
        memory = torch.sigmoid(keep) * torch.tanh(new)
        state = torch.sigmoid(out) * torch.tanh(memory)
        for step in (1, 2):
            forget, keep, new, out = (gates[:, step] + self.states(state)).chunk(4, 1)
            memory = torch.sigmoid(forget) * memory + torch.sigmoid(keep) * torch.tanh(new)
            state = torch.sigmoid(out) * torch.tanh(memory)
        return self.head(state)


RECURRENT = (
    Network(Lstm, (8, 10), (4, 6)),
    Network(BidirectionalLstm, (8, 10), (4, 6)),
    Network(StackedLstm, (8, 8, 10), (4, 6)),
    Network(Gru, (8, 10), (4, 6)),
    Network(StackedGru, (8, 8, 10), (4, 6)),
    Network(BidirectionalGru, (8, 10), (4, 6)),
    Network(Rnn, (8, 10), (4, 6)),
    Network(Tagger, (8, 10), (4,), tokens=11),
    Network(FinalState, (8,), (4, 6)),
    Network(LastStep, (6, 8), (4, 6)),
    Network(ResidualLstm, (8,), (4, 6)),
    Network(Crnn, (6, 8)),
    Network(Cell, (8, 10), (4, 6)),
    Network(WrittenLstm, (8,), (4, 6)),
)
