"""The 66 subjects of MSC's graph builder tests, anew: each is imported, saved, loaded, translated and stays equal.

Every subject runs with fixed sizes and, where its first axis can be one, with a symbolic batch of 1 and of 3.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from msc_core import MSCGraph, build, from_torch, to_torch
from tests.op_cases.inputs import Fn, rand
from tests.test_ops import arrays

IMAGE, SEQUENCE, ROWS, VECTOR = (rand(2, 3, 10, 10),), (rand(2, 3, 10),), (rand(2, 10),), (rand(6),)
PAIR = (rand(2, 5), rand(2, 5))
INDICES = (torch.randint(0, 10, (2, 4), generator=torch.Generator().manual_seed(0)),)
LABELS = (torch.tensor([1, 3]),)


def masked_fill(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[y < 0] = 0.5
    return y


def inplace_fill(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[:, 0] = 1.5
    y.add_(1)
    return y


class Attention(nn.Module):
    """`scaled_dot_product_attention` with and without a mask."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)


class KeepParams(nn.Module):
    """Two layers that share their parameters' names with the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.norm = nn.BatchNorm2d(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.conv(x))


HEADS = (rand(2, 2, 5, 8), rand(2, 2, 6, 8), rand(2, 2, 6, 8))

# Subject -> (module, inputs). Those in STATIC make their outputs from fixed sizes alone.
SUBJECTS: dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]] = {
    "conv1d": (nn.Conv1d(3, 6, 7), SEQUENCE),
    "conv2d": (nn.Conv2d(3, 6, 7, bias=False), IMAGE),
    "linear": (nn.Linear(10, 7), ROWS),
    "bmm": (Fn(torch.bmm), (rand(2, 4, 5), rand(2, 5, 6))),
    "baddbmm": (Fn(torch.baddbmm, beta=0.5, alpha=2), (rand(2, 4, 6), rand(2, 4, 5), rand(2, 5, 6))),
    "relu": (nn.ReLU(), ROWS),
    "relu6": (nn.ReLU6(), ROWS),
    "maxpool2d": (nn.MaxPool2d(2, stride=1, dilation=2), IMAGE),
    "avgpool2d": (nn.AvgPool2d(4, stride=2, padding=2, ceil_mode=True), IMAGE),
    "adaptive_avgpool2d": (nn.AdaptiveAvgPool2d((10, 10)), IMAGE),
    "flatten": (nn.Flatten(2, -1), IMAGE),
    "batchnorm2d": (nn.BatchNorm2d(3), IMAGE),
    "embedding": (nn.Embedding(10, 3), INDICES),
    "dropout": (nn.Dropout(0.5), IMAGE),
    "layernorm": (nn.LayerNorm((10, 10)), IMAGE),
    "functional_layernorm": (Fn(F.layer_norm, (10,)), ROWS),
    "groupnorm": (nn.GroupNorm(3, 3), IMAGE),
    "cross_entropy": (nn.CrossEntropyLoss(ignore_index=-100), (rand(2, 10), *LABELS)),
    "functional_cross_entropy": (Fn(F.cross_entropy, reduction="none"), (rand(2, 10), *LABELS)),
    "silu": (nn.SiLU(), IMAGE),
    "softmax": (nn.Softmax(dim=1), IMAGE),
    "add": (Fn(lambda a, b: a + b + 1), PAIR),
    "subtract": (Fn(lambda a, b: 1 - (a - b)), PAIR),
    "multiply": (Fn(lambda a, b: a * b * 2), PAIR),
    "divide": (Fn(lambda a, b: a / b / 3), PAIR),
    "floor_divide": (Fn(lambda a, b: a // b), PAIR),
    "power": (Fn(lambda a: a**2), ROWS),
    "less": (Fn(lambda a, b: a < b), PAIR),
    "size": (Fn(lambda x: x.reshape(x.size(0), -1) * x.size(1)), IMAGE),
    "squeeze": (Fn(lambda x: x.squeeze(1)), (rand(2, 1, 10),)),
    "unsqueeze": (Fn(lambda x: x.unsqueeze(1)), ROWS),
    "getattr": (Fn(lambda x: x.reshape(x.shape[0], x.shape[1] * x.shape[2], -1)), IMAGE),
    "getitem": (Fn(lambda x: (x[:, 0, 1:9:2], x[:, -1], x[..., None, :, 2])), IMAGE),
    "sin_cos": (Fn(lambda x: (torch.sin(x), torch.cos(x))), ROWS),
    "exp_sqrt": (Fn(lambda x: torch.sqrt(torch.exp(x))), ROWS),
    "sigmoid_round": (Fn(lambda x: torch.round(torch.sigmoid(x) * 10)), ROWS),
    "gelu": (nn.GELU(), IMAGE),
    "tanh": (Fn(torch.tanh), ROWS),
    "clamp": (Fn(torch.clamp, min=0.1, max=0.5), ROWS),
    "interpolate": (Fn(lambda x: F.interpolate(x, (5, 5))), IMAGE),
    "addmm": (Fn(lambda x, a, b: torch.addmm(x, a, b, beta=0.8, alpha=0.5)), (rand(2, 4), rand(2, 5), rand(5, 4))),
    "split": (Fn(lambda x: torch.split(x, 1, dim=1)), IMAGE),
    "unbind": (Fn(lambda x: torch.unbind(x, dim=1)), IMAGE),
    "cumsum": (Fn(torch.cumsum, dim=1, dtype=torch.int32), ((rand(2, 10) * 9).int(),)),
    "chunk": (Fn(lambda x: torch.chunk(x, 3, dim=2)), IMAGE),
    "inplace_fill": (Fn(inplace_fill), (rand(2, 2),)),
    "arange": (Fn(lambda x: torch.arange(0, 20, 2, dtype=torch.int32)), ROWS),
    "empty": (Fn(lambda x: torch.empty(10, 10).zero_()), ROWS),
    "tensor": (Fn(lambda x: torch.tensor(3) * torch.ones(2)), ROWS),
    "tril": (Fn(torch.tril, 1), (rand(2, 10, 10),)),
    "triu": (Fn(torch.triu, -1), (rand(2, 10, 10),)),
    "new_ones": (Fn(lambda x: x.new_ones(1, 2, 3)), ROWS),
    "expand": (Fn(lambda x: x.expand(4, 2, 3, 4)), (rand(1, 2, 3, 4),)),
    "reduce": (Fn(lambda x: (x.sum((2, 1)), x.mean(-1, keepdim=True), x.amax(1), x.prod(2))), IMAGE),
    "datatype": (Fn(lambda x: (x.to(torch.float16).float(), x.long(), x.type(torch.float64))), ROWS),
    "permute": (Fn(lambda x: x.permute(0, 3, 2, 1)), IMAGE),
    "reshape": (Fn(lambda x: x.reshape(x.shape[0], 12, 25)), IMAGE),
    "transpose": (Fn(lambda x: x.transpose(1, 3)), IMAGE),
    "view": (Fn(lambda x: x.view(x.shape[0], -1)), IMAGE),
    "keep_params": (KeepParams(), IMAGE),
    "tuple_return": (Fn(lambda x: {"first": x + 1, "rest": [x * 2, x - 1]}), ROWS),
    "argmax": (Fn(lambda x: (x.argmax(-1), x.argmin(1, keepdim=True))), IMAGE),
    "to": (Fn(lambda x: x.to(torch.float16).to(torch.float32)), ROWS),
    "mean": (Fn(lambda x: (x.mean(1), x.mean((2, 3), keepdim=True))), IMAGE),
    "rsqrt": (Fn(lambda x: torch.rsqrt(x.abs() + 1)), ROWS),
    "neg": (Fn(torch.neg), ROWS),
    "max": (Fn(lambda a, b: (torch.max(a, b), a.max(dim=1).values, a.max(dim=1).indices)), PAIR),
    "cat": (Fn(lambda a, b: torch.cat((a, b, a), dim=1)), PAIR),
    "stack": (Fn(lambda a, b: torch.stack((a, b), dim=1)), PAIR),
    "scatter": (Fn(lambda x, i, s: x.scatter(1, i, s)), (rand(2, 10), torch.tensor([[0, 3], [9, 1]]), rand(2, 2))),
    "masked_scatter": (
        Fn(lambda x, m, s: x.masked_scatter(m, s)),
        (rand(2, 5), torch.tensor([[True, False, True, False, False], [False, True, True, True, False]]), rand(2, 5)),
    ),
    "masked_fill": (Fn(masked_fill), ROWS),
    "attention": (Attention(), HEADS),
    "attention_mask": (Attention(), (*HEADS, rand(2, 2, 5, 6))),
    "attention_causal": (Attention(causal=True), HEADS),
}  # fmt: skip
STATIC = {
    "arange", "empty", "tensor", "new_ones", "expand", "inplace_fill", "masked_scatter", "cross_entropy", "addmm",
}  # fmt: skip
TARGETS = ("torch", "onnxruntime", "tvm:stock")


def compare(graph: MSCGraph, target: str, inputs: tuple[torch.Tensor, ...], expected: list[np.ndarray]) -> None:
    feeds = dict(zip(graph.inputs, (t.numpy() for t in inputs), strict=True))
    with build(graph, target) as runner:
        found = runner.run(feeds)
    assert len(graph.outputs) == len(expected)
    for name, reference in zip(graph.outputs, expected, strict=True):
        assert found[name].dtype == reference.dtype
        np.testing.assert_allclose(found[name], reference, rtol=1e-5, atol=1e-5)


def answers(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> list[np.ndarray]:
    with torch.no_grad():
        return arrays(module.eval()(*(t.clone() for t in inputs)))


def test_there_are_no_fewer_than_msc_had():
    assert len(SUBJECTS) >= 66


@pytest.mark.parametrize("subject", SUBJECTS)
def test_static(subject, tmp_path):
    module, inputs = SUBJECTS[subject]
    graph = from_torch(module, tuple(t.clone() for t in inputs))
    graph.save(tmp_path)
    loaded = MSCGraph.load(tmp_path)
    assert loaded == graph
    for target in TARGETS:
        compare(loaded, target, inputs, answers(module, inputs))


def resized(inputs: tuple[torch.Tensor, ...], batch: int) -> tuple[torch.Tensor, ...]:
    """Inputs of another batch, made of the rows of these."""
    return tuple(t[torch.arange(batch) % len(t)].contiguous() for t in inputs)


@pytest.mark.parametrize("subject", [name for name in SUBJECTS if name not in STATIC])
def test_symbolic_batch(subject, tmp_path):
    module, inputs = SUBJECTS[subject]
    shapes = tuple({0: "N"} for _ in inputs)
    example = resized(inputs, 4)
    wrapped = ({"tensors": shapes},) if isinstance(module, Fn) else (shapes,)
    graph = from_torch(module, example, dynamic_shapes=wrapped[0])
    assert graph.tensors[graph.inputs[0]].shape[0] == "N"
    graph.save(tmp_path)
    loaded = MSCGraph.load(tmp_path)
    for batch in (1, 3):
        given = resized(inputs, batch)
        expected = answers(module, given)
        compare(loaded, "torch", given, expected)
        compare(loaded, "onnxruntime", given, expected)
        assert math.prod(expected[0].shape) > 0


def test_names_of_parameters_are_kept():
    module, inputs = SUBJECTS["keep_params"]
    graph = from_torch(module, inputs)
    assert set(to_torch(graph).state_dict()) == {n for n in module.state_dict() if "num_batches" not in n}


def test_dict_keys_name_the_outputs():
    module, inputs = SUBJECTS["tuple_return"]
    assert from_torch(module, inputs).outputs[0] == "first"
