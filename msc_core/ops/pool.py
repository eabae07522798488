"""Pooling over windows of the spatial axes."""

from __future__ import annotations

from typing import Any

from msc_core.errors import UnsupportedOperator
from msc_core.ir import Tensor
from msc_core.ops.op import Bound, Call, Op, call
from msc_core.ops.window import spread, symmetric, torch_padding, window_size


def max_pool2d_from_aten(
    self: Tensor, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Call:
    """`aten.max_pool2d`; an empty stride means the kernel size."""
    return call(
        "max_pool2d", self, kernel=spread(kernel_size, 2), stride=spread(stride or kernel_size, 2),
        padding=symmetric(padding, 2),
        dilation=spread(dilation, 2), ceil_mode=ceil_mode,
    )  # fmt: skip


def avg_pool2d_from_aten(
    self: Tensor,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Call:
    """`aten.avg_pool2d` without a divisor of its own."""
    if divisor_override is not None:
        raise UnsupportedOperator(f"avg_pool2d with divisor_override={divisor_override}")
    return call(
        "avg_pool2d", self, kernel=spread(kernel_size, 2), stride=spread(stride or kernel_size, 2),
        padding=symmetric(padding, 2),
        ceil_mode=ceil_mode, count_include_pad=count_include_pad,
    )  # fmt: skip


def max_pool2d_to_torch(b: Bound) -> Call:
    """`F.max_pool2d`."""
    x, padding = torch_padding(b.input(0), b["padding"], fill=float("-inf"))
    return call(
        "F.max_pool2d", x, b["kernel"], stride=b["stride"], padding=padding, dilation=b["dilation"],
        ceil_mode=b["ceil_mode"],
    )  # fmt: skip


def avg_pool2d_to_torch(b: Bound) -> Call:
    """`F.avg_pool2d`, which has no asymmetric padding unless the padding counts."""
    x, padding = torch_padding(b.input(0), b["padding"])
    if isinstance(x, Call) and not b["count_include_pad"]:
        raise UnsupportedOperator(f"{b}: torch cannot average with asymmetric padding {b['padding']} left out")
    return call(
        "F.avg_pool2d", x, b["kernel"], stride=b["stride"], padding=padding, ceil_mode=b["ceil_mode"],
        count_include_pad=b["count_include_pad"],
    )  # fmt: skip


def adaptive_to_onnx(b: Bound) -> Call:
    """`GlobalAveragePool`, or `AveragePool` where the output size divides the input."""
    (height, width), out = b.input(0).shape[2:], b["size"]
    if out == (1, 1):
        return call("GlobalAveragePool", *b.x)
    if not (isinstance(height, int) and isinstance(width, int)) or height % out[0] or width % out[1]:
        raise UnsupportedOperator(f"{b}: ONNX can pool {(height, width)} to a size that divides it, not to {out}")
    kernel = (height // out[0], width // out[1])
    return call("AveragePool", *b.x, kernel_shape=kernel, strides=kernel)


POOL = [
    Op(
        "max_pool2d",
        axes="n c h w -> n c H W",
        attrs={"kernel": (1, 1), "stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), "ceil_mode": False},
        new=lambda b, sizes: window_size(b, b["kernel"], b["ceil_mode"]),
        aten={"max_pool2d.default": max_pool2d_from_aten},
        torch=max_pool2d_to_torch,
        onnx=lambda b: call(
            "MaxPool",
            *b.x,
            kernel_shape=b["kernel"],
            strides=b["stride"],
            pads=b["padding"],
            dilations=b["dilation"],
            ceil_mode=int(b["ceil_mode"]),
        ),
        relax=lambda b: call(
            "nn.max_pool2d",
            *b.x,
            pool_size=b["kernel"],
            strides=b["stride"],
            padding=b["padding"],
            dilation=b["dilation"],
            ceil_mode=b["ceil_mode"],
        ),
        msc="nn.max_pool2d",
    ),
    Op(
        "avg_pool2d",
        axes="n c h w -> n c H W",
        attrs={
            "kernel": (1, 1),
            "stride": (1, 1),
            "padding": (0, 0, 0, 0),
            "ceil_mode": False,
            "count_include_pad": True,
        },
        new=lambda b, sizes: window_size(b, b["kernel"], b["ceil_mode"]),
        aten={"avg_pool2d.default": avg_pool2d_from_aten},
        torch=avg_pool2d_to_torch,
        onnx=lambda b: call(
            "AveragePool",
            *b.x,
            kernel_shape=b["kernel"],
            strides=b["stride"],
            pads=b["padding"],
            ceil_mode=int(b["ceil_mode"]),
            count_include_pad=int(b["count_include_pad"]),
        ),
        relax=lambda b: call(
            "nn.avg_pool2d",
            *b.x,
            pool_size=b["kernel"],
            strides=b["stride"],
            padding=b["padding"],
            ceil_mode=b["ceil_mode"],
            count_include_pad=b["count_include_pad"],
        ),
        msc="nn.avg_pool2d",
    ),
    Op(
        "adaptive_avg_pool2d",
        axes="n c h w -> n c H W",
        attrs={"size": (1, 1)},
        new=lambda b, sizes: {"H": b["size"][0], "W": b["size"][1]},
        aten={
            "adaptive_avg_pool2d.default": lambda self, output_size: call(
                "adaptive_avg_pool2d", self, size=spread(output_size, 2)
            )
        },
        torch=lambda b: call("F.adaptive_avg_pool2d", *b.x, b["size"]),
        onnx=adaptive_to_onnx,
        relax=lambda b: call("nn.adaptive_avg_pool2d", *b.x, output_size=b["size"]),
        msc="nn.adaptive_avg_pool2d",
    ),
]
