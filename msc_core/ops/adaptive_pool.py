"""Pooling to a given size: window i of n goes from floor(i * size / n) to ceil((i + 1) * size / n)."""

from __future__ import annotations

from typing import Any

import numpy as np

from msc_core.dims import Dim
from msc_core.errors import UnsupportedOperator
from msc_core.ir import Tensor
from msc_core.ops.derived import derived
from msc_core.ops.op import Bound, Call, Op, Source, call, sizes
from msc_core.ops.pool import axes
from msc_core.ops.separable import along
from msc_core.ops.signature import Sizes
from msc_core.ops.window import AXES, RANKS, batched, relax_layout


def output_size(b: Bound, known: Sizes) -> Sizes:
    """The sizes that the attribute says."""
    return dict(zip(AXES[len(b["size"])].upper().split(), b["size"], strict=True))


def steps(b: Bound) -> tuple[int, ...] | None:
    """The size of the windows, if all of them have the same and none overlap."""
    pairs = list(zip(b.input(0).shape[2:], b["size"], strict=True))
    if any(isinstance(size, str) or isinstance(out, str) or size % out for size, out in pairs):
        return None
    return tuple(int(size) // int(out) for size, out in pairs)


def windows(b: Bound) -> list[list[tuple[int, int]]]:
    """Where the windows begin and end, for each axis."""
    found = []
    for size, out in zip(b.input(0).shape[2:], b["size"], strict=True):
        if isinstance(size, str) or isinstance(out, str):
            raise UnsupportedOperator(f"{b}: pools an axis of size {size} to {out}")
        found.append([(i * size // out, -(-(i + 1) * size // out)) for i in range(out)])
    return found


def importer(name: str, rank: int, *, indices: bool = False) -> Any:
    """The importer of ATen's adaptive pools; those of the maximum return the positions too."""

    def from_aten(self: Tensor, output_size: Any) -> Any:
        values = (output_size,) if isinstance(output_size, (int, str)) else tuple(output_size)
        size = values * rank if len(values) == 1 else values

        def build(x: Any) -> Any:
            y = call(f"{name}{rank}d", x, size=size)
            return (y, call(f"{name}{rank}d_indices", x, size=size)) if indices else y

        return batched(self, rank, build)

    return from_aten


def global_from_onnx(name: str, reduction: str) -> Any:
    """The importer of `GlobalAveragePool` and `GlobalMaxPool`."""

    def from_onnx(n: Source) -> Call:
        rank = len(n.tensor(0).shape) - 2
        if rank not in RANKS:
            return call(reduction, n.tensor(0), axes=tuple(range(2, rank + 2)), keepdims=True)
        return call(f"{name}{rank}d", n.tensor(0), size=(1,) * rank)

    return from_onnx


def avg_from_relax(rank: int) -> Any:
    """The importer of `nn.adaptive_avg_pool2d` and the like."""

    def from_relax(n: Source) -> Call:
        relax_layout(n, rank)
        given = n.attr("output_size")
        values: tuple[Dim, ...] = n.tensor(0).shape[2:] if given is None else tuple(given)
        return call(f"adaptive_avg_pool{rank}d", n.tensor(0), size=values * rank if len(values) == 1 else values)

    return from_relax


def avg_steps(b: Bound) -> Any:
    """An average along one axis after the other, each a product with a matrix."""
    x: Any = b.input(0)
    rank = len(b.input(0).shape)
    for i, found in enumerate(windows(b)):
        matrix = np.zeros((len(found), int(b.input(0).shape[2 + i])), b.input(0).dtype)
        for row, (begin, end) in zip(matrix, found, strict=True):
            row[begin:end] = 1 / (end - begin)
        x = along(x, rank, 2 + i, matrix)
    return x


def max_steps(b: Bound) -> Any:
    """A maximum along one axis after the other, each a `concat` of the maxima of slices."""
    x: Any = b.input(0)
    for i, found in enumerate(windows(b)):
        axis = 2 + i
        parts = [
            call("max", call("strided_slice", x, axes=(axis,), begin=(begin,), end=(end,)), axes=(axis,), keepdims=True)
            for begin, end in found
        ]
        x = call("concat", *parts, axis=axis) if len(parts) > 1 else parts[0]
    return x


def all_max(b: Bound) -> Call:
    """The maximum of each channel."""
    return call("max", b.x[0], axes=tuple(range(2, len(b.input(0).shape))), keepdims=True)


def avg_to_onnx(b: Bound) -> Any:
    """`GlobalAveragePool`, `AveragePool` where the output size divides the input's, or products with matrices."""
    if set(b["size"]) == {1}:
        return call("GlobalAveragePool", *b.x)
    kernel = steps(b)
    return call("AveragePool", *b.x, kernel_shape=kernel, strides=kernel) if kernel else derived(avg_steps, "onnx")(b)


def max_to_onnx(b: Bound) -> Any:
    """`GlobalMaxPool`, `MaxPool` where the output size divides the input's, or maxima of slices."""
    if set(b["size"]) == {1}:
        return call("GlobalMaxPool", *b.x)
    kernel = steps(b)
    return call("MaxPool", *b.x, kernel_shape=kernel, strides=kernel) if kernel else derived(max_steps, "onnx")(b)


def max_to_relax(b: Bound) -> Any:
    """`max` over everything, `nn.max_pool2d` where the output size divides the input's, or maxima of slices."""
    if set(b["size"]) == {1}:
        return derived(all_max, "relax")(b)
    kernel = steps(b)
    if kernel is None:
        return derived(max_steps, "relax")(b)
    return call(f"nn.max_pool{len(kernel)}d", *b.x, pool_size=kernel, strides=kernel)


def pooled_indices(b: Bound) -> Call:
    """The positions by a `max_pool`, where the output size divides the input's."""
    kernel = steps(b)
    if kernel is None:
        raise UnsupportedOperator(f"{b}: positions of maxima where {b['size']} does not divide {b.input(0).shape[2:]}")
    return call(f"max_pool{len(kernel)}d_indices", b.x[0], kernel=kernel, stride=kernel)


def row(name: str, rank: int, suffix: str = "", **words: Any) -> Op:
    """A row of pooling to a size."""
    return Op(
        f"{name}{rank}d{suffix}",
        axes=axes(rank),
        attrs={"size": (1,) * rank},
        symbolic=("size",),
        new=output_size,
        **words,
    )


def avg_row(rank: int) -> Op:
    """The row of an adaptive average."""
    aten = importer("adaptive_avg_pool", rank)
    return row(
        "adaptive_avg_pool",
        rank,
        aten={f"{prefix}adaptive_avg_pool{rank}d.default": aten for prefix in ("", "_")},
        from_onnx={"GlobalAveragePool": global_from_onnx("adaptive_avg_pool", "mean")} if rank == 2 else {},
        from_relax={f"nn.adaptive_avg_pool{rank}d": avg_from_relax(rank)},
        torch=lambda b: call(f"F.adaptive_avg_pool{rank}d", *b.x, sizes(b["size"])),
        onnx=avg_to_onnx,
        relax=lambda b: call(f"nn.adaptive_avg_pool{rank}d", *b.x, output_size=sizes(b["size"])),
        msc="nn.adaptive_avg_pool2d" if rank == 2 else "",
    )


def max_row(rank: int) -> Op:
    """The row of an adaptive maximum."""
    return row(
        "adaptive_max_pool",
        rank,
        aten={f"adaptive_max_pool{rank}d.default": importer("adaptive_max_pool", rank, indices=True)},
        from_onnx={"GlobalMaxPool": global_from_onnx("adaptive_max_pool", "max")} if rank == 2 else {},
        torch=lambda b: call(f"F.adaptive_max_pool{rank}d", *b.x, sizes(b["size"])),
        onnx=max_to_onnx,
        relax=max_to_relax,
    )


def indices_row(rank: int) -> Op:
    """The row of the positions (in the plane of a channel) of an adaptive maximum."""
    return row(
        "adaptive_max_pool",
        rank,
        "_indices",
        dtype="int64",
        torch=lambda b: call(
            "item", call(f"F.adaptive_max_pool{rank}d", *b.x, sizes(b["size"]), return_indices=True), 1
        ),
        onnx=derived(pooled_indices, "onnx"),
        relax=derived(pooled_indices, "relax"),
    )


ADAPTIVE_POOL = [*map(avg_row, RANKS), *map(max_row, RANKS), *map(indices_row, RANKS)]
