"""Sums, products and extremes of all that came before along an axis.

What a target lacks is a reduction over a table: for each position a row in which what comes later is neutral. That
takes room for the square of the length.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from msc_core import dims
from msc_core.dims import Dim
from msc_core.exchange import numpy_dtype
from msc_core.ir import Tensor
from msc_core.ops.derived import derived
from msc_core.ops.dtypes import cast, kind, promote, scalar
from msc_core.ops.op import Bound, Call, DType, Importer, Op, Source, call
from msc_core.ops.repeating import relettered

WITHOUT_KERNEL = ("bool", "int8", "int16", "uint8", "uint16", "uint32", "bfloat16")


def along(b: Bound) -> int:
    """The axis, counted from the front."""
    return int(b["axis"] % len(b.input(0).shape))


def accumulated_axes(b: Bound, outputs: int = 1) -> str:
    """The axis comes out as a new one, because no position of it can go alone."""
    left, right = relettered(len(b.input(0).shape), {along(b)}).split("->")
    return f"{left} -> {', '.join([right] * outputs)}"


def below_diagonal(rows: Dim, columns: Dim) -> Any:
    """A table that is true where the column comes no later than the row."""
    if isinstance(rows, int) and isinstance(columns, int):
        return np.tril(np.ones((rows, columns), np.bool_))
    down = call("reshape", call("arange", end=rows), shape=(rows, 1))
    return call("less_equal", call("arange", end=columns), down)


def table(b: Bound, x: Any, neutral: Any) -> tuple[Call, Any]:
    """For each position along the axis, a new last axis with all that came before; and which of it that is."""
    shape, axis = b.input(0).shape, along(b)
    rank = len(shape)
    behind = x if axis == rank - 1 else call("permute_dims", x, axes=(*(i for i in range(rank) if i != axis), axis))
    rest = tuple(d for i, d in enumerate(shape) if i != axis)
    wide = call("reshape", behind, shape=(*rest, 1, shape[axis]))
    seen = below_diagonal(shape[axis], shape[axis])
    return call("where", seen, wide, neutral), seen


def from_table(b: Bound, found: Any) -> Any:
    """A result whose last axis is the one along which it accumulates, in the order of the input."""
    rank, axis = len(b.input(0).shape), along(b)
    if axis == rank - 1:
        return found
    return call("permute_dims", found, axes=(*range(axis), rank - 1, *range(axis, rank - 1)))


def tabulated(reduction: str, neutral: Callable[[str], float]) -> Callable[[Bound], Any]:
    """A row as a reduction over the table."""

    def expand(b: Bound) -> Any:
        x = b.input(0)
        rows, _ = table(b, x, scalar(neutral(x.dtype), x.dtype))
        return from_table(b, call(reduction, rows, axes=(-1,), keepdims=False))

    return expand


def lowest(dtype: str, sign: int) -> float:
    """The value that no maximum (or with -1, no minimum) prefers."""
    if kind(dtype) == 2:
        return -math.inf * sign
    info = np.iinfo(dtype) if dtype != "bool" else np.iinfo("uint8")
    return int(info.min if sign > 0 else info.max)


def extremes(b: Bound) -> tuple[Any, Any]:
    """`cummax` or `cummin`: the extreme so far, and the last position so far that has it."""
    x = b.input(0)
    length, axis = x.shape[along(b)], along(b)
    sign = 1 if b.op.name == "cummax" else -1
    rows, seen = table(b, x, scalar(lowest(x.dtype, sign), x.dtype))
    values = call("max" if sign > 0 else "min", rows, axes=(-1,), keepdims=True)
    places = np.arange(length) if isinstance(length, int) else call("arange", end=length)
    reached = call("logical_and", call("equal", rows, values), seen)
    indices = call("max", call("where", reached, places, np.asarray(-1)), axes=(-1,))
    rest = tuple(d for i, d in enumerate(x.shape) if i != axis)
    return from_table(b, call("reshape", values, shape=(*rest, length))), from_table(b, indices)


# Sums and products


def accumulate_to_torch(name: str, neutral: float) -> Callable[[Bound], Call]:
    """`torch.cumsum` or `torch.cumprod` of a dtype that stays."""

    def emit(b: Bound) -> Call:
        x, axis = b.input(0), along(b)
        source: Any = x
        if b["reverse"]:
            source = call("torch.flip", source, (axis,))
        if b["exclusive"]:
            pads = (0, 0) * (len(x.shape) - 1 - axis) + (1, -1)
            source = call("F.pad", source, pads, value=neutral)
        found = call(f"torch.{name}", source, axis, **({} if kind(x.dtype) == 2 else {"dtype": DType(x.dtype)}))
        return call("torch.flip", found, (axis,)) if b["reverse"] else found

    return emit


def accumulate_to_relax(name: str) -> Callable[[Bound], Call]:
    """`cumsum` or `cumprod`, turned around for the other direction."""

    def emit(b: Bound) -> Call:
        axis = along(b)
        source = call("flip", b.x[0], axis=axis) if b["reverse"] else b.x[0]
        found = call(name, source, axis=axis, dtype=b.input(0).dtype, exclusive=b["exclusive"])
        return call("flip", found, axis=axis) if b["reverse"] else found

    return emit


def cumsum_to_onnx(b: Bound) -> Call:
    """`CumSum`."""
    attrs = {"exclusive": int(b["exclusive"]), "reverse": int(b["reverse"])}
    dtype = b.input(0).dtype
    if dtype not in WITHOUT_KERNEL:
        return call("CumSum", b.x[0], np.asarray(along(b)), **attrs)
    wide = call("Cast", b.x[0], to=DType("float32" if dtype == "bfloat16" else "int64"))
    return call("Cast", call("CumSum", wide, np.asarray(along(b)), **attrs), to=DType(dtype))


def product_steps(b: Bound) -> Any:
    """`cumprod` over a table, in either direction."""
    x, axis = b.input(0), along(b)
    size = x.shape[axis]
    source: Any = call("flip", x, axes=(axis,)) if b["reverse"] else x
    if b["exclusive"]:
        ones = np.ones([1] * len(x.shape), numpy_dtype(x.dtype))
        edge = call("broadcast_to", ones, shape=(*x.shape[:axis], 1, *x.shape[axis + 1 :]))
        source = call("concat", edge, source, axis=axis)
        source = call("strided_slice", source, axes=(axis,), begin=(0,), end=(size,))
    rows, _ = table(b, source, scalar(1, x.dtype))
    found = from_table(b, call("prod", rows, axes=(-1,), keepdims=False))
    return call("flip", found, axes=(axis,)) if b["reverse"] else found


def accumulate_from_aten(name: str) -> Importer:
    """`cumsum` and `cumprod`, of integers and booleans in int64."""

    def importer(self: Tensor, dim: int, dtype: Any = None) -> Any:
        wanted = str(dtype).removeprefix("torch.") if dtype is not None else self.dtype
        wanted = "int64" if dtype is None and kind(self.dtype) < 2 else wanted
        x = cast(self, wanted)
        return call(name, x, axis=dim % len(self.shape)) if self.shape else x

    return importer


def accumulate_from_onnx(name: str) -> Importer:
    """`CumSum` and `CumProd`."""

    def importer(n: Source) -> Call:
        x = n.tensor(0)
        axis = int(np.ravel(n.constant(1))[0]) % len(x.shape)
        how = {"exclusive": bool(n.attr("exclusive", 0)), "reverse": bool(n.attr("reverse", 0))}
        return call(name, x, axis=axis, **how)

    return importer


def accumulate_from_relax(name: str) -> Importer:
    """`cumsum` and `cumprod`, of the flattened tensor without an axis."""

    def importer(n: Source) -> Call:
        x, axis, dtype = n.tensor(0), n.attr("axis"), str(n.attr("dtype", ""))
        wanted = x.dtype if dtype in ("", "void", "None") else dtype
        source = cast(x, wanted)
        if axis is None:
            source = call("reshape", source, shape=(dims.mul(*x.shape),))
        at = 0 if axis is None else axis % len(x.shape)
        return call(name, source, axis=at, exclusive=bool(n.attr("exclusive", False)))

    return importer


def logcumsumexp_from_aten(self: Tensor, dim: int) -> Any:
    """`logcumsumexp`."""
    x = cast(self, promote(self, floating=True))
    return call("logcumsumexp", x, axis=dim % len(self.shape)) if self.shape else x


def extreme_from_aten(name: str) -> Importer:
    """`cummax` and `cummin`."""

    def importer(self: Tensor, dim: int) -> tuple[Any, Any]:
        if not self.shape:
            return self, np.asarray(0, np.int64)
        node = call(name, self, axis=dim % len(self.shape))
        return call("item", node, 0), call("item", node, 1)

    return importer


def accumulation(name: str, neutral: float, onnx: Any, onnx_name: str) -> Op:
    """A row for sums or products."""
    return Op(
        name,
        axes=accumulated_axes,
        attrs={"axis": -1, "exclusive": False, "reverse": False},
        new=lambda b, known: {f"b{along(b)}": b.input(0).shape[along(b)]},
        aten={f"{name}.default": accumulate_from_aten(name)},
        from_onnx={onnx_name: accumulate_from_onnx(name)},
        from_relax={name: accumulate_from_relax(name)},
        torch=accumulate_to_torch(name, neutral),
        onnx=onnx,
        relax=accumulate_to_relax(name),
        msc="cumsum" if name == "cumsum" else "",
    )


def extreme(name: str) -> Op:
    """A row for the largest or smallest so far and its position."""
    return Op(
        name,
        axes=lambda b: accumulated_axes(b, 2),
        attrs={"axis": -1},
        new=lambda b, known: {f"b{along(b)}": b.input(0).shape[along(b)]},
        dtype=lambda b: [b.input(0).dtype, "int64"],
        aten={f"{name}.default": extreme_from_aten(name)},
        torch=lambda b: call(f"torch.{name}", *b.x, along(b)),
        onnx=derived(extremes, "onnx"),
        relax=derived(extremes, "relax"),
    )


CUMULATIVE = [
    accumulation("cumsum", 0, cumsum_to_onnx, "CumSum"),
    accumulation("cumprod", 1, derived(product_steps, "onnx"), "CumProd"),
    Op(
        "logcumsumexp",
        axes=accumulated_axes,
        attrs={"axis": -1},
        new=lambda b, known: {f"b{along(b)}": b.input(0).shape[along(b)]},
        aten={"logcumsumexp.default": logcumsumexp_from_aten},
        torch=lambda b: call("torch.logcumsumexp", *b.x, along(b)),
        onnx=derived(tabulated("logsumexp", lambda dtype: -math.inf), "onnx"),
        relax=derived(tabulated("logsumexp", lambda dtype: -math.inf), "relax"),
    ),
    extreme("cummax"),
    extreme("cummin"),
]
