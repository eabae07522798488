"""Restore accuracy without training: least-squares weights for the kept inputs, then batch-norm re-estimation."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np

from msc_core.channels import Channels
from msc_core.ir import Array, MSCGraph
from msc_core.tools.prune.statistics import Layer, Statistics
from msc_core.tools.prune.surgery import kept_positions, prune

NEUTRAL = {"batch_norm": {"momentum": 1.0}, "dropout": {"p": 0.0}}


def recover(graph: MSCGraph, kept: Mapping[str, Iterable[int]], channels: Channels, statistics: Statistics) -> MSCGraph:
    """`prune`, with each reading layer's weights re-solved so that its output stays as close as it can.

    For a layer with weight W over columns X, of which S are kept,
    W' = argmin ||W X - W' X_S||^2 + ridge ||W' - W_S||^2, solved in closed form from the Gram matrix (after
    He et al. 2017). A layer whose inputs are all kept is unchanged.
    """
    pruned = prune(graph, kept, channels)
    dropped = channels.dropped(kept)
    weights = dict(pruned.weights)
    for layer in statistics.layers.values():
        rows, inputs, *_ = kept_positions(layer.weight, graph.weights[layer.weight].shape, channels, dropped)
        if len(inputs) < graph.weights[layer.weight].shape[1]:
            key = layer.name, inputs.tobytes()
            if key not in statistics.solutions:
                statistics.solutions[key] = _solve(graph, layer, inputs)
            shapes = {layer.weight: (len(rows), len(inputs), *pruned.weights[layer.weight].shape[2:])}
            for name, solved in statistics.solutions[key].items():
                weights[name] = solved[rows].reshape(shapes.get(name, len(rows)))
    return pruned.replace(weights=weights)


def reestimate_batch_norm(graph: MSCGraph, x: Array) -> MSCGraph:
    """The graph with every batch norm's running statistics replaced by those of the batch `x` (n, ...) float32."""
    import torch

    from msc_core.codegen.torch import from_module, to_torch

    if not any(node.op == "batch_norm" for node in graph.nodes):
        return graph
    nodes = tuple(
        dataclasses.replace(n, attrs={**n.attrs, **NEUTRAL[n.op]}) if n.op in NEUTRAL else n for n in graph.nodes
    )
    module = to_torch(graph.replace(nodes=nodes)).train()
    with torch.no_grad():
        module(torch.from_numpy(x))
    return from_module(graph, module)


def _solve(graph: MSCGraph, layer: Layer, inputs: Array) -> dict[str, Array]:
    """New weight (outputs, columns kept) and bias (outputs,) of one layer that keeps the input positions `inputs`."""
    weight = graph.weights[layer.weight]
    matrix = weight.astype(np.float64).reshape(layer.groups, weight.shape[0] // layer.groups, -1)
    columns = (inputs[:, None] * layer.kernel + np.arange(layer.kernel)).ravel()
    ridge = layer.ridge[:, None, None]
    system = layer.moments[:, columns[:, None], columns] + ridge * np.eye(len(columns))
    target = layer.moments[:, columns] @ np.swapaxes(matrix, 1, 2) + ridge * np.swapaxes(matrix[:, :, columns], 1, 2)
    solved = np.swapaxes(np.linalg.solve(system, target), 1, 2)
    new = {layer.weight: solved.reshape(weight.shape[0], -1).astype(weight.dtype)}
    if layer.bias:
        mean = layer.gram[:, :-1, -1]
        shift = np.einsum("god,gd->go", matrix, mean) - np.einsum("god,gd->go", solved, mean[:, columns])
        bias = graph.weights[layer.bias]
        new[layer.bias] = (bias + shift.ravel()).astype(bias.dtype)
    return new
