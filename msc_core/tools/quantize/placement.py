"""Which tensors become integers, for each target: a table of rules, and one walk over the graph that follows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msc_core.ir import MSCGraph, Node, consumers

LAYERS: Mapping[str, int] = {  # operators that multiply with a weight -> the axis of its output channels
    "conv1d": 0, "conv2d": 0, "conv3d": 0,
    "conv1d_transpose": 1, "conv2d_transpose": 1, "conv3d_transpose": 1,
    "linear": 0, "matmul": -1,
}  # fmt: skip
FUSED = ("relu", "clip", "relu6")  # what engines compute while they store a layer's result
SAME = (  # operators whose results are values that they read: the integers pass through
    "max_pool1d", "max_pool2d", "max_pool3d", "flatten", "reshape", "permute_dims", "squeeze", "expand_dims",
)  # fmt: skip


@dataclass(frozen=True)
class Placement:
    """What an engine does in integers.

    - `signed`: whether activations are int8 about zero, or uint8 with a zero point.
    - `joins`: operators without a weight that it computes in integers, where all that they read is integer already.
      Left in float, they would have their inputs converted for nothing.
    - `shared`: the joins whose inputs and output have one scale, so that they only copy.
    """

    signed: bool
    joins: tuple[str, ...]
    shared: tuple[str, ...] = ("concat",)


POOLS = ("avg_pool2d", "adaptive_avg_pool2d")
TABLE: Mapping[str, Placement] = {
    # u8 activations and s8 weights are the fast pair on x86 (VNNI), adds and averages have integer kernels
    "onnxruntime": Placement(signed=False, joins=("add", "concat", *POOLS)),
    "openvino": Placement(signed=False, joins=("add", "concat", *POOLS)),
    # symmetric int8; an add is fused with the convolution in front of one of its inputs
    "tensorrt": Placement(signed=True, joins=("add", "concat", *POOLS)),
    "tensorflow": Placement(signed=True, joins=("add", "concat", *POOLS)),
    # no integer kernels: what is quantized is the layers' inputs and weights, as on the engine that is simulated
    "torch": Placement(signed=False, joins=("add", "concat", *POOLS)),
    "tvm": Placement(signed=False, joins=("add", "concat", *POOLS)),
}


def layers(graph: MSCGraph) -> tuple[str, ...]:
    """The nodes that multiply with a weight of the graph, in order: what can be quantized."""
    return tuple(n.name for n in graph.nodes if n.op in LAYERS and len(n.inputs) > 1 and n.inputs[1] in graph.weights)


def place(graph: MSCGraph, active: set[str], placement: Placement, given: Sequence[str] = ()) -> dict[str, str]:
    """{tensor: its representative} for the activations that become integers when the layers `active` do.

    Those in `given` do in any case. Tensors with the same representative have one range.
    """
    walk = _Walk(graph, active, placement)
    walk.same |= {name: name for name in given}
    return walk.run()


class _Walk:
    def __init__(self, graph: MSCGraph, active: set[str], placement: Placement) -> None:
        self.graph, self.active, self.placement = graph, active, placement
        self.readers = consumers(graph)
        self.same: dict[str, str] = {}

    def run(self) -> dict[str, str]:
        for node in self.graph.nodes:
            if node.name in self.active:
                self.same.setdefault(node.inputs[0], node.inputs[0])
                self._result(node)
            elif node.op in SAME and node.inputs[0] in self.same:
                self._result(node, node.inputs[0])
            elif node.op in self.placement.joins and self._whole(node):
                shared = node.op in self.placement.shared
                if shared:
                    for name in node.inputs[1:]:
                        self._join(node.inputs[0], name)
                self._result(node, node.inputs[0] if shared else "")
        return {name: self._find(name) for name in self.same}

    def _whole(self, node: Node) -> bool:
        """Whether all that a join reads is made of integers."""
        return all(name in self.same for name in node.inputs if name)

    def _result(self, node: Node, like: str = "") -> None:
        """Mark what a node makes, behind the operator that is fused with it; not what the graph returns."""
        (name, *_) = node.outputs
        after = self.readers.get(name, [])
        if not like and len(after) == 1 and after[0].op in FUSED and name not in self.graph.outputs:
            name = after[0].outputs[0]
        if name in self.graph.outputs or self.graph.tensors[name].dtype != "float32":
            return
        self.same.setdefault(name, name)
        if like:
            self._join(like, name)

    def _find(self, name: str) -> str:
        while self.same[name] != name:
            name = self.same[name]
        return name

    def _join(self, a: str, b: str) -> None:
        a, b = self._find(a), self._find(b)
        self.same[b] = a
