"""TVM Relax -> `MSCGraph`: each call is handed to the row that claims its operator; variables keep their names.

Functions that `main` calls are imported in place, symbolic dimensions become our symbols, constants become weights
named after the binding that reads them. Kernels (`call_tir`) and external code are refused, but for the few kernels
that TVM's own front ends write (`relax_kernels.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from msc_core import dims
from msc_core.codegen.relax import import_tvm
from msc_core.dims import Dim
from msc_core.errors import InvalidGraph, MscError, UnsupportedOperator, nearest
from msc_core.frontends.builder import GraphBuilder
from msc_core.frontends.layouts import standard_layout
from msc_core.frontends.onnx_inputs import identifier
from msc_core.frontends.relax_kernels import Meaning, meaning
from msc_core.ir import Array, MSCGraph, Tensor, unique
from msc_core.ops import OPS, Source, call

if TYPE_CHECKING:
    import tvm

Params = Mapping[str, Any] | Sequence[Any]

RELAX: Mapping[str, Callable[[Source], Any]] = {
    op: importer for row in OPS.values() for op, importer in row.from_relax.items()
}
MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)  # from an importer: a bad argument
IDENTITIES = {"annotate.smooth", "builtin.stop_lift_params", "hint_on_device", "to_vdevice", "wrap_param"}
MADE_UP = re.compile(r"(lv|gv)\d*")  # names that TVM gives to variables which have none
MAX_DEPTH = 64  # of functions that call functions


def from_relax(mod: tvm.IRModule, *, entry: str = "main", params: Params | None = None, name: str = "") -> MSCGraph:
    """The graph of a module's function `entry`, whose variables' names become the tensors' names.

    `params` are the values of the parameters behind the inputs (where the function's attribute `num_input` says that
    there are some): arrays by name, or in order. They become weights under those names, as constants do under the name
    of the binding that reads them.

    Raises `UnsupportedOperator` naming the binding and the operator that cannot be imported, and `InvalidGraph` if the
    module breaks Relax's rules.
    """
    relax = import_tvm().relax
    functions = {var.name_hint: var for var in mod.get_global_vars()}
    if entry not in functions or not isinstance(mod[functions[entry]], relax.Function):
        raise MscError(f"the module has no Relax function {entry!r}{nearest(entry, functions)}")
    importer = _Importer(relax.transform.Normalize()(mod))
    return importer.graph(entry, params if params is not None else {}, name or entry)


class _Importer:
    """Walks one function. `values` maps variables and constants, by identity, to tensors, tuples or plain values."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self.tvm = import_tvm()
        self.relax = self.tvm.relax
        self.mod = mod
        self.build = GraphBuilder()
        self.values: dict[int, Any] = {}
        self.symbols: dict[int, Dim] = {}
        self.computed: dict[str, Array] = {}  # tensors that hold dimensions
        self.names: set[str] = set()
        self.items: dict[tuple[int, int], str] = {}  # (tuple variable, index) -> the variable that the item is bound to
        self.results: set[int] = set()  # variables that main returns
        self.active: list[str] = []

    def graph(self, entry: str, params: Params, name: str) -> MSCGraph:
        """The graph of one function."""
        function = self.mod[entry]
        self._look_ahead(function)
        self.build.reserve(self.names, self.names)
        inputs = self._parameters(function, params)
        self.results = {var.id_ for var in self._returned(function.body)}
        self.active = [entry]
        outputs = _flat(self._expression(function.body, ""))
        for value in outputs:
            if not isinstance(value, Tensor):
                raise UnsupportedOperator(f"{entry} returns {value!r}; only tensors can be outputs")
        return self.build.graph(name, inputs, [t.name for t in outputs])

    def _look_ahead(self, function: Any) -> None:
        """Learn the names of all variables, which none made here may take, and how items of tuples are named."""
        self.names |= {p.name for p in function.params}

        def visit(expression: Any) -> None:
            if isinstance(expression, self.relax.expr.Binding):
                self.names.add(expression.var.name)
                value = expression.value
                if isinstance(value, self.relax.TupleGetItem) and isinstance(value.tuple_value, self.tvm.ir.Var):
                    self.items.setdefault((value.tuple_value.id_, value.index), expression.var.name)

        for block in function.body.blocks:
            for binding in block.bindings:
                visit(binding)

    def _returned(self, body: Any) -> list[Any]:
        last = body.body if isinstance(body, self.relax.SeqExpr) else body
        found = last.fields if isinstance(last, self.relax.Tuple) else [last]
        if isinstance(last, self.tvm.ir.Var) and isinstance(body, self.relax.SeqExpr):
            for block in body.blocks:
                for binding in block.bindings:
                    if binding.var.same_as(last) and isinstance(binding.value, self.relax.Tuple):
                        found = binding.value.fields
        return [var for var in found if isinstance(var, self.tvm.ir.Var)]

    # Parameters

    def _parameters(self, function: Any, params: Params) -> list[str]:
        """Bind the parameters: the first are inputs, those behind `num_input` are weights."""
        attrs = function.attrs or {}
        given = list(function.params)
        if not params and "params" in attrs:
            params = list(attrs["params"])
        if not isinstance(params, Mapping):
            late = given[int(attrs["num_input"]) if "num_input" in attrs else len(given) - len(params) :]
            if len(late) != len(params):
                raise MscError(f"{len(params)} params given; the module has {len(late)} behind its inputs")
            params = {var.name: value for var, value in zip(late, params, strict=True)}
        if unknown := params.keys() - {var.name for var in given}:
            word = sorted(unknown)[0]
            raise MscError(f"params has {word!r}, which is no parameter{nearest(word, (v.name for v in given))}")
        count = int(attrs["num_input"]) if "num_input" in attrs else len(given)
        if missing := [var.name for var in given[count:] if var.name not in params]:
            raise MscError(f"parameter {missing[0]!r} has no value; give it: params={{{missing[0]!r}: array, ...}}")
        inputs: list[str] = []
        for var in given:
            if var.name not in params:
                self.values[var.id_] = self._input(var.name, var.ty, inputs)
        for var in given:
            if var.name in params:
                array = _numpy(params[var.name])
                tensor = self.build.weight(unique(var.name, self.build.tensors), array)
                self._agree(var.ty, tensor, f"parameter {var.name!r}")
                self.values[var.id_] = tensor
        return inputs

    def _input(self, name: str, type_: Any, inputs: list[str]) -> Any:
        if isinstance(type_, self.relax.TupleType):
            return tuple(self._input(f"{name}.{i}", part, inputs) for i, part in enumerate(type_.fields))
        if isinstance(type_, self.relax.ShapeType) and type_.values is not None:
            return tuple(self._dim(d, new=True) for d in type_.values)
        if not isinstance(type_, self.relax.TensorType):
            raise UnsupportedOperator(f"input {name!r} is a {type_}; only tensors can be inputs")
        if not isinstance(type_.shape, self.relax.ShapeExpr):
            raise UnsupportedOperator(f"input {name!r} has no shape; give it one in the module, symbolic if need be")
        shape = tuple(self._dim(d, new=True) for d in type_.shape.values)
        tensor = self.build.add(Tensor(unique(name, self.build.tensors), shape, str(type_.dtype)))
        inputs.append(tensor.name)
        return tensor

    # Dimensions

    def _dim(self, expression: Any, new: bool = False) -> Dim:
        """A dimension; with `new`, variables that are not known yet become symbols."""
        kind = type(expression).__name__
        if isinstance(expression, int):
            return expression
        if kind == "IntImm":
            return int(expression.value)
        if kind == "Var":
            if expression.id_ not in self.symbols:
                if not new:
                    raise UnsupportedOperator(f"size {expression.name!r} is not a size of any input")
                taken = set(dims.symbols(self.symbols.values()))
                self.symbols[expression.id_] = unique(identifier(expression.name), taken)
            return self.symbols[expression.id_]
        if kind == "Cast":
            return self._dim(expression.value, new)
        if kind not in DIMENSIONS:
            raise UnsupportedOperator(f"the dimension {expression} is a {kind}; known: {', '.join(DIMENSIONS)}")
        return DIMENSIONS[kind](self._dim(expression.a, new), self._dim(expression.b, new))

    def _agree(self, type_: Any, value: Any, where: str, bind: bool = True) -> None:
        """Check a value against a type of the module. With `bind`, its new variables stand for the value's sizes."""
        if isinstance(type_, self.relax.TupleType) and isinstance(value, tuple):
            for part, field in zip(value, type_.fields, strict=False):
                self._agree(field, part, where, bind)
        if isinstance(type_, self.relax.ShapeType) and isinstance(value, tuple) and type_.values is not None:
            fixed = [isinstance(e, self.tvm.tirx.IntImm) for e in type_.values]
            if not (bind and all(fixed) and dims.symbols(value)):  # else it is a check that is made at run time
                self._agree_shape(type_.values, value, where, bind)
        if not isinstance(type_, self.relax.TensorType) or not isinstance(value, Tensor):
            return
        if type_.dtype and str(type_.dtype) not in ("void", value.dtype):
            raise UnsupportedOperator(f"{where}: its dtype is {value.dtype} here and {type_.dtype} in the module")
        if isinstance(type_.shape, self.relax.ShapeExpr):
            self._agree_shape(type_.shape.values, value.shape, where, bind)

    def _agree_shape(self, expected: Any, found: tuple[Dim, ...], where: str, bind: bool) -> None:
        message = f"{where}: its shape is {list(found)} here and {list(expected)} in the module"
        if len(expected) != len(found):
            raise UnsupportedOperator(message)
        for e, f in zip(expected, found, strict=True):
            if bind and type(e).__name__ == "Var" and e.id_ not in self.symbols:
                self.symbols[e.id_] = f
        for e, f in zip(expected, found, strict=True):
            size = self._dim(e) if bind or isinstance(e, self.tvm.tirx.IntImm) else f
            if size != f and (bind or isinstance(f, int)):
                raise UnsupportedOperator(message)

    # Bindings

    def _binding(self, binding: Any, prefix: str, rename: Mapping[int, str]) -> None:
        var = binding.var
        name = rename.get(var.id_) or prefix + (var.name or "value")
        if isinstance(binding.value, self.relax.Function):
            self.values[var.id_] = binding.value
            return
        value = self._expression(binding.value, name, var)
        cast = isinstance(binding, self.relax.MatchCast)
        self._agree(binding.ty if cast else var.ty, value, f"binding {name!r}", bind=cast)
        renamed = isinstance(value, Tensor) and value.name != name and not MADE_UP.fullmatch(name)
        if renamed and var.id_ in self.results and name not in self.build.tensors:
            value = self.build.emit(call("identity", value), name, results=[name])
        self.values[var.id_] = value

    def _expression(self, expression: Any, name: str, var: Any = None) -> Any:
        """The value of an expression: tensors, functions, plain values or tuples of these."""
        relax, ir = self.relax, self.tvm.ir
        if isinstance(expression, relax.SeqExpr):
            return self._sequence(expression, "", {})
        if isinstance(expression, ir.Var):
            return self.values[expression.id_] if expression.id_ in self.values else self._dim(expression)
        if isinstance(expression, ir.GenericConst):
            return self._constant(expression, name)
        if isinstance(expression, relax.ShapeExpr):
            return tuple(self._dim(d) for d in expression.values)
        if isinstance(expression, relax.Tuple):
            return tuple(self._expression(part, f"{name}.{i}") for i, part in enumerate(expression.fields))
        if isinstance(expression, relax.TupleGetItem):
            return self._item(self._expression(expression.tuple_value, name), expression.index, name)
        if isinstance(expression, relax.If):
            return self._branch(expression, name)
        if isinstance(expression, relax.Call):
            return self._call(expression, name, var)
        if isinstance(expression, relax.GlobalVar):
            return self.mod[expression]
        if isinstance(expression, (relax.Function, relax.ExternFunc)):
            return expression
        kind = type(expression).__name__
        if kind in ("IntImm", "FloatImm", "StringImm"):
            return bool(expression.value) if str(expression.ty) == "bool" else expression.value
        return self._dim(expression)

    def _sequence(self, body: Any, prefix: str, rename: Mapping[int, str]) -> Any:
        for block in body.blocks:
            for binding in block.bindings:
                self._binding(binding, prefix, rename)
        return self._expression(body.body, prefix)

    def _item(self, value: Any, index: int, name: str) -> Any:
        if not isinstance(value, tuple) or index >= len(value) or value[index] is None:
            raise UnsupportedOperator(f"binding {name!r} reads item {index} of a tuple; that output is not supported")
        return value[index]

    def _constant(self, constant: Any, name: str) -> Tensor:
        """A weight; one constant that several bindings read stays one."""
        if constant.id_ not in self.values:
            self.values[constant.id_] = self.build.constant(unique(name, self.names), _numpy(constant.value))
        tensor: Tensor = self.values[constant.id_]
        return tensor

    def _branch(self, expression: Any, name: str) -> Any:
        condition = self._expression(expression.cond, name)
        known = self.known(condition) if isinstance(condition, Tensor) else np.asarray(condition)
        if known is None or known.dtype == object:
            raise UnsupportedOperator(f"binding {name!r} is an If on a computed condition; a graph has no control flow")
        return self._expression(expression.true_branch if known.all() else expression.false_branch, name)

    # Calls

    def _call(self, expression: Any, name: str, var: Any) -> Any:
        op = expression.op
        if not isinstance(op, self.tvm.ir.Op):
            return self._inline(op, expression, name)
        kind = op.name.removeprefix("relax.")
        where = f"binding {name!r} ({kind})"
        arguments, attrs = list(expression.args), self._attributes(expression.attrs)
        if kind == "call_tir" and (found := self._kernel(expression)) is not None:
            kind, attrs = found
            arguments = list(expression.args[1].fields)
        if kind.startswith(("call_", "invoke_", "vm.", "builtin.")) and kind not in IDENTITIES:
            raise UnsupportedOperator(f"{where}: {_lowered(kind, expression)}")
        many = isinstance(expression.ty, self.relax.TupleType)
        results = [name]
        if many:
            results = [
                self.items.get((var.id_, i), "") if var is not None else "" for i in range(len(expression.ty.fields))
            ]
            if results[0] and (results[0].endswith(".0") or not any(results[1:])):
                name = results[0].removesuffix(".0")
        words = [str(info.name) for info in op.arguments or ()]
        words += [str(i) for i in range(len(words), len(arguments))]
        x = tuple(self._expression(arg, f"{name}.{word}") for arg, word in zip(arguments, words, strict=False))
        try:
            found = self._import(kind, x, attrs, results, name)
        except MscError as error:
            raise type(error)(f"{where}: {error}") from error
        except MALFORMED as error:
            reason = f"{type(error).__name__}: {error}"
            raise InvalidGraph(f"{where}: its arguments or attributes are not valid: {reason}") from error
        return (found,) if many and not isinstance(found, tuple) else found

    def _kernel(self, expression: Any) -> Meaning | None:
        """What a call of one of the module's kernels is as an operator."""
        target, given = expression.args[0], expression.args[1]
        if not isinstance(target, self.relax.GlobalVar) or not isinstance(given, self.relax.Tuple):
            return None
        return meaning(self.mod[target], target.name_hint, list(given.fields))

    def _import(self, kind: str, x: tuple[Any, ...], attrs: Mapping[str, Any], results: list[str], name: str) -> Any:
        """Let the row that claims the operator say it in our words."""
        if kind in IDENTITIES:
            return x[0]
        if kind in ("shape_of", "tensor_to_shape", "shape_to_tensor"):
            return self._shapes(kind, x[0], name)
        importer = RELAX.get(kind)
        if importer is None:
            raise UnsupportedOperator(
                f"the operator is not in the op table{nearest(kind, RELAX).split(' known')[0].rstrip(';')}"
            )
        x, attrs, back = standard_layout(kind, x, attrs, lambda c, word: self.build.emit(c, f"{name}.{word}"))
        wanted = max((i + 1 for i, result in enumerate(results) if result), default=len(results))
        found = importer(Source(kind, x, attrs, self.known, wanted))
        return self.build.emit(back(found), name, results=results)

    def _shapes(self, kind: str, value: Any, name: str) -> Any:
        """Operators between tensors and shapes."""
        if kind == "shape_of":
            return value.shape
        if kind == "tensor_to_shape":
            known = self.known(value)
            if known is None:
                raise UnsupportedOperator("the shape is computed from the network's inputs; expected sizes")
            return tuple(d if isinstance(d, str) else int(d) for d in known.tolist())
        tensor = self.build.emit(call("sizes", values=value), name, results=[name])
        self.computed[tensor.name] = np.asarray(value, object if dims.symbols(value) else np.int64)
        return tensor

    def known(self, tensor: Tensor) -> Array | None:
        """`Source.known`: the value of a weight, or of a tensor that holds dimensions."""
        found = self.computed.get(tensor.name)
        return self.build.weights.get(tensor.name) if found is None else found

    def _attributes(self, attrs: Any) -> dict[str, Any]:
        """Attributes as plain values."""
        if attrs is None:
            return {}
        if isinstance(attrs, self.tvm.ir.DictAttrs):
            return {key: self._plain(value) for key, value in attrs.items()}
        fields = type(attrs).__tvm_ffi_type_info__.fields
        return {field.name: self._plain(getattr(attrs, field.name)) for field in fields}

    def _plain(self, value: Any) -> Any:
        if value is None or isinstance(value, (bool, int, float, str)):
            return str(value) if isinstance(value, str) else value
        if isinstance(value, (list, tuple, self.tvm.ir.Array)):
            return tuple(self._plain(part) for part in value)
        if isinstance(value, self.tvm.DataType):
            return str(value)
        if isinstance(value, self.tvm.ir.Expr):
            return self._expression(value, "")
        return value

    def _inline(self, callee: Any, expression: Any, name: str) -> Any:
        """Import a function in place, with names of its own behind the name of the binding that calls it."""
        function = self._expression(callee, name)
        if not isinstance(function, self.relax.Function):
            hint = "it is no Relax function; import the module before kernels replace operators (LegalizeOps, BYOC)"
            raise UnsupportedOperator(f"binding {name!r} calls {getattr(callee, 'name_hint', callee)}: {hint}")
        label = str(getattr(callee, "name_hint", None) or getattr(callee, "name", name))
        if label in self.active or len(self.active) > MAX_DEPTH:
            raise UnsupportedOperator(f"binding {name!r} calls {label!r} recursively; a graph has no control flow")
        arguments = [self._expression(arg, f"{name}.{i}") for i, arg in enumerate(expression.args)]
        outer, self.symbols = self.symbols, dict(self.symbols)
        for symbol in self.relax.analysis.defined_symbolic_vars(function):
            self.symbols.pop(symbol.id_, None)
        for var, value in zip(function.params, arguments, strict=True):
            self.values[var.id_] = value
            self._agree(var.ty, value, f"binding {name!r}: argument {var.name!r} of {label!r}")
        self.active.append(label)
        body = function.body
        rename = {body.body.id_: name} if isinstance(body.body, self.tvm.ir.Var) else {}
        found = self._sequence(body, f"{name}.", rename)
        self.active.pop()
        self.symbols = outer
        return found


def _lowered(kind: str, expression: Any) -> str:
    """Why a call of a kernel cannot be imported, and what to do."""
    target = expression.args[0] if len(expression.args) else None
    callee = getattr(target, "name_hint", None) or getattr(target, "global_symbol", None) or target
    return (
        f"it calls {callee!s}, a kernel or external code that says nothing about operators ({kind}); "
        "import the module as it was before LegalizeOps, FuseTIR or BYOC code generation"
    )


def _flat(value: Any) -> list[Any]:
    return [leaf for part in value for leaf in _flat(part)] if isinstance(value, tuple) else [value]


def _numpy(value: Any) -> Array:
    """A copy of a TVM, torch or NumPy array."""
    return np.array(value.numpy() if hasattr(value, "numpy") else value)


DIMENSIONS: Mapping[str, Callable[[Dim, Dim], Dim]] = {
    "Add": dims.add, "Sub": dims.sub, "Mul": dims.mul, "FloorDiv": dims.floordiv, "Div": dims.floordiv,
    "FloorMod": dims.mod, "Mod": dims.mod, "Max": dims.maximum, "Min": dims.minimum,
}  # fmt: skip
