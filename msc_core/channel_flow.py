"""The flow of channel ids through a graph: an abstract interpretation in which every position of an axis carries ids.

Signatures say how ids flow: equal letters are equated; a composite axis gives each position one id per letter. A row's
`moves` say from which positions the letters of its output come. Reshapes are factored into composites. A letter that
leads nowhere (it is reduced, windowed over, compared with positions) pins its ids.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from msc_core.channel_ids import NONE, Ids, IdTable, joined, merge
from msc_core.channel_zeros import RULES, adds_nothing, some
from msc_core.dims import Dim
from msc_core.factors import blocks, positions, refine, take
from msc_core.ir import Array, MSCGraph, Node, Tensor
from msc_core.ops import Bound, bind
from msc_core.ops.op import Moves
from msc_core.ops.signature import Axis, Operand

Letters = dict[str, Ids | None]


class ChannelFlow:
    """The ids of every axis of a graph.

    `axes[tensor][i]` is an array (positions, k), or `None` if no position has ids; an axis of size `"4*N"` has the ids
    of its last 4 positions. `zeros[tensor][i]` says whether its positions are zero when their channels have no weights
    (those of weights are). `letters[node]` are the ids of each letter of a node's signature. `uses` are the axes of
    weights as (node, weight, axis, contracted), `contracted` the ids over which some node sums.
    """

    def __init__(self, graph: MSCGraph) -> None:
        self.graph = graph
        self.ids = IdTable()
        self.axes: dict[str, list[Ids | None]] = {n: [None] * len(graph.tensors[n].shape) for n in graph.inputs}
        self.zeros: dict[str, list[bool]] = {n: [False] * len(axes) for n, axes in self.axes.items()}
        self.letters: dict[str, Letters] = {}
        self.uses: list[tuple[str, str, int, bool]] = []
        self.contracted: list[Ids] = []
        self.readers = Counter(name for node in graph.nodes for name in node.inputs)
        for node in graph.nodes:
            _Step(self, node).run()
        for name in graph.outputs:
            for axis in self.axes.get(name, []):
                self.ids.pin(axis, f"reaches the graph output {name!r}")


class _Step:
    """The flow of ids through one node."""

    def __init__(self, flow: ChannelFlow, node: Node) -> None:
        self.flow, self.ids, self.node = flow, flow.ids, node
        self.bound: Bound = bind(node, flow.graph.tensors)
        self.letters: Letters = {}
        self.flags: list[dict[str, bool]] = [{} for _ in self.bound.x]  # letters of operands, and whether they are zero
        self.sources: dict[str, list[str]] = {}  # letter of the output -> letters that its positions come from
        self.sizes: dict[str, Dim] = {}
        paired = [names.split() for names in self.bound.op.sized.values() if " " in names]
        self.fixed = {letter for names in paired for letter in names}  # two that one attribute sizes

    def run(self) -> None:
        if self.bound.op.axes is None:
            results = self._pinned()
        elif self.bound.op.movement == "reshape":
            results = [self._reshape()]
        else:
            results = self._signature()
        self.flow.axes.update(zip(self.node.outputs, results, strict=True))
        for name, axes in zip(self.node.outputs, results, strict=True):
            self.flow.zeros.setdefault(name, [False] * len(axes))

    def _why(self, what: str) -> str:
        return f"{what} {self.node.name!r} ({self.node.op})"

    def _pinned(self) -> list[list[Ids | None]]:
        """Nothing is known of how the operator moves positions: all that it reads stays."""
        for tensor in self.bound.x:
            for ids in self.flow.axes.setdefault(tensor.name, [None] * len(tensor.shape)) if tensor else ():
                self.ids.pin(ids, self._why("is rearranged by"))
        return [[None] * len(tensor.shape) for tensor in self.bound.out]

    def _signature(self) -> list[list[Ids | None]]:
        bound, signature = self.bound, self.bound.signature
        self.sizes = bound.sizes()
        self.sizes |= bound.op.new(bound, self.sizes) if bound.op.new else {}
        pairs = zip(bound.x, signature.operands, strict=True)
        operands = [(t, operand.expand(len(t.shape))) for t, operand in pairs if t is not None]
        self._flag(signature.operands)
        outputs = [_expanded(o, t) for o, t in zip(signature.outputs, bound.out, strict=True)]
        for tensor, axes in sorted(operands, key=lambda pair: pair[0].name not in self.flow.axes):  # activations first
            if tensor.name in self.flow.axes:
                for axis, size, ids in zip(axes, tensor.shape, self.flow.axes[tensor.name], strict=True):
                    self._bind(ids, axis, size)
            else:
                self.flow.axes[tensor.name] = [self._adopt(*pair) for pair in zip(axes, tensor.shape, strict=True)]
        kept = {letter for axes in outputs for axis in axes for letter in axis} | self._move()
        seen = Counter(letter for _, axes in operands for axis in axes for letter in axis)
        for letter, ids in self.letters.items():
            if letter in kept or ids is None:
                continue
            if seen[letter] == 1 and not adds_nothing(bound, self.flags, letter):
                self.ids.pin(ids, self._why("is reduced or windowed over by"))
            elif seen[letter] > 1 and not some(bound, self.flags, letter):
                self.ids.pin(ids, self._why("is summed over, where masked channels are not zero, by"))
            else:
                self.flow.contracted.append(ids)
        self._record(operands, kept)
        self.flow.letters[self.node.name] = self.letters
        for tensor, axes in zip(bound.out, outputs, strict=True):
            self.flow.zeros[tensor.name] = [all(map(self._zero, axis)) for axis in axes]
        return [[self._merged(axis) for axis in axes] for axes in outputs]

    def _flag(self, operands: tuple[Operand, ...]) -> None:
        """Which letters of the operands are zero where they are masked; an axis that broadcasts has none."""
        for flags, tensor, operand in zip(self.flags, self.bound.x, operands, strict=True):
            if tensor is None:
                continue
            zeros = self.flow.zeros.get(tensor.name, [True] * len(tensor.shape))
            for axis, size, zero in zip(_expanded(operand, tensor), tensor.shape, zeros, strict=True):
                if not (size == 1 and self._broadcast(axis)):
                    flags |= {letter: zero and flags.get(letter, True) for letter in axis}

    def _zero(self, letter: str) -> bool:
        """Whether a letter of the output is zero where it is masked."""
        rule = RULES.get(self.bound.op.name)
        carrying = [x for x in self.sources.get(letter, [letter]) if self.letters.get(x) is not None]
        return all(rule is not None and rule(self.bound, self.flags, x) for x in carrying)

    def _adopt(self, axis: Axis, size: Dim) -> Ids | None:
        """The ids of an axis of a weight that is seen first here: those of its letters, new ones for new letters."""
        if size == 1 and self._broadcast(axis):
            return None
        for letter in axis:
            if letter not in self.letters and not letter.isdigit() and self._size(letter) > 1:
                self.letters[letter] = self.ids.fresh(self._size(letter))
        return self._merged(axis)

    def _bind(self, ids: Ids | None, axis: Axis, size: Dim) -> None:
        """Equate the letters of an axis with ids that the tensor already has."""
        rigid = {i for i, letter in enumerate(axis) if letter.isdigit() or letter in self.fixed}
        if len(rigid) == len(axis) or (size == 1 and self._broadcast(axis)):
            self.ids.pin(ids, self._why("is an axis that cannot change of"))
            return
        if any(isinstance(self.sizes.get(letter), str) for letter in axis[1:]):
            self.ids.pin(ids, self._why("is repeated by a size that is not known in"))
            ids = None
        factors = tuple(self._size(letter) for letter in axis)
        parts = [ids] if len(axis) == 1 else self.ids.split(ids, factors, self._why("is grouped unevenly by"), rigid)
        for letter, part in zip(axis, parts, strict=True):
            if letter in self.letters:
                self.letters[letter] = self.ids.equate(self.letters[letter], part, self._why("meets a fixed axis in"))
            else:
                self.letters[letter] = part

    def _broadcast(self, axis: Axis) -> bool:
        """Whether an axis of size 1 stands for a larger one."""
        return any(self.sizes.get(letter) != 1 for letter in axis)

    def _size(self, letter: str) -> int:
        return int(letter) if letter.isdigit() else positions(self.sizes.get(letter, 1))

    def _merged(self, axis: Axis) -> Ids | None:
        parts = [self.letters.get(letter) for letter in axis]
        if any(isinstance(self.sizes.get(letter), str) for letter in axis[1:]):
            for part in parts:
                self.ids.pin(part, self._why("is repeated by a size that is not known in"))
            return None
        return merge(parts, [self._size(letter) for letter in axis])

    def _move(self) -> set[str]:
        """Give letters of the output the ids of the positions that they come from; returns the letters that moved."""
        moved: set[str] = set()
        for letters, pieces in self._moves().items():
            names = letters.split()
            if pieces is None:  # all positions alike: each is free to go
                size = self.sizes.get(letters, 1)
                self.letters[letters] = self.ids.fresh(size) if isinstance(size, int) and size > 1 else None
                continue
            moved |= {source for source, _ in pieces}
            self.sources |= {name: [source for source, _ in pieces] for name in names}
            ids = self._pieces(pieces)
            if ids is None or not names or len(ids) == 1:
                self.ids.pin(ids, self._why("is picked alone by"))
                ids = None
            sizes = tuple(self._size(name) for name in names)
            parts = self.ids.split(ids, sizes, self._why("is cut unevenly by")) if len(names) > 1 else [ids]
            for name, part in zip(names, parts, strict=bool(names)):
                known = name in self.letters
                reason = self._why("meets a fixed axis in")
                self.letters[name] = self.ids.equate(self.letters[name], part, reason) if known else part
        return moved

    def _moves(self) -> Moves:
        rule = self.bound.op.moves
        return rule(self.bound, self._value) if rule else {}

    def _value(self, tensor: Tensor) -> Array | None:
        """The value of a weight that only this node reads: surgery may renumber the positions in it."""
        weight = self.flow.graph.weights.get(tensor.name)
        return weight if self.flow.readers[tensor.name] == 1 and tensor.name not in self.flow.graph.outputs else None

    def _pieces(self, pieces: tuple[tuple[str, Array], ...]) -> Ids | None:
        """The ids at those positions of letters, one piece behind the other."""
        if all(self.letters.get(source) is None for source, _ in pieces):
            return None
        found = []
        for source, index in pieces:
            ids = self.letters.get(source)
            resolved = np.full((1, 1), NONE) if ids is None else self.ids.resolve(ids)
            picked = resolved[index if ids is not None else np.zeros_like(index)]
            found.append(np.where((index == NONE)[:, None], NONE, picked))
        return joined(found)

    def _record(self, operands: list[tuple[Tensor, tuple[Axis, ...]]], kept: set[str]) -> None:
        indices = self.bound.op.indices(self.bound) if self.bound.op.indices else {}
        positions = {self.bound.input(i).name for i in indices}
        for tensor, axes in operands:
            if tensor.name in self.flow.graph.weights and tensor.name not in positions:
                for position, axis in enumerate(axes):
                    contracted = bool(axis) and not any(letter in kept for letter in axis if letter != "g")
                    self.flow.uses.append((self.node.name, tensor.name, position, contracted))

    def _reshape(self) -> list[Ids | None]:
        tensor, target = self.bound.input(0), self.bound.out[0].shape
        source = tensor.shape
        new = [self.ids.fresh(d) if isinstance(d, int) and d > 1 else None for d in source]
        axes = self.flow.axes.setdefault(tensor.name, new) if tensor.name in self.flow.graph.weights else (
            self.flow.axes[tensor.name]
        )  # fmt: skip
        self._record([(tensor, tuple((f"a{i}",) for i in range(len(source))))], {f"a{i}" for i in range(len(source))})
        out: list[Ids | None] = [None] * len(target)
        for ids, size in zip(axes, source, strict=True):
            if size == 1:
                self.ids.pin(ids, self._why("is picked alone by"))
        zeros = self.flow.zeros.get(tensor.name, [True] * len(source))
        zero = self.flow.zeros[self.node.outputs[0]] = [True] * len(target)
        for left, right in blocks(source, target):
            for j in right:
                zero[j] = all(zeros[i] for i in left if axes[i] is not None)
            if len(left) == len(right) == 1:
                out[right[0]] = axes[left[0]]
            elif any(axes[i] is not None for i in left):
                self._regroup(axes, [(i, source[i]) for i in left], [(j, target[j]) for j in right], out)
        return out

    def _regroup(
        self, axes: list[Ids | None], left: list[tuple[int, Dim]], right: list[tuple[int, Dim]], out: list[Ids | None]
    ) -> None:
        """A run of axes that is cut into other ones: into common factors and out of them again."""
        reason = self._why("is cut unevenly by")
        sizes, wanted = (tuple(d for _, d in side) for side in (left, right))
        factors = None if 0 in sizes else refine(sizes, wanted)
        if factors is None:
            for i, _ in left:
                self.ids.pin(axes[i], reason)
            return
        pieces: list[Ids | None] = []
        for i, size in left:
            taken = take(factors[len(pieces) :], size)
            if any(isinstance(d, str) for d in taken[1:]):
                self.ids.pin(axes[i], reason)
                pieces += [None] * len(taken)
            elif len(taken) == 1:
                pieces.append(axes[i])
            else:
                pieces += self.ids.split(axes[i], tuple(map(positions, taken)), reason)
        start = 0
        for j, size in right:
            taken = take(factors[start:], size)
            parts = pieces[start : start + len(taken)]
            start += len(taken)
            if any(isinstance(d, str) for d in taken[1:]):
                for part in parts:
                    self.ids.pin(part, reason)
            else:
                out[j] = merge(parts, list(map(positions, taken)))


def _expanded(operand: Operand, tensor: Tensor) -> tuple[Axis, ...]:
    return operand.expand(len(tensor.shape))
