"""What the torch module and its printed source share: one torch `Call` per node, and where each weight is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from msc_core import dims
from msc_core.errors import UnsupportedOperator
from msc_core.ir import Array, MSCGraph, Tensor, unique
from msc_core.ops import Call, Size, bind
from msc_core.ops.op import innermost_first

PRIVATE = {
    "_msc_advance", "_msc_found", "_msc_how", "_msc_inputs", "_msc_observe", "_msc_outputs", "_msc_passes",
    "_msc_rounding", "_msc_start", "_msc_steps", "_msc_symbols", "_msc_weights",
}  # fmt: skip


@dataclass(frozen=True)
class TorchCalls:
    """`calls[i]` is what node i does: a `Call`, or a tuple with one value for each output.

    `paths` says where in a module each weight and constant is registered; `buffers` are the names (of weights) that no
    optimizer should touch; `constants` are arrays inside of calls, by a name that no tensor of the graph has. Calls
    refer to weights and constants as `Tensor`s, to dimensions as `Size`s: `symbols` says on which axis of which tensor
    each symbol that they use can be read first.
    """

    graph: MSCGraph
    calls: tuple[Any, ...]
    shared: tuple[Mapping[str, Any], ...]
    paths: Mapping[str, str]
    buffers: frozenset[str]
    constants: Mapping[str, Array]
    symbols: Mapping[str, tuple[str, int]]


def torch_calls(graph: MSCGraph) -> TorchCalls:
    """The graph in torch's words. Raises `UnsupportedOperator` where torch has no words for a node."""
    statistics: set[str] = set()
    paths = module_paths(graph.weights)
    taken = {*graph.tensors, *(path.split(".")[0] for path in paths.values())}
    calls, shared = [], []
    constants: dict[str, Array] = {}
    for node in graph.nodes:
        bound = bind(node, graph.tensors)
        statistics |= {node.inputs[i] for i in bound.op.statistics if i < len(node.inputs)}
        parts, call = _name_shared(bound.op.torch(bound), taken)
        shared.append({name: _name_constants(part, taken, constants) for name, part in parts.items()})
        calls.append(_name_constants(call, taken, constants))
    fixed = {name for name, w in graph.weights.items() if w.ndim == 0 or w.dtype.kind != "f"}
    buffers = frozenset(fixed | (statistics & graph.weights.keys()))
    paths |= {name: name for name in constants}
    symbols = _symbols(graph, [*calls, *(tuple(parts.values()) for parts in shared)])
    return TorchCalls(graph, tuple(calls), tuple(shared), paths, buffers, constants, symbols)


def _symbols(graph: MSCGraph, calls: list[Any]) -> dict[str, tuple[str, int]]:
    """Where the symbols of all `Size`s in the calls are read: at the first tensor that has one as an axis."""
    used = dims.symbols(size.expression for size in _sizes(calls))
    found: dict[str, tuple[str, int]] = {}
    for name, tensor in graph.tensors.items() if used else ():
        for axis, dim in enumerate(tensor.shape):
            if dim in used and name not in graph.weights:
                found.setdefault(str(dim), (name, axis))
    if missing := [symbol for symbol in used if symbol not in found]:
        raise UnsupportedOperator(f"graph {graph.name!r}: no tensor has the symbol {missing[0]!r} as an axis")
    return found


def _sizes(value: Any) -> Iterator[Size]:
    """All `Size`s in a value."""
    if isinstance(value, Size):
        yield value
    elif isinstance(value, Call):
        yield from _sizes((*value.args, *value.attrs.values()))
    elif isinstance(value, slice):
        yield from _sizes((value.start, value.stop, value.step))
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _sizes(part)


def _name_shared(tree: Any, taken: set[str]) -> tuple[dict[str, Any], Any]:
    """The calls that `tree` holds at several places, under new names, and the tree that refers to them by these."""
    calls = list(innermost_first(tree))
    held = Counter(id(part) for call in calls for part in _held(call.args, *call.attrs.values()))
    held.update(id(part) for part in _held(tree))
    if not held or max(held.values()) == 1:
        return {}, tree
    shared: dict[str, Any] = {}
    stands: dict[int, Any] = {}

    def refer(value: Any) -> Any:
        if isinstance(value, Call):
            return stands[id(value)]
        if isinstance(value, slice):
            return slice(*map(refer, (value.start, value.stop, value.step)))
        return tuple(map(refer, value)) if isinstance(value, (tuple, list)) else value

    for call in calls:
        stands[id(call)] = Call(call.fn, refer(call.args), {k: refer(v) for k, v in call.attrs.items()})
        if held[id(call)] > 1:
            name = unique("shared", taken)
            taken.add(name)
            shared[name] = stands[id(call)]
            stands[id(call)] = Tensor(name, ())
    return shared, refer(tree)


def _held(*values: Any) -> Iterator[Call]:
    """The calls among some values, not those inside of them."""
    for value in values:
        if isinstance(value, Call):
            yield value
        elif isinstance(value, slice):
            yield from _held(value.start, value.stop, value.step)
        elif isinstance(value, (tuple, list)):
            yield from _held(*value)


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
