"""Repeating, turning and masking positions of axes: broadcasts, tiles, flips, rolls, triangles, windows, diagonals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from msc_core import dims
from msc_core.dims import Dim
from msc_core.errors import InvalidGraph, UnsupportedOperator
from msc_core.ir import Tensor
from msc_core.ops.arithmetic import overloads
from msc_core.ops.derived import derived
from msc_core.ops.dtypes import cast, kind, scalar
from msc_core.ops.movement import positive, stacked
from msc_core.ops.op import Bound, Call, DType, Moves, Op, Source, call, size_tensor, sizes
from msc_core.ops.signature import Sizes

MIN = -(2**63)  # what exporters write for "before the first position", going backwards


def relettered(rank: int, changed: Any) -> str:
    """`"a0 a1 a2 -> a0 b1 a2"`: a signature in which some axes change, and so cannot lose positions."""
    left = [f"a{i}" for i in range(rank)]
    right = [f"b{i}" if i in changed else f"a{i}" for i in range(rank)]
    return f"{' '.join(left)} -> {' '.join(right)}"


# Broadcasts


def broadcast_axes(b: Bound) -> str:
    """`"a1 . -> b0 a1 b2"`: axes that stay, behind new ones and those that grow from 1."""
    shape, target = b.input(0).shape, b["shape"]
    start = len(target) - len(shape)
    if start < 0 or any(d not in (1, t) for d, t in zip(shape, target[start:], strict=True)):
        raise InvalidGraph(f"{b}: cannot broadcast {list(shape)} to {list(target)}")
    same = [i >= start and shape[i - start] == target[i] for i in range(len(target))]
    left = [f"a{i}" if same[i] else "." for i in range(start, len(target))] or ["..."]
    return f"{' '.join(left)} -> {' '.join(f'a{i}' if s else f'b{i}' for i, s in enumerate(same))}"


def broadcast_moves(b: Bound, value: Any) -> Moves:
    """New axes and those that grow have equal positions."""
    shape, target = b.input(0).shape, b["shape"]
    start = len(target) - len(shape)
    return {f"b{i}": None for i, d in enumerate(target) if i < start or shape[i - start] != d}


def broadcast(x: Any, shape: Sequence[Dim], target: Sequence[Dim]) -> Any:
    """`x` of that shape broadcast; itself if it has the target's shape."""
    return x if tuple(shape) == tuple(target) else call("broadcast_to", x, shape=tuple(target))


def expand_from_aten(self: Tensor, size: Sequence[Dim], implicit: bool = False) -> Any:
    """`expand`, where -1 keeps a size."""
    start = len(size) - len(self.shape)
    target = [self.shape[i - start] if d == -1 and i >= start else d for i, d in enumerate(size)]
    return broadcast(self, self.shape, target)


def expand_from_onnx(n: Source) -> Any:
    """`Expand`, which broadcasts both ways."""
    x, target = n.tensor(0), n.dims(1)
    rank = max(len(x.shape), len(target))
    pairs = zip((1,) * (rank - len(x.shape)) + x.shape, (1,) * (rank - len(target)) + target, strict=True)
    return broadcast(x, x.shape, [d if t == 1 else t for d, t in pairs])


# Tiles and repeats


def tile_sizes(b: Bound, known: Sizes) -> Sizes:
    """How often each axis comes."""
    return {f"r{i}": r for i, r in enumerate(b["repeats"])}


def tile_axes(b: Bound) -> str:
    """`"a0 a1 -> a0 (r1 a1)"`."""
    rank = len(b.input(0).shape)
    if len(b["repeats"]) != rank:
        raise InvalidGraph(f"{b}: {len(b['repeats'])} repeats for {rank} axes")
    right = [f"a{i}" if r == 1 else f"(r{i} a{i})" for i, r in enumerate(b["repeats"])]
    return f"{' '.join(f'a{i}' for i in range(rank))} -> {' '.join(right)}"


def tiled(x: Tensor, repeats: Sequence[Dim]) -> Any:
    """`x` repeated as a whole along its axes, in front of which there may be new ones."""
    more = len(repeats) - len(x.shape)
    found: Any = x if more <= 0 else call("reshape", x, shape=(*[1] * more, *x.shape))
    counts = (*[1] * -more, *repeats)
    return found if all(r == 1 for r in counts) else call("tile", found, repeats=counts)


def tile_to_relax(b: Bound) -> Any:
    """`tile`, which takes numbers; by sizes it is a broadcast along axes of its own."""
    if any(isinstance(r, str) for r in b["repeats"]):
        return derived(tile_steps, "relax")(b)
    return call("tile", *b.x, b["repeats"])


def tile_steps(b: Bound) -> Call:
    """An axis in front of each one, broadcast and merged."""
    pairs = list(zip(b["repeats"], b.input(0).shape, strict=True))
    thin, wide = (tuple(d for r, size in pairs for d in (r if grown else 1, size)) for grown in (False, True))
    return call("reshape", call("broadcast_to", call("reshape", *b.x, shape=thin), shape=wide), shape=b.out[0].shape)


def repeat_axes(b: Bound) -> str:
    """`"a0 a1 -> a0 (a1 r)"`."""
    rank = len(b.input(0).shape)
    (axis,) = positive((b["axis"],), rank)
    letters = [f"a{i}" for i in range(rank)]
    return f"{' '.join(letters)} -> {' '.join([*letters[:axis], f'(a{axis} r)', *letters[axis + 1 :]])}"


def repeat_steps(b: Bound) -> Call:
    """A new axis behind the repeated one, broadcast and merged."""
    shape = b.input(0).shape
    (axis,) = positive((b["axis"],), len(shape))
    wide = (*shape[: axis + 1], b["repeats"], *shape[axis + 1 :])
    return call(
        "reshape", call("broadcast_to", call("expand_dims", *b.x, axes=(axis + 1,)), shape=wide), shape=b.out[0].shape
    )


def repeated(self: Tensor, repeats: Any, dim: int | None = None, output_size: Any = None) -> Any:
    """`repeat_interleave.self_int`: of the flattened tensor without an axis."""
    if isinstance(repeats, str):
        raise UnsupportedOperator(f"a repeat of each element by the symbolic size {repeats}")
    x = call("reshape", self, shape=(-1,)) if dim is None else self
    return call("repeat", x, repeats=repeats, axis=0 if dim is None else positive((dim,), len(self.shape))[0])


# Turned around


def flip_moves(b: Bound, value: Any) -> Moves:
    """The last position first."""
    shape = b.input(0).shape
    axes = positive(b["axes"], len(shape))
    return {f"b{i}": ((f"a{i}", np.arange(int(shape[i]))[::-1]),) for i in axes if isinstance(shape[i], int)}


def flip_to_onnx(b: Bound) -> Call:
    """`Slice` backwards."""
    axes = positive(b["axes"], len(b.input(0).shape))
    ones = np.ones(len(axes), np.int64)
    return call("Slice", *b.x, -ones, ones * MIN, np.asarray(axes, np.int64), -ones)


def flip_to_relax(b: Bound) -> Any:
    """`flip`, one axis after the other."""
    found: Any = b.x[0]
    for axis in positive(b["axes"], len(b.input(0).shape)):
        found = call("flip", found, axis=axis)
    return found


def flipped(self: Tensor, dims: Sequence[int]) -> Any:
    """`flip`."""
    return call("flip", self, axes=positive(dims, len(self.shape))) if dims and self.shape else self


def quarter_turns(self: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Any:
    """`rot90`: flips and an exchange of two axes."""
    first, second = positive(dims, len(self.shape))
    turns = k % 4
    axes = {0: (), 1: (second,), 2: (first, second), 3: (first,)}[turns]
    found = call("flip", self, axes=axes) if axes else self
    order = list(range(len(self.shape)))
    order[first], order[second] = second, first
    return call("permute_dims", found, axes=tuple(order)) if turns % 2 else found


def reversed_parts(x: Tensor, lengths: Any, known: Any, batch: int, time: int) -> Any:
    """Each sample turned around up to its length, by taking its positions; `known` is the value of the lengths."""
    rank, size, count = len(x.shape), x.shape[time], x.shape[batch]
    if isinstance(size, str):
        raise UnsupportedOperator(f"a reversal of parts of an axis of size {size}")
    if known is not None and known.dtype != object and (known == size).all():
        return call("flip", x, axes=(time,))
    place = np.arange(size).reshape([-1 if i == time else 1 for i in range(rank)])
    one = tuple(count if i == batch else 1 for i in range(rank))
    ends = call("reshape", cast(lengths, "int64"), shape=one)
    turned = call("subtract", call("subtract", ends, scalar(1, "int64")), place)
    index = call("where", call("less", place, ends), turned, place)
    view = tuple(x.shape[i] if i in (batch, time) else 1 for i in range(rank))
    return call("gather_elements", x, broadcast(index, view, x.shape), axis=time)


def reverse_from_onnx(n: Source) -> Any:
    """`ReverseSequence`, which Relax calls `reverse_sequence`."""
    x, lengths = n.tensor(0), n.tensor(1)
    if n.op == "ReverseSequence":
        batch, time = n.attr("batch_axis", 1), n.attr("time_axis", 0)
    else:
        batch, time = positive((n.attr("batch_axis", 0), n.attr("seq_axis", 1)), len(x.shape))
    return reversed_parts(x, lengths, n.known(lengths), batch, time)


def rolled(self: Tensor, shifts: Sequence[Dim], dims: Sequence[int] = ()) -> Any:
    """`roll`: the end of an axis moved to its front."""
    if not dims:
        count = _product(self.shape)
        return call("reshape", _rolled(call("reshape", self, shape=(count,)), (count,), 0, shifts[0]), shape=self.shape)
    found: Any = self
    for axis, shift in zip(positive(dims, len(self.shape)), shifts, strict=True):
        found = _rolled(found, self.shape, axis, shift)
    return found


def _product(shape: Sequence[Dim]) -> Dim:
    return dims.mul(*shape)


def _rolled(x: Any, shape: Sequence[Dim], axis: int, shift: Dim) -> Any:
    size = shape[axis]
    if isinstance(shift, int) and isinstance(size, int):
        shift = shift % size if size else 0
    if shift == 0 or shift == size:
        return x
    backwards = dims.bounds(shift)[1] < 0
    at = dims.mul(shift, -1) if backwards else dims.sub(size, shift)
    if dims.minimum(at, size) != at or dims.maximum(at, 0) != at:
        raise UnsupportedOperator(f"a roll by {shift} along an axis of size {size}")
    ends = ((at, size), (0, at))
    return call("concat", *(call("strided_slice", x, axes=(axis,), begin=(a,), end=(z,)) for a, z in ends), axis=axis)


# Triangles, diagonals, windows


def triangle(name: str, upper: bool) -> Op:
    """The row of `tril` or `triu`: what is on one side of a diagonal, zeros elsewhere."""

    def axes(b: Bound) -> str:
        rank = len(b.input(0).shape)
        if rank < 2:
            raise InvalidGraph(f"{b}: its input has shape {list(b.input(0).shape)}; expected two axes or more")
        return relettered(rank, (rank - 2, rank - 1))

    def to_onnx(b: Bound) -> Call:
        x, dtype = b.x[0], b.input(0).dtype
        offset = np.asarray(b["k"], np.int64)
        if dtype in TRILU:
            return call("Trilu", x, offset, upper=int(upper))
        wide = DType("int64" if kind(dtype) < 2 else "float32")
        return call("Cast", call("Trilu", call("Cast", x, to=wide), offset, upper=int(upper)), to=DType(dtype))

    def from_onnx(n: Source) -> Call:
        row = "triu" if n.attr("upper", 1) else "tril"
        return call(row, n.tensor(0), k=int(np.asarray(n.constant(1, 0)).item()))

    return Op(
        name,
        axes=axes,
        attrs={"k": 0},
        new=lambda b, known: {f"b{len(b.input(0).shape) - i}": b.input(0).shape[-i] for i in (1, 2)},
        aten={f"{name}.default": lambda self, diagonal=0: call(name, self, k=diagonal)},
        from_onnx={"Trilu": from_onnx} if upper else {},
        from_relax={name: lambda n: call(name, n.tensor(0), k=int(n.get(1) or 0))},
        torch=lambda b: call(f"torch.{name}", *b.x, b["k"]),
        onnx=to_onnx,
        relax=lambda b: call(name, *b.x, b["k"]),
        msc=name,
    )


TRILU = ("float32", "float64", "int64", "bool")  # what ONNX Runtime has a kernel for


def diagonal(self: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """`diagonal`: of the two axes, merged at the end, every place that is one row and one column further."""
    rank = len(self.shape)
    first, second = positive((dim1, dim2), rank)
    rest = [i for i in range(rank) if i not in (first, second)]
    rows, columns = self.shape[first], self.shape[second]
    count = dims.minimum(dims.add(rows, min(offset, 0)), dims.sub(columns, max(offset, 0)))
    if isinstance(count, int) and count <= 0:
        raise UnsupportedOperator(f"the diagonal {offset} of {list(self.shape)}, which is empty")
    batch = [self.shape[i] for i in rest]
    order = (*rest, first, second)
    x: Any = self if order == tuple(range(rank)) else call("permute_dims", self, axes=order)
    flat = call("reshape", x, shape=(*batch, dims.mul(rows, columns)))
    begin = offset if offset >= 0 else dims.mul(columns, -offset)
    stride = dims.add(columns, 1)
    if isinstance(stride, str):
        steps = call("multiply", call("arange", end=count), scalar(stride, "int64"))
        return call("take", flat, call("add", steps, scalar(begin, "int64")), axis=rank - 2)
    end = dims.add(begin, dims.mul(dims.sub(count, 1), stride), 1)
    return call("strided_slice", flat, axes=(rank - 2,), begin=(begin,), end=(end,), strides=(stride,))


def windows(self: Tensor, dimension: int, size: int, step: int) -> Any:
    """`unfold`: windows of an axis, with the places in each as a new last axis."""
    rank = len(self.shape)
    if not rank:
        return call("reshape", self, shape=(size,))
    (axis,) = positive((dimension,), rank)
    count = dims.add(dims.floordiv(dims.sub(self.shape[axis], size), step), 1)
    reach = dims.add(dims.mul(dims.sub(count, 1), step), 1)
    strides = {} if step == 1 else {"strides": (step,)}
    parts = [
        call("strided_slice", self, axes=(axis,), begin=(i,), end=(dims.add(reach, i),), **strides) for i in range(size)
    ]
    return stacked(parts, rank, rank)


REPEATING = [
    Op(
        "broadcast_to",
        axes=broadcast_axes,
        moves=broadcast_moves,
        attrs={"shape": ()},
        sized={"shape": "output"},
        symbolic=("shape",),
        new=lambda b, known: {f"b{i}": d for i, d in enumerate(b["shape"])},
        aten={
            "expand.default": expand_from_aten,
            "broadcast_to.default": expand_from_aten,
            "expand_as.default": lambda self, other: broadcast(self, self.shape, other.shape),
        },
        from_onnx={"Expand": expand_from_onnx},
        from_relax={"broadcast_to": lambda n: broadcast(n.tensor(0), n.tensor(0).shape, n.dims(1))},
        torch=lambda b: call("torch.broadcast_to", *b.x, sizes(b.out[0].shape)),
        onnx=lambda b: call("Expand", *b.x, size_tensor(b.out[0].shape)),
        relax=lambda b: call("broadcast_to", *b.x, sizes(b.out[0].shape)),
        msc="broadcast_to",
    ),
    Op(
        "tile",
        axes=tile_axes,
        attrs={"repeats": ()},
        symbolic=("repeats",),
        new=tile_sizes,
        aten={
            "repeat.default": lambda self, repeats: tiled(self, repeats),
            "tile.default": lambda self, dims: tiled(self, dims),
        },
        from_onnx={"Tile": lambda n: tiled(n.tensor(0), n.dims(1))},
        from_relax={"tile": lambda n: tiled(n.tensor(0), n.attr("repeats"))},
        torch=lambda b: call("torch.tile", *b.x, sizes(b["repeats"])),
        onnx=lambda b: call("Tile", *b.x, size_tensor(b["repeats"])),
        relax=tile_to_relax,
        msc="tile",
    ),
    Op(
        "repeat",
        axes=repeat_axes,
        attrs={"repeats": 1, "axis": 0},
        new=lambda b, known: {"r": b["repeats"]},
        aten={"repeat_interleave.self_int": repeated},
        from_relax={"repeat": lambda n: repeated(n.tensor(0), n.attr("repeats"), n.attr("axis"))},
        torch=lambda b: call("torch.repeat_interleave", *b.x, b["repeats"], dim=b["axis"]),
        onnx=derived(repeat_steps, "onnx"),
        relax=lambda b: call("repeat", *b.x, b["repeats"], axis=b["axis"]),
        msc="repeat",
    ),
    Op(
        "flip",
        axes=lambda b: relettered(len(b.input(0).shape), positive(b["axes"], len(b.input(0).shape))),
        attrs={"axes": ()},
        new=lambda b, known: {f"b{i}": d for i, d in enumerate(b.input(0).shape)},
        moves=flip_moves,
        aten={
            "flip.default": flipped,
            "fliplr.default": lambda self: flipped(self, (1,)),
            "flipud.default": lambda self: flipped(self, (0,)),
        },
        from_onnx={"ReverseSequence": reverse_from_onnx},
        from_relax={
            "flip": lambda n: flipped(n.tensor(0), (n.attr("axis"),)),
            "reverse_sequence": reverse_from_onnx,
        },
        torch=lambda b: call("torch.flip", *b.x, positive(b["axes"], len(b.input(0).shape))),
        onnx=flip_to_onnx,
        relax=flip_to_relax,
    ),
    triangle("tril", upper=False),
    triangle("triu", upper=True),
]
MOVED: dict[str, Any] = {
    "roll.default": rolled,
    "rot90.default": quarter_turns,
    "unfold.default": windows,
    **overloads("diagonal.default linalg_diagonal.default", diagonal),
}
