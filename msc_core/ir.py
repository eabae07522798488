"""The graph: frozen dataclasses of named tensors, nodes and weights, with a content hash and an exact file format."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from msc_core.dims import Dim
from msc_core.errors import InvalidGraph
from msc_core.exchange import Array as Array
from msc_core.exchange import read_safetensors

Attr = int | float | bool | str | None | tuple["Attr", ...]

SCHEMA = 1
GRAPH_FILE, WEIGHTS_FILE = "graph.json", "weights.safetensors"
RESERVED = "__metadata__"
MAX_JSON_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Tensor:
    """A named value.

    A dimension is an int, a symbol such as `"N"` or an expression over symbols (`dims.py`); `dtype` is NumPy's name, or
    "bfloat16"; `layout` is empty or axis letters ("NCHW").
    """

    name: str
    shape: tuple[Dim, ...]
    dtype: str = "float32"
    layout: str = ""


@dataclass(frozen=True)
class Node:
    """One operator: `inputs` and `outputs` are tensor names (an absent optional input is `""`)."""

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    scope: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "attrs", MappingProxyType(dict(self.attrs)))

    def __reduce__(self) -> tuple[Any, ...]:
        return Node, (self.name, self.op, self.inputs, self.outputs, dict(self.attrs), self.scope)


@dataclass(frozen=True, eq=False)
class MSCGraph:
    """A network in topological order. `tensors` describes every input, weight and node output by name.

    Weights and tensors that no node or output uses are dropped, the rest are put into order of use. Frozen: a
    transform returns a new graph. Equality is equality of `fingerprint`, so of names, structure, shapes and every bit
    of the weights. Raises `InvalidGraph` if a name is used before it is defined, defined twice or missing.
    """

    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: Mapping[str, Array]
    tensors: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        used = dict.fromkeys(name for node in self.nodes for name in node.inputs if name in self.weights)
        used |= dict.fromkeys(name for name in self.outputs if name in self.weights)
        weights = {}
        for name in used:
            array = np.ascontiguousarray(self.weights[name]).reshape(np.shape(self.weights[name])).view()
            array.flags.writeable = False
            weights[name] = array
        order = (*self.inputs, *used, *(name for node in self.nodes for name in node.outputs))
        tensors = {name: self.tensors[name] for name in order if name in self.tensors}
        object.__setattr__(self, "weights", MappingProxyType(weights))
        object.__setattr__(self, "tensors", MappingProxyType(tensors))
        self._check()

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = (self.name, self.nodes, self.inputs, self.outputs, dict(self.weights), dict(self.tensors))
        return MSCGraph, arguments

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MSCGraph) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def _check(self) -> None:
        known = {*self.inputs, *self.weights, ""}
        for node in self.nodes:
            for name in node.inputs:
                if name not in known:
                    raise InvalidGraph(
                        f"node {node.name!r} ({node.op}) reads {name!r}, which no input, weight or earlier node defines"
                    )
            for name in node.outputs:
                if name in known:
                    raise InvalidGraph(f"node {node.name!r} ({node.op}) defines {name!r}, which is already defined")
                known.add(name)
        for name in self.outputs:
            if name not in known or name == "":
                raise InvalidGraph(f"graph output {name!r} is not defined by any node")
        for name in known - {""}:
            if name not in self.tensors:
                raise InvalidGraph(f"tensor {name!r} has no shape and dtype")
        for name, array in self.weights.items():
            tensor = self.tensors[name]
            if tensor.shape != array.shape or tensor.dtype != array.dtype.name:
                raise InvalidGraph(
                    f"weight {name!r} is {array.dtype.name}{list(array.shape)}, "
                    f"but its tensor says {tensor.dtype}{list(tensor.shape)}"
                )
        if RESERVED in self.weights:
            raise InvalidGraph(f"no weight can be named {RESERVED!r}, which safetensors keeps for itself")
        names = Counter(node.name for node in self.nodes)
        if repeated := [name for name, count in names.items() if count > 1]:
            raise InvalidGraph(f"node name {repeated[0]!r} is used {names[repeated[0]]} times")

    def replace(self, **changes: Any) -> MSCGraph:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def node(self, name: str) -> Node:
        """The node of that name; `KeyError` if there is none."""
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def fingerprint(self) -> str:
        """A SHA-256 of the structure and of every weight's bytes, 64 hex digits."""
        digest = hashlib.sha256(json.dumps(self._structure(), sort_keys=True).encode())
        for name in sorted(self.weights):
            digest.update(name.encode())
            digest.update(self.weights[name].reshape(-1).view(np.uint8).data)
        return digest.hexdigest()

    def inspect(self) -> dict[str, Any]:
        """Counts: `inputs` and `outputs` as {name: "dtype[shape]"}, `ops` as {op: count}, `parameters`, `bytes`."""

        def describe(names: tuple[str, ...]) -> dict[str, str]:
            return {n: f"{self.tensors[n].dtype}{list(self.tensors[n].shape)}" for n in names}

        return {
            "name": self.name,
            "inputs": describe(self.inputs),
            "outputs": describe(self.outputs),
            "ops": dict(Counter(node.op for node in self.nodes).most_common()),
            "parameters": sum(w.size for w in self.weights.values()),
            "bytes": sum(w.nbytes for w in self.weights.values()),
        }

    def to_prototxt(self) -> str:
        """The structure as prototxt, which Netron opens."""
        from msc_core.view.prototxt import to_prototxt

        return to_prototxt(self)

    def to_svg(self) -> str:
        """A picture: boxes and arrows from top to bottom, one colour per group of channels that prune together."""
        from msc_core.view.svg import to_svg

        return to_svg(self)

    def to_html(self) -> str:
        """The picture to zoom and search, with tables of nodes and channel groups: one page that needs nothing else."""
        from msc_core.view.html import to_html

        return to_html(self)

    def _structure(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "name": self.name,
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "nodes": [
                {
                    "name": n.name,
                    "op": n.op,
                    "inputs": list(n.inputs),
                    "outputs": list(n.outputs),
                    "attrs": {k: _encode(v) for k, v in n.attrs.items()},
                    "scope": n.scope,
                }
                for n in self.nodes
            ],
            "tensors": [[t.name, list(t.shape), t.dtype, t.layout] for t in self.tensors.values()],
        }

    def save(self, folder: str | Path) -> None:
        """Write `graph.json` and `weights.safetensors`; each is written beside and renamed."""
        from safetensors.numpy import save

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / WEIGHTS_FILE, save({n: w.reshape(w.shape) for n, w in self.weights.items()}))
        structure = self._structure() | {"fingerprint": self.fingerprint, "weights": list(self.weights)}
        write_atomic(folder / GRAPH_FILE, (json.dumps(structure, indent=1) + "\n").encode())

    @staticmethod
    def load(folder: str | Path) -> MSCGraph:
        """Read what `save` wrote, exactly. Raises `InvalidGraph` for missing, damaged or mixed files."""
        from safetensors import SafetensorError

        folder = Path(folder)
        for file in (GRAPH_FILE, WEIGHTS_FILE):
            if not (folder / file).is_file():
                raise InvalidGraph(f"{folder} holds no {file}; expected a folder written by MSCGraph.save")
        if (folder / GRAPH_FILE).stat().st_size > MAX_JSON_BYTES:
            raise InvalidGraph(f"{folder / GRAPH_FILE} is larger than {MAX_JSON_BYTES} bytes")
        try:
            data = json.loads((folder / GRAPH_FILE).read_text("utf-8"))
            if data["schema"] != SCHEMA:
                raise InvalidGraph(f"{folder / GRAPH_FILE} has schema {data['schema']}; this version reads {SCHEMA}")
            weights = read_safetensors((folder / WEIGHTS_FILE).read_bytes())
            graph = MSCGraph(
                name=data["name"],
                nodes=tuple(_decode_node(n) for n in data["nodes"]),
                inputs=tuple(data["inputs"]),
                outputs=tuple(data["outputs"]),
                weights={name: weights[name] for name in data["weights"]},
                tensors={t[0]: Tensor(t[0], tuple(t[1]), t[2], t[3]) for t in data["tensors"]},
            )
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError, SafetensorError) as error:
            raise InvalidGraph(f"{folder} is not a readable graph: {type(error).__name__}: {error}") from error
        if graph.fingerprint != data.get("fingerprint"):
            raise InvalidGraph(f"{folder}: graph.json and weights.safetensors do not belong together, or were edited")
        return graph


def write_atomic(path: Path, content: bytes) -> None:
    """Write `content` beside `path` and rename, so that `path` is never half-written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(path)


def _encode(value: Attr) -> Any:
    """JSON for an attribute; non-finite floats, which JSON lacks, become {"float": "inf"}."""
    if isinstance(value, tuple):
        return [_encode(v) for v in value]
    if isinstance(value, float) and not np.isfinite(value):
        return {"float": repr(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise InvalidGraph(f"attribute {value!r} has type {type(value).__name__}; expected int, float, bool, str or tuple")


def _decode(value: Any) -> Attr:
    if isinstance(value, list):
        return tuple(_decode(v) for v in value)
    return float(value["float"]) if isinstance(value, dict) else value


def _decode_node(data: dict[str, Any]) -> Node:
    attrs = {k: _decode(v) for k, v in data["attrs"].items()}
    return Node(data["name"], data["op"], tuple(data["inputs"]), tuple(data["outputs"]), attrs, data["scope"])


def consumers(graph: MSCGraph) -> dict[str, list[Node]]:
    """Which nodes read each tensor."""
    uses: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in dict.fromkeys(node.inputs):
            uses.setdefault(name, []).append(node)
    return uses


def unique(name: str, taken: Container[str]) -> str:
    """`name`, or the first of `name_1`, `name_2`, ... that is not taken."""
    if name not in taken:
        return name
    return next(candidate for i in range(1, 10**9) if (candidate := f"{name}_{i}") not in taken)
