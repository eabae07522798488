"""The inputs of an ONNX model: their shapes, with symbols for dimensions that it leaves open, and their dtypes."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from msc_core import dims
from msc_core.dims import Dim
from msc_core.errors import InvalidGraph, MscError, UnsupportedOperator, nearest
from msc_core.exchange import numpy_dtype
from msc_core.ir import Tensor, unique

if TYPE_CHECKING:
    import onnx

DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "bfloat16", "float16", "float32", "float64",
)  # fmt: skip
Shapes = Mapping[str, Sequence[Dim]]


def describe(inputs: Sequence[onnx.ValueInfoProto], shapes: Shapes) -> list[Tensor]:
    """The inputs as tensors. `shapes` replaces shapes; what it says of a named dimension holds for all inputs."""
    if unknown := shapes.keys() - {value.name for value in inputs}:
        word = sorted(unknown)[0]
        raise MscError(f"shapes names {word!r}, which is no input{nearest(word, (v.name for v in inputs))}")
    symbols = _symbols(inputs, shapes)
    return [Tensor(value.name, _shape(value, shapes, symbols), _dtype(value)) for value in inputs]


def _symbols(inputs: Sequence[onnx.ValueInfoProto], shapes: Shapes) -> dict[str, Dim]:
    """What each named dimension stands for: what `shapes` says, or a symbol of that name."""
    symbols: dict[str, Dim] = {}
    for value in inputs:
        given = shapes.get(value.name, ())
        for d, said in zip(value.type.tensor_type.shape.dim, given, strict=False):
            if param(d):
                bound = dims.parse(str(said))
                if symbols.setdefault(d.dim_param, bound) != bound:
                    raise MscError(f"shapes gives {d.dim_param!r} two values: {symbols[d.dim_param]} and {bound}")
    named = [param(d) for value in inputs for d in value.type.tensor_type.shape.dim]
    names = [name for name in dict.fromkeys(named) if name and name not in symbols]
    symbols |= {name: name for name in names if identifier(name) == name}
    for name in names:
        if name not in symbols:
            symbols[name] = _expression(name, symbols) or _new(name, symbols)
    return symbols


def param(dimension: Any) -> str:
    """The name of a dimension; nothing for one such as "?", which exporters write for any that they do not know."""
    return str(dimension.dim_param) if re.search(r"\w", dimension.dim_param) else ""


def _new(text: str, symbols: Mapping[str, Dim]) -> str:
    return unique(identifier(text), set(dims.symbols(symbols.values())))


def _expression(param: str, symbols: Mapping[str, Dim]) -> Dim | None:
    """A name such as "2*batch", if its symbols are names of other dimensions."""
    try:
        found = dims.parse(param)
    except InvalidGraph:
        return None
    return dims.substitute(found, symbols) if set(dims.symbols([found])) <= symbols.keys() else None


def _shape(value: onnx.ValueInfoProto, shapes: Shapes, symbols: dict[str, Dim]) -> tuple[Dim, ...]:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        raise UnsupportedOperator(f"input {value.name!r} is a {kind}; only tensors are supported")
    given = shapes.get(value.name)
    if given is not None and (negative := [d for d in given if isinstance(d, int) and d < 0]):
        raise MscError(f"shapes gives {value.name!r} the size {negative[0]}")
    if not value.type.tensor_type.HasField("shape"):
        if given is None:
            raise InvalidGraph(f"input {value.name!r} has no shape; say it with shapes={{{value.name!r}: (1, ...)}}")
        return tuple(dims.parse(str(d)) for d in given)
    described = value.type.tensor_type.shape.dim
    if given is not None and len(given) != len(described):
        raise MscError(f"shapes gives {value.name!r} {len(given)} dimensions; the model has {len(described)}")
    shape: list[Dim] = []
    for i, d in enumerate(described):
        if given is not None:
            shape.append(dims.parse(str(given[i])))
            if d.dim_value > 0 and shape[i] != d.dim_value:
                raise MscError(f"shapes gives {value.name!r} {shape[i]} on axis {i}; the model says {d.dim_value}")
        elif param(d):
            shape.append(symbols[param(d)])
        elif d.HasField("dim_value") and d.dim_value >= 0:
            shape.append(int(d.dim_value))
        else:
            symbol = _new(f"{value.name}_{i}", symbols)
            symbols[f"{value.name}, axis {i}"] = symbol
            shape.append(symbol)
    return tuple(shape)


def _dtype(value: onnx.ValueInfoProto) -> str:
    dtype = dtype_name(value.type.tensor_type.elem_type)
    if dtype not in DTYPES:
        raise UnsupportedOperator(f"input {value.name!r} has dtype {dtype}; supported: {', '.join(DTYPES)}")
    return dtype


def fix(model: onnx.ModelProto, constants: Mapping[str, Any]) -> onnx.ModelProto:
    """A copy of the model in which some inputs are weights. Raises `MscError` if they are no inputs or do not fit."""
    import onnx
    from onnx import numpy_helper

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    inputs = {value.name: value for value in copy.graph.input}
    for name, value in constants.items():
        if name not in inputs:
            raise MscError(f"constants names {name!r}, which is no input{nearest(name, inputs)}")
        given, dtype = np.asarray(value), dtype_name(inputs[name].type.tensor_type.elem_type)
        with np.errstate(all="ignore"):
            array = given.astype(numpy_dtype(dtype)) if given.dtype.kind in "biufV" else given
        described = inputs[name].type.tensor_type
        sizes = [d.dim_value if d.HasField("dim_value") else None for d in described.shape.dim]
        fits = len(sizes) == array.ndim and all(a in (None, b) for a, b in zip(sizes, array.shape, strict=True))
        if not fits and described.HasField("shape"):
            raise MscError(f"constants gives {name!r} the shape {list(array.shape)}; the model says {sizes}")
        if given.dtype.kind not in "biufV" or not np.array_equal(array, given, equal_nan=given.dtype.kind == "f"):
            raise MscError(f"constants gives {name!r} a value that {dtype} cannot hold: {value!r}")
        copy.graph.initializer.append(numpy_helper.from_array(array, name))
    return copy


def dtype_name(code: int) -> str:
    """NumPy's name of an ONNX dtype."""
    from onnx import TensorProto, helper

    if code in (TensorProto.UNDEFINED, TensorProto.STRING) or code not in TensorProto.DataType.values():
        known = TensorProto.DataType.Name(code) if code in TensorProto.DataType.values() else str(code)
        raise UnsupportedOperator(f"ONNX's dtype {known} is not supported")
    return str(helper.tensor_dtype_to_np_dtype(code).name)


def identifier(text: str) -> str:
    """A Python identifier like `text`.

    >>> identifier("batch size"), identifier("2*N"), identifier("lambda")
    ('batch_size', 'd2_N', 'lambda_')
    """
    name = re.sub(r"\W", "_", text)
    name = name if name.isidentifier() else f"d{name}"
    return f"{name}_" if keyword.iskeyword(name) else name
