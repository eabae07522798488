"""What a row of the op table holds, and the little tree (`Call`) in which every framework is spoken to."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from msc_core.dims import Dim
from msc_core.errors import InvalidGraph, UnsupportedOperator, nearest
from msc_core.ir import Array, Attr, Node, Tensor
from msc_core.ops.signature import Signature, Sizes


class Marker(enum.Enum):
    """What a torch call may have among its arguments that only the running module knows."""

    TRAINING = "whether the module is in training mode"
    DEVICE = "the device of the module's inputs"


TRAINING, DEVICE = Marker.TRAINING, Marker.DEVICE


@dataclass(frozen=True)
class DType:
    """A dtype among the arguments of a call, by NumPy's name: each target has its own object for it."""

    name: str


@dataclass(frozen=True)
class Call:
    """A call in some vocabulary (ours, torch's, ONNX's, Relax's), as data.

    `args` are `Tensor` references, nested calls, NumPy constants, `Size`s, `DType`s, `None`, plain values or tuples of
    these; `attrs` are keywords. In torch's, `item` takes one part of a tuple and `index` is `x[...]`, with slices. A
    front end turns a framework's operator into calls of our rows; a row turns its node into calls of each target.
    Whoever holds the target interprets the tree, so one description serves execution, building and printing.
    """

    fn: str
    args: tuple[Any, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)


def call(fn: str, *args: Any, **attrs: Any) -> Call:
    """`Call` with the arguments written as in a call."""
    return Call(fn, args, attrs)


def innermost_first(value: Any) -> Iterator[Call]:
    """Every call of a tree once, behind those in its arguments; without recursion, however deep the tree is."""
    seen: set[int] = set()
    stack = [(value, False)]
    while stack:
        part, ready = stack.pop()
        if ready:
            yield part
        elif isinstance(part, (tuple, list)):
            stack += [(inner, False) for inner in reversed(part)]
        elif isinstance(part, slice):
            stack.append(((part.start, part.stop, part.step), False))
        elif isinstance(part, Call) and id(part) not in seen:
            seen.add(id(part))
            stack += [(part, True), ((*part.args, *part.attrs.values()), False)]


@dataclass(frozen=True)
class Size:
    """A symbolic dimension among the arguments of a call: an expression such as `"2*N"`, worked out at run time."""

    expression: str


def sizes(dims: Iterable[Dim]) -> tuple[int | Size, ...]:
    """Dimensions as arguments of a call: symbolic ones become `Size`s."""
    return tuple(Size(d) if isinstance(d, str) else int(d) for d in dims)


def size_tensor(dims: Iterable[Dim]) -> Array | Call:
    """Dimensions as a 1-D int64 tensor, for ONNX: a constant, or a call "sizes" where any is symbolic."""
    values = sizes(dims)
    return np.asarray(values, np.int64) if all(isinstance(v, int) for v in values) else call("sizes", *values)


@dataclass(frozen=True)
class Source:
    """An operator of ONNX or Relax that is being imported: what `from_onnx` and `from_relax` of a row receive.

    `x` are its arguments: `Tensor`s, `None` where an optional one is absent and, from Relax, plain values (ints,
    floats, tuples of dimensions). `attrs` are plain Python values. `outputs` is how many outputs are wanted, `version`
    the ONNX opset. `known` gives the value of a tensor as far as it is known at import: a NumPy array of numbers, or
    one of dtype object whose elements are dimensions.
    """

    op: str
    x: tuple[Any, ...]
    attrs: Mapping[str, Any]
    known: Callable[[Tensor], Array | None]
    outputs: int = 1
    version: int = 0

    def tensor(self, index: int) -> Tensor:
        """The i-th argument. Raises `UnsupportedOperator` if it is absent or no tensor."""
        value = self.get(index)
        if not isinstance(value, Tensor):
            raise UnsupportedOperator(f"{self.op}: input {index} is {value!r}; expected a tensor")
        return value

    def get(self, index: int) -> Any:
        """The i-th argument, `None` if it is absent."""
        return self.x[index] if index < len(self.x) else None

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute, or its default."""
        value = self.attrs.get(name)
        return default if value is None else value

    def constant(self, index: int, default: Any = None) -> Any:
        """The value of the i-th argument as a NumPy array of numbers; `default` if it is absent.

        Raises `UnsupportedOperator` if it depends on the network's inputs.
        """
        value = self.value(index)
        if value is not None and value.dtype == object:
            raise UnsupportedOperator(f"{self.op}: input {index} depends on a symbolic dimension; expected a constant")
        return default if value is None else value

    def dims(self, index: int, default: Any = None) -> Any:
        """The value of the i-th argument as a tuple of dimensions, which may be symbolic; `default` if absent."""
        value = self.value(index)
        if value is None:
            return default
        return tuple(d if isinstance(d, str) else int(d) for d in np.ravel(value).tolist())

    def value(self, index: int) -> Array | None:
        """The value of the i-th argument, whose dtype is object if it holds symbolic dimensions; `None` if absent."""
        given = self.get(index)
        if given is None:
            return None
        found = self.known(given) if isinstance(given, Tensor) else _array(given)
        if found is None:
            raise UnsupportedOperator(
                f"{self.op}: input {index} is computed from the network's inputs; expected a constant"
            )
        return found


def _array(value: Any) -> Array:
    return np.asarray(value, object if any(isinstance(v, str) for v in np.ravel(value).tolist()) else None)


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
        assert axes is not None
        return Signature.parse(axes(self) if callable(axes) else axes)

    def input(self, index: int) -> Tensor:
        """The i-th input, which the operator cannot do without."""
        tensor = self.x[index]
        if tensor is None:
            raise InvalidGraph(f"{self}: input {index} is missing")
        return tensor

    def sizes(self) -> Sizes:
        """The size of every letter of the signature; raises `InvalidGraph` where two disagree."""
        known = {letter: self[attr] for attr, names in self.op.sized.items() for letter in names.split()}
        known.pop("output", None)
        shapes = [None if t is None else t.shape for t in self.x]
        try:
            return self.signature.bind(shapes, known)
        except InvalidGraph as error:
            raise InvalidGraph(f"{self}: {error}") from None

    def __str__(self) -> str:
        return f"node {self.node.name!r} ({self.node.op})"


Shape = tuple[Dim, ...]
Moves = Mapping[str, tuple[tuple[str, Array], ...] | None]
Result = Call | Tensor | tuple[Any, ...]
Emit = Callable[[Bound], Result]
Importer = Callable[..., Any]


@dataclass(frozen=True)
class Refuse:
    """Stands in a row for a target that cannot say the operator: raises `UnsupportedOperator` with the reason."""

    reason: str

    def __call__(self, b: Bound) -> Result:
        """Raise."""
        raise UnsupportedOperator(f"{b}: {self.reason}")


@dataclass(frozen=True)
class Op:
    """Everything the project knows about one operator; see the rows for examples.

    - `axes`: the axis signature (`ops/signature.py`); equal letters are the same axis. May depend on the node. `None`
      where axes cannot express the operator: it then needs `shape`, and the channels that it touches are pinned.
    - `operands`: how many inputs there can be, where `axes` does not say it; -1 for any number.
    - `attrs`: typed attributes with their defaults; `sized` says which of them repeat the size of a letter (`"r s"`: of
      two letters, which are never pruned) or, with `"output"`, the whole output shape, so that pruning knows what to
      rewrite; `symbolic` names those that hold dimensions (a string in them is an expression over symbols).
    - `new`: sizes of the output's letters that no input has. `shape`: the output shape, where axes cannot say it; a
      list of shapes for an operator of several outputs. `dtype`: of the output, if it is not that of the first input:
      a name, or a function that returns one (a list of them for several outputs).
    - `macs`: multiply-accumulates, from the sizes of the letters and the output shape.
    - `aten`: from which ATen overloads it comes: a function of the arguments by schema name. `from_onnx` and
      `from_relax`: from which operators of theirs, a function of a `Source`. They return a `Call` in our vocabulary,
      one of the arguments, a NumPy constant, or a tuple of these for several outputs. A Call `item(call, i)` is output
      i of a call that has several.
    - `torch`, `onnx`, `relax`: how each target says it: a `Call` (whose result is a tuple for an operator of several
      outputs, but in ONNX, where the node has the outputs), or a tuple with one for each output.
    - `statistics`: positions of inputs that are running statistics, not trained parameters.
    - `movement`: "reshape" or "concat" for operators that only move positions, which axes cannot express.
    - `moves`: for letters of the output, from which positions of which letters theirs come (-1: from none), one piece
      behind the other: `{"b1": (("a1", np.arange(2, 6)),)}`; `None` where all positions are alike, so that each can go.
      `"i0 i1"` is a grid, `""` a position without an axis. It may look at the value of an operand that is a constant.
    - `indices`: operands whose values are positions of a letter. `resize`: attributes that depend on which positions
      remain, from a mask for each letter that lost some. With these surgery keeps up what mentions positions.
    - `msc`: its name in TVM's Multi-System Compiler.
    """

    name: str
    axes: str | Callable[[Bound], str] | None
    torch: Emit
    onnx: Emit
    relax: Emit
    aten: Mapping[str, Importer] = field(default_factory=dict)
    from_onnx: Mapping[str, Importer] = field(default_factory=dict)
    from_relax: Mapping[str, Importer] = field(default_factory=dict)
    operands: int = 1
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    sized: Mapping[str, str] = field(default_factory=dict)
    symbolic: tuple[str, ...] = ()
    new: Callable[[Bound, Sizes], Sizes] | None = None
    shape: Callable[[Bound], Shape | list[Shape]] | None = None
    dtype: str | Callable[[Bound], str | list[str]] = ""
    macs: Callable[[Bound, Sizes], int] | None = None
    statistics: tuple[int, ...] = ()
    movement: str = ""
    moves: Callable[[Bound, Callable[[Tensor], Array | None]], Moves] | None = None
    indices: Callable[[Bound], Mapping[int, str]] | None = None
    resize: Callable[[Bound, Mapping[str, Array]], Mapping[str, Attr]] | None = None
    msc: str = ""

    def bind(self, node: Node, tensors: Mapping[str, Tensor]) -> Bound:
        """`node` with its tensors; absent trailing inputs are `None`. Raises `InvalidGraph` for unknown attributes."""
        inputs = tuple(tensors[n] if n else None for n in node.inputs)
        outputs = tuple(tensors[n] for n in node.outputs if n in tensors)
        if unknown := node.attrs.keys() - self.attrs.keys():
            name = sorted(unknown)[0]
            raise InvalidGraph(f"node {node.name!r} ({node.op}): no attribute {name!r}{nearest(name, self.attrs)}")
        bound = Bound(node, self, inputs, outputs)
        operands = self.operands if self.axes is None or self.movement else len(bound.signature.operands)
        if 0 <= operands < len(inputs):
            raise InvalidGraph(f"{bound}: {len(inputs)} inputs found, at most {operands} expected")
        return Bound(node, self, inputs + (None,) * (operands - len(inputs)), outputs)


def describe(bound: Bound) -> list[tuple[Shape, str]]:
    """Shape and dtype of each output that a node has, whatever their names."""
    op = bound.op
    if op.shape is not None:
        found = op.shape(bound)
        shapes = found if isinstance(found, list) else [found]
    else:
        sizes = bound.sizes()
        sizes |= op.new(bound, sizes) if op.new else {}
        shapes = bound.signature.output_shapes(sizes)
    dtype = op.dtype(bound) if callable(op.dtype) else op.dtype or bound.input(0).dtype
    if any(isinstance(d, int) and d < 0 for shape in shapes for d in shape):
        raise InvalidGraph(f"{bound}: its output would have shape {[list(shape) for shape in shapes]}")
    return list(zip(shapes, [dtype] * len(shapes) if isinstance(dtype, str) else dtype, strict=True))
