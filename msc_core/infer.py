"""Shapes: interpret a graph over the op table and describe every tensor; bind symbolic dimensions."""

from __future__ import annotations

import dataclasses

from msc_core.errors import InvalidGraph
from msc_core.ir import Attr, Dim, MSCGraph, Tensor
from msc_core.ops import Bound, bind


def infer(graph: MSCGraph) -> MSCGraph:
    """The same graph with the shape and dtype of every node output recomputed from inputs, weights and attributes.

    Raises `InvalidGraph`, naming the node, where an operator's axes disagree.
    """
    tensors = {name: graph.tensors[name] for name in graph.inputs}
    tensors |= {name: Tensor(name, w.shape, w.dtype.name) for name, w in graph.weights.items()}
    for node in graph.nodes:
        (output,) = node.outputs
        bound = bind(node, tensors)
        tensors[output] = Tensor(output, output_shape(bound), bound.input(0).dtype)
    return graph.replace(tensors=tensors)


def output_shape(bound: Bound) -> tuple[Dim, ...]:
    """The shape of a node's output, from its row; raises `InvalidGraph` where the inputs do not fit."""
    op = bound.op
    if op.shape is not None:
        shape = op.shape(bound)
    else:
        sizes = bound.sizes()
        sizes |= op.new(bound, sizes) if op.new else {}
        shape = bound.signature.output_shape(sizes)
    if any(isinstance(d, int) and d < 1 for d in shape):
        raise InvalidGraph(f"{bound}: its output would have shape {list(shape)}")
    return shape


def single(graph: MSCGraph) -> MSCGraph:
    """The graph for a batch of one: every symbolic dimension of its inputs is 1."""
    symbols = {d for name in graph.inputs for d in graph.tensors[name].shape if isinstance(d, str)}
    return bind_symbols(graph, **dict.fromkeys(symbols, 1))


def bind_symbols(graph: MSCGraph, **sizes: int) -> MSCGraph:
    """The graph for fixed sizes of its symbols: `bind_symbols(graph, N=1)`. Symbols that are not named stay."""

    def fixed(dims: tuple[Dim, ...] | Attr) -> tuple[Dim, ...]:
        assert isinstance(dims, tuple)
        return tuple(sizes.get(d, d) if isinstance(d, str) else d for d in dims)  # type: ignore[misc]

    nodes = tuple(
        dataclasses.replace(n, attrs={**n.attrs, "shape": fixed(n.attrs["shape"])}) if "shape" in n.attrs else n
        for n in graph.nodes
    )
    tensors = {name: dataclasses.replace(t, shape=fixed(t.shape)) for name, t in graph.tensors.items()}
    return graph.replace(nodes=nodes, tensors=tensors)
