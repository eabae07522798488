"""`from_onnx`: names, weights and symbols survive; shapes are followed; what cannot be imported says why."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from experiments.models import MLP, MobileNet, ResNet20
from msc_core import MscError, MSCGraph, from_onnx, from_torch, to_onnx, to_torch
from msc_core.errors import InvalidGraph, UnsupportedOperator
from msc_core.frontends import onnx_values

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
node = helper.make_node
OUTSIDE = "weights are read from the model's own folder only"


def info(name, *shape, dtype=FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def untyped(name, dtype=FLOAT):
    return helper.make_tensor_value_info(name, dtype, None)


def model(nodes, inputs, outputs, weights=None, opset=18, functions=(), value_info=()):
    weights = [numpy_helper.from_array(np.asarray(a), n) for n, a in (weights or {}).items()]
    graph = helper.make_graph(nodes, "net", inputs, outputs, weights, value_info=value_info)
    opsets = [helper.make_opsetid("", opset)] + [helper.make_opsetid(f.domain, 1) for f in functions]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=functions)


def answer(graph: MSCGraph, **feeds):
    """What the graph computes in torch."""
    with torch.no_grad():
        found = to_torch(graph).eval()(**{name: torch.from_numpy(np.asarray(a)) for name, a in feeds.items()})
    return [t.detach().numpy() for t in torch.utils._pytree.tree_leaves(found)]


def reference(proto, **feeds):
    """What ONNX Runtime makes of the model."""
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {name: np.asarray(a) for name, a in feeds.items()})


def agrees(proto, **feeds) -> MSCGraph:
    graph = from_onnx(proto)
    for found, expected in zip(answer(graph, **feeds), reference(proto, **feeds), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    return graph


def ones(*shape):
    return np.ones(shape, np.float32)


def ints(*values):
    return np.asarray(values, np.int64)


# Names, weights, symbols


@pytest.mark.parametrize("network", [MLP, MobileNet, ResNet20])
def test_a_network_there_and_back(network, tmp_path):
    torch.manual_seed(0)
    images = torch.randn(3, 1, 28, 28)
    module = network().eval()
    there = from_torch(module, images, dynamic_shapes=({0: "N"},))
    onnx.save(to_onnx(there), tmp_path / "net.onnx")
    back = from_onnx(tmp_path / "net.onnx")
    assert back.inputs == there.inputs and back.outputs == there.outputs
    assert back.tensors["x"].shape == ("N", 1, 28, 28)
    for name, array in there.weights.items():
        np.testing.assert_array_equal(back.weights[name], array)
    with torch.no_grad():
        np.testing.assert_allclose(answer(back, x=images.numpy())[0], module(images).numpy(), rtol=1e-5, atol=1e-5)


def test_names_are_kept_and_an_unnamed_node_takes_its_outputs():
    proto = model(
        [node("Relu", ["a:0"], ["b/c"], "first"), node("Add", ["b/c", "w.é"], ["out put"])],
        [info("a:0", 2)],
        [info("out put", 2)],
        {"w.é": np.float32([1, 2])},
    )
    graph = from_onnx(proto)
    assert [(n.name, n.inputs, n.outputs) for n in graph.nodes] == [
        ("first", ("a:0",), ("b/c",)),
        ("out put", ("b/c", "w.é"), ("out put",)),
    ]
    assert (graph.name, graph.inputs, graph.outputs, list(graph.weights)) == ("net", ("a:0",), ("out put",), ["w.é"])
    assert from_onnx(proto, name="mine").name == "mine"


def test_names_that_we_would_make_up_are_left_to_the_model():
    proto = model(
        [
            node("Gemm", ["x", "w"], ["y"], "n", alpha=2.0, transB=1),
            node("Relu", ["y"], ["n.matmul"], "n.matmul"),
            node("Relu", ["n.matmul"], ["n.multiply"], "n.multiply"),
        ],
        [info("x", 2, 3)],
        [info("n.multiply", 2, 4)],
        {"w": ones(4, 3)},
    )
    graph = agrees(proto, x=ones(2, 3))
    assert graph.outputs == ("n.multiply",)
    assert graph.node("n.matmul").outputs == ("n.matmul",) and graph.node("n.multiply").op == "relu"


@pytest.mark.parametrize("dtype", ["int8", "uint8", "float16", "bfloat16", "int32", "bool", "float64"])
def test_weights_keep_their_bits(dtype):
    import ml_dtypes

    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    array = np.asarray([[0, 1, 2], [3, 4, 5]]).astype(kind)
    code = helper.np_dtype_to_tensor_dtype(kind)
    proto = model([node("Identity", ["w"], ["y"])], [], [info("y", 2, 3, dtype=code)], {"w": array})
    graph = from_onnx(proto)
    assert graph.weights["w"].dtype == kind
    assert graph.weights["w"].tobytes() == array.tobytes()


def test_named_dimensions_become_symbols_and_distinct_ones_stay_distinct():
    proto = model(
        [node("Relu", [name], [f"{name}_out"]) for name in "xyz"],
        [info("x", "batch size", "batch_size", None), info("y", "lambda", 2, "N"), info("z", "2*N", "a/b", "c?")],
        [untyped(f"{name}_out") for name in "xyz"],
    )
    shapes = [from_onnx(proto).tensors[name].shape for name in "xyz"]
    assert shapes == [("batch_size_1", "batch_size", "x_2"), ("lambda_", 2, "N"), ("2*N", "a_b", "c_")]


def test_shapes_binds_dimensions_everywhere():
    proto = model([node("Add", ["x", "y"], ["z"])], [info("x", "N", 3), info("y", "N", 3)], [info("z", "N", 3)])
    graph = from_onnx(proto, shapes={"x": (4, 3)})
    assert [graph.tensors[name].shape for name in "xyz"] == [(4, 3)] * 3
    assert from_onnx(proto, shapes={"x": ("batch", 3), "y": ("batch", 3)}).tensors["z"].shape == ("batch", 3)
    for shapes, message in [
        ({"a": (1,)}, "shapes names 'a', which is no input"),
        ({"x": (1,)}, "shapes gives 'x' 1 dimensions; the model has 2"),
        ({"x": (1, 4)}, "shapes gives 'x' 4 on axis 1; the model says 3"),
        ({"x": (1, 3), "y": (2, 3)}, "shapes gives 'N' two values: 1 and 2"),
        ({"x": (-1, 3)}, "the size -1"),
        ({"x": ("N N", 3)}, "is not a dimension"),
    ]:
        with pytest.raises(MscError, match=message):
            from_onnx(proto, shapes=shapes)


def test_an_input_without_a_shape_is_asked_for_it():
    proto = model([node("Relu", ["x"], ["y"])], [untyped("x")], [untyped("y")])
    with pytest.raises(InvalidGraph, match=r"'x' has no shape; say it with shapes="):
        from_onnx(proto)
    assert from_onnx(proto, shapes={"x": ("N", 2)}).tensors["y"].shape == ("N", 2)


def test_inputs_that_are_initializers_are_weights():
    proto = model([node("Add", ["x", "w"], ["y"])], [info("x", 2), info("w", 2)], [info("y", 2)], {"w": ones(2)})
    assert from_onnx(proto).inputs == ("x",)


def test_outputs_keep_their_names_whatever_they_are():
    proto = model(
        [node("Identity", ["x"], ["same"]), node("Identity", ["w"], ["weight"]), node("Dropout", ["x"], ["dropped"])],
        [info("x", 2)],
        [info("same", 2), info("weight", 2), info("dropped", 2), info("x", 2), info("w", 2)],
        {"w": ones(2)},
    )
    graph = from_onnx(proto)
    assert graph.outputs == ("same", "weight", "dropped", "x", "w")
    assert [a.tolist() for a in answer(graph, x=np.float32([3, 4]))] == [[3, 4], [1, 1], [3, 4], [3, 4], [1, 1]]


# Shapes that are computed in the model


def chain():
    """Flatten as exporters write it: Shape, Gather, Unsqueeze, Concat, Reshape."""
    return [
        node("Shape", ["x"], ["s"]),
        node("Constant", [], ["zero"], value_int=0),
        node("Gather", ["s", "zero"], ["n"]),
        node("Constant", [], ["axes"], value_ints=[0]),
        node("Unsqueeze", ["n", "axes"], ["n1"]),
        node("Constant", [], ["rest"], value_ints=[-1]),
        node("Concat", ["n1", "rest"], ["shape"], axis=0),
        node("Reshape", ["x", "shape"], ["y"]),
    ]


def test_a_computed_shape_is_followed_symbolically():
    proto = model(chain(), [info("x", "N", 3, 4)], [untyped("y")])
    graph = agrees(proto, x=np.random.default_rng(0).random((2, 3, 4), np.float32))
    assert graph.tensors["y"].shape == ("N", 12)
    assert [n.op for n in graph.nodes] == ["reshape"]


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([node("Add", ["s", "s"], ["y"])], ("2*N", 6, "2*M")),
        ([node("Sub", ["s", "two"], ["y"])], ("N - 2", 1, "M - 2")),
        ([node("Mul", ["s", "two"], ["y"])], ("2*N", 6, "2*M")),
        ([node("Div", ["s", "two"], ["y"])], ("(N//2)", 1, "(M//2)")),
        ([node("Mod", ["s", "two"], ["y"])], ("-2*(N//2) + N", 1, "-2*(M//2) + M")),
        ([node("Max", ["s", "two"], ["y"])], ("max(2, N)", 3, "max(2, M)")),
        ([node("Min", ["s", "two"], ["y"])], ("min(2, N)", 2, "min(2, M)")),
        ([node("ReduceProd", ["s"], ["y"])], ("3*M*N",)),
        ([node("ReduceSum", ["s"], ["y"], keepdims=0)], "M + N + 3"),
        ([node("ReduceMax", ["s"], ["y"])], ("max(M, max(3, N))",)),
        ([node("Size", ["x"], ["y"])], "3*M*N"),
        ([node("Shape", ["x"], ["y"], start=-2)], (3, "M")),
        ([node("Slice", ["s", "first", "second", "first", "second"], ["y"])], ("N",)),
        ([node("Gather", ["s", "indices"], ["y"])], ("M", "N")),
        ([node("Cast", ["s"], ["f"], to=FLOAT), node("Cast", ["f"], ["y"], to=INT64)], ("N", 3, "M")),
        (
            [
                node("Cast", ["s"], ["f"], to=FLOAT),
                node("Mul", ["f", "scale"], ["g"]),
                node("Floor", ["g"], ["h"]),
                node("Cast", ["h"], ["y"], to=INT64),
            ],
            ("2*N", 6, "2*M"),
        ),
        (
            [node("Equal", ["s", "minus"], ["e"]), node("Where", ["e", "two", "s"], ["y"])],
            ("N", 3, "M"),
        ),
        ([node("Less", ["s", "first"], ["e"]), node("Where", ["e", "two", "s"], ["y"])], ("N", 3, "M")),
        ([node("Split", ["s", "parts"], ["a", "y"], axis=0)], (3, "M")),
        ([node("Expand", ["size", "two"], ["y"])], ("3*M*N", "3*M*N")),
        ([node("Transpose", ["s"], ["t"]), node("Identity", ["t"], ["y"])], ("N", 3, "M")),
        ([node("ScatterElements", ["s", "first", "two"], ["y"])], (2, 3, "M")),
        ([node("Neg", ["s"], ["t"]), node("Abs", ["s"], ["y"])], ("N", 3, "M")),
        ([node("Squeeze", ["part"], ["y"])], "N"),
    ],
    ids=lambda value: "-".join(n.op_type for n in value) if isinstance(value, list) else "",
)
def test_arithmetic_of_shapes(nodes, expected):
    constants = {"two": ints(2), "first": ints(0), "second": ints(1), "indices": ints(-1, 0), "parts": ints(1, 2)}
    constants |= {"scale": np.float32(2), "minus": ints(-1)}
    before = [node("Shape", ["x"], ["s"]), node("Size", ["x"], ["size"])]
    before.append(node("Slice", ["s", "first", "second"], ["part"]))
    proto = model([*before, *nodes], [info("x", "N", 3, "M")], [untyped("y", INT64)], constants)
    graph = from_onnx(proto)
    (values,) = [n.attrs["values"] for n in graph.nodes if n.op == "sizes"]
    assert values == (expected if isinstance(expected, tuple) else (expected,))
    (found,) = answer(graph, x=ones(5, 3, 4))
    (wanted,) = reference(proto, x=ones(5, 3, 4))
    assert found.dtype == wanted.dtype and found.tolist() == wanted.tolist()


def test_what_depends_on_the_size_is_computed_at_run_time():
    """Whether N is 4 cannot be said at import, so the comparison becomes a node."""
    proto = model(
        [node("Shape", ["x"], ["s"]), node("Equal", ["s", "four"], ["y"])],
        [info("x", "N")],
        [untyped("y", BOOL)],
        {"four": ints(4)},
    )
    graph = from_onnx(proto)
    assert [answer(graph, x=ones(n))[0].tolist() for n in (3, 4)] == [[False], [True]]


def test_bounds_are_never_too_tight():
    for text in ("(N - 7)//3", "max(N, 5) - 2", "min(N, 5)", "2*N - M", "(N//2)*3", "(-N)//4 + 1"):
        low, high = onnx_values.bounds(text)
        values = [onnx_values.dims.substitute(text, {"N": n, "M": m}) for n in range(1, 30) for m in range(1, 12)]
        assert low <= min(values) and high >= max(values), text


def test_a_constant_cast_like_an_input_is_a_constant():
    proto = model(
        [node("CastLike", ["value", "x"], ["fill"]), node("Pad", ["x", "pads", "fill"], ["y"])],
        [info("x", 2)],
        [info("y", 4)],
        {"value": np.float64(-np.inf), "pads": ints(1, 1)},
    )
    assert [n.op for n in agrees(proto, x=ones(2)).nodes] == ["pad"]


def test_weights_are_not_folded_but_known_where_a_number_is_needed():
    proto = model(
        [
            node("Transpose", ["w"], ["wt"]),
            node("MatMul", ["x", "wt"], ["h"]),
            node("Add", ["a", "a"], ["target"]),
            node("Reshape", ["h", "target"], ["y"]),
        ],
        [info("x", 2, 3)],
        [info("y", 4, 2)],
        {"w": ones(4, 3), "a": ints(2, 1)},
    )
    graph = agrees(proto, x=ones(2, 3))
    assert "w" in graph.weights and "wt" not in graph.weights
    assert graph.nodes[-1].attrs["shape"] == (4, 2)


def test_a_constant_of_any_form():
    forms = [
        {"value_int": 3},
        {"value_ints": [3, 4]},
        {"value_float": 0.5},
        {"value_floats": [0.5, 2.0]},
        {"value": numpy_helper.from_array(np.uint8([1, 2]))},
    ]
    for form in forms:
        (attribute,) = node("Constant", [], ["y"], **form).attribute
        proto = model([node("Constant", [], ["y"], **form)], [], [untyped("y", 0)])
        proto.graph.output[0].type.tensor_type.elem_type = {
            "value_int": INT64, "value_ints": INT64, "value": TensorProto.UINT8,
        }.get(attribute.name, FLOAT)  # fmt: skip
        (expected,) = reference(proto)
        (found,) = from_onnx(proto).weights.values()
        assert found.dtype == expected.dtype and found.tolist() == expected.tolist()


# Functions and control flow


def test_functions_of_the_model_are_inlined():
    body = [node("Relu", ["a"], ["r"]), node("Add", ["r", "b"], ["c"])]
    function = helper.make_function("mine", "ReluAdd", ["a", "b"], ["c"], body, [helper.make_opsetid("", 18)])
    calls = [
        node("ReluAdd", ["x", "w"], ["h"], domain="mine"),
        node("ReluAdd", ["h", "w"], ["y"], domain="mine"),
    ]
    proto = model(calls, [info("x", 2)], [info("y", 2)], {"w": np.float32([1, 2])}, functions=[function])
    graph = agrees(proto, x=np.float32([-1, 3]))
    assert [n.op for n in graph.nodes] == ["relu", "add", "relu", "add"]


def test_an_operator_that_onnx_defines_by_others_is_expanded(monkeypatch):
    from msc_core.frontends import onnx as frontend

    table = {op: importer for op, importer in frontend.ONNX.items() if op != "Softsign"}
    monkeypatch.setattr(frontend, "ONNX", table)
    proto = model([node("Softsign", ["x"], ["y"], "s")], [info("x", 3)], [info("y", 3)])
    graph = agrees(proto, x=np.float32([-1, 0, 3]))
    assert graph.nodes[-1].outputs == ("y",) and len(graph.nodes) > 1
    assert all(n.name.startswith("s/") for n in graph.nodes[:-1])


def branches(condition, inputs, weights):
    then = helper.make_graph([node("Relu", ["x"], ["t"])], "then", [], [info("t", 2)])
    other = helper.make_graph([node("Neg", ["x"], ["t"])], "else", [], [info("t", 2)])
    nodes = [*condition, node("If", ["c"], ["y"], then_branch=then, else_branch=other)]
    return model(nodes, [info("x", 2), *inputs], [info("y", 2)], weights)


@pytest.mark.parametrize("value", [True, False])
def test_a_known_condition_is_inlined(value):
    proto = branches([node("Not", ["d"], ["c"])], [], {"d": np.asarray(not value)})
    graph = agrees(proto, x=np.float32([-1, 3]))
    assert [n.op for n in graph.nodes] == ["relu" if value else "negative"]
    assert graph.outputs == ("y",)


def test_an_input_that_decides_can_be_fixed():
    proto = branches(
        [node("Greater", ["rate", "limit"], ["c"])], [info("rate", dtype=INT64)], {"limit": np.int64(8000)}
    )
    with pytest.raises(UnsupportedOperator, match="its condition depends on the network's inputs"):
        from_onnx(proto)
    graph = from_onnx(proto, constants={"rate": 16000})
    assert graph.inputs == ("x",) and [n.op for n in graph.nodes] == ["relu"]
    assert not proto.graph.initializer[1:]  # the caller's model is as it was
    for constants, message in [
        ({"rat": 1}, "constants names 'rat', which is no input; did you mean 'rate'"),
        ({"rate": [1, 2]}, r"constants gives 'rate' the shape \[2\]; the model says \[\]"),
        ({"rate": 0.5}, "a value that int64 cannot hold: 0.5"),
        ({"rate": "a"}, "a value that int64 cannot hold"),
    ]:
        with pytest.raises(MscError, match=message):
            from_onnx(proto, constants=constants)


def test_an_unknown_condition_is_refused():
    proto = branches([], [info("c", dtype=BOOL)], {})
    with pytest.raises(UnsupportedOperator, match=r"node 'y' \(If\): its condition depends on the network's inputs"):
        from_onnx(proto)


def loop(count, keep_going, condition=()):
    body = helper.make_graph(
        [
            node("Add", ["h", "w"], ["h_out"]),
            node("Identity", ["h_out"], ["row"]),
            node("Less", ["i", "limit"], ["go"]) if keep_going else node("Identity", ["c"], ["go"]),
        ],
        "body",
        [info("i", dtype=INT64), info("c", dtype=BOOL), info("h", 2)],
        [info("go", dtype=BOOL), info("h_out", 2), info("row", 2)],
    )
    weights = {"w": np.float32([1, 2]), "limit": np.int64(1)} | count
    nodes = [*condition, node("Loop", ["m" if "m" in count else "", "", "x"], ["y", "rows"], "loop", body=body)]
    return model(nodes, [info("x", 2)], [info("y", 2), untyped("rows")], weights)


@pytest.mark.parametrize(("count", "keep_going", "turns"), [({"m": np.int64(3)}, False, 3), ({}, True, 2)])
def test_a_loop_of_known_length_is_unrolled(count, keep_going, turns):
    proto = loop(count, keep_going)
    graph = from_onnx(proto)
    y, rows = answer(graph, x=np.float32([10, 20]))
    assert y.tolist() == [10 + turns, 20 + 2 * turns]
    assert rows.tolist() == [[10 + t, 20 + 2 * t] for t in range(1, turns + 1)]
    assert graph.outputs[0] == "y" and [n.op for n in graph.nodes].count("add") == turns


@pytest.mark.parametrize("back", [0, 1])
def test_a_scan_over_an_axis_of_known_size_is_unrolled(back):
    body = helper.make_graph(
        [node("Add", ["h", "row"], ["h_out"]), node("Mul", ["h_out", "row"], ["made"])],
        "body",
        [info("h", 2), info("row", 2)],
        [info("h_out", 2), info("made", 2)],
    )
    attrs = {"scan_input_axes": [1], "scan_input_directions": [back], "scan_output_axes": [-1]}
    scan = node("Scan", ["start", "x"], ["y", "rows"], body=body, num_scan_inputs=1, **attrs)
    start = {"start": np.float32([10, 20])}
    agrees(
        model([scan], [info("x", 2, 3)], [info("y", 2), untyped("rows")], start), x=np.float32([[1, 2, 3], [4, 5, 6]])
    )
    with pytest.raises(UnsupportedOperator, match=r"runs over axes of sizes \['N'\]; expected one number"):
        from_onnx(model([scan], [info("x", 2, "N")], [info("y", 2), untyped("rows")], start))


def test_an_endless_loop_is_refused():
    proto = loop({"limit": np.int64(10**15)}, True)
    with pytest.raises(UnsupportedOperator, match=r"node 'loop' \(Loop\): unrolled it would have more than 4096 nodes"):
        from_onnx(proto)


# What ONNX says is checked


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (info("h", 3), r"has shape \[2\] here and \[3\]"),
        (info("h", 2, dtype=INT64), "has dtype float32 here and int64"),
    ],
)
def test_a_model_that_contradicts_itself_is_refused(told, message):
    proto = model(
        [node("Relu", ["x"], ["h"], "n"), node("Relu", ["h"], ["y"])], [info("x", 2)], [untyped("y")], value_info=[told]
    )
    with pytest.raises(MscError, match=message):
        from_onnx(proto)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: model([node("Relu", ["y"], ["z"]), node("Relu", ["z"], ["y"])], [], [untyped("y")]), "cycle among"),
        (lambda: model([node("Relu", ["nothing"], ["y"])], [], [untyped("y")]), "'nothing'"),
        (lambda: model([node("Relu", ["x"], ["y"])], [info("x", 2)], [untyped("z")]), "'z'"),
        (lambda: model([node("Relu", ["x", "x"], ["y"])], [info("x", 2)], [untyped("y")]), "not a valid ONNX model"),
        (lambda: model([node("Relu", ["x"], ["y"], wrong=1)], [info("x", 2)], [untyped("y")]), "not a valid ONNX"),
        (lambda: model([node("Add", ["x", "w"], ["y"])], [info("x", 2)], [untyped("y")], {"w": ints(1, 2)}), "int64"),
        (
            lambda: model([node("Add", ["x", "w"], ["y"])], [info("x", 2)], [untyped("y")], {"w": ones(3)}),
            r"axis '...0'",
        ),
        (
            lambda: model([node("Relu", ["x"], ["y"])], [info("x", 2)], [untyped("y")], opset=6),
            "opset 6; expected 7 to",
        ),
        (lambda: model([node("Relu", ["x"], ["y"])], [info("x", 2)], [untyped("y")], opset=99), "opset 99; expected 7"),
        (
            lambda: model([node("Relu", ["x"], ["y"])], [info("x", 2, dtype=TensorProto.STRING)], [untyped("y")]),
            "STRING",
        ),
        (lambda: model([node("Spam", ["x"], ["y"], domain="eggs")], [info("x", 2)], [untyped("y")]), "eggs"),
    ],
)
def test_invalid_models_are_one_clear_error(build, message):
    with pytest.raises(MscError, match=message) as error:
        from_onnx(build())
    assert "\n" not in str(error.value)


def test_unsorted_nodes_are_sorted():
    proto = model([node("Relu", ["h"], ["y"]), node("Neg", ["x"], ["h"])], [info("x", 2)], [info("y", 2)])
    assert [n.op for n in from_onnx(proto).nodes] == ["negative", "relu"]


def test_an_operator_without_a_row_is_named_with_its_place():
    proto = model([node("Det", ["x"], ["y"], "d")], [info("x", 2, 2)], [untyped("y")])
    with pytest.raises(UnsupportedOperator, match=r"node 'd' \(Det\): operator Det is not in the op table"):
        from_onnx(proto)


def test_older_opsets_are_converted():
    nodes = [
        node("Unsqueeze", ["x"], ["u"], axes=[0]),
        node("Squeeze", ["u"], ["s"], axes=[0]),
        node("ReduceSum", ["s"], ["y"], axes=[1], keepdims=0),
    ]
    proto = model(nodes, [info("x", 2, 3)], [info("y", 2)], opset=9)
    proto.ir_version = 4
    agrees(proto, x=np.random.default_rng(0).random((2, 3), np.float32))


# Files


def test_garbage_and_truncated_files(tmp_path):
    path = tmp_path / "net.onnx"
    with pytest.raises(MscError, match="is no file"):
        from_onnx(path)
    whole = to_onnx(from_torch(MLP(), torch.zeros(1, 1, 28, 28))).SerializeToString()
    for content in (b"", b"garbage", b"\x00" * 100, whole[: len(whole) // 2], whole[:20]):
        path.write_bytes(content)
        with pytest.raises(MscError):
            from_onnx(path)


@pytest.fixture
def external(tmp_path):
    """A model with its weight in a file beside it, and a function that edits where the weight is."""
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    proto = model([node("Add", ["x", "w"], ["y"])], [info("x", 2, 3)], [info("y", 2, 3)], {"w": array})
    path = tmp_path / "folder" / "net.onnx"
    path.parent.mkdir()
    (tmp_path / "outside.bin").write_bytes(array.tobytes())
    (path.parent / "weights.bin").write_bytes(b"head" + array.tobytes())

    def save(**entries):
        (tensor,) = proto.graph.initializer
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        del tensor.external_data[:]
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=str(value))
        path.write_bytes(proto.SerializeToString())
        return path

    return save, array, proto


def test_weights_beside_the_model(external):
    save, array, proto = external
    np.testing.assert_array_equal(from_onnx(save(location="weights.bin", offset=4)).weights["w"], array)
    np.testing.assert_array_equal(from_onnx(save(location="weights.bin", offset=4, length=24)).weights["w"], array)
    with pytest.raises(InvalidGraph, match="give the path of the model"):
        from_onnx(proto)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"location": "../outside.bin"}, OUTSIDE),
        ({"location": "link.bin"}, OUTSIDE),
        ({"location": "{absolute}"}, OUTSIDE),
        ({"location": ""}, OUTSIDE),
        ({}, OUTSIDE),
        ({"location": "."}, "there is no such file"),
        ({"location": "missing.bin"}, "there is no such file"),
        ({"location": "weights.bin"}, "expected 24 bytes"),
        ({"location": "weights.bin", "offset": 4, "length": 20}, "expected 24 bytes"),
        ({"location": "weights.bin", "offset": 5}, "expected 24 bytes"),
        ({"location": "weights.bin", "offset": -1, "length": 24}, "expected 24 bytes"),
        ({"location": "weights.bin", "offset": 8, "length": 24}, "expected 24 bytes"),
        ({"location": "weights.bin", "offset": "x"}, "cannot be read"),
        ({"location": "a\0b"}, "cannot be read"),
    ],
)
def test_weights_elsewhere_are_refused(external, entries, message, tmp_path):
    save, _, _ = external
    (tmp_path / "folder" / "link.bin").symlink_to(tmp_path / "outside.bin")
    entries = {key: str(value).replace("{absolute}", str(tmp_path / "outside.bin")) for key, value in entries.items()}
    with pytest.raises(InvalidGraph, match=message):
        from_onnx(save(**entries))
