"""Structured optimal brain surgeon: channels go one after another, the other weights re-solved each time."""

from __future__ import annotations

import numpy as np

from msc_core.channel_ids import NONE
from msc_core.channels import ChannelGroup, Member
from msc_core.ir import Array, MSCGraph
from msc_core.tools.prune.statistics import Layer, Statistics

STEPS = 256  # the part of the channels that may go before the others are looked at again: one by one below twice that


def surgeon(graph: MSCGraph, group: ChannelGroup, statistics: Statistics) -> tuple[Array, Array]:
    """An order (size,), most important first, and a loss (size + 1,): the error when the first k of it are kept.

    Structured optimal brain surgeon (Hassibi and Stork 1993; Kurtic et al. 2022): each time the channel goes whose
    removal, with the remaining weights re-solved by least squares, hurts the outputs of the reading layers least. The
    error is the sum over reading layers, each relative to its output's energy; one that has no statistics counts by the
    energy of its weights.
    """
    readers = [_reader(graph, statistics, m, group.size) for m in group.members if m.contracted]
    alive, removed, costs = np.ones(group.size, bool), [], [0.0]
    while alive.sum() > 1:
        score = np.where(alive, sum(reader.scores() for reader in readers), np.inf)
        for worst in np.argsort(score, kind="stable")[: max(1, alive.sum() // STEPS)]:
            costs.append(max(0.0, float(score[worst])))
            for reader in readers:
                reader.remove(int(worst))
            alive[worst] = False
            removed.append(int(worst))
    loss = np.cumsum(costs)
    whole = max(loss[-1], float(len(readers)))  # without any channel each reader loses all of its energy
    return np.asarray([*np.flatnonzero(alive), *reversed(removed)]), np.append(loss, whole)[::-1].copy()


def energies(graph: MSCGraph, statistics: Statistics, member: Member, size: int) -> Array:
    """(size,): the energy that each channel sends into a reading layer, sum of w^2 E[x^2].

    For layers without statistics it is that of their weights alone.
    """
    weight = graph.weights[member.tensor].astype(np.float64)
    if (found := _solvable(statistics, member)) is None:
        squares = np.moveaxis(weight, member.axis, 0).reshape(len(member.index), -1) ** 2
        return _sums(squares.sum(axis=1), member.index, size)
    layer, index = found
    squares = (layer.product.matrix(weight) ** 2).sum(axis=1) * np.diagonal(layer.moments, axis1=1, axis2=2)
    return _sums(squares.sum(axis=0), index, size)


def _solvable(statistics: Statistics, member: Member) -> tuple[Layer, Array] | None:
    """The layer that reads a member, if it has statistics, and the channel of each of its columns."""
    layer = statistics.layers.get(member.node)
    index = layer.product.channels(member) if layer and layer.product.weight == member.tensor else None
    return (layer, index) if layer and index is not None else None


def _sums(values: Array, index: Array, size: int) -> Array:
    inside = index != NONE
    return np.asarray(np.bincount(index[inside], values[inside], size))


def _reader(graph: MSCGraph, statistics: Statistics, member: Member, size: int) -> _Reader | _Weights:
    if (found := _solvable(statistics, member)) is None:
        return _Weights(energies(graph, statistics, member, size))
    layer, index = found
    return _Reader(layer.product.matrix(graph.weights[member.tensor]), layer, index, size)


class _Weights:
    """A reading layer that cannot be solved: a channel costs the energy of its weights, whatever else is gone."""

    def __init__(self, energy: Array) -> None:
        self.energy: Array = energy / (energy.sum() + 1e-30)

    def scores(self) -> Array:
        """The share of each channel."""
        return self.energy

    def remove(self, channel: int) -> None:
        """Nothing else changes."""


class _Reader:
    """One reading layer during the elimination: its weight and inverse Hessian, updated as channels go."""

    def __init__(self, matrix: Array, layer: Layer, index: Array, size: int) -> None:
        self.weight = matrix
        hessian = layer.moments + layer.ridge[:, None, None] * np.eye(matrix.shape[2])
        self.inverse = np.linalg.inv(hessian)
        self.energy = float(((matrix @ hessian) * matrix).sum()) + 1e-30
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
