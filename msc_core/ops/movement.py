"""Operators that move positions without changing them; `channels.py` follows them position by position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from msc_core import dims
from msc_core.dims import Dim
from msc_core.errors import InvalidGraph, UnsupportedOperator
from msc_core.exchange import numpy_dtype
from msc_core.ir import Tensor
from msc_core.ops.arithmetic import overloads
from msc_core.ops.dtypes import cast, promote
from msc_core.ops.op import Bound, Call, Moves, Op, Source, call, size_tensor, sizes


def flatten_shape(b: Bound) -> tuple[Dim, ...]:
    """Axes `start` to `end` become one."""
    shape = b.input(0).shape
    if not shape:
        return (1,)
    start, end = b["start"] % len(shape), b["end"] % len(shape)
    return (*shape[:start], dims.mul(*shape[start : end + 1]), *shape[end + 1 :])


def reshape_shape(b: Bound) -> tuple[Dim, ...]:
    """The target with its -1 worked out; the numbers of elements must agree."""
    source, target = b.input(0).shape, b["shape"]
    count, rest = dims.mul(*source), dims.mul(*(d for d in target if d != -1))
    open_ = target.count(-1)
    fits = count == rest if open_ == 0 else rest != 0 and dims.mod(count, rest) == 0 and open_ == 1
    if not fits:
        raise InvalidGraph(f"{b}: cannot reshape {list(source)} to {list(target)}")
    return tuple(dims.floordiv(count, rest) if d == -1 else d for d in target)


def concat_shape(b: Bound) -> tuple[Dim, ...]:
    """The first operand's shape with the sizes along `axis` added up."""
    shapes = [t.shape for t in b.x if t is not None]
    axis = b["axis"] % len(shapes[0])
    if len({(*s[:axis], *s[axis + 1 :]) for s in shapes}) > 1:
        raise InvalidGraph(f"{b}: cannot concatenate {[list(s) for s in shapes]} along axis {axis}")
    return (*shapes[0][:axis], dims.add(*(s[axis] for s in shapes)), *shapes[0][axis + 1 :])


def concat_axes(b: Bound) -> str:
    """`"a0 c0, a0 c1 -> a0 C"`."""
    tensors = [t for t in b.x if t is not None]
    axis = b["axis"] % len(tensors[0].shape)
    letters = [f"a{i}" for i in range(len(tensors[0].shape))]
    terms = [" ".join([*letters[:axis], own, *letters[axis + 1 :]]) for own in ("C", *parts_of(tensors))]
    return f"{', '.join(terms[1:])} -> {terms[0]}"


def parts_of(tensors: Sequence[Tensor]) -> list[str]:
    """The letters of the parts that are joined: each its own, so that one may come twice."""
    return [f"c{i}" for i in range(len(tensors))]


def concat_moves(b: Bound, value: Any) -> Moves:
    """One part behind the other."""
    tensors = [t for t in b.x if t is not None]
    sizes = [t.shape[b["axis"] % len(t.shape)] for t in tensors]
    if any(isinstance(size, str) for size in sizes):
        return {}
    return {"C": tuple((part, np.arange(size)) for part, size in zip(parts_of(tensors), sizes, strict=True))}


def reshape_to_onnx(b: Bound) -> Call:
    """`Reshape`, with -1 for an axis that is the only symbolic one."""
    shape = b.out[0].shape
    single = sum(isinstance(d, str) for d in shape) == 1 and 0 not in shape
    return call("Reshape", b.x[0], size_tensor(-1 if single and isinstance(d, str) else d for d in shape), allowzero=1)


def squeeze_shape(b: Bound) -> tuple[Dim, ...]:
    """The shape without `axes`, whose sizes must be 1."""
    shape = b.input(0).shape
    gone = positive(b["axes"], len(shape))
    if wrong := [i for i in gone if shape[i] != 1]:
        raise InvalidGraph(f"{b}: axis {wrong[0]} of {list(shape)} is not 1")
    return tuple(d for i, d in enumerate(shape) if i not in gone)


def expand_dims_shape(b: Bound) -> tuple[Dim, ...]:
    """The shape with ones at `axes`, which are positions in the output."""
    rank = len(b.input(0).shape) + len(b["axes"])
    new, rest = positive(b["axes"], rank), iter(b.input(0).shape)
    if len(set(new)) != len(new):
        raise InvalidGraph(f"{b}: axes {list(b['axes'])} of {rank} come twice")
    return tuple(1 if i in new else next(rest) for i in range(rank))


def permute_axes(b: Bound) -> str:
    """`"a0 a1 a2 -> a0 a2 a1"`."""
    rank = len(b.input(0).shape)
    order = positive(b["axes"], rank)
    if sorted(order) != list(range(rank)):
        raise InvalidGraph(f"{b}: axes {list(b['axes'])} are no order of {rank} axes")
    letters = [f"a{i}" for i in range(rank)]
    return f"{' '.join(letters)} -> {' '.join(letters[i] for i in order)}"


def positive(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Axes counted from the front.

    >>> positive((0, -1), 3)
    (0, 2)
    """
    if wrong := [a for a in axes if not -rank <= a < rank]:
        raise InvalidGraph(f"axis {wrong[0]} of a tensor of {rank} axes")
    return tuple(a % rank for a in axes)


# Import


def reshape_to_relax(b: Bound) -> Call:
    """`reshape`; to Relax a 0 in a shape means the size that was there, so what is empty is made anew."""
    shape = b.out[0].shape
    if 0 in shape:
        return call("full", sizes(shape), np.zeros((), numpy_dtype(b.input(0).dtype)), b.input(0).dtype)
    return call("reshape", *b.x, sizes(shape))


def reshape_from_aten(self: Tensor, **target: Any) -> Any:
    """`view`, `reshape` and the like, whose target has different names in the schemas."""
    (shape,) = target.values()
    return call("reshape", self, shape=tuple(shape))


def unflatten_from_aten(self: Tensor, dim: int, sizes: Sequence[Dim]) -> Call:
    """`unflatten`: one axis becomes several."""
    (at,) = positive((dim,), len(self.shape))
    inner = tuple(sizes)
    if -1 in inner:
        known = dims.mul(*(d for d in inner if d != -1))
        inner = tuple(dims.floordiv(self.shape[at], known) if d == -1 else d for d in inner)
    return call("reshape", self, shape=(*self.shape[:at], *inner, *self.shape[at + 1 :]))


def reshape_from_onnx(n: Source) -> Call:
    """`Reshape`: 0 copies a size unless `allowzero`."""
    x, target = n.tensor(0), n.dims(1)
    if not n.attr("allowzero", 0):
        target = tuple(x.shape[i] if d == 0 else d for i, d in enumerate(target))
    return call("reshape", x, shape=target)


def reshape_from_relax(n: Source) -> Call:
    """`reshape`, which knows 0 and -1 as ONNX does."""
    x = n.tensor(0)
    target = tuple(x.shape[i] if d == 0 and i < len(x.shape) else d for i, d in enumerate(n.dims(1)))
    return call("reshape", x, shape=target)


def flatten_from_onnx(n: Source) -> Call:
    """`Flatten`: always to a matrix, whose rows are the axes before `axis`."""
    x = n.tensor(0)
    rank = len(x.shape)
    axis = n.attr("axis", 1)
    axis = axis + rank if axis < 0 else axis
    if axis == 1 and rank > 1:
        return call("flatten", x, start=1)
    return call("reshape", x, shape=(dims.mul(*x.shape[:axis]), dims.mul(*x.shape[axis:])))


def squeezed(self: Tensor, axes: Sequence[int] | int | None = None) -> Any:
    """`self` without those of the axes (all by default) whose size is 1, as torch does it."""
    rank = len(self.shape)
    wanted = range(rank) if axes is None else (axes,) if isinstance(axes, int) else axes
    gone = tuple(sorted(i for i in set(positive(wanted, rank)) if self.shape[i] == 1)) if rank else ()
    return call("squeeze", self, axes=gone) if gone else self


def squeeze_from_onnx(n: Source) -> Any:
    """`Squeeze`: the axes are an attribute before opset 13, then an optional input."""
    axes = n.attr("axes") if n.version < 13 else n.constant(1)
    x = n.tensor(0)
    if axes is None:
        return squeezed(x)
    return call("squeeze", x, axes=positive([int(a) for a in axes], len(x.shape))) if len(axes) else x


def squeeze_from_relax(n: Source) -> Any:
    """`squeeze`."""
    return squeezed(n.tensor(0), n.attr("axis"))


def expanded(x: Tensor, axes: Sequence[int]) -> Any:
    """`x` with new axes at those positions of the result."""
    return call("expand_dims", x, axes=tuple(sorted(positive(axes, len(x.shape) + len(axes))))) if axes else x


def unsqueeze_from_onnx(n: Source) -> Any:
    """`Unsqueeze`: the axes are an attribute before opset 13, then an input."""
    axes = n.attr("axes") if n.version < 13 else n.constant(1)
    return expanded(n.tensor(0), [int(a) for a in np.ravel(axes).tolist()])


def expand_dims_from_relax(n: Source) -> Any:
    """`expand_dims`."""
    axis = n.attr("axis")
    return expanded(n.tensor(0), (axis,) if isinstance(axis, int) else axis)


def permuted(self: Tensor, order: Sequence[int] | None = None) -> Any:
    """`self` with its axes in that order, reversed by default."""
    rank = len(self.shape)
    axes = tuple(reversed(range(rank))) if order is None else positive(order, rank)
    return self if axes == tuple(range(rank)) else call("permute_dims", self, axes=axes)


def swapped(x: Tensor, first: int, second: int) -> Any:
    """`x` with two axes exchanged."""
    order = list(range(len(x.shape)))
    if order:
        i, j = positive((first, second), len(order))
        order[i], order[j] = j, i
    return permuted(x, order)


def moved(self: Tensor, source: Any, destination: Any) -> Any:
    """`movedim`: axes go to places, the others keep their order."""
    rank = len(self.shape)
    froms, tos = (positive((v,) if isinstance(v, int) else v, rank) for v in (source, destination))
    rest = (i for i in range(rank) if i not in froms)
    return permuted(self, [froms[tos.index(i)] if i in tos else next(rest) for i in range(rank)])


def joined(tensors: Sequence[Tensor], axis: int = 0) -> Any:
    """`cat`: dtypes are promoted, empty tensors of one axis do not count."""
    dtype = promote(*tensors)
    parts = [t for t in tensors if t.shape != (0,)] or [tensors[0]]
    if len(parts) == 1:
        return cast(parts[0], dtype)
    return call("concat", *(cast(t, dtype) for t in parts), axis=axis)


def concat_from_relax(n: Source) -> Any:
    """`concat`, of flattened tensors without an axis."""
    axis = n.attr("axis")
    parts = [call("reshape", t, shape=(-1,)) for t in n.x[0]] if axis is None else list(n.x[0])
    return call("concat", *parts, axis=axis or 0) if len(parts) > 1 else parts[0]


def stacked(tensors: Sequence[Any], axis: int, rank: int) -> Any:
    """Tensors (or calls) of that rank side by side along a new axis."""
    (at,) = positive((axis,), rank + 1)
    parts = [call("expand_dims", t, axes=(at,)) for t in tensors]
    return call("concat", *parts, axis=at) if len(parts) > 1 else parts[0]


def stack_from_aten(tensors: Sequence[Tensor], dim: int = 0) -> Any:
    """`stack`."""
    dtype = promote(*tensors)
    return stacked([cast(t, dtype) for t in tensors], dim, len(tensors[0].shape))


def at_least(rank: int, axis: int) -> Any:
    """The importer of `vstack` and the like, which view tensors with fewer axes as ones with `rank` first."""

    def view(t: Tensor) -> tuple[Dim, ...]:
        if rank == 1 or len(t.shape) >= rank:
            return t.shape or (1,)
        return (*[1] * (2 - len(t.shape)), *t.shape, *[1] * (rank - max(2, len(t.shape))))

    def importer(tensors: Sequence[Tensor]) -> Any:
        dtype, shapes = promote(*tensors), [view(t) for t in tensors]
        parts = [
            cast(t, dtype) if t.shape == s else call("reshape", cast(t, dtype), shape=s)
            for t, s in zip(tensors, shapes, strict=True)
        ]
        along = 0 if axis == 1 and len(shapes[0]) == 1 else axis
        return call("concat", *parts, axis=along) if len(parts) > 1 else parts[0]

    return importer


def columns(tensors: Sequence[Tensor]) -> Any:
    """`column_stack`: vectors become columns."""
    dtype = promote(*tensors)
    parts = [call("reshape", cast(t, dtype), shape=(-1, 1)) if len(t.shape) < 2 else cast(t, dtype) for t in tensors]
    return call("concat", *parts, axis=1) if len(parts) > 1 else parts[0]


def seen_as(self: Tensor, dtype: str) -> Any:
    """`view.dtype`, which reads the same bits as another dtype."""
    if self.dtype == dtype:
        return self
    raise UnsupportedOperator(f"a view of the bits of {self.dtype} as {dtype}")


RESHAPES = "view.default _unsafe_view.default reshape.default _reshape_alias.default"


MOVEMENT = [
    Op(
        "flatten",
        axes="... -> ...",
        movement="reshape",
        attrs={"start": 0, "end": -1},
        shape=flatten_shape,
        aten={
            "flatten.using_ints": lambda self, start_dim=0, end_dim=-1: call(
                "flatten", self, start=start_dim, end=end_dim
            ),
            "ravel.default": lambda self: call("flatten", self),
        },
        from_onnx={"Flatten": flatten_from_onnx},
        from_relax={"flatten": lambda n: call("flatten", n.tensor(0))},
        torch=lambda b: call("torch.flatten", *b.x, b["start"], b["end"]),
        onnx=lambda b: (
            call("Flatten", *b.x, axis=1) if b["start"] == 1 and len(b.out[0].shape) == 2 else reshape_to_onnx(b)
        ),
        relax=reshape_to_relax,
        msc="reshape",
    ),
    Op(
        "reshape",
        axes="... -> ...",
        movement="reshape",
        attrs={"shape": ()},
        sized={"shape": "output"},
        symbolic=("shape",),
        shape=reshape_shape,
        aten=overloads(RESHAPES, reshape_from_aten)
        | overloads(
            "view_as.default reshape_as.default", lambda self, other: call("reshape", self, shape=other.shape)
        )
        | {"unflatten.int": unflatten_from_aten, "view.dtype": seen_as},
        from_onnx={"Reshape": reshape_from_onnx},
        from_relax={"reshape": reshape_from_relax},
        torch=lambda b: call("torch.reshape", *b.x, sizes(b.out[0].shape)),
        onnx=reshape_to_onnx,
        relax=reshape_to_relax,
        msc="reshape",
    ),
    Op(
        "squeeze",
        axes="... -> ...",
        movement="reshape",
        attrs={"axes": ()},
        shape=squeeze_shape,
        aten={
            "squeeze.default": squeezed,
            "squeeze.dim": lambda self, dim: squeezed(self, dim),
            "squeeze.dims": lambda self, dim: squeezed(self, dim),
        },
        from_onnx={"Squeeze": squeeze_from_onnx},
        from_relax={"squeeze": squeeze_from_relax},
        torch=lambda b: call("torch.squeeze", *b.x, b["axes"]),
        onnx=lambda b: call("Squeeze", *b.x, np.asarray(b["axes"], np.int64)),
        relax=lambda b: call("squeeze", *b.x, axis=b["axes"]),
        msc="squeeze",
    ),
    Op(
        "expand_dims",
        axes="... -> ...",
        movement="reshape",
        attrs={"axes": ()},
        shape=expand_dims_shape,
        aten={"unsqueeze.default": lambda self, dim: expanded(self, (dim,))},
        from_onnx={"Unsqueeze": unsqueeze_from_onnx},
        from_relax={"expand_dims": expand_dims_from_relax},
        torch=lambda b: (
            call("torch.unsqueeze", *b.x, b["axes"][0])
            if len(b["axes"]) == 1
            else call("torch.reshape", *b.x, sizes(b.out[0].shape))
        ),
        onnx=lambda b: call("Unsqueeze", *b.x, np.asarray(b["axes"], np.int64)),
        relax=lambda b: call("expand_dims", *b.x, axis=b["axes"]),
        msc="expand_dims",
    ),
    Op(
        "permute_dims",
        axes=permute_axes,
        attrs={"axes": ()},
        aten={
            "permute.default": lambda self, dims: permuted(self, dims),
            **overloads("t.default numpy_T.default", permuted),
            **overloads("mT.default mH.default adjoint.default", lambda self: swapped(self, -2, -1)),
            **overloads("transpose.int swapdims.default", lambda self, dim0, dim1: swapped(self, dim0, dim1)),
            "swapaxes.default": lambda self, axis0, axis1: swapped(self, axis0, axis1),
            **overloads("movedim.int movedim.intlist moveaxis.int moveaxis.intlist", moved),
        },
        from_onnx={"Transpose": lambda n: permuted(n.tensor(0), n.attr("perm"))},
        from_relax={"permute_dims": lambda n: permuted(n.tensor(0), n.attr("axes"))},
        torch=lambda b: call("torch.permute", *b.x, positive(b["axes"], len(b["axes"]))),
        onnx=lambda b: call("Transpose", *b.x, perm=positive(b["axes"], len(b["axes"]))),
        relax=lambda b: call("permute_dims", *b.x, axes=positive(b["axes"], len(b["axes"]))),
        msc="permute_dims",
    ),
    Op(
        "concat",
        axes=concat_axes,
        movement="concat",
        moves=concat_moves,
        operands=-1,
        attrs={"axis": 0},
        shape=concat_shape,
        aten=overloads(
            "cat.default concat.default concatenate.default", lambda tensors, dim=0: joined(tensors, dim)
        )
        | {
            "stack.default": stack_from_aten, "hstack.default": at_least(1, 1), "vstack.default": at_least(2, 0),
            "row_stack.default": at_least(2, 0), "dstack.default": at_least(3, 2), "column_stack.default": columns,
        },
        from_onnx={"Concat": lambda n: call("concat", *n.x, axis=n.attr("axis", 1))},
        from_relax={
            "concat": concat_from_relax,
            "stack": lambda n: stacked(n.x[0], n.attr("axis", 0), len(n.x[0][0].shape)),
        },
        torch=lambda b: call("torch.cat", tuple(b.x), dim=b["axis"]),
        onnx=lambda b: call("Concat", *b.x, axis=b["axis"]),
        relax=lambda b: call("concat", tuple(b.x), axis=b["axis"]),
        msc="concat",
    ),
]  # fmt: skip
