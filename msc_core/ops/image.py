"""Operators that rearrange or sample spatial axes: padding, pixel shuffling, windows as columns, sampling on a grid."""

from __future__ import annotations

from typing import Any

import numpy as np

from msc_core import dims
from msc_core.dims import Dim
from msc_core.errors import UnsupportedOperator
from msc_core.exchange import numpy_dtype
from msc_core.ir import Array, Tensor
from msc_core.ops.derived import derived
from msc_core.ops.op import Bound, Call, Moves, Op, Shape, Source, call, size_tensor, sizes
from msc_core.ops.signature import Sizes
from msc_core.ops.window import torch_pairs

MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}  # ours: NumPy's, ONNX's


# Padding


def pad_axes(b: Bound) -> str:
    """Axes that are padded come out as new ones."""
    rank = len(b.input(0).shape)
    padding = b["padding"]
    out = [f"P{i}" if padding[i] or padding[i + rank] else f"a{i}" for i in range(rank)]
    return f"{' '.join(f'a{i}' for i in range(rank))} -> {' '.join(out)}"


def pad_size(b: Bound, known: Sizes) -> Sizes:
    """The sizes of the axes that are padded."""
    shape, padding = b.input(0).shape, b["padding"]
    return {f"P{i}": dims.add(size, padding[i], padding[i + len(shape)]) for i, size in enumerate(shape)}


def pad_moves(b: Bound, value: Any) -> Moves:
    """Positions of a constant around those of the axis; in other modes they are copies, which pruning would change."""
    shape, padding = b.input(0).shape, b["padding"]
    found: Moves = {}
    for i, size in enumerate(shape):
        before, after = padding[i], padding[i + len(shape)]
        if b["mode"] == "constant" and all(isinstance(d, int) and d >= 0 for d in (size, before, after)):
            index = np.pad(np.arange(int(size)), (before, after), constant_values=-1)
            found = {**found, f"P{i}": ((f"a{i}", index),)}
    return found


def pad_from_aten(self: Tensor, pad: Any, mode: str = "constant", value: float | None = None) -> Any:
    """`aten.pad`, which says (begin, end) of the last axis first."""
    rank = len(self.shape)
    begins, ends = [0] * rank, [0] * rank
    for i in range(len(pad) // 2):
        begins[rank - 1 - i], ends[rank - 1 - i] = pad[2 * i], pad[2 * i + 1]
    return _pad(self, (*begins, *ends), mode, 0 if value is None else value)


def _pad(x: Tensor, padding: tuple[Dim, ...], mode: str, value: Any = 0) -> Any:
    if not any(padding):
        return x
    if mode != "constant":
        rank = len(x.shape)
        for i, size in enumerate(x.shape):
            low, high = (p if isinstance(p, int) else 0 for p in (padding[i], padding[i + rank]))
            if min(low, high) < 0 < max(low, high):
                raise UnsupportedOperator(f"pad of ({low}, {high}) in mode {mode!r}: begin and end differ in sign")
            if mode == "reflect" and isinstance(size, int) and max(low, high) >= size > 1:
                raise UnsupportedOperator(f"pad of ({low}, {high}) in mode 'reflect' of an axis of size {size}")
    return call("pad", x, padding=padding, mode=mode, value=float(value))


def pad_from_onnx(n: Source) -> Any:
    """`Pad` of opset 11 and later, perhaps on some axes only."""
    x = n.tensor(0)
    rank = len(x.shape)
    given = n.dims(1)
    axes = [int(a) % rank for a in n.constant(3, np.arange(rank)).tolist()]
    begins: list[Dim] = [0] * rank
    ends: list[Dim] = [0] * rank
    for i, axis in enumerate(axes):
        begins[axis], ends[axis] = given[i], given[i + len(axes)]
    ours = {theirs: mode for mode, theirs in MODES.items()}
    value = np.ravel(n.constant(2, 0))
    return _pad(x, (*begins, *ends), ours[n.attr("mode", "constant")], value[0] if value.size else 0)


def pad_from_relax(n: Source) -> Any:
    """`nn.pad`, which says (begin, end) of the first axis first."""
    widths = tuple(n.attr("pad_width"))
    value = n.attr("pad_value", 0.0)
    return _pad(n.tensor(0), (*widths[::2], *widths[1::2]), n.attr("pad_mode", "constant"), value)


def pad_to_torch(b: Bound) -> Any:
    """`F.pad`, where it knows the mode on these axes."""
    x, padding, mode = b.input(0), b["padding"], b["mode"]
    rank = len(x.shape)
    touched = [i for i in range(rank) if padding[i] or padding[i + rank]]
    first = touched[0]
    spatial = rank - first
    if mode == "constant":
        return call("F.pad", x, torch_pairs(sizes((*padding[first:rank], *padding[rank + first :]))), value=_value(b))
    inside = all(isinstance(p, int) and p >= 0 for p in padding)
    if spatial <= 3 and rank in (spatial + 1, spatial + 2) and inside and b.input(0).dtype.startswith("float"):
        return call("F.pad", x, torch_pairs((*padding[first:rank], *padding[rank + first :])), mode=mode)
    return gathered(b, lambda value, axis, index: call("torch.index_select", value, axis, index))


def pad_to_onnx(b: Bound) -> Any:
    """`Pad`; wrapping around, which it knows from opset 19 on only, is a `Concat` of slices."""
    x, padding, mode = b.input(0), b["padding"], b["mode"]
    if mode == "circular":
        return derived(wrapped, "onnx")(b)
    value = np.asarray(_value(b)).astype(numpy_dtype(x.dtype)) if mode == "constant" and b["value"] else None
    return call("Pad", x, size_tensor(padding), value, mode=MODES[mode])


def pad_to_relax(b: Bound) -> Any:
    """`nn.pad` of what is left after the cuts, by value; other modes by index or as a `concat` of slices."""
    x, padding, mode = b.input(0), b["padding"], b["mode"]
    rank = len(x.shape)
    if mode == "circular":
        return derived(wrapped, "relax")(b)
    if mode != "constant":
        return gathered(b, lambda value, axis, index: call("take", value, index, axis=axis))
    cut = [i for i in range(rank) if any(isinstance(p, int) and p < 0 for p in (padding[i], padding[i + rank]))]
    value: Any = x
    if cut:
        begins = tuple(max(0, -padding[i]) for i in cut)
        ends = sizes(dims.sub(x.shape[i], max(0, -padding[i + rank])) for i in cut)
        value = call("strided_slice", x, tuple(cut), begins, ends)
    widths = tuple(
        side if not isinstance(side, int) else max(0, side)
        for i in range(rank)
        for side in (padding[i], padding[i + rank])
    )
    return call("nn.pad", value, sizes(widths), "constant", _value(b)) if any(widths) else value


def _value(b: Bound) -> Any:
    kind = b.input(0).dtype
    return (
        b["value"] if kind.startswith(("float", "bfloat")) else bool(b["value"]) if kind == "bool" else int(b["value"])
    )


def gathered(b: Bound, take: Any) -> Any:
    """Padding that repeats positions, as one `take` of constant positions for each axis."""
    value: Any = b.input(0)
    rank = len(value.shape)
    for axis, size in enumerate(b.input(0).shape):
        low, high = b["padding"][axis], b["padding"][axis + rank]
        if low or high:
            if not all(isinstance(d, int) for d in (size, low, high)):
                raise UnsupportedOperator(f"{b}: mode {b['mode']!r} on an axis of size {size}")
            value = take(value, axis, positions(int(size), low, high, b["mode"]))
    return value


def positions(size: int, low: int, high: int, mode: str) -> Array:
    """The positions that a padded axis shows.

    >>> positions(3, 1, 2, "reflect").tolist(), positions(3, -1, 0, "replicate").tolist()
    ([1, 0, 1, 2, 1, 0], [1, 2])
    """
    inner = np.arange(size, dtype=np.int64)[max(0, -low) : size - max(0, -high)]
    pad: Any = np.pad
    return np.asarray(pad(inner, (max(0, low), max(0, high)), mode=MODES[mode]))


def wrapped(b: Bound) -> Any:
    """Wrapping around what is left after the cuts: its end, all of it, its begin."""
    value: Any = b.input(0)
    rank = len(value.shape)
    for axis, size in enumerate(b.input(0).shape):
        low, high = b["padding"][axis], b["padding"][axis + rank]
        begin, end = max(0, -low), dims.sub(size, max(0, -high))
        if isinstance(end, int) and max(low, high) > end - begin:
            raise UnsupportedOperator(f"{b}: wraps around more than once on an axis of size {size}")
        parts = [(dims.sub(end, low), end)] if low > 0 else []
        parts += [(begin, end), *([(begin, begin + high)] if high > 0 else [])]
        if parts != [(0, size)]:
            pieces = [cut(value, axis, *part) if part != (0, size) else value for part in parts]
            value = call("concat", *pieces, axis=axis) if len(pieces) > 1 else pieces[0]
    return value


def cut(value: Any, axis: int, begin: Dim, end: Dim) -> Call:
    """The positions from `begin` to `end` of an axis."""
    return call("strided_slice", value, axes=(axis,), begin=(begin,), end=(end,))


# Pixel shuffling and windows as columns


def shuffled(b: Bound) -> Call:
    """`pixel_shuffle` by a reshape, a transposition and a reshape."""
    return _moved(b, b.input(0).shape, b["factor"], b.out[0].shape)


def _moved(b: Bound, shape: Shape, factor: int, out: Shape) -> Call:
    *batch, channels, height, width = shape
    k = len(batch)
    parts = (*batch, dims.floordiv(channels, factor * factor), factor, factor, height, width)
    order = (*range(k + 1), k + 3, k + 1, k + 4, k + 2)
    return call("reshape", call("permute_dims", call("reshape", b.x[0], shape=parts), axes=order), shape=out)


def unshuffled(b: Bound) -> Call:
    """`pixel_unshuffle` by a reshape, a transposition and a reshape."""
    *batch, channels, height, width = b.input(0).shape
    k, factor = len(batch), b["factor"]
    parts = (*batch, channels, dims.floordiv(height, factor), factor, dims.floordiv(width, factor), factor)
    order = (*range(k + 1), k + 2, k + 4, k + 1, k + 3)
    return call("reshape", call("permute_dims", call("reshape", b.x[0], shape=parts), axes=order), shape=b.out[0].shape)


def shuffle_size(b: Bound, known: Sizes) -> Sizes:
    """The spatial sizes, times the factor."""
    height, width = b.input(0).shape[-2:]
    return {"H": dims.mul(height, b["factor"]), "W": dims.mul(width, b["factor"])}


def depth_to_space_from_onnx(n: Source) -> Call:
    """`DepthToSpace`: `pixel_shuffle` in mode CRD; in mode DCR the factors come first among the channels."""
    x, factor = n.tensor(0), n.attr("blocksize")
    if n.attr("mode", "DCR") == "CRD":
        return call("pixel_shuffle", x, factor=factor)
    batch, channels, height, width = x.shape
    rest = dims.floordiv(channels, factor * factor)
    parts = call("reshape", x, shape=(batch, factor, factor, rest, height, width))
    shape = (batch, rest, dims.mul(height, factor), dims.mul(width, factor))
    return call("reshape", call("permute_dims", parts, axes=(0, 3, 4, 1, 5, 2)), shape=shape)


def space_to_depth_from_onnx(n: Source) -> Call:
    """`SpaceToDepth`: the factors come first among the channels, in mode CRD last."""
    x, factor = n.tensor(0), n.attr("blocksize")
    batch, channels, height, width = x.shape
    height, width = dims.floordiv(height, factor), dims.floordiv(width, factor)
    parts = call("reshape", x, shape=(batch, channels, height, factor, width, factor))
    shape = (batch, dims.mul(channels, factor, factor), height, width)
    order = (0, 1, 3, 5, 2, 4) if n.attr("mode", "DCR") == "CRD" else (0, 3, 5, 1, 2, 4)
    return call("reshape", call("permute_dims", parts, axes=order), shape=shape)


def channel_shuffle_from_aten(self: Tensor, groups: int) -> Call:
    """`channel_shuffle`: the groups of channels are interleaved."""
    batch, channels, *rest = self.shape
    parts = call("reshape", self, shape=(batch, groups, dims.floordiv(channels, groups), *rest))
    order = (0, 2, 1, *range(3, len(rest) + 3))
    return call("reshape", call("permute_dims", parts, axes=order), shape=self.shape)


IMAGE: list[Op] = [
    Op(
        "pad",
        axes=pad_axes,
        moves=pad_moves,
        attrs={"padding": (), "mode": "constant", "value": 0.0},
        symbolic=("padding",),
        new=pad_size,
        aten={
            "pad.default": pad_from_aten,
            "constant_pad_nd.default": lambda self, pad, value=0: pad_from_aten(self, pad, "constant", value),
            "_pad_circular.default": lambda self, pad: pad_from_aten(self, pad, "circular"),
            **{
                f"reflection_pad{r}d.default": lambda self, padding: pad_from_aten(self, padding, "reflect")
                for r in (1, 2, 3)
            },
            **{
                f"replication_pad{r}d.default": lambda self, padding: pad_from_aten(self, padding, "replicate")
                for r in (1, 2, 3)
            },
        },
        from_onnx={"Pad": pad_from_onnx},
        from_relax={"nn.pad": pad_from_relax},
        torch=pad_to_torch,
        onnx=pad_to_onnx,
        relax=pad_to_relax,
        msc="nn.pad",
    ),
    Op(
        "pixel_shuffle",
        axes="... (c r s) h w -> ... c H W",
        attrs={"factor": 1},
        sized={"factor": "r s"},
        new=shuffle_size,
        aten={
            "pixel_shuffle.default": lambda self, upscale_factor: call("pixel_shuffle", self, factor=upscale_factor),
            "channel_shuffle.default": channel_shuffle_from_aten,
            "native_channel_shuffle.default": channel_shuffle_from_aten,
        },
        from_onnx={"DepthToSpace": depth_to_space_from_onnx, "SpaceToDepth": space_to_depth_from_onnx},
        from_relax={"nn.pixel_shuffle": lambda n: call("pixel_shuffle", n.tensor(0), factor=n.attr("upscale_factor"))},
        torch=lambda b: call("F.pixel_shuffle", *b.x, b["factor"]),
        onnx=lambda b: (
            call("DepthToSpace", *b.x, blocksize=b["factor"], mode="CRD")
            if len(b.input(0).shape) == 4
            else derived(shuffled, "onnx")(b)
        ),
        relax=derived(shuffled, "relax"),
    ),
    Op(
        "pixel_unshuffle",
        axes="... c (h r) (w s) -> ... (c r s) h w",
        attrs={"factor": 1},
        sized={"factor": "r s"},
        aten={
            "pixel_unshuffle.default": lambda self, downscale_factor: call(
                "pixel_unshuffle", self, factor=downscale_factor
            )
        },
        torch=lambda b: call("F.pixel_unshuffle", *b.x, b["factor"]),
        onnx=derived(unshuffled, "onnx"),
        relax=derived(unshuffled, "relax"),
    ),
]
