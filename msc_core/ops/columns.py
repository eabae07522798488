"""Windows of an image as columns of a matrix and back: convolutions whose kernels are one at a single place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from msc_core import dims
from msc_core.dims import Dim
from msc_core.errors import UnsupportedOperator
from msc_core.ir import Array, Tensor
from msc_core.ops.op import Call, Source, call
from msc_core.ops.window import product, spread, symmetric


def places(channels: Dim, kernel: Sequence[int], dtype: str) -> Array:
    """A kernel for each channel and each place of the window, with a one there."""
    if isinstance(channels, str):
        raise UnsupportedOperator(f"windows of {channels} channels as columns")
    count = int(np.prod(kernel))
    return np.tile(np.eye(count, dtype=dtype).reshape(count, 1, *kernel), (channels, *[1] * (len(kernel) + 1)))


def unfold(x: Tensor, kernel: tuple[int, ...], **window: tuple[int, ...]) -> Call:
    """The windows of each channel: [batch, channels * places, windows]."""
    rank, channels = len(kernel), x.shape[1]
    found = call(f"conv{rank}d", x, places(channels, kernel, x.dtype), groups=channels, **window)
    return call("flatten", found, start=2)


def fold(x: Tensor, image: Sequence[Dim], kernel: tuple[int, ...], **window: tuple[int, ...]) -> Call:
    """The sum of windows where they overlap: `unfold` transposed."""
    rank = len(kernel)
    stride, dilation, padding = window["stride"], window["dilation"], window["padding"]
    blocks: list[Dim] = []
    rests: list[int] = []
    for i, size in enumerate(image):
        room = dims.add(size, padding[i], padding[i + rank], -dilation[i] * (kernel[i] - 1) - 1)
        rest = dims.mod(room, stride[i])
        if isinstance(rest, str):
            raise UnsupportedOperator(f"columns to an image of {list(image)} in steps of {stride}")
        blocks.append(dims.add(dims.floordiv(room, stride[i]), 1))
        rests.append(rest)
    channels = dims.floordiv(x.shape[1], product(kernel))
    parts = call("reshape", x, shape=(*x.shape[:2], *blocks))
    weight = places(channels, kernel, x.dtype)
    return call(f"conv{rank}d_transpose", parts, weight, groups=channels, output_padding=tuple(rests), **window)


def unfold_from_aten(self: Tensor, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Call:
    """`aten.im2col`, which `F.unfold` calls."""
    batched(self, 4)
    return unfold(self, spread(kernel_size, 2), **_window(dilation, padding, stride))


def fold_from_aten(self: Tensor, output_size: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Call:
    """`aten.col2im`, which `F.fold` calls."""
    batched(self, 3)
    return fold(self, tuple(output_size), spread(kernel_size, 2), **_window(dilation, padding, stride))


def batched(x: Tensor, rank: int) -> None:
    """Raise if there is no batch."""
    if len(x.shape) != rank:
        raise UnsupportedOperator(f"windows as columns without a batch: {list(x.shape)}")


def _window(dilation: Any, padding: Any, stride: Any) -> dict[str, tuple[int, ...]]:
    return {"dilation": spread(dilation, 2), "padding": symmetric(padding, 2), "stride": spread(stride, 2)}


def fold_from_onnx(n: Source) -> Call:
    """`Col2Im`."""
    image, kernel = n.dims(1), tuple(int(k) for k in n.constant(2).tolist())
    ones, rank = (1,) * len(kernel), len(kernel)
    if rank > 3:
        raise UnsupportedOperator(f"Col2Im over {rank} axes")
    window = {"stride": n.attr("strides", ones), "dilation": n.attr("dilations", ones)}
    return fold(n.tensor(0), image, kernel, padding=tuple(n.attr("pads", (0,) * 2 * rank)), **window)
