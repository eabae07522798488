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
from itertools import pairwise
from typing import Any

import numpy as np

from msc_core.ir import Array, Dim, MSCGraph, Node, unique
from msc_core.ops import Bound, bind
from msc_core.ops.signature import Axis

Ids = Array  # (positions, k) int64: the ids of each position, -1 where it has fewer than k
NONE = -1
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
        self.ids = _IdTable()
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


class _IdTable:
    """Union-find over ids, with substitution: an id may stand for several (a grid's axes)."""

    def __init__(self) -> None:
        self.parent = np.empty(0, np.int64)
        self.batch: list[int] = []  # which allocation an id came from
        self.parts: dict[int, tuple[int, ...]] = {}
        self.pins: dict[int, str] = {}
        self.batches = 0

    @property
    def count(self) -> int:
        return len(self.parent)

    def fresh(self, size: int) -> Ids:
        start = self.count
        self.parent = np.concatenate([self.parent, np.arange(start, start + size)])
        self.batch += [self.batches] * size
        self.batches += 1
        return np.arange(start, start + size)[:, None]

    def find(self, ids: Array) -> Array:
        roots = np.where(ids == NONE, NONE, self.parent[ids]) if self.count else ids
        while True:
            above = np.where(roots == NONE, NONE, self.parent[roots]) if self.count else roots
            if np.array_equal(above, roots):
                return roots
            roots = above

    def resolve(self, ids: Ids) -> Ids:
        """Roots, with substituted ids replaced by their parts."""
        ids = self.find(ids)
        while self.parts and (hit := [i for i in np.unique(ids) if i in self.parts]):
            width = max(len(self.parts[i]) for i in hit)
            table = np.full((self.count + 1, width), NONE)  # the last row answers for -1
            table[: self.count, 0] = np.arange(self.count)
            for i in hit:
                table[i, : len(self.parts[i])] = self.parts[i]
            ids = self.find(table[ids].reshape(len(ids), -1))
            ids = ids[:, (ids != NONE).any(axis=0)] if (ids != NONE).any() else ids[:, :1]
        return ids

    def pin(self, ids: Ids | None, reason: str) -> None:
        if ids is not None:
            for i in np.unique(self.resolve(ids)):
                if i != NONE:
                    self.pins.setdefault(int(i), reason)

    def union(self, a: int, b: int) -> None:
        a, b = int(self.find(np.asarray(a))), int(self.find(np.asarray(b)))
        if a == b:
            return
        low, high = min(a, b), max(a, b)
        self.parent[high] = low
        if high in self.pins:
            self.pins.setdefault(low, self.pins.pop(high))

    def substitute(self, one: int, parts: tuple[int, ...]) -> None:
        self.parts[one] = parts
        if one in self.pins:
            for part in parts:
                self.pins.setdefault(part, self.pins[one])

    def equate(self, a: Ids | None, b: Ids | None, reason: str) -> Ids | None:
        """Make two axes one; returns its ids. A position without ids pins its counterpart."""
        if a is None or b is None:
            self.pin(a if b is None else b, reason)
            return a if b is None else b
        for left, right in zip(self.resolve(a), self.resolve(b), strict=True):
            self._equate_position(left[left != NONE], right[right != NONE], reason)
        return a

    def _equate_position(self, left: Array, right: Array, reason: str) -> None:
        left, right = self.resolve(left[:, None]).ravel(), self.resolve(right[:, None]).ravel()
        only_left, only_right = np.setdiff1d(left, right), np.setdiff1d(right, left)
        if len(only_left) == len(only_right) == 1:
            self.union(only_left[0], only_right[0])
        elif len(left) == 1 and len(right) > 1 and left[0] not in right:
            self.substitute(int(left[0]), tuple(int(i) for i in right))
        elif len(right) == 1 and len(left) > 1 and right[0] not in left:
            self.substitute(int(right[0]), tuple(int(i) for i in left))
        elif len(only_left) or len(only_right):
            self.pin(np.concatenate([left, right])[:, None], reason)

    def families(self) -> list[Array]:
        """Roots that are not substituted, partitioned: allocations that share an id belong together."""
        owner = np.arange(self.batches)

        def top(batch: int) -> int:
            while owner[batch] != batch:
                batch = owner[batch]
            return batch

        roots = self.find(np.arange(self.count)) if self.count else np.empty(0, np.int64)
        for i, root in enumerate(roots):
            a, b = top(self.batch[i]), top(self.batch[root])
            owner[max(a, b)] = min(a, b)
        families: dict[int, list[int]] = {}
        for root in np.unique(roots):
            if int(root) not in self.parts:
                families.setdefault(top(self.batch[root]), []).append(int(root))
        return [np.asarray(ids) for _, ids in sorted(families.items())]

    def reason(self, roots: Array) -> str:
        return next((self.pins[int(i)] for i in roots if int(i) in self.pins), "")

    def split(self, ids: Ids | None, factors: tuple[int, ...], reason: str) -> list[Ids | None]:
        """The ids of the axes of a grid that an axis is cut into, slowest first."""
        if ids is None:
            return [None] * len(factors)
        parts: list[list[Array]] = [[] for _ in factors]
        for column in self.resolve(ids).T:
            for axis, piece in self._split_column(column, factors, reason):
                parts[axis].append(piece)
        return [np.stack(p, axis=1) if p else None for p in parts]

    def _split_column(self, column: Array, factors: tuple[int, ...], reason: str) -> list[tuple[int, Array]]:
        grid = column.reshape(factors)
        wide = [axis for axis, factor in enumerate(factors) if factor > 1]
        for axis in wide:  # whole slices of one grid axis
            lines = np.moveaxis(grid, axis, 0).reshape(factors[axis], -1)
            if (lines == lines[:, :1]).all():
                return [(axis, lines[:, 0])]
        if (column == NONE).any():
            self.pin(column[:, None], reason)
            return []
        if len(np.unique(column)) == len(column):  # every position has an id of its own: one new id per grid axis
            fresh = {axis: self.fresh(factors[axis])[:, 0] for axis in wide}
            for position, one in zip(np.ndindex(*factors), column, strict=True):
                self.substitute(int(one), tuple(int(fresh[axis][position[axis]]) for axis in wide))
            return list(fresh.items())
        last = wide[-1]
        lines = np.moveaxis(grid, last, 0).reshape(factors[last], -1)
        for line in lines:  # tie ids until each covers whole slices of the last axis
            for other in line[1:]:
                self.union(line[0], other)
        return [(last, self.find(lines[:, 0]))]


def _merge(parts: list[Ids | None], sizes: list[int]) -> Ids | None:
    """The ids of an axis that is made of several, slowest first: a position has the ids of all its factors."""
    columns = []
    for i, ids in enumerate(parts):
        if ids is not None:
            before, after = int(np.prod(sizes[:i])), int(np.prod(sizes[i + 1 :]))
            columns.append(np.tile(np.repeat(ids, after, axis=0), (before, 1)))
    return np.concatenate(columns, axis=1) if columns else None


class _Flow:
    """The flow of ids through one node."""

    def __init__(self, channels: Channels, node: Node) -> None:
        self.channels, self.ids, self.node = channels, channels.ids, node
        self.bound: Bound = bind(node, channels.graph.tensors)

    def run(self) -> None:
        rule = {"": self._signature, "reshape": self._reshape, "concat": self._concat}[self.bound.op.movement]
        axes = rule()
        (output,) = self.node.outputs
        self.channels.axes[output] = axes

    def _why(self, what: str) -> str:
        return f"{what} {self.node.name!r} ({self.node.op})"

    def _operand(self, index: int) -> list[Ids | None]:
        return self.channels.axes[self.bound.input(index).name]

    def _signature(self) -> list[Ids | None]:
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
        out = signature.output.expand(len(self._output_shape()))
        kept = {letter for axis in out for letter in axis}
        for letter, ids_of_letter in letters.items():
            if seen[letter] == 1 and letter not in kept:
                self.ids.pin(ids_of_letter, self._why("is reduced or windowed over by"))
        self._record(operands, kept)
        self.channels.letters[self.node.name] = letters
        return [_merge([letters.get(x) for x in axis], [_size(x, sizes) for x in axis]) for axis in out]

    def _output_shape(self) -> tuple[Dim, ...]:
        return self.bound.out[0].shape

    def _adopt(self, axis: Axis, letters: dict[str, Ids | None], sizes: Mapping[str, Dim]) -> Ids | None:
        """The ids of an axis of a weight that is seen first here: those of its letters, new ones for new letters."""
        for letter in axis:
            if letter not in letters and not letter.isdigit() and _size(letter, sizes) > 1:
                letters[letter] = self.ids.fresh(_size(letter, sizes))
        return _merge([letters.get(x) for x in axis], [_size(x, sizes) for x in axis])

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

    def _concat(self) -> list[Ids | None]:
        tensors = [t for t in self.bound.x if t is not None]
        rank = len(tensors[0].shape)
        along = self.bound["axis"] % rank
        result: list[Ids | None] = list(self._operand(0))
        for i in range(1, len(tensors)):
            for position in range(rank):
                if position != along:
                    other = self._operand(i)[position]
                    if result[position] is not None or other is not None:
                        result[position] = self.ids.equate(result[position], other, self._why("meets a fixed axis in"))
        pieces = [self._operand(i)[along] for i in range(len(tensors))]
        if all(piece is None for piece in pieces):
            return result
        resolved = [
            np.full((int(t.shape[along]), 1), NONE) if piece is None else self.ids.resolve(piece)
            for t, piece in zip(tensors, pieces, strict=True)
        ]
        width = max(r.shape[1] for r in resolved)
        padded = [np.pad(r, ((0, 0), (0, width - r.shape[1])), constant_values=NONE) for r in resolved]
        result[along] = np.concatenate(padded)
        return result

    def _reshape(self) -> list[Ids | None]:
        source, target = self.bound.input(0).shape, self._output_shape()
        axes, reason = self._operand(0), self._why("is cut unevenly by")
        out: list[Ids | None] = [None] * len(target)
        for left, right in _blocks(source, target):
            fixed = _fixed(source, left) and _fixed(target, right)
            factors = _refine([int(source[i]) for i in left], [int(target[j]) for j in right]) if fixed else None
            if len(left) == len(right) == 1:
                out[right[0]] = axes[left[0]]
            elif factors is None:
                for i in left:
                    self.ids.pin(axes[i], reason)
            else:
                pieces: list[Ids | None] = []
                for i in left:
                    taken = _take(factors[len(pieces) :], int(source[i]))
                    pieces += self.ids.split(axes[i], taken, reason) if len(taken) > 1 else [axes[i]]
                start = 0
                for j in right:
                    taken = _take(factors[start:], int(target[j]))
                    out[j] = _merge(pieces[start : start + len(taken)], list(taken))
                    start += len(taken)
        return out


def _size(letter: str, sizes: Mapping[str, Dim]) -> int:
    """A letter's size as a number; symbolic axes count as one position, which never carries ids."""
    size = int(letter) if letter.isdigit() else sizes.get(letter, 1)
    return size if isinstance(size, int) else 1


def _fixed(shape: tuple[Dim, ...], axes: list[int]) -> bool:
    return all(isinstance(shape[i], int) for i in axes)


def _blocks(source: tuple[Dim, ...], target: tuple[Dim, ...]) -> list[tuple[list[int], list[int]]]:
    """Axes of a reshape that correspond: the smallest runs of equal product; size-1 axes are left out."""
    left = [i for i, d in enumerate(source) if d != 1]
    right = [j for j, d in enumerate(target) if d != 1]
    blocks: list[tuple[list[int], list[int]]] = []
    while left and right:
        a, b = [left.pop(0)], [right.pop(0)]
        if isinstance(source[a[0]], str) and source[a[0]] == target[b[0]]:
            blocks.append((a, b))
            continue
        while not (_fixed(source, a) and _fixed(target, b)) or (
            np.prod([source[i] for i in a]) != np.prod([target[j] for j in b])  # type: ignore[arg-type]
        ):
            grow_left = left and (
                not right or np.prod([source[i] for i in a]) < np.prod([target[j] for j in b])  # type: ignore[arg-type]
            )
            if grow_left:
                a.append(left.pop(0))
            elif right:
                b.append(right.pop(0))
            else:
                break
        blocks.append((a, b))
    return blocks


def _refine(source: list[int], target: list[int]) -> tuple[int, ...] | None:
    """The common refinement of two factorizations of one number, slowest first; `None` if there is none."""
    cuts = {1}
    for sizes in (source, target):
        product = 1
        for size in reversed(sizes):
            product *= size
            cuts.add(product)
    ordered = sorted(cuts)
    factors = []
    for low, high in pairwise(ordered):
        if high % low:
            return None
        factors.append(high // low)
    return tuple(reversed(factors))


def _take(factors: tuple[int, ...], size: int) -> tuple[int, ...]:
    """The leading factors whose product is `size`."""
    count, product = 0, 1
    while product < size:
        product *= factors[count]
        count += 1
    return factors[:count]
