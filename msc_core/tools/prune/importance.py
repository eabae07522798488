"""Which channels of a group to keep first, and what losing the others costs: a ranking for each criterion."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from msc_core.channel_ids import NONE
from msc_core.channels import ChannelGroup, Member
from msc_core.errors import MscError, nearest
from msc_core.ir import Array, MSCGraph
from msc_core.ops import OPS
from msc_core.tools.prune.gradients import Gradients, fading
from msc_core.tools.prune.obs import energies, surgeon
from msc_core.tools.prune.statistics import Statistics

MINIBATCH = 32  # samples whose gradients Taylor averages before it squares
SCALED = ("batch_norm", "layer_norm", "rms_norm", "group_norm", "instance_norm")  # their second input is a scale


@dataclass(frozen=True, eq=False)
class Evidence:
    """What criteria look at; statistics and gradients are gathered when a criterion first asks for them."""

    graph: MSCGraph
    statistics: Statistics
    gradients: Gradients


@dataclass(frozen=True, eq=False)
class Ranking:
    """`order` (size,): the channels, most important first. `loss` (size + 1,): what keeping the first k costs.

    `loss[size]` is 0 and the loss grows as k falls; its unit is the criterion's.
    """

    order: Array
    loss: Array

    @staticmethod
    def of(score: Array) -> Ranking:
        """By a score for each channel: a loss is the sum of the scores of those that go."""
        order = np.argsort(-score, kind="stable")
        return Ranking(order, np.append(np.cumsum(score[order][::-1])[::-1], 0.0))


Score = Callable[[Evidence, ChannelGroup], Array]


def magnitude(power: int) -> Score:
    """The sum of |w|^power over the layers that produce the channel (Li et al. 2017)."""

    def score(evidence: Evidence, group: ChannelGroup) -> Array:
        return np.asarray(sum((np.abs(f) ** power).sum(axis=1) for f in _filters(evidence.graph, group)))

    return score


def geometric_median(evidence: Evidence, group: ChannelGroup) -> Array:
    """FPGM (He et al. 2019): the sum of distances to the filters of all other channels; the least can be replaced.

    A channel's filter is all that produces it, in one vector.
    """
    filters = np.concatenate(list(_filters(evidence.graph, group)), axis=1)
    squares = (filters**2).sum(axis=1)
    distances = squares[:, None] + squares[None, :] - 2 * filters @ filters.T
    np.fill_diagonal(distances, 0)
    return np.asarray(np.sqrt(np.maximum(distances, 0)).sum(axis=1))


def lamp(evidence: Evidence, group: ChannelGroup) -> Array:
    """LAMP (Lee et al. 2021) of channels: energy over that of all channels with at least as much."""
    energy = magnitude(2)(evidence, group)
    order = np.argsort(energy, kind="stable")
    score = np.empty(group.size)
    score[order] = energy[order] / (np.cumsum(energy[order][::-1])[::-1] + 1e-300)
    return score


def norm_scale(evidence: Evidence, group: ChannelGroup) -> Array:
    """Network slimming (Liu et al. 2017): the mean |scale| of the norms that the channel passes.

    Raises `MscError` if it passes none.
    """
    score, norms = np.zeros(group.size), 0
    for member in group.members:
        node = evidence.graph.node(member.node)
        if node.op in SCALED and len(node.inputs) > 1 and member.tensor == node.inputs[1]:
            scale = np.abs(evidence.graph.weights[member.tensor].astype(np.float64))
            rows = np.moveaxis(scale, member.axis, 0).reshape(len(member.index), -1)
            _accumulate(score, member, rows.mean(axis=1))
            norms += 1
    if not norms:
        raise MscError(f"criterion 'bn_scale' ranks by the scales of norms, and group {group.name!r} passes none")
    return score / norms


def activation(evidence: Evidence, group: ChannelGroup) -> Array:
    """The energy that the channel sends into each reading layer, sum of w^2 E[x^2], relative to the layer's."""
    if not _readers(group):
        return _meeting(evidence, group)
    score = np.zeros(group.size)
    for member in _readers(group):
        energy = energies(evidence.graph, evidence.statistics, member, group.size)
        score += energy / (energy.sum() + 1e-30)
    return score


def taylor(evidence: Evidence, group: ChannelGroup) -> Array:
    """First-order Taylor (Molchanov et al. 2019): the squared slope of a minibatch's loss as the channel fades."""
    slopes = _slopes(evidence, group)
    starts = range(0, len(slopes), MINIBATCH)
    return np.asarray(np.mean([slopes[i : i + MINIBATCH].mean(axis=0) ** 2 for i in starts], axis=0))


def fisher(evidence: Evidence, group: ChannelGroup) -> Array:
    """Half the empirical Fisher information (Theis et al. 2018): the mean square of each sample's slope."""
    return np.asarray(0.5 * (_slopes(evidence, group) ** 2).mean(axis=0))


SCORES: Mapping[str, Score] = {
    "l1": magnitude(1),
    "l2": magnitude(2),
    "fpgm": geometric_median,
    "lamp": lamp,
    "bn_scale": norm_scale,
    "activation": activation,
    "taylor": taylor,
    "fisher": fisher,
}
CRITERIA = (*SCORES, "obs")
WITHOUT_DATA = ("l1", "l2", "fpgm", "lamp", "bn_scale")  # they look at weights only
RELATIVE = ("l1", "l2", "fpgm")  # in units of a layer's weights: to compare groups, divide by the group's mean


def rank(evidence: Evidence, group: ChannelGroup, criterion: str) -> Ranking:
    """The ranking of `group` by one of `CRITERIA`. Raises `MscError` for another."""
    if criterion == "obs" and _readers(group):
        return Ranking(*surgeon(evidence.graph, group, evidence.statistics))
    if criterion not in CRITERIA:
        raise MscError(f"unknown importance criterion {criterion!r}{nearest(criterion, CRITERIA)}")
    return Ranking.of(SCORES.get(criterion, activation)(evidence, group))


def _slopes(evidence: Evidence, group: ChannelGroup) -> Array:
    """(samples, channels): the slope of each sample's loss as a channel fades."""
    gates = evidence.gradients.gates
    members = [m for m in fading(group) if (m.node, m.tensor, m.axis) in gates]
    samples = len(next(iter(gates.values())))
    slopes = np.zeros((group.size, samples))
    for member in members:
        _accumulate(slopes, member, gates[member.node, member.tensor, member.axis].T)
    return slopes.T


def _meeting(evidence: Evidence, group: ChannelGroup) -> Array:
    """For channels that no weight reads, as those of q and k: the product of the energies of what makes them.

    Relative to the sum over the group, as the scores of groups that a layer reads.
    """
    energies = [(f**2).sum(axis=1) for f in _filters(evidence.graph, group)]
    score = np.prod([energy / (energy.sum() + 1e-300) for energy in energies], axis=0)
    return np.asarray(score / (score.sum() + 1e-300))


def _filters(graph: MSCGraph, group: ChannelGroup) -> Iterator[Array]:
    """For each weight that makes the channels, (channels, elements) float64; without any, for those that read them.

    A weight that two nodes share counts once. A bias or a scale, one number for each position, does not count.
    """
    made = [m for m in group.members if not m.contracted and _is_filter(graph, m)] or _readers(group)
    seen: set[tuple[str, int, bytes]] = set()
    for member in made:
        key = member.tensor, member.axis, member.index.tobytes()
        if key not in seen:
            seen.add(key)
            yield _by_channel(graph.weights[member.tensor].astype(np.float64), member, group.size)


def _is_filter(graph: MSCGraph, member: Member) -> bool:
    weight = graph.weights[member.tensor]
    multiplies = OPS[graph.node(member.node).op].macs is not None and weight.ndim > 1
    return multiplies or weight.size > weight.shape[member.axis]


def _by_channel(weight: Array, member: Member, size: int) -> Array:
    """The elements of a weight that belong to each channel, (size, elements); a channel may have several positions."""
    rows = np.moveaxis(weight, member.axis, 0).reshape(len(member.index), -1)
    inside = np.flatnonzero(member.index != NONE)
    positions = inside[np.argsort(member.index[inside], kind="stable")]
    channel = member.index[positions]
    place = np.arange(len(channel)) - np.searchsorted(channel, channel)  # which of its channel's positions each is
    table = np.zeros((size, place.max() + 1, rows.shape[1]))
    table[channel, place] = rows[positions]
    return table.reshape(size, -1)


def _readers(group: ChannelGroup) -> list[Member]:
    return [m for m in group.members if m.contracted]


def _accumulate(score: Array, member: Member, per_position: Array) -> None:
    inside = member.index != NONE
    np.add.at(score, member.index[inside], per_position[inside])
