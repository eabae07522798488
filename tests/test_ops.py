"""Conformance of the op table: every row, imported from torch, gives torch's answer on every target."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from msc_core import MSCGraph, Node, Tensor, build, from_torch, to_torch
from msc_core.backends import available
from msc_core.codegen.torch import save_torch
from msc_core.errors import InvalidGraph, UnsupportedOperator
from msc_core.infer import infer
from msc_core.ops import OPS


class Fn(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., torch.Tensor], *arguments: object, **keywords: object) -> None:
        super().__init__()
        self.call = functools.partial(lambda *tensors: function(*tensors, *arguments, **keywords))

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return self.call(*tensors)


class Norm(nn.BatchNorm2d):
    """Batch norm with statistics that are not 0 and 1."""

    def __init__(self, channels: int, **keywords: object) -> None:
        super().__init__(channels, **keywords)
        for tensor in (self.weight, self.bias, self.running_mean, self.running_var):
            nn.init.uniform_(tensor, 0.5, 1.5)


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


torch.manual_seed(0)
IMAGE, ROWS, SEQUENCE = (rand(2, 4, 9, 7),), (rand(3, 6),), (rand(2, 3, 6),)
PAIR = (rand(2, 3, 4), rand(2, 3, 4))
BROADCAST = (rand(2, 3, 4), rand(3, 1))

# Row -> [(module, inputs)]: at least one for each row, one for each variant of its attributes.
CASES: dict[str, list[tuple[nn.Module, tuple[torch.Tensor, ...]]]] = {
    "conv2d": [
        (nn.Conv2d(4, 6, 3), IMAGE),
        (nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2), bias=False), IMAGE),
        (nn.Conv2d(4, 6, 3, groups=2), IMAGE),
        (nn.Conv2d(4, 8, 3, groups=4, padding="same", dilation=2), IMAGE),
        (nn.Conv2d(4, 6, (2, 4), padding="same"), IMAGE),
        (nn.Conv2d(4, 6, 3, padding="valid"), IMAGE),
    ],
    "linear": [
        (nn.Linear(6, 5), ROWS),
        (nn.Linear(6, 5, bias=False), ROWS),
        (nn.Linear(6, 5), SEQUENCE),
        (nn.Linear(6, 5, bias=False), SEQUENCE),
    ],
    "batch_norm": [(Norm(4), IMAGE), (Norm(4, eps=0.1, momentum=0.3), IMAGE)],
    "relu": [(nn.ReLU(), IMAGE), (nn.ReLU(inplace=True), ROWS)],
    "relu6": [(nn.ReLU6(), (4 * IMAGE[0],)), (Fn(F.relu6), (4 * ROWS[0],)), (nn.ReLU6(inplace=True), ROWS)],
    "sigmoid": [(nn.Sigmoid(), SEQUENCE)],
    "tanh": [(nn.Tanh(), SEQUENCE)],
    "clip": [
        (Fn(torch.clamp, min=-0.5, max=0.25), ROWS),
        (Fn(torch.clamp, min=0.1), ROWS),
        (Fn(torch.clamp, max=0.1), ROWS),
        (nn.Hardtanh(-0.5, 0.5), ROWS),
    ],
    "dropout": [(nn.Dropout(0.3), ROWS)],
    "add": [
        (Fn(torch.add), PAIR), (Fn(torch.add), BROADCAST), (Fn(torch.add, 1.5), ROWS), (Fn(torch.Tensor.add_), PAIR)
    ],
    "subtract": [(Fn(torch.sub), PAIR), (Fn(torch.sub), BROADCAST), (Fn(torch.sub, 1.5), ROWS)],
    "multiply": [(Fn(torch.mul), PAIR), (Fn(torch.mul), BROADCAST), (Fn(torch.mul, 2), ROWS)],
    "divide": [(Fn(torch.div), PAIR), (Fn(torch.div), BROADCAST), (Fn(torch.div, 3), ROWS)],
    "max_pool2d": [
        (nn.MaxPool2d(2), IMAGE),
        (nn.MaxPool2d((3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)), IMAGE),
        (nn.MaxPool2d(2, ceil_mode=True), IMAGE),
        (nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True), (rand(1, 2, 8, 10),)),
    ],
    "avg_pool2d": [
        (nn.AvgPool2d(2), IMAGE),
        (nn.AvgPool2d(3, stride=2, padding=1), IMAGE),
        (nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False), IMAGE),
        (nn.AvgPool2d(2, ceil_mode=True), IMAGE),
        (nn.AvgPool2d(3, stride=2, padding=1, ceil_mode=True), (rand(1, 2, 8, 10),)),
        (nn.AvgPool2d(3, stride=2, padding=1, ceil_mode=True, count_include_pad=False), (rand(1, 2, 8, 10),)),
    ],
    "adaptive_avg_pool2d": [(nn.AdaptiveAvgPool2d(1), IMAGE), (nn.AdaptiveAvgPool2d((3, 1)), IMAGE)],
    "mean": [
        (Fn(torch.mean, dim=(2, 3)), IMAGE),
        (Fn(torch.mean, dim=(-1,), keepdim=True), IMAGE),
        (Fn(torch.mean, dim=1), IMAGE),
        (Fn(torch.mean), ROWS),
    ],
    "softmax": [(nn.Softmax(-1), IMAGE), (nn.Softmax(1), IMAGE)],
    "flatten": [(nn.Flatten(), IMAGE), (nn.Flatten(2), IMAGE), (nn.Flatten(0, 1), IMAGE), (nn.Flatten(1, -2), IMAGE)],
    "reshape": [
        (Fn(torch.reshape, (2, 4, 63)), IMAGE),
        (Fn(torch.reshape, (8, -1)), IMAGE),
        (Fn(torch.Tensor.view, 2, 2, 2, 9, 7), IMAGE),
    ],
    "concat": [
        (Fn(lambda *parts: torch.cat(parts, 1)), PAIR),
        (Fn(lambda *parts: torch.cat(parts, -1)), PAIR),
        (Fn(lambda x: torch.cat((x, x, x))), ROWS),
    ],
}  # fmt: skip
NODES = [(row, index) for row, cases in CASES.items() for index in range(len(cases))]

# A node that torch has no module for: (op, inputs, attributes, what it should compute).
ASYMMETRIC = {"padding": (1, 0, 2, 1)}  # top, left, bottom, right
DIRECT = {
    "conv2d": ({"x": rand(2, 4, 9, 7), "w": rand(6, 4, 3, 3)}, ASYMMETRIC,
               lambda x, w: F.conv2d(F.pad(x, (0, 1, 1, 2)), w)),
    "max_pool2d": ({"x": rand(2, 4, 9, 7) - 5}, ASYMMETRIC | {"kernel": (3, 3), "stride": (2, 2)},
                   lambda x: F.max_pool2d(F.pad(x, (0, 1, 1, 2), value=-torch.inf), 3, 2)),
    "avg_pool2d": ({"x": rand(2, 4, 9, 7)}, ASYMMETRIC | {"kernel": (3, 3), "stride": (2, 2)},
                   lambda x: F.avg_pool2d(F.pad(x, (0, 1, 1, 2)), 3, 2)),
    "clip": ({"x": rand(3, 6)}, {}, lambda x: x),
}  # fmt: skip


def run_torch(graph: MSCGraph, feeds: dict[str, np.ndarray]) -> np.ndarray:
    module = to_torch(graph).eval()
    with torch.no_grad():
        return module(**{name: torch.from_numpy(array.copy()) for name, array in feeds.items()}).numpy()


def run_source(graph: MSCGraph, feeds: dict[str, np.ndarray], folder) -> np.ndarray:
    save_torch(graph, folder)
    namespace: dict[str, object] = {"__file__": str(folder / "model.py"), "__name__": "model"}
    exec((folder / "model.py").read_text(), namespace)  # noqa: S102
    with torch.no_grad():
        return namespace["load"]()(*(torch.from_numpy(a.copy()) for a in feeds.values())).numpy()


def run_backend(target: str) -> Callable[..., np.ndarray]:
    def run(graph: MSCGraph, feeds: dict[str, np.ndarray], folder) -> np.ndarray:
        with build(graph, target) as runner:
            (output,) = runner.run(feeds).values()
        return output

    return run


TARGETS = {
    "torch": lambda graph, feeds, folder: run_torch(graph, feeds),
    "torch source": run_source,
    "onnxruntime": run_backend("onnxruntime"),
}
if available("tvm")[0]:
    TARGETS |= {target: run_backend(target) for target in ("tvm", "tvm:stock")}


@functools.cache
def imported(row: str, index: int) -> tuple[MSCGraph, dict[str, np.ndarray], np.ndarray]:
    """The graph of a case, its feeds, and torch's answer."""
    module, inputs = CASES[row][index]
    module.eval()
    graph = from_torch(module, tuple(t.clone() for t in inputs))
    with torch.no_grad():
        expected = module(*(t.clone() for t in inputs)).numpy()
    return graph, {name: t.numpy() for name, t in zip(graph.inputs, inputs, strict=True)}, expected


def single(op: str, inputs: dict[str, torch.Tensor], attrs: dict[str, object]) -> MSCGraph:
    """A graph of one node, whose inputs are the graph's."""
    tensors = {name: Tensor(name, tuple(t.shape)) for name, t in inputs.items()}
    tensors["y"] = Tensor("y", ())
    node = Node("node", op, tuple(inputs), ("y",), attrs)
    return infer(MSCGraph("one", (node,), tuple(inputs), ("y",), {}, tensors))


def test_every_row_has_a_case():
    assert CASES.keys() == OPS.keys()


@pytest.mark.parametrize(("row", "index"), NODES)
def test_import_uses_the_row_and_infers_torchs_shape(row, index):
    graph, _, expected = imported(row, index)
    assert row in [node.op for node in graph.nodes]
    assert graph.tensors[graph.outputs[0]].shape == expected.shape
    assert infer(graph) == graph


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("row", "index"), NODES)
def test_target_agrees_with_torch(row, index, target, tmp_path):
    graph, feeds, expected = imported(row, index)
    found = TARGETS[target](graph, feeds, tmp_path)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", DIRECT)
def test_a_form_that_only_the_graph_has(op, target, tmp_path):
    inputs, attrs, expected = DIRECT[op]
    graph = single(op, inputs, attrs)
    found = TARGETS[target](graph, {name: t.numpy() for name, t in inputs.items()}, tmp_path)
    np.testing.assert_allclose(found, expected(*inputs.values()).numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("target", "op", "attrs"),
    [
        ("torch", "avg_pool2d", ASYMMETRIC | {"kernel": (3, 3), "count_include_pad": False}),
        ("onnxruntime", "adaptive_avg_pool2d", {"size": (2, 2)}),
    ],
)
def test_what_a_target_cannot_say_is_refused(target, op, attrs):
    with pytest.raises(UnsupportedOperator, match=f"node 'node' \\({op}\\)"):
        build(single(op, {"x": rand(2, 4, 9, 7)}, attrs), target)


@pytest.mark.parametrize(
    ("op", "shapes", "attrs", "message"),
    [
        ("conv2d", [(2, 4, 9, 7), (6, 3, 3, 3)], {}, "input 1 has 3 where axis 'i' is 4"),
        ("conv2d", [(2, 4, 9, 7), (6, 4, 10, 3)], {}, "its output would have shape"),
        ("conv2d", [(2, 4, 9, 7), (6, 4, 3, 3)], {"strides": 2}, "no attribute 'strides'; did you mean 'stride'"),
        ("linear", [(2, 4), (3, 5)], {}, "input 1 has 5 where axis 'i' is 4"),
        ("linear", [(2, 4), (3, 4), (4,)], {}, "input 2 has 4 where axis 'o' is 3"),
        ("add", [(2, 3), (4,)], {}, "input 1 has 4 where axis '...0' is 3"),
        ("reshape", [(2, 3)], {"shape": (4, 2)}, "cannot reshape"),
        ("concat", [(2, 3), (3, 4)], {"axis": 1}, "cannot concatenate"),
        ("relu", [(2, 3), (2, 3)], {}, "2 inputs found, at most 1 expected"),
    ],
)
def test_inputs_that_do_not_fit_name_the_node(op, shapes, attrs, message):
    with pytest.raises(InvalidGraph, match="node 'node'") as error:
        single(op, {f"x{i}": torch.zeros(shape) for i, shape in enumerate(shapes)}, attrs)
    assert message in str(error.value)
