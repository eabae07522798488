"""Prototxt in the manner of Caffe, as Netron opens it: one `layer` per node, attributes in its `layer_param`."""

from __future__ import annotations

from collections.abc import Iterator

from msc_core.ir import Attr, MSCGraph, Node
from msc_core.ops import bind

ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def to_prototxt(graph: MSCGraph) -> str:
    """The graph's structure: `bottom` are the data that a layer reads, weights stand in `layer_param` by operand.

    Tuples are strings, because Netron drops zeros from repeated fields. A symbolic dimension of an input is -1.
    """
    lines = [f"name: {quoted(graph.name)}"]
    for name in graph.inputs:
        lines.append(f"input: {quoted(name)}")
        lines.append("input_shape {")
        lines += [f"  dim: {d if isinstance(d, int) else -1}" for d in graph.tensors[name].shape]
        lines.append("}")
    for index, node in enumerate(graph.nodes):
        lines += ["layer {", *(f"  {line}" for line in _layer(graph, node, index)), "}"]
    return "\n".join(lines) + "\n"


def _layer(graph: MSCGraph, node: Node, index: int) -> Iterator[str]:
    yield f"name: {quoted(node.name)}"
    yield f"type: {quoted(node.op)}"
    yield from (f"bottom: {quoted(name)}" for name in node.inputs if name and name not in graph.weights)
    yield from (f"top: {quoted(name)}" for name in node.outputs)
    yield "layer_param {"
    yield f"  idx: {index}"
    if node.scope:
        yield f"  scope: {quoted(node.scope)}"
    for i, name in enumerate(node.inputs):
        if not name or name in graph.weights:
            yield f"  input_{i}: {quoted(f'{name}: {described(graph, name)}' if name else 'absent')}"
    for i, name in enumerate(node.outputs):
        yield f"  output_{i}: {quoted(described(graph, name))}"
    row = bind(node, graph.tensors)
    yield from (f"  {key}: {_value(row[key])}" for key in row.op.attrs)
    yield "}"


def described(graph: MSCGraph, name: str) -> str:
    """A tensor's dtype, shape and layout: `float32[N, 64, 56, 56] NCHW`."""
    t = graph.tensors[name]
    return f"{t.dtype}[{', '.join(map(str, t.shape))}]{' ' * bool(t.layout)}{t.layout}"


def quoted(text: str) -> str:
    """A string literal of protobuf's text format."""
    return '"' + "".join(ESCAPES.get(c, c if c.isprintable() else _octal(c)) for c in text) + '"'


def _octal(character: str) -> str:
    return "".join(f"\\{byte:03o}" for byte in character.encode("utf-8", "replace"))


def _value(value: Attr) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)  # `inf` and `nan` are numbers in the text format
    return quoted(value if isinstance(value, str) else str(value))
