"""Half precision as casts: the named nodes compute in float16 or bfloat16, and casts stand where the dtype changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from msc_core.errors import InvalidPlan, nearest
from msc_core.exchange import numpy_dtype
from msc_core.infer import outputs
from msc_core.ir import MSCGraph, Node, Tensor, consumers, unique
from msc_core.ops import bind
from msc_core.plan import CASTS

WIDE = "float32"
SENSITIVE = (  # sums over many values and functions that grow fast: half precision loses digits, or overflows
    "batch_norm", "layer_norm", "rms_norm", "group_norm", "instance_norm", "local_response_norm", "softmax",
    "log_softmax", "nll_loss", "sum", "mean", "prod", "variance", "std", "logsumexp", "norm", "cumsum", "cumprod",
    "logcumsumexp", "exp", "expm1", "square", "power", "log", "log1p", "log2", "log10", "reciprocal", "rsqrt", "acos",
    "asin", "acosh", "atanh", "cosh", "sinh", "tan", "erfinv", "quantize", "dequantize", "cast", "full", "arange",
)  # fmt: skip


def castable(graph: MSCGraph, dtype: str) -> dict[str, str]:
    """`{node: dtype}` for `cast`: every float32 node but for norms, softmax, long sums and what grows fast.

    A weight of float16 must be finite there; the nodes that read another stay float32 too. Operators that only move
    values are cast where a cast node feeds them, as alone they would gain nothing.
    """
    _check(dtype)
    found: dict[str, str] = {}
    producer = {name: node.name for node in graph.nodes for name in node.outputs}
    for node in graph.nodes:
        read = [name for name in node.inputs if name and graph.tensors[name].dtype == WIDE]
        weights = [name for name in read if name in graph.weights]
        fed = any(producer.get(name) in found for name in read)
        fits = dtype == "bfloat16" or all(
            np.abs(graph.weights[name]).max(initial=0) <= np.finfo(np.float16).max for name in weights
        )
        if node.op not in SENSITIVE and (fed or weights) and fits and _narrowed(node, graph, dtype):
            found[node.name] = dtype
    return found


def cast(graph: MSCGraph, dtypes: Mapping[str, str]) -> MSCGraph:
    """The graph in which the nodes of `dtypes` read, compute and return float16 or bfloat16 instead of float32.

    1. A float32 tensor is cast once for each dtype that is read, from the one it was computed in; between two nodes of
       one dtype there is no cast.
    2. A weight is stored in the dtypes of its readers, under its own name if they agree.
    3. Inputs and outputs of the graph keep names and dtypes; the other tensors keep their names.

    Raises `InvalidPlan` for an unknown node or dtype, one that has no float32 operand or whose result stays float32,
    and for a weight that float16 cannot hold.
    """
    if not dtypes:
        return graph
    known = [node.name for node in graph.nodes]
    for name, dtype in dtypes.items():
        if name not in known:
            raise InvalidPlan(f"cast: no node {name!r}{nearest(name, known)}")
        _check(dtype)
    return _Casting(graph, dtypes).run()


class _Casting:
    """One pass over the nodes; `found[tensor][dtype]` is what holds a float32 tensor of the old graph in a dtype."""

    def __init__(self, graph: MSCGraph, dtypes: Mapping[str, str]) -> None:
        self.graph, self.dtypes = graph, dtypes
        self.readers = consumers(graph)
        self.weights, self.tensors = dict(graph.weights), dict(graph.tensors)
        self.names = {node.name for node in graph.nodes}
        self.found = {name: {WIDE: name} for name, tensor in graph.tensors.items() if tensor.dtype == WIDE}
        self.nodes: list[Node] = []

    def run(self) -> MSCGraph:
        """The new graph."""
        for node in self.graph.nodes:
            dtype = self.dtypes.get(node.name, WIDE)
            inputs = tuple(self._read(name, dtype) if name in self.found else name for name in node.inputs)
            if dtype == WIDE:
                self.nodes.append(dataclasses.replace(node, inputs=inputs))
            else:
                self._compute(node, inputs, dtype)
        return self.graph.replace(nodes=tuple(self.nodes), weights=self.weights, tensors=self.tensors)

    def _compute(self, node: Node, inputs: tuple[str, ...], dtype: str) -> None:
        """Append a node that computes in `dtype`, and casts back to float32 for what the graph returns."""
        if not _narrowed(node, self.graph, dtype):
            raise InvalidPlan(f"cast: node {node.name!r} ({node.op}) cannot compute in {dtype}: its dtypes are fixed")
        names = []
        for name in node.outputs:
            if name not in self.found:
                names.append(name)
                continue
            held = unique(f"{name}.{dtype}", self.tensors) if name in self.graph.outputs else name
            self.tensors[held] = dataclasses.replace(self.graph.tensors[name], name=held, dtype=dtype)
            self.found[name] = {dtype: held}
            names.append(held)
        self.nodes.append(dataclasses.replace(node, inputs=inputs, outputs=tuple(names)))
        for name, held in zip(node.outputs, names, strict=True):
            if name != held:
                self._cast(held, name, WIDE)
                self.found[name][WIDE] = name

    def _read(self, name: str, dtype: str) -> str:
        """The float32 tensor `name` in `dtype`."""
        held = self.found[name]
        if dtype in held:
            return held[dtype]
        if name in self.graph.weights:
            held[dtype] = self._weight(name, dtype)
        else:
            held[dtype] = unique(f"{name}.{dtype}", self.tensors)
            self._cast(next(iter(held.values())), held[dtype], dtype)
        return held[dtype]

    def _weight(self, name: str, dtype: str) -> str:
        array = self.graph.weights[name]
        if dtype == "float16" and np.abs(array).max(initial=0) > np.finfo(np.float16).max:
            raise InvalidPlan(f"cast: weight {name!r} has {np.abs(array).max():.3g}; float16 ends at 65504")
        alone = all(self.dtypes.get(node.name) == dtype for node in self.readers[name])
        held = name if alone and name not in self.graph.outputs else unique(f"{name}.{dtype}", self.tensors)
        self.weights[held] = array.astype(numpy_dtype(dtype))
        self.tensors[held] = dataclasses.replace(self.graph.tensors[name], name=held, dtype=dtype)
        return held

    def _cast(self, source: str, target: str, dtype: str) -> None:
        self.tensors[target] = dataclasses.replace(self.tensors[source], name=target, dtype=dtype)
        name = unique(target, self.names)
        self.names.add(name)
        self.nodes.append(Node(name, "cast", (source,), (target,), {"dtype": dtype}))


def _check(dtype: str) -> None:
    if dtype not in CASTS:
        raise InvalidPlan(f"cast: unknown dtype {dtype!r}{nearest(dtype, CASTS)}")


def _narrowed(node: Node, graph: MSCGraph, dtype: str) -> bool:
    """Whether all float32 results of the node become `dtype` when its float32 operands do; it must have both."""
    read = {name: graph.tensors[name] for name in node.inputs if name}
    narrow = {n: dataclasses.replace(t, dtype=dtype) if t.dtype == WIDE else t for n, t in read.items()}
    before = [graph.tensors[name].dtype for name in node.outputs]
    if read == narrow or WIDE not in before:
        return False
    after: list[Tensor] = outputs(bind(node, narrow))
    return all(t.dtype == dtype for t, old in zip(after, before, strict=True) if old == WIDE)
