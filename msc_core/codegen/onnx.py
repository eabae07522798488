"""`MSCGraph` -> ONNX: the ONNX `Call` trees of the op table, flattened into nodes; about a millisecond per network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from msc_core.errors import MscError
from msc_core.ir import Array, MSCGraph, Tensor, unique
from msc_core.ops import Call, bind

if TYPE_CHECKING:
    import onnx

OPSET = 18  # what the rows of the op table are written for


def to_onnx(graph: MSCGraph, opset: int = OPSET) -> onnx.ModelProto:
    """The ONNX model of the graph, for opset 18 or later.

    Inputs, outputs, weights and nodes keep their names, symbolic dimensions become `dim_param`s. Constants inside of
    calls become initializers, equal ones once. An output that is an input or a weight, or that comes twice, is copied
    by an `Identity` under a new name, because ONNX demands it; outputs keep their order. Raises
    `UnsupportedOperator` where ONNX cannot say a node.
    """
    from onnx import helper

    if opset < OPSET:
        raise MscError(f"ONNX opset {opset}: the op table is written for opset {OPSET} or later")
    emitter = _Emitter(graph)
    for node in graph.nodes:
        bound = bind(node, graph.tensors)
        emitter.emit(bound.op.onnx(bound), node.outputs, node.name)
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
    return helper.make_model(proto, opset_imports=opsets, ir_version=version, producer_name="msc-gym")


def _describe(tensors: Iterable[Tensor], names: Iterable[str]) -> list[onnx.ValueInfoProto]:
    from onnx import helper

    return [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(t.dtype)), t.shape)
        for name, t in zip(names, tensors, strict=True)
    ]


class _Emitter:
    """Collects nodes and initializers; inner calls and constants get names that the graph does not have."""

    def __init__(self, graph: MSCGraph) -> None:
        from onnx import numpy_helper

        self.from_array = numpy_helper.from_array
        self.nodes: list[onnx.NodeProto] = []
        self.initializers = [self.from_array(array, name) for name, array in graph.weights.items()]
        self.taken = set(graph.tensors)
        self.node_names = {node.name for node in graph.nodes}
        self.constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def emit(self, call: Call, outputs: tuple[str, ...], name: str) -> None:
        """A node that computes `outputs`, after the nodes of its inner calls."""
        from onnx import helper

        inputs = [self.value(arg, f"{name}/{call.fn}") for arg in call.args]
        while inputs and not inputs[-1]:
            inputs.pop()
        attrs = {key: value for key, value in call.attrs.items() if value is not None}
        self.nodes.append(helper.make_node(call.fn, inputs, outputs, name, **_attributes(attrs)))

    def value(self, value: Any, place: str) -> str:
        """The name of an argument: a tensor, an inner call, a constant, or "" for an absent one."""
        if value is None:
            return ""
        if isinstance(value, Tensor):
            return value.name
        if isinstance(value, Call):
            output = self._new(f"{place}/{value.fn}", self.taken)
            self.emit(value, (output,), self._new(output, self.node_names))
            return output
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
    """Tuples as lists, which `make_node` types by their elements; booleans as the integers that ONNX has for them."""
    return {
        key: list(value) if isinstance(value, tuple) else int(value) if isinstance(value, bool) else value
        for key, value in attrs.items()
    }
