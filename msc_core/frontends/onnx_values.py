"""What is known of an ONNX model's tensors while it is imported: constants, and shapes worked out symbolically."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from msc_core import dims
from msc_core.dims import Dim, bounds
from msc_core.errors import UnsupportedOperator
from msc_core.ir import Array

if TYPE_CHECKING:
    import onnx

Values = Sequence[Array | None]

MAX_FOLDED = 2**22  # elements of a constant that is computed at import
MAX_SYMBOLIC = 4096  # elements of a shape that is followed symbolically
RANDOM = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
# which inputs are data that the operator only moves: these may hold dimensions, the others must be numbers
MOVES: Mapping[str, tuple[int, ...]] = {
    "Concat": tuple(range(1000)), "Gather": (0,), "GatherElements": (0,), "GatherND": (0,), "Slice": (0,),
    "Unsqueeze": (0,), "Squeeze": (0,), "Reshape": (0,), "Flatten": (0,), "Expand": (0,), "Transpose": (0,),
    "Split": (0,), "Tile": (0,), "ScatterElements": (0, 2), "ScatterND": (0, 2), "Where": (1, 2), "Pad": (0, 2),
    "Compress": (0,), "Identity": (0,), "ReverseSequence": (0,),
}  # fmt: skip
FOLDS: Mapping[str, Callable[[Dim, Dim], Dim]] = {
    "Add": dims.add, "Sub": dims.sub, "Mul": dims.mul, "Max": dims.maximum, "Min": dims.minimum,
    "ReduceProd": dims.mul, "ReduceSum": dims.add, "ReduceMax": dims.maximum, "ReduceMin": dims.minimum,
}  # fmt: skip


def run(node: onnx.NodeProto, inputs: Values, version: int) -> list[Array]:
    """What ONNX's reference implementation computes for one node. Raises `UnsupportedOperator` if it cannot."""
    import onnx
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    names = [f"i{i}" if value is not None else "" for i, value in enumerate(inputs)]
    outputs = [f"o{i}" if name else "" for i, name in enumerate(node.output)]
    del copy.input[:], copy.output[:]
    copy.input.extend(names)
    copy.output.extend(outputs)
    feeds = {name: value for name, value in zip(names, inputs, strict=True) if name}
    untyped = onnx.TypeProto()
    graph = helper.make_graph(
        [copy],
        "constant",
        [helper.make_value_info(name, untyped) for name in feeds],
        [helper.make_value_info(name, untyped) for name in outputs if name],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)])
    try:
        with np.errstate(all="ignore"):
            found = ReferenceEvaluator(model).run(None, feeds)
    except Exception as error:  # whatever a reference implementation in Python may raise
        raise UnsupportedOperator(f"ONNX's reference cannot compute it: {type(error).__name__}: {error}") from error
    results = iter(found if isinstance(found, (list, tuple)) else [found])
    values = [next(results) if name else None for name in outputs]
    return [np.asarray(value) for value in values]


def result_size(node: onnx.NodeProto, inputs: Values, version: int) -> float:
    """How many elements the outputs will have, by ONNX's shape inference; an upper guess where it cannot say."""
    import onnx
    from onnx import helper, numpy_helper

    types, data = {}, {}
    for name, value in zip(node.input, inputs, strict=True):
        if value is not None:
            proto = numpy_helper.from_array(value, name)
            types[name] = helper.make_tensor_type_proto(proto.data_type, value.shape)
            if value.size <= MAX_SYMBOLIC:
                data[name] = proto
    try:
        schema = onnx.defs.get_schema(node.op_type, version, "")
        imports = [helper.make_opsetid("", version)]
        outputs = onnx.shape_inference.infer_node_outputs(schema, node, types, data, opset_imports=imports)
    except (RuntimeError, KeyError, onnx.defs.SchemaError, onnx.shape_inference.InferenceError):
        outputs = {}
    total = 0.0
    for name in (name for name in node.output if name):
        shape = outputs[name].tensor_type.shape.dim if name in outputs else None
        if (
            shape is None
            or not outputs[name].tensor_type.HasField("shape")
            or any(d.dim_param or not d.HasField("dim_value") for d in shape)
        ):
            sizes = [value.size for value in inputs if value is not None]
            total += (
                math.inf
                if node.op_type in ("ConstantOfShape", "Expand", "Range", "Tile", "Pad")
                else max(sizes, default=1)
            )
        else:
            total += math.prod(d.dim_value for d in shape)
    return total


def symbolic(
    node: onnx.NodeProto, inputs: Values, attrs: Mapping[str, Any], version: int, dtype: str
) -> list[Array] | None:
    """The outputs of a node whose inputs hold dimensions, or `None` where they cannot be worked out."""
    op = node.op_type
    if any(value is not None and value.size > MAX_SYMBOLIC for value in inputs):
        return None
    if op in MOVES:
        return _move(node, inputs, version)
    wholes = [_whole(value) for value in inputs if value is not None]
    given = [value for value in wholes if value is not None]
    if len(given) < len(wholes):
        return None
    if op.startswith("Reduce") and op in FOLDS:
        return _reduce(FOLDS[op], given, attrs)
    if op in ("Sum", *FOLDS) and given:
        function = FOLDS.get(op, dims.add)
        result = given[0]
        for other in given[1:]:
            result = _pointwise(function, result, other)
        return [result]
    if op == "Div" or (op == "Mod" and not attrs.get("fmod")):
        return _divide(op, given[0], given[1], "int" in dtype)
    if op in ("Cast", "CastLike"):
        return given[:1] if dtype in ("int64", "int32", "float32", "float64") else None
    if op == "Neg":
        return [_pointwise(dims.mul, given[0], np.asarray(-1, object))]
    if op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"):
        return _compare(op, *given)
    if op in ("Floor", "Ceil", "Round", "Abs") and (op != "Abs" or all(bounds(d)[0] >= 0 for d in given[0].flat)):
        return [given[0]]  # dimensions are whole numbers
    return None


def _whole(value: Array) -> Array | None:
    """The elements as Python ints and expressions, `None` if some are not whole."""
    result = np.empty(value.shape, object)
    for index, element in np.ndenumerate(value):
        if isinstance(element, str):
            result[index] = element
        elif float(element) == int(element):
            result[index] = int(element)
        else:
            return None
    return result


def _pointwise(function: Callable[[Any, Any], Any], a: Array, b: Array) -> Array:
    ufunc: Any = np.frompyfunc(function, 2, 1)
    return np.asarray(ufunc(a, b), object)


def _move(node: onnx.NodeProto, inputs: Values, version: int) -> list[Array] | None:
    """Let the reference move positions in place of the elements that they stand for."""
    pool: list[Any] = []
    stand_ins: list[Array | None] = []
    for i, value in enumerate(inputs):
        if value is not None and i in MOVES[node.op_type]:
            stand_ins.append(np.arange(len(pool), len(pool) + value.size, dtype=np.int64).reshape(value.shape))
            pool += value.ravel().tolist()
        elif value is not None and value.dtype == object:
            return None
        else:
            stand_ins.append(value)
    if node.op_type == "Pad" and (len(inputs) < 3 or inputs[2] is None):
        return None
    if result_size(node, stand_ins, version) > MAX_SYMBOLIC:
        return None
    results = []
    for positions in run(node, stand_ins, version):
        moved = np.empty(positions.shape, object)
        for index, position in np.ndenumerate(positions):
            moved[index] = pool[int(position)]
        results.append(moved)
    return results


def _reduce(
    function: Callable[[Dim, Dim], Dim], given: Sequence[Array], attrs: Mapping[str, Any]
) -> list[Array] | None:
    value = given[0]
    axes = attrs.get("axes") if len(given) == 1 else tuple(given[1].ravel().tolist())
    if not axes and attrs.get("noop_with_empty_axes"):
        return [value]
    if value.size == 0:
        return None
    axes = tuple(range(value.ndim)) if not axes else tuple(axis % value.ndim for axis in axes)
    keep = [i for i in range(value.ndim) if i not in axes]
    rows = value.transpose(*keep, *axes).reshape(*(value.shape[i] for i in keep), -1)
    ufunc: Any = np.frompyfunc(function, 2, 1)
    result = ufunc.reduce(rows, axis=-1)
    shape = (
        [1 if i in axes else n for i, n in enumerate(value.shape)]
        if attrs.get("keepdims", 1)
        else [value.shape[i] for i in keep]
    )
    return [np.asarray(result, object).reshape(shape)]


def _divide(op: str, a: Array, b: Array, whole: bool) -> list[Array] | None:
    """Division and remainder, where nothing is negative, so that rounding down is rounding to zero.

    Of floats that hold dimensions (not `whole`) a quotient is known only if nothing is rounded.
    """
    if any(bounds(d)[0] < 0 for d in a.flat) or any(bounds(d)[0] <= 0 for d in b.flat):
        return None
    if not whole and (op == "Mod" or any(rest != 0 for rest in _pointwise(dims.mod, a, b).flat)):
        return None
    return [_pointwise(dims.floordiv if op == "Div" else dims.mod, a, b)]


def _compare(op: str, a: Array, b: Array) -> list[Array] | None:
    """A comparison that comes out the same for every size, as booleans."""
    decisions: Mapping[str, tuple[Callable[[float, float], bool], Callable[[float, float], bool]]] = {
        "Equal": (lambda low, high: low == high == 0, lambda low, high: low > 0 or high < 0),
        "Greater": (lambda low, high: low > 0, lambda low, high: high <= 0),
        "GreaterOrEqual": (lambda low, high: low >= 0, lambda low, high: high < 0),
        "Less": (lambda low, high: high < 0, lambda low, high: low >= 0),
        "LessOrEqual": (lambda low, high: high <= 0, lambda low, high: low > 0),
    }
    always, never = decisions[op]
    difference = _pointwise(dims.sub, a, b)
    result = np.empty(difference.shape, bool)
    for index, d in np.ndenumerate(difference):
        low, high = bounds(d)
        if not always(low, high) and not never(low, high):
            return None
        result[index] = always(low, high)
    return [result]
