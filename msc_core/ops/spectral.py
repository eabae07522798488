"""Fourier transforms of axes of known size, as products with matrices of cosines and sines."""

from __future__ import annotations

from typing import Any

import numpy as np

from msc_core.errors import UnsupportedOperator
from msc_core.ir import Array, Tensor
from msc_core.ops.op import Call, Source, call
from msc_core.ops.separable import along


def waves(count: int, length: int, bins: int, dtype: str) -> tuple[Array, Array]:
    """Cosines and sines of [bin, element] for a transform of `length`; elements past it weigh nothing."""
    k, i = np.arange(bins)[:, None], np.arange(count)[None]
    angle = 2 * np.pi * (k * i % length) / length
    inside = i < length
    return (np.cos(angle) * inside).astype(dtype), (np.sin(angle) * inside).astype(dtype)


def part(x: Any, index: int) -> Call:
    """The real (0) or imaginary (1) part, which the last axis holds."""
    return call("take", x, np.asarray(index), axis=-1)


def pair(real: Any, imaginary: Any) -> Call:
    """Both parts along a new last axis."""
    return call("concat", *(call("expand_dims", x, axes=(-1,)) for x in (real, imaginary)), axis=-1)


def forward(real: Any, imaginary: Any, rank: int, axis: int, size: tuple[int, int], bins: int, dtype: str) -> Call:
    """A transform of an axis; `size` is how many elements there are, and the length of the transform."""
    cos, sin = waves(*size, bins, dtype)
    found = along(real, rank, axis, cos), along(real, rank, axis, -sin)
    if imaginary is not None:
        found = (
            call("add", found[0], along(imaginary, rank, axis, sin)),
            call("add", found[1], along(imaginary, rank, axis, cos)),
        )
    return pair(*found)


def dft_from_onnx(n: Source) -> Any:
    """`DFT`: of real or complex data, in both directions, whole or the half that real data needs."""
    x = n.tensor(0)
    rank = len(x.shape) - 1
    default = 1 if n.version < 20 else -2
    given = n.attr("axis", default) if n.version < 20 else int(n.constant(2, np.asarray(default)).item())
    axis = given % (rank + 1)
    count, inverse, half = x.shape[axis], bool(n.attr("inverse", 0)), bool(n.attr("onesided", 0))
    if isinstance(count, str) or axis == rank:
        raise UnsupportedOperator(f"DFT of axis {given} of {list(x.shape)}")
    usual = (count - 1) * 2 if inverse and half else count
    length = int(n.constant(1, np.asarray(usual)).item())
    real, imaginary = part(x, 0), part(x, 1) if x.shape[-1] == 2 else None
    bins = length // 2 + 1 if half and not inverse else length
    if not inverse:
        return forward(real, imaginary, rank, axis, (count, length), bins, x.dtype)
    if not half:  # the inverse of z is the conjugate of the transform of its conjugate
        conjugate = None if imaginary is None else call("negative", imaginary)
        found = forward(real, conjugate, rank, axis, (count, length), bins, x.dtype)
        return call("multiply", found, np.asarray([1 / length, -1 / length], x.dtype))
    if imaginary is None:
        raise UnsupportedOperator("DFT back to real data from data without an imaginary part")
    cos, sin = waves(count, length, length, "float64")
    k = np.arange(count)
    weight = np.where((k == 0) | (2 * k == length), 1, 2) * (2 * k <= length) / length
    parts = (
        along(real, rank, axis, (cos * weight).astype(x.dtype)),
        along(imaginary, rank, axis, (sin * weight).astype(x.dtype)),
    )
    return call("expand_dims", call("subtract", *parts), axes=(-1,))


def stft_from_onnx(n: Source) -> Any:
    """`STFT`: the transforms of windows of real data."""
    x, step, window = n.tensor(0), int(n.constant(1).item()), n.get(2)
    count = x.shape[1]
    if isinstance(count, str) or x.shape[-1] != 1:
        raise UnsupportedOperator(f"STFT of {list(x.shape)}")
    usual = window.shape[0] if isinstance(window, Tensor) else count
    length = int(n.constant(3, np.asarray(usual)).item())
    starts = np.arange((count - length) // step + 1) * step
    frames: Any = call("take", part(x, 0), starts[:, None] + np.arange(length), axis=1)
    frames = frames if window is None else call("multiply", frames, window)
    bins = length // 2 + 1 if n.attr("onesided", 1) else length
    return forward(frames, None, 3, 2, (length, length), bins, x.dtype)
