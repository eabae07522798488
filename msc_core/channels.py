"""What can be pruned: an abstract interpretation in which every position of every axis carries channel ids.

A position disappears when any of its ids is dropped. Signatures say how ids flow: equal letters are equated; a
composite axis gives each position one id per letter. Reshapes are factored into such composites, concat moves ids
position by position, everything that reaches a graph input or output, a window or a reduction is pinned, with the
reason. Ids that can only go together come out as one `ChannelGroup`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from msc_core.channel_ids import NONE, Ids, IdTable, blocks, fixed, merge, refine, take
from msc_core.dims import Dim
from msc_core.ir import Array, MSCGraph, Node, unique
from msc_core.ops import Bound, bind
from msc_core.ops.signature import Axis

DIVISOR = 8


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
    """The ids of every axis of a graph. `axes[tensor][i]` is an array (size, k), or `None` if no position has ids."""

    def __init__(self, graph: MSCGraph, divisor: int = DIVISOR) -> None:
        self.graph = graph
        self.ids = IdTable()
        self.axes: dict[str, list[Ids | None]] = {n: [None] * len(graph.tensors[n].shape) for n in graph.inputs}
        self.letters: dict[str, dict[str, Ids | None]] = {}
        self.uses: list[tuple[str, str, int, bool]] = []  # (node, weight, axis, contracted)
        for node in graph.nodes:
            _Flow(self, node).run()
        for name in graph.outputs:
            for axis in self.axes.get(name, []):
                self.ids.pin(axis, f"reaches the graph output {name!r}")
        self._roots: dict[str, Array] = {}  # group -> its ids
        self.groups = self._groups(divisor)

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

    def _groups(self, divisor: int) -> list[ChannelGroup]:
        families = self._alike(self.ids.families())
        self._pin_unless_grid(families)
        members = self._members(families)
        groups: list[ChannelGroup] = []
        for roots, found in sorted(zip(families, members, strict=True), key=lambda pair: int(pair[0][0])):
            if not found:
                continue
            nodes = tuple(dict.fromkeys(m.node for m in sorted(found, key=lambda m: m.contracted)))
            name = unique(next((m.node for m in found if not m.contracted), nodes[0]), self._roots)
            self._roots[name] = roots
            repeats = min(int((m.index != NONE).sum()) // len(roots) for m in found)
            step = min(len(roots), max(1, divisor // repeats))
            reason = "" if any(m.contracted for m in found) else "no layer reads these channels"
            groups.append(
                ChannelGroup(name, len(roots), tuple(found), step, nodes, self.ids.reason(roots) or reason)
            )  # fmt: skip
        return groups

    def _members(self, families: list[Array]) -> list[list[Member]]:
        """The axes of weights that follow each family."""
        local, family = self._places(families)
        members: list[list[Member]] = [[] for _ in families]
        for node, weight, axis, contracted in self.uses:
            ids = self.axes[weight][axis]
            for column in self.ids.resolve(ids).T if ids is not None else ():
                for number in np.unique(family[column[column != NONE]]):
                    index = np.where((column != NONE) & (family[column] == number), local[column], NONE)
                    members[number].append(Member(node, weight, axis, index, contracted))
        return members

    def _places(self, families: list[Array]) -> tuple[Array, Array]:
        """For every id its place in its family, and the family's number."""
        local, number = np.full((2, max(1, self.ids.count)), NONE)
        for i, roots in enumerate(families):
            local[roots], number[roots] = np.arange(len(roots)), i
        return local, number

    def _alike(self, families: list[Array]) -> list[Array]:
        """Families divided so that all ids of one are on the same axes equally often: then a count says the cost."""
        profiles: dict[int, list[tuple[str, int, int]]] = {}
        for weight, axis in dict.fromkeys((weight, axis) for _, weight, axis, _ in self.uses):
            ids = self.axes[weight][axis]
            if ids is not None:
                values, counts = np.unique(self.ids.resolve(ids), return_counts=True)
                for value, count in zip(values.tolist(), counts.tolist(), strict=True):
                    profiles.setdefault(value, []).append((weight, axis, count))
        divided: list[Array] = []
        for roots in families:
            parts: dict[tuple[tuple[str, int, int], ...], list[int]] = {}
            for root in roots.tolist():
                parts.setdefault(tuple(profiles.get(root, ())), []).append(root)
            divided += [np.asarray(part) for part in parts.values()]
        return divided

    def _pin_unless_grid(self, families: list[Array]) -> None:
        """Pin families that share positions without forming a grid there: their counts would not multiply."""
        _, number = self._places(families)
        for name, axes in self.axes.items():
            for ids in axes:
                resolved = self.ids.resolve(ids) if ids is not None else None
                if resolved is None or resolved.shape[1] < 2:
                    continue
                cells: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
                for row in resolved.tolist():
                    position = sorted((int(number[i]), i) for i in row if i != NONE)
                    cells.setdefault(tuple(f for f, _ in position), []).append(tuple(i for _, i in position))
                for cell, positions in cells.items():
                    sizes = [len({p[k] for p in positions}) for k in range(len(cell))]
                    repeats = set(Counter(positions).values())
                    grid = len(repeats) == 1 and len(set(positions)) == np.prod(sizes) and len(set(cell)) == len(cell)
                    if len(cell) > 1 and not grid:
                        for f in set(cell):
                            self.ids.pin(families[f][:, None], f"its channels form no grid on an axis of {name!r}")


def channel_groups(graph: MSCGraph, divisor: int = DIVISOR) -> list[ChannelGroup]:
    """The groups of a graph, in order of their first layer; pinned ones are listed with their reason."""
    return Channels(graph, divisor).groups


class _Flow:
    """The flow of ids through one node."""

    def __init__(self, channels: Channels, node: Node) -> None:
        self.channels, self.ids, self.node = channels, channels.ids, node
        self.bound: Bound = bind(node, channels.graph.tensors)

    def run(self) -> None:
        rule = {"": self._signature, "reshape": self._reshape, "concat": self._concat}[self.bound.op.movement]
        results = self._pinned() if self.bound.op.axes is None else rule()
        self.channels.axes.update(zip(self.node.outputs, results, strict=True))

    def _pinned(self) -> list[list[Ids | None]]:
        """Nothing is known of how the operator moves positions: all that it reads stays."""
        for tensor in self.bound.x:
            if tensor is not None and tensor.name in self.channels.axes:
                for ids in self.channels.axes[tensor.name]:
                    self.ids.pin(ids, self._why("is rearranged by"))
            elif tensor is not None:
                self.channels.axes[tensor.name] = [None] * len(tensor.shape)
        return [[None] * len(tensor.shape) for tensor in self.bound.out]

    def _why(self, what: str) -> str:
        return f"{what} {self.node.name!r} ({self.node.op})"

    def _operand(self, index: int) -> list[Ids | None]:
        tensor = self.bound.input(index)
        return self.channels.axes.setdefault(tensor.name, [None] * len(tensor.shape))

    def _signature(self) -> list[list[Ids | None]]:
        signature, sizes = self.bound.signature, self.bound.sizes()
        letters: dict[str, Ids | None] = {}
        seen: dict[str, int] = {}
        known = self.channels.axes
        operands = [(t, operand) for t, operand in zip(self.bound.x, signature.operands, strict=True) if t is not None]
        for tensor, operand in sorted(operands, key=lambda pair: pair[0].name not in known):  # activations first
            new = tensor.name not in known
            ids: list[Ids | None] = []
            for position, (axis, size) in enumerate(zip(operand.expand(len(tensor.shape)), tensor.shape, strict=True)):
                for letter in axis:
                    seen[letter] = seen.get(letter, 0) + 1
                if new:
                    ids.append(self._adopt(axis, letters, sizes))
                else:
                    self._bind(known[tensor.name][position], axis, size, letters, sizes)
            if new:
                known[tensor.name] = ids
        outputs = [
            operand.expand(len(tensor.shape)) for operand, tensor in zip(signature.outputs, self.bound.out, strict=True)
        ]
        kept = {letter for axes in outputs for axis in axes for letter in axis}
        for letter, ids_of_letter in letters.items():
            if seen[letter] == 1 and letter not in kept:
                self.ids.pin(ids_of_letter, self._why("is reduced or windowed over by"))
        self._record(operands, kept)
        self.channels.letters[self.node.name] = letters
        return [
            [merge([letters.get(x) for x in axis], [_size(x, sizes) for x in axis]) for axis in axes]
            for axes in outputs
        ]

    def _adopt(self, axis: Axis, letters: dict[str, Ids | None], sizes: Mapping[str, Dim]) -> Ids | None:
        """The ids of an axis of a weight that is seen first here: those of its letters, new ones for new letters."""
        for letter in axis:
            if letter not in letters and not letter.isdigit() and _size(letter, sizes) > 1:
                letters[letter] = self.ids.fresh(_size(letter, sizes))
        return merge([letters.get(x) for x in axis], [_size(x, sizes) for x in axis])

    def _bind(
        self, ids: Ids | None, axis: Axis, size: Dim, letters: dict[str, Ids | None], sizes: Mapping[str, Dim]
    ) -> None:
        """Equate the letters of an axis with ids that the tensor already has."""
        if not axis or any(letter.isdigit() for letter in axis):
            self.ids.pin(ids, self._why("is an axis that cannot change of"))
            return
        factors = tuple(_size(letter, sizes) for letter in axis)
        if size == 1 and factors != (1,):
            return  # broadcast: equates nothing
        parts = [ids] if len(axis) == 1 else self.ids.split(ids, factors, self._why("is grouped unevenly by"))
        for letter, part in zip(axis, parts, strict=True):
            if _size(letter, sizes) == 1:
                letters.setdefault(letter, None)
            elif letter in letters:
                letters[letter] = self.ids.equate(letters[letter], part, self._why("meets a fixed axis in"))
            else:
                letters[letter] = part

    def _record(self, operands: list[Any], kept: set[str]) -> None:
        for tensor, operand in operands:
            if tensor.name in self.channels.graph.weights:
                for position, axis in enumerate(operand.expand(len(tensor.shape))):
                    contracted = bool(axis) and not any(letter in kept for letter in axis if letter != "g")
                    self.channels.uses.append((self.node.name, tensor.name, position, contracted))

    def _concat(self) -> list[list[Ids | None]]:
        tensors = [t for t in self.bound.x if t is not None]
        rank = len(tensors[0].shape)
        along = self.bound["axis"] % rank
        if any(isinstance(t.shape[along], str) for t in tensors):
            return self._pinned()
        result: list[Ids | None] = list(self._operand(0))
        for i in range(1, len(tensors)):
            for position in range(rank):
                if position != along:
                    other = self._operand(i)[position]
                    if result[position] is not None or other is not None:
                        result[position] = self.ids.equate(result[position], other, self._why("meets a fixed axis in"))
        pieces = [self._operand(i)[along] for i in range(len(tensors))]
        if all(piece is None for piece in pieces):
            return [result]
        resolved = [
            np.full((int(t.shape[along]), 1), NONE) if piece is None else self.ids.resolve(piece)
            for t, piece in zip(tensors, pieces, strict=True)
        ]
        width = max(r.shape[1] for r in resolved)
        padded = [np.pad(r, ((0, 0), (0, width - r.shape[1])), constant_values=NONE) for r in resolved]
        result[along] = np.concatenate(padded)
        return [result]

    def _reshape(self) -> list[list[Ids | None]]:
        source, target = self.bound.input(0).shape, self.bound.out[0].shape
        axes, reason = self._operand(0), self._why("is cut unevenly by")
        out: list[Ids | None] = [None] * len(target)
        for left, right in blocks(source, target):
            sized = fixed(source, left) and fixed(target, right)
            factors = refine([int(source[i]) for i in left], [int(target[j]) for j in right]) if sized else None
            if len(left) == len(right) == 1:
                out[right[0]] = axes[left[0]]
            elif factors is None:
                for i in left:
                    self.ids.pin(axes[i], reason)
            else:
                pieces: list[Ids | None] = []
                for i in left:
                    taken = take(factors[len(pieces) :], int(source[i]))
                    pieces += self.ids.split(axes[i], taken, reason) if len(taken) > 1 else [axes[i]]
                start = 0
                for j in right:
                    taken = take(factors[start:], int(target[j]))
                    out[j] = merge(pieces[start : start + len(taken)], list(taken))
                    start += len(taken)
        return [out]


def _size(letter: str, sizes: Mapping[str, Dim]) -> int:
    """A letter's size as a number; symbolic axes count as one position, which never carries ids."""
    size = int(letter) if letter.isdigit() else sizes.get(letter, 1)
    return size if isinstance(size, int) else 1
