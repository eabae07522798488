"""What every front end shares: turns the `Call`s that a row answers with into nodes, constants and names."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from msc_core.ir import Array, MSCGraph, Node, Tensor, unique
from msc_core.ops import OPS, Call, bind, describe


class GraphBuilder:
    """Collects the nodes, weights and tensors of a graph; every name that it makes is new."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.tensors: dict[str, Tensor] = {}
        self.weights: dict[str, Array] = {}
        self.node_names: set[str] = set()
        self._reserved: tuple[Container[str], Container[str]] = ((), ())
        self._shared: dict[int, tuple[Call, Any]] = {}  # by identity, of one tree; the call is kept, and so its number

    def reserve(self, tensors: Container[str], nodes: Container[str]) -> None:
        """Names that the model gives to tensors and nodes: none that is derived here takes them away."""
        self._reserved = (tensors, nodes)

    def mark(self) -> tuple[int, int, int]:
        """A point to come back to with `restore`."""
        return len(self.nodes), len(self.tensors), len(self.weights)

    def restore(self, mark: tuple[int, int, int]) -> None:
        """Forget all that came after a mark."""
        self.node_names.difference_update(node.name for node in self.nodes[mark[0] :])
        del self.nodes[mark[0] :]
        for named, count in ((self.tensors, mark[1]), (self.weights, mark[2])):
            while len(named) > count:
                named.popitem()

    def graph(self, name: str, inputs: Sequence[str], outputs: Sequence[str]) -> MSCGraph:
        """What was built, from those inputs to those outputs; what no output needs is dropped."""
        needed = set(outputs)
        nodes = []
        for node in reversed(self.nodes):
            if not needed.isdisjoint(node.outputs):
                needed.update(node.inputs)
                nodes.append(node)
        return MSCGraph(name, tuple(reversed(nodes)), tuple(inputs), tuple(outputs), self.weights, self.tensors)

    def add(self, tensor: Tensor) -> Tensor:
        """Register a tensor."""
        self.tensors[tensor.name] = tensor
        return tensor

    def weight(self, name: str, array: Array) -> Tensor:
        """A weight, under exactly that name."""
        self.weights[name] = array
        return self.add(Tensor(name, array.shape, array.dtype.name))

    def constant(self, name: str, value: Array) -> Tensor:
        """A weight under that name, or one like it that is free."""
        return self.weight(unique(name, self.tensors), np.asarray(value))

    def rename(self, old: str, new: str) -> str:
        """Give a node's output another name, if that is free; returns the name that it has now."""
        if new in self.tensors or not any(old in node.outputs for node in self.nodes):
            return old
        swap = {old: new}
        self.nodes = [
            replace(
                node,
                inputs=tuple(swap.get(n, n) for n in node.inputs),
                outputs=tuple(swap.get(n, n) for n in node.outputs),
            )
            for node in self.nodes
        ]
        self.tensors[new] = replace(self.tensors.pop(old), name=new)
        return new

    def emit(self, value: Any, name: str, scope: str = "", results: Sequence[str] = ()) -> Any:
        """Turn what an importer returned into tensors: calls into nodes, arrays into constants.

        The outermost call takes `name`, inner ones derive theirs; `results` are the names of its outputs, by default
        the name of the node (with `.0`, `.1` ... if there are several outputs). A tuple is emitted part by part. A
        call that the tree holds at several places becomes one node.
        """
        self._shared = {}
        if not isinstance(value, tuple):
            return self._emit(value, name, scope, results)
        names = results or [f"{name}.{i}" if i else name for i in range(len(value))]
        parts = list(zip(value, names, strict=False))
        wanted: dict[int, list[str]] = {}  # of calls that have several outputs: their names, where the tuple says them
        for part, result in parts:
            if isinstance(part, Call) and part.fn == "item":
                source, index = part.args
                given = wanted.setdefault(id(source), [])
                given.extend([""] * (index + 1 - len(given)))
                given[index] = given[index] or result
        return tuple(self._emit(part, name, scope, [result], wanted) for part, result in parts)

    def _emit(
        self,
        value: Any,
        name: str,
        scope: str,
        results: Sequence[str] = (),
        wanted: Mapping[int, list[str]] | None = None,
    ) -> Any:
        if isinstance(value, (np.ndarray, np.generic)):
            free = unique(f"{name}.const", self._reserved[0])
            return self.constant(results[0] if results and results[0] else free, np.asarray(value))
        if not isinstance(value, Call):
            return value
        if value.fn == "item":
            source, index = value.args
            names = (wanted or {}).get(id(source), [*[""] * index, *results])
            return self._emit(source, name, scope, names)[index]
        if id(value) not in self._shared:
            self._shared[id(value)] = value, self._call(value, name, scope, results)
        return self._shared[id(value)][1]

    def _call(self, value: Call, name: str, scope: str, results: Sequence[str]) -> Any:
        """The tensors of a call's node."""
        inner = unique(f"{name}.{value.fn}", self._reserved[1])
        arguments = [self._emit(arg, inner, scope) for arg in value.args]
        while arguments and arguments[-1] is None:
            arguments.pop()
        name = unique(name, self.node_names)
        self.node_names.add(name)
        attrs = {k: v for k, v in value.attrs.items() if v != OPS[value.fn].attrs[k]}
        inputs = tuple(a.name if a is not None else "" for a in arguments)
        return self._outputs(Node(name, value.fn, inputs, (), attrs, scope), list(results))

    def _outputs(self, node: Node, results: list[str]) -> Any:
        """Add a node, whose outputs its row knows, and return its tensors: one, or a tuple."""
        described = describe(bind(node, self.tensors))
        names: list[str] = []
        for i in range(len(described)):
            wanted = results[i] if i < len(results) else ""
            derived = f"{node.name}.{i}" if len(described) > 1 else node.name
            wanted = wanted or unique(derived, self._reserved[0])
            taken: ChainMap[str, Any] = ChainMap(self.tensors, dict.fromkeys(names))
            names.append(unique(wanted, taken))
        self.nodes.append(Node(node.name, node.op, node.inputs, tuple(names), node.attrs, node.scope))
        tensors = tuple(self.add(Tensor(n, shape, dtype)) for n, (shape, dtype) in zip(names, described, strict=True))
        return tensors if len(tensors) > 1 else tensors[0]
