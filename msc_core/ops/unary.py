"""Functions of each element alone."""

from __future__ import annotations

import math
from typing import Any

from msc_core.ir import Tensor
from msc_core.ops.arithmetic import with_kernel
from msc_core.ops.derived import derived
from msc_core.ops.dtypes import kind, operand, promote, scalar
from msc_core.ops.op import Bound, Call, Emit, Op, call


def as_float(x: Tensor) -> Any:
    """An operand as torch's mathematical functions take it: integers as float32."""
    return operand(x, promote(x, floating=True))


def unary(
    name: str,
    onnx: str | Emit,
    relax: str | Emit,
    torch: str = "",
    *,
    integers: str = "float",
    names: str = "",
    msc: str | None = None,
    **others: Any,
) -> Op:
    """A row for a function of one tensor.

    `integers` says what it does to integers: "float" (they become floats first), "keep" (it takes them) or "same" (it
    changes nothing). `names` are ATen's, by default the row's.
    """

    def importer(x: Tensor) -> Any:
        if kind(x.dtype) == 2 or integers == "keep":
            return call(name, x)
        return x if integers == "same" else call(name, as_float(x))

    def to_onnx(b: Bound) -> Call:
        assert isinstance(onnx, str)
        return with_kernel(onnx, *b.x, dtype=b.input(0).dtype)

    defaults = {
        "aten": {f"{n}.default": lambda self: importer(self) for n in (names or name).split()},
        "from_onnx": {onnx: lambda n: importer(n.tensor(0))} if isinstance(onnx, str) else {},
        "from_relax": {relax: lambda n: importer(n.tensor(0))} if isinstance(relax, str) else {},
    }
    return Op(
        name,
        axes="... -> ...",
        torch=lambda b: call(torch or f"torch.{name}", *b.x),
        onnx=to_onnx if isinstance(onnx, str) else onnx,
        relax=relax if callable(relax) else lambda b: call(relax, *b.x),
        msc=(relax if isinstance(relax, str) else "") if msc is None else msc,
        **defaults | others,
    )


def expanded(name: str, expand: Any, torch: str = "", **others: Any) -> Op:
    """A row that only torch has; `expand` says it in other rows."""
    return unary(name, derived(expand, "onnx"), derived(expand, "relax"), torch, **others)


def number(b: Bound, value: float) -> Any:
    """A constant in the dtype of a node's input."""
    return scalar(value, b.input(0).dtype)


def expm1(b: Bound) -> Call:
    """`tanh(x / 2) * (exp(x) + 1)`, which is precise near 0."""
    (x,) = b.x
    half = call("tanh", call("multiply", x, number(b, 0.5)))
    return call("multiply", half, call("add", call("exp", x), number(b, 1)))


def log1p(b: Bound) -> Call:
    """Kahan's formula, which is precise near 0: the error of `1 + x` is divided out."""
    (x,) = b.x
    total = call("add", x, number(b, 1))
    rest = call("subtract", total, number(b, 1))
    log = call("log", total)
    near = call("multiply", log, call("divide", x, rest))
    found = call("where", call("equal", total, x), log, near)
    return call("where", call("equal", rest, number(b, 0)), x, found)


def log_of_base(base: float) -> Any:
    """The logarithm to another base than e."""
    return lambda b: call("multiply", call("log", *b.x), number(b, 1 / math.log(base)))


def trunc(b: Bound) -> Call:
    """Towards zero."""
    (x,) = b.x
    return call("where", call("less", x, number(b, 0)), call("ceil", x), call("floor", x))


UNARY = [
    unary("abs", "Abs", "abs", integers="keep", names="abs absolute"),
    unary("negative", "Neg", "negative", "torch.neg", integers="keep", names="neg negative"),
    unary("sign", "Sign", "sign", integers="keep", names="sign sgn"),
    unary("ceil", "Ceil", "ceil", integers="same"),
    unary("floor", "Floor", "floor", integers="same"),
    unary("trunc", derived(trunc, "onnx"), "trunc", integers="same", names="trunc fix"),
    unary("exp", "Exp", "exp"),
    expanded("expm1", expm1, names="expm1 special_expm1"),
    unary("log", "Log", "log"),
    expanded("log1p", log1p, names="log1p special_log1p"),
    expanded("log2", log_of_base(2)),
    expanded("log10", log_of_base(10)),
    unary("sqrt", "Sqrt", "sqrt"),
    unary("rsqrt", lambda b: call("Reciprocal", call("Sqrt", *b.x)), "rsqrt"),
    unary("square", lambda b: with_kernel("Mul", b.x[0], b.x[0], dtype=b.input(0).dtype), "square", integers="keep"),
    unary("reciprocal", "Reciprocal", lambda b: call("divide", number(b, 1), *b.x)),
    unary("sin", "Sin", "sin"),
    unary("cos", "Cos", "cos"),
    unary("tan", "Tan", "tan"),
    unary("asin", "Asin", "asin", names="asin arcsin"),
    unary("acos", "Acos", "acos", names="acos arccos"),
    unary("atan", "Atan", "atan", names="atan arctan"),
    unary("sinh", "Sinh", "sinh"),
    unary("cosh", "Cosh", "cosh"),
    unary("asinh", "Asinh", "asinh", names="asinh arcsinh"),
    unary("acosh", "Acosh", "acosh", names="acosh arccosh"),
    unary("atanh", "Atanh", "atanh", names="atanh arctanh"),
    unary("erf", "Erf", "erf", names="erf special_erf"),
    unary("sigmoid", "Sigmoid", "sigmoid", names="sigmoid special_expit"),
    unary("tanh", "Tanh", "tanh"),
]
