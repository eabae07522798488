"""Conformance of the op table: every row, imported from torch, gives torch's answer on every target."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module

import numpy as np
import pytest
import torch

from msc_core import MSCGraph, Node, Tensor, build, from_torch, to_torch
from msc_core.backends import available
from msc_core.codegen.torch import save_torch
from msc_core.errors import InvalidGraph, UnsupportedOperator
from msc_core.infer import describe, infer
from msc_core.ops import FAMILIES, OPS, Refuse, bind
from tests.op_cases.inputs import Case, Direct, rand

MODULES = {family: import_module(f"tests.op_cases.{family}") for family in FAMILIES}
CASES: dict[str, list[Case]] = {row: cases for module in MODULES.values() for row, cases in module.CASES.items()}
DIRECT: dict[str, list[Direct]] = {row: cases for module in MODULES.values() for row, cases in module.DIRECT.items()}
NODES = [(row, index) for row, cases in CASES.items() for index in range(len(cases))]
FORMS = [(row, index) for row, cases in DIRECT.items() for index in range(len(cases))]
Arrays = list[np.ndarray]


def arrays(results) -> Arrays:
    """The outputs of a module, flattened, as NumPy arrays."""
    return [t.numpy() for t in torch.utils._pytree.tree_leaves(results) if isinstance(t, torch.Tensor)]


def run_torch(graph: MSCGraph, feeds: dict[str, np.ndarray]) -> Arrays:
    module = to_torch(graph).eval()
    with torch.no_grad():
        return arrays(module(**{name: torch.from_numpy(array.copy()) for name, array in feeds.items()}))


def run_source(graph: MSCGraph, feeds: dict[str, np.ndarray], folder) -> Arrays:
    save_torch(graph, folder)
    namespace: dict[str, object] = {"__file__": str(folder / "model.py"), "__name__": "model"}
    exec((folder / "model.py").read_text(), namespace)  # noqa: S102
    with torch.no_grad():
        return arrays(namespace["load"]()(*(torch.from_numpy(a.copy()) for a in feeds.values())))


def run_backend(target: str) -> Callable[..., Arrays]:
    def run(graph: MSCGraph, feeds: dict[str, np.ndarray], folder) -> Arrays:
        with build(graph, target) as runner:
            return list(runner.run(feeds).values())

    return run


TARGETS = {
    "torch": lambda graph, feeds, folder: run_torch(graph, feeds),
    "torch source": run_source,
    "onnxruntime": run_backend("onnxruntime"),
}
if available("tvm")[0]:
    TARGETS |= {target: run_backend(target) for target in ("tvm", "tvm:stock")}
MARKED = [
    pytest.param(t, marks=pytest.mark.slow) if t == "tvm:stock" else t for t in TARGETS
]  # tvm with another schedule
VOCABULARY = {"torch": "torch", "torch source": "torch", "onnxruntime": "onnx", "tvm": "relax", "tvm:stock": "relax"}


@functools.cache
def imported(row: str, index: int) -> tuple[MSCGraph, dict[str, np.ndarray], Arrays]:
    """The graph of a case, its feeds, and torch's answer."""
    module, inputs = CASES[row][index]
    module.eval()
    graph = from_torch(module, tuple(t.clone() for t in inputs))
    with torch.no_grad():
        expected = arrays(module(*(t.clone() for t in inputs)))
    return graph, {name: t.numpy() for name, t in zip(graph.inputs, inputs, strict=True)}, expected


def one_node(op: str, inputs: dict[str, torch.Tensor | None], attrs: dict[str, object]) -> MSCGraph:
    """A graph of one node, whose inputs and outputs are the graph's; an input that is `None` is absent."""
    given = {name: t for name, t in inputs.items() if t is not None}
    tensors = {name: Tensor(name, tuple(t.shape), str(t.dtype).removeprefix("torch.")) for name, t in given.items()}
    names = tuple(name if name in given else "" for name in inputs)
    described = describe(bind(Node("node", op, names, (), attrs), tensors))
    outputs = ("y", "y1", "y2", "y3")[: len(described)]
    tensors |= {name: Tensor(name, ()) for name in outputs}
    return infer(MSCGraph("one", (Node("node", op, names, outputs, attrs),), tuple(given), outputs, {}, tensors))


def check(graph: MSCGraph, target: str, feeds: dict[str, np.ndarray], expected: Arrays, folder) -> None:
    """The target's answer is the expected one, or its row says that it has no words for the operator."""
    refusals = [getattr(OPS[node.op], VOCABULARY[target]) for node in graph.nodes]
    if any(isinstance(r, Refuse) for r in refusals):
        with pytest.raises(UnsupportedOperator, match=r"node .*: "):
            TARGETS[target](graph, feeds, folder)
        return
    found = TARGETS[target](graph, feeds, folder)
    assert [f.dtype for f in found] == [e.dtype for e in expected]
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(f, e, rtol=1e-5, atol=1e-5)


def test_every_row_has_a_case():
    for family, rows in FAMILIES.items():
        assert {op.name for op in rows} == MODULES[family].CASES.keys() | MODULES[family].DIRECT.keys(), family


@pytest.mark.parametrize(("row", "index"), NODES)
def test_import_uses_the_row_and_infers_torchs_shape(row, index):
    graph, _, expected = imported(row, index)
    assert row in [node.op for node in graph.nodes]
    assert [graph.tensors[name].shape for name in graph.outputs] == [e.shape for e in expected]
    assert infer(graph) == graph


@pytest.mark.parametrize("target", MARKED)
@pytest.mark.parametrize(("row", "index"), NODES)
def test_target_agrees_with_torch(row, index, target, tmp_path):
    graph, feeds, expected = imported(row, index)
    check(graph, target, feeds, expected, tmp_path)


@pytest.mark.parametrize("target", MARKED)
@pytest.mark.parametrize(("row", "index"), FORMS)
def test_a_form_that_only_the_graph_has(row, index, target, tmp_path):
    inputs, attrs, expected = DIRECT[row][index]
    feeds = {name: t.numpy() for name, t in inputs.items() if t is not None}
    check(one_node(row, inputs, attrs), target, feeds, arrays(expected(*inputs.values())), tmp_path)


@pytest.mark.parametrize(
    ("target", "op", "attrs"),
    [
        ("onnxruntime", "adaptive_max_pool2d_indices", {"size": (2, 2)}),
        ("tvm", "adaptive_max_pool2d_indices", {"size": (2, 2)}),
    ],
)
def test_what_a_target_cannot_say_is_refused(target, op, attrs):
    with pytest.raises(UnsupportedOperator, match=f"node 'node' \\({op}\\)"):
        build(one_node(op, {"x": rand(2, 4, 9, 7)}, attrs), target)


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
        one_node(op, {f"x{i}": torch.zeros(shape) for i, shape in enumerate(shapes)}, attrs)
    assert message in str(error.value)
