"""Channel ids: union-find with substitution over whole axes at once, and the cutting of axes into grids.

Splitting an axis into a grid looks at where each id is: one that only depends on some axes of the grid belongs to
those. If that is one axis, it keeps its ids; if there are several and every position has an id of its own, each is
replaced by one new id per axis; otherwise ids are tied until each covers whole slices of the last one.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from msc_core.ir import Array

Ids = Array  # (positions, k) int64: the ids of each position, -1 where it has fewer than k
NONE = -1


class IdTable:
    """Union-find over ids, with substitution: an id may stand for several (a grid's axes).

    Arrays have room to grow and one element more, which answers for `NONE`.
    """

    def __init__(self) -> None:
        self.count = 0
        self.batches = 0
        self._parent = np.full(1, NONE)
        self._batch = np.full(1, NONE)  # which allocation an id came from
        self._parts = np.full((1, 1), NONE)  # what an id stands for
        self._pins: list[tuple[Array, str]] = []

    def fresh(self, size: int) -> Ids:
        """New ids for an axis of that size."""
        start, self.count = self.count, self.count + size
        if self.count >= len(self._parent):
            more = max(self.count, 2 * len(self._parent)) - len(self._parent) + 1
            self._parent = np.pad(self._parent, (0, more), constant_values=NONE)
            self._batch = np.pad(self._batch, (0, more), constant_values=NONE)
            self._parts = np.pad(self._parts, ((0, more), (0, 0)), constant_values=NONE)
        new = np.arange(start, self.count)
        self._parent[new], self._batch[new] = new, self.batches
        self.batches += 1
        return new[:, None]

    def find(self, ids: Array) -> Array:
        """The representative of each id."""
        roots = self._parent[ids]
        while True:
            above = self._parent[roots]
            if np.array_equal(above, roots):
                self._parent[ids] = roots
                return roots
            roots = above

    def resolve(self, ids: Ids) -> Ids:
        """Roots, with substituted ids replaced by their parts; each once in a position."""
        ids = self.find(ids)
        while (hit := self._parts[ids, 0] != NONE).any():
            table = self._parts[ids]
            table[~hit, 0] = ids[~hit]
            ids = _narrowed(self.find(table.reshape(len(ids), -1)))
        for column in range(1, ids.shape[1]):
            again = (ids[:, :column] == ids[:, column : column + 1]).any(axis=1)
            ids[again, column] = NONE
        return _narrowed(ids)

    def pin(self, ids: Ids | None, reason: str) -> None:
        """These ids must stay; the first reason is kept."""
        if ids is not None and len(given := np.unique(ids[ids != NONE])):
            self._pins.append((given, reason))

    def union(self, a: Array, b: Array) -> None:
        """Make each id of `a` one with its counterpart in `b`; none of them is substituted."""
        while True:
            a, b = self.find(a), self.find(b)
            differ = a != b
            if not differ.any():
                return
            a, b = a[differ], b[differ]
            np.minimum.at(self._parent, np.maximum(a, b), np.minimum(a, b))

    def substitute(self, ones: Array, parts: Array) -> None:
        """Let ids (n,) stand for several (n, k) from now on."""
        if (missing := parts.shape[1] - self._parts.shape[1]) > 0:
            self._parts = np.pad(self._parts, ((0, 0), (0, missing)), constant_values=NONE)
        order = np.argsort(parts == NONE, axis=1, kind="stable")
        self._parts[ones, : parts.shape[1]] = np.take_along_axis(parts, order, axis=1)

    def equate(self, a: Ids | None, b: Ids | None, reason: str) -> Ids | None:
        """Make two axes one; returns its ids.

        Equally many ids that differ are united; one against several is substituted; other positions are pinned. A
        position without ids pins its counterpart.
        """
        if a is None or b is None:
            self.pin(a if b is None else b, reason)
            return a if b is None else b
        while True:
            left, right = self.resolve(a), self.resolve(b)
            mine, yours = _without(left, right), _without(right, left)
            here, there = ((x != NONE).sum(axis=1) for x in (mine, yours))
            if ((here == there) & (here > 0)).any():
                rows = here == there
                self.union(mine[rows][mine[rows] != NONE], yours[rows][yours[rows] != NONE])
            elif not (self._replace(left, right, here, there) or self._replace(right, left, there, here)):
                odd = here != there
                self.pin(np.concatenate([left[odd].ravel(), right[odd].ravel()])[:, None], reason)
                return a

    def _replace(self, single: Ids, several: Ids, here: Array, there: Array) -> bool:
        """Substitute ids that stand alone in their position for those of the other side, where it has more."""
        alone = ((single != NONE).sum(axis=1) == 1) & (here == 1) & (there > 1)
        if not alone.any():
            return False
        ones, first = np.unique(single[alone].max(axis=1), return_index=True)
        parts = several[alone][first]
        if np.isin(parts, ones).any():  # one after the other, so that none comes to stand for itself
            ones, parts = ones[:1], parts[:1]
        self.substitute(ones, parts)
        return True

    def families(self) -> list[Array]:
        """Roots that are not substituted, partitioned: allocations that share an id belong together."""
        owner = np.arange(self.batches)

        def top(batch: int) -> int:
            while owner[batch] != batch:
                batch = int(owner[batch])
            return batch

        roots = self.find(np.arange(self.count))
        pairs = np.stack([self._batch[: self.count], self._batch[roots]], axis=1)
        for one, other in np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0).tolist():
            a, b = top(one), top(other)
            owner[max(a, b)] = min(a, b)
        tops = np.asarray([top(batch) for batch in range(self.batches)], np.int64)
        leaves = np.unique(roots)
        leaves = leaves[self._parts[leaves, 0] == NONE]
        keys = tops[self._batch[leaves]]
        order = np.argsort(keys, kind="stable")
        cuts = np.flatnonzero(np.diff(keys[order])) + 1
        return np.split(leaves[order], cuts) if len(leaves) else []

    def reasons(self) -> tuple[Array, list[str]]:
        """For every id the number of the first reason to keep it, -1 if there is none; and the reasons."""
        found = np.full(max(1, self.count), NONE)
        for number, (ids, _) in reversed(list(enumerate(self._pins))):
            resolved = self.resolve(ids[:, None])
            found[resolved[resolved != NONE]] = number
        return found, [reason for _, reason in self._pins]

    def split(
        self, ids: Ids | None, factors: tuple[int, ...], reason: str, fixed: Collection[int] = ()
    ) -> list[Ids | None]:
        """The ids of the axes of a grid that an axis is cut into, slowest first.

        Along the axes in `fixed`, which cannot change, positions are tied.
        """
        result: list[Ids | None] = [None] * len(factors)
        if ids is None:
            return result
        free = [axis for axis in range(len(factors)) if axis not in fixed]
        if not free:
            self.pin(ids, reason)
            return result
        sizes = tuple(factors[axis] for axis in free)
        grid = self.resolve(ids).reshape(*factors, -1)
        rows = np.moveaxis(grid, free, range(-1 - len(free), -1)).reshape(-1, int(np.prod(sizes)), grid.shape[-1])
        for row in rows[1:]:
            self.equate(rows[0], row, reason)
        parts: dict[int, list[Array]] = {}
        columns = list(rows[0].T)
        while columns:
            first, *more = self.resolve(columns.pop(0)[:, None]).T  # a column before may have changed what this one has
            columns = more + columns
            for axis, piece in self._split_column(first, sizes, reason):
                parts.setdefault(free[axis], []).append(piece)
        for axis, pieces in parts.items():
            result[axis] = np.stack(pieces, axis=1)
        return result

    def _split_column(self, column: Array, factors: tuple[int, ...], reason: str) -> list[tuple[int, Array]]:
        grid = column.reshape(factors)
        varying = [axis for axis in range(len(factors)) if (grid != np.take(grid, [0], axis=axis)).any()]
        if not varying:
            varying = [len(factors) - 1]
        grid = grid[tuple(slice(None) if axis in varying else 0 for axis in range(len(factors)))]
        if len(varying) == 1:
            return [(varying[0], grid)]
        if (grid == NONE).any():
            self.pin(column[:, None], reason)
            return []
        if len(np.unique(grid)) == grid.size:
            fresh = [self.fresh(size)[:, 0] for size in grid.shape]
            places = np.indices(grid.shape).reshape(grid.ndim, -1)
            self.substitute(grid.ravel(), np.stack([new[p] for new, p in zip(fresh, places, strict=True)], axis=1))
            return list(zip(varying, fresh, strict=True))
        lines = grid.reshape(-1, grid.shape[-1])
        self.union(np.broadcast_to(lines[:1], lines.shape).ravel(), lines.ravel())
        return [(varying[-1], self.find(lines[0]))]


def merge(parts: list[Ids | None], sizes: list[int]) -> Ids | None:
    """The ids of an axis that is made of several, slowest first: a position has the ids of all its factors."""
    if len(parts) == 1:
        return parts[0]
    columns = []
    for i, ids in enumerate(parts):
        if ids is not None:
            before, after = int(np.prod(sizes[:i])), int(np.prod(sizes[i + 1 :]))
            columns.append(np.tile(np.repeat(ids, after, axis=0), (before, 1)))
    return np.concatenate(columns, axis=1) if columns else None


def joined(pieces: list[Array]) -> Ids:
    """Ids (positions, k) of several axes one behind the other."""
    width = max(piece.shape[1] for piece in pieces)
    return np.concatenate([np.pad(p, ((0, 0), (0, width - p.shape[1])), constant_values=NONE) for p in pieces])


def _narrowed(ids: Ids) -> Ids:
    """Without columns in which nothing is, but for one."""
    if ids.shape[1] == 1:
        return ids
    used = (ids != NONE).any(axis=0)
    used[0] |= not used.any()
    return ids[:, used]


def _without(ids: Ids, others: Ids) -> Ids:
    """The ids of each position that the other axis does not have there."""
    shared = (ids[:, :, None] == others[:, None, :]).any(axis=2)
    return np.where(shared, NONE, ids)
