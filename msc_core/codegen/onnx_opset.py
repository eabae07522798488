"""Opsets: rows speak ONNX's opset 18; what an older one says differently is rewritten, what it lacks is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from msc_core.errors import MscError, UnsupportedOperator
from msc_core.ir import Array, Tensor
from msc_core.onnx_skeleton import skeleton
from msc_core.ops import Call, call

if TYPE_CHECKING:
    import onnx

OPSET = 18  # what the rows of the op table are written for
OLDEST = 13


def check_opset(opset: int) -> None:
    """Raise `MscError` unless models can be written for that opset."""
    import onnx

    newest = onnx.defs.onnx_opset_version()
    if not OLDEST <= opset <= newest:
        raise MscError(f"ONNX opset {opset}; expected {OLDEST} to {newest}")


def adapt(node: Call, opset: int, place: str) -> Call:
    """The call in the words of an opset. Raises `UnsupportedOperator`, naming `place`, where it has none for it."""
    if opset < OPSET and node.fn in _OLDER:
        node = _OLDER[node.fn](node, opset, place)
    if opset >= 20 and node.fn == "GridSample":
        node = _grid_sample(node)
    known = _schema(node.fn, opset)
    if known is None:
        raise UnsupportedOperator(f"{place}: ONNX opset {opset} has no operator {node.fn}")
    attributes, most, dtypes = known
    for key, value in node.attrs.items():
        if value is not None and key not in attributes:
            raise UnsupportedOperator(f"{place}: in ONNX opset {opset} {node.fn} has no attribute {key!r}")
    if len(node.args) > most:
        raise UnsupportedOperator(f"{place}: in ONNX opset {opset} {node.fn} has at most {most} inputs")
    for i, value in enumerate(node.args):
        allowed = dtypes[min(i, len(dtypes) - 1)]
        if isinstance(value, (Tensor, np.ndarray)) and _type(str(value.dtype)) not in allowed:
            raise UnsupportedOperator(f"{place}: in ONNX opset {opset} {node.fn} does not take {value.dtype}")
    return node


@lru_cache(maxsize=4096)
def _schema(op: str, opset: int) -> tuple[frozenset[str], int, tuple[frozenset[str], ...]] | None:
    """An operator's attributes, most inputs and the types of each; `None` if the opset lacks it."""
    import onnx

    try:
        schema: Any = onnx.defs.get_schema(op, opset, "")
    except onnx.defs.SchemaError:
        return None
    if schema.deprecated:
        return None
    return frozenset(schema.attributes), schema.max_input, tuple(frozenset(i.types) for i in schema.inputs)


def _type(dtype: str) -> str:
    """ONNX's words for a tensor of that dtype."""
    names = {"float32": "float", "float64": "double"}
    return f"tensor({names.get(dtype, dtype)})"


def check_model(model: onnx.ModelProto) -> None:
    """ONNX's checker with type and shape inference. Raises `UnsupportedOperator`: the opset lacks a form or a dtype."""
    import onnx

    try:
        onnx.checker.check_model(skeleton(model), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        version = model.opset_import[0].version
        reason = " ".join(str(error).split())
        raise UnsupportedOperator(f"ONNX opset {version} lacks a form that the graph needs: {reason}") from error


# Older opsets


def _without(node: Call, *keys: str) -> Call:
    return Call(node.fn, node.args, {key: value for key, value in node.attrs.items() if key not in keys})


def _reduce(node: Call, opset: int, place: str) -> Call:
    """Axes were an attribute; without any, all of them were meant."""
    axes = node.args[1] if len(node.args) > 1 else None
    if axes is not None and not isinstance(axes, (np.ndarray, np.generic)):
        raise UnsupportedOperator(f"{place}: in ONNX opset {opset} the axes of {node.fn} are constants")
    listed = None if axes is None else tuple(int(axis) for axis in np.ravel(axes))
    if not listed and node.attrs.get("noop_with_empty_axes"):
        return call("Identity", node.args[0])
    kept = _without(node, "noop_with_empty_axes")
    return Call(node.fn, node.args[:1], {**kept.attrs, "axes": listed or None})


def _split(node: Call, opset: int, place: str) -> Call:
    """`num_outputs` was said by the number of outputs, which had to have equal sizes."""
    count, source = node.attrs.get("num_outputs"), node.args[0]
    if count is None:
        return node
    size = source.shape[node.attrs.get("axis", 0)] if isinstance(source, Tensor) else None
    if not isinstance(size, int):
        raise UnsupportedOperator(f"{place}: in ONNX opset {opset} the parts of Split have sizes that are known")
    part = -(-size // count)
    sizes = [min(part, size - part * i) for i in range(count)]
    return Call(node.fn, (source, np.asarray(sizes, np.int64)), _without(node, "num_outputs").attrs)


def _pad(node: Call, opset: int, place: str) -> Call:
    """All axes had pads, and there was no `wrap`."""
    source, pads, value, axes = (*node.args, None, None)[:4]
    if node.attrs.get("mode") == "wrap":
        raise UnsupportedOperator(f"{place}: ONNX opset {opset} has no Pad with mode 'wrap'")
    if axes is None:
        return node
    if not (isinstance(pads, np.ndarray) and isinstance(axes, np.ndarray) and isinstance(source, Tensor)):
        raise UnsupportedOperator(f"{place}: in ONNX opset {opset} Pad has pads for all axes")
    rank = len(source.shape)
    whole = np.zeros((2, rank), np.int64)
    whole[:, axes % rank] = pads.reshape(2, -1)
    return Call(node.fn, (source, whole.ravel(), value), node.attrs)


def _resize(node: Call, opset: int, place: str) -> Call:
    """No antialiasing, no axes, no aspect ratio."""
    defaults = {"antialias": 0, "keep_aspect_ratio_policy": "stretch", "axes": None}
    for key, default in defaults.items():
        if (found := node.attrs.get(key, default)) not in (default, None):
            raise UnsupportedOperator(f"{place}: in ONNX opset {opset} Resize has no {key} ({found!r})")
    return _without(node, *defaults)


def _reshape(node: Call, opset: int, place: str) -> Call:
    """A 0 meant the input's own size."""
    if opset >= 14 or not node.attrs.get("allowzero"):
        return node if opset >= 14 else _without(node, "allowzero")
    source, shape = node.args
    if isinstance(shape, np.ndarray) and 0 in shape:
        own = source.shape if isinstance(source, Tensor) else ()
        if any(d == 0 and (i >= len(own) or own[i] != 0) for i, d in enumerate(shape.tolist())):
            raise UnsupportedOperator(f"{place}: ONNX opset {opset} has no Reshape to a size of 0")
    return _without(node, "allowzero")


def _shape(node: Call, opset: int, place: str) -> Call:
    """The whole shape, of which a part is sliced."""
    start, end = node.attrs.get("start", 0), node.attrs.get("end")
    if opset >= 15 or (start == 0 and end is None):
        return node if opset >= 15 else _without(node, "start", "end")
    last = np.iinfo(np.int64).max if end is None else end
    return call("Slice", call("Shape", *node.args), _vector(start), _vector(last))


def _drop(since: int, **defaults: Any) -> Callable[[Call, int, str], Call]:
    """Attributes that came with an opset are left out if they have their default."""

    def older(node: Call, opset: int, place: str) -> Call:
        if opset >= since:
            return node
        return _without(node, *(key for key, value in defaults.items() if node.attrs.get(key, value) == value))

    return older


def _newer_reduction(node: Call, opset: int, place: str) -> Call:
    """`max` and `min` came later than the attribute."""
    reduction = node.attrs.get("reduction", "none")
    if reduction in ("max", "min"):
        raise UnsupportedOperator(f"{place}: ONNX opset {opset} has no {node.fn} with reduction {reduction!r}")
    return _drop(16, reduction="none")(node, opset, place)


def _grid_sample(node: Call) -> Call:
    """Modes have other names since opset 20."""
    names = {"bilinear": "linear", "bicubic": "cubic"}
    mode = node.attrs.get("mode", "linear")
    return Call(node.fn, node.args, {**node.attrs, "mode": names.get(mode, mode)})


def _vector(value: int) -> Array:
    return np.asarray([value], np.int64)


_OLDER: Mapping[str, Callable[[Call, int, str], Call]] = {
    **dict.fromkeys(
        [f"Reduce{kind}" for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")],
        _reduce,
    ),
    "BatchNormalization": _drop(14, training_mode=0),
    "GRU": _drop(14, layout=0),
    "LSTM": _drop(14, layout=0),
    "Pad": _pad,
    "RNN": _drop(14, layout=0),
    "Reshape": _reshape,
    "Resize": _resize,
    "ScatterElements": _newer_reduction,
    "ScatterND": _newer_reduction,
    "Shape": _shape,
    "Split": _split,
}
