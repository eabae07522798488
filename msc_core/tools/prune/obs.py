"""Structured optimal brain surgeon: channels go one after another, the other weights re-solved each time."""

from __future__ import annotations

import numpy as np

from msc_core.channels import ChannelGroup, Member
from msc_core.ir import Array, MSCGraph
from msc_core.tools.prune.statistics import Layer, Statistics


def surgeon(graph: MSCGraph, group: ChannelGroup, statistics: Statistics) -> tuple[Array, Array]:
    """An order (size,), most important first, and a loss (size + 1,): the error when the first k of it are kept.

    Structured optimal brain surgeon (Hassibi and Stork 1993; Kurtic et al. 2022): each time the channel goes whose
    removal, with the remaining weights re-solved by least squares, hurts the outputs of the reading layers least. The
    error is the sum over reading layers, each relative to its output's energy.
    """
    readers = [_Reader(graph, statistics.layers[m.node], m, group.size) for m in group.members if m.contracted]
    alive, removed, costs = np.ones(group.size, bool), [], [0.0]
    while alive.sum() > 1:
        score = np.where(alive, sum(reader.scores() for reader in readers), np.inf)
        worst = int(np.argmin(score))
        costs.append(max(0.0, float(score[worst])))
        for reader in readers:
            reader.remove(worst)
        alive[worst] = False
        removed.append(worst)
    loss = np.cumsum(costs)
    whole = max(loss[-1], float(len(readers)))  # without any channel each reader loses all of its energy
    return np.asarray([*np.flatnonzero(alive), *reversed(removed)]), np.append(loss, whole)[::-1].copy()


def matrix(graph: MSCGraph, layer: Layer) -> Array:
    """A layer's weight as (groups, outputs of a group, D) float64."""
    weight = graph.weights[layer.weight].astype(np.float64)
    return weight.reshape(layer.groups, weight.shape[0] // layer.groups, -1)


class _Reader:
    """One reading layer during the elimination: its weight and inverse Hessian, updated as channels go."""

    def __init__(self, graph: MSCGraph, layer: Layer, member: Member, size: int) -> None:
        self.weight = matrix(graph, layer)
        dim = self.weight.shape[2]
        hessian = layer.moments + layer.ridge[:, None, None] * np.eye(dim)
        self.inverse = np.linalg.inv(hessian)
        self.energy = float(np.einsum("god,gde,goe->", self.weight, hessian, self.weight)) + 1e-30
        index = np.repeat(member.index, layer.kernel)
        self.columns = [np.flatnonzero(index == channel) for channel in range(size)]
        self.gone = np.zeros(size, bool)

    def scores(self) -> Array:
        """The relative output error of removing each channel next; channels that are gone score 0."""
        score = np.zeros(len(self.columns))
        for width in {len(c) for c in self.columns} - {0}:
            channels = np.asarray([i for i, c in enumerate(self.columns) if len(c) == width and not self.gone[i]], int)
            if len(channels):
                blocks = np.stack([self.columns[i] for i in channels])
                inner = _jitter(self.inverse[:, blocks[:, :, None], blocks[:, None, :]])  # (groups, channels, b, b)
                weight = np.moveaxis(self.weight[:, :, blocks], 1, 3)  # (groups, channels, b, outputs)
                score[channels] = (weight * np.linalg.solve(inner, weight)).sum(axis=(0, 2, 3)) / self.energy
        return score

    def remove(self, channel: int) -> None:
        """Eliminate a channel's columns: the other weights and the inverse take over."""
        columns = self.columns[channel]
        self.gone[channel] = True
        rows = self.inverse[:, columns, :]  # (groups, b, D)
        gain = np.linalg.solve(_jitter(rows[:, :, columns]), rows)
        self.weight = self.weight - self.weight[:, :, columns] @ gain
        self.inverse = self.inverse - np.swapaxes(rows, 1, 2) @ gain
        self.weight[:, :, columns] = 0
        self.inverse[:, columns, :] = 0
        self.inverse[:, :, columns] = 0


def _jitter(blocks: Array) -> Array:
    """Square blocks with a trace of their diagonal added: elimination may have left one singular to rounding."""
    scale = 1e-10 * np.abs(np.diagonal(blocks, axis1=-2, axis2=-1)).mean(-1) + 1e-300
    return np.asarray(blocks + scale[..., None, None] * np.eye(blocks.shape[-1]))
