"""One weight in several places."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.micro_networks.network import Network


class TiedWeights(nn.Module):
    """Two layers share one weight: it must stay one."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.c.weight = self.b.weight
        self.d = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.d(F.relu(self.c(F.relu(self.b(F.relu(self.a(x))))))).mean((2, 3))


class TiedEmbedding(nn.Module):
    """The embedding is the last layer's weight as well: tokens stay, its width goes."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.a, self.b = nn.Embedding(11, 12), nn.Linear(12, 16), nn.Linear(16, 12)
        self.head = nn.Linear(12, 11, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.b(F.relu(self.a(self.tokens(x)))))


class SharedLayer(nn.Module):
    """One convolution and one norm run three times, as in a recurrent refinement."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.layer, self.norm = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for _ in range(3):
            x = F.relu(self.norm(self.layer(x)) + x)
        return self.head(x).mean((2, 3))


class Siamese(nn.Module):
    """Both halves of the input go through the same layers, their features are compared."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 10), nn.Linear(10, 4)

    def branch(self, x: Tensor) -> Tensor:
        return self.b(F.relu(self.a(x)).mean((2, 3)))

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.branch(x[..., :4]) - self.branch(x[..., 4:])).abs())


class Autoencoder(nn.Module):
    """The decoder is the encoder's weight transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.encoder, self.head = nn.Linear(6, 12), nn.Linear(12, 8), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.encoder(F.relu(self.before(x))))
        return self.head(F.relu(F.linear(x, self.encoder.weight.t())))


TYING = (
    Network(TiedWeights, (8,)),
    Network(TiedEmbedding, (12, 16), (5,), tokens=11),
    Network(SharedLayer, (8,)),
    Network(Siamese, (8, 10)),
    Network(Autoencoder, (8, 12), (6,)),
)
