"""Operators that contract an axis with a weight: convolutions and linear layers."""

from __future__ import annotations

from typing import Any

from msc_core.ir import Tensor
from msc_core.ops.op import Bound, Call, Op, call
from msc_core.ops.signature import Sizes
from msc_core.ops.window import spread, symmetric, torch_padding, window_size


def conv2d_from_aten(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Call:
    """`aten.conv2d`, whose padding may be a number, a pair, "valid" or "same"."""
    dilation = spread(dilation, 2)
    if padding == "valid":
        padding = 0
    if padding == "same":
        total = [d * (int(k) - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
        quad = tuple(t // 2 for t in total) + tuple(t - t // 2 for t in total)
    else:
        quad = symmetric(padding, 2)
    return call(
        "conv2d", input, weight, bias, stride=spread(stride, 2), padding=quad, dilation=dilation, groups=groups
    )  # fmt: skip


def conv2d_to_torch(b: Bound) -> Call:
    """`F.conv2d`; asymmetric padding becomes a call of its own."""
    x, padding = torch_padding(b.input(0), b["padding"])
    return call(
        "F.conv2d", x, *b.x[1:], stride=b["stride"], padding=padding, dilation=b["dilation"], groups=b["groups"]
    )  # fmt: skip


def conv2d_to_onnx(b: Bound) -> Call:
    """`Conv`."""
    return call(
        "Conv", *b.x, strides=b["stride"], pads=b["padding"], dilations=b["dilation"], group=b["groups"],
        kernel_shape=b.input(1).shape[2:],
    )  # fmt: skip


def conv2d_to_relax(b: Bound) -> Call:
    """`nn.conv2d`, which has no bias, and an `add`."""
    out = call(
        "nn.conv2d", *b.x[:2], strides=b["stride"], padding=b["padding"], dilation=b["dilation"], groups=b["groups"]
    )  # fmt: skip
    bias = b.x[2]
    return out if bias is None else call("add", out, call("reshape", bias, (1, bias.shape[0], 1, 1)))


def conv2d_macs(b: Bound, sizes: Sizes) -> int:
    """Output positions times kernel size times input channels of a group."""
    kernel = b.input(1).shape
    return _product(b.out[0].shape) * _product(kernel[1:])


def linear_macs(b: Bound, sizes: Sizes) -> int:
    """Output positions times input features."""
    return _product(b.out[0].shape) * int(sizes["i"])


def linear_to_onnx(b: Bound) -> Call:
    """`Gemm` for matrices, otherwise `MatMul` with the transposed weight."""
    x, weight, bias = b.input(0), b.input(1), b.x[2]
    if len(x.shape) == 2:
        return call("Gemm", x, weight, bias, transB=1)
    out = call("MatMul", x, call("Transpose", weight, perm=(1, 0)))
    return out if bias is None else call("Add", out, bias)


def linear_to_relax(b: Bound) -> Call:
    """`matmul` with the transposed weight, and an `add`."""
    out = call("matmul", b.x[0], call("permute_dims", b.x[1]))
    return out if b.x[2] is None else call("add", out, b.x[2])


def _product(dims: tuple[Any, ...]) -> int:
    """The product of the sizes; a symbolic dimension counts once, so costs are per sample."""
    product = 1
    for dim in dims:
        product *= dim if isinstance(dim, int) else 1
    return product


CONTRACTION = [
    Op(
        "conv2d",
        axes="n (g i) h w, (g o) i . ., (g o)? -> n (g o) H W",
        attrs={"stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1},
        sized={"groups": "g"},
        new=lambda b, sizes: window_size(b, b.input(1).shape[2:]),
        macs=conv2d_macs,
        aten={"conv2d.default": conv2d_from_aten, "conv2d.padding": conv2d_from_aten},
        torch=conv2d_to_torch,
        onnx=conv2d_to_onnx,
        relax=conv2d_to_relax,
        msc="nn.conv2d",
    ),
    Op(
        "linear",
        axes="... i, o i, o? -> ... o",
        macs=linear_macs,
        aten={"linear.default": lambda input, weight, bias=None: call("linear", input, weight, bias)},
        torch=lambda b: call("F.linear", *b.x),
        onnx=linear_to_onnx,
        relax=linear_to_relax,
        msc="msc.linear",
    ),
]
