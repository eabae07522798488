"""Which tensors of two graphs are the same quantity, and which of them a tensor is computed from."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from msc_core.errors import MscError
from msc_core.ir import MSCGraph, Node, unique


def pairs(reference: MSCGraph, candidate: MSCGraph, globs: Iterable[str]) -> dict[str, str]:
    """{tensor of the candidate: what it is in the reference}, in the candidate's order, for names that match a glob.

    1. A node's output has its name in both graphs: names survive every stage.
    2. The output of a `dequantize` stands for the tensor that was quantized.
    Raises `MscError` for a glob that matches nothing.
    """
    globs = tuple(globs)
    computed = {name for node in reference.nodes for name in node.outputs}
    computed |= {n for n in reference.inputs if n in candidate.inputs}
    stored: dict[str, str] = {}  # integers -> the tensor that they are of
    found: dict[str, str] = {}
    for node in candidate.nodes:
        if node.op == "quantize":
            stored[node.outputs[0]] = node.inputs[0]
        elif node.op == "clip" and node.inputs[0] in stored:  # to fewer bits than the dtype has
            stored[node.outputs[0]] = stored[node.inputs[0]]
        for name in node.outputs:
            source = stored.get(node.inputs[0], "") if node.op == "dequantize" else name
            if (target := name if name in computed else source) in computed:
                found[name] = target
    for glob in globs:
        if not any(fnmatchcase(name, glob) for name in found.values()):
            example = f", such as {next(iter(found))!r}" if found else ""
            raise MscError(f"no tensor of both graphs matches {glob!r}; they share {len(found)}{example}")
    return {name: target for name, target in found.items() if any(fnmatchcase(target, glob) for glob in globs)}


def ancestors(graph: MSCGraph, known: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """For each of the `known` tensors, the nearest known ones that it is computed from."""
    nearest_known: dict[str, dict[str, None]] = {}
    found: dict[str, tuple[str, ...]] = {}
    for node in graph.nodes:
        before: dict[str, None] = {}
        for name in node.inputs:
            before |= nearest_known.get(name, {})
        for name in node.outputs:
            if name in known:
                found[name] = tuple(before)
            nearest_known[name] = {name: None} if name in known else before
    return found


def cut(graph: MSCGraph, outputs: Iterable[str]) -> MSCGraph:
    """The part of a graph that computes some of its tensors; it keeps all inputs."""
    outputs = tuple(outputs)
    needed, kept = set(outputs), list[Node]()
    for node in reversed(graph.nodes):
        if needed & set(node.outputs):
            kept.append(node)
            needed |= set(node.inputs)
    return graph.replace(nodes=tuple(reversed(kept)), outputs=outputs)


def exposed(graph: MSCGraph, names: Iterable[str]) -> tuple[MSCGraph, dict[str, str]]:
    """`cut`, and {output: tensor}: those of bfloat16, which engines do not hand out as arrays, are cast to float32."""
    part = cut(graph, names)
    nodes, tensors, outputs = list(part.nodes), dict(part.tensors), dict[str, str]()
    for name in part.outputs:
        if tensors[name].dtype != "bfloat16":
            outputs[name] = name
            continue
        wide = unique(f"{name}.float32", tensors)
        tensors[wide] = dataclasses.replace(tensors[name], name=wide, dtype="float32")
        nodes.append(Node(unique(wide, {node.name for node in nodes}), "cast", (name,), (wide,), {"dtype": "float32"}))
        outputs[wide] = name
    return part.replace(nodes=tuple(nodes), tensors=tensors, outputs=tuple(outputs)), outputs
