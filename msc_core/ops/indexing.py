"""Gathering by index tensors; with `wrap`, negative indices count from the end, otherwise there must be none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from msc_core import dims
from msc_core.dims import Dim
from msc_core.errors import InvalidGraph, UnsupportedOperator
from msc_core.ir import Tensor
from msc_core.ops.arithmetic import overloads
from msc_core.ops.derived import derived
from msc_core.ops.dtypes import cast, scalar
from msc_core.ops.movement import positive
from msc_core.ops.op import Bound, Call, DType, Emit, Moves, Op, Source, call
from msc_core.ops.repeating import broadcast

# Negative indices


def in_front(index: Any, size: Any, dtype: str) -> Call:
    """Indices of that dtype counted from the front, of an axis of that size."""
    return call("where", call("less", index, scalar(0, dtype)), call("add", index, size), index)


def positions(b: Bound) -> Any:
    """The index operand of a node counted from the front."""
    index, shape = b.input(1), b.input(0).shape
    if "axis" in b.op.attrs:
        return in_front(index, scalar(shape[positive((b["axis"],), len(shape))[0]], index.dtype), index.dtype)
    start = b["batch_dims"] if "batch_dims" in b.op.attrs else 0
    reach = shape[start : start + int(index.shape[-1])]
    symbolic = any(isinstance(d, str) for d in reach)
    size = call("sizes", values=reach) if symbolic else np.asarray(reach, np.int64)
    if index.dtype != "int64":
        size = call("cast", size, dtype=index.dtype) if isinstance(size, Call) else size.astype(index.dtype)
    return in_front(index, size, index.dtype)


def unwrapped(emit: Emit, target: str) -> Emit:
    """An emitter for a target that only knows indices from the front: negative ones are worked out first."""

    def from_front(b: Bound) -> Call:
        attrs = {**b.node.attrs, "wrap": False}
        return Call(b.node.op, (b.x[0], positions(b), *b.x[2:]), attrs)

    wrapping = derived(from_front, target)
    return lambda b: wrapping(b) if b["wrap"] else emit(b)


def known_or_wrapped(n: Source, place: int, sizes: Sequence[Dim]) -> tuple[Any, bool]:
    """An index operand of ONNX, and whether it may hold negative indices: constants are counted from the front."""
    index = n.tensor(place)
    found = n.known(index)
    if found is None or found.dtype == object or any(isinstance(d, str) for d in sizes):
        return index, found is None or found.dtype == object or bool((found < 0).any())
    if not (found < 0).any():
        return index, False
    return np.where(found < 0, found + np.asarray(sizes, found.dtype), found).astype(found.dtype), False


def wrapping(wrap: bool) -> dict[str, bool]:
    """The attribute `wrap`."""
    return {"wrap": True} if wrap else {}


def never(reason: str) -> Callable[..., Any]:
    """An importer that refuses."""

    def importer(*args: Any, **kwargs: Any) -> Any:
        raise UnsupportedOperator(reason)

    return importer


UNKNOWN_SIZE = "the size of its result depends on the values of its inputs; a graph has shapes that follow from shapes"

# Take


def take_axes(b: Bound) -> str:
    """`"a0 a1 a2, i0 -> a0 i0 a2"`."""
    rank = len(b.input(0).shape)
    (axis,) = positive((b["axis"],), rank)
    left = [f"a{i}" for i in range(rank)]
    index = " ".join(f"i{i}" for i in range(len(b.input(1).shape)))
    return f"{' '.join(left)}, {index} -> {' '.join([*left[:axis], index, *left[axis + 1 :]])}"


def take_moves(b: Bound, value: Callable[[Tensor], Any]) -> Moves:
    """The positions that a constant index says."""
    x, index = b.input(0), b.input(1)
    (axis,) = positive((b["axis"],), len(x.shape))
    size, found = x.shape[axis], value(index)
    if found is None or isinstance(size, str):
        return {}
    return {" ".join(f"i{i}" for i in range(found.ndim)): ((f"a{axis}", found.astype(np.int64).ravel() % size),)}


def take_indices(b: Bound) -> dict[int, str]:
    """The index counts positions of the axis."""
    return {1: f"a{positive((b['axis'],), len(b.input(0).shape))[0]}"}


def torch_index(b: Bound) -> Any:
    """The index operand as int64, which is all that torch takes."""
    return b.x[1] if b.input(1).dtype == "int64" else call("torch.Tensor.long", b.x[1])


def onnx_index(b: Bound, dtypes: tuple[str, ...] = ("int64", "int32")) -> Any:
    """The index operand in a dtype that ONNX has for it."""
    return b.x[1] if b.input(1).dtype in dtypes else call("Cast", b.x[1], to=DType("int64"))


def take_to_torch(b: Bound) -> Call:
    """`x[:, index]`."""
    (axis,) = positive((b["axis"],), len(b.input(0).shape))
    return call("index", b.x[0], (*[slice(None)] * axis, torch_index(b)))


def taken(self: Tensor, dim: int, index: Tensor) -> Any:
    """`index_select`."""
    flat = index if index.shape else call("reshape", index, shape=(1,))
    if not self.shape:
        return call("reshape", call("take", call("reshape", self, shape=(1,)), flat), shape=())
    return call("take", self, flat, axis=positive((dim,), len(self.shape))[0])


def taken_flat(self: Tensor, index: Tensor) -> Call:
    """`take`, which counts through all axes."""
    return call("take", call("reshape", self, shape=(-1,)), index, **wrapping(True))


def gather_from_onnx(n: Source) -> Any:
    """`Gather`."""
    x = n.tensor(0)
    (axis,) = positive((n.attr("axis", 0),), len(x.shape))
    index, wrap = known_or_wrapped(n, 1, (x.shape[axis],))
    return call("take", x, index, axis=axis, **wrapping(wrap))


def compress_from_onnx(n: Source) -> Any:
    """`Compress`, where the condition is a constant."""
    condition = n.constant(1)
    x, axis = n.tensor(0), n.attr("axis")
    found = np.flatnonzero(condition)
    if axis is None:
        return call("take", call("reshape", x, shape=(-1,)), found)
    return call("take", x, found, axis=positive((axis,), len(x.shape))[0])


def take_from_relax(n: Source) -> Any:
    """`take`; indices beyond an axis are clipped or go around it where the call says so."""
    x, index, axis = n.tensor(0), n.get(1), n.attr("axis")
    source: Any = call("reshape", x, shape=(-1,)) if axis is None else x
    at = 0 if axis is None else positive((axis,), len(x.shape))[0]
    size = dims.mul(*x.shape) if axis is None else x.shape[at]
    if not isinstance(index, Tensor):
        return call("take", source, np.asarray(index, np.int64), axis=at)
    mode = n.attr("mode", "fast")
    if mode not in ("fast", "clip", "wrap"):
        raise UnsupportedOperator(f"take with mode={mode!r}")
    found: Any = index
    if mode == "wrap":
        found = call("mod", index, scalar(size, index.dtype))
    elif mode == "clip":
        last = scalar(dims.sub(size, 1), index.dtype)
        found = call("minimum", call("maximum", index, scalar(0, index.dtype)), last)
    return call("take", source, found, axis=at)


# Gather along an axis


def gather_axes(b: Bound) -> str:
    """`"a0 x1, a0 i1 -> a0 i1"`: along other axes positions correspond, where there are equally many."""
    x, index = b.input(0), b.input(1)
    if len(x.shape) != len(index.shape):
        raise InvalidGraph(f"{b}: an index of shape {list(index.shape)} for {list(x.shape)}")
    (axis,) = positive((b["axis"],), len(x.shape)) if x.shape else (0,)
    same = [i != axis and a == w for i, (a, w) in enumerate(zip(x.shape, index.shape, strict=True))]
    left, right = (" ".join(f"{'a' if s else own}{i}" for i, s in enumerate(same)) for own in "xi")
    return f"{left}, {right} -> {right}"


def cropped(x: Any, shape: Sequence[Dim], wanted: Sequence[Dim], but: int = -1) -> Any:
    """`x` of that shape with its first positions alone, as many as wanted, along every axis but one."""
    axes = tuple(i for i, (a, w) in enumerate(zip(shape, wanted, strict=True)) if i != but and a != w)
    if not axes:
        return x
    return call("strided_slice", x, axes=axes, begin=(0,) * len(axes), end=tuple(wanted[i] for i in axes))


def gather_to_relax(b: Bound) -> Any:
    """`gather_elements`, of data that is no larger than the index along other axes."""
    x, index = b.input(0), b.input(1)
    (axis,) = positive((b["axis"],), len(x.shape))
    if any(a != w for i, (a, w) in enumerate(zip(x.shape, index.shape, strict=True)) if i != axis):
        inner = derived(lambda b: cropped(x, x.shape, index.shape, axis), "relax")(b)
        return call("gather_elements", inner, index, axis=axis)
    return call("gather_elements", x, index, axis=axis)


def gather_from_aten(self: Tensor, dim: int, index: Tensor, sparse_grad: bool = False) -> Any:
    """`gather`."""
    if not self.shape:
        return broadcast(self, (), index.shape)
    return call("gather_elements", self, index, axis=positive((dim,), len(self.shape))[0])


def take_along(self: Tensor, indices: Tensor, dim: int | None = None) -> Any:
    """`take_along_dim`, which broadcasts."""
    if dim is None:
        flat = call("reshape", indices, shape=(-1,))
        return call("take", call("reshape", self, shape=(-1,)), flat, **wrapping(True))
    (axis,) = positive((dim,), len(self.shape))
    size = self.shape[axis]
    wide = [dims.maximum(a, i) for a, i in zip(self.shape, indices.shape, strict=True)]
    x = broadcast(self, self.shape, [*wide[:axis], size, *wide[axis + 1 :]])
    index = broadcast(indices, indices.shape, [*wide[:axis], indices.shape[axis], *wide[axis + 1 :]])
    return call("gather_elements", x, index, axis=axis, **wrapping(True))


def gather_elements_from_onnx(n: Source) -> Any:
    """`GatherElements`."""
    x = n.tensor(0)
    (axis,) = positive((n.attr("axis", 0),), len(x.shape))
    index, wrap = known_or_wrapped(n, 1, (x.shape[axis],))
    return call("gather_elements", x, index, axis=axis, **wrapping(wrap))


# Gather by coordinates


def gather_nd_shape(b: Bound) -> tuple[Dim, ...]:
    """The index's shape without its last axis, then what the coordinates leave of the data."""
    x, index, batch = b.input(0).shape, b.input(1).shape, b["batch_dims"]
    depth = index[-1] if index else 0
    if isinstance(depth, str) or not 1 <= depth <= len(x) - batch or x[:batch] != index[:batch]:
        raise InvalidGraph(f"{b}: coordinates of shape {list(index)} for {list(x)} with {batch} batch axes")
    return (*index[:-1], *x[batch + depth :])


def gather_nd_axes(b: Bound) -> str:
    """`"b0 x1 a2, b0 i1 . -> b0 i1 a2"`: batch axes correspond, and those stay that have no coordinate."""
    x, index, batch = b.input(0).shape, b.input(1).shape, b["batch_dims"]
    gather_nd_shape(b)
    front = [f"b{i}" for i in range(batch)]
    picked = [f"x{i}" for i in range(batch, batch + int(index[-1]))]
    rest = [f"a{i}" for i in range(batch + len(picked), len(x))]
    places = [f"i{i}" for i in range(batch, len(index) - 1)]
    return f"{' '.join(front + picked + rest)}, {' '.join([*front, *places, '.'])} -> {' '.join(front + places + rest)}"


def coordinates(index: Tensor) -> tuple[Any, ...]:
    """The last axis of an index taken apart, for torch."""
    return tuple(call("index", index, (Ellipsis, i)) for i in range(int(index.shape[-1])))


def gather_nd_to_torch(b: Bound) -> Any:
    """`x[index[..., 0], index[..., 1]]`; batch axes become coordinates."""
    if b["batch_dims"]:
        return derived(unbatched, "torch")(b)
    return call("index", b.x[0], coordinates(b.input(1)))


def gather_nd_to_relax(b: Bound) -> Call:
    """`gather_nd`, of int64 alone."""
    index = b.x[1] if b.input(1).dtype == "int64" else call("astype", b.x[1], "int64")
    return call("gather_nd", b.x[0], index, batch_dims=b["batch_dims"])


def unbatched(b: Bound) -> Call:
    """Batch axes as coordinates: ranges in front of the ones that are given."""
    index = b.input(1)
    rank, rows = len(index.shape), (*index.shape[:-1], 1)
    parts = []
    for axis in range(b["batch_dims"]):
        view = tuple(rows[axis] if i == axis else 1 for i in range(rank))
        line = call("reshape", call("arange", end=rows[axis], dtype=index.dtype), shape=view)
        parts.append(broadcast(line, view, rows))
    return call("gather_nd", b.x[0], call("concat", *parts, positions(b) if b["wrap"] else index, axis=rank - 1))


def gather_nd_from_onnx(n: Source) -> Any:
    """`GatherND`."""
    x, batch = n.tensor(0), n.attr("batch_dims", 0)
    reach = x.shape[batch : batch + int(n.tensor(1).shape[-1])]
    index, wrap = known_or_wrapped(n, 1, reach)
    return call("gather_nd", x, index, batch_dims=batch, **wrapping(wrap))


def joint(indices: Sequence[Tensor]) -> tuple[Any, tuple[Dim, ...]]:
    """Index tensors broadcast together with a last axis for the coordinates, and the shape without it."""
    rank = max(len(t.shape) for t in indices)
    shape: tuple[Dim, ...] = (1,) * rank
    for t in indices:
        sizes = (1,) * (rank - len(t.shape)) + t.shape
        shape = tuple(b if a == 1 else a for a, b in zip(shape, sizes, strict=True))
    dtype = indices[0].dtype if len({t.dtype for t in indices}) == 1 else "int64"
    parts = [call("expand_dims", broadcast(cast(t, dtype), t.shape, shape), axes=(rank,)) for t in indices]
    return (call("concat", *parts, axis=rank) if len(parts) > 1 else parts[0]), shape


def check_masks(indices: Sequence[Tensor | None]) -> None:
    """Refuse masks as indices."""
    if any(t is not None and t.dtype in ("bool", "uint8") for t in indices):
        raise UnsupportedOperator(f"an index that is a mask: {UNKNOWN_SIZE}")


def fronted(rank: int, indices: Sequence[Any]) -> tuple[list[int], list[int], bool]:
    """The axes that have an index, the others, and whether the former are neighbours."""
    at = [i for i, t in enumerate(indices) if t is not None]
    return at, [i for i in range(rank) if i not in at], at == list(range(at[0], at[-1] + 1))


def index_from_aten(self: Tensor, indices: Sequence[Tensor | None]) -> Any:
    """`x[i, :, j]`: the axes with an index go to the front, and come back if they are neighbours."""
    check_masks(indices)
    at, rest, adjacent = fronted(len(self.shape), indices)
    given = [t for t in indices if t is not None]
    if len(at) == 1:
        return call("take", self, given[0], axis=at[0], **wrapping(True))
    index, shape = joint(given)
    found = call("gather_nd", to_order(self, (*at, *rest)), index, **wrapping(True))
    return to_order(found, back_order(at, rest, len(shape), adjacent))


def to_order(x: Any, order: Sequence[int]) -> Any:
    """`x` with its axes in that order; itself if they are."""
    return x if list(order) == sorted(order) else call("permute_dims", x, axes=tuple(order))


def back_order(at: Sequence[int], rest: Sequence[int], rank: int, adjacent: bool) -> tuple[int, ...]:
    """The order that brings the index's axes, now in front, to where torch has them."""
    before = sum(i < at[0] for i in rest) if adjacent else 0
    return (*range(rank, rank + before), *range(rank), *range(rank + before, rank + len(rest)))


def index_from_relax(n: Source) -> Any:
    """`index_tensor`."""
    return index_from_aten(n.tensor(0), n.x[1])


# Comparison with positions


def one_hot(indices: Any, rank: int, axis: int, depth: Dim, dtype: str) -> Call:
    """Whether each index is the position along a new axis of that depth."""
    (at,) = positive((axis,), rank + 1)
    view = tuple(depth if i == at else 1 for i in range(rank + 1))
    places: Any = call("arange", end=depth, dtype=dtype) if isinstance(depth, str) else np.arange(depth).astype(dtype)
    return call("equal", call("expand_dims", indices, axes=(at,)), call("reshape", places, shape=view))


def one_hot_from_aten(self: Tensor, num_classes: Dim = -1) -> Call:
    """`one_hot`."""
    if num_classes == -1:
        raise UnsupportedOperator(f"one_hot without a number of classes: {UNKNOWN_SIZE}")
    return call("cast", one_hot(self, len(self.shape), -1, num_classes, self.dtype), dtype="int64")


def one_hot_from_relax(n: Source) -> Call:
    """`one_hot`, of two numbers in the dtype that TVM gives to numbers."""
    index, on, off = n.tensor(0), n.get(1), n.get(2)
    hot = one_hot(index, len(index.shape), n.attr("axis", -1), n.attr("depth"), index.dtype)
    dtype = "float64" if isinstance(on, float) else "int64"
    return call("where", hot, scalar(on, dtype), scalar(off, dtype))


def one_hot_from_onnx(n: Source) -> Call:
    """`OneHot`: two values for off and on, negative indices count from the end."""
    index, (depth,) = n.tensor(0), n.dims(1)
    whole: Any = index if index.dtype in ("int64", "int32") else call("cast", index, dtype="int64")
    dtype = index.dtype if whole is index else "int64"
    hot = one_hot(in_front(whole, scalar(depth, dtype), dtype), len(index.shape), n.attr("axis", -1), depth, dtype)
    off, on = (
        call("reshape", call("strided_slice", n.tensor(2), axes=(0,), begin=(i,), end=(i + 1,)), shape=())
        for i in (0, 1)
    )
    return call("where", hot, on, off)


INDEXING = [
    Op(
        "take",
        axes=take_axes,
        moves=take_moves,
        indices=take_indices,
        attrs={"axis": 0, "wrap": False},
        aten={
            "index_select.default": taken,
            "take.default": taken_flat,
            "index.Tensor": index_from_aten,
            "one_hot.default": one_hot_from_aten,
            **overloads(
                "nonzero.default nonzero_numpy.default masked_select.default unique_consecutive.default "
                "unique_dim.default _unique2.default where.default argwhere.default repeat_interleave.Tensor "
                "repeat_interleave.self_Tensor bincount.default",
                never(UNKNOWN_SIZE),
            ),
        },
        from_onnx={
            "Gather": gather_from_onnx,
            "Compress": compress_from_onnx,
            "OneHot": one_hot_from_onnx,
            **dict.fromkeys(("NonZero", "Unique"), never(UNKNOWN_SIZE)),
        },
        from_relax={
            "take": take_from_relax,
            "index_tensor": index_from_relax,
            "one_hot": one_hot_from_relax,
            **dict.fromkeys(("nonzero", "unique"), never(UNKNOWN_SIZE)),
        },
        torch=take_to_torch,
        onnx=lambda b: call("Gather", b.x[0], onnx_index(b), axis=b["axis"]),
        relax=unwrapped(lambda b: call("take", *b.x, axis=b["axis"]), "relax"),
        msc="take",
    ),
    Op(
        "gather_elements",
        axes=gather_axes,
        attrs={"axis": 0, "wrap": False},
        aten={"gather.default": gather_from_aten, "take_along_dim.default": take_along},
        from_onnx={"GatherElements": gather_elements_from_onnx},
        from_relax={
            "gather_elements": lambda n: call("gather_elements", n.tensor(0), n.tensor(1), axis=n.attr("axis", 0))
        },
        torch=unwrapped(lambda b: call("torch.gather", b.x[0], b["axis"], torch_index(b)), "torch"),
        onnx=lambda b: call("GatherElements", b.x[0], onnx_index(b), axis=b["axis"]),
        relax=unwrapped(gather_to_relax, "relax"),
    ),
    Op(
        "gather_nd",
        axes=gather_nd_axes,
        attrs={"batch_dims": 0, "wrap": False},
        from_onnx={"GatherND": gather_nd_from_onnx},
        from_relax={
            "gather_nd": lambda n: call("gather_nd", n.tensor(0), n.tensor(1), batch_dims=n.attr("batch_dims", 0))
        },
        torch=gather_nd_to_torch,
        onnx=lambda b: call("GatherND", b.x[0], onnx_index(b, ("int64",)), batch_dims=b["batch_dims"]),
        relax=unwrapped(gather_nd_to_relax, "relax"),
    ),
]
