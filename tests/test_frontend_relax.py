"""`from_relax`: what `to_relax` writes comes back the same; modules of TVM's own front ends compute what torch does."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
import tvm
from torch import nn

from experiments import models
from msc_core import MSCGraph, from_relax, from_torch, to_onnx, to_relax, to_torch
from msc_core.errors import MscError, UnsupportedOperator
from msc_core.ops import OPS, Refuse
from tests.micro_networks import randomized
from tests.test_ops import DIRECT, FORMS, NODES, arrays, imported, one_node, run_torch

relax = tvm.relax
R = tvm.relax.op


def agree(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert [f.dtype for f in found] == [e.dtype for e in expected]
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(f, e, rtol=1e-5, atol=1e-5)


def there_and_back(graph: MSCGraph, feeds: dict[str, np.ndarray], expected: list[np.ndarray]) -> None:
    """Through Relax and back, unless a row says that Relax has no words for it."""
    if any(isinstance(OPS[node.op].relax, Refuse) for node in graph.nodes):
        with pytest.raises(UnsupportedOperator, match=r"node .*: "):
            to_relax(graph)
        return
    back = from_relax(to_relax(graph))
    assert back.inputs == graph.inputs
    assert [back.tensors[name] for name in back.outputs] == [graph.tensors[name] for name in graph.outputs]
    agree(run_torch(back, feeds), expected)


@pytest.mark.parametrize(("row", "index"), NODES)
def test_every_row_survives_the_round_trip(row, index):
    graph, feeds, expected = imported(row, index)
    there_and_back(graph, feeds, expected)


@pytest.mark.parametrize(("row", "index"), FORMS)
def test_every_form_survives_the_round_trip(row, index):
    inputs, attrs, expected = DIRECT[row][index]
    feeds = {name: t.numpy() for name, t in inputs.items() if t is not None}
    there_and_back(one_node(row, inputs, attrs), feeds, arrays(expected(*inputs.values())))


# Whole networks


class Encoder(nn.Module):
    """A small transformer encoder with an embedding."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, tokens):
        return self.head(self.layer(self.embed(tokens)).mean(1))


NETWORKS = {
    **{name: (lambda name=name: getattr(models, name)(8), lambda: torch.randn(2, 1, 28, 28)) for name in
       ("ResNet20", "MobileNet", "VGG", "MLP")},
    "Encoder": (Encoder, lambda: torch.randint(20, (2, 6))),
}  # fmt: skip


def network(name: str) -> tuple[nn.Module, torch.Tensor]:
    make, data = NETWORKS[name]
    torch.manual_seed(0)
    return randomized(make()), data()


def same_answers(graph: MSCGraph, module: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        expected = module(x)
        found = to_torch(graph).eval()(x)
    assert (found - expected).abs().max() < 2e-5 * expected.abs().max()


@pytest.mark.parametrize("params", ["bound", "free"])
@pytest.mark.parametrize("name", NETWORKS)
def test_network_there_and_back(name, params):
    module, x = network(name)
    graph = from_torch(module, x, dynamic_shapes=({0: "N"},))
    back = from_relax(to_relax(graph, params), params=dict(graph.weights) if params == "free" else None)
    same_answers(back, module, x)
    assert back.tensors[back.inputs[0]] == graph.tensors[graph.inputs[0]]
    assert {out for node in graph.nodes for out in node.outputs if node.op != "dropout"} <= back.tensors.keys()
    if params == "free":
        assert all(back.weights[name].tobytes() == w.tobytes() for name, w in graph.weights.items())
    pieces = {
        "linear": Counter(matmul=1, permute_dims=1, add=1),
        "flatten": Counter(reshape=1),
        "relu6": Counter(clip=1),
    }
    ops = Counter(node.op for node in graph.nodes)
    if ops.keys() <= {"conv2d", "batch_norm", "relu", "add", "adaptive_avg_pool2d", "max_pool2d", *pieces}:
        expected = sum((Counter({op: n}) if op not in pieces else Counter(dict.fromkeys(pieces[op], n))
                        for op, n in ops.items()), Counter())  # fmt: skip
        assert Counter(node.op for node in back.nodes) == expected


@pytest.mark.parametrize("name", NETWORKS)
def test_module_of_tvms_torch_frontend(name):
    from tvm.relax.frontend.torch import from_exported_program

    module, x = network(name)
    batch = torch.export.Dim("batch", min=2, max=100)
    program = torch.export.export(module.eval(), (x,), dynamic_shapes=({0: batch},))
    graph = from_relax(from_exported_program(program))
    assert isinstance(graph.tensors[graph.inputs[0]].shape[0], str)
    for data in (x, torch.cat([x, x[:1]])):
        same_answers(graph, module, data)


def test_parameters_that_tvms_torch_frontend_leaves_free():
    from tvm.relax.frontend.torch import from_exported_program

    module, x = network("MLP")
    free = from_exported_program(torch.export.export(module.eval(), (x,)), keep_params_as_input=True)
    same_answers(from_relax(free), module, x)
    detached, params = relax.frontend.detach_params(free)
    same_answers(from_relax(detached, params=params["main"]), module, x)


@pytest.mark.parametrize("name", NETWORKS)
def test_module_of_tvms_onnx_frontend(name):
    from tvm.relax.frontend.onnx import from_onnx

    module, x = network(name)
    graph = from_relax(from_onnx(to_onnx(from_torch(module, x, dynamic_shapes=({0: "N"},)))))
    assert graph.tensors[graph.inputs[0]].shape[0] == "N"
    for data in (x, torch.cat([x, x[:1]])):
        same_answers(graph, module, data)


# Modules built by hand


def build(emit, *inputs, outputs=None, attrs=None):
    """A module whose `main` is what `emit` makes of some variables."""
    block = relax.BlockBuilder()
    with block.function("main", list(inputs), attrs=attrs or {}):
        with block.dataflow():
            result = block.emit_output(emit(block, *inputs))
        block.emit_func_output(result)
    return block.get()


def var(name: str, *shape, dtype: str = "float32"):
    return relax.Var(name, relax.TensorType(list(shape), dtype))


def constant(*shape: int) -> tuple[torch.Tensor, object]:
    value = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    return value, relax.const(value.numpy(), "float32")


def test_nested_tuples_in_and_out():
    n = tvm.tirx.Var("n", "int64")
    pair = relax.Var("pair", relax.TupleType([relax.TensorType([n, 3], "float32")] * 2))
    x = var("x", n, 3)

    def emit(block, pair, x):
        total = block.emit(R.add(relax.TupleGetItem(pair, 0), relax.TupleGetItem(pair, 1)))
        return relax.Tuple([relax.Tuple([total, x]), block.emit(R.nn.relu(total))])

    graph = from_relax(build(emit, pair, x))
    assert graph.inputs == ("pair.0", "pair.1", "x")
    assert [graph.tensors[name].shape for name in graph.outputs] == [("n", 3)] * 3
    a, b, c = torch.randn(3, 2, 3)
    agree(arrays(to_torch(graph)(a, b, c)), arrays([a + b, c, torch.relu(a + b)]))


def test_sizes_become_symbols_and_expressions():
    n, m = tvm.tirx.Var("batch size", "int64"), tvm.tirx.Var("m", "int64")

    def emit(block, x):
        shape = block.emit(R.shape_of(x))
        flat = block.emit(R.reshape(x, (n * m * 2,)))
        pieces = block.emit(R.reshape(flat, (m, n * 2)))
        return block.emit(R.add(pieces, block.emit(R.reshape(block.emit(R.reshape(flat, shape)), (m, n * 2)))))

    graph = from_relax(build(emit, var("x", n, m, 2)))
    assert graph.tensors["x"].shape == ("batch_size", "m", 2)
    assert graph.tensors[graph.outputs[0]].shape == ("m", "2*batch_size")
    x = torch.randn(3, 4, 2)
    torch.testing.assert_close(to_torch(graph)(x), 2 * x.reshape(4, 6))


def test_match_cast_names_a_size():
    n, k = tvm.tirx.Var("n", "int64"), tvm.tirx.Var("k", "int64")

    def emit(block, x):
        y = block.match_cast(block.emit(R.concat([x, x], axis=0)), relax.TensorType([k, 3], "float32"))
        return block.emit(R.reshape(y, (k * 3,)))

    graph = from_relax(build(emit, var("x", n, 3)))
    assert graph.tensors[graph.outputs[0]].shape == ("6*n",)


def test_match_cast_that_cannot_be_proved_is_refused():
    n = tvm.tirx.Var("n", "int64")
    module = build(lambda block, x: block.match_cast(x, relax.TensorType([4, 3], "float32")), var("x", n, 3))
    with pytest.raises(UnsupportedOperator, match=r"its shape is \['n', 3\] here"):
        from_relax(module)


def test_functions_are_imported_in_place():
    weight, const = constant(4, 4)
    block = relax.BlockBuilder()
    n, k = tvm.tirx.Var("n", "int64"), tvm.tirx.Var("k", "int64")
    a, x = var("a", k, 4), var("x", n, 4)
    with block.function("dense", [a], private=True):
        with block.dataflow():
            inner = block.emit(R.matmul(a, const), "inner")
            out = block.emit_output(R.nn.relu(inner))
        block.emit_func_output(out)
    dense = block.get().get_global_var("dense")
    with block.function("main", [x]):
        with block.dataflow():
            first = block.emit(relax.Call(dense, [x]), "first")
            result = block.emit_output(relax.Call(dense, [first]))
        block.emit_func_output(result)
    graph = from_relax(block.get())
    assert [out for node in graph.nodes for out in node.outputs] == ["first.inner", "first", "gv1.inner", "gv1"]
    assert list(graph.weights) == ["first.inner.x2"]
    data = torch.randn(2, 4)
    torch.testing.assert_close(to_torch(graph)(data), torch.relu(torch.relu(data @ weight) @ weight))


def test_composites_of_tvms_own_fusion():
    module, x = network("MLP")
    mod = to_relax(from_torch(module, x))
    pattern = relax.dpl.is_op("relax.matmul")(relax.dpl.wildcard(), relax.dpl.wildcard())
    fused = relax.transform.FuseOpsByPattern([("some.matmul", pattern)], annotate_codegen=True)(mod)
    assert len(fused.get_global_vars()) > 1
    same_answers(from_relax(fused), module, x)


def test_layouts_other_than_ours():
    weight, _ = constant(6, 4, 3, 3)
    kernel = relax.const(weight.permute(2, 3, 1, 0).contiguous().numpy(), "float32")

    def emit(block, x):
        y = block.emit(R.nn.conv2d(x, kernel, padding=1, data_layout="NHWC", kernel_layout="HWIO"))
        return block.emit(R.nn.max_pool2d(y, 2, 2, layout="NHWC"))

    graph = from_relax(build(emit, var("x", 2, 8, 6, 4)))
    x = torch.randn(2, 8, 6, 4)
    y = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), weight, padding=1)
    torch.testing.assert_close(to_torch(graph)(x), torch.nn.functional.max_pool2d(y, 2).permute(0, 2, 3, 1))


def test_a_constant_read_twice_stays_one_weight():
    _, const = constant(3)
    graph = from_relax(build(lambda block, x: block.emit(R.multiply(block.emit(R.add(x, const)), const)), var("x", 3)))
    assert list(graph.weights) == ["lv.x2"]


def test_an_alias_that_is_an_output_keeps_its_name():
    def emit(block, x):
        y = relax.Var("y", relax.TensorType([3], "float32"))
        block.emit_normalized(relax.VarBinding(y, block.emit(R.nn.relu(x))))
        return relax.Tuple([y])

    block = relax.BlockBuilder()
    x = var("x", 3)
    with block.function("main", [x]):
        block.emit_func_output(emit(block, x))
    assert from_relax(block.get()).outputs == ("y",)


# What is refused


def test_parameters_need_values():
    graph = from_torch(nn.Linear(3, 4), torch.randn(2, 3))
    mod = to_relax(graph, "free")
    with pytest.raises(MscError, match="parameter 'weight' has no value; give it: params="):
        from_relax(mod)
    with pytest.raises(MscError, match="params has 'wieght', which is no parameter; did you mean 'weight'"):
        from_relax(mod, params={"wieght": graph.weights["weight"], "bias": graph.weights["bias"]})
    with pytest.raises(MscError, match="1 params given; the module has 2 behind its inputs"):
        from_relax(mod, params=[graph.weights["weight"]])
    with pytest.raises(MscError, match="parameter 'weight': its shape is"):
        from_relax(mod, params={"weight": np.zeros((4, 4), np.float32), "bias": graph.weights["bias"]})
    assert from_relax(mod, params=list(graph.weights.values())).weights.keys() == graph.weights.keys()


def test_lowered_modules_are_refused():
    graph = from_torch(nn.ReLU(), torch.randn(2, 3))
    with pytest.raises(UnsupportedOperator, match=r"binding '.*' \(call_tir\): it calls relu, a kernel .* LegalizeOps"):
        from_relax(relax.transform.LegalizeOps()(to_relax(graph)))


def test_external_code_is_refused():
    def emit(block, x):
        return block.emit(R.call_dps_packed("my.kernel", x, out_ty=relax.TensorType([3], "float32")))

    with pytest.raises(UnsupportedOperator, match=r"\(call_dps_packed\): it calls my.kernel"):
        from_relax(build(emit, var("x", 3)))


def test_an_unknown_operator_names_the_binding():
    module = build(lambda block, x: block.emit(R.ccl.allreduce(x), "all"), var("x", 3))
    with pytest.raises(
        UnsupportedOperator, match=r"binding 'all' \(ccl.allreduce\): the operator is not in the op table"
    ):
        from_relax(module)


def test_an_input_without_a_shape_is_refused():
    module = build(lambda block, x: block.emit(R.nn.relu(x)), relax.Var("x", relax.TensorType(dtype="float32", ndim=2)))
    with pytest.raises(UnsupportedOperator, match="input 'x' has no shape"):
        from_relax(module)


def test_an_unknown_entry_names_the_nearest():
    module = to_relax(from_torch(nn.ReLU(), torch.randn(2, 3)))
    with pytest.raises(MscError, match="no Relax function 'mian'; did you mean 'main'"):
        from_relax(module, entry="mian")
