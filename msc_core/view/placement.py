"""Where to draw the nodes of a graph: in ranks from top to bottom, edges straight where possible, few crossings.

Ranks are longest paths. A tensor that is read further down runs through every rank between as one trunk, from which
its readers branch off. Order within ranks is by barycenters, positions are least squares under minimal distances.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

SWEEPS, ROUNDS = 6, 12  # of which very many boxes get fewer
MANY, INFINITE = 6000, float("inf")
STRAIGHT = 8.0  # how much more a trunk wants to be straight than a branch


@dataclass
class Box:
    """A node to place, or a point that a trunk passes: its extent from its middle to both sides, and its height."""

    left: float
    right: float
    height: float
    rank: int = 0
    x: float = 0.0
    y: float = 0.0
    above: list[int] = field(default_factory=list)
    below: list[int] = field(default_factory=list)

    @property
    def passing(self) -> bool:
        """Whether this is a point of a trunk."""
        return self.height == 0


@dataclass(frozen=True)
class Placement:
    """Every box with its place, and for each source the segments of its trunk and branches, as pairs of boxes."""

    boxes: list[Box]
    segments: dict[int, list[tuple[int, int]]]
    width: float
    height: float


def place(boxes: list[Box], edges: Sequence[tuple[int, int]], gap: float = 26, row: float = 50) -> Placement:
    """Place boxes that are given in topological order; `edges` are pairs (source, reader)."""
    _rank(boxes, edges)
    segments = _trunks(boxes, edges)
    for pairs in segments.values():
        for a, b in pairs:
            boxes[a].below.append(b)
            boxes[b].above.append(a)
    ranks = _ordered(boxes)
    _across(boxes, ranks, gap)
    _straighten(boxes, ranks, segments, gap)
    y = 0.0
    for members in ranks:
        tallest = max(boxes[i].height for i in members)
        for i in members:
            boxes[i].y = y + (tallest - boxes[i].height) / 2 if not boxes[i].passing else y
        for i in members:
            if boxes[i].passing:
                boxes[i].y = y + tallest / 2
        y += tallest + row
    left = min((b.x - b.left for b in boxes), default=0)
    for box in boxes:
        box.x -= left
    return Placement(boxes, segments, max((b.x + b.right for b in boxes), default=0), max(0, y - row))


def _rank(boxes: list[Box], edges: Sequence[tuple[int, int]]) -> None:
    """Longest paths from above; what nothing feeds moves down to just above its first reader."""
    sources: dict[int, list[int]] = {}
    readers: dict[int, list[int]] = {}
    for a, b in edges:
        sources.setdefault(b, []).append(a)
        readers.setdefault(a, []).append(b)
    for i, box in enumerate(boxes):
        box.rank = 1 + max((boxes[a].rank for a in sources.get(i, ())), default=-1)
    for i in reversed(range(len(boxes))):
        if i not in sources and i in readers:
            boxes[i].rank = min(boxes[b].rank for b in readers[i]) - 1


def _trunks(boxes: list[Box], edges: Sequence[tuple[int, int]]) -> dict[int, list[tuple[int, int]]]:
    """The segments of every source; points are added to `boxes` where they pass a rank."""
    readers: dict[int, list[int]] = {}
    for a, b in dict.fromkeys(edges):
        readers.setdefault(a, []).append(b)
    segments: dict[int, list[tuple[int, int]]] = {}
    for source, found in readers.items():
        last = max(boxes[b].rank for b in found)
        trunk, pairs = [source], []
        for rank in range(boxes[source].rank + 1, last):
            boxes.append(Box(3, 3, 0, rank))
            pairs.append((trunk[-1], len(boxes) - 1))
            trunk.append(len(boxes) - 1)
        pairs += [(trunk[boxes[b].rank - boxes[source].rank - 1], b) for b in found]
        segments[source] = pairs
    return segments


def _ordered(boxes: list[Box]) -> list[list[int]]:
    """The boxes of every rank, in the order with the fewest crossings that a few sweeps find."""
    ranks: list[list[int]] = [[] for _ in range(1 + max((b.rank for b in boxes), default=-1))]
    for i, box in enumerate(boxes):
        ranks[box.rank].append(i)
    best, fewest = [list(r) for r in ranks], _crossings(boxes, ranks)
    for sweep in range(_fewer(SWEEPS, boxes)):
        if not fewest:
            break
        down = sweep % 2 == 0
        for members in ranks if down else reversed(ranks):
            where = {}
            for i in members:
                near = boxes[i].above if down else boxes[i].below
                where[i] = sum(boxes[n].x for n in near) / len(near) if near else boxes[i].x
            members.sort(key=where.__getitem__)
            for position, i in enumerate(members):
                boxes[i].x = position
        if (crossings := _crossings(boxes, ranks)) < fewest:
            best, fewest = [list(r) for r in ranks], crossings
    return best


def _crossings(boxes: list[Box], ranks: list[list[int]]) -> int:
    """How many pairs of segments cross; sets `x` of every box to its position in its rank."""
    for members in ranks:
        for position, i in enumerate(members):
            boxes[i].x = position
    total = 0
    for members in ranks:
        ends = [int(boxes[b].x) for i in members for b in sorted(boxes[i].below, key=lambda n: boxes[n].x)]
        total += _inversions(ends)
    return total


def _inversions(values: list[int]) -> int:
    """Pairs in the wrong order, by a Fenwick tree."""
    size = max(values, default=0) + 1
    tree, total = [0] * (size + 1), 0
    for seen, value in enumerate(values):
        i, smaller = value + 1, 0
        while i:
            smaller += tree[i]
            i -= i & -i
        total += seen - smaller
        i = value + 1
        while i <= size:
            tree[i] += 1
            i += i & -i
    return total


def _across(boxes: list[Box], ranks: list[list[int]], gap: float) -> None:
    """Horizontal positions: every box moves towards its neighbours, as far as the distances within its rank allow."""
    for members in ranks:
        x = 0.0
        for i in members:
            boxes[i].x = x + boxes[i].left
            x = boxes[i].x + boxes[i].right + gap
        for i in members:
            boxes[i].x -= (x - gap) / 2
    rounds = _fewer(ROUNDS, boxes)
    for turn in range(rounds):
        down, both = turn % 2 == 0, turn >= rounds // 2  # at last to both sides, so that a chain ends up straight
        for members in ranks if down else reversed(ranks):
            pulls = [_pull(boxes, i, down or both, not down or both) for i in members]
            distances = [_distance(boxes, a, b, gap) for a, b in pairwise(members)]
            places = _spread([x for x, _ in pulls], [weight for _, weight in pulls], distances)
            for i, x in zip(members, places, strict=True):
                boxes[i].x = x


def _straighten(
    boxes: list[Box], ranks: list[list[int]], segments: dict[int, list[tuple[int, int]]], gap: float
) -> None:
    """Make chains and trunks straight as far as their neighbours leave room, the longest first."""
    place = {i: position for members in ranks for position, i in enumerate(members)}
    for line in sorted((*_chains(boxes), *_trunk_lines(boxes, segments)), key=len, reverse=True):
        piece: list[int] = []
        low, high = -INFINITE, INFINITE
        for i in line:
            members, at = ranks[boxes[i].rank], place[i]
            left = boxes[members[at - 1]].x + _distance(boxes, members[at - 1], i, gap) if at else -INFINITE
            right = INFINITE
            if at + 1 < len(members):
                right = boxes[members[at + 1]].x - _distance(boxes, i, members[at + 1], gap)
            if max(low, left) > min(high, right):
                _align(boxes, piece, low, high)
                piece, low, high = [], -INFINITE, INFINITE
            piece.append(i)
            low, high = max(low, left), min(high, right)
        _align(boxes, piece, low, high)


def _align(boxes: list[Box], line: list[int], low: float, high: float) -> None:
    """Put the boxes of a line under each other, between two limits."""
    middle = sum(boxes[i].x for i in line) / max(1, len(line))
    for i in line:
        boxes[i].x = min(max(middle, low), high)


def _chains(boxes: list[Box]) -> list[list[int]]:
    """Runs of boxes of which each has one reader, whose only source it is."""
    chains: dict[int, list[int]] = {}
    for i, box in sorted(enumerate(boxes), key=lambda pair: pair[1].rank):
        if not box.passing:
            above = box.above[0] if len(box.above) == 1 else -1
            chain = chains.pop(above, []) if above >= 0 and boxes[above].below == [i] else []
            chain.append(i)
            chains[i] = chain
    return list(chains.values())


def _trunk_lines(boxes: list[Box], segments: dict[int, list[tuple[int, int]]]) -> list[list[int]]:
    """The points of every trunk."""
    return [[b for _, b in pairs if boxes[b].passing] for pairs in segments.values()]


def _fewer(times: int, boxes: list[Box]) -> int:
    """How often to repeat a pass over so many boxes."""
    return max(times // 4, times * MANY // max(MANY, len(boxes)))


def _pull(boxes: list[Box], index: int, up: bool, down: bool) -> tuple[float, float]:
    """Where the neighbours want a box, and how much they want it."""
    box = boxes[index]
    near = [boxes[i] for i in (box.above if up else []) + (box.below if down else [])]
    if not near:
        return box.x, 0.1
    weights = [STRAIGHT if n.passing and box.passing else 1.0 for n in near]
    total = sum(weights)
    return sum(w * n.x for w, n in zip(weights, near, strict=True)) / total, total


def _distance(boxes: list[Box], a: int, b: int, gap: float) -> float:
    return boxes[a].right + boxes[b].left + (gap / 2 if boxes[a].passing or boxes[b].passing else gap)


def _spread(wishes: list[float], weights: list[float], distances: list[float]) -> list[float]:
    """The positions nearest to the wishes (weighted least squares) that keep the distances: isotonic regression."""
    offsets = [0.0]
    for distance in distances:
        offsets.append(offsets[-1] + distance)
    runs: list[tuple[float, float, int]] = []  # mean, weight, count
    for wish, weight, offset in zip(wishes, weights, offsets, strict=True):
        mean, total, count = wish - offset, weight, 1
        while runs and runs[-1][0] > mean:
            before, heavy, members = runs.pop()
            mean = (before * heavy + mean * total) / (heavy + total)
            total, count = heavy + total, count + members
        runs.append((mean, total, count))
    means = [mean for mean, _, count in runs for _ in range(count)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]
