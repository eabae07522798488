"""Scales of weights: by the largest values, or by the least squared error of what the integers stand for."""

from __future__ import annotations

import numpy as np

from msc_core.errors import InvalidPlan
from msc_core.ir import Array
from msc_core.plan import Quantized
from msc_core.tools.quantize.observers import limits
from msc_core.tools.quantize.precision import Precision

FRACTIONS = np.linspace(0.4, 1.0, 49)  # of the range of the values, tried by "mse"


def weight_scales(weight: Array, axis: int, precision: Precision, layer: str = "") -> Quantized:
    """Scales for a float32 weight whose output channels are on `axis`: for each of them, each block, or all.

    The integers span the values of their part, or with method "mse" the fraction of that range with the least error;
    the range is symmetric about zero, or has a zero point. Raises `InvalidPlan`, naming the layer, where blocks do not
    divide a row.
    """
    axis %= weight.ndim
    rows = _rows(weight, axis, precision, layer)
    whole = precision.block or precision.per_channel
    low, high = np.minimum(rows.min(axis=1), 0), np.maximum(rows.max(axis=1), 0)
    if precision.symmetric:
        high = np.maximum(-low, high)
        low = -high
    fraction = np.ones(len(rows))
    if precision.method == "mse":
        errors = [_error(rows, *_parameters(low * f, high * f, precision), precision.weights) for f in FRACTIONS[::-1]]
        fraction = FRACTIONS[::-1][np.argmin(errors, axis=0)]
    scale, zero = _parameters(low * fraction, high * fraction, precision)
    return Quantized(
        precision.weights, tuple(scale.tolist()), tuple(zero.tolist()), axis=axis if whole else None,
        block=precision.block, rounding=precision.rounding,
    )  # fmt: skip


def _rows(weight: Array, axis: int, precision: Precision, layer: str) -> Array:
    """The weight as (scales, values)."""
    if not precision.block:
        return np.moveaxis(weight, axis, 0).reshape(weight.shape[axis] if precision.per_channel else 1, -1)
    if axis != 0 or weight[0].size % precision.block:
        raise InvalidPlan(f"layer {layer!r}: blocks of {precision.block} do not divide a row of {list(weight.shape)}")
    return weight.reshape(-1, precision.block)


def _parameters(low: Array, high: Array, precision: Precision) -> tuple[Array, Array]:
    """Float32 scales and int64 zero points of ranges; the scale is 1 where there are only zeros."""
    smallest, largest = limits(precision.weights, True)
    scale = (high / largest if precision.symmetric else (high - low) / (largest - smallest)).astype(np.float32)
    scale[scale < np.finfo(np.float32).tiny] = 1
    if precision.symmetric:
        return scale, np.zeros(len(scale), np.int64)
    return scale, np.rint(smallest - low / scale).clip(smallest, largest).astype(np.int64)


def _error(rows: Array, scale: Array, zero: Array, bits: int) -> Array:
    """Squared error of each row, whose integers saturate where the range is narrower than the values."""
    step, point = scale[:, None], zero[:, None].astype(np.float32)
    restored = ((np.rint(rows / step) + point).clip(*limits(bits, True)) - point) * step
    return np.asarray(np.square(restored - rows).sum(axis=1))
