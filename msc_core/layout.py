"""Layouts: which letter each axis of each tensor has ("NCHW", "OIHW", "NC", "NTC"), as far as that is certain.

Axes that the op table says are the same form a class; a class has the letter that a layer gives it. Classes have no
direction, so letters reach tensors before a layer as well as behind it. Where letters disagree there is none.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from dataclasses import replace

from msc_core.factors import blocks
from msc_core.ir import MSCGraph
from msc_core.ops import Bound, bind
from msc_core.ops.signature import Axis

Position = tuple[str, int]  # a tensor and one of its axes
SPATIAL = {"1d": "W", "2d": "HW", "3d": "DHW"}
MERGED = {"HW": "T", "DHW": "T", "CW": "C", "CHW": "C", "CDHW": "C", "HD": "C", "NT": "N", "NH": "N"}
CONFLICT = "?"
Rules = tuple[tuple[str, str], ...]


def infer_layouts(graph: MSCGraph) -> MSCGraph:
    """The graph with the layout of every tensor whose axes are all known, and known to differ; the others have none.

    1. A layout that a tensor has already counts as known.
    2. Convolutions, pools, norms, embeddings, recurrent layers and image operators name their axes (`NCHW`, `OIHW`,
       `TNC`; a table is `IO`, as it is the weight of a linear layer on one-hot vectors).
    3. Then attention does (`NHTD`: heads, time, features of a head), and `linear` (`NC`, weights `OI`).
    4. Last, a sequence that only linear layers and layer norms read is `NTC`, by convention.

    A letter of a later rule goes only to axes that the earlier ones left open.
    """
    return _Layouts(graph).labelled()


class _Layouts:
    """Classes of axes (a union-find) and their letters."""

    def __init__(self, graph: MSCGraph) -> None:
        self.graph = graph
        self.parent: dict[Position, Position] = {}
        self.letters: dict[Position, str] = {}  # root -> letter, or CONFLICT
        self.bounds = [bind(node, graph.tensors) for node in graph.nodes]
        self.merges: list[tuple[list[Position], Position]] = []
        self.follows: list[tuple[Position, Position]] = []  # axes that a layer turns into each other
        self.stretched: list[tuple[Position, Position]] = []  # an axis of size 1, and the one that it broadcasts along
        for b in self.bounds:
            self._connect(b)
        while self._undo_merges():
            pass

    def labelled(self) -> MSCGraph:
        """Rules 1 to 4, then the letters of every tensor."""
        graph = self.graph
        self._seed([(t.name, t.layout) for t in graph.tensors.values()], early=True)
        self._seed(_seeds(self.bounds, graph.weights, LAYERS), early=True)
        for rules in (ATTENTION, MATRICES, SEQUENCES):
            self._derive()
            self._seed(_seeds(self.bounds, graph.weights, rules))
        self._derive()
        for _ in range(2):
            self._seed_each([(small, self._letter(large)) for small, large in self.stretched])
        tensors = {name: replace(t, layout=self._layout(name, len(t.shape))) for name, t in graph.tensors.items()}
        return graph.replace(tensors=tensors) if tensors != dict(graph.tensors) else graph

    # Classes

    def _root(self, at: Position) -> Position:
        while (parent := self.parent.get(at, at)) != at:
            self.parent[at] = self.parent.get(parent, parent)
            at = parent
        return at

    def _join(self, a: Position, b: Position) -> None:
        self.parent[self._root(a)] = self._root(b)

    def _letter(self, at: Position) -> str:
        return self.letters.get(self._root(at), "")

    def _layout(self, name: str, rank: int) -> str:
        found = [self._letter((name, axis)) for axis in range(rank)]
        whole = all(found) and CONFLICT not in found and len(set(found)) == rank
        return "".join(found) if whole else ""

    # Letters

    def _seed(self, layouts: Iterable[tuple[str, str]], early: bool = False) -> None:
        self._seed_each(
            [((name, axis), letter) for name, layout in layouts for axis, letter in enumerate(layout) if letter != "."],
            early,
        )

    def _seed_each(self, letters: Iterable[tuple[Position, str]], early: bool = False) -> None:
        """Give letters to classes that have none. Two that disagree, or that one tensor would have twice, are none."""
        given: dict[Position, str] = {}
        for at, letter in letters:
            root = self._root(at)
            taken = not early and letter in self._others(at)
            if letter and not taken and root not in self.letters:
                given[root] = letter if given.get(root, letter) == letter else CONFLICT
        self.letters |= given

    def _others(self, at: Position) -> set[str]:
        name, axis = at
        return {self._letter((name, i)) for i in range(len(self.graph.tensors[name].shape)) if i != axis}

    def _derive(self) -> None:
        """Letters of axes that others were merged into, and of those that a layer turned into others."""
        for _ in range(len(self.merges) + len(self.follows) + 1):
            before = len(self.letters)
            for parts, whole in self.merges:
                merged = MERGED.get("".join(self._letter(part) for part in parts), "")
                self._seed_each([(whole, merged)])
            for a, b in self.follows:
                for one, other in ((a, b), (b, a)):
                    letter = self._letter(one)
                    self._seed_each([(other, letter if letter != CONFLICT else "")])
            if len(self.letters) == before:
                return

    # Which axes are the same

    def _connect(self, b: Bound) -> None:
        if b.op.movement == "reshape":
            self._reshape(b)
        elif b.op.movement == "concat":
            for t in (*b.x, *b.out):
                for axis in range(len(b.input(0).shape)):
                    assert t is not None
                    self._join((t.name, axis), (b.input(0).name, axis))
        elif b.op.axes is not None:
            self._signature(b, _own(b, self.graph.weights))

    def _undo_merges(self) -> bool:
        """Axes that are merged, and divided again in the same sizes, are the same ones; whether any were found."""
        found: dict[tuple[object, ...], list[Position]] = {}
        changed = False
        for parts, whole in self.merges:
            sizes = tuple(self.graph.tensors[name].shape[axis] for name, axis in parts)
            for a, b in zip(parts, found.setdefault((self._root(whole), sizes), parts), strict=True):
                changed |= self._root(a) != self._root(b)
                self._join(a, b)
        return changed

    def _signature(self, b: Bound, own: set[int]) -> None:
        """Equal letters are the same axis; so is one that comes out under a new letter in the same place."""
        signature, seen = b.signature, dict[Axis, tuple[Position, object]]()
        operands = [(t, o) for i, (t, o) in enumerate(zip(b.x, signature.operands, strict=True))
                    if t is not None and i not in own]  # fmt: skip
        results = list(zip(b.out, signature.outputs, strict=True))
        for t, operand in (*results, *operands):
            for i, (axis, size) in enumerate(zip(operand.expand(len(t.shape)), t.shape, strict=True)):
                if not axis or all(x.isdigit() for x in axis):
                    continue
                first, large = seen.setdefault(axis, ((t.name, i), size))
                if size == large:
                    self._join((t.name, i), first)
                elif size == 1:
                    self.stretched.append(((t.name, i), first))
        if not operands or not results:
            return
        source, before = operands[0]
        kept = {axis for t, o in results for axis in o.expand(len(t.shape))}
        known = {axis for t, o in zip(b.x, signature.operands, strict=True) if t for axis in o.expand(len(t.shape))}
        for target, after in results:
            if len(source.shape) != len(target.shape):
                continue
            axes = zip(before.expand(len(source.shape)), after.expand(len(target.shape)), strict=True)
            for i, (old, new) in enumerate(axes):
                if old in kept:
                    continue
                if new not in known and (target is results[0][0] or not all(x.isdigit() for x in new)):
                    self._join((source.name, i), (target.name, i))
                elif own:
                    self.follows.append(((source.name, i), (target.name, i)))

    def _reshape(self, b: Bound) -> None:
        """Axes that stay whole are the same; some are merged, or divided, which is a merge backwards."""
        x, y = b.input(0), b.out[0]
        runs = blocks(x.shape, y.shape)
        for left, right in runs:
            if len(left) == len(right) == 1:
                self._join((x.name, left[0]), (y.name, right[0]))
            elif len(right) == 1:
                self.merges.append(([(x.name, i) for i in left], (y.name, right[0])))
            elif len(left) == 1:
                self.merges.append(([(y.name, j) for j in right], (x.name, left[0])))
        edges = [((-1), (-1)), *((left[-1], right[-1]) for left, right in runs)]
        ends = [*((left[0], right[0]) for left, right in runs), (len(x.shape), len(y.shape))]
        for (i, j), (k, m) in zip(edges, ends, strict=True):
            if k - i == m - j:
                for step in range(1, k - i):
                    self._join((x.name, i + step), (y.name, j + step))
            elif i == j == -1 and k > 0 and m > 0:
                self._join((x.name, 0), (y.name, 0))  # a batch of one stays in front


# Rules: an operator, its operands' layouts and its outputs'. `*` is any number of axes that are left open, or the
# spatial ones that the operator's name says. A rule whose layout has not the rank of a tensor says nothing about it.


def _seeds(bounds: list[Bound], weights: Container[str], rules: Rules) -> Iterator[tuple[str, str]]:
    for b in bounds:
        for match, layouts in _matching(b, weights, rules):
            for tensors, texts in zip((b.x, b.out), layouts, strict=True):
                for t, text in zip(tensors, texts, strict=False):
                    layout = _spelled(text, match, len(t.shape)) if t is not None else ""
                    if t is not None and len(layout) == len(t.shape):
                        yield t.name, layout


def _matching(b: Bound, weights: Container[str], rules: Rules) -> Iterator[tuple[re.Match[str], list[list[str]]]]:
    """The rules for a node. A product with a constant matrix is as good as a linear layer."""
    op = b.node.op
    if op == "matmul" and b.input(1).name in weights and len(b.input(1).shape) == 2:
        op = "matmul with weight"
    for pattern, text in rules:
        if match := re.fullmatch(pattern, op):
            yield match, [[part.strip() for part in side.split(",")] for side in text.split("->")]


def _spelled(layout: str, match: re.Match[str], rank: int) -> str:
    spatial = SPATIAL[match[1]] if match.groups() else "." * (rank - len(layout) + 1)
    return layout.replace("*", spatial)


def _own(b: Bound, weights: Container[str]) -> set[int]:
    """The operands that have letters of their own, other than those of the data that they meet."""
    found = (layouts[0] for _, layouts in _matching(b, weights, LAYERS))
    return {
        i
        for operands in found
        for i, layout in enumerate(operands)
        if set(layout) & set("OI") or (i > 0 and layout == "C")
    }


RECURRENT = "OI, OI, O, O"
LAYERS: Rules = (
    (r"conv(1d|2d|3d)", "NC*, OI*, O -> NC*"),
    (r"conv(1d|2d|3d)_transpose", "NC*, IO*, O -> NC*"),
    (r"(?:adaptive_)?(?:avg|max|lp)_pool(1d|2d|3d)(?:_indices)?", "NC* -> NC*, NC*"),
    (r"batch_norm", "NC*, C, C, C, C -> NC*"),
    (r"instance_norm|group_norm", "NC*, C, C -> NC*"),
    (r"local_response_norm", "NC* -> NC*"),
    (r"pixel_shuffle|pixel_unshuffle|resize2d|grid_sample", "NCHW -> NCHW"),
    (r"lstm", f"TNC, DNC, DNC, {RECURRENT}, {RECURRENT} -> TNC, DNC, DNC"),
    (r"gru|rnn", f"TNC, DNC, {RECURRENT}, {RECURRENT} -> TNC, DNC"),
    (r"embedding", "IO -> *C"),
    (r"linear", ", OI, O ->"),
    (r"matmul with weight", ", IO ->"),
)
ATTENTION: Rules = ((r"attention", "NHTD, NHTD, NHTD -> NHTD"),)
MATRICES: Rules = (
    (r"linear|matmul with weight|layer_norm|rms_norm", "*C -> *C"),
    (r"linear|matmul with weight", "NC -> NC"),
)
SEQUENCES: Rules = (
    (r"linear|matmul with weight|layer_norm|rms_norm", "NTC -> NTC"), (r"embedding", ", NT -> NTC"),
    (r"batch_norm|instance_norm|group_norm", "NCW -> NCW"), (r"batch_norm|instance_norm|group_norm", "NCHW -> NCHW"),
    (r"batch_norm|instance_norm|group_norm", "NCDHW -> NCDHW"),
)  # fmt: skip
