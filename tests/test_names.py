"""Names, symbols and order survive a trip through every framework and back."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from experiments.models import MobileNet, ResNet20
from msc_core import MSCGraph, Node, Tensor, from_onnx, from_relax, from_torch, to_onnx, to_relax, to_torch
from msc_core.infer import infer
from tests.micro_networks import randomized

ODD = ["a:0", "x.y", "é", "重み", "a b", "a/b", '"', "0", "..", "🙂", "if", "lv", "gv"]


def there_and_back(graph: MSCGraph, framework: str) -> MSCGraph:
    """The graph as that framework gives it back."""
    if framework == "onnx":
        return from_onnx(to_onnx(graph))
    return from_relax(to_relax(graph, params="free"), params=dict(graph.weights))


def odd_graph() -> MSCGraph:
    """A chain of nodes with odd names."""
    nodes = tuple(Node(f"n{a}", "relu", (a,), (b,)) for a, b in pairwise(ODD))
    graph = MSCGraph("odd", nodes, (ODD[0],), (ODD[-1],), {}, {name: Tensor(name, ("N", 3)) for name in ODD})
    return infer(graph)


def network(name: str) -> MSCGraph:
    if name == "odd":
        return odd_graph()
    module = randomized({"resnet": ResNet20, "mobilenet": MobileNet}[name](8))
    return from_torch(module, torch.randn(2, 1, 28, 28), dynamic_shapes=({0: "N"},))


@pytest.mark.parametrize("framework", ["onnx", "relax"])
@pytest.mark.parametrize("name", ["odd", "resnet", "mobilenet"])
def test_tensors_weights_and_symbols_keep_their_names(name, framework):
    graph = network(name)
    found = there_and_back(graph, framework)
    assert (found.inputs, found.outputs) == (graph.inputs, graph.outputs)
    assert set(found.weights) >= set(graph.weights)
    assert set(graph.tensors) <= set(found.tensors)
    for tensor in graph.tensors.values():
        assert found.tensors[tensor.name] == tensor


@pytest.mark.parametrize("framework", ["onnx", "relax"])
def test_a_second_trip_changes_nothing(framework):
    once = there_and_back(network("resnet"), framework)
    assert there_and_back(once, framework) == once


def test_tied_weights_stay_one_through_onnx():
    module = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 4, bias=False))
    module[2].weight = module[0].weight
    graph = from_torch(module, torch.randn(2, 4))
    found = there_and_back(graph, "onnx")
    assert list(found.weights) == ["0.weight"]
    x = torch.randn(2, 4)
    torch.testing.assert_close(to_torch(found)(x), module(x))
