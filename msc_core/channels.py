"""What can be pruned: ids that can only go together, and cost alike, come out as one `ChannelGroup`.

`channel_flow.py` gives every position of every axis its ids; a position disappears when any of its ids is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from msc_core.channel_flow import ChannelFlow
from msc_core.channel_ids import NONE, Ids
from msc_core.ir import Array, MSCGraph, unique
from msc_core.ops import OPS

DIVISOR = 8
DIVISORS: Mapping[str, Mapping[str, int]] = {  # target -> precision -> the step in widths that its kernels run well at
    "onnxruntime": {"": 8, "int8": 16},  # NCHWc blocks of 8 or 16 floats; VNNI takes 16 lanes of 4 bytes
    "openvino": {"": 8, "int8": 16},
    "tensorrt": {"": 8, "fp32": 4, "int8": 32},  # tensor cores: 16 bytes of a row; int8 is packed by 32
    "tvm": {"": 16},  # 16 lanes in the schedules
    "tensorflow": {"": 8},
    "torch": {"": 8},
}


def divisor(target: str, precision: str = "") -> int:
    """The step in which channel counts should go for a target, such as `"onnxruntime"` or `"tensorrt:fp16"`.

    Other targets get `DIVISOR`; a precision that a target has no number for is taken to be its default.

    >>> divisor("onnxruntime"), divisor("tensorrt:int8"), divisor("tvm:llvm -mcpu=native")
    (8, 32, 16)
    """
    name, _, option = target.partition(":")
    steps = DIVISORS.get(name, {"": DIVISOR})
    return steps.get(precision or option, steps[""])


@dataclass(frozen=True, eq=False)
class Member:
    """An axis of a weight that follows a group: position p goes when channel `index[p]` goes (-1: never).

    `contracted` is true where `node` sums over the axis, so that it is an input of the layer, not an output.
    """

    node: str
    tensor: str
    axis: int
    index: Array
    contracted: bool


@dataclass(frozen=True, eq=False)
class ChannelGroup:
    """Channels that an agent decides on together; `reason` says why the group cannot be pruned, empty if it can.

    `nodes` are the layers whose weights follow the group, producers first. Kept counts are multiples of `divisor`.
    """

    name: str
    size: int
    members: tuple[Member, ...]
    divisor: int
    nodes: tuple[str, ...]
    reason: str = ""

    @property
    def counts(self) -> tuple[int, ...]:
        """The numbers of channels that may be kept, ascending; the last is `size`."""
        return (*range(self.divisor, self.size, self.divisor), self.size) if not self.reason else (self.size,)


class Channels:
    """The groups of a graph, and what remains of every axis when some of their channels go.

    `axes[tensor][i]` are the ids of an axis, `letters[node]` those of a node's letters (see `ChannelFlow`).
    """

    def __init__(self, graph: MSCGraph, divisor: int = DIVISOR) -> None:
        flow = ChannelFlow(graph)
        self.graph, self.ids, self.axes, self.letters = graph, flow.ids, flow.axes, flow.letters
        self._roots: dict[str, Array] = {}  # group -> its ids
        self.groups = self._groups(flow, divisor)

    def survivors(self, axis: Ids | None, size: int, dropped: Array) -> Array:
        """Which positions of an axis remain: a mask (size,), when the ids with `dropped[id]` go."""
        if axis is None:
            return np.ones(size, bool)
        resolved = self.ids.resolve(axis)
        gone: Array = (dropped[resolved] & (resolved != NONE)).any(axis=1)
        return ~gone

    def dropped(self, kept: Mapping[str, Iterable[int]]) -> Array:
        """A mask over all ids: true for the channels of each group that are not among its kept indices."""
        mask = np.zeros(max(1, self.ids.count), bool)
        for name, indices in kept.items():
            roots = self._roots[name]
            mask[roots] = True
            mask[roots[np.fromiter(indices, np.int64)]] = False
        return mask

    def _groups(self, flow: ChannelFlow, divisor: int) -> list[ChannelGroup]:
        resolved = self._resolved()
        alike, reasons, texts = self._alike(flow, resolved)
        reasons, texts = self._off_grid(alike, resolved, reasons, texts)
        members = self._members(flow, alike)
        order = {node.name: place for place, node in enumerate(self.graph.nodes)}
        read = self._read(flow)
        groups: list[ChannelGroup] = []
        ranked = sorted(zip(alike, members, strict=True), key=lambda pair: _rank(pair[1], order, int(pair[0][0])))
        for roots, found in ranked:
            reason = next((texts[i] for i in reasons[roots] if i != NONE), "")
            reason = reason or ("has one channel" if len(roots) == 1 else "")
            reason = reason or ("" if read[roots].any() else "no layer reads these channels")
            if not found or (reason and not any(_is_layer(self.graph, m) for m in found)):
                continue
            nodes = tuple(dict.fromkeys(m.node for m in sorted(found, key=lambda m: m.contracted)))
            name = unique(next((m.node for m in found if not m.contracted), nodes[0]), self._roots)
            self._roots[name] = roots
            repeats = min(int((m.index != NONE).sum()) // len(roots) for m in found)
            step = min(len(roots), max(1, divisor // max(1, repeats)))
            groups.append(ChannelGroup(name, len(roots), tuple(found), step, nodes, reason))
        return groups

    def _resolved(self) -> list[tuple[str, Array]]:
        """The different axes that have ids, with the name of a tensor that has them."""
        found: dict[int, tuple[str, Ids]] = {}
        for name, axes in self.axes.items():
            found |= {id(ids): (name, ids) for ids in axes if ids is not None and id(ids) not in found}
        different: dict[tuple[int, bytes], tuple[str, Array]] = {}
        for name, ids in found.values():
            resolved = self.ids.resolve(ids)
            different.setdefault((resolved.shape[1], resolved.tobytes()), (name, resolved))
        return list(different.values())

    def _alike(self, flow: ChannelFlow, resolved: list[tuple[str, Array]]) -> tuple[list[Array], Array, list[str]]:
        """Families divided so that all ids of one are on the same axes equally often, and pinned or not.

        Then a count says the cost, and an axis is empty only if a whole group is.
        """
        reasons, texts = self.ids.reasons()
        kind = np.where(reasons == NONE, 0, 1)
        kinds = 2
        for _, ids in resolved:
            values, counts = np.unique(ids[ids != NONE], return_counts=True)
            if len(values):
                _, inverse = np.unique(kind[values] * (int(counts.max()) + 1) + counts, return_inverse=True)
                kind[values] = kinds + inverse
                kinds += int(inverse.max()) + 1
        divided: list[Array] = []
        for roots in self.ids.families():
            order = np.argsort(kind[roots], kind="stable")
            parts = np.split(roots[order], np.flatnonzero(np.diff(kind[roots][order])) + 1)
            divided += sorted(parts, key=lambda part: int(part[0]))
        return divided, reasons, texts

    def _read(self, flow: ChannelFlow) -> Array:
        """Which ids some node sums over."""
        mask = np.zeros(max(1, self.ids.count), bool)
        for ids in flow.contracted:
            resolved = self.ids.resolve(ids)
            mask[resolved[resolved != NONE]] = True
        return mask

    def _members(self, flow: ChannelFlow, groups: list[Array]) -> list[list[Member]]:
        """The axes of weights that follow each group."""
        local, number = self._places(groups)
        members: list[list[Member]] = [[] for _ in groups]
        for node, weight, axis, contracted in flow.uses:
            ids = self.axes[weight][axis]
            for column in self.ids.resolve(ids).T if ids is not None else ():
                for found in np.unique(number[column[column != NONE]]):
                    index = np.where((column != NONE) & (number[column] == found), local[column], NONE)
                    members[found].append(Member(node, weight, axis, index, contracted))
        return members

    def _places(self, groups: list[Array]) -> tuple[Array, Array]:
        """For every id its place in its group, and the group's number."""
        local, number = np.full((2, max(1, self.ids.count)), NONE)
        for i, roots in enumerate(groups):
            local[roots], number[roots] = np.arange(len(roots)), i
        return local, number

    def _off_grid(
        self, groups: list[Array], resolved: list[tuple[str, Array]], reasons: Array, texts: list[str]
    ) -> tuple[Array, list[str]]:
        """Pin groups that share positions without forming a grid there: their counts would not multiply."""
        _, number = self._places(groups)
        for name, ids in resolved:
            free = np.where((ids == NONE) | (reasons[ids] != NONE), NONE, ids)
            shared = free[(free != NONE).sum(axis=1) > 1]
            if not len(shared):
                continue
            owner = np.where(shared == NONE, NONE, number[shared])
            order = np.argsort(owner, axis=1, kind="stable")
            shared, owner = (np.take_along_axis(a, order, axis=1) for a in (shared, owner))
            cells, inverse = np.unique(owner, axis=0, return_inverse=True)
            for i, cell in enumerate(cells):
                if not _is_grid(shared[inverse.ravel() == i], cell):
                    texts = [*texts, f"its channels form no grid on an axis of {name!r}"]
                    for group in set(cell[cell != NONE].tolist()):
                        reasons[groups[group]] = len(texts) - 1
        return reasons, texts


def channel_groups(graph: MSCGraph, divisor: int = DIVISOR) -> list[ChannelGroup]:
    """The groups of a graph, in order of their first layer; pinned ones are listed with their reason."""
    return Channels(graph, divisor).groups


def _rank(members: list[Member], order: Mapping[str, int], root: int) -> tuple[int, int]:
    """Groups come in the order of the first node that produces them."""
    places = [order[m.node] for m in members if not m.contracted] or [order[m.node] for m in members]
    return min(places, default=-1), root


def _is_layer(graph: MSCGraph, member: Member) -> bool:
    """Whether the axis belongs to the kernel of a layer: of what computes, not of a constant that is added."""
    return OPS[graph.node(member.node).op].macs is not None


def _is_grid(positions: Array, cell: Array) -> bool:
    """Whether positions (n, k) of ids are all combinations of the ids in each column, equally often."""
    groups = cell[cell != NONE]
    columns = positions[:, cell != NONE]
    different, counts = np.unique(columns, axis=0, return_counts=True)
    sizes = [len(np.unique(column)) for column in columns.T]
    return len(set(groups.tolist())) == len(groups) and len(different) == np.prod(sizes) and len(set(counts)) == 1
