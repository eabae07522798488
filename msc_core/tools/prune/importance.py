"""Which channels of a group to keep first: an order for each criterion, most important first."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from msc_core.channel_ids import NONE
from msc_core.channels import ChannelGroup, Member
from msc_core.errors import MscError, nearest
from msc_core.ir import Array, MSCGraph
from msc_core.tools.prune.statistics import Layer, Statistics


def magnitude(power: int) -> Callable[[MSCGraph, ChannelGroup, Statistics], Array]:
    """Rank by the sum of |w|^power over the layers that produce the channel (Li et al. 2017)."""

    def order(graph: MSCGraph, group: ChannelGroup, statistics: Statistics) -> Array:
        score = np.zeros(group.size)
        for member in group.members:
            weight = graph.weights[member.tensor]
            if not member.contracted and weight.ndim > 1:
                rest = tuple(i for i in range(weight.ndim) if i != member.axis)
                _accumulate(score, member, (np.abs(weight.astype(np.float64)) ** power).sum(axis=rest))
        return np.argsort(-score, kind="stable")

    return order


def activation(graph: MSCGraph, group: ChannelGroup, statistics: Statistics) -> Array:
    """Rank by the energy that the channel sends into each reading layer, sum of w^2 E[x^2], relative to the layer's."""
    score = np.zeros(group.size)
    for member in _readers(group):
        layer = statistics.layers[member.node]
        weight = _matrix(graph, layer)
        energy = (weight**2).sum(axis=1) * np.diagonal(layer.moments, axis1=1, axis2=2)
        per_position = energy.reshape(layer.groups, -1, layer.kernel).sum(axis=(0, 2))
        _accumulate(score, member, per_position / (per_position.sum() + 1e-30))
    return np.argsort(-score, kind="stable")


def surgeon(graph: MSCGraph, group: ChannelGroup, statistics: Statistics) -> Array:
    """Structured optimal brain surgeon (Hassibi and Stork 1993; Kurtic et al. 2022).

    Channels are removed one after another, each time the one whose removal, with the remaining weights re-solved by
    least squares, hurts the outputs of the reading layers least (relative to each layer's output energy).
    """
    readers = [_Reader(graph, statistics.layers[m.node], m, group.size) for m in _readers(group)]
    alive, removed = np.ones(group.size, bool), []
    while alive.sum() > 1:
        score = np.where(alive, sum(reader.scores() for reader in readers), np.inf)
        worst = int(np.argmin(score))
        for reader in readers:
            reader.remove(worst)
        alive[worst] = False
        removed.append(worst)
    return np.asarray([*np.flatnonzero(alive), *reversed(removed)])


CRITERIA: Mapping[str, Callable[[MSCGraph, ChannelGroup, Statistics], Array]] = {
    "l1": magnitude(1),
    "l2": magnitude(2),
    "activation": activation,
    "obs": surgeon,
}


def rank(graph: MSCGraph, group: ChannelGroup, statistics: Statistics, criterion: str) -> Array:
    """The channels of `group`, most important first. Raises `MscError` for an unknown criterion."""
    if criterion not in CRITERIA:
        raise MscError(f"unknown importance criterion {criterion!r}{nearest(criterion, CRITERIA)}")
    return CRITERIA[criterion](graph, group, statistics)


def _readers(group: ChannelGroup) -> list[Member]:
    return [m for m in group.members if m.contracted]


def _accumulate(score: Array, member: Member, per_position: Array) -> None:
    inside = member.index != NONE
    np.add.at(score, member.index[inside], per_position[inside])


def _matrix(graph: MSCGraph, layer: Layer) -> Array:
    """The weight as (groups, outputs of a group, D) float64."""
    weight = graph.weights[layer.weight].astype(np.float64)
    return weight.reshape(layer.groups, weight.shape[0] // layer.groups, -1)


class _Reader:
    """One reading layer during the elimination: its weight and inverse Hessian, updated as channels go."""

    def __init__(self, graph: MSCGraph, layer: Layer, member: Member, size: int) -> None:
        self.weight = _matrix(graph, layer)
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
