"""An ONNX model without the content of its weights, for ONNX's own checker and shape inference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import onnx

SMALL = 1024  # elements of an initializer that shape inference may look into


def skeleton(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose large initializers are inputs, so that it is small however large the weights are."""
    import onnx
    from onnx import helper

    copy = onnx.ModelProto()
    for field, value in model.ListFields():
        if field.name == "graph":
            continue
        if field.is_repeated:
            getattr(copy, field.name).extend(value)
        else:
            setattr(copy, field.name, value)
    source, graph = model.graph, copy.graph
    graph.name = source.name or "graph"
    for name in ("node", "input", "output", "value_info", "sparse_initializer"):
        getattr(graph, name).extend(getattr(source, name))
    inputs = {i.name for i in source.input}
    for tensor in source.initializer:
        if int(np.prod(tensor.dims, dtype=object)) <= SMALL and not external(tensor):
            graph.initializer.append(tensor)
        elif tensor.name not in inputs:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    return copy


def external(tensor: onnx.TensorProto) -> bool:
    """Whether the content is in another file."""
    return tensor.data_location == type(tensor).EXTERNAL
