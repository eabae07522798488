"""Linear maps along single axes, each axis by itself: what resizing and adaptive pooling come down to."""

from __future__ import annotations

from typing import Any

from msc_core.ir import Array
from msc_core.ops.op import call


def along(x: Any, rank: int, axis: int, matrix: Array) -> Any:
    """`x` of that rank with a matrix (output positions, input positions) applied along one axis."""
    if axis == rank - 1:
        return call("matmul", x, matrix.T.copy())
    if axis == rank - 2:
        return call("matmul", matrix, x)
    order = list(range(rank))
    order[axis], order[-1] = order[-1], order[axis]
    moved = call("matmul", call("permute_dims", x, axes=tuple(order)), matrix.T.copy())
    return call("permute_dims", moved, axes=tuple(order))
