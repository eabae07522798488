"""`to_onnx`: models that the checker accepts, with the graph's names, and torch's answers from ONNX Runtime."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from experiments.models import MLP, VGG, MobileNet, ResNet20
from msc_core import MscError, MSCGraph, Node, Tensor, from_torch, to_onnx
from msc_core.ops import OPS, call

IMAGES = torch.randn(4, 1, 28, 28, generator=torch.Generator().manual_seed(0))


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """A checked model, loaded."""
    onnx.checker.check_model(model, full_check=True)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("model", [ResNet20, MobileNet, VGG, MLP])
@pytest.mark.parametrize("dynamic", [True, False])
def test_networks_agree(model, dynamic):
    torch.manual_seed(0)
    module = model()
    module(torch.randn(16, 1, 28, 28))  # moves the statistics of batch norm
    shapes = ({0: "N"},) if dynamic else None
    graph = from_torch(module.eval(), IMAGES, dynamic_shapes=shapes)
    proto = to_onnx(graph)
    (x,) = proto.graph.input
    assert x.type.tensor_type.shape.dim[0].dim_param == ("N" if dynamic else "")
    runner = session(proto)
    for count in (1, 4) if dynamic else (4,):
        with torch.no_grad():
            expected = module(IMAGES[:count]).numpy()
        (found,) = runner.run(None, {"x": IMAGES[:count].numpy()})
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_names_and_weights_are_the_graphs():
    graph = from_torch(ResNet20(), IMAGES[:1])
    proto = to_onnx(graph).graph
    assert [i.name for i in proto.input] == list(graph.inputs)
    assert [o.name for o in proto.output] == list(graph.outputs)
    assert [node.name for node in proto.node if node.name in {n.name for n in graph.nodes}] == [
        n.name for n in graph.nodes
    ]
    weights = {init.name: numpy_helper.to_array(init) for init in proto.initializer}
    assert weights.keys() >= graph.weights.keys()
    for name, array in graph.weights.items():
        np.testing.assert_array_equal(weights[name], array)


def test_equal_constants_are_stored_once():
    class Reshapes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.reshape(3, 4).relu().reshape(12)
            return (y.sigmoid().reshape(3, 4).relu().reshape(12) + y).clamp(0, 6)

    proto = to_onnx(from_torch(Reshapes(), torch.ones(12)))
    arrays = [numpy_helper.to_array(init) for init in proto.graph.initializer]
    assert len(arrays) == len({(a.dtype.str, a.shape, a.tobytes()) for a in arrays}) == 4
    session(proto)


def test_outputs_that_onnx_cannot_name_twice_are_copied():
    tensors = {name: Tensor(name, (2,)) for name in ("x", "w", "y", "x_output")}
    nodes = (Node("y", "add", ("x", "w"), ("y",)), Node("x_output", "relu", ("y",), ("x_output",)))
    outputs = ("y", "x", "w", "y", "x_output")
    graph = MSCGraph("copies", nodes, ("x",), outputs, {"w": np.float32([1, 2])}, tensors)
    found = session(to_onnx(graph)).run(None, {"x": np.float32([3, -4])})
    assert [list(f) for f in found] == [[4, -2], [3, -4], [1, 2], [4, -2], [4, 0]]


def test_a_graph_without_nodes():
    graph = MSCGraph("", (), ("x",), ("x",), {}, {"x": Tensor("x", ("N", 2), "int64")})
    (found,) = session(to_onnx(graph)).run(None, {"x": np.int64([[1, 2]])})
    assert found.tolist() == [[1, 2]]


@pytest.mark.parametrize("name", ["a:0", "x.y", "é 重", '"); os.abort("', "a/b", "constant_0", "y/Clip"])
def test_odd_names_survive(name):
    tensors = {n: Tensor(n, (2,)) for n in (name, "y")}
    graph = MSCGraph(name, (Node("y", "relu6", (name,), ("y",)),), (name,), ("y",), {}, tensors)
    (found,) = session(to_onnx(graph)).run(None, {name: np.float32([7, -1])})
    assert found.tolist() == [6, 0]


def test_inner_calls_get_names_of_their_own():
    graph = from_torch(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), torch.ones(2, 5, 3))
    proto = to_onnx(graph).graph
    names = [node.name for node in proto.node]
    assert [node.op_type for node in proto.node].count("Transpose") == 2
    assert len(set(names)) == len(names)


def test_opsets_out_of_range_are_refused():
    graph = from_torch(MLP(), IMAGES[:1])
    for opset in (12, onnx.defs.onnx_opset_version() + 1):
        with pytest.raises(MscError, match=f"opset {opset}; expected 13 to "):
            to_onnx(graph, opset=opset)


@pytest.mark.parametrize("opset", range(13, onnx.defs.onnx_opset_version() + 1))
def test_every_opset_gives_the_same_answer(opset):
    torch.manual_seed(0)
    graph = from_torch(ResNet20().eval(), IMAGES, dynamic_shapes=({0: "N"},))
    (expected,) = session(to_onnx(graph)).run(None, {"x": IMAGES.numpy()})
    model = to_onnx(graph, opset=opset)
    assert model.opset_import[0].version == opset
    (found,) = session(model).run(None, {"x": IMAGES.numpy()})
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_an_argument_that_is_no_tensor_is_refused(monkeypatch):
    monkeypatch.setitem(OPS, "relu", dataclasses.replace(OPS["relu"], onnx=lambda b: call("Clip", *b.x, 0.0)))
    with pytest.raises(MscError, match=r"y/Clip: ONNX inputs are tensors or NumPy constants, found 0.0"):
        tensors = {n: Tensor(n, (2,)) for n in ("x", "y")}
        to_onnx(MSCGraph("g", (Node("y", "relu", ("x",), ("y",)),), ("x",), ("y",), {}, tensors))
