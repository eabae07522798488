"""What a row of the op table holds, and the little tree (`Call`) in which every framework is spoken to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from msc_core.errors import InvalidGraph, nearest
from msc_core.ir import Attr, Dim, Node, Tensor
from msc_core.ops.signature import Signature, Sizes


class Training:
    """Stands for "is the module in training mode" among the arguments of a torch call."""


TRAINING = Training()


@dataclass(frozen=True)
class Call:
    """A call in some vocabulary (ours, torch's, ONNX's, Relax's), as data.

    `args` are `Tensor` references, nested calls, NumPy constants, `None` or plain values; `attrs` are keywords. A front
    end turns a framework's operator into calls of our rows; a row turns its node into calls of each target. Whoever
    holds the target interprets the tree, so one description serves execution, building and printing.
    """

    fn: str
    args: tuple[Any, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)


def call(fn: str, *args: Any, **attrs: Any) -> Call:
    """`Call` with the arguments written as in a call."""
    return Call(fn, args, attrs)


@dataclass(frozen=True)
class Bound:
    """A node together with its row and its tensors: what the functions of a row receive.

    `x[i]` is the i-th input, `None` where an optional one is absent; `b["stride"]` is an attribute, defaults included;
    `out` is empty while the output's shape is being inferred.
    """

    node: Node
    op: Op
    x: tuple[Tensor | None, ...]
    out: tuple[Tensor, ...]

    def __getitem__(self, attr: str) -> Any:
        return self.node.attrs[attr] if attr in self.node.attrs else self.op.attrs[attr]

    @property
    def signature(self) -> Signature:
        """The axis signature with its operands, computed from the node where the row says so."""
        axes = self.op.axes
        return Signature.parse(axes(self) if callable(axes) else axes)

    def input(self, index: int) -> Tensor:
        """The i-th input, which the operator cannot do without."""
        tensor = self.x[index]
        if tensor is None:
            raise InvalidGraph(f"{self}: input {index} is missing")
        return tensor

    def sizes(self) -> Sizes:
        """The size of every letter of the signature; raises `InvalidGraph` where two disagree."""
        known = {letter: self[attr] for attr, letter in self.op.sized.items() if letter != "output"}
        shapes = [None if t is None else t.shape for t in self.x]
        try:
            return self.signature.bind(shapes, known)
        except InvalidGraph as error:
            raise InvalidGraph(f"{self}: {error}") from None

    def __str__(self) -> str:
        return f"node {self.node.name!r} ({self.node.op})"


Emit = Callable[[Bound], Call]


@dataclass(frozen=True)
class Op:
    """Everything the project knows about one operator; see the rows for examples.

    - `axes`: the axis signature (`ops/signature.py`); equal letters are the same axis. May depend on the node.
    - `attrs`: typed attributes with their defaults; `sized` says which of them repeat the size of a letter (or, with
      `"output"`, the whole output shape), so that pruning knows what to rewrite.
    - `new`: sizes of the output's letters that no input has. `shape`: the output shape, where axes cannot say it.
    - `macs`: multiply-accumulates, from the sizes of the letters and the output shape.
    - `aten`: from which ATen overloads it comes: a function of the arguments by schema name.
    - `torch`, `onnx`, `relax`: how each target says it.
    - `statistics`: positions of inputs that are running statistics, not trained parameters.
    - `movement`: "reshape" or "concat" for operators that only move positions, which axes cannot express.
    - `msc`: its name in TVM's Multi-System Compiler.
    """

    name: str
    axes: str | Callable[[Bound], str]
    torch: Emit
    onnx: Emit
    relax: Emit
    aten: Mapping[str, Callable[..., Call | Tensor]]
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    sized: Mapping[str, str] = field(default_factory=dict)
    new: Callable[[Bound, Sizes], Sizes] | None = None
    shape: Callable[[Bound], tuple[Dim, ...]] | None = None
    macs: Callable[[Bound, Sizes], int] | None = None
    statistics: tuple[int, ...] = ()
    movement: str = ""
    msc: str = ""

    def bind(self, node: Node, tensors: Mapping[str, Tensor]) -> Bound:
        """`node` with its tensors; absent trailing inputs are `None`. Raises `InvalidGraph` for unknown attributes."""
        inputs = tuple(tensors[n] if n else None for n in node.inputs)
        outputs = tuple(tensors[n] for n in node.outputs if n in tensors)
        if unknown := node.attrs.keys() - self.attrs.keys():
            name = sorted(unknown)[0]
            raise InvalidGraph(f"node {node.name!r} ({node.op}): no attribute {name!r}{nearest(name, self.attrs)}")
        bound = Bound(node, self, inputs, outputs)
        missing = 0 if self.movement else len(bound.signature.operands) - len(inputs)
        return Bound(node, self, inputs + (None,) * missing, outputs)
