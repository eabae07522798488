"""Sorting, top-k, and what accumulates along an axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from msc_core import dims
from msc_core.dims import Dim
from msc_core.errors import InvalidGraph, UnsupportedOperator
from msc_core.ir import Tensor
from msc_core.ops.arithmetic import WIDER, overloads
from msc_core.ops.cumulative import CUMULATIVE
from msc_core.ops.dtypes import cast, kind, operand, promote, scalar
from msc_core.ops.op import Bound, Call, DType, Importer, Op, Size, Source, call, size_tensor, sizes
from msc_core.ops.repeating import relettered
from msc_core.ops.signature import Sizes

COMPARED = ("float32", "float64", "int32", "int64")  # dtypes that ONNX Runtime and TVM sort


def sorted_axes(b: Bound) -> str:
    """The sorted axis comes out as a new one, in the values and in the indices."""
    rank = len(b.input(0).shape)
    left, right = relettered(rank, {b["axis"] % rank}).split("->")
    return f"{left} -> {right}, {right}"


def sorted_size(b: Bound, known: Sizes) -> Sizes:
    """All positions, or as many as are wanted."""
    axis = b["axis"] % len(b.input(0).shape)
    size = b.input(0).shape[axis]
    if b.op.name == "sort":
        return {f"b{axis}": size}
    if isinstance(size, int) and isinstance(b["k"], int) and b["k"] > size:
        raise InvalidGraph(f"{b}: the largest {b['k']} of {size}")
    return {f"b{axis}": b["k"]}


def axis_of(x: Tensor, axis: int) -> int:
    """An axis counted from the front."""
    return axis % max(len(x.shape), 1)


def sort(x: Tensor, axis: int = -1, descending: bool = False) -> tuple[Any, Any]:
    """Values and indices in order; a number alone is in order."""
    if not x.shape:
        return x, np.asarray(0, np.int64)
    node = call("sort", x, axis=axis_of(x, axis), descending=bool(descending))
    return call("item", node, 0), call("item", node, 1)


def kth(x: Tensor, place: Dim, axis: int, keepdim: bool) -> tuple[Any, Any]:
    """The value at a place in ascending order, and its index."""
    if not x.shape:
        return sort(x)
    at = axis_of(x, axis)
    shape = (*x.shape[:at], *([1] if keepdim else []), *x.shape[at + 1 :])
    cut = {"axes": (at,), "begin": (place,), "end": (dims.add(place, 1),)}
    value, index = (call("reshape", call("strided_slice", part, **cut), shape=shape) for part in sort(x, at))
    return value, index


def kth_from_aten(self: Tensor, k: Dim, dim: int = -1, keepdim: bool = False) -> tuple[Any, Any]:
    """`kthvalue`, which counts from 1."""
    return kth(self, dims.sub(k, 1), dim, keepdim)


def median_from_aten(self: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """`median`: the lower of two in the middle. Of floats that could be NaN it would be NaN, which comes last here."""
    x: Any = self
    if dim is None:
        x, count = call("reshape", self, shape=(-1,)), dims.mul(*self.shape)
        flat = Tensor(self.name, (count,), self.dtype)
        node = call("sort", x, axis=0)
        place = dims.floordiv(dims.sub(count, 1), 2)
        cut = call("strided_slice", call("item", node, 0), axes=(0,), begin=(place,), end=(dims.add(place, 1),))
        return _or_nan(call("reshape", cut, shape=()), x, flat, 0, False)
    if not self.shape:
        return sort(self)
    at = axis_of(self, dim)
    value, index = kth(self, dims.floordiv(dims.sub(self.shape[at], 1), 2), at, keepdim)
    return _or_nan(value, self, self, at, keepdim), index


def _or_nan(value: Any, x: Any, described: Tensor, axis: int, keepdim: bool) -> Any:
    if kind(described.dtype) < 2:
        return value
    found = call("any", call("isnan", x), axes=(axis,), keepdims=keepdim)
    return call("where", found, scalar(float("nan"), described.dtype), value)


def bins(value: Any, shape: tuple[Dim, ...], edges: Any, right: bool, out: str) -> Any:
    """How many of the last axis of `edges` are below each value, or not above it."""
    column = call("reshape", value, shape=(*shape, 1))
    below = call("less_equal" if right else "less", edges, column)
    return call("sum", call("cast", below, dtype=out), axes=(-1,))


def bucketize(self: Tensor | float, boundaries: Tensor, out_int32: bool = False, right: bool = False) -> Any:
    """`bucketize`: the number of boundaries below each value."""
    dtype = promote(self, boundaries)
    shape = self.shape if isinstance(self, Tensor) else ()
    return bins(
        operand(self, dtype), shape, cast(boundaries, dtype), right, "int32" if out_int32 else "int64"
    )  # fmt: skip


def searchsorted(
    sorted_sequence: Tensor,
    self: Tensor | float,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Any:
    """`searchsorted`: `bucketize` for each row."""
    if sorter is not None:
        raise UnsupportedOperator("searchsorted with a sorter")
    right = right or side == "right"
    if not isinstance(self, Tensor) or len(sorted_sequence.shape) == 1:
        return bucketize(self, sorted_sequence, out_int32, right)
    dtype = promote(self, sorted_sequence)
    rows = (*sorted_sequence.shape[:-1], 1, sorted_sequence.shape[-1])
    edges = call("reshape", cast(sorted_sequence, dtype), shape=rows)
    return bins(cast(self, dtype), self.shape, edges, right, "int32" if out_int32 else "int64")


def refused(reason: str) -> Importer:
    """An operator that no row can stand for."""

    def importer(*source: Any, **arguments: Any) -> Any:
        raise UnsupportedOperator(reason)

    return importer


def topk_from_onnx(n: Source) -> tuple[Any, Any]:
    """`TopK`; among equals the first comes first."""
    x = n.tensor(0)
    (k,) = n.dims(1) if n.version >= 10 else (n.attr("k"),)
    attrs = {"largest": bool(n.attr("largest", 1)), "sorted": bool(n.attr("sorted", 1)), "stable": True}
    node = call("topk", x, k=k, axis=axis_of(x, n.attr("axis", -1)), **attrs)
    return call("item", node, 0), call("item", node, 1)


def topk_from_relax(n: Source) -> Any:
    """`topk`, which returns values, indices or both; among equals the first comes first."""
    x, dtype, wanted = n.tensor(0), str(n.attr("dtype", "int32")), str(n.attr("ret_type", "both"))
    axis = axis_of(x, n.attr("axis", -1))
    k = n.attr("k", 1)
    node = call("topk", x, k=k if k >= 1 else x.shape[axis], axis=axis, largest=bool(n.attr("largest")), stable=True)
    found = {"values": call("item", node, 0), "indices": _indices(call("item", node, 1), dtype)}
    return found[wanted] if wanted in found else tuple(found.values())


def _indices(index: Any, dtype: str) -> Any:
    return cast(index, dtype, "int64")


def argsort_from_relax(n: Source) -> Any:
    """`argsort`, whose indices have any dtype."""
    order = sort(n.tensor(0), n.attr("axis", -1), bool(n.attr("descending", False)))[1]
    return _indices(order, str(n.attr("dtype", "int32")))


def topk_to_torch(b: Bound) -> Any:
    """`torch.topk`, or where the order of equals counts, a stable sort."""
    x, axis = b.input(0), b["axis"]
    (k,) = sizes((b["k"],))
    if not b["stable"]:
        return call("torch.topk", x, k, dim=axis, largest=b["largest"], sorted=b["sorted"])
    order = call("torch.sort", x, dim=axis, descending=b["largest"], stable=True)
    cut = (*[slice(None)] * (axis % len(x.shape)), slice(None, k))
    return tuple(call("index", call("item", order, i), cut) for i in range(2))


def compared(b: Bound) -> str:
    """The dtype in which every target can compare the input."""
    dtype = b.input(0).dtype
    if dtype not in (*COMPARED, *WIDER, "float16"):
        raise UnsupportedOperator(f"{b}: {dtype} cannot be sorted")
    return dtype if dtype in COMPARED else WIDER.get(dtype, "float32")


def ordered_to_onnx(b: Bound, k: Dim, largest: bool, in_order: bool = True) -> Any:
    """`TopK`, of dtypes that ONNX Runtime sorts."""
    x, wide = b.input(0), compared(b)
    source = x if wide == x.dtype else call("Cast", x, to=DType(wide))
    node = call("TopK", source, size_tensor((k,)), axis=b["axis"], largest=int(largest), sorted=int(in_order))
    if wide == x.dtype:
        return node
    values, indices = (call("item", node, i, count=2) for i in range(2))
    return call("Cast", values, to=DType(x.dtype)), indices


def sort_to_onnx(b: Bound) -> Any:
    """`TopK` of all."""
    return ordered_to_onnx(b, b.input(0).shape[b["axis"]], b["descending"])


def ordered_to_relax(descending: str, count: Callable[[Bound], int | Size | None]) -> Callable[[Bound], Any]:
    """A stable `argsort`, the first of it, and the values there."""

    def emit(b: Bound) -> Any:
        x, axis, wide = b.input(0), b["axis"] % len(b.input(0).shape), compared(b)
        source = x if wide == x.dtype else call("astype", x, dtype=wide)
        order = call("argsort", source, axis=axis, descending=b[descending], dtype="int64")
        k = count(b)
        if k is not None:
            order = call("strided_slice", order, (axis,), (0,), (k,))
        return call("gather_elements", x, order, axis=axis), order

    return emit


def first_k(b: Bound) -> int | Size | None:
    """How many a `topk` keeps."""
    return sizes((b["k"],))[0]


DATA = "how large its result is depends on the data"
ORDERING = [
    Op(
        "sort",
        axes=sorted_axes,
        attrs={"axis": -1, "descending": False},
        new=sorted_size,
        dtype=lambda b: [b.input(0).dtype, "int64"],
        aten={
            "sort.default": lambda self, dim=-1, descending=False: sort(self, dim, descending),
            "sort.stable": lambda self, stable=None, dim=-1, descending=False: sort(self, dim, descending),
            "argsort.default": lambda self, dim=-1, descending=False: sort(self, dim, descending)[1],
            "argsort.stable": lambda self, stable=True, dim=-1, descending=False: sort(self, dim, descending)[1],
            "msort.default": lambda self: sort(self, 0)[0],
            "kthvalue.default": kth_from_aten,
            **overloads("median.default median.dim", median_from_aten),
            **overloads("bucketize.Tensor bucketize.Scalar", bucketize),
            **overloads("searchsorted.Tensor searchsorted.Scalar", searchsorted),
            **overloads("bincount.default _unique2.default unique_dim.default unique_consecutive.default",
                        refused(DATA)),
            **overloads("nanmedian.default nanmedian.dim mode.default", refused("no framework but torch has it")),
        },
        from_onnx={"Unique": refused(DATA)},
        from_relax={
            "sort": lambda n: sort(n.tensor(0), n.attr("axis", -1), n.attr("descending", False))[0],
            "argsort": argsort_from_relax,
            "unique": refused(DATA),
            "bucketize": lambda n: bucketize(
                n.tensor(0), n.tensor(1), bool(n.attr("out_int32")), bool(n.attr("right"))
            ),
        },
        torch=lambda b: call("torch.sort", *b.x, dim=b["axis"], descending=b["descending"], stable=True),
        onnx=sort_to_onnx,
        relax=ordered_to_relax("descending", lambda b: None),
    ),
    Op(
        "topk",
        axes=sorted_axes,
        attrs={"k": 1, "axis": -1, "largest": True, "sorted": True, "stable": False},
        symbolic=("k",),
        new=sorted_size,
        dtype=lambda b: [b.input(0).dtype, "int64"],
        aten={
            "topk.default": lambda self, k, dim=-1, largest=True, sorted=True: sort(self)
            if not self.shape
            else _outputs(call("topk", self, k=k, axis=axis_of(self, dim), largest=largest, sorted=sorted))
        },
        from_onnx={"TopK": topk_from_onnx},
        from_relax={"topk": topk_from_relax},
        torch=topk_to_torch,
        onnx=lambda b: ordered_to_onnx(b, b["k"], b["largest"], b["sorted"]),
        relax=ordered_to_relax("largest", first_k),
        msc="topk",
    ),
    *CUMULATIVE,
]  # fmt: skip


def _outputs(node: Call) -> tuple[Call, Call]:
    return call("item", node, 0), call("item", node, 1)
