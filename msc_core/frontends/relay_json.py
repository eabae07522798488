"""TVM's JSON graphs up to 0.19: nodes that refer to each other by position, and attributes that are all text.

Which attributes are numbers and which are positions of nodes only the schema says, so `NUMBERS` repeats it for those
that are numbers. Everything is looked up on demand; nothing in a file is executed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msc_core import dims
from msc_core.dims import Dim
from msc_core.errors import InvalidGraph, MscError
from msc_core.frontends.onnx_inputs import identifier
from msc_core.frontends.relay_params import read_base64
from msc_core.ir import Array

MAX_BYTES = 2**31
MAX_NESTING = 16
NONE = ("", "null")

# class -> its attributes that are written as numbers: i(nteger), f(loat) or b(ool)
NUMBERS: Mapping[str, str] = {
    "AdaptivePool": "", "ArgReduce": "keepdims:b select_last_index:b exclude:b", "Argsort": "axis:i is_ascend:b",
    "AvgPool1D": "ceil_mode:b count_include_pad:b", "AvgPool2D": "ceil_mode:b count_include_pad:b",
    "AvgPool3D": "ceil_mode:b count_include_pad:b", "BatchMatmul": "transpose_a:b transpose_b:b",
    "BatchNorm": "axis:i epsilon:f center:b scale:b", "BiasAdd": "axis:i", "Clip": "a_min:f a_max:f",
    "Concatenate": "axis:i", "Conv1D": "groups:i", "Conv1DTranspose": "groups:i", "Conv2D": "groups:i",
    "Conv2DTranspose": "groups:i", "Conv3D": "groups:i", "Conv3DTranspose": "groups:i", "Dropout": "rate:f",
    "ExpandDims": "axis:i num_newaxis:i", "GroupNorm": "num_groups:i axis:i epsilon:f center:b scale:b",
    "InstanceNorm": "axis:i epsilon:f center:b scale:b", "L2Normalize": "eps:f",
    "LRN": "size:i axis:i bias:f alpha:f beta:f", "LayerNorm": "axis:i epsilon:f center:b scale:b",
    "LeakyRelu": "alpha:f", "Matmul": "transpose_a:b transpose_b:b", "MaxPool1D": "ceil_mode:b",
    "MaxPool2D": "ceil_mode:b", "MaxPool3D": "ceil_mode:b", "OneHot": "depth:i axis:i", "PRelu": "axis:i",
    "Quantize": "axis:i", "Dequantize": "axis:i", "Reduce": "keepdims:b exclude:b", "Reshape": "allowzero:b",
    "ReshapeLike": "lhs_begin:i rhs_begin:i", "Resize1D": "cubic_alpha:f cubic_exclude:i extrapolation_value:f",
    "Resize2D": "cubic_alpha:f cubic_exclude:i extrapolation_value:f",
    "Resize3D": "cubic_alpha:f cubic_exclude:i extrapolation_value:f", "Softmax": "axis:i", "Split": "axis:i",
    "SubPixel": "block_size:i", "TopK": "axis:i is_ascend:b", "Trilu": "upper:b",
    "UpSampling": "scale_h:f scale_w:f align_corners:b", "UpSampling3D": "scale_d:f scale_h:f scale_w:f",
    "Variance": "keepdims:b exclude:b unbiased:b",
}  # fmt: skip
ARITHMETIC: Mapping[str, Callable[[Dim, Dim], Dim]] = {
    "tir.Add": dims.add, "tir.Sub": dims.sub, "tir.Mul": dims.mul, "tir.FloorDiv": dims.floordiv,
    "tir.Div": dims.floordiv, "tir.FloorMod": dims.mod, "tir.Mod": dims.mod, "tir.Max": dims.maximum,
    "tir.Min": dims.minimum,
}  # fmt: skip


class JsonGraph:
    """The nodes of one file."""

    def __init__(self, text: str, what: str) -> None:
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidGraph(f"{what} is not JSON: {error}") from None
        if not isinstance(data, dict) or not isinstance(data.get("nodes"), list):
            raise InvalidGraph(f"{what} is no JSON graph of TVM: it has no list of nodes")
        if "type" in next((n for n in data["nodes"] if isinstance(n, dict)), {}):
            raise InvalidGraph(
                f"{what} was saved by TVM 0.20 or later, which has no Relay; use from_relax for its modules"
            )
        self.what = what
        self.nodes: list[Any] = data["nodes"]
        self.blobs: Any = data.get("b64ndarrays") or []
        header = data.get("attrs")
        self.version = _version(header.get("tvm_version") if isinstance(header, dict) else None)
        self.root = self.index(data.get("root"))
        self.arrays: dict[int, Array] = {}
        self.symbols: dict[int, str] = {}

    def index(self, value: Any) -> int:
        """A position of a node."""
        try:
            index = int(value)
        except (TypeError, ValueError):
            raise InvalidGraph(f"{self.what}: {value!r} is no position of a node") from None
        if not 0 <= index < len(self.nodes):
            raise InvalidGraph(f"{self.what} refers to node {index} of {len(self.nodes)}")
        return index

    def kind(self, index: int) -> str:
        """A node's type, without the prefix that newer versions give to containers and numbers; empty for null."""
        node = self.nodes[index]
        kind = node.get("type_key", "") if isinstance(node, dict) else None
        if not isinstance(kind, str):
            raise InvalidGraph(f"{self.what}: node {index} has no type")
        return {"runtime.Array": "Array", "runtime.Map": "Map", "ir.IntImm": "IntImm", "ir.FloatImm": "FloatImm"}.get(
            kind, kind
        )

    def field(self, index: int, name: str, default: Any = None) -> str:
        """An attribute's text. Raises `InvalidGraph` if there is none and no default."""
        attrs = self.nodes[index].get("attrs")
        found = attrs.get(name, default) if isinstance(attrs, dict) else default
        if not isinstance(found, str):
            raise InvalidGraph(f"{self.what}: node {index} ({self.kind(index)}) has no attribute {name!r}")
        return found

    def ref(self, index: int, name: str) -> int:
        """The node that an attribute refers to; 0, which is null, if it is absent."""
        text = self.field(index, name, "0")
        return 0 if text in NONE else self.index(text)

    def items(self, index: int) -> list[int]:
        """The elements of an array."""
        data = self.nodes[index].get("data", [])
        if self.kind(index) not in ("Array", "") or not isinstance(data, list):
            raise InvalidGraph(f"{self.what}: node {index} is a {self.kind(index)}; expected an Array")
        return [self.index(i) for i in data]

    def pairs(self, index: int) -> list[tuple[Any, int]]:
        """The entries of a map: keys are names or nodes."""
        node = self.nodes[index]
        data, keys = node.get("data", []), node.get("keys", [])
        if self.kind(index) not in ("Map", "StrMap", "") or not isinstance(data, list) or not isinstance(keys, list):
            raise InvalidGraph(f"{self.what}: node {index} is a {self.kind(index)}; expected a Map")
        values = [self.index(i) for i in data]
        if keys:
            return list(zip(keys, values, strict=False))
        return list(zip(values[::2], values[1::2], strict=False))

    def text(self, index: int) -> str:
        """A string node, or the name of an operator."""
        node = self.nodes[index]
        found = node.get("repr_str", node.get("global_key", ""))
        if not isinstance(found, str):
            raise InvalidGraph(f"{self.what}: node {index} has no text")
        return found

    def name(self, index: int, field: str) -> str:
        """A name, which old versions write out and later ones refer to."""
        text = self.field(index, field)
        return self.text(self.index(text)) if text.isdecimal() else text

    def array(self, index: int) -> Array:
        """The value of a constant."""
        number = self.index_of_array(self.field(index, "data"))
        if number not in self.arrays:
            self.arrays[number] = read_base64(self.blobs[number], f"{self.what}: array {number}")
        return self.arrays[number]

    def index_of_array(self, text: str) -> int:
        """A position among the arrays."""
        if not text.isdecimal() or not isinstance(self.blobs, list) or int(text) >= len(self.blobs):
            raise InvalidGraph(f"{self.what} refers to array {text}, which it does not have")
        if not isinstance(self.blobs[int(text)], str):
            raise InvalidGraph(f"{self.what}: array {text} is not text")
        return int(text)

    def dim(self, index: int, hint: str) -> Dim:
        """A dimension: a number, a variable, `Any` (a new symbol named after `hint`) or an expression."""
        return self._dim(index, hint, MAX_NESTING)

    def _dim(self, index: int, hint: str, depth: int) -> Dim:
        kind = self.kind(index)
        if depth == 0:
            raise InvalidGraph(f"{self.what}: a dimension nests too deeply, or in a circle")
        if kind == "IntImm":
            return int(self.number(index))
        if kind in ("tir.Any", "tir.Var", "tir.SizeVar"):
            if index not in self.symbols:
                name = identifier(hint if kind == "tir.Any" else self.name(index, "name"))
                while name in self.symbols.values():
                    name += "_"
                self.symbols[index] = name
            return self.symbols[index]
        if kind not in ARITHMETIC:
            raise InvalidGraph(f"{self.what}: node {index} is a {kind}; expected a dimension")
        a, b = (self._dim(self.ref(index, side), hint, depth - 1) for side in ("a", "b"))
        return ARITHMETIC[kind](a, b)

    def number(self, index: int) -> int | float:
        """A number in a node of its own."""
        kind = self.kind(index)
        text = self.text(index) if kind.startswith("runtime.Box") else self.field(index, "value")
        value: int | float = _parse("f" if kind in ("FloatImm", "runtime.BoxFloat") else "i", text, self.what)
        return value

    def attributes(self, index: int) -> dict[str, Any]:
        """The attributes of a call as plain values."""
        if index == 0 or not self.kind(index):
            return {}
        schema = NUMBERS.get(self.kind(index).removeprefix("relay.attrs.").removesuffix("Attrs"), "")
        kinds = dict(part.split(":") for part in schema.split())
        attrs = self.nodes[index].get("attrs", {})
        if not isinstance(attrs, dict) or not all(isinstance(text, str) for text in attrs.values()):
            raise InvalidGraph(f"{self.what}: node {index} has attributes that are no text")
        found: dict[str, Any] = {}
        for name, text in attrs.items():
            if name in kinds:
                found[name] = _parse(kinds[name], text, self.what)
            elif text.isdecimal():
                found[name] = self.value(self.index(text))
            else:
                found[name] = None if text == "null" else text
        return found

    def value(self, index: int, depth: int = MAX_NESTING) -> Any:
        """A node as a plain value: numbers, text, tuples; `None` for null and for what is none of these."""
        kind = self.kind(index)
        if depth == 0:
            raise InvalidGraph(f"{self.what}: an attribute nests too deeply, or in a circle")
        if kind in ("IntImm", "FloatImm") or kind.startswith("runtime.Box"):
            return self.number(index)
        if kind in ("runtime.String", "tir.StringImm", "StringImm"):
            return self.text(index)
        if kind == "Array":
            return tuple(self.value(i, depth - 1) for i in self.items(index))
        if kind in ("tir.Any", "tir.Var", "tir.SizeVar") or kind in ARITHMETIC:
            return self.dim(index, "any")
        return None


def read_graph(source: str | Path) -> JsonGraph:
    """A file, or the text itself (which begins with a brace)."""
    if isinstance(source, str) and source.lstrip().startswith("{"):
        return JsonGraph(source, "the graph")
    try:
        if Path(source).stat().st_size > MAX_BYTES:
            raise MscError(f"{source} is larger than {MAX_BYTES} bytes")
        return JsonGraph(Path(source).read_text(), str(source))
    except (OSError, ValueError) as error:
        raise MscError(f"cannot read {source}: {error}") from None


def _version(text: Any) -> tuple[int, int]:
    major, minor = (*str(text or "0.0").split("."), "0")[:2]
    return int(major) if major.isdecimal() else 0, int(minor) if minor.isdecimal() else 0


def _parse(kind: str, text: str, what: str) -> Any:
    """A number: of an integer also as `true`, as a boxed one is written."""
    try:
        if text in ("true", "false"):
            return text == "true"
        if kind == "f":
            return float(text)
        value = int(text)
        return bool(value) if kind == "b" else value
    except ValueError:
        raise InvalidGraph(f"{what}: {text!r} is no number") from None
