"""ONNX -> `MSCGraph`: each node is handed to the row that claims its operator; names and weights stay as they are.

Shapes that the model computes from shapes are worked out symbolically (`onnx_values.py`), what depends on constants
alone is computed at import, functions and constant conditions are expanded in place. Nothing of the model is executed.
"""

from __future__ import annotations

import keyword
import re
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from msc_core import dims
from msc_core.dims import Dim
from msc_core.errors import InvalidGraph, MscError, UnsupportedOperator, nearest
from msc_core.frontends import onnx_model, onnx_values
from msc_core.frontends.builder import GraphBuilder
from msc_core.ir import Array, MSCGraph, Tensor, unique
from msc_core.ops import OPS, Call, Source, call

if TYPE_CHECKING:
    import onnx

ONNX: Mapping[str, Callable[[Source], Any]] = {
    op: importer for row in OPS.values() for op, importer in row.from_onnx.items()
}
MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)  # from an importer: a bad attribute
MAX_UNROLLED = 256  # nodes that a loop may become


def from_onnx(
    model: str | Path | onnx.ModelProto, *, name: str = "", shapes: Mapping[str, Sequence[Dim]] | None = None
) -> MSCGraph:
    """The graph of an ONNX model of opset 7 or later: a file, or a `ModelProto`.

    Tensors, nodes and weights keep their names. Dimensions that the model names become symbols of that name, unnamed
    ones get new symbols. `shapes` replaces the shape of some inputs: `{"x": (1, 3, 224, 224)}` or `{"x": ("N", 3)}`;
    a dimension that is given a value there has it everywhere. Weights in files of their own are read from the model's
    folder only.

    Raises `UnsupportedOperator` naming the node and the operator that cannot be imported, and `InvalidGraph` if the
    model is damaged or breaks ONNX's rules.
    """
    proto, folder = onnx_model.read(model)
    proto = onnx_model.prepare(proto)
    stem = Path(model).stem if isinstance(model, (str, Path)) else ""
    return _Importer(proto, folder, shapes or {}).graph(name or proto.graph.name or stem or "graph")


@dataclass(frozen=True)
class _Pending:
    """A tensor that depends on constants alone, but was left as a node: how to compute it after all."""

    node: onnx.NodeProto
    inputs: tuple[Tensor | None, ...]
    index: int
    version: int


class _Importer:
    """Walks one model. `scope` maps ONNX names to our tensors; `values` holds what is known of those."""

    def __init__(self, model: onnx.ModelProto, folder: Path | None, shapes: Mapping[str, Sequence[Dim]]) -> None:
        self.model, self.folder, self.shapes = model, folder, shapes
        self.version = onnx_model.opset(model)
        self.build = GraphBuilder()
        self.values: dict[str, Array] = {}
        self.pending: dict[str, _Pending] = {}
        self.stored: set[str] = set()  # initializers with elements that may be trained, which stay as they are
        self.symbols: dict[str, Dim] = {}  # dim_param -> what it stands for here
        self.results: set[str] = set()
        self.expected: Mapping[str, onnx.TypeProto] = {}

    def graph(self, name: str) -> MSCGraph:
        """The graph of the whole model."""
        graph = self.model.graph
        weights = {tensor.name for tensor in graph.initializer}
        inputs = [value for value in graph.input if value.name not in weights]
        if unknown := self.shapes.keys() - {value.name for value in inputs}:
            word = sorted(unknown)[0]
            raise MscError(f"shapes names {word!r}, which is no input{nearest(word, (v.name for v in inputs))}")
        self.build.reserve(
            {value.name for value in inputs} | weights | {out for node in graph.node for out in node.output},
            {node.name for node in graph.node},
        )
        self.results = {value.name for value in graph.output}
        self.expected = inferred(self.model, keep=not self.shapes)
        scope: dict[str, Tensor] = {}
        self._bind(inputs)
        for value in inputs:
            shape = self._shape(value)
            scope[value.name] = self.build.add(Tensor(value.name, shape, self._dtype(value)))
        self._initializers(graph, scope)
        nodes = onnx_model.sort(graph.node, set(scope))
        self._run(nodes, ChainMap(scope), self.version)
        outputs = [self._output(value.name, scope) for value in graph.output]
        return self.build.graph(name, [value.name for value in inputs], outputs)

    def _output(self, name: str, scope: Mapping[str, Tensor]) -> str:
        if name not in scope:
            raise InvalidGraph(f"output {name!r} is not defined by any node")
        return scope[name].name

    # Inputs and weights

    def _bind(self, inputs: Sequence[onnx.ValueInfoProto]) -> None:
        """Learn what each named dimension stands for: a symbol of that name, or what `shapes` says."""
        for value in inputs:
            for i, d in enumerate(value.type.tensor_type.shape.dim):
                given = self.shapes.get(value.name, ())
                if d.dim_param and i < len(given):
                    bound = dims.parse(str(given[i]))
                    if self.symbols.setdefault(d.dim_param, bound) != bound:
                        known = self.symbols[d.dim_param]
                        raise MscError(f"shapes gives {d.dim_param!r} two values: {known} and {bound}")
        named = [d.dim_param for value in inputs for d in value.type.tensor_type.shape.dim if d.dim_param]
        for param in dict.fromkeys(named):
            if param not in self.symbols and identifier(param) == param:
                self.symbols[param] = param
        for param in dict.fromkeys(named):
            if param not in self.symbols:
                self.symbols[param] = self._expression(param) or self._symbol(param)

    def _symbol(self, text: str) -> str:
        return unique(identifier(text), set(dims.symbols(self.symbols.values())))

    def _expression(self, param: str) -> Dim | None:
        """A name such as "2*batch", if its symbols have names of their own."""
        try:
            found = dims.parse(param)
            return dims.substitute(found, self.symbols) if set(dims.symbols([found])) <= self.symbols.keys() else None
        except InvalidGraph:
            return None

    def _shape(self, value: onnx.ValueInfoProto) -> tuple[Dim, ...]:
        kind = value.type.WhichOneof("value")
        if kind != "tensor_type":
            raise UnsupportedOperator(f"input {value.name!r} is a {kind}; only tensors are supported")
        given = self.shapes.get(value.name)
        if not value.type.tensor_type.HasField("shape"):
            if given is None:
                raise InvalidGraph(f"input {value.name!r} has no shape; give it: shapes={{{value.name!r}: (1, ...)}}")
            return tuple(dims.parse(str(d)) for d in given)
        described = value.type.tensor_type.shape.dim
        if given is not None and len(given) != len(described):
            raise MscError(f"shapes gives {value.name!r} {len(given)} dimensions; the model has {len(described)}")
        shape: list[Dim] = []
        for i, d in enumerate(described):
            if given is not None:
                shape.append(dims.parse(str(given[i])))
                if d.HasField("dim_value") and d.dim_value > 0 and shape[i] != d.dim_value:
                    raise MscError(f"shapes gives {value.name!r} {shape[i]} on axis {i}; the model says {d.dim_value}")
            elif d.dim_param:
                shape.append(self.symbols[d.dim_param])
            elif d.HasField("dim_value") and d.dim_value >= 0:
                shape.append(d.dim_value)
            else:
                key = f"{value.name}_{i}"
                self.symbols[f"?{key}"] = symbol = self._symbol(key)
                shape.append(symbol)
        return tuple(shape)

    def _dtype(self, value: onnx.ValueInfoProto) -> str:
        dtype = dtype_name(value.type.tensor_type.elem_type)
        if dtype not in onnx_model.DTYPES:
            raise UnsupportedOperator(
                f"input {value.name!r} has dtype {dtype}; supported: {', '.join(onnx_model.DTYPES)}"
            )
        return dtype

    def _initializers(self, graph: onnx.GraphProto, scope: Any) -> None:
        if graph.sparse_initializer:
            raise UnsupportedOperator(f"graph {graph.name!r} has sparse initializers, which are not supported")
        for tensor in graph.initializer:
            if tensor.name in scope:
                raise InvalidGraph(f"initializer {tensor.name!r} is defined twice")
            scope[tensor.name] = self._store(tensor.name, onnx_model.to_array(tensor, self.folder))

    def _store(self, name: str, array: Array) -> Tensor:
        """A constant of the model, as a weight under its name."""
        tensor = self.build.weight(name, array) if name not in self.build.tensors else self.build.constant(name, array)
        self.values[tensor.name] = array
        if array.size > 1 and array.dtype.name not in ("int64", "int32", "bool"):
            self.stored.add(tensor.name)
        return tensor

    # Nodes

    def _run(self, nodes: Sequence[onnx.NodeProto], scope: ChainMap[str, Tensor], version: int) -> None:
        for node in nodes:
            try:
                found = self._node(node, scope, version)
            except MscError as error:
                if str(error).startswith("node "):
                    raise
                raise type(error)(f"{onnx_model.describe(node)}: {error}") from error
            for name, tensor in zip(node.output, found, strict=False):
                if name and tensor is not None:
                    self._check(name, tensor)
                    scope[name] = tensor

    def _node(self, node: onnx.NodeProto, scope: ChainMap[str, Tensor], version: int) -> list[Tensor | None]:
        for name in node.input:
            if name and name not in scope:
                raise InvalidGraph(f"input {name!r} is not defined")
        inputs = tuple(scope[name] if name else None for name in node.input)
        attrs = onnx_model.attributes(node, self.folder)
        if node.domain not in ("", "ai.onnx"):
            return self._import(f"{node.domain}.{node.op_type}", node, inputs, attrs, version)
        if node.op_type == "Constant":
            return [self._store(node.output[0], _constant(attrs))]
        if (values := self._evaluate(node, inputs, attrs, version)) is not None:
            return [
                self._known(name, value) if name else None for name, value in zip(node.output, values, strict=False)
            ]
        constant = all(t is None or t.name in self.values or t.name in self.pending for t in inputs)
        constant &= node.op_type not in onnx_values.RANDOM and bool(inputs)
        try:
            found = self._import(node.op_type, node, inputs, attrs, version)
        except UnsupportedOperator:
            if not constant:
                raise
            values = self._compute(node, inputs, version)
            return [
                self._known(name, value) if name else None for name, value in zip(node.output, values, strict=False)
            ]
        if constant:
            for i, tensor in enumerate(found):
                if tensor is not None and tensor.name not in self.values:
                    self.pending[tensor.name] = _Pending(node, inputs, i, version)
        return found

    def _import(
        self, op: str, node: onnx.NodeProto, inputs: tuple[Tensor | None, ...], attrs: Mapping[str, Any], version: int
    ) -> list[Tensor | None]:
        """Let the row that claims the operator say it in our words."""
        importer = ONNX.get(op)
        if importer is None:
            raise UnsupportedOperator(
                f"operator {op} is not in the op table{nearest(op, ONNX).split(' known')[0].rstrip(';')}"
            )
        wanted = len(node.output)
        while wanted and not node.output[wanted - 1]:
            wanted -= 1
        for tensor in inputs:
            if tensor is not None and tensor.dtype not in onnx_model.DTYPES:
                raise UnsupportedOperator(f"input {tensor.name!r} has dtype {tensor.dtype}, which is not supported")
        name = node.name or next((out for out in node.output if out), op)
        try:
            result = importer(Source(op, inputs, attrs, self.known, wanted, version))
            copies = tuple(result) if isinstance(result, (tuple, list)) else (result,)
            copies = tuple(
                call("identity", part) if isinstance(part, Tensor) and out in self.results else part
                for part, out in zip(copies, node.output, strict=False)
            )
            whole = copies if len(copies) > 1 or isinstance(result, (tuple, list)) else copies[0]
            found = self.build.emit(whole, name, results=list(node.output))
        except MALFORMED as error:
            raise InvalidGraph(f"its inputs or attributes are not valid: {type(error).__name__}: {error}") from error
        tensors = list(found) if isinstance(found, tuple) else [found]
        for i, out in enumerate(node.output[:wanted]):
            if out and (i >= len(tensors) or tensors[i] is None):
                raise UnsupportedOperator(f"output {i} ({out!r}) is not supported")
        return tensors

    # Values

    def known(self, tensor: Tensor) -> Array | None:
        """`Source.known`: the value of a tensor, computed now if it depends on constants alone."""
        if tensor.name in self.values:
            return self.values[tensor.name]
        if (pending := self.pending.get(tensor.name)) is None:
            return None
        value = self._compute(pending.node, pending.inputs, pending.version)[pending.index]
        self.values[tensor.name] = value
        return value

    def _compute(self, node: onnx.NodeProto, inputs: tuple[Tensor | None, ...], version: int) -> list[Array]:
        """A node's outputs from constants. Raises `UnsupportedOperator` if they are too large or symbolic."""
        values = [None if t is None else self.known(t) for t in inputs]
        if any(v is not None and v.dtype == object for v in values):
            raise UnsupportedOperator("it depends on a symbolic dimension; expected a constant")
        if (size := onnx_values.result_size(node, values, version)) > onnx_values.MAX_FOLDED:
            raise UnsupportedOperator(f"it is a constant of {size:g} elements, too large to compute at import")
        return onnx_values.run(node, values, version)

    def _evaluate(
        self, node: onnx.NodeProto, inputs: tuple[Tensor | None, ...], attrs: Mapping[str, Any], version: int
    ) -> list[Array] | None:
        """A node's outputs, if they follow from shapes and small constants; weights are not touched."""
        op = node.op_type
        if op in ("Shape", "Size") and inputs[0] is not None:
            shape = inputs[0].shape[slice(attrs.get("start"), attrs.get("end"))] if op == "Shape" else inputs[0].shape
            return [_array(shape if op == "Shape" else dims.mul(*shape))]
        if not inputs or op in onnx_values.RANDOM:
            return None
        values = []
        for tensor in inputs:
            if tensor is not None and (tensor.name not in self.values or tensor.name in self.stored):
                return None
            values.append(None if tensor is None else self.values[tensor.name])
        if op in ("Cast", "CastLike") and values[0] is not None and values[0].dtype == object:
            to = dtype_name(attrs["to"]) if op == "Cast" else inputs[1].dtype
            return [values[0]] if to in ("int64", "int32", "float32", "float64") else None
        if any(v is not None and v.dtype == object for v in values):
            return onnx_values.symbolic(node, values, attrs, version)
        if onnx_values.result_size(node, values, version) > onnx_values.MAX_FOLDED:
            return None
        try:
            return onnx_values.run(node, values, version)
        except UnsupportedOperator:
            return None

    def _known(self, name: str, value: Array, dtype: str = "int64") -> Tensor:
        """A tensor for a value that is known: a constant, or the sizes that it holds."""
        if value.dtype != object:
            tensor = self.build.constant(name, value)
        else:
            parts = call("sizes", values=tuple(value.ravel().tolist()))
            whole = parts if value.ndim == 1 else call("reshape", parts, shape=value.shape)
            tensor = self.build.emit(
                whole if dtype == "int64" else call("cast", whole, dtype=dtype), name, results=[name]
            )
        self.values[tensor.name] = value
        return tensor

    # What ONNX itself says

    def _check(self, name: str, tensor: Tensor) -> None:
        """Our rules of shapes and dtypes against ONNX's: a difference must not pass silently."""
        expected = self.expected.get(name)
        if expected is None or not expected.HasField("tensor_type"):
            return
        dtype, shape = expected.tensor_type.elem_type, expected.tensor_type.shape
        if dtype and dtype_name(dtype) != tensor.dtype:
            raise UnsupportedOperator(
                f"output {name!r} has dtype {tensor.dtype} here and {dtype_name(dtype)} in the model"
            )
        if not expected.tensor_type.HasField("shape"):
            return
        sizes = [d.dim_value if d.HasField("dim_value") else None for d in shape.dim]
        same = len(sizes) == len(tensor.shape) and all(
            a is None or isinstance(b, str) or a == b for a, b in zip(sizes, tensor.shape, strict=True)
        )
        if not same:
            found, said = list(tensor.shape), ["?" if s is None else s for s in sizes]
            raise UnsupportedOperator(f"output {name!r} has shape {found} here and {said} in the model")


def inferred(model: onnx.ModelProto, keep: bool) -> Mapping[str, onnx.TypeProto]:
    """The types that the model states (if `keep`) and that ONNX infers; empty where its inference fails."""
    import onnx

    copy = onnx_model.skeleton(model)
    if not keep:
        del copy.graph.value_info[:]
        for value in (*copy.graph.output, *copy.graph.input):
            for d in value.type.tensor_type.shape.dim:
                d.Clear()
    try:
        copy = onnx.shape_inference.infer_shapes(copy, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        if not keep:
            return {}
    return {value.name: value.type for value in (*copy.graph.value_info, *copy.graph.output)}


def identifier(text: str) -> str:
    """A Python identifier like `text`.

    >>> identifier("batch size"), identifier("2*N"), identifier("lambda")
    ('batch_size', 'd2_N', 'lambda_')
    """
    name = re.sub(r"\W", "_", text)
    name = name if name.isidentifier() else f"d{name}"
    return f"{name}_" if keyword.iskeyword(name) else name


def dtype_name(code: int) -> str:
    """NumPy's name of an ONNX dtype."""
    from onnx import TensorProto, helper

    if code in (TensorProto.UNDEFINED, TensorProto.STRING) or code not in TensorProto.DataType.values():
        raise UnsupportedOperator(f"ONNX dtype {code} (string or unknown) is not supported")
    return str(helper.tensor_dtype_to_np_dtype(code).name)


def _constant(attrs: Mapping[str, Any]) -> Array:
    """The value of a Constant node in any of its forms."""
    kinds = {"value": None, "value_int": np.int64, "value_ints": np.int64, "value_float": np.float32}
    kinds["value_floats"] = np.float32
    for key, dtype in kinds.items():
        if key in attrs:
            return np.asarray(attrs[key], dtype)
    raise UnsupportedOperator("a Constant that is sparse or holds strings is not supported")


def _array(value: Any) -> Array:
    flat = value if isinstance(value, tuple) else (value,)
    return np.asarray(value, object if any(isinstance(d, str) for d in flat) else np.int64)
