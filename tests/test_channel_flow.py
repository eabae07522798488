"""How channels flow through single rows: a function between two layers, which channels can go, that it is exact."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from msc_core.channels import Channels, divisor
from msc_core.codegen.torch import to_torch
from msc_core.errors import InvalidPlan
from msc_core.frontends.torch import from_torch
from msc_core.ir import MSCGraph
from msc_core.tools.prune import prune
from tests.masked_graph import masked

Function = Callable[["Between", torch.Tensor], torch.Tensor]


class Between(nn.Module):
    """A convolution to 12 channels, a function of its output, and a convolution of what that leaves."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.a = nn.Conv2d(3, 12, 1)
        self.order = nn.Buffer(torch.tensor([7, 3, 3, 0, 11, 5, 2, 9]))
        self.negative = nn.Buffer(torch.tensor([[-1, 0], [4, -3]]))
        self.index = nn.Buffer(torch.randint(4, (1, 12, 2, 4)))
        self.scale, self.shift = nn.Parameter(torch.rand(12, 1, 1)), nn.Parameter(torch.rand(1))
        self.slope, self.gate = nn.Parameter(torch.rand(12)), nn.Conv2d(12, 12, 1)
        self.mix = nn.Parameter(torch.randn(12, 5))
        with torch.no_grad():
            count = function(self, torch.zeros(2, 12, 4, 4)).shape[1]
        self.b, self.c = nn.Conv2d(count, 6, 1), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(F.relu(self.b(self.function(self, torch.tanh(self.a(x)))))).mean((2, 3))


def window(x: torch.Tensor) -> torch.Tensor:
    n, c, h, w = x.shape
    return x.view(n, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 3, 5, 1).reshape(-1, 4, c)


def kernels(x: torch.Tensor, features: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Positions as channels: how alike each is to every other one, by features of their channels."""
    y = features(x.flatten(2))
    return (y.mT @ y).view(-1, 16, 4, 4)


def attend(x: torch.Tensor, heads: int) -> torch.Tensor:
    """Heads beside the batch in one axis, as torch's own attention has them."""
    n, c, h, w = x.shape
    q = x.flatten(2).permute(2, 0, 1).reshape(h * w, n * heads, c // heads).transpose(0, 1)
    y = F.softmax(q @ q.transpose(1, 2) * 0.3, -1) @ q
    return y.transpose(0, 1).reshape(h * w, n, c).permute(1, 2, 0).reshape(n, c, h, w)


# function -> the sizes of the groups that can go between the layers; the 6 behind them always can
CASES: dict[str, tuple[Function, tuple[int, ...]]] = {
    "identity": (lambda m, x: x, (12,)),
    "slice": (lambda m, x: x[:, 2:10], (8,)),
    "slice with a stride": (lambda m, x: x[:, 1::2], (6,)),
    "slice with an uneven stride": (lambda m, x: x[:, ::5], ()),
    "last channels": (lambda m, x: x[:, -5:], (5,)),
    "one channel": (lambda m, x: x * x[:, 3:4], (11,)),
    "select": (lambda m, x: x[:, 3].unsqueeze(1), ()),
    "flip": (lambda m, x: torch.cat([x, x.flip(1)], 1), (12,)),
    "roll": (lambda m, x: torch.cat([x.roll(5, 1), x], 1), (5, 7)),
    "roll in space": (lambda m, x: x.roll((1, -1), (2, 3)), (12,)),
    "split": (lambda m, x: torch.cat(x.split([3, 4, 5], 1)[::-1], 1), (3, 4, 5)),
    "chunks that are multiplied": (lambda m, x: x.chunk(2, 1)[0] * x.chunk(2, 1)[1], (6,)),
    "unbind": (lambda m, x: sum(x.view(-1, 3, 4, 4, 4).unbind(1)), (4,)),
    "constant index": (lambda m, x: x[:, m.order], (6,)),
    "constant index in a grid": (lambda m, x: x[:, m.negative].flatten(1, 2), (2, 2)),
    "embedding table": (lambda m, x: x + m.mix[m.order[:1], :1, None, None], (12,)),
    "gather along width": (lambda m, x: x.gather(2, m.index.expand(x.shape[0], 12, 2, 4)), (12,)),
    "gather along channels": (lambda m, x: x.gather(1, (x[:, :2] > 0).long()), ()),
    "index computed": (lambda m, x: x[:, (x[0, :2, 0, 0] > 0).long()], ()),
    "scatter along width": (lambda m, x: x.scatter(3, (x[..., :1] > 0).long(), x[..., :1] * 2), (12,)),
    "tile": (lambda m, x: x.repeat(1, 2, 1, 1), (12,)),
    "repeat": (lambda m, x: x.repeat_interleave(3, 1), (12,)),
    "stack": (lambda m, x: torch.stack([x, x * 2], 2).flatten(1, 2), (12,)),
    "stack in front": (lambda m, x: torch.stack([x, x * 2], 1).flatten(1, 2), (12,)),
    "pad in space": (lambda m, x: F.pad(x, (1, 0, 2, 1)), (12,)),
    "pad of channels": (lambda m, x: F.pad(x, (0, 0, 0, 0, 2, 3)), (12,)),
    "pad of channels, added": (lambda m, x: F.pad(x[:, 4:], (0, 0, 0, 0, 2, 2)) + x, ()),
    "pad of channels with copies": (lambda m, x: F.pad(x[:, None], (0, 0, 0, 0, 1, 1), "replicate")[:, 0], ()),
    "expand": (lambda m, x: x * m.shift.expand(12).view(12, 1, 1), (12,)),
    "zeros beside": (lambda m, x: torch.cat([x, x.new_zeros(x.shape[0], 2, 4, 4)], 1), (2, 12)),
    "full": (lambda m, x: x + torch.full((12, 1, 1), 0.5), (12,)),
    "channel shuffle": (lambda m, x: x.view(-1, 3, 4, 4, 4).transpose(1, 2).reshape(-1, 12, 4, 4), (3, 4)),
    "pixel shuffle": (lambda m, x: F.pixel_shuffle(x, 2), (3,)),
    "pixel unshuffle": (lambda m, x: F.pixel_unshuffle(x, 2), (12,)),
    "space to depth": (lambda m, x: torch.cat([x[..., ::2, ::2], x[..., 1::2, 1::2]], 1), (12,)),
    "glu": (lambda m, x: F.glu(x, 1), (6,)),
    "prelu": (lambda m, x: F.prelu(x, m.slope), (12,)),
    "squeeze and excite": (lambda m, x: x * torch.sigmoid(m.gate(x.mean((2, 3), keepdim=True))), (12,)),
    "parameters": (lambda m, x: torch.where(x > m.shift, x * m.scale, x), (12,)),
    "layer norm": (lambda m, x: F.layer_norm(x.movedim(1, -1), (12,)).movedim(-1, 1), (12,)),
    "layer norm of a map": (lambda m, x: F.layer_norm(x, (12, 4, 4)), (12,)),
    "group norm": (lambda m, x: F.group_norm(x, 3, m.slope), (3, 4)),
    "instance norm": (lambda m, x: F.instance_norm(x), (12,)),
    "softmax in space": (lambda m, x: x.flatten(2).softmax(-1).view(x.shape), (12,)),
    "softmax of channels": (lambda m, x: x.softmax(1), ()),
    "sum of channels": (lambda m, x: x.sum(1, keepdim=True), (12,)),
    "sum of gates": (lambda m, x: torch.sigmoid(x).sum(1, keepdim=True), ()),
    "sum of channels padded with ones": (lambda m, x: F.pad(x, (1, 1), value=1.0).sum(1, keepdim=True), ()),
    "sum of channels padded with zeros": (lambda m, x: F.pad(x, (1, 1)).sum(1, keepdim=True), (12,)),
    "mean of channels": (lambda m, x: x.mean(1, keepdim=True), ()),
    "largest channel": (lambda m, x: x.amax(1, keepdim=True), ()),
    "normalized along channels": (lambda m, x: F.normalize(x, dim=1), (12,)),
    "linear attention": (lambda m, x: kernels(x, F.relu), (12,)),
    "linear attention with features that are never zero": (lambda m, x: kernels(x, lambda y: F.elu(y) + 1), ()),
    "sorted channels": (lambda m, x: x.sort(1)[0], ()),
    "cumulated channels": (lambda m, x: x.cumsum(1), ()),
    "matrix product": (lambda m, x: torch.einsum("nchw,ck->nkhw", x, m.mix), (5, 12)),
    "product with itself": (lambda m, x: (x.flatten(2).mT @ x.flatten(2)).view(-1, 16, 4, 4), (12,)),
    "windows": (lambda m, x: window(x).transpose(1, 2).unsqueeze(-1), (12,)),
    "heads beside the batch": (lambda m, x: attend(x, 3), (3, 4)),
    "grid cut unevenly": (lambda m, x: x.reshape(-1, 8, 4, 6), ()),
    "added to itself in another grid": (
        lambda m, x: x + x.view(-1, 3, 4, 4, 4).transpose(1, 2).reshape(-1, 12, 4, 4), (),
    ),
}  # fmt: skip


def imported(name: str) -> tuple[MSCGraph, torch.Tensor]:
    x = torch.randn(3, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    return from_torch(Between(CASES[name][0]).eval(), x, dynamic_shapes=({0: "N"},)), x


def run(graph: MSCGraph, x: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        return to_torch(graph).eval()(x).numpy()


@pytest.mark.parametrize("name", CASES)
def test_pruned_equals_masked(name: str) -> None:
    graph, x = imported(name)
    sizes = [g.size for g in Channels(graph, divisor=1).groups if not g.reason]
    assert sorted(sizes) == sorted([*CASES[name][1], 6])
    for seed in range(3):
        rng = np.random.default_rng(seed)
        channels = Channels(graph, divisor=1)
        kept = {
            g.name: np.sort(rng.permutation(g.size)[: max(1, g.size - 1 - seed)])
            for g in channels.groups
            if not g.reason
        }
        smaller = prune(graph, kept, channels)
        np.testing.assert_allclose(run(smaller, x), run(masked(graph, kept, channels), x), rtol=1e-5, atol=1e-6)
        graph = smaller


def test_refusals_say_what_is_wrong_and_come_first() -> None:
    graph, _ = imported("softmax of channels")
    pinned = next(g for g in Channels(graph).groups if "softmax" in g.reason)
    for kept, message in [
        ({"b1": [0]}, "no channel group 'b1'.*'b'"),
        ({"b": [0, 6]}, "channel 6 of group 'b', which has 6"),
        ({"b": [-1]}, "channel -1 of group 'b'"),
        ({"b": [1, 1]}, "named twice"),
        ({"b": []}, "removes every position"),
        ({pinned.name: [0]}, f"group '{pinned.name}' cannot be pruned: .*softmax"),
    ]:
        with pytest.raises(InvalidPlan, match=message):
            prune(graph, kept)


@pytest.mark.parametrize(
    ("target", "precision", "step"),
    [("onnxruntime", "", 8), ("onnxruntime", "int8", 16), ("tensorrt:fp16", "", 8), ("tensorrt:int8", "", 32),
     ("tvm:llvm -mcpu=native", "", 16), ("somewhere", "", 8)],
)  # fmt: skip
def test_divisors_of_targets(target: str, precision: str, step: int) -> None:
    assert divisor(target, precision) == step
