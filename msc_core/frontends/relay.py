"""Relay, as TVM up to 0.19 saved it (JSON and a parameter file), -> `MSCGraph`. TVM itself is not needed.

Parameters keep their names; nodes, which have none in Relay, are called after their operator or, where the framework
that the model came from left one, after their layer. Functions that are called are imported in place.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Callable, Generator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msc_core.dims import Dim
from msc_core.errors import InvalidGraph, MscError, UnsupportedOperator, nearest
from msc_core.frontends.builder import GraphBuilder
from msc_core.frontends.relay_call import RelayCall
from msc_core.frontends.relay_json import JsonGraph, read_graph
from msc_core.frontends.relay_ops import RELAY
from msc_core.frontends.relay_params import read_params
from msc_core.ir import Array, MSCGraph, Tensor, unique

MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)  # from a translator: a bad attribute
MAX_DEPTH = 64  # of functions that call functions
ARGUMENTS: Mapping[str, Sequence[str]] = {
    "nn.batch_norm": ("data", "gamma", "beta", "moving_mean", "moving_var"),
    **dict.fromkeys(("nn.layer_norm", "nn.instance_norm", "nn.group_norm"), ("data", "gamma", "beta")),
    "nn.bias_add": ("data", "bias"),
    "nn.prelu": ("data", "alpha"),
    **dict.fromkeys((f"nn.conv{r}d{t}" for r in (1, 2, 3) for t in ("", "_transpose")), ("data", "weight")),
    **dict.fromkeys(("nn.dense", "nn.matmul"), ("data", "weight")),
}  # fmt: skip
PLACEHOLDERS = {"", "from_string", "GeneratedSource", "<string>"}  # sources that are no layers
Values = MutableMapping[int, Any]
Walk = Generator[int, Any, Any]


def from_relay(
    graph_json: str | Path,
    params: str | Path | Mapping[str, Array] | bytes | None = None,
    *,
    entry: str = "main",
    inputs: Sequence[str] | None = None,
    name: str = "",
) -> MSCGraph:
    """The graph of a Relay module that `tvm.ir.save_json` wrote: a file, or the text itself.

    `params` are the values of parameters: a file or the bytes that `tvm.runtime.save_param_dict` wrote, or arrays by
    name. The other parameters of `entry` are the graph's inputs; with `inputs` these are named, so that a parameter
    that has no value is an error. Dimensions that are `Any` become symbols.

    Raises `UnsupportedOperator` naming the operator that cannot be imported, and `InvalidGraph` if a file is damaged.
    """
    graph = read_graph(graph_json)
    given = read_params(params) if params is not None else {}
    stem = Path(graph_json).stem if graph.what == str(graph_json) else ""
    return _Importer(graph, given).graph(entry, inputs, name or stem or entry)


@dataclass(frozen=True)
class _Operator:
    """What stands in the place of a function: an operator."""

    name: str


@dataclass(frozen=True)
class _Function:
    """What stands in the place of a function: one of the module, with what is known where it was written."""

    index: int
    scope: Values


class _Importer:
    """Evaluates one function. Expressions can nest deeper than Python's calls may, so each is walked by a generator."""

    def __init__(self, source: JsonGraph, params: Mapping[str, Array]) -> None:
        self.source, self.params = source, params
        self.build = GraphBuilder()
        self.constants: dict[int, Tensor] = {}
        self.functions: dict[str, int] = {}
        self.active: list[int] = []

    def graph(self, entry: str, inputs: Sequence[str] | None, name: str) -> MSCGraph:
        """The graph of one function."""
        source = self.source
        self.functions = self._functions(entry)
        if entry not in self.functions:
            raise MscError(f"{source.what} has no function {entry!r}{nearest(entry, self.functions)}")
        function = self.functions[entry]
        variables = {self._variable(i): i for i in source.items(source.ref(function, "params"))}
        if unknown := [word for word in (*self.params, *(inputs or ())) if word not in variables]:
            raise MscError(f"{unknown[0]!r} is no parameter of {entry!r}{nearest(unknown[0], variables)}")
        names = [word for word in variables if word not in self.params]
        if inputs is not None and (missing := [word for word in names if word not in inputs]):
            raise MscError(f"parameter {missing[0]!r} has no value in params, and inputs does not name it")
        self.build.reserve(set(variables), set())
        scope: Values = {}
        for word in names:
            shape, dtype = self._type(source.ref(variables[word], "type_annotation"), word)
            scope[variables[word]] = self.build.add(Tensor(word, shape, dtype))
        for word, index in variables.items():
            if word in self.params:
                scope[index] = self._parameter(word, index)
        self.active.append(function)
        result = self._evaluate(source.ref(function, "body"), scope)
        outputs = _flat(result)
        for value in outputs:
            if not isinstance(value, Tensor):
                raise UnsupportedOperator(f"{entry} returns {type(value).__name__}; only tensors can be outputs")
        return self.build.graph(name, names, [value.name for value in outputs])

    def _functions(self, entry: str) -> dict[str, int]:
        """The module's functions by name; a function that was saved alone is the entry."""
        source, root = self.source, self.source.root
        if source.kind(root) == "relay.Function":
            return {entry: root}
        if source.kind(root) != "IRModule":
            raise InvalidGraph(f"{source.what} holds a {source.kind(root) or 'null'}; expected an IRModule")
        found = {}
        for key, value in source.pairs(source.ref(root, "functions")):
            name = key if isinstance(key, str) else source.name(key, "name_hint")
            if source.kind(value) == "relay.Function":
                found[name] = value
        return found

    # Parameters

    def _variable(self, index: int) -> str:
        if self.source.kind(index) != "relay.Var":
            raise InvalidGraph(f"{self.source.what}: node {index} is a {self.source.kind(index)}; expected a variable")
        return self.source.name(self.source.ref(index, "vid"), "name_hint")

    def _type(self, index: int, where: str) -> tuple[tuple[Dim, ...], str]:
        source = self.source
        if source.kind(index) != "relay.TensorType":
            raise UnsupportedOperator(
                f"input {where!r} is a {source.kind(index) or 'tensor of no type'}; expected a tensor"
            )
        axes = source.items(source.ref(index, "shape"))
        return tuple(source.dim(d, f"{where}_{i}") for i, d in enumerate(axes)), source.field(index, "dtype")

    def _parameter(self, name: str, index: int) -> Tensor:
        array = self.params[name]
        annotation = self.source.ref(index, "type_annotation")
        if annotation:
            shape, dtype = self._type(annotation, name)
            fits = len(shape) == array.ndim and all(
                a == b for a, b in zip(shape, array.shape, strict=True) if isinstance(a, int)
            )
            if not fits or dtype != array.dtype.name:
                found = f"{array.dtype.name}{list(array.shape)}"
                raise InvalidGraph(f"parameter {name!r} is {found} in params; the module says {dtype}{list(shape)}")
        return self.build.weight(name, array)

    # Expressions

    def _evaluate(self, root: int, scope: Values) -> Any:
        """The value of an expression, with what it needs evaluated first."""
        stack: list[tuple[int, Walk]] = [(root, self._walk(root, scope))]
        busy = {root}
        answer: Any = None
        while stack:
            index, walk = stack[-1]
            try:
                wanted = walk.send(answer)
            except StopIteration as stop:
                stack.pop()
                busy.discard(index)
                answer = scope[index] = stop.value
                continue
            if wanted in scope:
                answer = scope[wanted]
            elif wanted in busy:
                raise InvalidGraph(f"{self.source.what}: node {wanted} needs itself")
            else:
                busy.add(wanted)
                stack.append((wanted, self._walk(wanted, scope)))
                answer = None
        return answer

    def _walk(self, index: int, scope: Values) -> Walk:
        """One expression: asks for others by yielding their positions."""
        source, kind = self.source, self.source.kind(index)
        if kind == "relay.Call":
            callee = yield source.ref(index, "op")
            places = source.items(source.ref(index, "args"))
            values = []
            for place in places:
                constant = source.kind(place) == "relay.Constant" and place not in self.constants
                values.append(None if constant else (yield place))
            return self._call(index, callee, places, values)
        if kind == "relay.Tuple":
            parts = []
            for place in source.items(source.ref(index, "fields")):
                parts.append((yield place))
            return tuple(parts)
        if kind == "relay.TupleGetItem":
            value = yield source.ref(index, "tuple_value") or source.ref(index, "tuple")
            position = source.field(index, "index")
            if not isinstance(value, tuple) or not position.isdecimal() or int(position) >= len(value):
                raise InvalidGraph(f"{source.what}: node {index} takes item {position} of what is no such tuple")
            if value[int(position)] is None:
                raise UnsupportedOperator(f"output {position} of an operator is used that is not supported")
            return value[int(position)]
        if kind == "relay.Let":
            scope[source.ref(index, "var")] = yield source.ref(index, "value")
            return (yield source.ref(index, "body"))
        if kind == "relay.Constant":
            return self._constant(index, "constant")
        if kind in ("Op", "relay.Op"):
            return _Operator(source.text(index))
        if kind == "relay.Function":
            return _Function(index, scope)
        if kind == "GlobalVar":
            name = source.name(index, "name_hint")
            if name not in self.functions:
                raise UnsupportedOperator(f"{name!r} is called, which is no Relay function of the module")
            return _Function(self.functions[name], {})
        if kind == "relay.Var":
            raise InvalidGraph(f"{source.what} uses the variable {self._variable(index)!r}, which nothing defines")
        raise UnsupportedOperator(f"{source.what} holds a {kind or 'null'}, which a graph cannot say")

    def _constant(self, index: int, name: str) -> Tensor:
        """A weight; a constant that is used several times stays one."""
        if index not in self.constants:
            self.constants[index] = self.build.constant(name, self.source.array(index))
        return self.constants[index]

    def _call(self, index: int, callee: Any, places: list[int], values: list[Any]) -> Any:
        source = self.source
        if isinstance(callee, _Function):
            arguments = [self._constant(p, "constant") if v is None else v for p, v in zip(places, values, strict=True)]
            return self._inline(callee, arguments)
        if not isinstance(callee, _Operator):
            raise InvalidGraph(f"{source.what}: node {index} calls what is no function")
        op = callee.name
        name = unique(self._layer(index) or op.rpartition(".")[2], self.build.node_names)
        words = ARGUMENTS.get(op, ())
        x = tuple(
            self._constant(place, f"{name}.{words[i] if i < len(words) else i}") if value is None else value
            for i, (place, value) in enumerate(zip(places, values, strict=True))
        )
        translate = RELAY.get(op)
        if translate is None:
            raise UnsupportedOperator(
                f"Relay operator {op} is not supported{nearest(op, RELAY).split(' known')[0].rstrip(';')}"
            )
        emit: Callable[[Any, str], Any] = lambda value, word: self.build.emit(value, f"{name}.{word}".rstrip("."))  # noqa: E731
        try:
            attrs = source.attributes(source.ref(index, "attrs"))
            found = translate(RelayCall(op, x, attrs, self.known, release=source.version, emit=emit))
            found = self.build.emit(found, name)
            self._check(source.ref(index, "_checked_type_"), found)
        except MscError as error:
            raise type(error)(f"Relay operator {op} ({name}): {error}") from error
        except MALFORMED as error:
            reason = f"{type(error).__name__}: {error}"
            raise InvalidGraph(
                f"Relay operator {op} ({name}): its inputs or attributes are not valid: {reason}"
            ) from error
        return found

    def _layer(self, index: int) -> str:
        """The name that a layer had in the framework that the model came from, if its span has one."""
        source = self.source
        span = source.ref(index, "span")
        place = source.ref(span, "source_name") if source.kind(span) == "Span" else 0
        name = source.text(place) if source.kind(place) == "SourceName" else ""
        return "" if name in PLACEHOLDERS else re.sub(r"\s+", "_", name)

    def known(self, tensor: Tensor) -> Array | None:
        """`Source.known`: the value of a weight."""
        return self.build.weights.get(tensor.name)

    def _inline(self, callee: _Function, arguments: list[Any]) -> Any:
        source = self.source
        if callee.index in self.active or len(self.active) > MAX_DEPTH:
            raise UnsupportedOperator("a function calls itself; a graph has no control flow")
        parameters = source.items(source.ref(callee.index, "params"))
        if len(parameters) != len(arguments):
            raise InvalidGraph(f"{source.what}: a function of {len(parameters)} parameters gets {len(arguments)}")
        self.active.append(callee.index)
        scope: Values = ChainMap(dict(zip(parameters, arguments, strict=True)), callee.scope)
        found = self._evaluate(source.ref(callee.index, "body"), scope)
        self.active.pop()
        return found

    def _check(self, index: int, found: Any) -> None:
        """Our rules of shapes and dtypes against what Relay inferred, where it did: no difference passes silently."""
        source, kind = self.source, self.source.kind(index)
        if kind == "TupleType" and isinstance(found, tuple):
            for place, part in zip(source.items(source.ref(index, "fields")), found, strict=False):
                self._check(place, part)
        if kind != "relay.TensorType" or not isinstance(found, Tensor):
            return
        shape, dtype = self._type(index, "any")
        same = len(shape) == len(found.shape) and all(
            a == b or isinstance(a, str) or isinstance(b, str) for a, b in zip(shape, found.shape, strict=True)
        )
        if not same or dtype != found.dtype:
            raise UnsupportedOperator(
                f"it is {found.dtype}{list(found.shape)} here and {dtype}{list(shape)} in the module"
            )


def _flat(value: Any) -> list[Any]:
    return [leaf for part in value for leaf in _flat(part)] if isinstance(value, tuple) else [value]
