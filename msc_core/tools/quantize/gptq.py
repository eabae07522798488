"""GPTQ (Frantar et al. 2023): each column's rounding error is made up for in the columns after it.

What a layer's output loses is `(W - Q) H (W - Q)^T` with `H` the second moments of what it reads, the matrices that
recovery after pruning gathers too. Scales are those of the plan, so columns may be taken in any order.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from msc_core.ir import Array, MSCGraph
from msc_core.plan import Quantized
from msc_core.tools.prune.statistics import Layer, Statistics
from msc_core.tools.quantize.insert import blocked, integers

DAMPING = 0.01  # of the mean diagonal: as much of rounding to nearest as keeps the inverse tame
LAZY = 128  # columns whose errors reach the rest of the matrix at once


def round_weights(
    graph: MSCGraph, how: Mapping[str, Quantized], statistics: Statistics, centred: bool = False
) -> dict[str, Array]:
    """`{weight: integers}` of dtype `how.dtype` for the weights in `how` whose rounding is "gptq".

    `statistics` are those of `graph`, a float graph without batch norms; nothing is gathered if no weight needs it.
    With `centred` the errors' mean does not count where a layer has a bias, which `correct_bias` is then to mend. No
    row has a larger output error on the calibration data than with the nearest integers. Weights without a Gram matrix
    (see `Statistics`: tied ones, say) are left out, so nearest.
    """
    wanted = {name for name, quantized in how.items() if quantized.rounding == "gptq"}
    layers = {layer.product.weight: layer for layer in statistics.layers.values()} if wanted else {}
    return {
        name: _rounded(layer, graph.weights[name], how[name], centred)
        for name, layer in layers.items()
        if name in wanted
    }


def compensate(weight: Array, scale: Array, zero: Array, limits: tuple[int, int], hessian: Array) -> Array:
    """Integers (groups, rows, columns) for a float64 `weight` of that shape, with `scale` and `zero` of it too.

    `hessian` (groups, columns, columns) is symmetric and positive semidefinite. Columns are rounded from the largest
    diagonal to the smallest, each error spread by the Cholesky factor of the inverse.
    """
    order = np.argsort(-np.diagonal(hessian, axis1=1, axis2=2), axis=1, kind="stable")
    factor = _factor(hessian, order)
    columns = order[:, None, :]
    weight, scale, zero = (np.take_along_axis(part, columns, 2) for part in (weight, scale, zero))
    found, count = np.zeros(weight.shape), weight.shape[2]
    for start in range(0, count, LAZY):
        stop = min(start + LAZY, count)
        errors = np.zeros((*weight.shape[:2], stop - start))
        for i in range(start, stop):
            found[..., i] = (np.rint(weight[..., i] / scale[..., i]) + zero[..., i]).clip(*limits)
            error = weight[..., i] - (found[..., i] - zero[..., i]) * scale[..., i]
            errors[..., i - start] = error / factor[:, i, i, None]
            weight[..., i + 1 : stop] -= errors[..., i - start, None] * factor[:, i, None, i + 1 : stop]
        weight[..., stop:] -= errors @ factor[:, start:stop, stop:]
    result = np.zeros_like(found)
    np.put_along_axis(result, np.broadcast_to(columns, found.shape), found, 2)
    return result


def output_error(difference: Array, hessian: Array) -> Array:
    """`d H d^T` (groups, rows) for differences (groups, rows, columns): the mean squared error of each output."""
    return np.asarray(np.einsum("grc,grc->gr", difference @ hessian, difference))


def _rounded(layer: Layer, weight: Array, how: Quantized, centred: bool) -> Array:
    """The integers of one layer's weight, in its shape."""
    shaped, scale, zero = blocked(weight, how)
    parts = (weight, np.broadcast_to(scale, shaped.shape), np.broadcast_to(zero, shaped.shape), integers(weight, how))
    whole, scale, zero, nearest = (layer.product.matrix(part.reshape(weight.shape)) for part in parts)
    hessian = layer.moments if centred and layer.product.bias else layer.gram[:, :-1, :-1]
    found = compensate(whole, scale, zero, how.limits, hessian)
    errors = [output_error((part - zero) * scale - whole, hessian) for part in (found, nearest)]
    chosen = np.where((errors[0] < errors[1])[..., None], found, nearest)
    return layer.product.restore(chosen).astype(how.dtype)


def _factor(hessian: Array, order: Array) -> Array:
    """The upper `U` with `U^T U = (P H P^T + damping)^-1`, for the columns in that order."""
    damped = np.take_along_axis(np.take_along_axis(hessian, order[:, :, None], 1), order[:, None, :], 2)
    mean = np.diagonal(damped, axis1=1, axis2=2).mean(axis=1)
    damped = damped + np.eye(damped.shape[1]) * np.where(mean > 0, DAMPING * mean, 1)[:, None, None]
    return np.asarray(np.linalg.cholesky(np.linalg.inv(damped)).swapaxes(1, 2))
