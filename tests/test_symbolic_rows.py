"""Rows that move, pick and make elements, at symbolic sizes: every target computes what torch does at any size."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

from msc_core import MSCGraph, from_relax, from_torch, to_onnx, to_relax, to_torch

AXES = {0: "N", 1: Dim("L", min=3, max=63)}
SIZES = [(1, 7), (3, 3)]


class Net(nn.Module):
    """A function of an input of shape (N, L, 6), with a table that is longer than the input."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("table", torch.randn(64, 6, generator=generator))
        self.register_buffer("mask", torch.ones(64, 64).tril())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self, x)


def written(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    y[:, 0] = 1
    y[:, 1:] = y[:, 1:] * 2
    y[:, -1, 2:4] = 5
    return y


def first_of_each(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(x.shape[0]), (x[:, :, 0] * 0).long().sum(1)


FUNCTIONS: dict[str, Callable[[Net, torch.Tensor], torch.Tensor]] = {
    "positions": lambda m, x: x[:, 2] + x[:, -3] + x[:, -1],
    "slices": lambda m, x: x[:, 1:] - x[:, :-1],
    "table of positions": lambda m, x: x + m.table[: x.shape[1]],
    "causal mask": lambda m, x: (x @ x.mT).masked_fill(m.mask[: x.shape[1], : x.shape[1]] == 0, -9).softmax(-1),
    "mask made new": lambda m, x: torch.full((x.shape[1], x.shape[1]), float("-inf")).triu(1).exp() + x @ x.mT,
    "heads": lambda m, x: x.view(*x.shape[:2], 2, 3).transpose(1, 2).reshape(x.shape[0] * 2, -1, 3),
    "class token": lambda m, x: torch.cat((m.table[:1].expand(x.shape[0], 1, 6), x), 1),
    "range": lambda m, x: x + F.embedding(torch.arange(x.shape[1]), m.table) + torch.arange(x.shape[1])[:, None],
    "tiles": lambda m, x: m.table[:1].repeat(x.shape[0], x.shape[1], 1) + x.repeat_interleave(2, 1)[:, ::2],
    "rolls": lambda m, x: x.roll(1, 1) + x.roll(-1, 1) * 2 + x.flip(1) * 3,
    "diagonals": lambda m, x: (x @ x.mT).diagonal(0, 1, 2) + (x @ x.mT).tril()[:, 0],
    "windows": lambda m, x: x.unfold(1, 2, 1),
    "gathered": lambda m, x: x[first_of_each(x)] + x.gather(1, (x[:, :1] > 0).long())[:, 0],
    "put": lambda m, x: torch.zeros_like(x).index_put(first_of_each(x), x[:, 0]),
    "written": lambda m, x: written(x),
    "one-hot": lambda m, x: F.one_hot((x[:, :, 0] > 0).long(), 3) + torch.eye(x.shape[1])[0][:, None],
    "sizes": lambda m, x: x / x.shape[1] + x.numel(),
}  # fmt: skip


def graph_of(name: str) -> tuple[Net, MSCGraph]:
    module = Net(FUNCTIONS[name]).eval()
    return module, from_torch(module, torch.randn(4, 5, 6), dynamic_shapes=(AXES,))


def close(found: np.ndarray, expected: torch.Tensor) -> None:
    assert found.dtype == expected.numpy().dtype
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_torch_and_onnxruntime_at_any_size(name):
    module, graph = graph_of(name)
    again = to_torch(graph).eval()
    session = onnxruntime.InferenceSession(to_onnx(graph).SerializeToString())
    for n, length in SIZES:
        x = torch.randn(n, length, 6)
        expected = module(x)
        close(again(x).detach().numpy(), expected)
        close(session.run(None, {graph.inputs[0]: x.numpy()})[0], expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_tvm_at_any_size(name):
    import tvm

    module, graph = graph_of(name)
    machine = tvm.relax.VirtualMachine(tvm.compile(to_relax(graph), "llvm"), tvm.cpu())
    for n, length in SIZES:
        x = torch.randn(n, length, 6)
        close(machine["main"](tvm.runtime.tensor(x.numpy())).numpy(), module(x))


def test_a_slice_beyond_a_table_is_an_error_everywhere():
    import tvm

    module, graph = graph_of("table of positions")
    x = torch.randn(1, 65, 6)
    with pytest.raises(RuntimeError, match="must match the size"):
        to_torch(graph)(x)
    session = onnxruntime.InferenceSession(to_onnx(graph).SerializeToString())
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.Fail, match="64 by 65"):
        session.run(None, {graph.inputs[0]: x.numpy()})
    relax = to_relax(graph)
    machine = tvm.relax.VirtualMachine(tvm.compile(relax, "llvm"), tvm.cpu())
    with pytest.raises(RuntimeError, match="match_cast"):
        machine["main"](tvm.runtime.tensor(x.numpy()))
    back = from_relax(relax)
    x = torch.randn(2, 9, 6)
    close(to_torch(back)(x).detach().numpy(), module(x))
