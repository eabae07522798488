"""Shapes: interpret a graph over the op table and describe every tensor; bind symbolic dimensions."""

from __future__ import annotations

import dataclasses

from msc_core import dims
from msc_core.errors import InvalidGraph
from msc_core.ir import Attr, MSCGraph, Node, Tensor
from msc_core.ops import OPS, Bound, bind, describe


def infer(graph: MSCGraph) -> MSCGraph:
    """The same graph with the shape and dtype of every node output recomputed from inputs, weights and attributes.

    Raises `InvalidGraph`, naming the node, where an operator's axes disagree.
    """
    tensors = {name: graph.tensors[name] for name in graph.inputs}
    tensors |= {name: Tensor(name, w.shape, w.dtype.name) for name, w in graph.weights.items()}
    for node in graph.nodes:
        try:
            tensors |= {tensor.name: tensor for tensor in outputs(bind(node, tensors))}
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:  # from the row
            reason = f"its inputs or attributes do not fit: {type(error).__name__}: {error}"
            raise InvalidGraph(f"node {node.name!r} ({node.op}): {reason}") from error
    return graph.replace(tensors=tensors)


def outputs(bound: Bound) -> list[Tensor]:
    """A node's outputs, from its row; raises `InvalidGraph` where the inputs do not fit."""
    names, described = bound.node.outputs, describe(bound)
    if len(names) != len(described):
        raise InvalidGraph(f"{bound}: {len(names)} outputs found, {len(described)} expected")
    return [Tensor(name, shape, dtype) for name, (shape, dtype) in zip(names, described, strict=True)]


def symbols(graph: MSCGraph) -> list[str]:
    """The symbols of the inputs' shapes, in order."""
    return dims.symbols(d for name in graph.inputs for d in graph.tensors[name].shape)


def single(graph: MSCGraph) -> MSCGraph:
    """The graph for a batch of one: every symbolic dimension of its inputs is 1."""
    return bind_symbols(graph, **dict.fromkeys(symbols(graph), 1))


def bind_symbols(graph: MSCGraph, **sizes: int) -> MSCGraph:
    """The graph for fixed sizes of its symbols: `bind_symbols(graph, N=1)`. Symbols that are not named stay."""

    def fixed(value: Attr) -> Attr:
        if isinstance(value, tuple):
            return tuple(map(fixed, value))
        return dims.substitute(value, sizes) if isinstance(value, str) else value

    def node(n: Node) -> Node:
        changed = {k: fixed(n.attrs[k]) for k in OPS[n.op].symbolic if k in n.attrs}
        return dataclasses.replace(n, attrs={**n.attrs, **changed}) if changed else n

    tensors = {
        name: dataclasses.replace(t, shape=tuple(dims.substitute(d, sizes) for d in t.shape))
        for name, t in graph.tensors.items()
    }
    return graph.replace(nodes=tuple(map(node, graph.nodes)), tensors=tensors)
