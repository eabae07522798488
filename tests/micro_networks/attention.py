"""Attention: heads and widths of heads, fused and separate, with the things that are added to scores."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.micro_networks.network import Network


class Attention(nn.Module):
    """Queries, keys and values by a layer each, `F.scaled_dot_product_attention`, a residual sum."""

    heads = 4
    values = 12
    causal = False

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Linear(6, 16), nn.LayerNorm(16)
        self.q, self.k, self.v = nn.Linear(16, 12), nn.Linear(16, 12), nn.Linear(16, self.values)
        self.project, self.head = nn.Linear(self.values, 16), nn.Linear(16, 4)

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        y = self.norm(x)
        y = self.attend(self.split(self.q(y)), self.split(self.k(y)), self.split(self.v(y)))
        return self.head(x + self.project(y.transpose(1, 2).flatten(2)))


class WideValues(Attention):
    """Values are wider than queries and keys."""

    values = 20


class CausalAttention(Attention):
    """Each token attends to itself and those before."""

    causal = True


class WrittenAttention(Attention):
    """Scores, softmax and sum written out."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ((q @ k.transpose(-2, -1)) * 0.5).softmax(-1) @ v


class MaskedAttention(Attention):
    """Written out, with a causal mask from a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(5, 5, dtype=torch.bool).tril())

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.einsum("bhld,bhmd->bhlm", q, k) / 2
        return torch.einsum("bhlm,bhmd->bhld", scores.masked_fill(~self.mask, float("-inf")).softmax(-1), v)


class BiasedAttention(Attention):
    """A bias for each head and pair of positions."""

    pruning_axes = {"bias": 1}  # where tools that have to be told look for its channels  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(1, 4, 5, 5))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias)


class RelativeBias(Attention):
    """Swin's bias: a table of (distances, heads), picked by a constant index."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(9, 4))
        self.register_buffer("index", (torch.arange(5)[:, None] - torch.arange(5)[None] + 4).flatten())

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        bias = self.table[self.index].view(5, 5, -1).permute(2, 0, 1)
        return ((q @ k.transpose(-2, -1)) * 0.5 + bias.unsqueeze(0)).softmax(-1) @ v


class CosineAttention(Attention):
    """Normalized queries and keys, and a learned temperature for each head, as in SwinV2."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.rand(4, 1, 1))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        return (scores * self.temperature.exp()).softmax(-1) @ v


class NormalizedAttention(Attention):
    """RMS norms of queries and keys over the width of a head."""

    def __init__(self) -> None:
        super().__init__()
        self.nq, self.nk = nn.RMSNorm(3), nn.RMSNorm(3)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(self.nq(q), self.nk(k), v)


class RotaryAttention(Attention):
    """Rotary position code by halves: widths go in pairs."""

    heads = 2

    def __init__(self) -> None:
        super().__init__()
        angles = torch.arange(5)[:, None] * torch.tensor([1.0, 0.3, 0.1])
        self.register_buffer("cos", torch.cat([angles.cos(), angles.cos()], -1))
        self.register_buffer("sin", torch.cat([angles.sin(), angles.sin()], -1))

    def rotate(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, -1)
        return x * self.cos + torch.cat([-right, left], -1) * self.sin

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v)


class TalkingHeads(Attention):
    """Layers mix the scores of heads before the softmax and behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.behind = nn.Conv2d(4, 6, 1), nn.Conv2d(6, 4, 1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.behind(self.before((q @ k.transpose(-2, -1)) * 0.5).softmax(-1)) @ v


class GroupedQuery(nn.Module):
    """Two heads of keys and values for four heads of queries, by `enable_gqa`."""

    heads, shared = 4, 2

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.q = nn.Linear(6, 16), nn.Linear(16, 24, bias=False)
        self.k, self.v = nn.Linear(16, 12, bias=False), nn.Linear(16, 12, bias=False)
        self.project, self.head = nn.Linear(24, 16, bias=False), nn.Linear(16, 4)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        q = self.q(x).view(*x.shape[:2], self.heads, -1).transpose(1, 2)
        k, v = (layer(x).view(*x.shape[:2], self.shared, -1).transpose(1, 2) for layer in (self.k, self.v))
        return self.head(x + self.project(self.attend(q, k, v).transpose(1, 2).flatten(2)))


class RepeatedKeys(GroupedQuery):
    """The same with keys and values expanded and viewed, as transformers does."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        batch, heads, length, width = k.shape
        k, v = (t[:, :, None].expand(batch, heads, 2, length, width).reshape(batch, -1, length, width) for t in (k, v))
        return F.scaled_dot_product_attention(q, k, v)


class MultiQuery(GroupedQuery):
    """One head of keys and values for all heads of queries."""

    heads, shared = 4, 1

    def __init__(self) -> None:
        super().__init__()
        self.k, self.v = nn.Linear(16, 6, bias=False), nn.Linear(16, 6, bias=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ((q @ k.transpose(-2, -1)) * 0.4).softmax(-1) @ v


class FusedQkv(nn.Module):
    """A vision transformer's block: one layer for queries, keys and values, then an MLP, pre-norm."""

    heads = 4

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.n1, self.n2 = nn.Linear(6, 16), nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.project = nn.Linear(16, 48), nn.Linear(16, 16)
        self.a, self.b, self.head = nn.Linear(16, 24), nn.Linear(24, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).reshape(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, -1)
        x = x + self.project(y)
        return self.head((x + self.b(F.gelu(self.a(self.n2(x))))).mean(1))


class ChunkedQkv(nn.Module):
    """GPT-2's block: the fused layer is split in three, then into heads; causal."""

    heads = 4

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(11, 16), nn.Embedding(5, 16)
        self.norm, self.qkv, self.project = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.last, self.head = nn.LayerNorm(16), nn.Linear(16, 11)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tokens(x) + self.positions(torch.arange(5))
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (part.reshape(*part.shape[:2], self.heads, -1).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(self.last(x + self.project(y.transpose(1, 2).flatten(2))))


class ConvolutionalQkv(nn.Module):
    """Queries, keys and values by a pointwise and a depthwise convolution over all three; attention over pixels."""

    heads = 2

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, 4)
        self.qkv, self.pool = nn.Conv2d(8, 24, 1, bias=False), nn.Conv2d(24, 24, 3, padding=1, groups=24, bias=False)
        self.project, self.head = nn.Conv2d(8, 8, 1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        batch, _, height, width = x.shape
        parts = self.pool(self.qkv(x)).chunk(3, 1)
        q, k, v = (part.reshape(batch, self.heads, -1, height * width).transpose(2, 3) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v).transpose(2, 3).reshape(batch, -1, height, width)
        return self.head((x + self.project(y)).mean((2, 3)))


class Windows(nn.Module):
    """Swin's block: the map is rolled and cut into windows, which attend within themselves, and put together again."""

    heads = 2

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 2, 2), nn.LayerNorm(8)
        self.qkv, self.project, self.head = nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).permute(0, 2, 3, 1)
        batch, height, width, _ = x.shape
        y = torch.roll(self.norm(x), (-1, -1), (1, 2)).view(batch, height // 2, 2, width // 2, 2, -1)
        y = self.qkv(y.permute(0, 1, 3, 2, 4, 5).reshape(batch * height * width // 4, 4, -1))
        q, k, v = y.unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        y = self.project(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        y = y.view(batch, height // 2, width // 2, 2, 2, -1).permute(0, 1, 3, 2, 4, 5).reshape(batch, height, width, -1)
        return self.head((x + torch.roll(y, (1, 1), (1, 2))).mean((1, 2)))


class LinearAttention(nn.Module):
    """Attention without a softmax over tokens: keys times values first, divided by the sum of keys (EfficientViT)."""

    heads = 2
    feature = staticmethod(F.relu)

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv, self.project = nn.Linear(6, 12), nn.Linear(12, 36), nn.Linear(12, 12)
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).reshape(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = self.feature(q), self.feature(k)
        total = q @ k.sum(2).unsqueeze(-1) + 1
        y = (q @ (k.transpose(-2, -1) @ v)) / total
        return self.head(x + self.project(y.transpose(1, 2).reshape(batch, length, -1)))


class FeatureMaps(LinearAttention):
    """Queries and keys through elu + 1: a width that is masked still adds one to every score, so widths stay."""

    feature = staticmethod(lambda x: F.elu(x) + 1)


class LearnedQueries(nn.Module):
    """Cross attention of learned queries, as in Perceiver and in attention pooling."""

    heads = 2

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.queries = nn.Linear(6, 12), nn.Parameter(torch.randn(1, 3, 12))
        self.q, self.k, self.v = nn.Linear(12, 8), nn.Linear(12, 8), nn.Linear(12, 10)
        self.project, self.head = nn.Linear(10, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        queries = self.queries.expand(x.shape[0], -1, -1)
        inputs = self.q(queries), self.k(x), self.v(x)
        q, k, v = (t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in inputs)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.head(queries + self.project(y))


class ClassToken(nn.Module):
    """A learned token in front, a position code added, attention, and the first token read."""

    heads = 2

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.token = nn.Conv2d(3, 12, 4, 4), nn.Parameter(torch.randn(1, 1, 12))
        self.positions, self.qkv = nn.Parameter(torch.randn(1, 5, 12)), nn.Linear(12, 36)
        self.project, self.head = nn.Linear(12, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.head((x + self.project(y))[:, 0])


class TorchEncoder(nn.Module):
    """PyTorch's own encoder layer, with its `nn.MultiheadAttention`."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layer = nn.Linear(6, 16), nn.TransformerEncoderLayer(16, 4, 24, 0.0, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.embed(x)).mean(1))


ATTENTION = (
    Network(Attention, (3, 3, 4, 16), (5, 6)),
    Network(WideValues, (3, 4, 5, 16), (5, 6)),
    Network(CausalAttention, (3, 3, 4, 16), (5, 6)),
    Network(WrittenAttention, (3, 3, 4, 16), (5, 6)),
    Network(MaskedAttention, (3, 3, 4, 16), (5, 6)),
    Network(BiasedAttention, (3, 3, 4, 16), (5, 6)),
    Network(RelativeBias, (3, 3, 4, 16), (5, 6)),
    Network(CosineAttention, (3, 3, 4, 16), (5, 6)),
    Network(NormalizedAttention, (3, 3, 4, 16), (5, 6)),
    Network(RotaryAttention, (2, 3, 6, 16), (5, 6)),
    Network(TalkingHeads, (3, 3, 4, 4, 6, 16), (5, 6)),
    Network(GroupedQuery, (2, 2, 6, 6, 16), (5, 6)),
    Network(RepeatedKeys, (2, 2, 6, 6, 16), (5, 6)),
    Network(MultiQuery, (4, 6, 6, 16), (5, 6)),
    Network(FusedQkv, (4, 4, 16, 24), (5, 6)),
    Network(ChunkedQkv, (4, 4, 4, 16), (5,), tokens=11),
    Network(ConvolutionalQkv, (2, 4, 4, 8)),
    Network(Windows, (2, 4, 8)),
    Network(LinearAttention, (2, 6, 12), (5, 6)),
    Network(FeatureMaps, (2, 12), (5, 6), refused="not zero"),
    Network(LearnedQueries, (2, 4, 5, 12, 12), (5, 6)),
    Network(ClassToken, (2, 6, 12)),
    Network(TorchEncoder, (4, 4, 16, 24), (5, 6)),
)
