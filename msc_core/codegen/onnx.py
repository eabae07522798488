"""`MSCGraph` -> ONNX: the ONNX `Call` trees of the op table, flattened into nodes; about a millisecond per network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from msc_core import dims
from msc_core.codegen.onnx_opset import OPSET, adapt, check_model, check_opset
from msc_core.errors import MscError, UnsupportedOperator
from msc_core.exchange import numpy_dtype
from msc_core.ir import Array, MSCGraph, Tensor, unique
from msc_core.ops import Call, DType, Size, bind

if TYPE_CHECKING:
    import onnx


def to_onnx(graph: MSCGraph, opset: int = OPSET) -> onnx.ModelProto:
    """The ONNX model of the graph, for opset 13 or later; what an opset cannot say is refused.

    Inputs, outputs, weights and nodes keep their names, symbolic dimensions become `dim_param`s. Constants inside of
    calls become initializers, equal ones once. An output that is an input or a weight, or that comes twice, is copied
    by an `Identity` under a new name, because ONNX demands it; outputs keep their order. Raises
    `UnsupportedOperator` where ONNX cannot say a node.
    """
    from onnx import helper

    check_opset(opset)
    emitter = _Emitter(graph, opset)
    for node in graph.nodes:
        bound = bind(node, graph.tensors)
        result = bound.op.onnx(bound)
        if isinstance(result, tuple):
            emitter.parts(result, node.outputs, node.name)
        else:
            emitter.emit(result, node.outputs, emitter.node_name(node.name))
    outputs: list[str] = []
    for name in graph.outputs:
        outputs.append(emitter.copy(name) if name in {*graph.inputs, *graph.weights, *outputs} else name)
    proto = helper.make_graph(
        emitter.nodes,
        graph.name or "graph",
        _describe((graph.tensors[name] for name in graph.inputs), graph.inputs),
        _describe((graph.tensors[name] for name in graph.outputs), outputs),
        emitter.initializers,
    )
    opsets = [helper.make_opsetid("", opset)]
    version = helper.find_min_ir_version_for(opsets, ignore_unknown=True)
    model = helper.make_model(proto, opset_imports=opsets, ir_version=version, producer_name="msc-gym")
    if opset != OPSET:  # the rows are tested at theirs
        check_model(model)
    return model


def _describe(tensors: Iterable[Tensor], names: Iterable[str]) -> list[onnx.ValueInfoProto]:
    from onnx import helper

    return [
        helper.make_tensor_value_info(name, _dtype(t.dtype), t.shape) for name, t in zip(names, tensors, strict=True)
    ]


class _Emitter:
    """Collects nodes and initializers; inner calls and constants get names that the graph does not have."""

    def __init__(self, graph: MSCGraph, opset: int = OPSET) -> None:
        from onnx import numpy_helper

        self.opset = opset
        self.from_array = numpy_helper.from_array
        self.nodes: list[onnx.NodeProto] = []
        self.initializers = [self.from_array(array, name) for name, array in graph.weights.items()]
        self.taken = set(graph.tensors)
        self.given = {node.name for node in graph.nodes}
        self.node_names = set(self.given)
        self.graph = graph
        self.shared: dict[
            int, tuple[Call, tuple[str, ...]]
        ] = {}  # by identity; the call is kept, and with it its number
        self.wanted: dict[int, dict[int, str]] = {}  # calls of a node with several outputs: the names that theirs have
        self.constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def node_name(self, name: str) -> str:
        """The name itself the first time, a new one like it after that."""
        if name in self.given:
            self.given.remove(name)
            return name
        return self._new(name, self.node_names)

    def emit(self, call: Call | Tensor, outputs: tuple[str, ...], name: str) -> None:
        """A node that computes `outputs`, after the nodes of its inner calls."""
        from onnx import helper

        if not isinstance(call, Call) or call.fn == "sizes":
            call = Call("Identity", (call,))
        call = adapt(call, self.opset, f"node {name!r}")
        inputs = [self.value(arg, f"{name}/{call.fn}") for arg in call.args]
        while inputs and not inputs[-1]:
            inputs.pop()
        attrs = {key: value for key, value in call.attrs.items() if value is not None}
        self.nodes.append(helper.make_node(call.fn, inputs, outputs, name, **_attributes(attrs)))

    def parts(self, parts: tuple[Any, ...], outputs: tuple[str, ...], name: str) -> None:
        """Nodes that compute each output by a tree of its own; trees may share calls, or be outputs of one call."""
        for part, output in zip(parts, outputs, strict=True):
            if isinstance(part, Call):
                source, index = part.args if part.fn == "item" else (part, 0)
                self.wanted.setdefault(id(source), {}).setdefault(index, output)
        for part, output in zip(parts, outputs, strict=True):
            if self.value(part, name) != output:
                self.emit(Call("Identity", (part,)), (output,), self.node_name(name))
        self.wanted.clear()  # identities mean something only as long as the calls live

    def value(self, value: Any, place: str) -> str:
        """The name of an argument: a tensor, an inner call, a constant, or "" for an absent one."""
        if value is None:
            return ""
        if isinstance(value, Tensor):
            return value.name
        if isinstance(value, Call) and value.fn == "sizes":
            return self.value(self._sizes(value.args), place)
        if isinstance(value, Call) and value.fn == "item":
            source, index = value.args
            return str(self._shared(source, place, value.attrs.get("count", index + 1))[index])
        if isinstance(value, Call):
            return self._shared(value, place, 1)[0]
        if isinstance(value, (np.ndarray, np.generic)):
            return self.constant(np.asarray(value))
        raise MscError(f"{place}: ONNX inputs are tensors or NumPy constants, found {value!r}")

    def constant(self, array: Array) -> str:
        """The name of an initializer with that content."""
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self.constants:
            self.constants[key] = self._new(f"constant_{len(self.constants)}", self.taken)
            self.initializers.append(self.from_array(array, self.constants[key]))
        return self.constants[key]

    def _shared(self, call: Call, place: str, count: int) -> tuple[str, ...]:
        """The outputs of an inner call, which is emitted once if the tree has it at several places."""
        if id(call) not in self.shared:
            suffixes = [""] if count == 1 else [f".{i}" for i in range(count)]
            given = self.wanted.get(id(call), {})
            outputs = tuple(
                given.get(i) or self._new(f"{place}/{call.fn}{suffix}", self.taken) for i, suffix in enumerate(suffixes)
            )
            self.emit(call, outputs, self.node_name(place) if given else self._new(outputs[0], self.node_names))
            self.shared[id(call)] = call, outputs
        return self.shared[id(call)][1]

    def _sizes(self, parts: tuple[int | Size, ...]) -> Call:
        """Dimensions as a 1-D int64 tensor, worked out at run time from the shapes of tensors that have the symbols."""
        pieces = [_vector(p) if isinstance(p, int) else self._size(p.expression) for p in parts]
        return Call("Concat", tuple(pieces), {"axis": 0})

    def _size(self, expression: str) -> Call | Array:
        names = {"+": "Add", "-": "Sub", "*": "Mul", "//": "Div", "max": "Max", "min": "Min"}
        functions = {key: lambda a, b, fn=fn: Call(fn, (a, b)) for key, fn in names.items()}
        found: Call | Array = dims.interpret(expression, self._symbol, functions, _vector)
        return found

    def _symbol(self, symbol: str) -> Call:
        """One dimension of the first tensor that has it, as a tensor of shape [1]."""
        for tensor in self.graph.tensors.values():
            if symbol in tensor.shape:
                axis = tensor.shape.index(symbol)
                return Call("Shape", (tensor,), {"start": axis, "end": axis + 1})
        raise UnsupportedOperator(f"graph {self.graph.name!r}: no tensor has the symbol {symbol!r} as an axis")

    def copy(self, name: str) -> str:
        """The name of a copy of a tensor."""
        output = self._new(f"{name}_output", self.taken)
        self.emit(Call("Identity", (Tensor(name, ()),)), (output,), self._new(output, self.node_names))
        return output

    @staticmethod
    def _new(name: str, taken: set[str]) -> str:
        name = unique(name, taken)
        taken.add(name)
        return name


def _attributes(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Tuples as lists, which `make_node` types by their elements; booleans and dtypes as ONNX's integers for them."""
    return {key: list(value) if isinstance(value, tuple) else _attribute(value) for key, value in attrs.items()}


def _attribute(value: Any) -> Any:
    if isinstance(value, DType):
        return _dtype(value.name)
    if isinstance(value, np.ndarray):
        from onnx import numpy_helper

        return numpy_helper.from_array(value)
    return int(value) if isinstance(value, bool) else value


def _dtype(name: str) -> int:
    from onnx import helper

    return helper.np_dtype_to_tensor_dtype(numpy_dtype(name))


def _vector(value: int) -> Array:
    return np.asarray([value], np.int64)
