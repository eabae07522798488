"""Recurrent layers and cells at any batch on every target; which of their units can be pruned; ONNX's own forms."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from onnx import helper, numpy_helper
from torch import nn

from msc_core import MSCGraph, from_onnx, from_torch, to_onnx, to_relax, to_torch
from msc_core.channels import channel_groups
from msc_core.errors import UnsupportedOperator


class Layers(nn.Module):
    """Linear, a recurrent layer, a norm and a linear layer on the last step."""

    def __init__(self, kind: type[nn.RNNBase], **how: object) -> None:
        super().__init__()
        self.before = nn.Linear(6, 16)
        self.layer = kind(16, 16, batch_first=True, **how)
        self.norm = nn.LayerNorm(32 if how.get("bidirectional") else 16)
        self.after = nn.Linear(self.norm.normalized_shape[0], 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.norm(self.layer(F.relu(self.before(x)))[0])[:, -1])


class Steps(nn.Module):
    """A cell for two steps; its first state is absent, that is zero."""

    def __init__(self, cell: nn.RNNCellBase) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = self.cell(x[:, 1], self.cell(x[:, 0]))
        return state[0] if isinstance(state, tuple) else state


MODULES = {
    "lstm": lambda: Layers(nn.LSTM),
    "two lstms in both directions": lambda: Layers(nn.LSTM, num_layers=2, bidirectional=True),
    "gru": lambda: Layers(nn.GRU, bidirectional=True),
    "rnn": lambda: Layers(nn.RNN, num_layers=2),
    "lstm cell": lambda: Steps(nn.LSTMCell(6, 5)),
    "gru cell": lambda: Steps(nn.GRUCell(6, 5)),
    "gru cell without biases": lambda: Steps(nn.GRUCell(6, 5, bias=False)),
    "rnn cell": lambda: Steps(nn.RNNCell(6, 5, nonlinearity="relu")),
}


def on_onnxruntime(model, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x})[0]


@pytest.mark.parametrize("name", MODULES)
def test_any_batch_on_every_target(name):
    import tvm

    module = MODULES[name]().eval()
    graph = from_torch(module, (torch.rand(2, 4, 6),), dynamic_shapes=({0: "N"},))
    target = tvm.target.Target({"kind": "llvm"})
    machine = tvm.relax.VirtualMachine(tvm.compile(to_relax(graph), target), tvm.cpu())
    for batch in (1, 3):
        x = torch.rand(batch, 4, 6)
        with torch.no_grad():
            expected = module(x).numpy()
            found = [to_torch(graph).eval()(x).numpy(), on_onnxruntime(to_onnx(graph), x.numpy())]
        found.append(machine["main"](tvm.runtime.tensor(x.numpy())).numpy())
        for array in found:
            np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["lstm", "two lstms in both directions", "gru", "rnn"])
@pytest.mark.parametrize("axes", [None, ({0: "N"},)])
def test_inputs_and_hidden_units_can_be_pruned(name, axes):
    graph = from_torch(MODULES[name](), (torch.rand(2, 4, 6),), dynamic_shapes=axes)
    layers = sum(node.op in ("lstm", "gru", "rnn") for node in graph.nodes)
    *free, last = channel_groups(graph)
    assert [(group.size, group.reason) for group in free] == [(16, "")] * (1 + layers)
    assert "graph output" in last.reason


def onnx_lstm() -> object:
    """An ONNX LSTM in both directions over a symbolic length."""
    rng = np.random.default_rng(0)
    shapes = {"W": (2, 20, 4), "R": (2, 20, 5), "B": (2, 40)}
    weights = [numpy_helper.from_array(rng.normal(0, 0.3, s).astype(np.float32), n) for n, s in shapes.items()]
    node = helper.make_node("LSTM", ["x", *shapes], ["Y"], "layer", hidden_size=5, direction="bidirectional")
    x, y = (helper.make_tensor_value_info(n, 1, s) for n, s in (("x", ("T", "N", 4)), ("Y", ("T", 2, "N", 5))))
    graph = helper.make_graph([node], "g", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_symbolic_length_is_kept_by_onnx_and_torch_and_refused_by_relax():
    model = onnx_lstm()
    graph: MSCGraph = from_onnx(model)
    x = np.random.default_rng(1).random((7, 3, 4), np.float32)
    expected = on_onnxruntime(model, x)
    np.testing.assert_array_equal(on_onnxruntime(to_onnx(graph), x), expected)
    np.testing.assert_allclose(to_torch(graph)(torch.from_numpy(x)).detach().numpy(), expected, atol=1e-6)
    with pytest.raises(UnsupportedOperator, match="unrolled step by step, so the length 'T' must be a number"):
        to_relax(graph)
