"""`to_relax`: TVM's stock pipeline compiles what it returns, and that computes what torch does."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
import tvm
from torch import nn

from experiments import models
from msc_core import Node, Tensor, from_torch, to_relax
from msc_core.errors import MscError, UnsupportedOperator
from msc_core.infer import infer
from msc_core.ir import MSCGraph
from tests.micro_networks import randomized


def run(module, *inputs: np.ndarray) -> list[np.ndarray]:
    """What TVM's stock pipeline makes of a module."""
    executable = tvm.compile(module, tvm.target.Target({"kind": "llvm"}))
    result = tvm.relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, inputs))
    return [result.numpy()] if hasattr(result, "numpy") else [r.numpy() for r in result]


@functools.cache
def network(name: str, width: int) -> tuple[nn.Module, MSCGraph]:
    module = randomized(getattr(models, name)(width))
    return module, from_torch(module, torch.randn(2, 1, 28, 28), dynamic_shapes=({0: "N"},))


def names(module) -> list[str]:
    """Variables of `main` in order, parameters first."""
    main = module["main"]
    bindings = [b.var.name for block in main.body.blocks for b in block.bindings]
    return [p.name for p in main.params] + bindings


@pytest.mark.parametrize(("name", "width"), [("ResNet20", 8), ("MobileNet", 8), ("VGG", 8), ("MLP", 16)])
def test_network_of_any_batch_agrees_with_torch(name, width):
    module, graph = network(name, width)
    x = torch.randn(3, 1, 28, 28)
    (found,) = run(to_relax(graph), x.numpy())
    expected = module(x).detach().numpy()
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


def test_names_are_kept_exactly():
    _, graph = network("ResNet20", 8)
    found = names(to_relax(graph))
    assert "blocks.0.body1.conv" in found
    assert [n for n in found if n in graph.tensors] == [*graph.inputs, *(o for n in graph.nodes for o in n.outputs)]


def test_names_that_tvm_makes_up_do_not_get_in_the_way():
    nodes = [
        Node("a", "relu6", ("gv",), ("lv",)),
        Node("b", "relu", ("lv",), ("lv1",)),
        Node("c", "relu", ("lv1",), ("é/1",)),
    ]
    tensors = {name: Tensor(name, (2,)) for name in ("gv", "lv", "lv1", "é/1")}
    module = to_relax(MSCGraph("g", tuple(nodes), ("gv",), ("é/1",), {}, tensors))
    assert names(module) == ["gv", "lv", "lv1", "é/1"]


def test_symbols_are_shared_and_keep_their_name():
    _, graph = network("MLP", 16)
    main = to_relax(graph)["main"]
    batch = main.params[0].ty.shape[0]
    assert batch.name == "N"
    assert main.ret_ty.shape[0].same_as(batch)


def test_free_parameters():
    module, graph = network("MLP", 16)
    relax = to_relax(graph, params="free")
    assert names(relax)[: 1 + len(graph.weights)] == [*graph.inputs, *graph.weights]
    assert int(relax["main"].attrs["num_input"]) == 1
    x = torch.randn(1, 1, 28, 28)
    (found,) = run(relax, x.numpy(), *map(np.array, graph.weights.values()))
    np.testing.assert_allclose(found, module(x).detach().numpy(), rtol=1e-5, atol=1e-5)
    with pytest.raises(MscError, match="expected 'bound' or 'free'"):
        to_relax(graph, params="open")


class Several(nn.Module):
    """Outputs in an order of their own: an input, a weight, one twice."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = x + y * self.weight
        return torch.relu(total), x, total, self.weight, total


def test_outputs_keep_their_order():
    module, x, y = Several(), torch.randn(2, 3), torch.randn(2, 3)
    found = run(to_relax(from_torch(module, (x, y))), x.numpy(), y.numpy())
    for array, expected in zip(found, module(x, y), strict=True):
        np.testing.assert_allclose(array, expected.detach().numpy(), rtol=1e-6)


def test_the_module_is_well_formed_and_prints():
    _, graph = network("VGG", 8)
    module = to_relax(graph)
    tvm.relax.analysis.well_formed(module)
    assert "R.nn.conv2d" in module.script()


def test_what_relax_refuses_names_the_node():
    tensors = {"x": Tensor("x", (2, 4)), "y": Tensor("y", ())}
    graph = infer(MSCGraph("g", (Node("bad", "softmax", ("x",), ("y",)),), ("x",), ("y",), {}, tensors))
    wrong = graph.replace(tensors={**graph.tensors, "y": Tensor("y", (2, 5))})
    with pytest.raises(UnsupportedOperator, match=r"node 'bad' \(softmax\): expected the shape \[2, 5\]"):
        to_relax(wrong)
