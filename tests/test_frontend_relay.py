"""`from_relay`: files as TVM 0.8 to 0.19 wrote them compute what torch does; damaged ones are refused in one line."""

from __future__ import annotations

import json
import struct
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from msc_core import from_relay, to_onnx, to_torch
from msc_core.errors import InvalidGraph, MscError, UnsupportedOperator
from msc_core.ir import MSCGraph
from tests.relay_fixtures import Ref, Writer, params_bytes

GENERATOR = torch.Generator().manual_seed(0)


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=GENERATOR)


def run(graph: MSCGraph, *inputs: torch.Tensor) -> list[torch.Tensor]:
    with torch.no_grad():
        found = to_torch(graph).eval()(*inputs)
    return list(found) if isinstance(found, (tuple, list)) else [found]


def conv_attrs(rank: int = 2, **changes) -> dict:
    spatial = "DHW"[-rank:]
    fields = {
        "strides": Ref([1] * rank), "padding": Ref([0] * rank), "dilation": Ref([1] * rank), "groups": 1,
        "channels": Ref(None), "kernel_size": Ref(None), "data_layout": Ref("NC" + spatial),
        "kernel_layout": Ref("OI" + spatial), "out_layout": Ref(""), "out_dtype": "",
    }  # fmt: skip
    return {"attrs": f"Conv{rank}D", **fields, **changes}


def pool_attrs(kind: str, rank: int = 2, **changes) -> dict:
    fields = {
        "pool_size": Ref([2] * rank), "strides": Ref([2] * rank), "padding": Ref([0] * rank),
        "dilation": Ref([1] * rank), "layout": Ref("NC" + "DHW"[-rank:]), "out_layout": Ref(""), "ceil_mode": False,
    }  # fmt: skip
    average = {"count_include_pad": False} if kind == "Avg" else {}
    return {"attrs": f"{kind}Pool{rank}D", **fields, **average, **changes}


NORM = {"attrs": "BatchNorm", "axis": 1, "epsilon": 1e-5, "center": True, "scale": True}


def conv_net() -> tuple[str, dict[str, np.ndarray], torch.Tensor, torch.Tensor]:
    """A network of convolutions as a vision framework's importer leaves it, with parameters in a file."""
    params = {
        "conv.weight": rand(8, 3, 3, 3), "bn.gamma": rand(8), "bn.beta": rand(8), "bn.mean": rand(8),
        "bn.var": rand(8).abs() + 0.5, "fc.weight": rand(5, 8), "fc.bias": rand(5),
    }  # fmt: skip
    w = Writer()
    x = w.var("data", (2, 3, 8, 8))
    p = {name: w.var(name, tuple(value.shape)) for name, value in params.items()}
    y = w.call("nn.conv2d", x, p["conv.weight"], layer="features.0", **conv_attrs(padding=Ref([1, 1, 1, 1])))
    y = w.item(w.call("nn.batch_norm", y, p["bn.gamma"], p["bn.beta"], p["bn.mean"], p["bn.var"], **NORM), 0)
    y = w.call("nn.relu", y)
    y = w.call("nn.max_pool2d", y, **pool_attrs("Max"))
    y = w.call("nn.global_avg_pool2d", y, attrs="GlobalPool2D", layout=Ref("NCHW"), out_layout=Ref(""))
    y = w.call("nn.batch_flatten", y)
    y = w.call("nn.dense", y, p["fc.weight"], attrs="Dense", units=Ref(5), out_dtype="")
    y = w.call("nn.bias_add", y, p["fc.bias"], attrs="BiasAdd", axis=-1)
    y = w.call("nn.softmax", y, attrs="Softmax", axis=-1)
    data = rand(2, 3, 8, 8)
    z = F.conv2d(data, params["conv.weight"], padding=1)
    z = F.batch_norm(z, params["bn.mean"], params["bn.var"], params["bn.gamma"], params["bn.beta"])
    z = F.max_pool2d(F.relu(z), 2).mean((2, 3))
    expected = F.softmax(F.linear(z, params["fc.weight"], params["fc.bias"]), -1)
    arrays = {name: value.numpy() for name, value in params.items()}
    return w.main([x, *p.values()], y), arrays, data, expected


def check(text: str, inputs: list[torch.Tensor], *expected: torch.Tensor, params=None) -> MSCGraph:
    graph = from_relay(text, params)
    found = run(graph, *inputs)
    assert [f.dtype for f in found] == [e.dtype for e in expected]
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e, rtol=1e-5, atol=1e-5)
    return graph


def test_conv_net_from_files(tmp_path):
    text, params, data, expected = conv_net()
    (tmp_path / "net.json").write_text(text)
    (tmp_path / "net.params").write_bytes(params_bytes(params))
    graph = from_relay(tmp_path / "net.json", tmp_path / "net.params")
    torch.testing.assert_close(run(graph, data)[0], expected)
    assert (graph.name, graph.inputs) == ("net", ("data",))
    assert list(graph.weights) == list(params)
    assert [node.name for node in graph.nodes][:2] == ["features.0", "batch_norm"]
    assert [node.op for node in graph.nodes][:4] == ["conv2d", "batch_norm", "relu", "max_pool2d"]


def test_parameters_may_be_bytes_or_arrays():
    text, params, _, _ = conv_net()
    assert from_relay(text, params) == from_relay(text, params_bytes(params))


def test_parameters_that_this_tvm_saved():
    import tvm

    text, params, _, _ = conv_net()
    saved = bytes(tvm.runtime.save_param_dict({name: tvm.runtime.tensor(value) for name, value in params.items()}))
    assert from_relay(text, saved) == from_relay(text, params)


def test_any_dimension_is_a_symbol():
    w = Writer()
    x = w.var("x", (None, 4))
    graph = from_relay(w.main([x], w.call("nn.relu", x)))
    assert graph.tensors["x"].shape == ("x_0", 4)
    assert run(graph, rand(7, 4))[0].shape == (7, 4)


def test_symbolic_batch_goes_on_to_onnx():
    w = Writer()
    x = w.var("x", ("N", 3, 4))
    y = w.call("reshape", x, attrs="Reshape", newshape=Ref([0, -1]), allowzero=False)
    graph = from_relay(w.main([x], y))
    assert graph.tensors[graph.outputs[0]].shape == ("N", 12)
    to_onnx(graph)


def test_functions_let_and_constants():
    """`let` bindings, a function of the module, a function in place, one constant used twice."""
    w = Writer()
    weight = rand(4, 4)
    constant = w.const(weight.numpy())
    a = w.var("a", (2, 4))
    helper = w.function([a], w.call("nn.dense", a, constant, attrs="Dense", units=Ref(None), out_dtype=""))
    name = w.global_var("helper")
    b = w.var("b", (2, 4))
    inner = w.function([b], w.call("nn.relu", b))
    x, v = w.var("x", (2, 4)), w.var("v")
    called = w.call(w.global_var("helper"), w.call(name, x))
    body = w.let(v, called, w.call("add", w.call(inner, v), w.call("nn.dense", v, constant, attrs="Dense")))
    text = w.module({name: helper, w.global_var("main"): w.function([x], body)})
    data = rand(2, 4)
    z = data @ weight.T @ weight.T
    graph = check(text, [data], F.relu(z) + z @ weight.T)
    assert len(graph.weights) == 1


def test_tuples_split_and_concatenate():
    w = Writer()
    x = w.var("x", (2, 6))
    parts = w.call("split", x, attrs="Split", indices_or_sections=Ref([1, 3]), axis=1)
    joined = w.call("concatenate", w.tuple(w.item(parts, 2), w.item(parts, 0)), attrs="Concatenate", axis=1)
    stacked = w.call("stack", w.tuple(joined, joined), attrs="Stack", axis=Ref(-1))
    data = rand(2, 6)
    z = torch.cat([data[:, 3:], data[:, :1]], 1)
    check(w.main([x], w.tuple(joined, stacked)), [data], z, torch.stack([z, z], -1))


def test_einsum_of_a_tuple():
    w = Writer()
    a, b = w.var("a", (2, 4, 6, 5)), w.var("b", (5, 3))
    y = w.call("einsum", w.tuple(a, b), attrs="Einsum", equation=Ref("bcij,jk->bik"))
    x, z = rand(2, 4, 6, 5), rand(5, 3)
    check(w.main([a, b], y), [x, z], torch.einsum("bcij,jk->bik", x, z))


def test_a_chain_longer_than_pythons_stack():
    w = Writer()
    x = y = w.var("x", (3,))
    for _ in range(3000):
        y = w.call("nn.relu", y)
    assert len(from_relay(w.main([x], y)).nodes) == 3000


def test_a_let_chain_longer_than_pythons_stack():
    w = Writer()
    x = w.var("x", (3,))
    variables = [w.var(f"v{i}") for i in range(2000)]
    body = variables[-1]
    for i in reversed(range(2000)):
        body = w.let(variables[i], w.call("nn.relu", variables[i - 1] if i else x), body)
    assert len(from_relay(w.main([x], body)).nodes) == 2000


# One operator each: arguments (tensors, or arrays that become constants), attributes, and torch's answer
X = rand(2, 4, 6, 5)
W1, W2, W3 = rand(6, 4, 3), rand(6, 4, 3, 3), rand(6, 4, 2, 2, 2)
DEPTHWISE = rand(3, 3, 4, 2)  # HWOI: four channels, two outputs of each
REDUCE = {"attrs": "Reduce", "axis": Ref([1, -1]), "keepdims": False, "exclude": False}
ARG = {"attrs": "ArgReduce", "axis": Ref([2]), "keepdims": True, "select_last_index": False, "exclude": False}
RESIZE = {
    "attrs": "Resize2D", "size": Ref([9, 10]), "roi": Ref([0.0] * 4), "layout": "NCHW", "method": "linear",
    "coordinate_transformation_mode": "half_pixel", "rounding_method": "", "cubic_alpha": -0.5, "cubic_exclude": 0,
    "extrapolation_value": 0.0, "out_dtype": "",
}  # fmt: skip
INDICES = torch.tensor([[2, 0], [1, 3]], dtype=torch.int32)


def transposed(rank: int, **changes) -> dict:
    spatial = "DHW"[-rank:]
    fields = {"attrs": f"Conv{rank}DTranspose", "output_padding": Ref([1] * rank), "strides": Ref([2] * rank)}
    return conv_attrs(rank, **fields, **{"kernel_layout": Ref("IO" + spatial), **changes})


CASES = {
    "conv1d": ("nn.conv1d", [X[:, :, 0], W1], conv_attrs(1, data_layout="NCW", kernel_layout="OIW", out_layout=""),
               lambda x, w: F.conv1d(x, w)),
    "conv2d NHWC": ("nn.conv2d", [X.permute(0, 2, 3, 1).contiguous(), W2.permute(2, 3, 1, 0).contiguous()],
                    conv_attrs(data_layout=Ref("NHWC"), kernel_layout=Ref("HWIO"), padding=Ref([1, 0])),
                    lambda x, w: F.conv2d(X, W2, padding=(1, 0)).permute(0, 2, 3, 1)),
    "conv2d depthwise": ("nn.conv2d", [X, DEPTHWISE], conv_attrs(kernel_layout=Ref("HWOI"), groups=4),
                         lambda x, w: F.conv2d(x, w.permute(2, 3, 0, 1).reshape(8, 1, 3, 3), groups=4)),
    "conv2d asymmetric": ("nn.conv2d", [X, W2], conv_attrs(padding=Ref([1, 0, 2, 1]), strides=Ref([2, 1])),
                          lambda x, w: F.conv2d(F.pad(x, (0, 1, 1, 2)), w, stride=(2, 1))),
    "conv3d": ("nn.conv3d", [rand(2, 4, 3, 6, 5), W3], conv_attrs(3), lambda x, w: F.conv3d(x, w)),
    "conv2d_transpose": ("nn.conv2d_transpose", [X, rand(4, 6, 3, 3)], transposed(2, padding=Ref([1, 1])),
                         lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1)),
    "conv2d_transpose of old": ("nn.conv2d_transpose", [X, rand(4, 6, 3, 3)], transposed(2, kernel_layout=Ref("OIHW")),
                                lambda x, w: F.conv_transpose2d(x, w, stride=2, output_padding=1)),
    "conv1d_transpose": ("nn.conv1d_transpose", [X[:, :, 0], rand(4, 6, 3)], transposed(1),
                         lambda x, w: F.conv_transpose1d(x, w, stride=2, output_padding=1)),
    "batch_matmul": ("nn.batch_matmul", [X[0], rand(4, 3, 5)],
                     {"attrs": "BatchMatmul", "out_dtype": "", "transpose_a": False, "transpose_b": True},
                     lambda a, b: a @ b.mT),
    "matmul": ("nn.matmul", [rand(3, 4), rand(3, 5)],
               {"attrs": "Matmul", "units": Ref(None), "out_dtype": "", "transpose_a": True, "transpose_b": False},
               lambda a, b: a.T @ b),
    "bias_add": ("nn.bias_add", [X, rand(4)], {"attrs": "BiasAdd", "axis": 1}, lambda x, b: x + b.view(4, 1, 1)),
    "layer_norm": ("nn.layer_norm", [X, rand(5), rand(5)], {**NORM, "attrs": "LayerNorm", "axis": -1},
                   lambda x, g, b: F.layer_norm(x, (5,), g, b)),
    "group_norm": ("nn.group_norm", [X, rand(4), rand(4)], {**NORM, "attrs": "GroupNorm", "num_groups": 2},
                   lambda x, g, b: F.group_norm(x, 2, g, b)),
    "instance_norm": ("nn.instance_norm", [X, rand(4), rand(4)], {**NORM, "attrs": "InstanceNorm"},
                      lambda x, g, b: F.instance_norm(x, weight=g, bias=b)),
    "batch_norm without a scale": ("nn.batch_norm", [X, rand(4), rand(4), rand(4), rand(4).abs() + 1],
                                   {**NORM, "scale": False, "epsilon": 1e-3},
                                   lambda x, g, b, m, v: F.batch_norm(x, m, v, None, b, eps=1e-3)),
    "batch_norm behind": ("nn.batch_norm", [X, rand(5), rand(5), rand(5), rand(5).abs() + 1], {**NORM, "axis": 3},
                          lambda x, g, b, m, v: (x - m) / torch.sqrt(v + 1e-5) * g + b),
    "layer_norm without a shift": ("nn.layer_norm", [X, rand(6), rand(6)],
                                   {**NORM, "attrs": "LayerNorm", "axis": 2, "center": False},
                                   lambda x, g, b: F.layer_norm(x.mT, (6,), g).mT),
    "take around": ("take", [X, INDICES - 7],
                    {"attrs": "Take", "batch_dims": Ref(0), "axis": Ref(-1), "mode": Ref("wrap")},
                    lambda x, i: x[..., torch.remainder(i, 5)]),
    "take from all": ("take", [X, INDICES - 1], {"attrs": "Take", "batch_dims": Ref(0), "axis": Ref(None),
                                                 "mode": "clip"},
                      lambda x, i: x.flatten()[i.clamp(min=0)]),
    "gather": ("gather", [X, torch.tensor([[[[1, 0, 2, 2, 0]]]])], {"attrs": "Gather", "axis": Ref(2)},
               lambda x, i: x[:1, :1].gather(2, i)),
    "cumsum": ("cumsum", [X], {"attrs": "Scanop", "axis": Ref(1), "dtype": "", "exclusive": Ref(False)},
               lambda x: x.cumsum(1)),
    "any": ("any", [X > 2], {**REDUCE, "axis": Ref([1])}, lambda x: x.any(1)),
    "dense in int8": ("nn.dense",
                      [torch.arange(8, dtype=torch.int8).view(2, 4) * 10, torch.full((3, 4), 9).to(torch.int8)],
                      {"attrs": "Dense", "units": Ref(3), "out_dtype": "int32"}, lambda x, w: x.int() @ w.int().T),
    "divide of integers": ("divide", [torch.tensor([7, -7, 8]), torch.tensor([2, 2, -3])], {},
                           lambda x, y: torch.div(x, y, rounding_mode="trunc")),
    "mod": ("mod", [torch.tensor([7, -7, 8]), torch.tensor([3, 3, -3])], {}, torch.fmod),
    "floor_mod": ("floor_mod", [torch.tensor([7, -7, 8]), torch.tensor([3, 3, -3])], {}, torch.remainder),
    "clip of integers": ("clip", [torch.arange(-3, 4)], {"attrs": "Clip", "a_min": -1.0, "a_max": 2.0},
                         lambda x: x.clamp(-1, 2)),
    "lrn": ("nn.lrn", [X], {"attrs": "LRN", "size": 3, "axis": 1, "bias": 2.0, "alpha": 1e-2, "beta": 0.75},
            lambda x: F.local_response_norm(x, 3, alpha=1e-2, beta=0.75, k=2.0)),
    "l2_normalize": ("nn.l2_normalize", [X], {"attrs": "L2Normalize", "eps": 1e-3, "axis": Ref([1])},
                     lambda x: x / torch.sqrt(torch.clamp((x * x).sum(1, keepdim=True), min=1e-3))),
    "leaky_relu": ("nn.leaky_relu", [X], {"attrs": "LeakyRelu", "alpha": 0.3}, lambda x: F.leaky_relu(x, 0.3)),
    "prelu": ("nn.prelu", [X, rand(4)], {"attrs": "PRelu", "axis": 1}, lambda x, a: F.prelu(x, a)),
    "log_softmax": ("nn.log_softmax", [X], {"attrs": "Softmax", "axis": 1}, lambda x: F.log_softmax(x, 1)),
    "avg_pool2d": ("nn.avg_pool2d", [X], pool_attrs("Avg", padding=Ref([1, 1])),
                   lambda x: F.avg_pool2d(x, 2, padding=1, count_include_pad=False)),
    "max_pool2d NHWC": ("nn.max_pool2d", [X], pool_attrs("Max", layout=Ref("NHWC")),
                        lambda x: F.max_pool2d(x.permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1)),
    "max_pool1d": ("nn.max_pool1d", [X[0]], pool_attrs("Max", 1, layout="NCW"), lambda x: F.max_pool1d(x, 2)),
    "adaptive_avg_pool2d": ("nn.adaptive_avg_pool2d", [X],
                            {"attrs": "AdaptivePool2D", "output_size": Ref([3, 1]), "layout": "NCHW"},
                            lambda x: F.adaptive_avg_pool2d(x, (3, 1))),
    "global_max_pool2d": ("nn.global_max_pool2d", [X], {"attrs": "GlobalPool2D", "layout": Ref("NCHW")},
                          lambda x: x.amax((2, 3), keepdim=True)),
    "pad": ("nn.pad", [X, np.float32(0.5)],
            {"attrs": "Pad", "pad_width": Ref([[0, 0], [0, 0], [1, 2], [0, 1]]), "pad_mode": "constant"},
            lambda x: F.pad(x, (0, 1, 1, 2), value=0.5)),
    "pad reflect": ("nn.pad", [X, np.float32(0)],
                    {"attrs": "Pad", "pad_width": Ref([[0, 0], [0, 0], [1, 2], [0, 1]]), "pad_mode": "reflect"},
                    lambda x: F.pad(x, (0, 1, 1, 2), mode="reflect")),
    "resize2d": ("image.resize2d", [X], RESIZE, lambda x: F.interpolate(x, (9, 10), mode="bilinear")),
    "resize2d corners": ("image.resize2d", [X], {**RESIZE, "coordinate_transformation_mode": "align_corners"},
                         lambda x: F.interpolate(x, (9, 10), mode="bilinear", align_corners=True)),
    "upsampling": ("nn.upsampling", [X], {"attrs": "UpSampling", "scale_h": 2.0, "scale_w": 3.0, "layout": "NCHW",
                                          "method": "nearest_neighbor", "align_corners": False},
                   lambda x: F.interpolate(x, scale_factor=(2, 3), mode="nearest")),
    "clip": ("clip", [X], {"attrs": "Clip", "a_min": -0.25, "a_max": 6.0}, lambda x: x.clamp(-0.25, 6)),
    "cast": ("cast", [X], {"attrs": "Cast", "dtype": "int32"}, lambda x: x.to(torch.int32)),
    "power": ("power", [X.abs(), rand(5)], {}, lambda x, y: x**y),
    "maximum": ("maximum", [X, rand(6, 1)], {}, torch.maximum),
    "divide": ("divide", [X, np.float32(3)], {}, lambda x: x / 3),
    "sqrt": ("sqrt", [X.abs()], {}, torch.sqrt),
    "erf": ("erf", [X], {}, torch.erf),
    "where": ("where", [X > 0, X, rand(5)], {}, torch.where),
    "greater": ("greater", [X, rand(5)], {}, torch.greater),
    "sum": ("sum", [X], REDUCE, lambda x: x.sum((1, 3))),
    "sum of the others": ("sum", [X], {**REDUCE, "exclude": True, "keepdims": True},
                          lambda x: x.sum((0, 2), keepdim=True)),
    "mean of all": ("mean", [X], {**REDUCE, "axis": Ref(None)}, lambda x: x.mean()),
    "max": ("max", [X], REDUCE, lambda x: x.amax((1, 3))),
    "argmax": ("argmax", [X], ARG, lambda x: x.argmax(2, keepdim=True).to(torch.int32)),
    "argmin of all": ("argmin", [X], {**ARG, "axis": Ref(None), "keepdims": False},
                      lambda x: x.argmin().to(torch.int32)),
    "variance": ("variance", [X, X.mean((1, 3), keepdim=True)], {**REDUCE, "attrs": "Variance", "unbiased": False},
                 lambda x, m: x.var((1, 3), correction=0)),
    "reshape": ("reshape", [X], {"attrs": "Reshape", "newshape": Ref([-4, 2, -1, -3, 0]), "allowzero": False},
                lambda x: x.reshape(2, 1, 24, 5)),
    "transpose": ("transpose", [X], {"attrs": "Transpose", "axes": Ref([0, 2, -1, 1])},
                  lambda x: x.permute(0, 2, 3, 1)),
    "transpose in reverse": ("transpose", [X], {"attrs": "Transpose", "axes": Ref(None)},
                             lambda x: x.permute(3, 2, 1, 0)),
    "expand_dims": ("expand_dims", [X], {"attrs": "ExpandDims", "axis": -1, "num_newaxis": 2},
                    lambda x: x[..., None, None]),
    "squeeze": ("squeeze", [X[:, :1, :1]], {"attrs": "Squeeze", "axis": Ref([-2])}, lambda x: x.squeeze(2)),
    "strided_slice": ("strided_slice", [X], {"attrs": "StridedSlice", "begin": Ref([1, -4]), "end": Ref([4, 100]),
                                             "strides": Ref([2, 1]), "slice_mode": Ref("end"), "axes": Ref([1, 2])},
                      lambda x: x[:, 1:4:2, -4:]),
    "strided_slice by size": ("strided_slice", [X], {"attrs": "StridedSlice", "begin": Ref([0, 1]), "end": Ref([2, -1]),
                                                     "strides": Ref([1]), "slice_mode": "size", "axes": Ref(None)},
                              lambda x: x[0:2, 1:]),
    "take": ("take", [X, INDICES], {"attrs": "Take", "batch_dims": Ref(0), "axis": Ref(2), "mode": Ref("clip")},
             lambda x, i: x[:, :, i]),
    "gather_nd": ("gather_nd", [X[0], torch.tensor([[0, 3], [5, 1]])],
                  {"attrs": "GatherND", "batch_dims": Ref(0), "index_rank": Ref(None)}, lambda x, i: x[i[0], i[1]]),
    "broadcast_to": ("broadcast_to", [X[:, :, :1]], {"attrs": "InitOp", "shape": Ref([2, 4, 3, 5]), "dtype": ""},
                     lambda x: x.expand(2, 4, 3, 5)),
    "tile": ("tile", [X], {"attrs": "Tile", "reps": Ref([2, 1])}, lambda x: x.tile(2, 1)),
    "repeat": ("repeat", [X], {"attrs": "Repeat", "repeats": Ref(2), "axis": Ref(1)},
               lambda x: x.repeat_interleave(2, 1)),
    "reverse": ("reverse", [X], {"attrs": "Reverse", "axis": Ref(1)}, lambda x: x.flip(1)),
    "ones_like": ("ones_like", [X], {}, torch.ones_like),
    "one_hot": ("one_hot", [INDICES, np.float32(2), np.float32(-1)],
                {"attrs": "OneHot", "depth": 4, "axis": -1, "dtype": "float32"},
                lambda i: F.one_hot(i.long(), 4).float() * 3 - 1),
    "layout_transform": ("layout_transform", [X],
                         {"attrs": "LayoutTransform", "src_layout": "NCHW", "dst_layout": "NHWC"},
                         lambda x: x.permute(0, 2, 3, 1)),
    "slice_like": ("slice_like", [X, rand(1, 2, 3, 1)], {"attrs": "SliceLike", "axes": Ref([1, 2])},
                   lambda x, y: x[:, :2, :3]),
    "copy": ("copy", [X], {}, torch.clone),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_operator_agrees_with_torch(case):
    op, arguments, attrs, expected = CASES[case]
    w = Writer("0.8.0" if "of old" in case else "0.16.0")
    inputs = {f"x{i}": a for i, a in enumerate(arguments) if isinstance(a, torch.Tensor)}
    variables = {n: w.var(n, tuple(t.shape), str(t.dtype).removeprefix("torch.")) for n, t in inputs.items()}
    args = [variables.get(f"x{i}") or w.const(np.asarray(a)) for i, a in enumerate(arguments)]
    with torch.no_grad():
        answer = expected(*inputs.values())
    checked = w.type(tuple(answer.shape), str(answer.dtype).removeprefix("torch."))
    if op == "nn.batch_norm":
        body = w.item(w.call(op, *args, **attrs), 0)
    else:
        body = w.call(op, *args, checked=checked, **attrs)
    check(w.main([*variables.values()], body), list(inputs.values()), answer)


@pytest.mark.parametrize("version", ["0.7.0", "0.8.0", "0.16.0"])
def test_a_square_transposed_weight_goes_by_the_version(version):
    """Before 0.9 the letters O and I meant each other; in the version that changed it nothing tells."""
    w = Writer(version)
    x, weight = w.var("x", (1, 4, 5, 5)), w.const(rand(4, 4, 3, 3).numpy())
    y = w.call("nn.conv2d_transpose", x, weight, **transposed(2, kernel_layout=Ref("OIHW")))
    if version == "0.8.0":
        with pytest.raises(UnsupportedOperator, match="what OIHW means"):
            from_relay(w.main([x], y))
        return
    graph = from_relay(w.main([x], y))
    assert ("permute_dims" in [node.op for node in graph.nodes]) == (version == "0.16.0")


# What is damaged or unknown


def relu_net() -> tuple[dict, Writer]:
    w = Writer()
    x = w.var("x", (3,))
    return json.loads(w.main([x], w.call("nn.relu", x))), w


def position(data: dict, kind: str) -> int:
    return next(i for i, node in enumerate(data["nodes"]) if node["type_key"] == kind)


def refused(text: str, params=None, **options) -> str:
    with pytest.raises(MscError) as error:
        from_relay(text, params, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("cut", [0, 7, 8, 20, 60, 200, 900, -1])
def test_a_parameter_file_that_is_cut_off(cut):
    text, params, _, _ = conv_net()
    message = refused(text, params_bytes(params)[:cut])
    assert "cut off" in message or "has" in message or "claims" in message


def test_parameters_with_a_wrong_beginning():
    text, params, _, _ = conv_net()
    good = params_bytes(params)
    assert "begins with" in refused(text, b"\0" * 64)
    at = good.index(struct.pack("<Q", 0xDD5E40F096B4A13F))
    assert "an array begins with" in refused(text, good[:at] + b"\1" * 8 + good[at + 8 :])


@pytest.mark.parametrize("at", [16, 24])
def test_parameters_that_claim_more_than_there_is(at):
    text, params, _, _ = conv_net()
    good = params_bytes(params)
    assert "can hold" in refused(text, good[:at] + struct.pack("<Q", 2**60) + good[at + 8 :])


def test_an_array_that_claims_a_huge_shape():
    data = params_bytes({"x": np.zeros(3, np.float32)})
    at = len(data) - 12 - 8 - 8
    message = refused(relu_net()[1].text(1), data[:at] + struct.pack("<q", 2**61) + data[at + 8 :])
    assert "claims" in message


def test_parameters_that_do_not_fit():
    text, params, _, _ = conv_net()
    assert "'fc.bias' has no value" in refused(
        text, {k: v for k, v in params.items() if k != "fc.bias"}, inputs=["data"]
    )
    assert "'conv.wight' is no parameter of 'main'; did you mean 'conv.weight'?" in refused(
        text, {"conv.wight": params["fc.bias"]}
    )
    assert "the module says float32[5]" in refused(text, {**params, "fc.bias": np.zeros(4, np.float32)})
    assert "cannot read" in refused(text, "nowhere.params")


def test_an_unknown_operator_names_the_nearest():
    w = Writer()
    x = w.var("x", (3,))
    assert refused(w.main([x], w.call("nn.rellu", x))) == (
        "Relay operator nn.rellu is not supported; did you mean 'nn.relu'?"
    )


def test_references_in_a_circle():
    w = Writer()
    x = w.var("x", (3,))
    y = w.call("nn.relu", x)
    data = json.loads(w.main([x], y))
    data["nodes"][int(data["nodes"][y]["attrs"]["args"])]["data"] = [y]
    assert "needs itself" in refused(json.dumps(data))


def test_a_function_that_calls_itself():
    w = Writer()
    x, name = w.var("x", (3,)), w.global_var("main")
    text = w.module({name: w.function([x], w.call(name, x))})
    assert "calls itself" in refused(text)


def test_attributes_in_a_circle():
    w = Writer()
    x = w.var("x", (3,))
    y = w.call("transpose", x, attrs="Transpose", axes=Ref([0]))
    data = json.loads(w.main([x], y))
    at = next(int(n["attrs"]["axes"]) for n in data["nodes"] if n["type_key"] == "relay.attrs.TransposeAttrs")
    data["nodes"][at]["data"] = [at]
    assert "in a circle" in refused(json.dumps(data))


@pytest.mark.parametrize("bad", ["10000", "-1", "x", None])
def test_positions_that_do_not_exist(bad):
    data, _ = relu_net()
    data["nodes"][position(data, "relay.Function")]["attrs"]["body"] = bad
    message = refused(json.dumps(data))
    assert "refers to node" in message or "no position" in message or "no attribute" in message


@pytest.mark.parametrize(
    "text", ["{", "{}", '{"nodes": 3}', '{"nodes": []}', '{"nodes": [7], "root": 0}', "{" * 100000]
)
def test_what_is_no_graph(text):
    assert refused(text)


def test_a_graph_of_a_later_tvm_is_pointed_to_relax():
    assert "use from_relax" in refused('{"root_index": 1, "nodes": [{"type": "None"}], "metadata": {}}')


def test_a_constant_that_is_damaged():
    w = Writer()
    x = w.var("x", (3,))
    data = json.loads(w.main([x], w.call("add", x, w.const(np.zeros(3, np.float32)))))
    blob = data["b64ndarrays"][0]
    for bad in ("%%%", blob[:40], 7):
        data["b64ndarrays"][0] = bad
        assert refused(json.dumps(data))
    data["b64ndarrays"] = []
    assert "does not have" in refused(json.dumps(data))


def test_a_shape_that_relay_inferred_differently_is_refused():
    w = Writer()
    x = w.var("x", (3,))
    assert "in the module" in refused(w.main([x], w.call("nn.relu", x, checked=w.type((4,)))))


def test_relay_needs_no_tvm():
    code = "import sys; sys.modules['tvm'] = None; from msc_core.frontends.relay import from_relay; print('fine')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "fine\n"


def test_the_errors_are_of_the_right_kind():
    with pytest.raises(InvalidGraph):
        from_relay("{}")
    with pytest.raises(MscError):
        from_relay("nowhere.json")


def test_damage_of_any_kind_is_an_error_of_ours():
    """Random changes of positions, numbers and types: an import succeeds or is an `MscError`, nothing else."""
    text, params, _, _ = conv_net()
    generator = np.random.default_rng(0)
    values = ["0", "-1", "1", "7", "99999999999999999999", "x", "", "null", "inf", "nan", None, 3, [], {}]
    failures = 0
    for _ in range(400):
        data = json.loads(text)
        node = data["nodes"][generator.integers(1, len(data["nodes"]))]
        change = values[generator.integers(len(values))]
        if node.get("attrs") and generator.random() < 0.7:
            node["attrs"][list(node["attrs"])[generator.integers(len(node["attrs"]))]] = change
        elif node.get("data") and generator.random() < 0.7:
            node["data"][generator.integers(len(node["data"]))] = change
        else:
            node[["type_key", "repr_str", "attrs", "data"][generator.integers(4)]] = change
        try:
            from_relay(json.dumps(data), params)
        except MscError:
            failures += 1
    assert failures > 100


def test_damaged_parameters_are_an_error_of_ours():
    text, params, _, _ = conv_net()
    good = params_bytes(params)
    generator = np.random.default_rng(0)
    for _ in range(400):
        at = int(generator.integers(200))
        bad = good[:at] + bytes(generator.integers(0, 256, 4, np.uint8)) + good[at + 4 :]
        try:
            from_relay(text, bad)
        except MscError as error:
            assert "\n" not in str(error)
