"""`MSCGraph` -> TVM Relax: the `Call` trees of the op table, interpreted by a `BlockBuilder`.

Names of tensors are names of Relax variables, exactly: a `.` or `/` in one stays (TVMScript prints it as `_`, the
module keeps it). Symbolic dimensions are `tirx.Var`s, one for each symbol of the graph, shared by all tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, Literal

import numpy as np

from msc_core import dims
from msc_core.dims import Dim
from msc_core.errors import MscError, Unavailable, UnsupportedOperator
from msc_core.ir import Array, MSCGraph, Node, Tensor
from msc_core.ops import Call, DType, Size, bind
from msc_core.ops.op import innermost_first

Params = Literal["bound", "free"]


def to_relax(graph: MSCGraph, params: Params = "bound") -> Any:
    """A `tvm.IRModule` with one function, `main`: the graph's inputs to its outputs (a tuple if there are several).

    `params="bound"` embeds the weights as constants. With `"free"` they are parameters of `main` behind the inputs, in
    the order and under the names of `graph.weights`, and the attribute `num_input` says how many inputs there are.

    Raises `UnsupportedOperator`, naming the node, where Relax lacks what a row asks for.
    """
    return RelaxBuilder(graph, params).module()


def import_tvm() -> Any:
    """The `tvm` module; `Unavailable` says what to install."""
    try:
        import tvm
        import tvm.relax
    except ImportError as error:
        raise Unavailable(f"TVM cannot be imported ({error}); pip install apache-tvm 'apache-tvm-ffi<0.1.15'") from None
    return tvm


class RelaxBuilder:
    """Emits one graph; `value` and `expression` also serve those who emit part of a graph themselves."""

    def __init__(self, graph: MSCGraph, params: Params = "bound") -> None:
        if params not in ("bound", "free"):
            raise MscError(f"params={params!r}; expected 'bound' or 'free'")
        self.tvm = import_tvm()
        self.relax = self.tvm.relax
        self.graph = graph
        self.free = params == "free"
        self.block = self.relax.BlockBuilder()
        self.symbols: dict[str, Any] = {}
        self.values: dict[str, Any] = {}
        self.shared: dict[int, tuple[Call, Any]] = {}  # by identity; the call is kept, so that no other has its number

    def module(self) -> Any:
        """The whole graph as a module, checked to be well formed."""
        graph, relax = self.graph, self.relax
        names = (*graph.inputs, *graph.weights) if self.free else graph.inputs
        parameters = [self.parameter(graph.tensors[name]) for name in names]
        attrs = {"num_input": len(graph.inputs)} if self.free else {}
        with self.block.function("main", parameters, attrs=attrs):
            with self.block.dataflow():
                for node in graph.nodes:
                    self.node(node)
                outputs = [self._output(name) for name in graph.outputs]
            self.block.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
        module = self.block.get()
        relax.analysis.well_formed(module)
        return module

    def parameter(self, tensor: Tensor) -> Any:
        """A parameter of `main`."""
        type_ = self.relax.TensorType(self.shape(tensor.shape), tensor.dtype)
        self.values[tensor.name] = self.relax.Var(tensor.name, type_)
        return self.values[tensor.name]

    def node(self, node: Node) -> None:
        """Bind a node's output, under its name, to the tree that its row returns."""
        bound = bind(node, self.graph.tensors)
        try:
            expression = self.tree(bound.op.relax(bound), lambda tensor: self.value(tensor.name))
        except MscError as error:
            raise type(error)(f"{bound}: {error}") from error
        except (TypeError, ValueError, RuntimeError, AttributeError) as error:
            reason = str(error).strip().splitlines()[-1]
            raise UnsupportedOperator(f"{bound}: Relax refuses it: {type(error).__name__}: {reason}") from error
        if len(node.outputs) > 1 and not isinstance(expression, list):
            expression = self.block.emit(expression)
            expression = [self.relax.TupleGetItem(expression, i) for i in range(len(node.outputs))]
        parts = expression if isinstance(expression, list) else [expression]
        for part, tensor in zip(parts, bound.out, strict=True):
            self.values[tensor.name] = self.bind(part, tensor.name)
            self.check_type(self.values[tensor.name], tensor, str(bound))

    def bind(self, expression: Any, name: str) -> Any:
        """A variable of exactly that name. (`BlockBuilder.emit` would number it where its own names interfere.)"""
        expression = self.block.normalize(expression)
        kind = self.relax.Var if name in self.graph.outputs else self.relax.DataflowVar
        variable = kind(name, expression.ty)
        self.block.emit_normalized(self.relax.VarBinding(variable, expression))
        return variable

    def check_type(self, variable: Any, tensor: Tensor, where: str) -> None:
        """`check_shape`, and the same for the dtype."""
        self.check_shape(variable, tensor.shape, where)
        if str(variable.ty.dtype) != tensor.dtype:
            raise UnsupportedOperator(f"{where}: expected the dtype {tensor.dtype}, Relax infers {variable.ty.dtype}")

    def check_shape(self, variable: Any, expected: tuple[Dim, ...], where: str) -> None:
        """Relax infers shapes by its own rules (of `ceil_mode`, say); a difference must not pass silently."""
        if variable.ty.shape is None:
            raise UnsupportedOperator(f"{where}: expected the shape {list(expected)}, which Relax cannot infer")
        found = tuple(variable.ty.shape)
        fixed = [(int(f), e) for f, e in zip(found, expected, strict=False) if _is_fixed(f) and isinstance(e, int)]
        if len(found) != len(expected) or any(f != e for f, e in fixed):
            raise UnsupportedOperator(f"{where}: expected the shape {list(expected)}, Relax infers {list(found)}")

    def value(self, name: str) -> Any:
        """The variable of a tensor, or the constant of a weight."""
        if name not in self.values:
            self.values[name] = self.constant(np.array(self.graph.weights[name]))
        return self.values[name]

    def constant(self, array: Array) -> Any:
        """A constant of exactly that dtype. (`relax.const` on its own makes int64 and float64 half as wide.)"""
        return self.relax.const(array, array.dtype.name)

    def shape(self, shape: tuple[Dim, ...]) -> list[Any]:
        """Dimensions with symbols replaced by their variables."""
        return [self.size(d) if isinstance(d, str) else d for d in shape]

    def size(self, expression: str) -> Any:
        """An expression over the variables of symbols."""
        tirx = self.tvm.tirx
        functions = {**dims.FUNCTIONS, "max": tirx.max, "min": tirx.min}
        return dims.interpret(expression, self.symbol, functions, lambda value: tirx.IntImm("int64", value))

    def symbol(self, name: str) -> Any:
        """The variable of a symbolic dimension."""
        if name not in self.symbols:
            self.symbols[name] = self.tvm.tirx.Var(name, "int64")
        return self.symbols[name]

    def tree(self, value: Any, tensor: Callable[[Tensor], Any]) -> Any:
        """`expression` of a tree that may be deep."""
        for inner in innermost_first(value):
            if inner is not value:
                self._inner(inner, tensor)
        return self.expression(value, tensor)

    def expression(self, value: Any, tensor: Callable[[Tensor], Any]) -> Any:
        """Interpret a tree; `tensor` says what a reference to a tensor means."""
        if isinstance(value, Tensor):
            return tensor(value)
        if isinstance(value, (np.ndarray, np.generic)):
            return self.constant(np.asarray(value))
        if isinstance(value, (tuple, list)):
            return [self._inner(v, tensor) for v in value]
        if isinstance(value, Size):
            return self.size(value.expression)
        if isinstance(value, DType):
            return value.name
        if not isinstance(value, Call):
            return value
        arguments = [self._inner(arg, tensor) for arg in value.args]
        attrs = {key: self._inner(attr, tensor) for key, attr in value.attrs.items()}
        if value.fn in self.special:
            return self.special[value.fn](*arguments, **attrs)
        return self._operator(value.fn)(*arguments, **attrs)

    def _inner(self, value: Any, tensor: Callable[[Tensor], Any]) -> Any:
        """An argument; a call among them is bound to a variable, once if the tree has it at several places."""
        if isinstance(value, (tuple, list)):
            return [self._inner(part, tensor) for part in value]
        if not isinstance(value, Call):
            return self.expression(value, tensor)
        if id(value) not in self.shared:
            expression = self.expression(value, tensor)
            bound = self.block.emit(expression) if isinstance(expression, self.relax.Call) else expression
            self.shared[id(value)] = value, bound
        return self.shared[id(value)][1]

    @property
    def special(self) -> Mapping[str, Callable[..., Any]]:
        """Functions of the trees that are no Relax operators."""
        return {
            "item": self._item,
            "identity": lambda source: source,
            "shape": lambda *dims: self.relax.ShapeExpr(dims),
            "guarded": self._guarded,
        }

    def _guarded(self, value: Any, *excess: Any) -> Any:
        """A value, behind a check at run time that some sizes are 0."""
        sizes = self.block.emit(self.relax.ShapeExpr(excess))
        self.block.match_cast(sizes, self.relax.ShapeType([0] * len(excess)))
        return value

    def _item(self, source: Any, index: int) -> Any:
        """An element of a tuple, which Relax wants bound to a variable first."""
        return self.relax.TupleGetItem(self.block.normalize(source), index)

    def _operator(self, name: str) -> Any:
        try:
            return reduce(getattr, name.split("."), self.relax.op)
        except AttributeError:
            raise UnsupportedOperator(f"TVM {self.tvm.__version__} has no operator relax.op.{name}") from None

    def _output(self, name: str) -> Any:
        """Graph outputs must be bound inside the function: an input or weight that is one gets a binding of its own."""
        value = self.value(name)
        produced = any(name in node.outputs for node in self.graph.nodes)
        return value if produced else self.block.emit_output(value)


def _is_fixed(dim: Any) -> bool:
    return isinstance(getattr(dim, "value", None), int)
