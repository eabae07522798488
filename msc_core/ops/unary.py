"""Functions of each element alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from msc_core.ir import Tensor
from msc_core.ops.arithmetic import in_torch, overloads, with_kernel
from msc_core.ops.derived import derived
from msc_core.ops.dtypes import kind, operand, promote, scalar
from msc_core.ops.op import Bound, Call, DType, Emit, Importer, Op, Source, call


def as_float(x: Tensor) -> Any:
    """An operand as torch's mathematical functions take it: integers as float32."""
    return operand(x, promote(x, floating=True))


def unary(
    name: str,
    onnx: str | Emit,
    relax: str | Emit,
    torch: str | Emit = "",
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
        torch=torch if callable(torch) else lambda b: in_torch(torch or f"torch.{name}", *b.x, dtype=b.input(0).dtype),
        onnx=to_onnx if isinstance(onnx, str) else onnx,
        relax=relax if callable(relax) else lambda b: call(relax, *b.x),
        msc=(relax if isinstance(relax, str) else "") if msc is None else msc,
        **defaults | others,
    )


def expanded(name: str, expand: Any, torch: str | Emit = "", **others: Any) -> Op:
    """A row that only torch has; `expand` says it in other rows."""
    return unary(name, derived(expand, "onnx"), derived(expand, "relax"), torch, **others)


def number(b: Bound, value: float) -> Any:
    """A constant in the dtype of a node's input."""
    return scalar(value, b.input(0).dtype)


def expm1(b: Bound) -> Call:
    """Kahan's formula, which is precise near 0: the error of `exp(x)` is divided out."""
    (x,) = b.x
    one = number(b, 1)
    power = call("exp", x)
    rest = call("subtract", power, one)
    near = call("divide", call("multiply", rest, x), call("log", power))
    near = call("where", call("equal", power, one), x, near)
    return call("where", call("less", call("abs", x), one), near, rest)


def log1p(b: Bound) -> Call:
    """`2 * atanh(x / (x + 2))`, as a series near 0. (Kahan's formula does not survive TVM's simplifier.)"""
    (x,) = b.x
    ratio = call("divide", x, call("add", x, number(b, 2)))
    squared = call("multiply", ratio, ratio)
    series: Any = number(b, 2 / 15)
    for odd in range(13, 0, -2):
        series = call("add", call("multiply", series, squared), number(b, 2 / odd))
    near = call("less", call("abs", x), number(b, 0.1))
    return call("where", near, call("multiply", series, ratio), call("log", call("add", x, number(b, 1))))


def is_finite(b: Bound) -> Call:
    """Neither infinite nor not a number."""
    return call("logical_not", call("logical_or", call("isnan", *b.x), call("isinf", *b.x)))


def is_inf_from_onnx(n: Source) -> Call:
    """`IsInf`, maybe of one sign only."""
    x = n.tensor(0)
    wanted = [sign for sign, name in ((1, "detect_positive"), (-1, "detect_negative")) if n.attr(name, 1)]
    if len(wanted) == 2:
        return call("isinf", x)
    if not wanted:
        return call("logical_and", call("isnan", x), call("isinf", x))  # never
    return call("equal", x, scalar(wanted[0] * math.inf, x.dtype))


def classified(name: str, integers: str) -> Importer:
    """`isnan` and the like, which a comparison with itself answers for integers."""
    return lambda self: call(name, self) if kind(self.dtype) == 2 else call(integers, self, self)


def predicate(name: str, onnx: str, integers: str, from_onnx: Mapping[str, Importer] | None = None) -> Op:
    """A row that asks something about floats."""

    def to_onnx(b: Bound) -> Call:
        x = b.input(0)
        return call(onnx, x if x.dtype in ("float32", "float64") else call("Cast", x, to=DType("float32")))

    importer = classified(name, integers)
    return unary(
        name, to_onnx, name, dtype="bool", aten={f"{name}.default": importer},
        from_onnx=from_onnx or {onnx: lambda n: importer(n.tensor(0))},
    )  # fmt: skip


def round_from_aten(self: Tensor, decimals: int = 0) -> Any:
    """`round`, maybe to some decimals."""
    if kind(self.dtype) < 2:
        return self
    if decimals == 0:
        return call("round", self)
    there, back = ("multiply", "divide") if decimals > 0 else ("divide", "multiply")
    factor = scalar(10.0 ** abs(decimals), self.dtype)
    return call(back, call("round", call(there, self, factor)), factor)


def nan_to_num(self: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Any:
    """`nan_to_num`: infinities become the largest numbers unless it is said otherwise."""
    if kind(self.dtype) < 2:
        return self
    largest = float(np.finfo(self.dtype).max if self.dtype != "bfloat16" else 3.3895314e38)
    found = call("where", call("isnan", self), scalar(nan or 0.0, self.dtype), self)
    for infinity, value in ((math.inf, posinf), (-math.inf, neginf)):
        value = math.copysign(largest, infinity) if value is None else value
        found = call("where", call("equal", self, scalar(infinity, self.dtype)), scalar(value, self.dtype), found)
    return found


def times(factor: float) -> Importer:
    """A multiplication by a fixed number, as `deg2rad` is."""
    return lambda self: call("multiply", as_float(self), scalar(factor, promote(self, floating=True)))


def complement(self: Tensor) -> Call:
    """`erfc`."""
    return call("subtract", scalar(1, promote(self, floating=True)), call("erf", as_float(self)))


def logit(self: Tensor, eps: float | None = None) -> Call:
    """`log(x / (1 - x))`, of `x` kept away from 0 and 1 by `eps`."""
    dtype = promote(self, floating=True)
    x = as_float(self) if eps is None else call("clip", as_float(self), min=float(eps), max=1 - float(eps))
    return call("log", call("divide", x, call("subtract", scalar(1, dtype), x)))


def erfinv(b: Bound) -> Call:
    """Giles' polynomials, to the precision of float32."""
    (x,) = b.x
    one = number(b, 1)
    w = call("negative", call("log", call("multiply", call("subtract", one, x), call("add", one, x))))
    near = polynomial(call("subtract", w, number(b, 2.5)), ERFINV_NEAR, b)
    far = polynomial(call("subtract", call("sqrt", w), number(b, 3)), ERFINV_FAR, b)
    found = call("multiply", call("where", call("less", w, number(b, 5)), near, far), x)
    edge = call("multiply", x, number(b, math.inf))
    return call("where", call("equal", call("abs", x), one), edge, found)


def polynomial(x: Any, factors: tuple[float, ...], b: Bound) -> Any:
    """By Horner's rule, the highest factor first."""
    total: Any = number(b, factors[0])
    for factor in factors[1:]:
        total = call("add", call("multiply", total, x), number(b, factor))
    return total


ERFINV_NEAR = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
               -0.00417768164, 0.246640727, 1.50140941)  # fmt: skip
ERFINV_FAR = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
              0.00943887047, 1.00167406, 2.83297682)  # fmt: skip


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
    unary(
        "round", "Round", "round", integers="same",
        aten=overloads("round.default round.decimals special_round.default", round_from_aten),
    ),
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
    expanded("erfinv", erfinv, names="erfinv special_erfinv"),
    predicate("isnan", "IsNaN", "not_equal"),
    predicate("isinf", "IsInf", "not_equal", from_onnx={"IsInf": is_inf_from_onnx}),
    unary(
        "isfinite", derived(is_finite, "onnx"), "isfinite", dtype="bool",
        aten={"isfinite.default": classified("isfinite", "equal")},
    ),
    Op(
        "identity",
        axes="... -> ...",
        aten={"nan_to_num.default": nan_to_num, "deg2rad.default": times(math.pi / 180),
              **overloads("logit.default special_logit.default", logit),
              **overloads("erfc.default special_erfc.default", complement),
              "frac.default": lambda self: call("subtract", self, call("trunc", self)),
              "rad2deg.default": times(180 / math.pi), "positive.default": lambda self: self},
        from_onnx={"Identity": lambda n: n.tensor(0)},
        torch=lambda b: call("torch.clone", *b.x),
        onnx=lambda b: call("Identity", *b.x),
        relax=lambda b: call("identity", *b.x),
    ),
]  # fmt: skip
