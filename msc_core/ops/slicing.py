"""Selecting parts of axes: slices, selections, splits."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from msc_core import dims
from msc_core.dims import Dim
from msc_core.errors import InvalidGraph, UnsupportedOperator
from msc_core.ir import Array, Attr, Tensor
from msc_core.ops.arithmetic import overloads
from msc_core.ops.movement import positive
from msc_core.ops.op import Bound, Call, Moves, Op, Source, call, size_tensor, sizes
from msc_core.ops.repeating import MOVED, REPEATING, relettered
from msc_core.ops.signature import Sizes

HUGE = 2**63 - 1  # what exporters write for "to the end"
FAR = 10**9  # as an end, whatever an exporter takes for "all": 2**31 - 1, 10**9 and more
Cut = tuple[Dim, Dim, int]  # begin, end, stride

# Slices


def bound(value: Dim, size: Dim) -> Dim:
    """A begin or end as Python means it, counted from the front and within the axis.

    One that depends on a symbol is taken to be within an axis of fixed size.

    >>> bound(-1, 5), bound(9, 5), bound(-1, "N"), bound("N", 512), bound("N - 1", "N")
    (4, 5, 'N - 1', 'N', 'N - 1')
    """
    if isinstance(value, int) and value >= FAR:
        return size
    if dims.bounds(value)[1] < 0:
        value = dims.add(value, size)
    low = dims.maximum(value, 0)
    return low if isinstance(size, int) and isinstance(value, str) else dims.minimum(low, size)


def clamped(begin: Dim, end: Dim, size: Dim) -> tuple[Dim, Dim]:
    """Both ends of a slice within the axis; a single position is taken to be there.

    >>> clamped(1, -1, 5), clamped(0, 5, "N"), clamped(3, 4, "N"), clamped("N - 3", "N - 2", "N")
    ((1, 4), (0, 'min(5, N)'), (3, 4), ('N - 3', 'N - 2'))
    """
    single = dims.sub(end, begin) == 1 and (isinstance(size, str) or isinstance(begin, str))
    if single and dims.bounds(begin)[1] >= 0:
        return begin, end
    return bound(begin, size), bound(end, size)


def cuts(b: Bound) -> dict[int, Cut]:
    """Begin, end and stride of each axis that a node cuts, within the axis."""
    shape = b.input(0).shape
    found: dict[int, Cut] = {}
    steps = b["strides"] or (1,) * len(b["axes"])
    for axis, begin, end, stride in zip(positive(b["axes"], len(shape)), b["begin"], b["end"], steps, strict=True):
        if stride < 1:
            raise InvalidGraph(f"{b}: a stride of {stride}; expected a positive one")
        found[axis] = (*clamped(begin, end, shape[axis]), stride)
    return found


def length(cut: Cut) -> Dim:
    """How many positions a cut selects."""
    begin, end, stride = cut
    return dims.maximum(dims.ceildiv(dims.sub(end, begin), stride), 0)


def rows(b: Bound) -> dict[int, int]:
    """Axes cut with a stride that divides them: rows of that length stay together, so that the stride remains."""
    shape = b.input(0).shape
    found = {axis: (cut[-1], shape[axis]) for axis, cut in cuts(b).items()}
    return {axis: n for axis, (n, size) in found.items() if n > 1 and isinstance(size, int) and size and size % n == 0}


def slice_axes(b: Bound) -> str:
    """`"a0 a1 (a2 2) -> a0 b1 b2"`, where axis 2 is cut with a stride of 2."""
    left, right = relettered(len(b.input(0).shape), cuts(b)).split("->")
    for axis, stride in rows(b).items():
        left = left.replace(f"a{axis} ", f"(a{axis} {stride}) ")
    return f"{left}->{right}"


def slice_moves(b: Bound, value: Any) -> Moves:
    """The positions that are picked, of axes of fixed size: of each row one."""
    found: Moves = {}
    for axis, (begin, end, stride) in cuts(b).items():
        row = rows(b).get(axis, 1)
        if all(isinstance(d, int) for d in (begin, end, b.input(0).shape[axis])) and row == stride:
            found = {**found, f"b{axis}": ((f"a{axis}", np.arange(int(begin), int(end), stride) // row),)}
    return found


def slice_resize(b: Bound, masks: Mapping[str, Array]) -> Mapping[str, Attr]:
    """Begin and end among the positions that remain."""
    begins, ends = list(b["begin"]), list(b["end"])
    for place, (axis, (begin, end, stride)) in enumerate(cuts(b).items()):
        if (mask := masks.get(f"a{axis}")) is not None:
            alive = np.repeat(mask, rows(b).get(axis, 1))
            picked = np.arange(int(begin), int(end), stride)
            places = (np.cumsum(alive) - 1)[picked[alive[picked]]]
            begins[place], ends[place] = int(places[0]), int(places[-1]) + 1
    return {"begin": tuple(begins), "end": tuple(ends)}


def slice_to_torch(b: Bound) -> Call:
    """`x[:, 1:3]`."""
    parts = [slice(None)] * (max(cuts(b), default=-1) + 1)
    for axis, (begin, end, stride) in cuts(b).items():
        whole = end == b.input(0).shape[axis]
        first, last = sizes((begin, end))
        parts[axis] = slice(first if begin != 0 else None, None if whole else last, stride if stride != 1 else None)
    return call("index", *b.x, tuple(parts))


def slice_to_onnx(b: Bound) -> Call:
    """`Slice`, whose end says "to the end" where it is."""
    found = cuts(b)
    ends = [HUGE if end == b.input(0).shape[axis] else end for axis, (_, end, _) in found.items()]
    steps = [s for _, _, s in found.values()]
    more = [np.asarray(steps, np.int64)] if set(steps) != {1} else []
    begins = size_tensor(begin for begin, _, _ in found.values())
    return call("Slice", *b.x, begins, size_tensor(ends), np.asarray(list(found), np.int64), *more)


def slice_to_relax(b: Bound) -> Call:
    """`strided_slice`. Of cuts within their axes Relax infers the size, but does not check that they are."""
    found = cuts(b)
    spans = [dims.sub(end, begin) for begin, end, _ in found.values()]
    within = all(dims.maximum(span, 0) == span for span in spans)
    parts = [sizes(part) for part in zip(*found.values(), strict=True)]
    shape = b.input(0).shape
    beyond = [dims.sub(end, shape[axis]) for axis, (_, end, _) in found.items()]
    before = [dims.mul(begin, -1) for begin, _, _ in found.values()]
    excess = [e for e in (dims.maximum(d, 0) for d in (*beyond, *before)) if e != 0]
    source = call("guarded", b.x[0], *sizes(excess)) if within and excess else b.x[0]
    return call("strided_slice", source, tuple(found), *parts, assume_inbound=within)


def sliced(x: Any, shape: Sequence[Dim], axis: int, begin: Dim, end: Dim, stride: int = 1) -> Any:
    """`x` of that shape cut along one axis; itself if nothing is cut off."""
    first, last = clamped(begin, end, shape[axis])
    if first == 0 and last == shape[axis] and stride == 1:
        return x
    steps = {} if stride == 1 else {"strides": (stride,)}
    return call("strided_slice", x, axes=(axis,), begin=(first,), end=(last,), **steps)


def slice_from_aten(self: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    """`slice.Tensor`."""
    (axis,) = positive((dim,), len(self.shape))
    return sliced(self, self.shape, axis, 0 if start is None else start, HUGE if end is None else end, step)


def select(self: Tensor, dim: int, index: Dim) -> Call:
    """`select.int`: one position of an axis, without the axis."""
    (axis,) = positive((dim,), len(self.shape))
    size = self.shape[axis]
    at = dims.add(index, size) if dims.bounds(index)[1] < 0 else index
    return call("squeeze", sliced(self, self.shape, axis, at, dims.add(at, 1)), axes=(axis,))


def stepped(x: Any, shape: Sequence[Dim], steps: dict[int, tuple[Dim, Dim, int]]) -> Any:
    """`x` cut as NumPy does it, for each axis by begin, end and a stride that may be negative."""
    turned = tuple(axis for axis, (_, _, stride) in steps.items() if stride < 0)
    forward: dict[int, Cut] = {}
    for axis, (begin, end, stride) in steps.items():
        size = shape[axis]
        if stride > 0:
            forward[axis] = (bound(begin, size), bound(end, size), stride)
            continue
        # Of the axis turned around: position p is at size - 1 - p. An end of -size - 1 and less is before the first.
        first = 0 if isinstance(begin, int) and begin >= FAR else mirrored(begin, size)
        last = size if isinstance(end, int) and end <= -FAR else mirrored(end, size)
        forward[axis] = (dims.maximum(first, 0), dims.minimum(dims.maximum(last, 0), size), -stride)
    kept = {axis: c for axis, c in forward.items() if c != (0, shape[axis], 1)}
    x = call("flip", x, axes=turned) if turned else x
    if not kept:
        return x
    begins, ends, strides = zip(*kept.values(), strict=True)
    more = {} if set(strides) == {1} else {"strides": strides}
    return call("strided_slice", x, axes=tuple(kept), begin=begins, end=ends, **more)


def mirrored(value: Dim, size: Dim) -> Dim:
    """Where a position, maybe counted from the end, is on an axis turned around."""
    place = dims.add(value, size) if dims.bounds(value)[1] < 0 else value
    return dims.sub(dims.sub(size, 1), place)


def slice_from_onnx(n: Source) -> Any:
    """`Slice`: attributes before opset 10, then inputs."""
    x = n.tensor(0)
    if n.version < 10:
        begins, ends = tuple(n.attr("starts")), tuple(n.attr("ends"))
        axes, strides = tuple(n.attr("axes", range(len(begins)))), (1,) * len(begins)
    else:
        begins, ends = n.dims(1), n.dims(2)
        axes, strides = n.dims(3, tuple(range(len(begins)))), n.dims(4, (1,) * len(begins))
    if any(isinstance(v, str) for v in (*axes, *strides)) or 0 in strides:
        raise UnsupportedOperator(f"Slice with axes {list(axes)} and steps {list(strides)}")
    where = positive(axes, len(x.shape))
    return stepped(x, x.shape, {a: (f, z, s) for a, f, z, s in zip(where, begins, ends, strides, strict=True)})


def slice_from_relax(n: Source) -> Any:
    """`strided_slice`, and of constants `dynamic_strided_slice`, which cuts every axis."""
    x = n.tensor(0)
    if n.op == "dynamic_strided_slice":
        axes = tuple(range(len(x.shape)))
        begins, ends, strides = (n.dims(i) for i in (1, 2, 3))
    else:
        axes, begins, ends = (tuple(n.x[i]) for i in (1, 2, 3))
        strides = tuple(n.get(4) or (1,) * len(axes))
    where = positive(axes, len(x.shape))
    return stepped(x, x.shape, {a: (f, z, s) for a, f, z, s in zip(where, begins, ends, strides, strict=True)})


# Splits


def split_axis(b: Bound) -> int:
    """The axis that a `split` cuts."""
    return positive((b["axis"],), len(b.input(0).shape))[0]


def split_axes(b: Bound) -> str:
    """`"a0 a1 -> a0 s0, a0 s1"`."""
    rank, axis = len(b.input(0).shape), split_axis(b)
    letters = [f"a{i}" for i in range(rank)]
    parts = [" ".join([*letters[:axis], f"s{i}", *letters[axis + 1 :]]) for i in range(len(b["sizes"]))]
    return f"{' '.join(letters)} -> {', '.join(parts)}"


def split_sizes(b: Bound, known: Sizes) -> Sizes:
    """The parts must add up to the axis."""
    size = b.input(0).shape[split_axis(b)]
    if dims.add(*b["sizes"]) != size:
        raise InvalidGraph(f"{b}: parts of {list(b['sizes'])} do not add up to {size}")
    return {f"s{i}": part for i, part in enumerate(b["sizes"])}


def split_moves(b: Bound, value: Any) -> Moves:
    """One part after the other, of an axis of fixed size."""
    if any(isinstance(part, str) for part in b["sizes"]):
        return {}
    edges = np.cumsum([0, *b["sizes"]])
    source = f"a{split_axis(b)}"
    return {f"s{i}": ((source, np.arange(a, z)),) for i, (a, z) in enumerate(itertools.pairwise(edges))}


def split_resize(b: Bound, masks: Mapping[str, Array]) -> Mapping[str, Attr]:
    """What is left of each part."""
    return {"sizes": tuple(int(masks[s].sum()) if (s := f"s{i}") in masks else d for i, d in enumerate(b["sizes"]))}


def split_to_relax(b: Bound) -> Any:
    """`split` at positions, which must grow; otherwise every part by itself."""
    edges = [dims.add(*b["sizes"][:i]) for i in range(len(b["sizes"]) + 1)]
    if 0 in b["sizes"]:
        ends = (sizes(pair) for pair in itertools.pairwise(edges))
        return tuple(call("strided_slice", *b.x, (split_axis(b),), (a,), (z,), (1,)) for a, z in ends)
    return call("split", *b.x, sizes(edges[1:-1]), axis=split_axis(b))


def parted(x: Tensor, axis: int, parts: Sequence[Dim]) -> tuple[Any, ...]:
    """`x` cut into parts of those sizes along an axis."""
    (at,) = positive((axis,), len(x.shape))
    if len(parts) == 1:
        return (x,)
    whole = call("split", x, sizes=tuple(parts), axis=at)
    return tuple(call("item", whole, i) for i in range(len(parts)))


def in_steps(size: Dim, step: Dim) -> tuple[Dim, ...]:
    """The parts of an axis cut into pieces of one size, the last of which may be smaller.

    >>> in_steps(7, 3), in_steps("4*N", "N")
    ((3, 3, 1), ('N', 'N', 'N', 'N'))
    """
    if size == 0:
        return (0,)
    count = dims.ceildiv(size, step)
    if isinstance(count, str) and dims.mod(size, step) == 0:
        count = dims.floordiv(size, step)
    if isinstance(count, str):
        raise UnsupportedOperator(f"a split of {size} into pieces of {step}, whose number is not known")
    return (*[step] * (count - 1), dims.sub(size, dims.mul(step, count - 1)))


def split_from_aten(self: Tensor, split_size: Dim, dim: int = 0) -> tuple[Any, ...]:
    """`split.Tensor`."""
    (axis,) = positive((dim,), len(self.shape))
    return parted(self, axis, in_steps(self.shape[axis], split_size))


def chunk(self: Tensor, chunks: int, dim: int = 0) -> tuple[Any, ...]:
    """`chunk`: pieces of one size, as many as asked for or fewer."""
    (axis,) = positive((dim,), len(self.shape))
    size = self.shape[axis]
    return parted(self, axis, [0] * chunks if size == 0 else in_steps(size, dims.ceildiv(size, chunks)))


def even(size: Dim, count: int) -> tuple[Dim, ...]:
    """The parts of `tensor_split`: sizes that differ by at most 1, the larger ones first."""
    if isinstance(size, str):
        part = dims.floordiv(size, count)
        if dims.mul(part, count) != size:
            raise UnsupportedOperator(f"a split of {size} into {count} even parts")
        return (part,) * count
    return tuple(size // count + (i < size % count) for i in range(count))


def tensor_split(self: Tensor, sections: int, dim: int = 0) -> tuple[Any, ...]:
    """`tensor_split.sections`."""
    (axis,) = positive((dim,), len(self.shape))
    return parted(self, axis, even(self.shape[axis], sections))


def split_at(self: Tensor, indices: Sequence[Dim], dim: int = 0) -> tuple[Any, ...]:
    """`tensor_split.indices`: each part goes from one place to the next, and is empty if that is before it."""
    (axis,) = positive((dim,), len(self.shape))
    places = [bound(i, self.shape[axis]) for i in indices]
    edges = [0, *places, self.shape[axis]]
    return tuple(sliced(self, self.shape, axis, a, c) for a, c in itertools.pairwise(edges))


def along(axis: int, splitter: Any) -> Any:
    """The importer of `hsplit` and the like: a splitter along a fixed axis."""

    def importer(self: Tensor, **how: Any) -> Any:
        (value,) = how.values()
        return splitter(self, value, 0 if axis == 1 and len(self.shape) == 1 else axis)

    return importer


def unbind(self: Tensor, dim: int = 0) -> tuple[Any, ...]:
    """`unbind`: every position of an axis."""
    (axis,) = positive((dim,), len(self.shape))
    size = self.shape[axis]
    if isinstance(size, str):
        raise UnsupportedOperator(f"unbind along an axis of size {size}, which is not known")
    return tuple(call("squeeze", part, axes=(axis,)) for part in parted(self, axis, [1] * size))


def split_from_onnx(n: Source) -> tuple[Any, ...]:
    """`Split`: sizes as an attribute before opset 13, then as an input; else equal parts, the last maybe smaller."""
    x = n.tensor(0)
    (axis,) = positive((n.attr("axis", 0),), len(x.shape))
    given = n.attr("split") if n.version < 13 else n.dims(1)
    if given is None:
        count, size = n.attr("num_outputs", n.outputs), x.shape[axis]
        step = dims.ceildiv(size, count) if isinstance(size, int) else even(size, count)[0]
        given = (*[step] * (count - 1), dims.sub(size, dims.mul(step, count - 1)))
    return parted(x, axis, tuple(given))


def split_from_relax(n: Source) -> tuple[Any, ...]:
    """`split`, into equal parts or at places."""
    x, how = n.tensor(0), n.attr("indices_or_sections")
    (axis,) = positive((n.attr("axis", 0),), len(x.shape))
    size = x.shape[axis]
    if isinstance(how, int):
        step = dims.ceildiv(size, how) if isinstance(size, int) else even(size, how)[0]
        return parted(x, axis, (*[step] * (how - 1), dims.sub(size, dims.mul(step, how - 1))))
    edges = [0, *(bound(i, size) for i in how), size]
    return parted(x, axis, [dims.maximum(dims.sub(c, a), 0) for a, c in itertools.pairwise(edges)])


SLICING = [
    Op(
        "strided_slice",
        axes=slice_axes,
        moves=slice_moves,
        resize=slice_resize,
        attrs={"axes": (), "begin": (), "end": (), "strides": ()},
        symbolic=("begin", "end"),
        new=lambda b, known: {f"b{axis}": length(cut) for axis, cut in cuts(b).items()},
        aten={
            "slice.Tensor": slice_from_aten,
            "narrow.default": lambda self, dim, start, length: slice_from_aten(
                self, dim, start, dims.add(start, length) if start != -length else HUGE
            ),
            "select.int": select,
            **MOVED,
        },
        from_onnx={"Slice": slice_from_onnx},
        from_relax=dict.fromkeys(("strided_slice", "dynamic_strided_slice"), slice_from_relax),
        torch=slice_to_torch,
        onnx=slice_to_onnx,
        relax=slice_to_relax,
        msc="strided_slice",
    ),
    Op(
        "split",
        axes=split_axes,
        moves=split_moves,
        resize=split_resize,
        attrs={"sizes": (), "axis": 0},
        symbolic=("sizes",),
        new=split_sizes,
        aten={
            **overloads("split.Tensor unsafe_split.Tensor", split_from_aten),
            **overloads(
                "split_with_sizes.default split.sizes unsafe_split_with_sizes.default",
                lambda self, dim=0, **given: parted(self, dim, *given.values()),
            ),
            **overloads("chunk.default unsafe_chunk.default", chunk),
            "tensor_split.sections": tensor_split,
            "tensor_split.indices": split_at,
            **{
                f"{letter}split.{form}": along(axis, splitter)
                for axis, letter in ((0, "v"), (1, "h"), (2, "d"))
                for form, splitter in (("int", tensor_split), ("array", split_at))
            },
            "unbind.int": unbind,
        },
        from_onnx={"Split": split_from_onnx},
        from_relax={"split": split_from_relax},
        torch=lambda b: call("torch.split", *b.x, sizes(b["sizes"]), dim=split_axis(b)),
        onnx=lambda b: call("Split", *b.x, size_tensor(b["sizes"]), axis=split_axis(b)),
        relax=split_to_relax,
        msc="split",
    ),
    *REPEATING,
]
