"""Channel ids: union-find with substitution, and the factoring of axes into grids and back.

Splitting an axis into a grid looks at each id's positions: whole slices of one grid axis belong to that axis; if every
position has an id of its own, each is replaced by one new id per grid axis; otherwise ids are tied until each covers
whole slices of the last axis.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from msc_core import dims
from msc_core.dims import Dim
from msc_core.ir import Array

Ids = Array  # (positions, k) int64: the ids of each position, -1 where it has fewer than k
NONE = -1


class IdTable:
    """Union-find over ids, with substitution: an id may stand for several (a grid's axes)."""

    def __init__(self) -> None:
        self.parent = np.empty(0, np.int64)
        self.batch: list[int] = []  # which allocation an id came from
        self.parts: dict[int, tuple[int, ...]] = {}
        self.pins: dict[int, str] = {}
        self.batches = 0

    @property
    def count(self) -> int:
        """How many ids there are."""
        return len(self.parent)

    def fresh(self, size: int) -> Ids:
        """New ids for an axis of that size."""
        start = self.count
        self.parent = np.concatenate([self.parent, np.arange(start, start + size)])
        self.batch += [self.batches] * size
        self.batches += 1
        return np.arange(start, start + size)[:, None]

    def find(self, ids: Array) -> Array:
        """The representative of each id."""
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
        """These ids must stay; the first reason is kept."""
        if ids is not None:
            for i in np.unique(self.resolve(ids)):
                if i != NONE:
                    self.pins.setdefault(int(i), reason)

    def union(self, a: int, b: int) -> None:
        """Make two ids one; pinned if either was."""
        a, b = int(self.find(np.asarray(a))), int(self.find(np.asarray(b)))
        if a == b:
            return
        low, high = min(a, b), max(a, b)
        self.parent[high] = low
        if high in self.pins:
            self.pins.setdefault(low, self.pins.pop(high))

    def substitute(self, one: int, parts: tuple[int, ...]) -> None:
        """Let an id stand for several from now on."""
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
        """Why one of these must stay; empty if none must."""
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


def merge(parts: list[Ids | None], sizes: list[int]) -> Ids | None:
    """The ids of an axis that is made of several, slowest first: a position has the ids of all its factors."""
    columns = []
    for i, ids in enumerate(parts):
        if ids is not None:
            before, after = int(np.prod(sizes[:i])), int(np.prod(sizes[i + 1 :]))
            columns.append(np.tile(np.repeat(ids, after, axis=0), (before, 1)))
    return np.concatenate(columns, axis=1) if columns else None


def fixed(shape: tuple[Dim, ...], axes: list[int]) -> bool:
    """Whether these axes have numbers for sizes."""
    return all(isinstance(shape[i], int) for i in axes)


def blocks(source: tuple[Dim, ...], target: tuple[Dim, ...]) -> list[tuple[list[int], list[int]]]:
    """Axes of a reshape that correspond: the smallest runs of equal product; size-1 axes are left out."""
    left = [i for i, d in enumerate(source) if d != 1]
    right = [j for j, d in enumerate(target) if d != 1]
    blocks: list[tuple[list[int], list[int]]] = []
    while left and right:
        a, b = [left.pop(0)], [right.pop(0)]
        while (p := dims.mul(*(source[i] for i in a))) != (q := dims.mul(*(target[j] for j in b))):
            if left and (not right or _smaller(p, q)):
                a.append(left.pop(0))
            elif right:
                b.append(right.pop(0))
            else:
                break
        blocks.append((a, b))
    return blocks


def _smaller(a: Dim, b: Dim) -> bool:
    """Whether a product is the smaller one, as far as symbols allow to say."""
    return a < b if isinstance(a, int) and isinstance(b, int) else dims.mod(b, a) == 0


def refine(source: list[int], target: list[int]) -> tuple[int, ...] | None:
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


def take(factors: tuple[int, ...], size: int) -> tuple[int, ...]:
    """The leading factors whose product is `size`."""
    count, product = 0, 1
    while product < size:
        product *= factors[count]
        count += 1
    return factors[:count]
