"""Relay's layers in our words, most by way of the Relax operator that came after them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from msc_core import dims
from msc_core.errors import UnsupportedOperator
from msc_core.frontends.layouts import order, standard_layout
from msc_core.frontends.relay_call import RelayCall, Translator
from msc_core.ir import Tensor
from msc_core.ops import call
from msc_core.ops.dtypes import cast


def widened(n: RelayCall, x: Tensor) -> Any:
    """An operand in `out_dtype`, where that is wider."""
    wide = n.attr("out_dtype", "")
    return x if wide in ("", "void") else cast(x, wide)


def conv(n: RelayCall) -> Any:
    """`nn.conv{1,2,3}d` in any layout; depthwise ones may have the multiplier as an axis of the weight."""
    x, weight = n.tensor(0), n.tensor(1)
    (x, weight), attrs, back = standard_layout(n.op, (x, weight), n.attrs, n.emit)
    groups, (out, inner) = n.attr("groups", 1), weight.shape[:2]
    if "transpose" not in n.op and groups == x.shape[1] == out and inner != 1:
        weight = n.emit(call("reshape", weight, shape=(dims.mul(out, inner), 1, *weight.shape[2:])), "weight")
    operands = [n.as_tensor(widened(n, t), "cast") for t in (x, weight)]
    return back(n.relax(n.op, *operands, **{**attrs, "out_dtype": ""}))


def conv_transpose(n: RelayCall) -> Any:
    """`nn.conv{1,2,3}d_transpose`."""
    layout = n.attr("kernel_layout", "")
    if sorted(layout) != sorted("IO" + layout.replace("I", "").replace("O", "")):
        raise UnsupportedOperator(f"{n.op} in kernel layout {layout!r}")
    return conv(replace(n, attrs={**n.attrs, "kernel_layout": true_layout(n, layout)}))


def true_layout(n: RelayCall, layout: str) -> str:
    """The weight's layout. Its letters I and O had each other's meaning before TVM 0.9 (1-D and 3-D: 0.13).

    The sizes tell which meaning a file has; where they do not, the version does, but for the one that changed it.
    """
    channels = n.tensor(0).shape[n.attr("data_layout", "NC").index("C")]
    shape, changed = n.tensor(1).shape, (0, 8) if "conv2d" in n.op else (0, 12)
    inner, outer = shape[layout.index("I")], shape[layout.index("O")]
    swapped = inner != channels if inner != outer else n.release < changed
    if inner == outer and n.release in (changed, (0, 0)):
        raise UnsupportedOperator(
            f"{n.op}: what {layout} means for {list(shape)} changed in TVM {changed[0]}.{changed[1]}"
        )
    return layout.translate(str.maketrans("IO", "OI")) if swapped else layout


def dense(n: RelayCall) -> Any:
    """`nn.dense`."""
    if n.attr("weight_layout", "NC") != "NC":
        raise UnsupportedOperator(f"nn.dense with a packed weight ({n.attr('weight_layout')})")
    return call("linear", widened(n, n.tensor(0)), widened(n, n.tensor(1)))


def matmul(transposed: bool) -> Translator:
    """`nn.matmul` and `nn.batch_matmul`, which transposes the second operand unless told otherwise."""

    def translate(n: RelayCall) -> Any:
        operands = []
        for index, flag in ((0, n.attr("transpose_a", False)), (1, n.attr("transpose_b", transposed))):
            x = n.tensor(index)
            rank = len(x.shape)
            axes = (*range(rank - 2), rank - 1, rank - 2)
            operands.append(widened(n, n.as_tensor(call("permute_dims", x, axes=axes) if flag else x, "transpose")))
        return call("matmul", *operands)

    return translate


def bias_add(n: RelayCall) -> Any:
    """`nn.bias_add`."""
    x, bias = n.tensor(0), n.tensor(1)
    behind = len(x.shape) - 1 - n.attr("axis", 1) % len(x.shape)
    return call("add", x, call("reshape", bias, shape=(*bias.shape, *[1] * behind)) if behind else bias)


def norm(axes: Callable[[int, int], tuple[int, ...]]) -> Translator:
    """`nn.layer_norm`, `nn.instance_norm` and `nn.group_norm`; `axes` from the rank and the channel's axis."""

    def translate(n: RelayCall) -> Any:
        rank = len(n.tensor(0).shape)
        channel = n.attr("axis", -1 if n.op == "nn.layer_norm" else 1) % rank
        attrs = {k: v for k, v in n.attrs.items() if k != "axis"}
        if n.op == "nn.layer_norm" and channel != rank - 1:
            swap = tuple({channel: rank - 1, rank - 1: channel}.get(i, i) for i in range(rank))
            x = n.emit(call("permute_dims", n.tensor(0), axes=swap), "behind")
            y = n.relax(n.op, x, *n.x[1:], **attrs, axes=(rank - 1,))
            return call("permute_dims", y, axes=swap)
        place = {} if n.op == "nn.layer_norm" else {"channel_axis": channel}
        return n.relax(n.op, *n.x, **attrs, **place, axes=axes(rank, channel))

    return translate


def _spatial(rank: int, channel: int) -> tuple[int, ...]:
    return tuple(i for i in range(1, rank) if i != channel)


def batch_norm(n: RelayCall) -> Any:
    """`nn.batch_norm`, which keeps the statistics as they are."""
    return n.relax(n.op, *n.x, **n.attrs, training=False)


def local_response_norm(n: RelayCall) -> Any:
    """`nn.lrn` over the channels."""
    if n.attr("axis", 1) != 1:
        raise UnsupportedOperator(f"nn.lrn over axis {n.attr('axis')}; expected 1")
    attrs = {"size": n.attr("size"), "alpha": n.attr("alpha"), "beta": n.attr("beta"), "k": n.attr("bias")}
    return call("local_response_norm", n.tensor(0), **attrs)


def l2_normalize(n: RelayCall) -> Any:
    """`nn.l2_normalize`."""
    x = n.tensor(0)
    total = n.as_tensor(
        n.relax("sum", n.emit(call("multiply", x, x), "square"), axis=n.attr("axis"), keepdims=True), "sum"
    )
    return call("divide", x, call("sqrt", call("maximum", total, np.asarray(n.attr("eps"), x.dtype))))


def global_pool(maximum: bool) -> Translator:
    """`nn.global_{avg,max}_pool{1,2,3}d`."""

    def translate(n: RelayCall) -> Any:
        layout = n.attr("layout", "")
        rank = len(n.tensor(0).shape)
        axes = tuple(i for i in range(rank) if (layout[i] not in "NC" if len(layout) == rank else i > 1))
        if maximum or axes != tuple(range(2, rank)):
            return n.relax("max" if maximum else "mean", n.x[0], axis=axes, keepdims=True)
        return call(f"adaptive_avg_pool{rank - 2}d", n.tensor(0), size=(1,) * (rank - 2))

    return translate


def adaptive_pool(n: RelayCall) -> Any:
    """`nn.adaptive_{avg,max}_pool{1,2,3}d`."""
    (x,), _, back = standard_layout(n.op, (n.tensor(0),), n.attrs, n.emit)
    rank = len(x.shape) - 2
    size = n.attr("output_size") or x.shape[2:]
    return back(call(n.op.removeprefix("nn."), x, size=size * rank if len(size) == 1 else size))


def resize(n: RelayCall) -> Any:
    """`image.resize2d`."""
    if any(n.attr("roi") or ()) and n.attr("coordinate_transformation_mode") == "tf_crop_and_resize":
        raise UnsupportedOperator("image.resize2d of a region of interest")
    return _resized(n, n.attr("size"), n.attr("method", "linear"), n.attrs)


def upsampling(n: RelayCall) -> Any:
    """`nn.upsampling`."""
    x, layout = n.tensor(0), n.attr("layout", "NCHW")
    scale = {"H": n.attr("scale_h"), "W": n.attr("scale_w")}
    sizes = [x.shape[layout.index(axis)] for axis in "HW"]
    size = tuple(
        math.floor(s * scale[axis] + 0.5) if isinstance(s, int) else dims.mul(s, _whole(scale[axis]))
        for s, axis in zip(sizes, "HW", strict=True)
    )
    mode = "align_corners" if n.attr("align_corners", False) else "asymmetric"
    return _resized(
        n, size, n.attr("method", "nearest_neighbor"), {"coordinate_transformation_mode": mode, "layout": layout}
    )


def _whole(scale: float) -> int:
    if scale != int(scale):
        raise UnsupportedOperator(f"a symbolic size times {scale}")
    return int(scale)


def _resized(n: RelayCall, size: Any, method: str, attrs: Mapping[str, Any]) -> Any:
    mode = attrs.get("coordinate_transformation_mode", "half_pixel")
    rounding = attrs.get("rounding_method") or ("round" if mode == "align_corners" else "floor")
    wanted = {**attrs, "method": method.removeprefix("bi") if method in ("bilinear", "bicubic") else method,
             "rounding_method": rounding, "coordinate_transformation_mode": mode}  # fmt: skip
    (x,), given, back = standard_layout("image.resize2d", (n.tensor(0),), wanted, n.emit)
    return back(n.relax("image.resize2d", x, tuple(size), **given))


def pad(n: RelayCall) -> Any:
    """`nn.pad`, whose value is an argument or, in old versions, an attribute."""
    value = n.attr("pad_value", 0.0) if len(n.x) < 2 else n.constant(1).item()
    width = tuple(side for sides in n.attr("pad_width") for side in sides)
    mode = {"edge": "replicate"}.get(n.attr("pad_mode", "constant"), n.attr("pad_mode", "constant"))
    return n.relax("nn.pad", n.x[0], pad_width=width, pad_value=value, pad_mode=mode)


def mirror_pad(n: RelayCall) -> Any:
    """`nn.mirror_pad`."""
    if n.attr("mode", "SYMMETRIC").upper() != "REFLECT":
        raise UnsupportedOperator(f"nn.mirror_pad with mode {n.attr('mode')}; expected REFLECT")
    width = tuple(side for sides in n.attr("pad_width") for side in sides)
    return n.relax("nn.pad", n.x[0], pad_width=width, pad_value=0.0, pad_mode="reflect")


def layout_transform(n: RelayCall) -> Any:
    """`layout_transform` between orders of the same axes."""
    return call("permute_dims", n.tensor(0), axes=order(n.op, n.attr("src_layout"), n.attr("dst_layout")))
