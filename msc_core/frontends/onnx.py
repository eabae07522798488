"""ONNX -> `MSCGraph`: each node is handed to the row that claims its operator; names and weights stay as they are.

Shapes that the model computes from shapes are worked out symbolically (`onnx_values.py`), what depends on constants
alone is computed at import, functions and known conditions are expanded in place. Nothing of the model is executed.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from msc_core import dims
from msc_core.dims import Dim
from msc_core.errors import InvalidGraph, MscError, UnsupportedOperator
from msc_core.frontends import onnx_control, onnx_functions, onnx_inputs, onnx_model, onnx_values
from msc_core.frontends.builder import GraphBuilder
from msc_core.frontends.onnx_control import Frame, Inputs
from msc_core.frontends.onnx_inputs import dtype_name
from msc_core.ir import Array, MSCGraph, Tensor
from msc_core.ops import OPS, Source, call

if TYPE_CHECKING:
    import onnx

ONNX: Mapping[str, Callable[[Source], Any]] = {
    op: importer for row in OPS.values() for op, importer in row.from_onnx.items()
}
MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)  # from an importer: a bad attribute


def from_onnx(
    model: str | Path | onnx.ModelProto,
    *,
    name: str = "",
    shapes: Mapping[str, Sequence[Dim]] | None = None,
    constants: Mapping[str, Any] | None = None,
) -> MSCGraph:
    """The graph of an ONNX model of opset 7 or later: a file, or a `ModelProto`.

    Tensors, nodes and weights keep their names. Dimensions that the model names become symbols of that name, unnamed
    ones get new symbols. `shapes` replaces the shape of some inputs: `{"x": (1, 3, 224, 224)}` or `{"x": ("N", 3)}`;
    a named dimension that is given a value there has it everywhere. `constants` fixes the values of some inputs, which
    are then none any more: `{"sample_rate": 16000}`; what decides a shape or a condition has to be known. Weights in
    files of their own are read from the model's folder only.

    Raises `UnsupportedOperator` naming the node and the operator that cannot be imported, and `InvalidGraph` if the
    model is damaged or breaks ONNX's rules.
    """
    proto, folder = onnx_model.read(model)
    proto = onnx_model.prepare(onnx_inputs.fix(proto, constants) if constants else proto)
    stem = Path(model).stem if isinstance(model, (str, Path)) else ""
    return Importer(proto, folder, bool(shapes)).graph(name or proto.graph.name or stem or "graph", shapes or {})


@dataclass(frozen=True)
class _Pending:
    """A tensor that depends on constants alone, but was left as a node: how to compute it after all."""

    node: onnx.NodeProto
    inputs: Inputs
    index: int
    version: int


class Importer:
    """Walks one model. `values` holds what is known of our tensors, `pending` what could be known."""

    def __init__(self, model: onnx.ModelProto, folder: Path | None, reshaped: bool) -> None:
        self.model, self.folder = model, folder
        self.build = GraphBuilder()
        self.values: dict[str, Array] = {}
        self.pending: dict[str, _Pending] = {}
        self.stored: set[str] = set()  # weights, which stay as they are although they are known
        self.outputs = {value.name for value in model.graph.output}
        self.expected = onnx_functions.inferred(model, keep=not reshaped)

    def graph(self, name: str, shapes: Mapping[str, Sequence[Dim]]) -> MSCGraph:
        """The graph of the whole model."""
        graph = self.model.graph
        weights = {tensor.name for tensor in graph.initializer}
        inputs = onnx_inputs.describe([value for value in graph.input if value.name not in weights], shapes)
        made = {out for node in graph.node for out in node.output}
        self.build.reserve({t.name for t in inputs} | weights | made, {node.name for node in graph.node})
        scope = ChainMap({tensor.name: self.build.add(tensor) for tensor in inputs})
        frame = Frame(scope, onnx_model.opset(self.model), outermost=True)
        self.body(graph, frame)
        return self.build.graph(name, [t.name for t in inputs], [scope[value.name].name for value in graph.output])

    def body(self, graph: onnx.GraphProto, frame: Frame) -> list[Tensor]:
        """Import a graph's weights and nodes; returns its outputs."""
        if graph.sparse_initializer:
            raise UnsupportedOperator(f"graph {graph.name!r} has sparse initializers, which are not supported")
        for tensor in graph.initializer:
            if tensor.name in frame.scope.maps[0]:
                raise InvalidGraph(f"initializer {tensor.name!r} is defined twice")
            array = onnx_model.to_array(tensor, self.folder)
            frame.scope[tensor.name] = self._store(frame.name(tensor.name), array)
        self._nodes(graph.node, frame)
        for value in graph.output:
            if value.name not in frame.scope:
                raise InvalidGraph(f"output {value.name!r} is not defined by any node")
        return [frame.scope[value.name] for value in graph.output]

    def _nodes(self, nodes: Sequence[onnx.NodeProto], frame: Frame) -> None:
        for node in onnx_model.sort(nodes, set(frame.scope)):
            try:
                found = self._node(node, frame)
                for name, tensor in zip(node.output, found, strict=False):
                    if name and tensor is not None:
                        frame.scope[name] = self._named(tensor, node, frame, name)
            except MscError as error:
                inner = str(error).startswith("node ") and not frame.outermost
                raise error if inner else type(error)(f"{onnx_model.describe(node)}: {error}") from error

    def _named(self, tensor: Tensor, node: onnx.NodeProto, frame: Frame, name: str) -> Tensor:
        """An output, checked against what ONNX says of it; one of the graph's own has exactly its name."""
        if frame.outermost:
            self._check(name, tensor)
        final = frame.name(name)
        if final in self.outputs and tensor.name != final:
            tensor = self.build.emit(call("identity", tensor), self.title(node, frame), results=[final])
        return tensor

    @staticmethod
    def title(node: onnx.NodeProto, frame: Frame) -> str:
        """The name of a node: its own, or its first output's."""
        if node.name:
            return f"{frame.prefix}{node.name}"
        return next((frame.name(out) for out in node.output if out), f"{frame.prefix}{node.op_type}")

    # One node

    def _node(self, node: onnx.NodeProto, frame: Frame) -> Sequence[Tensor | None]:
        """Its outputs: worked out if that is possible now, expanded if it stands for others, or as our nodes."""
        if missing := [name for name in node.input if name and name not in frame.scope]:
            raise InvalidGraph(f"input {missing[0]!r} is not defined")
        inputs = tuple(frame.scope[name] if name else None for name in node.input)
        attrs = onnx_model.attributes(node, self.folder)
        own = node.domain in ("", "ai.onnx")
        if own:
            onnx_functions.check_types(node, inputs, frame.version)
        if own and node.op_type == "Identity":
            return inputs
        if own and node.op_type == "Constant":
            return [self._store(frame.name(node.output[0]), _constant(attrs))]
        if own and node.op_type in onnx_control.FORMS:
            return onnx_control.FORMS[node.op_type](self, node, inputs, attrs, frame)
        if own and (values := self._evaluate(node, inputs, attrs, frame.version)) is not None:
            dtype = self._dtype(node, inputs, attrs)
            return [self.constant(frame.name(out), v, dtype) for out, v in zip(node.output, values, strict=False)]
        constant = own and bool(inputs) and node.op_type not in onnx_values.RANDOM
        constant &= all(t is None or t.name in self.values or t.name in self.pending for t in inputs)
        mark = self.build.mark()
        try:
            found = self._import(node, inputs, attrs, frame)
        except UnsupportedOperator as refusal:
            self._undo(mark)
            return self._otherwise(node, inputs, frame, constant, refusal)
        if constant:
            for i, tensor in enumerate(found):
                if tensor is not None and tensor.name not in self.values:
                    self.pending[tensor.name] = _Pending(node, inputs, i, frame.version)
        return found

    def _import(
        self, node: onnx.NodeProto, inputs: Inputs, attrs: Mapping[str, Any], frame: Frame
    ) -> Sequence[Tensor | None]:
        """Let the row that claims the operator say it in our words."""
        op = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
        if (importer := ONNX.get(op)) is None:
            raise UnsupportedOperator(f"operator {op} is not in the op table")
        for tensor in inputs:
            if tensor is not None and tensor.dtype not in onnx_inputs.DTYPES:
                raise UnsupportedOperator(f"input {tensor.name!r} has dtype {tensor.dtype}, which is not supported")
        wanted = max(i + 1 for i, out in enumerate(node.output) if out)
        names = [frame.name(out) for out in node.output]
        try:
            result = importer(Source(op, inputs, attrs, self.known, wanted, frame.version))
            found = self.build.emit(result, self.title(node, frame), results=names)
        except MALFORMED as error:
            raise InvalidGraph(f"its inputs or attributes are not valid: {type(error).__name__}: {error}") from error
        tensors = list(found) if isinstance(found, tuple) else [found]
        for i, out in enumerate(node.output):
            if out and (i >= len(tensors) or tensors[i] is None):
                raise UnsupportedOperator(f"output {i} ({out!r}) is not supported")
        return tensors

    def _otherwise(
        self, node: onnx.NodeProto, inputs: Inputs, frame: Frame, constant: bool, refusal: UnsupportedOperator
    ) -> Sequence[Tensor | None]:
        """A node that no row takes: by ONNX's definition of its operator, or computed now if it is constant."""
        if (function := onnx_functions.body(node, inputs, frame.version)) is not None:
            known = dict(zip(function.input, inputs, strict=False))
            versions = [o.version for o in function.opset_import if o.domain in ("", "ai.onnx")]
            inner = Frame(
                ChainMap({name: tensor for name, tensor in known.items() if tensor is not None}),
                versions[0] if versions else frame.version,
                f"{self.title(node, frame)}/",
                {name: frame.name(out) for name, out in zip(function.output, node.output, strict=False) if out},
            )
            mark = self.build.mark()
            try:
                nodes = [
                    _without(n, {name for name in function.input if name not in inner.scope}) for n in function.node
                ]
                self._nodes(nodes, inner)
                return [inner.scope.get(name) for name in function.output]
            except MscError as error:
                self._undo(mark)
                if not constant:
                    raise refusal if "not in the op table" not in str(refusal) else error from error
        if not constant:
            raise refusal
        values = self._compute(node, inputs, frame.version)
        return [self.constant(frame.name(out), v) for out, v in zip(node.output, values, strict=False)]

    # Values

    def _store(self, name: str, array: Array) -> Tensor:
        """A constant of the model, as a weight under its name."""
        tensor = self.build.constant(name, array)
        self.values[tensor.name] = array
        if array.size > 1 and array.dtype.name not in ("int64", "int32", "bool"):
            self.stored.add(tensor.name)
        return tensor

    def constant(self, name: str, value: Array | None, dtype: str = "int64") -> Tensor | None:
        """A tensor for a value that is known: a constant, or the sizes that it holds."""
        if value is None or not name:
            return None
        if value.dtype == object and not any(isinstance(d, str) for d in value.flat):
            value = value.astype(dtype)
        if value.dtype != object:
            tensor = self.build.constant(name, value)
        else:
            whole = call("sizes", values=tuple(value.ravel().tolist()))
            whole = whole if value.ndim == 1 else call("reshape", whole, shape=value.shape)
            whole = whole if dtype == "int64" else call("cast", whole, dtype=dtype)
            tensor = self.build.emit(whole, name, results=[name])
        self.values[tensor.name] = value
        return tensor

    def known(self, tensor: Tensor) -> Array | None:
        """`Source.known`: the value of a tensor, computed now if it depends on constants alone."""
        if tensor.name not in self.values and (pending := self.pending.get(tensor.name)) is not None:
            values = self._compute(pending.node, pending.inputs, pending.version)
            self.values[tensor.name] = values[pending.index]
        return self.values.get(tensor.name)

    def _compute(self, node: onnx.NodeProto, inputs: Inputs, version: int) -> list[Array]:
        """A node's outputs from constants. Raises `UnsupportedOperator` if they are too large or symbolic."""
        values = [None if t is None else self.known(t) for t in inputs]
        if any(v is not None and v.dtype == object for v in values):
            raise UnsupportedOperator("it depends on a symbolic dimension; expected a constant: fix it with shapes=")
        if (size := onnx_values.result_size(node, values, version)) > onnx_values.MAX_FOLDED:
            raise UnsupportedOperator(f"it is a constant of {size:g} elements, too large to compute at import")
        return onnx_values.run(node, values, version)

    def _evaluate(
        self, node: onnx.NodeProto, inputs: Inputs, attrs: Mapping[str, Any], version: int
    ) -> list[Array] | None:
        """A node's outputs, if they follow from shapes and small constants; weights are not touched."""
        op = node.op_type
        first = inputs[0] if inputs else None
        if first is None or op in onnx_values.RANDOM:
            return None
        if op == "Shape":
            return [_dims(first.shape[slice(attrs.get("start"), attrs.get("end"))])]
        if op == "Size":
            return [_dims((dims.mul(*first.shape),)).reshape(())]
        dtype = self._dtype(node, inputs, attrs)
        if (
            op == "CastLike" and len(inputs) > 1 and inputs[1] is not None
        ):  # a cast: of the second input only the dtype matters
            node, inputs = onnx_functions.cast(node, inputs[1].dtype), inputs[:1]
        if any(t is not None and (t.name not in self.values or t.name in self.stored) for t in inputs):
            return None
        values = [None if t is None else self.values[t.name] for t in inputs]
        if any(v is not None and v.dtype == object for v in values):
            return onnx_values.symbolic(node, values, attrs, version, dtype)
        if onnx_values.result_size(node, values, version) > onnx_values.MAX_FOLDED:
            return None
        try:
            return onnx_values.run(node, values, version)
        except UnsupportedOperator:
            return None

    @staticmethod
    def _dtype(node: onnx.NodeProto, inputs: Inputs, attrs: Mapping[str, Any]) -> str:
        """The dtype of what `_evaluate` finds, where that holds dimensions."""
        if node.op_type in ("Shape", "Size"):
            return "int64"
        if node.op_type == "Cast":
            return dtype_name(attrs["to"])
        index = 1 if node.op_type in ("CastLike", "Where") else 0
        tensor = inputs[index] if index < len(inputs) else None
        return "int64" if tensor is None else tensor.dtype

    def _undo(self, mark: Any) -> None:
        """Forget what was built since a mark."""
        self.build.restore(mark)
        self.values = {name: value for name, value in self.values.items() if name in self.build.tensors}
        self.pending = {name: value for name, value in self.pending.items() if name in self.build.tensors}

    def _check(self, name: str, tensor: Tensor) -> None:
        """Our rules of shapes and dtypes against ONNX's: a difference must not pass silently."""
        expected = self.expected.get(name)
        if expected is None or not expected.HasField("tensor_type"):
            return
        described = expected.tensor_type
        if described.elem_type and dtype_name(described.elem_type) != tensor.dtype:
            said = dtype_name(described.elem_type)
            raise UnsupportedOperator(f"output {name!r} has dtype {tensor.dtype} here and {said} in the model")
        if not described.HasField("shape"):
            return
        sizes = [d.dim_value if d.HasField("dim_value") else None for d in described.shape.dim]
        same = len(sizes) == len(tensor.shape) and all(
            a is None or isinstance(b, str) or a == b for a, b in zip(sizes, tensor.shape, strict=True)
        )
        if not same:
            shown = ["?" if s is None else s for s in sizes]
            raise UnsupportedOperator(f"output {name!r} has shape {list(tensor.shape)} here and {shown} in the model")


def _without(node: onnx.NodeProto, absent: set[str]) -> onnx.NodeProto:
    """A node of a function whose caller leaves some inputs out."""
    for i, name in enumerate(node.input):
        if name in absent:
            node.input[i] = ""
    return node


def _constant(attrs: Mapping[str, Any]) -> Array:
    """The value of a Constant node in any of its forms."""
    dtypes = {"value_int": np.int64, "value_ints": np.int64, "value_float": np.float32, "value_floats": np.float32}
    for key, dtype in dtypes.items():
        if key in attrs:
            return np.asarray(attrs[key], dtype)
    if "value" not in attrs:
        raise UnsupportedOperator("a Constant that is sparse or holds strings is not supported")
    return np.asarray(attrs["value"])


def _dims(shape: Sequence[Dim]) -> Array:
    return np.asarray(shape, object if any(isinstance(d, str) for d in shape) else np.int64)
