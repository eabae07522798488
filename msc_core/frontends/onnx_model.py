"""ONNX files: read, checked, brought to an opset that the rows know; weights from files beside the model, confined."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from msc_core.errors import InvalidGraph, MscError, UnsupportedOperator
from msc_core.ir import Array
from msc_core.onnx_skeleton import external, skeleton

if TYPE_CHECKING:
    import onnx

OLDEST, IMPORTED = 7, 13  # the oldest opset that is converted, and the one that the rows' importers start at


def read(model: str | Path | onnx.ModelProto) -> tuple[onnx.ModelProto, Path | None]:
    """The model and the folder of its file. Raises `MscError` if there is no such file or it is no ONNX model."""
    import onnx
    from google.protobuf.message import DecodeError

    if isinstance(model, onnx.ModelProto):
        return model, None
    path = Path(model)
    if not path.is_file():
        raise MscError(f"{path} is no file; expected an ONNX model")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except DecodeError as error:
        raise InvalidGraph(f"{path} is not an ONNX model, or it is truncated: {error}") from error
    return proto, path.parent


def opset(model: onnx.ModelProto) -> int:
    """The version of ONNX's own operators. Raises `UnsupportedOperator` if it is unknown here."""
    import onnx

    versions = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
    newest = onnx.defs.onnx_opset_version()
    if len(versions) != 1:
        raise InvalidGraph(f"the model names {len(versions)} versions of ONNX's operators; expected one opset_import")
    if not OLDEST <= versions[0] <= newest:
        raise UnsupportedOperator(f"the model has opset {versions[0]}; expected {OLDEST} to {newest}")
    return int(versions[0])


def prepare(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its own functions inlined and its opset at least `IMPORTED`, checked by ONNX."""
    import onnx
    from google.protobuf.message import EncodeError

    version = opset(model)
    model = _sorted(model)
    try:
        check(model)
        if model.functions:
            from onnx import inliner

            model = inliner.inline_local_functions(model, True)
        if version < IMPORTED:
            from onnx import version_converter

            model = version_converter.convert_version(model, IMPORTED)
    except (RuntimeError, ValueError, TypeError, EncodeError) as error:
        reason = " ".join(str(error).split())
        raise UnsupportedOperator(f"opset {version} cannot be converted to {IMPORTED} by onnx: {reason}") from error
    assert isinstance(model, onnx.ModelProto)
    return model


def _sorted(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its nodes in topological order: itself, if they are."""
    import onnx

    given = list(model.graph.node)
    known = {value.name for value in (*model.graph.input, *model.graph.initializer)}
    known |= {value.values.name for value in model.graph.sparse_initializer}
    order = sort(given, known)
    if all(a is b for a, b in zip(given, order, strict=True)):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.node[:]
    copy.graph.node.extend(order)
    return copy


def check(model: onnx.ModelProto) -> None:
    """ONNX's own checker, on the model without the content of its weights. Raises `InvalidGraph`."""
    import onnx

    copy = skeleton(model)
    for value in (*copy.graph.input, *copy.graph.output):
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.shape.SetInParent()  # the checker wants a shape; we can do without
    try:
        onnx.checker.check_model(copy)
    except (onnx.checker.ValidationError, RuntimeError, ValueError, TypeError) as error:
        raise InvalidGraph(f"not a valid ONNX model: {' '.join(str(error).split())}") from error


def to_array(tensor: onnx.TensorProto, folder: Path | None) -> Array:
    """The content of an initializer, from the model or from a file beside it. Raises `InvalidGraph` if damaged."""
    import onnx
    from onnx import numpy_helper

    name = tensor.name
    try:
        if tensor.data_type in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING):
            kind = onnx.TensorProto.DataType.Name(tensor.data_type)
            raise UnsupportedOperator(f"tensor {name!r} is of type {kind}; expected numbers")
        if any(d < 0 for d in tensor.dims):
            raise InvalidGraph(f"tensor {name!r} has shape {list(tensor.dims)}")
        if external(tensor):
            filled = onnx.TensorProto(data_type=tensor.data_type, dims=tensor.dims, raw_data=_content(tensor, folder))
            return np.asarray(numpy_helper.to_array(filled))
        return np.asarray(numpy_helper.to_array(tensor))
    except (ValueError, TypeError, KeyError, OverflowError, MemoryError) as error:
        raise InvalidGraph(f"tensor {name!r} cannot be read: {error}") from error


def _content(tensor: onnx.TensorProto, folder: Path | None) -> bytes:
    """The bytes of a tensor in a file, which must lie in the model's folder."""
    entries: Mapping[str, str] = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    place = f"tensor {tensor.name!r} is in the file {location!r}"
    if folder is None:
        raise InvalidGraph(f"{place}: give the path of the model, not a ModelProto, so that the file is found")
    path = (folder / location).resolve()
    if not location or Path(location).is_absolute() or not path.is_relative_to(folder.resolve()):
        raise InvalidGraph(f"{place}: weights are read from the model's own folder only")
    if not path.is_file():
        raise InvalidGraph(f"{place}: there is no such file in {folder}")
    size = path.stat().st_size
    offset = int(entries.get("offset", 0))
    length = int(entries.get("length", size - offset))
    expected = _bytes(tensor)
    if offset < 0 or length != expected or offset + length > size:
        raise InvalidGraph(
            f"{place}: bytes {offset} to {offset + length} of {size}; expected {expected} bytes for its shape"
        )
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)


def _bytes(tensor: onnx.TensorProto) -> int:
    from onnx import TensorProto, helper

    count = int(np.prod(tensor.dims, dtype=object))
    packed = {name: bits for bits in (2, 4) for name in (f"INT{bits}", f"UINT{bits}")} | {"FLOAT4E2M1": 4}
    bits = packed.get(TensorProto.DataType.Name(tensor.data_type), 0)
    itemsize = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type)).itemsize
    return -(-count * bits // 8) if bits else count * itemsize


def sort(nodes: Sequence[onnx.NodeProto], known: set[str]) -> list[onnx.NodeProto]:
    """The nodes in topological order, otherwise in theirs. Raises `InvalidGraph` naming what is missing or cyclic."""
    made = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    result: list[onnx.NodeProto] = []
    waiting: dict[int, list[int]] = {}
    missing = {}
    for i, node in enumerate(nodes):
        needs = {name for name in reads(node) if name not in known}
        if unknown := sorted(name for name in needs if name not in made):
            raise InvalidGraph(f"{describe(node)} reads {unknown[0]!r}, which nothing defines")
        missing[i] = len({made[name] for name in needs})
        for source in {made[name] for name in needs}:
            waiting.setdefault(source, []).append(i)
    ready = [i for i in missing if not missing[i]][::-1]
    while ready:
        i = ready.pop()
        result.append(nodes[i])
        for follower in sorted(waiting.get(i, []), reverse=True):
            missing[follower] -= 1
            if not missing[follower]:
                ready.append(follower)
    if len(result) < len(nodes):
        stuck = [describe(nodes[i]) for i in missing if missing[i]]
        raise InvalidGraph(f"the graph has a cycle among {', '.join(stuck[:4])}")
    return result


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """The tensors that a node reads, those that its subgraphs take from outside included."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        graphs = [attribute.g] if attribute.type == attribute.GRAPH else list(attribute.graphs)
        for graph in graphs:
            own = {i.name for i in graph.input} | {i.name for i in graph.initializer}
            own |= {name for inner in graph.node for name in inner.output}
            yield from (name for inner in graph.node for name in reads(inner) if name not in own)
            yield from (out.name for out in graph.output if out.name not in own)


def describe(node: onnx.NodeProto) -> str:
    """A node in words: its name, or its first output where it has none, and its operator."""
    domain = f"{node.domain}." if node.domain not in ("", "ai.onnx") else ""
    name = node.name or next((out for out in node.output if out), "")
    return f"node {name!r} ({domain}{node.op_type})"


def attributes(node: onnx.NodeProto, folder: Path | None) -> dict[str, Any]:
    """The attributes as plain values: lists as tuples, tensors as arrays; graphs stay protos."""
    from onnx import AttributeProto

    values: dict[str, Any] = {}
    for a in node.attribute:
        if a.type == AttributeProto.STRING:
            values[a.name] = _text(a.s)
        elif a.type == AttributeProto.STRINGS:
            values[a.name] = tuple(map(_text, a.strings))
        elif a.type == AttributeProto.TENSOR:
            values[a.name] = to_array(a.t, folder)
        elif a.type in (AttributeProto.INT, AttributeProto.FLOAT, AttributeProto.GRAPH):
            values[a.name] = {AttributeProto.INT: a.i, AttributeProto.FLOAT: a.f, AttributeProto.GRAPH: a.g}[a.type]
        elif a.type in (AttributeProto.INTS, AttributeProto.FLOATS):
            values[a.name] = tuple(a.ints if a.type == AttributeProto.INTS else a.floats)
        else:
            kind = AttributeProto.AttributeType.Name(a.type)
            raise UnsupportedOperator(f"attribute {a.name!r} is of kind {kind}, which is not supported")
    return values


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")
