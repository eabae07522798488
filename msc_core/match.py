"""A small matcher: a pattern is a function that finds the ways in which a tensor of a graph can be read as it.

Patterns are made from each other by the functions below. What they find is bound to names, equal names to equal things.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from msc_core.ir import Array, MSCGraph, Node, Tensor, consumers, unique
from msc_core.ops import Bound, bind

COMMUTATIVE = {"add", "multiply"}
SAME_ELEMENTS = ("reshape", "flatten", "expand_dims", "squeeze")
EPSILON = {"float16": 2.0**-10, "float32": 2.0**-23, "float64": 2.0**-52}  # the dtypes that patterns match


@dataclass(frozen=True)
class Found:
    """What a pattern has found so far: names and their values, and the nodes that it covers, the last one first."""

    values: Mapping[str, Any] = field(default_factory=dict)
    nodes: tuple[Node, ...] = ()

    def bound(self, name: str, value: Any) -> Found | None:
        """With `name` bound to `value`; `None` if it is bound to something else."""
        if name not in self.values:
            return Found({**self.values, name: value}, self.nodes)
        return self if self.values[name] == value else None

    def covering(self, node: Node) -> Found:
        """With `node` among the covered ones."""
        return self if node in self.nodes else Found(self.values, (*self.nodes, node))


class View:
    """What patterns ask about a graph."""

    def __init__(self, graph: MSCGraph) -> None:
        self.graph = graph
        self.producer = {name: node for node in graph.nodes for name in node.outputs}
        self.readers = consumers(graph)
        self.position = {node.name: i for i, node in enumerate(graph.nodes)}
        self.names = {*graph.tensors, *(node.name for node in graph.nodes)}

    def bound(self, node: Node) -> Bound:
        """A node with its tensors."""
        return bind(node, self.graph.tensors)

    def constant(self, name: str) -> tuple[str, Array] | None:
        """The weight behind a tensor, and its value where only reshapes and transposes are between; else `None`."""
        if name in self.graph.weights:
            return name, self.graph.weights[name]
        node = self.producer.get(name)
        if node is None or node.op not in (*SAME_ELEMENTS, "permute_dims"):
            return None
        found, shape = self.constant(node.inputs[0]), self.graph.tensors[name].shape
        if found is None or not all(isinstance(d, int) for d in shape):
            return None
        origin, array = found
        return origin, array.transpose(permutation(self.bound(node))) if node.op == "permute_dims" else array.reshape(
            shape
        )

    def number(self, name: str) -> float | None:
        """The value of a constant of one element."""
        found = self.constant(name)
        return float(found[1].item()) if found is not None and found[1].size == 1 else None

    def only_in(self, name: str, nodes: tuple[Node, ...]) -> bool:
        """Whether nothing but these nodes needs a tensor."""
        return name not in self.graph.outputs and all(reader in nodes for reader in self.readers.get(name, ()))

    def close(self, value: float, target: float, name: str) -> bool:
        """Whether two numbers are the same in the precision of a tensor."""
        tolerance = 2 * EPSILON.get(self.graph.tensors[name].dtype, 0.0)
        return value == target or abs(value - target) <= tolerance * abs(target) < math.inf


Pattern = Callable[[View, str, Found], Iterator[Found]]


def permutation(b: Bound) -> tuple[int, ...]:
    """The axes of a `permute_dims`, counted from the front."""
    rank = len(b.input(0).shape)
    return tuple(axis % rank for axis in b["axes"]) or tuple(reversed(range(rank)))


def tensor(name: str) -> Pattern:
    """Any tensor."""

    def find(view: View, at: str, found: Found) -> Iterator[Found]:
        if (more := found.bound(name, at)) is not None:
            yield more

    return find


def constant(name: str) -> Pattern:
    """A weight, perhaps reshaped or transposed: bound to the tensor's name."""

    def find(view: View, at: str, found: Found) -> Iterator[Found]:
        if view.constant(at) is not None and (more := found.bound(name, at)) is not None:
            yield more

    return find


def number(value: float | str) -> Pattern:
    """A constant of one element: one that is `value`, or any, bound to that name."""

    def find(view: View, at: str, found: Found) -> Iterator[Found]:
        here = view.number(at)
        if here is None:
            return
        if isinstance(value, str):
            if (more := found.bound(value, here)) is not None:
                yield more
        elif view.close(here, value, at):
            yield found

    return find


def op(
    names: str | tuple[str, ...], *inputs: Pattern, where: Callable[[Bound], object] | None = None, node: str = ""
) -> Pattern:
    """An operator with exactly these inputs, in either order if it commutes; its node is bound to the name `node`."""
    wanted = (names,) if isinstance(names, str) else names

    def find(view: View, at: str, found: Found) -> Iterator[Found]:
        here = view.producer.get(at)
        if here is None or here.op not in wanted or len(here.outputs) > 1:
            return
        given = here.inputs
        while given and not given[-1]:
            given = given[:-1]
        if len(given) != len(inputs) or "" in given or (where is not None and not where(view.bound(here))):
            return
        more = found.bound(node, here) if node else found
        if more is None:
            return
        yield from sequence(inputs, given)(view, at, more.covering(here))
        if here.op in COMMUTATIVE and given[0] != given[1]:
            yield from sequence(inputs, given[::-1])(view, at, more.covering(here))

    return find


def sequence(patterns: tuple[Pattern, ...], at: tuple[str, ...]) -> Pattern:
    """All of the patterns, each at its tensor."""

    def find(view: View, _: str, found: Found) -> Iterator[Found]:
        if not patterns:
            yield found
            return
        for more in patterns[0](view, at[0], found):
            yield from sequence(patterns[1:], at[1:])(view, "", more)

    return find


def either(*patterns: Pattern) -> Pattern:
    """One of the patterns."""

    def find(view: View, at: str, found: Found) -> Iterator[Found]:
        for pattern in patterns:
            yield from pattern(view, at, found)

    return find


def scaled(factor: float | str, pattern: Pattern) -> Pattern:
    """A pattern times a constant, which may come in several multiplications and divisions; a name binds the constant.

    With a name the constant may be 1, that is, absent, and takes in as many factors as it can.
    """

    def find(view: View, at: str, found: Found) -> Iterator[Found]:
        for value, inner, covered in reversed(list(_peel(view, at, found))):
            if isinstance(factor, str):
                more = covered.bound(factor, value)
            else:
                more = covered if view.close(value, factor, at) else None
            if more is not None:
                yield from pattern(view, inner, more)

    return find


def product(factor: float, left: Pattern, right: Pattern) -> Pattern:
    """`factor * left * right`, multiplied in any order."""

    def find(view: View, at: str, found: Found) -> Iterator[Found]:
        for outer, inner, covered in _peel(view, at, found):
            here = view.producer.get(inner)
            if here is None or here.op != "multiply":
                continue
            for a, first, one in _peel(view, here.inputs[0], covered.covering(here)):
                for b, second, both in _peel(view, here.inputs[1], one):
                    if view.close(outer * a * b, factor, at):
                        yield from sequence((left, right), (first, second))(view, at, both)
                        yield from sequence((left, right), (second, first))(view, at, both)

    return find


def _peel(view: View, at: str, found: Found) -> Iterator[tuple[float, str, Found]]:
    """Every way to read a tensor as a constant times another tensor, the trivial one first."""
    yield 1.0, at, found
    here = view.producer.get(at)
    if here is None or here.op not in ("multiply", "divide"):
        return
    for i in (0, 1) if here.op == "multiply" else (1,):
        value = view.number(here.inputs[i])
        if value:
            for factor, inner, covered in _peel(view, here.inputs[1 - i], found.covering(here)):
                yield factor * (value if here.op == "multiply" else 1 / value), inner, covered
            return


class Site:
    """Where a pattern was found: what its replacement is built from."""

    def __init__(self, view: View, root: Node, found: Found) -> None:
        self.view, self.root, self.found = view, root, found
        self.nodes = tuple(sorted(found.nodes, key=lambda n: view.position[n.name]))
        self.new: dict[str, Array] = {}
        first = next((n for n in self.nodes if any(view.constant(x) is None for x in n.inputs)), root)
        self.name, self.scope = first.name, first.scope

    def __getitem__(self, name: str) -> Any:
        return self.found.values[name]

    def get(self, name: str, default: Any = None) -> Any:
        """What a name is bound to, or a default."""
        return self.found.values.get(name, default)

    def tensor(self, name: str) -> Tensor:
        """The tensor that a name is bound to."""
        return self.view.graph.tensors[self[name]]

    def bounds(self, op: str) -> list[Bound]:
        """The covered nodes of an operator."""
        return [self.view.bound(node) for node in self.nodes if node.op == op]

    def array(self, name: str) -> Array:
        """The value of a constant that a name is bound to."""
        found = self.view.constant(self[name])
        assert found is not None
        return found[1]

    def weight(self, name: str, array: Array, suffix: str) -> Tensor:
        """A weight of that value in place of the constant `name`.

        It is the constant's own weight where that has this value, or takes over its name where nothing else needs it.
        """
        found = self.view.constant(self[name])
        assert found is not None
        origin, _ = found
        old = self.view.graph.weights[origin]
        if old.shape == array.shape and np.array_equal(old, array):
            return self.view.graph.tensors[origin]
        uses = sum(node.inputs.count(origin) for node in self.nodes)
        if uses != 1 or not self.view.only_in(origin, self.nodes):
            origin = unique(f"{self.name}.{suffix}", self.view.names)
            self.view.names.add(origin)
        self.new[origin] = np.ascontiguousarray(array)
        return Tensor(origin, array.shape, array.dtype.name)


def sites(view: View, pattern: Pattern, node: Node) -> Iterator[Site]:
    """The ways in which a node is the root of the pattern, such that what is inside is needed nowhere else."""
    (root,) = node.outputs
    if view.graph.tensors[root].dtype not in EPSILON:
        return
    for found in pattern(view, root, Found()):
        inner = [name for covered in found.nodes if covered is not node for name in covered.outputs]
        if all(view.only_in(name, found.nodes) for name in inner):
            yield Site(view, node, found)
