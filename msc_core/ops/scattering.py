"""Writing by index tensors, and in-place writes to parts of a tensor as functions of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from msc_core import dims
from msc_core.dims import Dim
from msc_core.errors import InvalidGraph, UnsupportedOperator
from msc_core.exchange import numpy_dtype
from msc_core.ir import Tensor
from msc_core.ops.arithmetic import overloads
from msc_core.ops.derived import derived
from msc_core.ops.dtypes import cast, kind, operand, scalar
from msc_core.ops.indexing import (
    back_order,
    check_masks,
    coordinates,
    cropped,
    fronted,
    joint,
    known_or_wrapped,
    onnx_index,
    positions,
    to_order,
    torch_index,
    unwrapped,
    wrapping,
)
from msc_core.ops.movement import positive
from msc_core.ops.op import Bound, Call, Op, Source, call
from msc_core.ops.repeating import broadcast
from msc_core.ops.slicing import HUGE, bound, length

REDUCTIONS = ("none", "add", "mul", "max", "min")
TORCH = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
RELAX = {"none": "update"}
FROM_TORCH = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min", "mean": "add"}


def check_reduction(b: Bound) -> tuple[Dim, ...]:
    """The data's shape, which writing does not change."""
    if b["reduction"] not in REDUCTIONS:
        raise InvalidGraph(f"{b}: reduction={b['reduction']!r}; expected one of {', '.join(REDUCTIONS)}")
    return b.input(0).shape


def reduced(reduction: str) -> dict[str, str]:
    """The attribute `reduction`."""
    return {} if reduction == "none" else {"reduction": reduction}


# Along an axis


def elements_axes(b: Bound) -> str:
    """`"a0 x1, a0 i1, a0 u1 -> a0 X1"`: along other axes positions correspond, where there are equally many."""
    x, index = b.input(0).shape, b.input(1).shape
    elements_shape(b)
    axis = positive((b["axis"],), len(x))[0] if x else 0
    same = [i != axis and a == w for i, (a, w) in enumerate(zip(x, index, strict=True))]
    terms = [" ".join(f"{'a' if s else own}{i}" for i, s in enumerate(same)) for own in "xiuX"]
    return f"{', '.join(terms[:3])} -> {terms[3]}"


def elements_shape(b: Bound) -> tuple[Dim, ...]:
    """The data's shape; the index and the updates have equal ones."""
    x, index, updates = (b.input(i).shape for i in range(3))
    if index != updates or len(x) != len(index):
        raise InvalidGraph(f"{b}: an index of shape {list(index)} and updates of {list(updates)} for {list(x)}")
    return check_reduction(b)


def elements_to_torch(b: Bound) -> Call:
    """`torch.scatter` or `torch.scatter_reduce`."""
    x, axis, index, updates, reduction = b.x[0], b["axis"], torch_index(b), b.x[2], b["reduction"]
    if reduction == "none":
        return call("torch.scatter", x, axis, index, updates)
    if reduction == "add":
        return call("torch.scatter_add", x, axis, index, updates)
    return call("torch.scatter_reduce", x, axis, index, updates, TORCH[reduction])


def elements_to_relax(b: Bound) -> Call:
    """`scatter_elements`."""
    reduction = RELAX.get(b["reduction"], b["reduction"])
    return call("scatter_elements", *b.x, axis=b["axis"], reduction=reduction)


def written(x: Any, axis: int, index: Any, updates: Any, reduction: str = "none", wrap: bool = False) -> Call:
    """A `scatter_elements`."""
    return call("scatter_elements", x, index, updates, axis=axis, **reduced(reduction), **wrapping(wrap))


def scattered(x: Tensor, dim: int, index: Tensor, source: Any, reduction: str) -> Any:
    """A scatter of torch: of tensors without axes, and of a source that is larger than the index, as well."""
    if isinstance(source, Tensor):
        flat = source if source.shape else call("reshape", source, shape=(1,))
        updates = cropped(flat, source.shape or (1,), index.shape or (1,))
    else:
        updates = broadcast(scalar(source, x.dtype), (), index.shape or (1,))
    if x.shape:
        wide = index if index.shape else call("reshape", index, shape=(1,))
        return written(x, positive((dim,), len(x.shape))[0], wide, updates, reduction)
    data, places = (call("reshape", t, shape=(1,)) if not t.shape else t for t in (x, index))
    return call("reshape", written(data, 0, places, updates, reduction), shape=())


def scatter_from_aten(self: Tensor, dim: int, index: Tensor, reduce: str = "", **source: Any) -> Any:
    """`scatter.src`, `scatter.value` and the forms with `reduce`."""
    (what,) = source.values()
    return scattered(self, dim, index, what, FROM_TORCH[reduce] if reduce else "none")


def neutral(reduction: str, dtype: str) -> Any:
    """What changes nothing in a reduction."""
    if reduction in ("add", "mul"):
        return int(reduction == "mul")
    if kind(dtype) == 2:
        return -math.inf if reduction == "max" else math.inf
    if kind(dtype) == 0:
        return reduction == "min"
    limits = np.iinfo(numpy_dtype(dtype))
    return int(limits.min if reduction == "max" else limits.max)


def scatter_reduce(self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool = True) -> Any:
    """`scatter_reduce.two`; what is not included is replaced by a neutral value first."""
    if not self.shape:
        raise UnsupportedOperator("scatter_reduce of a tensor without axes")
    reduction, (axis,) = FROM_TORCH[reduce], positive((dim,), len(self.shape))
    updates = cropped(src, src.shape, index.shape)
    start: Any = self
    if not include_self:
        blank = scalar(neutral(reduction, self.dtype), self.dtype)
        start = written(self, axis, index, broadcast(blank, (), index.shape))
    found = written(start, axis, index, updates, reduction)
    if reduce != "mean":
        return found
    if kind(self.dtype) < 2:
        raise UnsupportedOperator(f"scatter_reduce with a mean of {self.dtype}")
    ones = broadcast(scalar(1, self.dtype), (), index.shape)
    counts = broadcast(scalar(int(include_self), self.dtype), (), self.shape)
    counts = written(counts, axis, index, ones, "add")
    return call("divide", found, counts if include_self else call("maximum", counts, scalar(1, self.dtype)))


def lines(self: Tensor, dim: int, index: Tensor, source: Any, reduction: str = "none") -> Any:
    """`index_add`, `index_copy` and `index_fill`: whole lines across an axis."""
    if not self.shape:
        raise UnsupportedOperator("writing to positions of a tensor without axes")
    rank, (axis,) = len(self.shape), positive((dim,), len(self.shape))
    count = index.shape[0] if index.shape else 1
    shape = (*self.shape[:axis], count, *self.shape[axis + 1 :])
    view = tuple(count if i == axis else 1 for i in range(rank))
    places = broadcast(call("reshape", index, shape=view), view, shape)
    return written(self, axis, places, source(shape), reduction, wrap=reduction == "none")


def index_add(self: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Any:
    """`index_add`."""
    scaled = source if alpha == 1 else call("multiply", source, scalar(alpha, source.dtype))
    return lines(self, dim, index, lambda shape: scaled, "add")


def index_fill(self: Tensor, dim: int, index: Tensor, value: Any) -> Any:
    """`index_fill`."""
    return lines(self, dim, index, lambda shape: broadcast(operand(value, self.dtype), (), shape))


def elements_from_onnx(n: Source) -> Any:
    """`ScatterElements`."""
    x = n.tensor(0)
    (axis,) = positive((n.attr("axis", 0),), len(x.shape))
    index, wrap = known_or_wrapped(n, 1, (x.shape[axis],))
    return written(x, axis, index, n.tensor(2), n.attr("reduction", "none"), wrap)


def elements_from_relax(n: Source) -> Any:
    """`scatter_elements`, whose negative indices count from the end."""
    x, reduction = n.tensor(0), n.attr("reduction", "update")
    if reduction == "mean":
        return scatter_reduce(x, n.attr("axis", 0), n.tensor(1), n.tensor(2), "mean")
    known = {"update": "none"}.get(reduction, reduction)
    (axis,) = positive((n.attr("axis", 0),), len(x.shape))
    return written(x, axis, n.tensor(1), n.tensor(2), known, wrap=True)


def tensor_scatter(n: Source) -> Any:
    """`TensorScatter`: a piece written into a cache, for each sample at a place of its own."""
    cache, update, start = n.tensor(0), n.tensor(1), n.get(2)
    rank = len(cache.shape)
    (axis,) = positive((n.attr("axis", -2),), rank)
    count, batch = update.shape[axis], cache.shape[0]
    view = tuple(count if i == axis else 1 for i in range(rank))
    places: Any = call("reshape", call("arange", end=count) if isinstance(count, str) else np.arange(count), shape=view)
    shape = view
    if start is not None:
        first = call("reshape", cast(start, "int64"), shape=tuple(batch if i == 0 else 1 for i in range(rank)))
        places, shape = call("add", first, places), (batch, *view[1:])
    if n.attr("mode", "linear") == "circular":
        places = call("mod", places, scalar(cache.shape[axis], "int64"))
    return written(cache, axis, broadcast(places, shape, update.shape), update)


# By coordinates


def nd_axes(b: Bound) -> str:
    """`"x0 a1, i0 ., u0 a1 -> X0 a1"`: the axes stay that have no coordinate."""
    x, index = b.input(0).shape, b.input(1).shape
    nd_shape(b)
    depth = int(index[-1])
    rest = [f"a{i}" for i in range(depth, len(x))]
    before, after = ([f"{own}{i}" for i in range(depth)] for own in "xX")
    places, lines = ([f"{own}{i}" for i in range(len(index) - 1)] for own in "iu")
    terms = (before + rest, [*places, "."], lines + rest)
    return f"{', '.join(map(' '.join, terms))} -> {' '.join(after + rest)}"


def nd_shape(b: Bound) -> tuple[Dim, ...]:
    """The data's shape; the updates' follows from the index's."""
    x, index, updates = (b.input(i).shape for i in range(3))
    depth = index[-1] if index else 0
    if isinstance(depth, str) or not 1 <= depth <= len(x) or updates != (*index[:-1], *x[depth:]):
        raise InvalidGraph(f"{b}: coordinates of shape {list(index)} and updates of {list(updates)} for {list(x)}")
    return check_reduction(b)


def nd_to_torch(b: Bound) -> Any:
    """`torch.index_put`, or a scatter along all the axes as one."""
    if b["reduction"] in ("none", "add"):
        places = coordinates(b.input(1)) if b.input(1).dtype == "int64" else long_coordinates(b)
        return call("torch.index_put", b.x[0], places, b.x[2], accumulate=b["reduction"] == "add")
    return derived(merged, "torch")(b)


def long_coordinates(b: Bound) -> tuple[Any, ...]:
    """Coordinates as int64."""
    return tuple(call("torch.Tensor.long", c) for c in coordinates(b.input(1)))


def merged(b: Bound) -> Call:
    """Coordinates as positions along the merged axes, which they index, and a `scatter_elements`."""
    x, index, updates = (b.input(i) for i in range(3))
    depth = int(index.shape[-1])
    count, rest = dims.mul(*x.shape[:depth]), dims.mul(*x.shape[depth:])
    rows = dims.mul(*index.shape[:-1])
    factors = [dims.mul(*x.shape[i + 1 : depth]) for i in range(depth)]
    symbolic = any(isinstance(f, str) for f in factors)
    weights: Any = call("sizes", values=tuple(factors)) if symbolic else np.asarray(factors, np.int64)
    place = call("multiply", cast(positions(b) if b["wrap"] else index, "int64", index.dtype), weights)
    flat = call("reshape", call("sum", place, axes=(len(index.shape) - 1,), keepdims=False), shape=(rows, 1))
    places = broadcast(flat, (rows, 1), (rows, rest))
    data, source = call("reshape", x, shape=(count, rest)), call("reshape", updates, shape=(rows, rest))
    return call("reshape", written(data, 0, places, source, b["reduction"]), shape=x.shape)


def nd_to_relax(b: Bound) -> Call:
    """`scatter_nd`."""
    index = b.x[1] if b.input(1).dtype == "int64" else call("astype", b.x[1], "int64")
    return call("scatter_nd", b.x[0], index, b.x[2], reduction=RELAX.get(b["reduction"], b["reduction"]))


def nd_from_onnx(n: Source) -> Call:
    """`ScatterND`."""
    x, reduction = n.tensor(0), n.attr("reduction", "none")
    index, wrap = known_or_wrapped(n, 1, x.shape[: int(n.tensor(1).shape[-1])])
    return call("scatter_nd", x, index, n.tensor(2), **reduced(reduction), **wrapping(wrap))


def nd_from_relax(n: Source) -> Call:
    """`scatter_nd`."""
    reduction = {"update": "none"}.get(n.attr("reduction", "update"), n.attr("reduction", "update"))
    return call("scatter_nd", n.tensor(0), n.tensor(1), n.tensor(2), **reduced(reduction))


def index_put(
    self: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False, unsafe: bool = False
) -> Any:
    """`x[i, :, j] = values`."""
    if len(indices) == 1 and indices[0] is not None and indices[0].dtype == "bool":
        return masked(self, indices[0], values, accumulate)
    check_masks(indices)
    at, rest, adjacent = fronted(len(self.shape), indices)
    index, shape = joint([t for t in indices if t is not None])
    back = back_order(at, rest, len(shape), adjacent)
    inner = (*shape, *(self.shape[i] for i in rest))
    seen = tuple(inner[i] for i in back)
    wide = broadcast(cast(values, self.dtype), values.shape, seen)
    updates = to_order(wide, [back.index(i) for i in range(len(back))])
    order = (*at, *rest)
    found = call(
        "scatter_nd",
        to_order(self, order),
        index,
        updates,
        **reduced("add" if accumulate else "none"),
        **wrapping(True),
    )
    return to_order(found, [order.index(i) for i in range(len(order))])


def masked(self: Tensor, mask: Tensor, values: Tensor, accumulate: bool) -> Any:
    """`x[mask] = values`, where each value is the same for all of the mask."""
    rest = len(self.shape) - len(mask.shape)
    if len(values.shape) > rest and values.shape[: len(values.shape) - rest] != (1,):
        raise UnsupportedOperator(
            f"x[mask] = values of shape {list(values.shape)}: which goes where depends on the mask"
        )
    value: Any = cast(values, self.dtype)
    if len(values.shape) > rest:
        value = call("reshape", value, shape=values.shape[1:])
    wide = call("reshape", mask, shape=(*mask.shape, *[1] * rest)) if rest else mask
    return call("where", wide, call("add", self, value) if accumulate else value, self)


def masked_scatter(self: Tensor, mask: Tensor, source: Tensor) -> Any:
    """`masked_scatter`: places that the mask has take the source's elements one after the other."""
    places = broadcast(mask, mask.shape, self.shape)
    flat = call("reshape", call("cast", places, dtype="int64"), shape=(-1,))
    order = call("subtract", call("cumsum", flat, axis=0), scalar(1, "int64"))
    count = dims.mul(*source.shape)
    last = call("minimum", call("maximum", order, scalar(0, "int64")), scalar(dims.sub(count, 1), "int64"))
    values = call("take", call("reshape", source, shape=(count,)), last, axis=0)
    return call("where", places, call("reshape", values, shape=self.shape), self)


# Parts of a tensor


def slice_scatter(self: Tensor, src: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    """`slice_scatter`: what is in front of a slice, its new content, and what is behind it."""
    (axis,) = positive((dim,), len(self.shape))
    size = self.shape[axis]
    first, last = bound(0 if start is None else start, size), bound(HUGE if end is None else end, size)
    wide = broadcast(src, src.shape, (*self.shape[:axis], length((first, last, step)), *self.shape[axis + 1 :]))
    if step != 1:
        if any(isinstance(v, str) for v in (first, last)):
            raise UnsupportedOperator(f"writing to every {step}th position of an axis of size {size}")
        view = tuple(-1 if i == axis else 1 for i in range(len(self.shape)))
        places = np.arange(first, last, step).reshape(view)
        shape = (*self.shape[:axis], places.size, *self.shape[axis + 1 :])
        return written(self, axis, broadcast(places, places.shape, shape), wide)
    parts: list[Any] = [wide]
    if first != 0:
        parts.insert(0, call("strided_slice", self, axes=(axis,), begin=(0,), end=(first,)))
    if last != size:
        parts.append(call("strided_slice", self, axes=(axis,), begin=(last,), end=(size,)))
    return call("concat", *parts, axis=axis) if len(parts) > 1 else wide


def select_scatter(self: Tensor, src: Tensor, dim: int, index: Dim) -> Any:
    """`select_scatter`."""
    (axis,) = positive((dim,), len(self.shape))
    size = self.shape[axis]
    at = dims.add(index, size) if dims.bounds(index)[1] < 0 else index
    parts: list[Any] = [call("expand_dims", src, axes=(axis,))]
    if at != 0:
        parts.insert(0, call("strided_slice", self, axes=(axis,), begin=(0,), end=(at,)))
    if (behind := dims.add(at, 1)) != size:
        parts.append(call("strided_slice", self, axes=(axis,), begin=(behind,), end=(size,)))
    return call("concat", *parts, axis=axis) if len(parts) > 1 else parts[0]


def diagonal_scatter(self: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """`diagonal_scatter` and what fills a diagonal: coordinates of it, at fixed sizes."""
    rank = len(self.shape)
    first, second = positive((dim1, dim2), rank)
    count = src.shape[-1]
    if isinstance(count, str):
        raise UnsupportedOperator(f"writing to a diagonal of size {count}")
    place = np.arange(count)
    index = np.stack((place - min(offset, 0), place + max(offset, 0)), axis=1).astype(np.int64)
    rest = [i for i in range(rank) if i not in (first, second)]
    order = (first, second, *rest)
    updates = to_order(src, (len(rest), *range(len(rest))))
    found = call("scatter_nd", to_order(self, order), index, updates)
    return to_order(found, [order.index(i) for i in range(rank)])


def copied(self: Tensor, src: Tensor, non_blocking: bool = False) -> Any:
    """`copy`: another tensor's values, in this one's dtype and shape."""
    return broadcast(cast(src, self.dtype), src.shape, self.shape)


SCATTERING = [
    Op(
        "scatter_elements",
        axes=elements_axes,
        attrs={"axis": 0, "reduction": "none", "wrap": False},
        shape=elements_shape,
        aten={
            **overloads("scatter.src scatter.value scatter.reduce scatter.value_reduce", scatter_from_aten),
            "scatter_add.default": lambda self, dim, index, src: scattered(self, dim, index, src, "add"),
            "scatter_reduce.two": scatter_reduce,
            "index_add.default": index_add,
            "index_copy.default": lambda self, dim, index, source: lines(self, dim, index, lambda shape: source),
            **overloads("index_fill.int_Scalar index_fill.int_Tensor", index_fill),
            "slice_scatter.default": slice_scatter,
            "select_scatter.default": select_scatter,
            "copy.default": copied,
            "masked_scatter.default": masked_scatter,
        },
        from_onnx={
            "ScatterElements": elements_from_onnx,
            "Scatter": elements_from_onnx,
            "TensorScatter": tensor_scatter,
        },
        from_relax={
            "scatter_elements": elements_from_relax,
            "slice_scatter": lambda n: slice_scatter(
                n.tensor(0), n.tensor(1), n.attr("axis", 0), n.get(2), n.get(3), n.get(4)
            ),
        },
        torch=unwrapped(elements_to_torch, "torch"),
        onnx=lambda b: call(
            "ScatterElements", b.x[0], onnx_index(b), b.x[2], axis=b["axis"], **reduced(b["reduction"])
        ),
        relax=unwrapped(elements_to_relax, "relax"),
        msc="scatter_elements",
    ),
    Op(
        "scatter_nd",
        axes=nd_axes,
        attrs={"reduction": "none", "wrap": False},
        shape=nd_shape,
        aten={
            **overloads("index_put.default _unsafe_index_put.default _index_put_impl.default", index_put),
            "diagonal_scatter.default": diagonal_scatter,
        },
        from_onnx={"ScatterND": nd_from_onnx},
        from_relax={
            "scatter_nd": nd_from_relax,
            "index_put": lambda n: index_put(n.tensor(0), n.x[1], n.tensor(2), bool(n.attr("accumulate", False))),
        },
        torch=nd_to_torch,
        onnx=lambda b: call("ScatterND", b.x[0], onnx_index(b, ("int64",)), b.x[2], **reduced(b["reduction"])),
        relax=unwrapped(nd_to_relax, "relax"),
        msc="scatter_nd",
    ),
]
