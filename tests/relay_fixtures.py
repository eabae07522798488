"""Writes Relay modules and parameter files as TVM 0.8 to 0.19 wrote them, from a description in Python.

What is text in the file and what is a node of its own is decided here, field by field: `Ref` makes a node. The reader
in `msc_core/frontends` shares nothing with this.
"""

from __future__ import annotations

import base64
import json
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

LIST_MAGIC, ARRAY_MAGIC = 0xF7E58D4F05049CB7, 0xDD5E40F096B4A13F
CODES = {"i": 0, "u": 1, "f": 2, "b": 1}


@dataclass(frozen=True)
class Ref:
    """A value that gets a node of its own: int, float, text, list."""

    value: Any


def array_bytes(array: np.ndarray) -> bytes:
    """One array: magic, reserved, device, rank, dtype, shape, byte count, bytes."""
    bits = 1 if array.dtype == bool else array.dtype.itemsize * 8
    head = struct.pack("<QQiiiBBH", ARRAY_MAGIC, 0, 1, 0, array.ndim, CODES[array.dtype.kind], bits, 1)
    shape = struct.pack(f"<{array.ndim}q", *array.shape)
    return head + shape + struct.pack("<q", array.nbytes) + np.ascontiguousarray(array).tobytes()


def params_bytes(params: dict[str, np.ndarray]) -> bytes:
    """A parameter file."""
    names = b"".join(struct.pack("<Q", len(name.encode())) + name.encode() for name in params)
    count = struct.pack("<Q", len(params))
    return struct.pack("<QQ", LIST_MAGIC, 0) + count + names + count + b"".join(map(array_bytes, params.values()))


class Writer:
    """Collects nodes; every method returns the position of one."""

    def __init__(self, version: str = "0.16.0") -> None:
        self.version = version
        self.nodes: list[dict[str, Any]] = [{"type_key": ""}]
        self.blobs: list[str] = []
        self.operators: dict[str, int] = {}

    def node(self, kind: str, attrs: dict[str, Any] | None = None, **fields: Any) -> int:
        """A node; attributes are written as text, those that are a `Ref` as the position of a node."""
        written = {name: self.written(value) for name, value in (attrs or {}).items()}
        self.nodes.append({"type_key": kind, **({"attrs": written} if written else {}), **fields})
        return len(self.nodes) - 1

    def written(self, value: Any) -> str:
        """An attribute as text."""
        if isinstance(value, Ref):
            return str(self.value(value.value))
        if isinstance(value, bool):
            return str(int(value))
        return f"{value:.17g}" if isinstance(value, float) else str(value)

    def value(self, value: Any) -> int:
        """A plain value as a node."""
        if value is None:
            return 0
        if isinstance(value, str):
            return self.node("runtime.String", **({"repr_str": value} if value else {}))
        if isinstance(value, (list, tuple)):
            return self.array([self.value(part) for part in value])
        kind, dtype = ("FloatImm", "float32") if isinstance(value, float) else ("IntImm", "int32")
        return self.node(kind, {"dtype": dtype, "span": 0, "value": value})

    def array(self, items: list[int]) -> int:
        """An array of nodes."""
        return self.node("Array", **({"data": items} if items else {}))

    def expression(self, kind: str, attrs: dict[str, Any]) -> int:
        """An expression, with the fields that all have."""
        return self.node(kind, {"_checked_type_": 0, "span": 0, "virtual_device_": 0, **attrs})

    def type(self, shape: tuple[Any, ...], dtype: str = "float32") -> int:
        """A tensor type; a dimension that is text is a variable, `None` is `Any`."""
        axes = [
            self.node("tir.Any", {"dtype": "int32", "span": 0})
            if d is None
            else self.node("tir.Var", {"dtype": "int32", "name": Ref(d), "span": 0, "type_annotation": 0})
            if isinstance(d, str)
            else self.value(d)
            for d in shape
        ]
        return self.node("relay.TensorType", {"dtype": dtype, "shape": self.array(axes), "span": 0})

    def var(self, name: str, shape: tuple[Any, ...] | None = None, dtype: str = "float32") -> int:
        """A variable."""
        vid = self.node("relay.Id", {"name_hint": Ref(name)})
        annotation = 0 if shape is None else self.type(shape, dtype)
        return self.expression("relay.Var", {"type_annotation": annotation, "vid": vid})

    def const(self, array: np.ndarray) -> int:
        """A constant."""
        self.blobs.append(base64.b64encode(array_bytes(np.asarray(array))).decode())
        return self.expression("relay.Constant", {"data": len(self.blobs) - 1})

    def op(self, name: str) -> int:
        """An operator."""
        if name not in self.operators:
            self.operators[name] = self.node("Op", repr_str=name)
        return self.operators[name]

    def call(self, op: str | int, *args: int, attrs: str = "", layer: str = "", checked: int = 0, **fields: Any) -> int:
        """A call of an operator, or of a function; `attrs` is the name of the class of `fields`."""
        callee = self.op(op) if isinstance(op, str) else op
        given = self.node(f"relay.attrs.{attrs}Attrs", fields) if attrs else 0
        span = 0
        if layer:
            source = self.node("SourceName", repr_str=layer)
            span = self.node("Span", {"column": 0, "end_column": 0, "end_line": 0, "line": 0, "source_name": source})
        inputs = self.array(list(args))
        return self.expression(
            "relay.Call",
            {"args": inputs, "attrs": given, "op": callee, "span": span, "type_args": self.array([]),
             "_checked_type_": checked},
        )  # fmt: skip

    def tuple(self, *fields: int) -> int:
        """A tuple."""
        return self.expression("relay.Tuple", {"fields": self.array(list(fields))})

    def item(self, value: int, index: int) -> int:
        """A part of a tuple."""
        return self.expression("relay.TupleGetItem", {"index": index, "tuple_value": value})

    def let(self, var: int, value: int, body: int) -> int:
        """A variable bound to a value in a body."""
        return self.expression("relay.Let", {"body": body, "value": value, "var": var})

    def function(self, params: list[int], body: int) -> int:
        """A function."""
        attrs = self.node("DictAttrs", {"__dict__": self.node("Map")})
        return self.expression(
            "relay.Function",
            {"attrs": attrs, "body": body, "params": self.array(params), "ret_type": 0, "type_params": self.array([])},
        )  # fmt: skip

    def global_var(self, name: str) -> int:
        """The name of a function of the module."""
        return self.expression("GlobalVar", {"name_hint": Ref(name)})

    def text(self, root: int) -> str:
        """The file."""
        attrs = {"tvm_version": self.version}
        return json.dumps({"root": root, "nodes": self.nodes, "b64ndarrays": self.blobs, "attrs": attrs}, indent=2)

    def module(self, functions: dict[int, int]) -> str:
        """The file of a module, from its functions by the position of their names."""
        data = [index for pair in functions.items() for index in pair]
        root = self.node(
            "IRModule",
            {"attrs": 0, "functions": self.node("Map", data=data), "global_infos": self.node("Map"),
             "global_type_var_map_": self.node("Map"), "global_var_map_": 0, "source_map": 0,
             "type_definitions": self.node("Map")},
        )  # fmt: skip
        return self.text(root)

    def main(self, params: list[int], body: int) -> str:
        """The file of a module of one function."""
        return self.module({self.global_var("main"): self.function(params, body)})
