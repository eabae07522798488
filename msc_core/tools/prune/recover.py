"""Restore accuracy without training, in one shot: least-squares weights for the kept inputs, all layers at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from msc_core.channels import Channels
from msc_core.ir import Array, MSCGraph
from msc_core.tools.prune.product import Product
from msc_core.tools.prune.statistics import Layer, Statistics
from msc_core.tools.prune.surgery import kept_positions, prune


def recover(graph: MSCGraph, kept: Mapping[str, Iterable[int]], channels: Channels, statistics: Statistics) -> MSCGraph:
    """`prune`, with each reading layer's weights re-solved so that its output stays as close as it can.

    For a layer with weight W over columns X, of which S are kept,
    W' = argmin ||W X - W' X_S||^2 + ridge ||W' - W_S||^2, solved in closed form from the Gram matrix (after
    He et al. 2017). A layer whose inputs are all kept, or that has no statistics, is sliced.
    """
    pruned = prune(graph, kept, channels)
    dropped = channels.dropped(kept)
    weights = dict(pruned.weights)
    for name, layer in statistics.layers.items():
        grid = surviving(graph, layer.product, channels, dropped)
        if grid is None or grid[2].all():
            continue
        groups, outputs, inputs = grid
        key = name, inputs.tobytes()
        if key not in statistics.solutions:
            statistics.solutions[key] = _solve(layer, graph.weights[layer.product.weight], inputs)
        solved = statistics.solutions[key][groups][:, outputs]
        weights[layer.product.weight] = layer.product.restore(solved[:, :, :-1]).astype(np.float32)
        if bias := layer.product.bias:
            weights[bias] = (pruned.weights[bias] + solved[:, :, -1].ravel()).astype(np.float32)
    return pruned.replace(weights=weights)


def surviving(graph: MSCGraph, layer: Product, channels: Channels, dropped: Array) -> tuple[Array, Array, Array] | None:
    """Masks of a layer's groups, outputs and inputs that remain; `None` if what remains is no grid of these."""
    shape = graph.weights[layer.weight].shape
    return layer.kept(shape, kept_positions(layer.weight, shape, channels, dropped))


def _solve(layer: Layer, weight: Array, inputs: Array) -> Array:
    """(groups, outputs, kept columns + 1): the new matrix for the kept inputs, and by how much the bias changes."""
    matrix = layer.product.matrix(weight)
    columns = np.flatnonzero(np.repeat(inputs, layer.product.shape[3]))
    ridge = layer.ridge[:, None, None]
    system = layer.moments[:, columns[:, None], columns] + ridge * np.eye(len(columns))
    target = layer.moments[:, columns] @ np.swapaxes(matrix, 1, 2) + ridge * np.swapaxes(matrix[:, :, columns], 1, 2)
    solved = np.swapaxes(np.linalg.solve(system, target), 1, 2)
    mean = layer.gram[:, :-1, -1:]
    return np.concatenate([solved, matrix @ mean - solved @ mean[:, columns]], axis=2)
