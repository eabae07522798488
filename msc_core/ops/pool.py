"""Pooling over windows of the spatial axes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from msc_core import dims
from msc_core.dims import Dim
from msc_core.errors import UnsupportedOperator
from msc_core.ir import Array, Attr, Tensor
from msc_core.ops.derived import derived
from msc_core.ops.dtypes import kind, scalar
from msc_core.ops.op import Bound, Call, Op, Source, call
from msc_core.ops.window import (
    AXES,
    RANKS,
    batched,
    both_sides,
    onnx_rank,
    onnx_window,
    relax_layout,
    spread,
    symmetric,
    torch_padding,
    torch_pairs,
    window_size,
)

# Import


def pool_attrs(rank: int, kernel_size: Any, stride: Any, padding: Any) -> dict[str, Any]:
    """What all pools of ATen say; an empty stride means the kernel size."""
    step = kernel_size if stride is None or (not isinstance(stride, int) and not stride) else stride
    return {
        "kernel": spread(kernel_size, rank), "stride": spread(step, rank), "padding": symmetric(padding, rank)
    }  # fmt: skip


def max_from_aten(rank: int, *, indices: bool = False) -> Any:
    """The importer of `aten.max_pool{1,2,3}d`, or of the form that returns the positions too."""

    def importer(
        self: Tensor, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> Any:
        attrs = pool_attrs(rank, kernel_size, stride, padding)
        attrs |= {"dilation": spread(dilation, rank), "ceil_mode": ceil_mode}

        def build(x: Any) -> Any:
            y = max_pool(rank, x, self.dtype, attrs)
            return (y, call(f"max_pool{rank}d_indices", x, **attrs)) if indices else y

        return batched(self, rank, build)

    return importer


def max_pool(rank: int, x: Any, dtype: str, attrs: dict[str, Any]) -> Any:
    """A `max_pool`; of integers in a float dtype that holds them, as not every target pools integers."""
    if kind(dtype) == 2:
        return call(f"max_pool{rank}d", x, **attrs)
    wide = "float64" if dtype in ("int32", "uint32") else "float32"
    if dtype in ("int64", "uint64"):
        raise UnsupportedOperator(f"max_pool{rank}d of {dtype}")
    return call("cast", call(f"max_pool{rank}d", call("cast", x, dtype=wide), **attrs), dtype=dtype)


def avg_from_aten(rank: int) -> Any:
    """The importer of `aten.avg_pool{1,2,3}d`."""

    def importer(
        self: Tensor,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        attrs = pool_attrs(rank, kernel_size, stride, padding)
        attrs |= {"ceil_mode": ceil_mode, "count_include_pad": count_include_pad, "divisor": divisor_override or 0}
        return batched(self, rank, lambda x: call(f"avg_pool{rank}d", x, **attrs))

    return importer


def _onnx_attrs(n: Source) -> dict[str, Any]:
    rank = onnx_rank(n)
    kernel = tuple(n.attr("kernel_shape"))
    attrs: dict[str, Any] = {"kernel": kernel, **onnx_window(n, kernel), "ceil_mode": bool(n.attr("ceil_mode", 0))}
    return attrs if rank == len(kernel) else {}


def max_from_onnx(n: Source) -> Any:
    """`MaxPool`; its positions count through the whole tensor, ours through each channel."""
    x, attrs, rank = n.tensor(0), _onnx_attrs(n), onnx_rank(n)
    y = max_pool(rank, x, x.dtype, attrs)
    if n.outputs == 1:
        return y
    if n.attr("storage_order", 0):
        raise UnsupportedOperator("MaxPool with positions in column-major order")
    area = dims.mul(*x.shape[2:])
    batch, channels = x.shape[:2]
    if not (isinstance(batch, int) and isinstance(channels, int) and isinstance(area, int)):
        raise UnsupportedOperator(f"MaxPool with positions in a tensor of shape {list(x.shape)}")
    start = (np.arange(batch * channels, dtype=np.int64) * area).reshape((batch, channels, *[1] * rank))
    return y, call("add", call(f"max_pool{rank}d_indices", x, **attrs), start)


def avg_from_onnx(n: Source) -> Call:
    """`AveragePool`."""
    attrs = _onnx_attrs(n) | {"count_include_pad": bool(n.attr("count_include_pad", 0))}
    return call(f"avg_pool{onnx_rank(n)}d", n.tensor(0), **attrs)


def lp_from_onnx(n: Source) -> Any:
    """`LpPool`: a sum of powers over each window, and its root."""
    p, dtype = n.attr("p", 2), n.tensor(0).dtype
    attrs = _onnx_attrs(n) | {"divisor": 1}
    return _root(call(f"avg_pool{onnx_rank(n)}d", _power(n.tensor(0), p, dtype), **attrs), p, dtype)


def global_lp_from_onnx(n: Source) -> Any:
    """`GlobalLpPool`."""
    p, x = n.attr("p", 2), n.tensor(0)
    total = call("sum", _power(x, p, x.dtype), axes=tuple(range(2, len(x.shape))), keepdims=True)
    return _root(total, p, x.dtype)


def _power(x: Tensor, p: int, dtype: str) -> Call:
    if p == 2:
        return call("multiply", x, x)
    size = call("abs", x)
    return size if p == 1 else call("power", size, scalar(float(p), dtype))


def _root(x: Call, p: int, dtype: str) -> Call:
    return x if p == 1 else call("sqrt", x) if p == 2 else call("power", x, scalar(1 / p, dtype))


def pool_from_relax(name: str, rank: int) -> Any:
    """The importer of `nn.max_pool2d`, `nn.avg_pool2d` and the like."""

    def importer(n: Source) -> Any:
        relax_layout(n, rank)
        attrs: dict[str, Any] = {
            "kernel": spread(n.attr("pool_size", 1), rank), "stride": spread(n.attr("strides", 1), rank),
            "padding": both_sides(n.attr("padding", 0), rank), "dilation": spread(n.attr("dilation", 1), rank),
            "ceil_mode": bool(n.attr("ceil_mode", False)),
        }  # fmt: skip
        if name == "max_pool":
            return max_pool(rank, n.tensor(0), n.tensor(0).dtype, attrs)
        return call(f"avg_pool{rank}d", n.tensor(0), **attrs, count_include_pad=bool(n.attr("count_include_pad", True)))

    return importer


# Emission


def exact_ends(b: Bound) -> tuple[int, ...]:
    """The padding at the end with which exactly the output's windows fit, without `ceil_mode`."""
    rank = len(b["kernel"])
    ends = []
    for i, end in enumerate(b["padding"][rank:]):
        size, out = b.input(0).shape[2 + i], b.out[0].shape[2 + i]
        span = b["dilation"][i] * (b["kernel"][i] - 1) + 1
        extra = dims.sub(dims.add(dims.mul(dims.sub(out, 1), b["stride"][i]), span), dims.add(size, b["padding"][i]))
        if b["ceil_mode"] and isinstance(extra, str):
            raise UnsupportedOperator(f"{b}: ceil_mode with this padding on an axis of size {size}")
        ends.append(max(0, int(extra)) if b["ceil_mode"] else end)
    return tuple(ends)


def plain(b: Bound) -> bool:
    """Whether torch takes the padding as it is: the same on both sides, at most half a window."""
    begins, ends = b["padding"][: len(b["kernel"])], b["padding"][len(b["kernel"]) :]
    return begins == ends and all(2 * p <= k for p, k in zip(begins, b["kernel"], strict=True))


def max_to_torch(b: Bound) -> Call:
    """`F.max_pool2d` and the like; padding that they cannot say becomes a call of its own."""
    padding, ceil = b["padding"][: len(b["kernel"])], b["ceil_mode"]
    x: Tensor | Call = b.input(0)
    if not plain(b):
        x = call("F.pad", x, torch_pairs((*padding, *exact_ends(b))), value=-math.inf)
        padding, ceil = (0,) * len(padding), False
    return call(
        f"F.max_pool{len(padding)}d", x, b["kernel"], stride=b["stride"], padding=padding, dilation=b["dilation"],
        ceil_mode=ceil,
    )  # fmt: skip


def indices_to_torch(b: Bound) -> Any:
    """The second result of `F.max_pool2d` and the like."""
    if not plain(b):
        return derived(indices_steps, "torch")(b)
    pool = max_to_torch(b)
    return call("item", Call(pool.fn, pool.args, {**pool.attrs, "return_indices": True}), 1)


def starts_in_padding(b: Bound) -> bool:
    """Whether `ceil_mode` leaves out a window that starts in the padding at the end, which ONNX did not always."""
    rank = len(b["kernel"])
    for i, (begin, end) in enumerate(zip(b["padding"][:rank], b["padding"][rank:], strict=True)):
        size, out = b.input(0).shape[2 + i], b.out[0].shape[2 + i]
        span = b["dilation"][i] * (b["kernel"][i] - 1) + 1
        if not b["ceil_mode"] or isinstance(size, str):
            continue
        if dims.add(dims.ceildiv(dims.add(size, begin, end, -span), b["stride"][i]), 1) != out:
            return True
    return False


def max_to_onnx(b: Bound) -> Call:
    """`MaxPool`."""
    moved = starts_in_padding(b)
    pads = (*b["padding"][: len(b["kernel"])], *exact_ends(b)) if moved else b["padding"]
    return call(
        "MaxPool", *b.x, kernel_shape=b["kernel"], strides=b["stride"], pads=pads, dilations=b["dilation"],
        ceil_mode=int(b["ceil_mode"] and not moved),
    )  # fmt: skip


def max_to_relax(b: Bound) -> Call:
    """`nn.max_pool2d` and the like."""
    return call(
        f"nn.{b.node.op}", *b.x, pool_size=b["kernel"], strides=b["stride"], padding=b["padding"],
        dilation=b["dilation"], ceil_mode=b["ceil_mode"],
    )  # fmt: skip


def avg_to_torch(b: Bound) -> Any:
    """`F.avg_pool2d` and the like, which have no asymmetric padding unless the padding counts, and no dilation."""
    x, padding = torch_padding(b.input(0), b["padding"])
    moved = isinstance(x, Call) and (not b["count_include_pad"] or b["ceil_mode"])
    wide = any(2 * p > k for p, k in zip(padding, b["kernel"], strict=True))
    if moved or wide or set(b["dilation"]) != {1} or (b["divisor"] and len(padding) == 1):
        return derived(avg_steps, "torch")(b)
    own = {"divisor_override": b["divisor"]} if b["divisor"] else {}
    return call(
        f"F.{b.node.op}", x, b["kernel"], stride=b["stride"], padding=padding, ceil_mode=b["ceil_mode"],
        count_include_pad=b["count_include_pad"], **own,
    )  # fmt: skip


def avg_to_onnx(b: Bound) -> Any:
    """`AveragePool`, which before opset 19 has no dilation."""
    if b["divisor"] or set(b["dilation"]) != {1} or starts_in_padding(b):
        return derived(avg_steps, "onnx")(b)
    return call(
        "AveragePool", *b.x, kernel_shape=b["kernel"], strides=b["stride"], pads=b["padding"],
        ceil_mode=int(b["ceil_mode"]), count_include_pad=int(b["count_include_pad"]),
    )  # fmt: skip


def avg_to_relax(b: Bound) -> Any:
    """`nn.avg_pool2d` and the like."""
    if b["divisor"] or set(b["dilation"]) != {1}:
        return derived(avg_steps, "relax")(b)
    return call(
        f"nn.{b.node.op}", *b.x, pool_size=b["kernel"], strides=b["stride"], padding=b["padding"],
        ceil_mode=b["ceil_mode"], count_include_pad=b["count_include_pad"],
    )  # fmt: skip


def avg_steps(b: Bound) -> Any:
    """An average over windows as a convolution with ones over each channel, divided by what each window counts."""
    x, rank = b.input(0), len(b["kernel"])
    channels = x.shape[1]
    if isinstance(channels, str):
        raise UnsupportedOperator(f"{b}: a window of this kind over {channels} channels")
    ones = np.ones((channels, 1, *b["kernel"]), x.dtype)
    total = call(
        f"conv{rank}d", x, ones, stride=b["stride"], padding=(*b["padding"][:rank], *exact_ends(b)),
        dilation=b["dilation"], groups=channels,
    )  # fmt: skip
    counts = divisors(b)
    return total if (counts == 1).all() else call("divide", total, counts.astype(x.dtype))


def divisors(b: Bound) -> Array:
    """What each window's sum is divided by, in a shape that broadcasts with the output."""
    rank, shape = len(b["kernel"]), b.input(0).shape[2:]
    counts: Array = np.ones((1,) * (rank + 2))
    if b["divisor"] or (b["count_include_pad"] and not b["ceil_mode"]):
        return np.asarray(counts * (b["divisor"] or math.prod(b["kernel"])))
    if b["count_include_pad"] and any(d != 1 for d in b["dilation"]):
        raise UnsupportedOperator(f"{b}: ceil_mode with dilation, where padding counts")
    for i, (size, out) in enumerate(zip(shape, b.out[0].shape[2:], strict=True)):
        if isinstance(size, str) or isinstance(out, str):
            raise UnsupportedOperator(f"{b}: padding that does not count, on an axis of size {size}")
        first = np.arange(out)[:, None] * b["stride"][i] - b["padding"][i]
        seen = first + np.arange(b["kernel"][i]) * b["dilation"][i]
        low, high = (-b["padding"][i], size + b["padding"][i + rank]) if b["count_include_pad"] else (0, size)
        count = ((seen >= low) & (seen < high)).sum(1)
        counts = counts * count.reshape(1, 1, *[-1 if j == i else 1 for j in range(rank)])
    return counts


# The positions of the largest values


def indices_to_onnx(b: Bound) -> Call:
    """`MaxPool`'s second output, which counts through the whole tensor."""
    area = dims.mul(*b.input(0).shape[2:])
    if isinstance(area, str):
        raise UnsupportedOperator(f"{b}: positions in a plane of symbolic size {area}")
    return call("Mod", call("item", max_to_onnx(b), 1, count=2), np.asarray(area, np.int64))


def indices_steps(b: Bound) -> Any:
    """One place of the window after the other: where its value is larger, its position is kept."""
    x, rank, kernel = b.input(0), len(b["kernel"]), b["kernel"]
    shape, out = x.shape[2:], b.out[0].shape[2:]
    if any(isinstance(d, str) for d in (*shape, *out)):
        raise UnsupportedOperator(f"{b}: positions in a plane of symbolic size {list(shape)}")
    sides = (*b["padding"][:rank], *exact_ends(b))
    padded: Any = x
    if any(sides):
        padded = call("pad", x, padding=(0, 0, *sides[:rank], 0, 0, *sides[rank:]), value=-math.inf)
    best: Any = None
    found: Any = None
    for place in np.ndindex(*kernel):
        begin = tuple(p * d for p, d in zip(place, b["dilation"], strict=True))
        end = tuple(s + (int(n) - 1) * t + 1 for s, n, t in zip(begin, out, b["stride"], strict=True))
        axes = tuple(range(2, rank + 2))
        value = call("strided_slice", padded, axes=axes, begin=begin, end=end, strides=b["stride"])
        position = _positions(b, begin, tuple(map(int, shape)), tuple(map(int, out)))
        if best is None:
            best, found = value, position
        else:
            larger = call("greater", value, best)
            found = call("where", larger, position, found)
            best = call("maximum", value, best)
    zeros = call("cast", call("multiply", best, scalar(0.0, x.dtype)), dtype="int64")
    return found if isinstance(found, Call) else call("add", zeros, found)


def _positions(b: Bound, begin: tuple[int, ...], shape: tuple[int, ...], out: tuple[int, ...]) -> Array:
    """The flat position in a plane of one place of every window; what is in the padding never wins."""
    flat: Array = np.zeros((1,) * (len(shape) + 2), np.int64)
    for i, size in enumerate(shape):
        place = np.arange(out[i]) * b["stride"][i] + begin[i] - b["padding"][i]
        axis = np.clip(place, 0, size - 1).reshape(1, 1, *[-1 if j == i else 1 for j in range(len(shape))])
        flat = flat * size + axis
    return flat.astype(np.int64)


def unpool_from_aten(self: Tensor, indices: Tensor, output_size: Any, stride: Any = None, padding: Any = None) -> Any:
    """`max_unpool2d` and `max_unpool3d`: values scattered to their positions in each channel."""
    rank = len(output_size)
    batch = self.shape[: len(self.shape) - rank]
    area = dims.mul(*output_size)
    flat = [call("reshape", t, shape=(*batch, dims.mul(*self.shape[-rank:]))) for t in (self, indices)]
    return call("reshape", scattered((*batch, area), flat[1], flat[0], self.dtype), shape=(*batch, *output_size))


def scattered(shape: tuple[Dim, ...], positions: Any, values: Any, dtype: str) -> Call:
    """Zeros of that shape with values at positions along the last axis."""
    zeros = call("broadcast_to", scalar(0.0, dtype), shape=shape)
    return call("scatter_elements", zeros, positions, values, axis=len(shape) - 1)


def unpool_from_onnx(n: Source) -> Any:
    """`MaxUnpool`, whose positions count through the whole tensor that the `MaxPool` had."""
    x, rank, kernel = n.tensor(0), onnx_rank(n), tuple(n.attr("kernel_shape"))
    stride, pads = n.attr("strides", (1,) * rank), n.attr("pads", (0,) * 2 * rank)
    pooled = tuple(
        dims.add(dims.mul(dims.sub(size, 1), stride[i]), kernel[i] - pads[i] - pads[i + rank])
        for i, size in enumerate(x.shape[2:])
    )
    shape = (*x.shape[:2], *pooled)
    target = n.dims(2, shape)
    flat = [call("reshape", n.tensor(i), shape=(dims.mul(*x.shape),)) for i in (0, 1)]
    y = call("reshape", scattered((dims.mul(*shape),), flat[1], flat[0], x.dtype), shape=shape)
    grown = tuple(dims.sub(a, c) for a, c in zip(target, shape, strict=True))
    return y if not any(grown) else call("pad", y, padding=(*(0 for _ in grown), *grown))


# Rows


def window_attrs(rank: int) -> dict[str, Any]:
    """The attributes of every pool."""
    ones = (1,) * rank
    return {"kernel": ones, "stride": ones, "padding": (0,) * 2 * rank, "dilation": ones, "ceil_mode": False}


def axes(rank: int) -> str:
    """`"n c h w -> n c H W"` and the like."""
    return f"n c {AXES[rank]} -> n c {AXES[rank].upper()}"


def row(name: str, rank: int, attrs: Mapping[str, Attr] | None = None, **words: Any) -> Op:
    """A row of windows that slide over `rank` axes."""
    return Op(
        name,
        axes=axes(rank),
        attrs={**window_attrs(rank), **(attrs or {})},
        new=lambda b, known: window_size(b, b["kernel"], b["ceil_mode"]),
        **words,
    )


def max_row(rank: int) -> Op:
    """The row of a maximum over windows of `rank` axes."""
    return row(
        f"max_pool{rank}d",
        rank,
        aten={f"max_pool{rank}d.default": max_from_aten(rank)},
        from_onnx={"MaxPool": max_from_onnx} if rank == 2 else {},
        from_relax={f"nn.max_pool{rank}d": pool_from_relax("max_pool", rank)},
        torch=max_to_torch,
        onnx=max_to_onnx,
        relax=max_to_relax,
        msc="nn.max_pool2d" if rank == 2 else "",
    )


def avg_row(rank: int) -> Op:
    """The row of an average over windows of `rank` axes; with a `divisor`, of a sum divided by it."""
    onnx = {"AveragePool": avg_from_onnx, "LpPool": lp_from_onnx, "GlobalLpPool": global_lp_from_onnx}
    return row(
        f"avg_pool{rank}d",
        rank,
        {"count_include_pad": True, "divisor": 0},
        aten={f"avg_pool{rank}d.default": avg_from_aten(rank)},
        from_onnx=onnx if rank == 2 else {},
        from_relax={f"nn.avg_pool{rank}d": pool_from_relax("avg_pool", rank)},
        torch=avg_to_torch,
        onnx=avg_to_onnx,
        relax=avg_to_relax,
        msc="nn.avg_pool2d" if rank == 2 else "",
    )


def indices_row(rank: int) -> Op:
    """The row of the positions (in the plane of a channel) of the maxima of a `max_pool`."""
    unpool = {f"max_unpool{rank}d.default": unpool_from_aten} if rank > 1 else {}
    return row(
        f"max_pool{rank}d_indices",
        rank,
        dtype="int64",
        aten={f"max_pool{rank}d_with_indices.default": max_from_aten(rank, indices=True)} | unpool,
        from_onnx={"MaxUnpool": unpool_from_onnx} if rank == 2 else {},
        torch=indices_to_torch,
        onnx=indices_to_onnx,
        relax=derived(indices_steps, "relax"),
    )


POOL = [*map(max_row, RANKS), *map(avg_row, RANKS), *map(indices_row, RANKS)]
