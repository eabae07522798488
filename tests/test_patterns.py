"""Fusion: pieces become the operator that they say, with the same numbers; what only looks alike stays."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn

from msc_core import MSCGraph, Node, Tensor, from_onnx, from_relax, from_torch, to_onnx, to_relax, to_torch
from msc_core.infer import infer
from msc_core.patterns import fuse
from tests.test_rewrite import ops

SIGMOID, TANH = torch.sigmoid, torch.tanh


class Function(nn.Module):
    """A function of an input and the module's parameters `w`, `b` and `c`."""

    def __init__(self, function, **parameters: tuple[int, ...]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        for name, shape in parameters.items():
            self.register_parameter(name, nn.Parameter(torch.rand(shape, generator=generator) - 0.4))
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(*inputs, **dict(self.named_parameters()))


class OfOne(Function):
    """A function of one input, whose dynamic axes can be named."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


def graph_of(function, *shapes: tuple[int, ...], **parameters: tuple[int, ...]) -> tuple[MSCGraph, list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(shape, generator=generator) for shape in shapes]
    return from_torch(Function(function, **parameters), tuple(inputs)), inputs


def same(before: MSCGraph, after: MSCGraph, inputs: list[torch.Tensor]) -> None:
    """The fused graph is consistent, has the same inputs and outputs, and gives the same to 1e-6 of the range."""
    assert infer(after) == after
    assert (after.inputs, after.outputs) == (before.inputs, before.outputs)
    with torch.no_grad():
        expected, found = (to_torch(graph).eval()(*inputs) for graph in (before, after))
    for e, f in zip(*(x if isinstance(x, tuple) else (x,) for x in (expected, found)), strict=True):
        assert (e.shape, e.dtype) == (f.shape, f.dtype)
        assert (e - f).abs().max() <= 1e-6 * e.abs().max()


def norm(x, root=torch.sqrt, **parameters):
    """A layer norm over the last axis, by the book."""
    centered = x - x.mean(-1, keepdim=True)
    y = centered / root((centered**2).mean(-1, keepdim=True) + 1e-5)
    y = y * parameters["w"] if "w" in parameters else y
    return y + parameters["b"] if "b" in parameters else y


def attend(q, k, v, mask=None):
    """Attention by the book."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return (scores if mask is None else scores + mask).softmax(-1) @ v


def careful(q, k, v, m):
    """Attention that gives zeros where a query may see no key."""
    scores = torch.where(m > 0, q @ k.mT, -torch.inf)
    blind = (scores == -torch.inf).all(-1, keepdim=True)
    return torch.where(blind, 0.0, scores.softmax(-1)) @ v


def variance_norm(x, w, b):
    return (x - x.mean((-2, -1), keepdim=True)) / torch.sqrt(
        x.var((-2, -1), unbiased=False, keepdim=True) + 1e-6
    ) * w + b


def norm_over(x, axes, others):
    centered = x - x.mean(axes, True)
    return centered / ((centered**2).mean(others, True) + 1e-5).sqrt()


def mean_too(x):
    mean = x.mean(-1, True)
    centered = x - mean
    return centered / ((centered**2).mean(-1, True) + 1e-5).sqrt() + mean


def rsqrt_norm(x, w, b):
    centered = x - x.mean(-1, True)
    return b + w * (centered * torch.rsqrt((centered * centered).mean(-1, True) + 1e-5))


IMAGE, ROW, SEQUENCE = (2, 6, 8, 8), (4, 6), (2, 5, 6)
FUSED = {  # name: (function, shapes of inputs, shapes of parameters, operators left)
    "conv1d": (lambda x, w, b: torch.conv1d(x, w) + b, [(2, 6, 9)], {"w": (4, 3 * 2, 3), "b": (4, 1)}, ["conv1d"]),
    "conv2d": (lambda x, w, b: b + torch.conv2d(x, w, stride=2), [IMAGE], {"w": (4, 6, 3, 3), "b": (1, 4, 1, 1)},
               ["conv2d"]),
    "conv3d": (lambda x, w, b: torch.conv3d(x, w, groups=2) + b, [(2, 6, 5, 5, 5)],
               {"w": (4, 3, 3, 3, 3), "b": (4, 1, 1, 1)}, ["conv3d"]),
    "transposed": (lambda x, w, b: torch.conv_transpose2d(x, w) + b, [IMAGE], {"w": (6, 4, 3, 3), "b": (4, 1, 1)},
                   ["conv2d_transpose"]),
    "one bias for all channels": (lambda x, w, b: torch.conv2d(x, w) + b, [IMAGE], {"w": (4, 6, 3, 3), "b": ()},
                                  ["conv2d"]),
    "linear": (lambda x, w: x @ w, [ROW], {"w": (6, 3)}, ["linear"]),
    "linear with bias": (lambda x, w, b: b + x @ w, [ROW], {"w": (6, 3), "b": (3,)}, ["linear"]),
    "linear of a sequence": (lambda x, w, b: x @ w + b, [SEQUENCE], {"w": (6, 3), "b": (1, 3)}, ["linear"]),
    "gelu": (lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))), [ROW], {}, ["gelu"]),
    "gelu, halved last": (lambda x: (x * (torch.erf(x * math.sqrt(0.5)) + 1)) * 0.5, [ROW], {}, ["gelu"]),
    "gelu, halved inside": (lambda x: x * (0.5 * (1 + torch.erf(x / math.sqrt(2)))), [ROW], {}, ["gelu"]),
    "gelu of tanh": (lambda x: 0.5 * x * (1 + TANH(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))), [ROW], {},
                     ["gelu"]),
    "gelu of tanh, factored": (
        lambda x: 0.5 * x * (1 + TANH(x * 0.7978845608 * (1 + 0.044715 * x * x))), [ROW], {}, ["gelu"]),
    "gelu of tanh, multiplied": (
        lambda x: x * 0.5 * (1 + TANH((x + x * x * x * 0.044715) * math.sqrt(2 / math.pi))), [ROW], {}, ["gelu"]),
    "layer_norm": (norm, [SEQUENCE], {}, ["layer_norm"]),
    "layer_norm with parameters": (norm, [SEQUENCE], {"w": (6,), "b": (6,)}, ["layer_norm"]),
    "layer_norm with broadcast parameters": (norm, [SEQUENCE], {"w": (1, 1, 6), "b": (1, 6)}, ["layer_norm"]),
    "layer_norm by a power": (lambda x, **p: norm(x, lambda v: v**0.5, **p), [SEQUENCE], {"w": (6,)}, ["layer_norm"]),
    "layer_norm by an inverse root": (rsqrt_norm, [SEQUENCE], {"w": (6,), "b": (6,)}, ["layer_norm"]),
    "layer_norm over two axes": (variance_norm, [SEQUENCE], {"w": (5, 6), "b": (5, 6)}, ["layer_norm"]),
    "rms_norm": (lambda x, w: w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)), [SEQUENCE], {"w": (6,)},
                 ["rms_norm"]),
    "rms_norm by a root": (lambda x: x / (x * x).mean(-1, True).add(1e-6).sqrt(), [SEQUENCE], {}, ["rms_norm"]),
    "attention": (attend, [(2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6)], {}, ["attention"]),
    "attention of rank 3": (attend, [(2, 5, 4), (2, 7, 4), (2, 7, 6)], {}, ["attention"]),
    "attention with a mask": (lambda q, k, v, m: attend(q, k, v, m), [(2, 3, 5, 4)] * 3 + [(2, 1, 5, 5)], {},
                              ["attention"]),
    "attention with a constant mask": (lambda q, k, v, w: attend(q, k, v, w), [(2, 3, 5, 4)] * 3, {"w": (5, 5)},
                                       ["attention"]),
    "attention with scaled queries": (
        lambda q, k, v: ((q * 0.3) @ k.mT).softmax(-1) @ v, [(2, 3, 5, 4)] * 3, {}, ["attention"]),
    "attention with queries and keys scaled": (
        lambda q, k, v: ((q * 0.5) @ (k.mT * 0.7) * 2).softmax(3) @ v, [(2, 3, 5, 4)] * 3, {}, ["attention"]),
    "attention that shows some keys": (
        lambda q, k, v, m: torch.where(m > 0, q @ k.mT / 2, -torch.inf).softmax(-1) @ v,
        [(2, 3, 5, 4)] * 3 + [(2, 1, 5, 5)], {}, ["greater", "attention"]),
    "attention that hides some keys": (
        lambda q, k, v, m: (q @ k.mT / 2).masked_fill(m > 0, -torch.inf).softmax(-1) @ v,
        [(2, 3, 5, 4)] * 3 + [(2, 1, 5, 5)], {}, ["greater", "logical_not", "attention"]),
    "attention that looks after queries without keys": (
        careful, [(2, 3, 5, 4)] * 3 + [(2, 1, 5, 5)], {}, ["greater", "attention"]),
    "attention with a dropout of nothing": (
        lambda q, k, v: nn.functional.dropout((q @ k.mT).softmax(-1), 0.0) @ v, [(2, 3, 5, 4)] * 3, {}, ["attention"]),
    "attention without a scale": (
        lambda q, k, v: (q @ k.transpose(-1, -2)).softmax(-1) @ v, [(2, 3, 5, 4)] * 3, {}, ["attention"]),
    "attention whose keys are transposed once": (
        lambda q, k, v: ((q @ k.permute(0, 2, 3, 1)) / 2).softmax(-1) @ v,
        [(2, 3, 5, 4), (2, 5, 3, 4), (2, 3, 5, 4)], {}, ["permute_dims", "attention"]),
    "silu": (lambda x: SIGMOID(x) * x, [ROW], {}, ["silu"]),
    "mish": (lambda x: x * TANH(nn.functional.softplus(x)), [ROW], {}, ["mish"]),
    "hardswish": (lambda x: x * nn.functional.relu6(x + 3) / 6, [ROW], {}, ["hardswish"]),
    "hardswish by a clip": (lambda x: x * ((x + 3).clamp(0, 6) * (1 / 6)), [ROW], {}, ["hardswish"]),
    "hardsigmoid": (lambda x: nn.functional.relu6(3 + x) / 6, [ROW], {}, ["hardsigmoid"]),
}  # fmt: skip


@pytest.mark.parametrize("name", FUSED)
def test_pieces_become_one_operator(name):
    function, shapes, parameters, expected = FUSED[name]
    graph, inputs = graph_of(function, *shapes, **parameters)
    fused = fuse(graph)
    assert ops(fused) == expected
    same(graph, fused, inputs)
    assert fuse(fused) is fused
    wide = [x.double() for x in inputs]
    graph = from_torch(Function(function, **parameters).double(), tuple(wide))
    if name != "gelu of tanh, factored":  # whose constant has but ten digits
        assert ops(fuse(graph)) == expected
        same(graph, fuse(graph), wide)


def scores_too(q, k, v):
    scores = q @ k.mT
    return (scores * 0.5).softmax(-1) @ v, scores


def scaled_queries_too(q, k, v):
    q = q * 0.5
    return (q @ k.mT).softmax(-1) @ v, q


NEAR = {  # what looks alike and is something else, or has an inner value that is needed
    "a bias along another axis": (lambda x, w, b: torch.conv2d(x, w) + b, [IMAGE], {"w": (4, 6, 3, 3), "b": (6,)}),
    "a second bias": (lambda x, w, b, c: torch.conv2d(x, w, b) + c, [IMAGE],
                      {"w": (4, 6, 3, 3), "b": (4,), "c": (4, 1, 1)}),
    "a convolution that is an output": (lambda x, w, b: (y := torch.conv2d(x, w), y + b), [IMAGE],
                                        {"w": (4, 6, 3, 3), "b": (4, 1, 1)}),
    "an erf that is an output": (lambda x: (e := torch.erf(x * math.sqrt(0.5)), 0.5 * x * (1 + e)), [ROW], {}),
    "half of the argument": (lambda x: 0.5 * x * (1 + torch.erf(x / 2)), [ROW], {}),
    "one and a half": (lambda x: 0.5 * x * (1.5 + torch.erf(x * math.sqrt(0.5))), [ROW], {}),
    "0.0447": (lambda x: 0.5 * x * (1 + TANH(math.sqrt(2 / math.pi) * (x + 0.0447 * x**3))), [ROW], {}),
    "the erf of another tensor": (lambda x, y: 0.5 * x * (1 + torch.erf(y / math.sqrt(2))), [ROW, ROW], {}),
    "the sigmoid of another tensor": (lambda x, y: x * SIGMOID(y), [ROW, ROW], {}),
    "a sigmoid that is read twice": (lambda x: (s := SIGMOID(x)) * x + s, [ROW], {}),
    "a norm over the first axis": (lambda x: norm_over(x, 0, 0), [ROW], {}),
    "an unbiased variance": (lambda x: (x - x.mean(-1, True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt(), [ROW], {}),
    "matrix products of activations": (lambda x, y: x @ y, [ROW, (6, 3)], {}),
    "a batch of constant matrices": (lambda x, w: x @ w, [(2, 4, 6)], {"w": (2, 6, 3)}),
    "a mask of small numbers": (
        lambda q, k, v, m: torch.where(m > 0, q @ k.mT, -1e4).softmax(-1) @ v, [(2, 3, 5, 5)] * 4, {}),
    "dropout": (lambda q, k, v: nn.functional.dropout((q @ k.mT).softmax(-1), 0.1, False) @ v, [(2, 3, 5, 5)] * 3, {}),
    "scores that are an output": (scores_too, [(2, 3, 5, 5)] * 3, {}),
    "a softmax over the queries": (lambda q, k, v: (q @ k.mT).softmax(-2) @ v, [(2, 3, 5, 5)] * 3, {}),
    "keys that are not transposed": (lambda q, k, v: (q @ k).softmax(-1) @ v, [(2, 3, 5, 5)] * 3, {}),
    "values of another rank": (lambda q, k, v: (q @ k.mT).softmax(-1) @ v, [(2, 3, 5, 5), (2, 3, 5, 5), (5, 6)], {}),
    "a mask that is a number": (lambda q, k, v, w: (q @ k.mT + w).softmax(-1) @ v, [(2, 3, 5, 5)] * 3, {"w": ()}),
    "rows of an activation": (lambda x: x[torch.tensor([0, 2])], [(4, 6)], {}),
    "columns of a table": (lambda x, w: x + w[:, torch.tensor([0, 2])], [(4, 2)], {"w": (4, 6)}),
    "clipped to 5": (lambda x: x * (x + 3).clamp(0, 5) / 6, [ROW], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", NEAR)
def test_what_only_looks_alike_stays(name):
    function, shapes, parameters = NEAR[name]
    graph, _ = graph_of(function, *shapes, **parameters)
    fused = fuse(graph)
    assert fused is graph, ops(fused)


@pytest.mark.parametrize("function", [lambda x: norm_over(x, -1, (-2, -1)), mean_too], ids=["axes", "mean"])
def test_where_no_layer_norm_can_be_the_part_that_is_an_rms_norm_still_is_one(function):
    graph, inputs = graph_of(function, SEQUENCE)
    fused = fuse(graph)
    assert ops(fused)[:3] == ["mean", "subtract", "rms_norm"]
    same(graph, fused, inputs)


@pytest.mark.parametrize("wrap", [False, True])
def test_rows_of_a_table_are_an_embedding(wrap):
    tensors = {"i": Tensor("i", (2, 3), "int64"), "w": Tensor("w", (5, 4)), "y": Tensor("y", (2, 3, 4))}
    table = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    node = Node("rows", "take", ("w", "i"), ("y",), {"wrap": True} if wrap else {})
    graph = MSCGraph("g", (node,), ("i",), ("y",), {"w": table}, tensors)
    fused = fuse(graph)
    assert ops(fused)[-1] == "embedding" and len(fused.nodes) == (4 if wrap else 1)
    same(graph, fused, [torch.tensor([[0, 4, 2], [1, 1, -1 if wrap else 3]])])


def test_a_scale_that_something_else_reads_stays_apart():
    graph, inputs = graph_of(scaled_queries_too, *[(2, 3, 5, 4)] * 3)
    fused = fuse(graph)
    assert ops(fused) == ["multiply", "attention"]
    same(graph, fused, inputs)


def test_a_bias_that_enlarges_is_none():
    graph, inputs = graph_of(lambda x, w, b: x @ w + b, (1, 6), w=(6, 3), b=(4, 3))
    fused = fuse(graph)
    assert ops(fused) == ["linear", "add"]
    same(graph, fused, inputs)


def test_a_norm_keeps_a_constant_of_another_shape_apart():
    graph, inputs = graph_of(lambda x, w, b: norm(x) * w + b, SEQUENCE, w=(5, 6), b=(5, 6))
    fused = fuse(graph)
    assert ops(fused) == ["layer_norm", "multiply", "add"]
    same(graph, fused, inputs)


def test_names_are_those_of_the_first_node_and_the_last_tensor_and_weights_keep_theirs():
    graph, _ = graph_of(lambda x, w, b: torch.relu(x @ w + b), ROW, w=(6, 3), b=(3,))
    fused = fuse(graph)
    (linear, relu) = fused.nodes
    assert linear.name == graph.nodes[0].name and linear.outputs == graph.nodes[1].outputs
    assert linear.inputs == (*graph.inputs, "w", "b")
    np.testing.assert_array_equal(fused.weights["w"], graph.weights["w"].T)
    assert relu == graph.nodes[2]


def test_a_tied_matrix_is_copied():
    graph, inputs = graph_of(lambda x, w: (x @ w) + w.sum(0), ROW, w=(6, 3))
    fused = fuse(graph)
    assert "linear" in ops(fused) and len(fused.weights) == 2
    np.testing.assert_array_equal(fused.weights["w"], graph.weights["w"])
    same(graph, fused, inputs)


def test_a_weight_that_is_the_bias_too_is_copied():
    graph, inputs = graph_of(lambda x, w: torch.nn.functional.linear(x, w) + w, (4, 1), w=(1, 1))
    fused = fuse(graph)
    assert ops(fused) == ["linear"]
    same(graph, fused, inputs)


def test_a_symbolic_batch_stays():
    module = OfOne(lambda x, w, b: 0.5 * (y := x @ w + b) * (1 + torch.erf(y * math.sqrt(0.5))), w=(6, 3), b=(3,))
    graph = from_torch(module, torch.randn(4, 6), dynamic_shapes=({0: "N"},))
    fused = fuse(graph)
    assert ops(fused) == ["linear", "gelu"]
    assert fused.tensors[fused.outputs[0]].shape == ("N", 3)
    for batch in (1, 3):
        same(graph, fused, [torch.randn(batch, 6)])


def test_layouts_stay_and_so_does_what_is_not_matched():
    tensors = {name: Tensor(name, (2, 3), layout="NC" if name == "y" else "") for name in ("x", "s", "y", "z")}
    nodes = (
        Node("a", "sigmoid", ("x",), ("s",)),
        Node("b", "multiply", ("x", "s"), ("y",)),
        Node("c", "relu", ("y",), ("z",)),
    )
    fused = fuse(MSCGraph("g", nodes, ("x",), ("y", "z"), {}, tensors))
    assert [(n.name, n.op, n.inputs, n.outputs) for n in fused.nodes] == [
        ("a", "silu", ("x",), ("y",)),
        ("c", "relu", ("y",), ("z",)),
    ]  # fmt: skip
    assert fused.tensors["y"].layout == "NC"


@pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16])
def test_other_dtypes_are_left_alone(dtype):
    x = torch.ones(3, 4, dtype=dtype)
    graph = from_torch(Function(lambda x: x * (x + 3).clamp(0, 6)), (x,))
    assert fuse(graph) is graph


def test_only_the_patterns_that_are_asked_for():
    graph, _ = graph_of(lambda x, w: SIGMOID(x @ w) * (x @ w), ROW, w=(6, 6))
    assert fuse(graph, ()) is graph


class Block(nn.Module):
    """Half of a transformer: one of every layer that ONNX and Relax have in pieces."""

    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.second = nn.LayerNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, c = x.shape
        q, k, v = (
            y.view(n, t, self.heads, c // self.heads).transpose(1, 2) for y in self.qkv(self.norm(x)).chunk(3, -1)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, torch.ones(t, t, dtype=torch.bool).tril())
        x = x + self.out(y.transpose(1, 2).reshape(n, t, c))
        y = self.up(self.second(x))
        return x + self.down(nn.functional.gelu(nn.functional.gelu(nn.functional.silu(y)), approximate="tanh"))


@pytest.mark.parametrize("through", ["onnx", "relax"])
def test_what_went_to_pieces_on_the_way_is_whole_again(through):
    module = nn.Sequential(nn.Embedding(11, 8), Block(), Block(), nn.Linear(8, 4)).eval()
    ids = torch.randint(0, 11, (2, 5), generator=torch.Generator().manual_seed(0))
    graph = from_torch(module, (ids,), dynamic_shapes=({0: "N"},))
    pieces = from_onnx(to_onnx(graph)) if through == "onnx" else from_relax(to_relax(graph))
    fused = fuse(pieces)
    counts = Counter(ops(fused)) - Counter({"less": 1, "add": 1, "where": 1} if through == "onnx" else {})
    assert counts == Counter(ops(graph)) and len(pieces.nodes) > len(fused.nodes)
    assert counts["attention"] == 2 and counts["gelu"] == 4 and counts["layer_norm"] == counts["rms_norm"] == 2
    same(pieces, fused, [ids])
