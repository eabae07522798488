"""Relay's reductions and operators that make, move or select elements, in our words."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from msc_core import dims
from msc_core.dims import Dim
from msc_core.errors import UnsupportedOperator
from msc_core.frontends.relay_call import RelayCall, Translator
from msc_core.ops import call
from msc_core.ops.dtypes import cast

MAX_FOLDED = 2**22  # elements of a constant that is computed at import


def reduced(n: RelayCall) -> tuple[int, ...]:
    """The axes of a reduction; none given means all."""
    rank = len(n.tensor(0).shape)
    given = n.attr("axis")
    if given is None or given == ():
        return tuple(range(rank))
    axes = {a % rank for a in ((given,) if isinstance(given, int) else given)}
    return tuple(i for i in range(rank) if (i in axes) != bool(n.attr("exclude", False)))


def reduction(n: RelayCall) -> Any:
    """`sum`, `mean` and the like."""
    return n.relax(n.op, n.x[0], axis=reduced(n), keepdims=n.attr("keepdims", False))


def truth(n: RelayCall) -> Any:
    """`all` and `any`: the least and the greatest of booleans."""
    x = n.as_tensor(cast(n.tensor(0), "int32"), "int32")
    kind = "min" if n.op == "all" else "max"
    return cast(n.as_tensor(n.relax(kind, x, axis=reduced(n), keepdims=n.attr("keepdims", False)), kind), "bool")


def variance(n: RelayCall) -> Any:
    """`variance`, whose second argument is the mean."""
    x, axes = n.tensor(0), reduced(n)
    if n.attr("unbiased", False):
        raise UnsupportedOperator("an unbiased variance")
    away = n.emit(call("subtract", x, n.tensor(1)), "centered")
    return n.relax(
        "mean", n.emit(call("multiply", away, away), "square"), axis=axes, keepdims=n.attr("keepdims", False)
    )


def arg_reduction(n: RelayCall) -> Any:
    """`argmax` and `argmin`, which are int32 in Relay."""
    if n.attr("select_last_index", False):
        raise UnsupportedOperator(f"{n.op} of the last of equal values")
    axes, rank = reduced(n), len(n.tensor(0).shape)
    if len(axes) != 1 and axes != tuple(range(rank)):
        raise UnsupportedOperator(f"{n.op} over axes {axes}; expected one axis, or all")
    axis = axes[0] if len(axes) == 1 else None
    return call("cast", n.relax(n.op, n.x[0], axis=axis, keepdims=n.attr("keepdims", False)), dtype="int32")


def reshape(n: RelayCall) -> Any:
    """`reshape` with Relay's codes: 0 keeps an axis, -1 is what remains, -2 keeps the rest, -3 joins, -4 splits."""
    return call(
        "reshape", n.tensor(0), shape=new_shape(n.tensor(0).shape, n.attr("newshape"), n.attr("allowzero", False))
    )


def new_shape(source: tuple[Dim, ...], codes: Sequence[Dim], allowzero: bool = False) -> tuple[Dim, ...]:
    """The shape that `reshape` asks for.

    >>> new_shape((2, 3, 4), (0, -1)), new_shape((2, 3, 4), (-3, -2)), new_shape((6, 4), (-4, 2, -1, 0))
    ((2, -1), (6, 4), (2, 3, 4))
    """
    shape: list[Dim] = []
    at, queue = 0, list(codes)
    while queue:
        code = queue.pop(0)
        if code == -2:
            shape, at = [*shape, *source[at:]], len(source)
        elif code == -3:
            shape.append(dims.mul(source[at], source[at + 1]))
            at += 2
        elif code == -4:
            first, second = queue.pop(0), queue.pop(0)
            first = dims.floordiv(source[at], second) if first == -1 else first
            shape += [first, dims.floordiv(source[at], first) if second == -1 else second]
            at += 1
        else:
            shape.append(source[at] if code == 0 and not allowzero else code)
            at += 1
    return tuple(shape)


def reshape_like(n: RelayCall) -> Any:
    """`reshape_like`, of all axes or of some."""
    left, right = n.tensor(0).shape, n.tensor(1).shape

    def part(side: str, shape: tuple[Dim, ...]) -> slice:
        end = n.attr(f"{side}_end")
        return slice(*slice(n.attr(f"{side}_begin", 0), end).indices(len(shape)))

    a, b = part("lhs", left), part("rhs", right)
    return call("reshape", n.tensor(0), shape=(*left[: a.start], *right[b], *left[a.stop :]))


def transpose(n: RelayCall) -> Any:
    """`transpose`; no axes means in reverse."""
    rank = len(n.tensor(0).shape)
    axes = n.attr("axes") or tuple(reversed(range(rank)))
    return call("permute_dims", n.tensor(0), axes=tuple(a % rank for a in axes))


def expand_dims(n: RelayCall) -> Any:
    """`expand_dims` of several axes at one place."""
    axis, rank = n.attr("axis"), len(n.tensor(0).shape)
    at = axis if axis >= 0 else axis + rank + 1
    shape = n.tensor(0).shape
    return call("reshape", n.tensor(0), shape=(*shape[:at], *[1] * n.attr("num_newaxis", 1), *shape[at:]))


def squeeze(n: RelayCall) -> Any:
    """`squeeze`; no axes means all of size one."""
    shape, axes = n.tensor(0).shape, n.attr("axis")
    drop = {a % len(shape) for a in axes} if axes else {i for i, d in enumerate(shape) if d == 1}
    if any(shape[i] != 1 for i in drop):
        raise UnsupportedOperator(f"squeeze of axes {axes} of {list(shape)}")
    return call("reshape", n.tensor(0), shape=tuple(d for i, d in enumerate(shape) if i not in drop))


def concatenate(n: RelayCall) -> Any:
    """`concatenate`."""
    return call("concat", *n.x[0], axis=n.attr("axis", 0))


def stack(n: RelayCall) -> Any:
    """`stack`."""
    shape = n.x[0][0].shape
    axis = n.attr("axis", 0) % (len(shape) + 1)
    parts = [call("reshape", part, shape=(*shape[:axis], 1, *shape[axis:])) for part in n.x[0]]
    return call("concat", *parts, axis=axis)


def split(n: RelayCall) -> Any:
    """`split`."""
    return n.relax("split", n.x[0], indices_or_sections=n.attr("indices_or_sections"), axis=n.attr("axis", 0))


def strided_slice(n: RelayCall) -> Any:
    """`strided_slice`, whose bounds may be sizes."""
    shape, begin = n.tensor(0).shape, n.attr("begin")
    if begin is None:
        raise UnsupportedOperator("strided_slice with computed bounds")
    axes = n.attr("axes") or tuple(range(len(begin)))
    strides = (n.attr("strides") or ()) if n.attr("slice_mode", "end") == "end" else ()
    strides = (*strides, *[1] * (len(begin) - len(strides)))
    end = list(n.attr("end"))
    end += [shape[axis] for axis in axes[len(end) :]]
    if n.attr("slice_mode", "end") == "size":
        end = [
            shape[a] if e == -1 else dims.add(b if b >= 0 else dims.add(b, shape[a]), e)
            for a, b, e in zip(axes, begin, end, strict=True)
        ]
    return n.relax("strided_slice", n.x[0], axes, begin, tuple(end), strides)


def slice_like(n: RelayCall) -> Any:
    """`slice_like`: the first part, as large as another tensor."""
    rank = len(n.tensor(0).shape)
    axes = tuple(a % rank for a in n.attr("axes") or range(rank))
    end = tuple(n.tensor(1).shape[a] for a in axes)
    return n.relax("strided_slice", n.x[0], axes, (0,) * len(axes), end, (1,) * len(axes))


def broadcast(shape: Callable[[RelayCall], Any]) -> Translator:
    """`broadcast_to` and the like."""
    return lambda n: n.relax("broadcast_to", n.x[0], tuple(shape(n)))


def filled(value: float | None, like: bool) -> Translator:
    """`zeros`, `ones`, `full` and the like: a constant, or an argument, that is broadcast."""

    def translate(n: RelayCall) -> Any:
        shape = n.tensor(0).shape if like else n.attr("shape")
        if shape is None:
            raise UnsupportedOperator(f"{n.op} of a computed shape")
        dtype = n.tensor(0).dtype if like else n.attr("dtype") or n.tensor(0).dtype
        source = np.asarray(value, dtype) if value is not None else cast(n.tensor(int(like)), dtype)
        sizes = [int(d) for d in shape if isinstance(d, int)]
        if isinstance(source, np.ndarray) and len(sizes) == len(shape) and math.prod(sizes) <= MAX_FOLDED:
            return np.broadcast_to(source, sizes)
        return n.relax("broadcast_to", n.as_tensor(source, "value"), tuple(shape))

    return translate


def arange(n: RelayCall) -> Any:
    """`arange` between constants."""
    start, stop, step = (n.constant(i).item() for i in range(3))
    if (stop - start) / step > MAX_FOLDED:
        raise UnsupportedOperator(f"arange({start}, {stop}, {step}) is too large to compute at import")
    return np.arange(start, stop, step).astype(n.attr("dtype"))


def take(n: RelayCall) -> Any:
    """`take`."""
    if n.attr("batch_dims", 0):
        raise UnsupportedOperator(f"take with batch_dims={n.attr('batch_dims')}")
    return n.relax("take", *n.x, axis=n.attr("axis"), mode=n.attr("mode", "clip"))


def gather_nd(n: RelayCall) -> Any:
    """`gather_nd`, whose indices have the tuples in front; Relax has them behind."""
    if n.attr("batch_dims", 0):
        raise UnsupportedOperator(f"gather_nd with batch_dims={n.attr('batch_dims')}")
    rank = len(n.tensor(1).shape)
    indices = n.emit(call("permute_dims", n.tensor(1), axes=(*range(1, rank), 0)), "indices")
    return n.relax("gather_nd", n.x[0], indices, batch_dims=0)


def shape_of(n: RelayCall) -> Any:
    """`shape_of`: sizes that are known, or symbols."""
    return cast(call("sizes", values=n.tensor(0).shape), n.attr("dtype") or "int32", "int64")


def einsum(n: RelayCall) -> Any:
    """`einsum`."""
    return n.relax("einsum", n.x[0], subscripts=n.attr("equation"))


def one_hot(n: RelayCall) -> Any:
    """`one_hot`: where the indices are equal to 0, 1, 2 ..."""
    indices, on, off = (n.tensor(i) for i in range(3))
    rank, depth = len(indices.shape), n.attr("depth")
    if not 0 <= depth <= MAX_FOLDED:
        raise UnsupportedOperator(f"one_hot of depth {depth}")
    axis = n.attr("axis", -1) % (rank + 1)
    places = np.arange(depth, dtype=indices.dtype).reshape(*[1] * axis, depth, *[1] * (rank - axis))
    shape = (*indices.shape[:axis], 1, *indices.shape[axis:])
    same_place = call("equal", call("reshape", indices, shape=shape), places)
    return call("where", same_place, cast(on, n.attr("dtype")), cast(off, n.attr("dtype")))


def quantize(n: RelayCall) -> Any:
    """`qnn.quantize` and `qnn.dequantize`."""
    return n.relax(n.op.removeprefix("qnn."), *n.x, axis=n.attr("axis", -1), out_dtype=n.attr("out_dtype", "float32"))
