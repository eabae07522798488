"""A torch module that interprets a graph: every node's torch `Call` is resolved once, then evaluated per forward."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from msc_core import dims
from msc_core.codegen.torch_calls import TorchCalls
from msc_core.errors import MscError
from msc_core.exchange import to_torch_tensor
from msc_core.ir import Tensor
from msc_core.ops import DEVICE, TRAINING, Call, DType, Marker, Size


class Ref(NamedTuple):
    """What a value of the current forward is kept under: a tensor's name, a symbol's `Size` or a `Marker`."""

    key: Any


class Step(NamedTuple):
    """A function to call on values, constants and further steps."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Interpreter(torch.nn.Module):
    """What `to_torch` returns: weights at their paths, one step per node."""

    def __init__(self, lowered: TorchCalls) -> None:
        super().__init__()
        graph = lowered.graph
        self._msc_inputs, self._msc_outputs = graph.inputs, graph.outputs
        self._msc_weights: dict[str, tuple[torch.nn.Module, str]] = {}
        for name, array in {**graph.weights, **lowered.constants}.items():
            holder, leaf = _scope(self, lowered.paths[name])
            tensor = to_torch_tensor(array)
            if name in lowered.buffers or name in lowered.constants:
                holder.register_buffer(leaf, tensor, persistent=name in lowered.buffers)
            else:
                holder.register_parameter(leaf, torch.nn.Parameter(tensor))
            self._msc_weights[name] = holder, leaf
        self._msc_symbols: dict[str, list[tuple[Size, int]]] = {}
        for symbol, (name, axis) in lowered.symbols.items():
            self._msc_symbols.setdefault(name, []).append((Size(symbol), axis))
        last = {name: index for index, node in enumerate(graph.nodes) for name in node.inputs}
        kept = {*graph.outputs, *graph.weights, ""}
        self._msc_steps: list[tuple[tuple[str, ...], Any, tuple[str, ...]]] = []
        for index, (node, call) in enumerate(zip(graph.nodes, lowered.calls, strict=True)):
            names = dict.fromkeys((*node.inputs, *node.outputs))
            dead = tuple(name for name in names if name not in kept and last.get(name, index) == index)
            for name, part in lowered.shared[index].items():
                self._msc_steps.append(((name,), resolve(part), ()))
                dead += (name,)
            self._msc_steps.append((node.outputs, resolve(call), dead))

    def forward(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """The outputs for inputs given by position or by name; a tuple if there are several."""
        values = self._msc_start(args, kwargs)
        for step in self._msc_steps:
            self._msc_advance(step, values)
        results = tuple(values[name] for name in self._msc_outputs)
        return results[0] if len(results) == 1 else results

    def _msc_start(self, args: tuple[torch.Tensor, ...], kwargs: dict[str, torch.Tensor]) -> dict[Any, Any]:
        """Inputs, weights and what else steps refer to."""
        names = self._msc_inputs
        values: dict[Any, Any] = dict(zip(names, args, strict=False)) | kwargs
        if len(args) + len(kwargs) != len(names) or values.keys() != set(names):
            found = [*(f"argument {i}" for i in range(len(args))), *kwargs]
            raise MscError(f"expected the inputs {list(names)}, found {found}")
        for name, (holder, leaf) in self._msc_weights.items():
            values[name] = getattr(holder, leaf)
        values[TRAINING] = self.training
        values[DEVICE] = next((value.device for value in values.values() if isinstance(value, torch.Tensor)), None)
        self._read_symbols(names, values)
        return values

    def _msc_advance(self, step: tuple[tuple[str, ...], Any, tuple[str, ...]], values: dict[Any, Any]) -> None:
        """Compute what a step gives and forget what nothing needs any more."""
        outputs, call, dead = step
        result = evaluate(call, values)
        if len(outputs) == 1:
            values[outputs[0]] = result
        else:
            values.update(zip(outputs, result, strict=True))
        if self._msc_symbols:
            self._read_symbols(outputs, values)
        for name in dead:
            del values[name]

    def _read_symbols(self, names: tuple[str, ...], values: dict[Any, Any]) -> None:
        for name in names:
            for symbol, axis in self._msc_symbols.get(name, ()):
                values[symbol] = values[name].shape[axis]


def walk(module: Interpreter, inputs: Mapping[str, torch.Tensor]) -> Iterator[tuple[tuple[str, ...], dict[Any, Any]]]:
    """A forward step by step: the names that the next step computes, and all tensors alive before it, by name.

    Always the same dictionary; a weight that is replaced there counts from then on, in this walk.
    """
    values = module._msc_start((), dict(inputs))
    for step in module._msc_steps:
        yield step[0], values
        module._msc_advance(step, values)


def _scope(root: torch.nn.Module, path: str) -> tuple[torch.nn.Module, str]:
    """The module that holds `path` below `root`, made of plain modules where there is none, and the last part."""
    *scopes, leaf = path.split(".")
    for scope in scopes:
        if scope not in root._modules:
            root.add_module(scope, torch.nn.Module())
        root = root.get_submodule(scope)
    return root, leaf


def resolve(value: Any) -> Any:
    """A call or one of its arguments, ready to be evaluated."""
    if isinstance(value, Marker):
        return Ref(value)
    if isinstance(value, Tensor):
        return Ref(value.name)
    if isinstance(value, Size):
        if dims.is_symbol(value.expression):
            return Ref(value)
        names = dims.symbols([value.expression])
        return Step(_size(value.expression, names), tuple(Ref(Size(name)) for name in names), {})
    if isinstance(value, DType):
        return getattr(torch, value.name)
    if isinstance(value, Call):
        args = tuple(resolve(arg) for arg in value.args)
        return Step(function(value.fn), args, {key: resolve(attr) for key, attr in value.attrs.items()})
    if isinstance(value, (tuple, slice)):
        whole = (value.start, value.stop, value.step) if isinstance(value, slice) else value
        make = slice if isinstance(value, slice) else _pack
        parts = tuple(map(resolve, whole))
        return Step(make, parts, {}) if any(isinstance(part, (Ref, Step)) for part in parts) else make(*parts)
    return value


def _size(expression: str, names: list[str]) -> Any:
    """The function that works out an expression from the values of its symbols."""

    def compute(*values: int) -> Any:
        return dims.interpret(expression, dict(zip(names, values, strict=True)).__getitem__)

    return compute


def evaluate(value: Any, values: Mapping[Any, Any]) -> Any:
    """The value of a step, a reference or a constant."""
    kind = type(value)
    if kind is Ref:
        return values[value.key]
    if kind is Step:
        args = [evaluate(arg, values) for arg in value.args]
        return value.function(*args, **{key: evaluate(attr, values) for key, attr in value.kwargs.items()})
    return value


def function(name: str) -> Any:
    """The torch function that a call names: `F.relu`, `torch.add`, or `item` and `index`, which are `x[...]`."""
    root, *parts = name.split(".")
    if name in ("item", "index"):
        return operator.getitem
    start: Any = {"F": torch.nn.functional, "torch": torch}.get(root)
    if start is None or not parts:
        raise MscError(f"torch call {name!r}: expected 'F.<function>' or 'torch.<function>'")
    return functools.reduce(getattr, parts, start)


def _pack(*values: Any) -> tuple[Any, ...]:
    return values
