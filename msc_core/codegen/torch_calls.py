"""What the torch module and its printed source share: one torch `Call` per node, and where each weight is kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from msc_core.ir import Array, MSCGraph, Tensor, unique
from msc_core.ops import Call, bind

PRIVATE = {"_msc_inputs", "_msc_outputs", "_msc_steps", "_msc_weights"}


@dataclass(frozen=True)
class TorchCalls:
    """`calls[i]` is what node i does; `paths` says where in a module each weight and constant is registered.

    `buffers` are the names (of weights) that no optimizer should touch; `constants` are arrays inside of calls, by a
    name that no tensor of the graph has. Calls refer to weights and constants as `Tensor`s.
    """

    graph: MSCGraph
    calls: tuple[Call, ...]
    paths: Mapping[str, str]
    buffers: frozenset[str]
    constants: Mapping[str, Array]


def torch_calls(graph: MSCGraph) -> TorchCalls:
    """The graph in torch's words. Raises `UnsupportedOperator` where torch has no words for a node."""
    statistics: set[str] = set()
    paths = module_paths(graph.weights)
    taken = {*graph.tensors, *(path.split(".")[0] for path in paths.values())}
    calls = []
    constants: dict[str, Array] = {}
    for node in graph.nodes:
        bound = bind(node, graph.tensors)
        statistics |= {node.inputs[i] for i in bound.op.statistics if i < len(node.inputs)}
        calls.append(_name_constants(bound.op.torch(bound), taken, constants))
    fixed = {name for name, w in graph.weights.items() if w.ndim == 0 or w.dtype.kind != "f"}
    buffers = frozenset(fixed | (statistics & graph.weights.keys()))
    return TorchCalls(graph, tuple(calls), paths | {name: name for name in constants}, buffers, constants)


def _name_constants(value: Any, taken: set[str], constants: dict[str, Array]) -> Any:
    """`value` with every NumPy array replaced by a `Tensor` that names an entry of `constants`."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        name = unique(f"constant_{len(constants)}", taken)
        taken.add(name)
        constants[name] = value
        return Tensor(name, value.shape, value.dtype.name)
    if isinstance(value, Call):
        args = tuple(_name_constants(arg, taken, constants) for arg in value.args)
        return Call(value.fn, args, {k: _name_constants(v, taken, constants) for k, v in value.attrs.items()})
    if isinstance(value, (tuple, list)):
        return tuple(_name_constants(part, taken, constants) for part in value)
    return value


def module_paths(names: Iterable[str]) -> dict[str, str]:
    """A path for each name, at which a tensor can be registered in nested modules: the name itself where it can be.

    A part that is empty or an attribute of every module gets a trailing `_`, and so does a last part whose path is
    taken or also leads to other names. No two names share a path.

    >>> module_paths(["conv.weight", "a:0", "x", "x.y", "train", "a..b"])
    {'conv.weight': 'conv.weight', 'a:0': 'a:0', 'x': 'x_', 'x.y': 'x.y', 'train': 'train_', 'a..b': 'a._.b'}
    """
    from torch import nn

    reserved = {"", *dir(nn.Module()), *PRIVATE}
    wanted = {n: ".".join(f"{part}_" if part in reserved else part for part in n.split(".")) for n in names}
    # A name that needs no change comes first, so that it keeps its path.
    order = sorted(wanted, key=lambda name: wanted[name] != name)
    scopes = {p.rsplit(".", i)[0] for p in wanted.values() for i in range(1, p.count(".") + 1)}
    paths: dict[str, str] = {}
    taken = set(scopes)
    for name in order:
        path = wanted[name]
        while path in taken:
            path += "_"
        taken.add(path)
        paths[name] = path
    return {name: paths[name] for name in wanted}
