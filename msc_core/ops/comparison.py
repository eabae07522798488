"""Comparisons, logic, selection and bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from msc_core.errors import UnsupportedOperator
from msc_core.ir import Tensor
from msc_core.ops.arithmetic import NO_SHORT, WIDER, Operand, binary, combine, from_relax, overloads, plain, with_kernel
from msc_core.ops.derived import derived
from msc_core.ops.dtypes import cast, kind, operand, promote, scalar
from msc_core.ops.op import Bound, Call, DType, Emit, Importer, Op, Source, call
from msc_core.ops.unary import unary


def truth(x: Operand) -> Any:
    """An operand as a boolean: whether it is not zero."""
    if not isinstance(x, Tensor):
        return scalar(bool(x), "bool")
    return x if x.dtype == "bool" else call("not_equal", x, scalar(0, x.dtype))


def comparison(name: str, torch: str, onnx: str, names: str, negated: bool = False) -> Op:
    """A row for a comparison, whose result is boolean. With `negated`, ONNX only has its opposite."""

    def to_onnx(b: Bound) -> Call:
        dtype = b.input(0).dtype
        lacks = ("bfloat16",) if onnx == "Equal" else ("bfloat16", "bool")
        found = with_kernel(onnx, *b.x, dtype=dtype, lacks=lacks, back=False)
        return call("Not", found) if negated else found

    def to_relax(b: Bound) -> Call:
        # TVM compares booleans as floats, which LLVM refuses.
        return call(name, *(call("astype", x, dtype="int8") if b.input(0).dtype == "bool" else x for x in b.x))

    aten = " ".join(f"{n}.Tensor {n}.Scalar" for n in names.split())
    return binary(
        name, torch, to_onnx, to_relax, overloads(aten, plain(name)),
        {} if negated else {onnx: lambda n: call(name, n.tensor(0), n.tensor(1))}, dtype="bool",
    )  # fmt: skip


def logical(name: str, onnx: str) -> Op:
    """A row for a function of two booleans."""
    return binary(
        name, f"torch.{name}", lambda b: call(onnx, *b.x), name,
        {f"{name}.default": lambda self, other: call(name, truth(self), truth(other))},
        {onnx: lambda n: call(name, n.tensor(0), n.tensor(1))}, dtype="bool",
    )  # fmt: skip


def bitwise(name: str, onnx: str, sign: str) -> Op:
    """A row for a function of two integers, bit by bit; of booleans it is a logical one."""

    def importer(self: Operand, other: Operand) -> Call:
        dtype = promote(self, other)
        row = name.replace("bitwise", "logical") if dtype == "bool" else name
        return call(row, operand(self, dtype), operand(other, dtype))

    names = [f"{name}.{kind}" for kind in ("Tensor", "Scalar", "Scalar_Tensor")]
    names += [f"__{sign}__.Tensor", f"__{sign}__.Scalar"]
    return binary(
        name, f"torch.{name}", onnx, name, dict.fromkeys(names, importer),
        from_relax={name: lambda n: importer(n.get(0), n.get(1))},
    )  # fmt: skip


def shift(name: str, torch: str, sign: str, rounded: str) -> Op:
    """A row for a shift of bits, by less than none or more than all of which nothing but the sign is left.

    Elsewhere that is undefined, and ONNX only shifts unsigned integers, so other targets multiply or divide.
    """

    def expand(b: Bound) -> Any:
        dtype, zero = b.input(0).dtype, scalar(0, "int64")
        x, count = (cast(v, "int64") for v in (b.input(0), b.input(1)))
        inside = call("less", count, scalar(min(8 * np.dtype(dtype).itemsize, 63), "int64"))
        valid = call("logical_and", call("greater_equal", count, zero), inside)
        shifted = call(rounded, x, call("power", scalar(2, "int64"), call("where", valid, count, zero)))
        left = zero if name == "left_shift" else call("where", call("less", x, zero), scalar(-1, "int64"), zero)
        found = call("where", valid, shifted, left)
        return cast(found, dtype, "int64")

    def said(target: str, word: Callable[[Bound], Call]) -> Emit:
        return lambda b: word(b) if b.input(0).dtype == "uint64" else derived(expand, target)(b)

    names = [f"{torch}.{kind}" for kind in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")]
    names += [f"__{sign}__.Tensor", f"__{sign}__.Scalar"]
    direction = name.removesuffix("_shift").upper()
    return binary(
        name, f"torch.{torch}", said("onnx", lambda b: call("BitShift", *b.x, direction=direction)),
        said("relax", lambda b: call(name, *b.x)), dict.fromkeys(names, plain(name)), from_relax=from_relax(name),
    )  # fmt: skip


def bit_shift_from_onnx(n: Source) -> Call:
    """`BitShift` in either direction."""
    return call(f"{str(n.attr('direction')).lower()}_shift", n.tensor(0), n.tensor(1))


def not_from_aten(self: Tensor) -> Call:
    """`bitwise_not`, of booleans a logical one."""
    return call("logical_not" if self.dtype == "bool" else "bitwise_not", self)


def where_to_onnx(b: Bound) -> Call:
    """`Where`, which ONNX Runtime lacks for booleans and short integers."""
    condition, x, y = b.x
    dtype = b.input(1).dtype
    if dtype == "bool":
        return call("Or", call("And", condition, x), call("And", call("Not", condition), y))
    if dtype not in NO_SHORT:
        return call("Where", condition, x, y)
    wide = [call("Cast", v, to=DType(WIDER[dtype])) for v in (x, y)]
    return call("Cast", call("Where", condition, *wide), to=DType(dtype))


def where(condition: Tensor, a: Operand, b: Operand) -> Call:
    """A selection between operands of any dtypes."""
    dtype = promote(a, b)
    return call("where", truth(condition), operand(a, dtype), operand(b, dtype))


def masked_fill(self: Tensor, mask: Tensor, value: Operand) -> Call:
    """`self`, or where the mask is true a value of its dtype."""
    return call("where", mask, operand(value, self.dtype), self)


def is_close(self: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Call:
    """`isclose`: equal, or finite and close."""
    dtype = self.dtype
    if kind(dtype) < 2 or equal_nan:
        raise UnsupportedOperator(f"isclose of {dtype} with equal_nan={equal_nan}")
    room = call("add", call("multiply", call("abs", other), scalar(rtol, dtype)), scalar(atol, dtype))
    distance = call("abs", call("subtract", self, other))
    close = call("logical_and", call("isfinite", distance), call("less_equal", distance, room))
    return call("logical_or", call("equal", self, other), close)


def xlogy(self: Operand, other: Operand) -> Call:
    """`x * log(y)`, which is 0 where `x` is, unless `y` is not a number."""
    dtype = promote(self, other, floating=True)
    x, y = operand(self, dtype), operand(other, dtype)
    zero = scalar(0, dtype)
    found = call("where", call("equal", x, zero), zero, call("multiply", x, call("log", y)))
    return call("where", call("isnan", y), y, found)


def logaddexp(a: Tensor, b: Tensor) -> Call:
    """`log(exp(a) + exp(b))` without overflow."""
    dtype = promote(a, b, floating=True)
    x, y = operand(a, dtype), operand(b, dtype)
    rest = call("log1p", call("exp", call("negative", call("abs", call("subtract", x, y)))))
    rest = call("where", call("equal", x, y), scalar(np.log(2), dtype), rest)  # also of two equal infinities
    return call("add", call("maximum", x, y), rest)


def numbers_first(name: str) -> Importer:
    """`fmax` and `fmin`, which take the other operand where one is not a number."""

    def from_aten(self: Tensor, other: Tensor) -> Call:
        dtype = promote(self, other)
        x, y = operand(self, dtype), operand(other, dtype)
        if kind(dtype) < 2:
            return combine(name, self, other)
        found = call("where", call("isnan", y), x, call(name, x, y))
        return call("where", call("isnan", x), y, found)

    return from_aten


COMPARISON = [
    comparison("equal", "torch.eq", "Equal", "eq"),
    comparison("not_equal", "torch.ne", "Equal", "ne not_equal", negated=True),
    comparison("less", "torch.lt", "Less", "lt less"),
    comparison("less_equal", "torch.le", "LessOrEqual", "le less_equal"),
    comparison("greater", "torch.gt", "Greater", "gt greater"),
    comparison("greater_equal", "torch.ge", "GreaterOrEqual", "ge greater_equal"),
    logical("logical_and", "And"),
    logical("logical_or", "Or"),
    logical("logical_xor", "Xor"),
    unary(
        "logical_not", lambda b: call("Not", *b.x), "logical_not", dtype="bool",
        aten={"logical_not.default": lambda self: call("logical_not", truth(self))},
        from_onnx={"Not": lambda n: call("logical_not", n.tensor(0))},
        from_relax={"logical_not": lambda n: call("logical_not", truth(n.tensor(0)))},
    ),
    bitwise("bitwise_and", "BitwiseAnd", "and"),
    bitwise("bitwise_or", "BitwiseOr", "or"),
    bitwise("bitwise_xor", "BitwiseXor", "xor"),
    unary(
        "bitwise_not", "BitwiseNot", "bitwise_not", integers="keep",
        aten={"bitwise_not.default": not_from_aten, "isclose.default": is_close},
        from_relax={"bitwise_not": lambda n: not_from_aten(n.tensor(0))},
    ),
    replace(
        shift("left_shift", "bitwise_left_shift", "lshift", "multiply"), from_onnx={"BitShift": bit_shift_from_onnx}
    ),
    shift("right_shift", "bitwise_right_shift", "rshift", "floor_divide"),
    Op(
        "where",
        axes="..., ..., ... -> ...",
        dtype=lambda b: b.input(1).dtype,
        aten=overloads(
            "where.self where.ScalarSelf where.ScalarOther where.Scalar",
            lambda condition, self, other: where(condition, self, other),
        )
        | overloads("masked_fill.Scalar masked_fill.Tensor", masked_fill)
        | overloads(
            "xlogy.Tensor xlogy.Scalar_Self xlogy.Scalar_Other special_xlogy.default special_xlogy.self_scalar "
            "special_xlogy.other_scalar",
            xlogy,
        )
        | {"logaddexp.default": lambda self, other: logaddexp(self, other),
           "fmax.default": numbers_first("maximum"), "fmin.default": numbers_first("minimum")},
        from_onnx={"Where": lambda n: call("where", n.tensor(0), n.tensor(1), n.tensor(2))},
        from_relax={"where": lambda n: where(n.tensor(0), n.get(1), n.get(2)),
                    "log_add_exp": lambda n: logaddexp(n.tensor(0), n.tensor(1)),
                    "masked_fill": lambda n: masked_fill(n.tensor(0), n.tensor(1), n.get(2))},
        torch=lambda b: call("torch.where", *b.x),
        onnx=where_to_onnx,
        relax=lambda b: call("where", *b.x),
        msc="where",
    ),
]  # fmt: skip
