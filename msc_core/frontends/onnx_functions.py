"""What ONNX itself says about operators: bodies of those that it defines by others, and the types that it infers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msc_core.errors import InvalidGraph
from msc_core.exchange import numpy_dtype
from msc_core.ir import Tensor
from msc_core.onnx_skeleton import skeleton

if TYPE_CHECKING:
    import onnx


def body(node: onnx.NodeProto, inputs: Sequence[Tensor | None], version: int) -> onnx.FunctionProto | None:
    """The function that defines an operator by others, with the node's attributes put in; `None` if there is none."""
    import onnx

    try:
        schema: Any = onnx.defs.get_schema(node.op_type, version, "" if node.domain == "ai.onnx" else node.domain)
    except onnx.defs.SchemaError:
        return None
    text: bytes = b""
    if schema.has_function:
        versions = [v for v in schema.function_opset_versions if v <= version]
        text = schema.get_function_with_opset_version(max(versions)) if versions else b""
    elif schema.has_context_dependent_function:
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= version]
        types = [onnx.TypeProto() if t is None else _type(t) for t in inputs]
        if versions:
            arguments = [t.SerializeToString() for t in types]
            text = schema.get_context_dependent_function_with_opset_version(
                max(versions), node.SerializeToString(), arguments
            )
    if not text:
        return None
    function = onnx.FunctionProto()
    function.ParseFromString(text)
    given = {name: a.default_value for name, a in schema.attributes.items() if a.default_value.name}
    given |= {a.name: a for a in (*function.attribute_proto, *node.attribute)}
    for inner in function.node:
        _fill(inner, given)
    return function


def _fill(node: onnx.NodeProto, given: Mapping[str, onnx.AttributeProto]) -> None:
    """Replace references to attributes of the function by its caller's."""
    kept = []
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            if attribute.ref_attr_name not in given:
                continue
            name = attribute.name
            attribute.CopyFrom(given[attribute.ref_attr_name])
            attribute.name = name
        for graph in [attribute.g] if attribute.type == attribute.GRAPH else list(attribute.graphs):
            for inner in graph.node:
                _fill(inner, given)
        kept.append(attribute)
    copies = [type(a).FromString(a.SerializeToString()) for a in kept]
    del node.attribute[:]
    node.attribute.extend(copies)


def check_types(node: onnx.NodeProto, inputs: Sequence[Tensor | None], version: int) -> None:
    """ONNX's rule of dtypes: inputs that its schema gives one type have one. Raises `InvalidGraph`."""
    import onnx

    try:
        schema: Any = onnx.defs.get_schema(node.op_type, version, "")
    except onnx.defs.SchemaError:
        return
    variables = {constraint.type_param_str for constraint in schema.type_constraints}
    bound: dict[str, Tensor] = {}
    for i, tensor in enumerate(inputs):
        formal = schema.inputs[min(i, len(schema.inputs) - 1)]
        if tensor is None or formal.type_str not in variables or not formal.is_homogeneous:
            continue
        first = bound.setdefault(formal.type_str, tensor)
        if first.dtype != tensor.dtype:
            raise InvalidGraph(
                f"input {first.name!r} has dtype {first.dtype} and {tensor.name!r} {tensor.dtype}; expected one dtype"
            )


def cast(node: onnx.NodeProto, dtype: str) -> onnx.NodeProto:
    """A `CastLike` as the `Cast` that it is."""
    from onnx import helper

    to = helper.np_dtype_to_tensor_dtype(numpy_dtype(dtype))
    return helper.make_node("Cast", node.input[:1], node.output, node.name, to=to)


def _type(tensor: Tensor) -> onnx.TypeProto:
    from onnx import helper

    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(numpy_dtype(tensor.dtype)), tensor.shape)


def inferred(model: onnx.ModelProto, keep: bool) -> Mapping[str, onnx.TypeProto]:
    """The types that the model states (if `keep`) and that ONNX infers; only the former where its inference fails."""
    import onnx

    copy = skeleton(model)
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
