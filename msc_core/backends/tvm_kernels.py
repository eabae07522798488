"""TVM kernels of the contractions, as tensor expressions, and their weights packed to suit.

All have one form: an optional block `pad`, a reduction `acc[..., oo, v]` whose last axis is a tile of `v` output
channels (a few vectors), and a block `out` that adds the bias. `tvm_schedule.py` keeps a tile of `acc` in registers.
Images are NHWC; a weight is packed as [oo, kh, kw, i, v], so that a tile reads it in order. Channels are padded with
zeros to whole vectors, in the weights and the output; a reduction never runs over them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from msc_core.ir import Array

Pair = tuple[int, int]
Quad = tuple[int, int, int, int]

WIDTH = "msc_width"  # annotation of `acc`: how many positions of the last spatial axis are one tile
CONTRACTION = {"op_pattern": 4}  # TVM's kOutEWiseFusable: element-wise consumers may be fused behind it


@dataclass(frozen=True)
class Machine:
    """What a tile must fit: floats in a vector, vector registers, cores."""

    lanes: int
    registers: int
    cores: int = 1

    def padded(self, channels: int) -> int:
        """Channels in whole vectors."""
        return -(-channels // self.lanes) * self.lanes

    def tile(self, width: int, vectors: int) -> Pair:
        """(positions, vectors) of one tile, for `width` positions and `vectors` vectors of output channels.

        A step of the reduction loads `vectors` weights and broadcasts `positions` inputs, two loads or two
        multiply-adds a cycle; fewer than ten accumulators leave the multiply-adds waiting for each other. Positions
        that do not divide `width` compute some for nothing.
        """
        best, choice = 0.0, (1, 1)
        for v in (v for v in range(1, vectors + 1) if vectors % v == 0):
            for w in range(1, min(width, self.registers) + 1):
                if w * v + v + 1 > self.registers:
                    break
                cycles = max(w * v / 2, (w + v) / 2, 5)
                value = w * v / cycles * width / (-(-width // w) * w) * (1 + w * v / 1e6)
                if value > best:
                    best, choice = value, (w, v)
        return choice


@dataclass(frozen=True)
class Conv:
    """A convolution with fixed sizes: `weight` is OIHW as in the graph, `bias` may be absent."""

    weight: Array
    bias: Array | None
    stride: Pair
    padding: Quad
    dilation: Pair
    groups: int

    @property
    def depthwise(self) -> bool:
        """One input and one output channel for each group."""
        return self.groups == len(self.weight) and self.groups > 1 and self.weight.shape[1] == 1

    def merged(self, lanes: int) -> Conv:
        """The same with fewer groups, each a multiple of `lanes` output channels, by zeros between the merged ones.

        A vector would be partly empty otherwise. If no number of groups makes whole vectors, one group is left.
        """
        size = len(self.weight) // self.groups
        divisors = [m for m in range(1, self.groups + 1) if self.groups % m == 0]
        merge = next((m for m in divisors if m * size % lanes == 0), self.groups)
        if merge == 1 or self.groups == 1:
            return self
        inner = self.weight.shape[1]
        dense = np.zeros((len(self.weight), merge * inner, *self.weight.shape[2:]), self.weight.dtype)
        for o in range(len(dense)):
            at = o // size % merge * inner
            dense[o, at : at + inner] = self.weight[o]
        return Conv(dense, self.bias, self.stride, self.padding, self.dilation, self.groups // merge)


def pack(weight: Array, tile: int, outputs: int) -> Array:
    """[o, i, ...] -> [oo, ..., i, v] with `outputs` = oo * v output channels, the new ones zero.

    Denormal weights become zero: they change no result and cost a hundred times the time of normal ones.
    """
    full = np.zeros((outputs, *weight.shape[1:]), weight.dtype)
    full[: len(weight)] = np.where(np.abs(weight) < np.finfo(weight.dtype).tiny, 0, weight)
    tiles = full.reshape(outputs // tile, tile, *weight.shape[1:])
    return np.ascontiguousarray(np.moveaxis(tiles, (1, 2), (-1, -2)))


def padded_bias(bias: Array | None, count: int, outputs: int) -> Array:
    """The bias, or zeros, for `outputs` channels."""
    full = np.zeros(outputs, np.float32)
    full[:count] = 0 if bias is None else bias
    return full


def conv2d(conv: Conv, shape: tuple[int, ...], machine: Machine) -> tuple[Callable[..., Any], list[Array]]:
    """The tensor expression of (x, weight, bias) -> y for an input of that NHWC shape, and weight and bias."""
    outputs = machine.padded(len(conv.weight))
    if conv.depthwise:
        width, vectors = machine.tile(out_size(conv, shape)[1], 1)
    else:
        conv = conv.merged(machine.lanes)
        per_group = outputs // conv.groups // machine.lanes
        width, vectors = machine.tile(out_size(conv, shape)[1], per_group)
    tile = vectors * machine.lanes
    body = _conv_expression(conv, width, tile, outputs // tile)
    return body, [pack(conv.weight, tile, outputs), padded_bias(conv.bias, len(conv.weight), outputs)]


def out_size(conv: Conv, shape: tuple[int, ...]) -> Pair:
    """Height and width of the output."""
    top, left, bottom, right = conv.padding
    room = (shape[1] + top + bottom, shape[2] + left + right)
    kernel = conv.weight.shape[2:]
    height, width = (
        (r - d * (k - 1) - 1) // s + 1 for r, d, k, s in zip(room, conv.dilation, kernel, conv.stride, strict=True)
    )
    return height, width


def _conv_expression(conv: Conv, width: int, tile: int, tiles: int) -> Callable[..., Any]:
    """`acc` has its last spatial axis rounded up to whole tiles; `out` leaves the surplus out."""
    from tvm import te

    kernel, (sh, sw), (dh, dw) = conv.weight.shape[2:], conv.stride, conv.dilation
    inner, tiles_per_group = conv.weight.shape[1], max(tiles // conv.groups, 1)

    def body(x: Any, weight: Any, bias: Any) -> Any:
        n, height, breadth, channels = (int(s) for s in x.shape)
        oh, ow = out_size(conv, (n, height, breadth, channels))
        rounded = -(-ow // width) * width
        source = _padded(x, conv, rounded, tiles * tile if conv.depthwise else channels)
        axes = [te.reduce_axis((0, k), name) for k, name in zip(kernel, ("rh", "rw"), strict=True)]
        axes += [] if conv.depthwise else [te.reduce_axis((0, inner), "ri")]

        def product(i: Any, y: Any, z: Any, o: Any, v: Any) -> Any:
            rh, rw, *ri = axes
            channel = o // tiles_per_group * inner + ri[0] if ri else o * tile + v
            at = ri or [0]
            return te.sum(source[i, y * sh + rh * dh, z * sw + rw * dw, channel] * weight[o, rh, rw, at[0], v], axes)

        acc = te.compute((n, oh, rounded, tiles, tile), product, "acc", attrs={WIDTH: width})
        return te.compute(
            (n, oh, ow, tiles * tile), lambda i, y, z, c: acc[i, y, z, c // tile, c % tile] + bias[c], "out"
        )

    return body


def _padded(x: Any, conv: Conv, rounded: int, channels: int) -> Any:
    """The input with zeros around it, wide enough for `rounded` output positions; itself if none are needed."""
    from tvm import te, tirx

    n, height, breadth, found = (int(s) for s in x.shape)
    top, left, bottom, _ = conv.padding
    needed = (rounded - 1) * conv.stride[1] + (conv.weight.shape[3] - 1) * conv.dilation[1] + 1
    if not any((top, left, bottom)) and needed <= breadth and channels == found:
        return x

    def value(i: Any, y: Any, z: Any, c: Any) -> Any:
        inside = [y >= top, y < height + top, z >= left, z < breadth + left]
        inside += [c < found] if channels > found else []
        return tirx.if_then_else(tirx.all(*inside), x[i, y - top, z - left, c], tirx.const(0, x.dtype))

    return te.compute((n, height + top + bottom, needed, channels), value, "pad")


def linear(
    weight: Array, bias: Array | None, shape: tuple[int, ...], machine: Machine
) -> tuple[Callable[..., Any], list[Array]]:
    """As `conv2d`, for `x[..., i]` of that shape. The output is not padded: it has the shape that the graph says."""
    from tvm import te

    count, inner = weight.shape
    outputs = machine.padded(count)
    width, vectors = machine.tile(shape[-2] if len(shape) > 1 else 1, outputs // machine.lanes)
    tile = vectors * machine.lanes
    rounded = -(-shape[-2] // width) * width
    leading = shape[:-2]

    def body(x: Any, packed: Any, bias: Any) -> Any:
        from tvm import tirx

        source = x
        if rounded != shape[-2]:
            source = te.compute(
                (*leading, rounded, inner),
                lambda *at: tirx.if_then_else(at[-2] < shape[-2], x(*at), tirx.const(0, x.dtype)),
                "pad",
            )
        axis = te.reduce_axis((0, inner), "ri")

        def product(*at: Any) -> Any:
            *rows, o, v = at
            return te.sum(source(*rows, axis) * packed[o, axis, v], [axis])

        acc = te.compute((*leading, rounded, outputs // tile, tile), product, "acc", attrs={WIDTH: width})
        return te.compute(
            (*shape[:-1], count), lambda *at: acc(*at[:-1], at[-1] // tile, at[-1] % tile) + bias[at[-1]], "out"
        )

    return body, [pack(weight, tile, outputs), padded_bias(bias, count, outputs)]
