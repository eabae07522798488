"""Relay's operators by name, each with the function that says it in our words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from msc_core.frontends import relay_layers as layers
from msc_core.frontends import relay_shapes as shapes
from msc_core.frontends.relay_call import RelayCall, Translator
from msc_core.ops import call
from msc_core.ops.dtypes import cast


def same(name: str) -> Translator:
    """Relax has the operator under that name, with the same arguments and attributes."""
    return lambda n: n.relax(name, *n.x, **n.attrs)


def identity(n: RelayCall) -> Any:
    """The first argument: annotations, copies."""
    return n.x[0]


def clip(n: RelayCall) -> Any:
    """`clip`."""
    low, high = n.attr("a_min"), n.attr("a_max")
    if not n.tensor(0).dtype.startswith(("float", "bfloat")):
        low, high = (v if math.isinf(v) else int(v) for v in (low, high))
    return n.relax("clip", n.x[0], low, high)


SAME = (
    "add", "subtract", "multiply", "divide", "power", "maximum", "minimum", "mod", "floor_mod", "floor_divide",
    "logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift",
    "right_shift", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "abs", "acos", "acosh",
    "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "exp", "floor", "log", "negative", "round",
    "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc", "isnan", "isfinite", "isinf",
    "logical_not", "bitwise_not", "where", "nn.relu", "nn.softmax", "nn.log_softmax", "nn.prelu",
)  # fmt: skip
IDENTITY = (
    "copy", "stop_gradient", "annotation.stop_fusion", "annotation.checkpoint", "annotation.compiler_begin",
    "annotation.compiler_end", "annotation.cast_hint", "on_device", "device_copy",
)  # fmt: skip
RELAY: Mapping[str, Translator] = {
    **{name: same(name) for name in SAME},
    **dict.fromkeys(IDENTITY, identity),
    **dict.fromkeys((f"nn.conv{r}d" for r in (1, 2, 3)), layers.conv),
    **dict.fromkeys((f"nn.conv{r}d_transpose" for r in (1, 2, 3)), layers.conv_transpose),
    **{f"nn.{kind}_pool{r}d": lambda n: n.windowed() for kind in ("max", "avg") for r in (1, 2, 3)},
    **{f"nn.global_{kind}_pool{r}d": layers.global_pool(kind == "max") for kind in ("max", "avg") for r in (1, 2, 3)},
    **{f"nn.adaptive_{kind}_pool{r}d": layers.adaptive_pool for kind in ("max", "avg") for r in (1, 2, 3)},
    **dict.fromkeys(("sum", "mean", "max", "min", "prod"), shapes.reduction),
    **dict.fromkeys(("all", "any"), shapes.truth),
    **dict.fromkeys(("argmax", "argmin"), shapes.arg_reduction),
    **dict.fromkeys(("qnn.quantize", "qnn.dequantize"), shapes.quantize),
    "fast_exp": same("exp"),
    "fast_tanh": same("tanh"),
    "fast_erf": same("erf"),
    "nn.fast_softmax": same("nn.softmax"),
    "log2": lambda n: call("log2", n.tensor(0)),
    "log10": lambda n: call("log10", n.tensor(0)),
    "nn.dense": layers.dense,
    "nn.matmul": layers.matmul(transposed=False),
    "nn.batch_matmul": layers.matmul(transposed=True),
    "nn.bias_add": layers.bias_add,
    "nn.batch_norm": layers.batch_norm,
    "nn.layer_norm": layers.norm(lambda rank, channel: (channel,)),
    "nn.instance_norm": layers.norm(layers._spatial),
    "nn.group_norm": layers.norm(layers._spatial),
    "nn.lrn": layers.local_response_norm,
    "nn.l2_normalize": layers.l2_normalize,
    "nn.leaky_relu": lambda n: n.relax("nn.leakyrelu", n.x[0], alpha=n.attr("alpha")),
    "nn.dropout": lambda n: (call("dropout", n.tensor(0), p=n.attr("rate", 0.5)), None),
    "nn.batch_flatten": lambda n: call("flatten", n.tensor(0), start=1),
    "nn.upsampling": layers.upsampling,
    "nn.pad": layers.pad,
    "nn.mirror_pad": layers.mirror_pad,
    "image.resize2d": layers.resize,
    "layout_transform": layers.layout_transform,
    "clip": clip,
    "cast": lambda n: cast(n.tensor(0), n.attr("dtype")),
    "cast_like": lambda n: cast(n.tensor(0), n.tensor(1).dtype),
    "variance": shapes.variance,
    "reshape": shapes.reshape,
    "contrib_reverse_reshape": lambda n: call(
        "reshape", n.tensor(0), shape=shapes.new_shape(n.tensor(0).shape[::-1], n.attr("newshape")[::-1])[::-1]
    ),
    "reshape_like": shapes.reshape_like,
    "transpose": shapes.transpose,
    "expand_dims": shapes.expand_dims,
    "squeeze": shapes.squeeze,
    "concatenate": shapes.concatenate,
    "stack": shapes.stack,
    "split": shapes.split,
    "strided_slice": shapes.strided_slice,
    "slice_like": shapes.slice_like,
    "broadcast_to": shapes.broadcast(lambda n: n.attr("shape")),
    "broadcast_to_like": shapes.broadcast(lambda n: n.tensor(1).shape),
    "zeros": shapes.filled(0, like=False),
    "ones": shapes.filled(1, like=False),
    "full": shapes.filled(None, like=False),
    "zeros_like": shapes.filled(0, like=True),
    "ones_like": shapes.filled(1, like=True),
    "full_like": shapes.filled(None, like=True),
    "arange": shapes.arange,
    "take": shapes.take,
    "gather": lambda n: n.relax("gather_elements", *n.x, axis=n.attr("axis", 0)),
    "gather_nd": shapes.gather_nd,
    "tile": lambda n: n.relax("tile", n.x[0], repeats=n.attr("reps")),
    "repeat": lambda n: n.relax("repeat", n.x[0], repeats=n.attr("repeats"), axis=n.attr("axis")),
    "reverse": lambda n: n.relax("flip", n.x[0], axis=n.attr("axis")),
    "cumsum": lambda n: n.relax(
        "cumsum", n.x[0], axis=n.attr("axis"), dtype=n.attr("dtype"), exclusive=n.attr("exclusive")
    ),
    "shape_of": shapes.shape_of,
    "einsum": shapes.einsum,
    "one_hot": shapes.one_hot,
}
