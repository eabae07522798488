"""Functions of two tensors that broadcast: arithmetic with torch's promotion of dtypes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import numpy as np

from msc_core.errors import InvalidGraph, UnsupportedOperator
from msc_core.ir import Tensor
from msc_core.ops.derived import derived
from msc_core.ops.dtypes import cast, kind, operand, promote, scalar
from msc_core.ops.op import Bound, Call, DType, Emit, Importer, Op, Source, call

Operand = Tensor | float | str
OF_BOOLS = {"add": "logical_or", "multiply": "logical_and", "maximum": "logical_or", "minimum": "logical_and"}
WIDER = {"bool": "int32", "int8": "int32", "int16": "int32", "uint8": "int32", "uint16": "int32", "uint32": "int64",
         "bfloat16": "float32"}  # fmt: skip
UNSIGNED = {"uint16": "int32", "uint32": "int64", "uint64": "int64"}
WRAPPING = ("torch.add", "torch.sub", "torch.mul")  # the same for signed numbers
NO_SHORT = ("bfloat16", "int16", "uint16")
SMALL = ("bool", "bfloat16", "int8", "int16", "uint8", "uint16", "uint32")


def combine(name: str, a: Operand, b: Operand, *, floating: bool = False) -> Call:
    """A call of a binary row on operands of any dtypes: they are promoted as torch does it."""
    dtype = promote(a, b, floating=floating)
    if name == "subtract" and dtype == "bool":
        raise UnsupportedOperator("a difference of booleans")
    return call(OF_BOOLS.get(name, name) if dtype == "bool" else name, operand(a, dtype), operand(b, dtype))


def with_kernel(
    op: str, *x: Any, dtype: str, lacks: tuple[str, ...] = SMALL[:2], back: bool = True, **attrs: Any
) -> Call:
    """An ONNX call on operands of `dtype`, through a wider one if ONNX Runtime `lacks` a kernel for it.

    `back` says whether the result has the operands' dtype. What wraps around is the same after a cast back.
    """
    if dtype not in lacks:
        return call(op, *x, **attrs)
    wide = DType(WIDER[dtype])
    operands = [None if v is None else call("Cast", v, to=wide) for v in x]
    result = call(op, *operands, **attrs)
    return call("Cast", result, to=DType(dtype)) if back else result


def in_torch(function: str, *x: Any, dtype: str, back: bool = True, **attrs: Any) -> Call:
    """A torch call on operands of `dtype`, through a wider one for the unsigned integers that torch can only store."""
    if dtype not in UNSIGNED:
        return call(function, *x, **attrs)
    if dtype == "uint64" and function not in WRAPPING:
        raise UnsupportedOperator(f"torch has no {function} of {dtype}")
    operands = [call("torch.Tensor.to", v, DType(UNSIGNED[dtype])) for v in x]
    result = call(function, *operands, **attrs)
    return call("torch.Tensor.to", result, DType(dtype)) if back else result


def binary(
    name: str,
    torch: str,
    onnx: str | Emit,
    relax: str | Emit,
    aten: Mapping[str, Importer],
    from_onnx: Mapping[str, Importer] | None = None,
    *,
    lacks: tuple[str, ...] = SMALL[:2],
    **others: Any,
) -> Op:
    """A row for a function of two tensors of one dtype; `lacks` is as in `with_kernel`."""

    def to_onnx(b: Bound) -> Call:
        assert isinstance(onnx, str)
        return with_kernel(onnx, *b.x, dtype=b.input(0).dtype, lacks=lacks)

    return Op(
        name,
        aten=aten,
        from_onnx={onnx: lambda n: call(name, n.tensor(0), n.tensor(1))}
        if from_onnx is None and isinstance(onnx, str)
        else from_onnx or {},
        torch=lambda b: in_torch(torch, *b.x, dtype=b.input(0).dtype, back=others.get("dtype") != "bool"),
        onnx=to_onnx if isinstance(onnx, str) else onnx,
        relax=relax if callable(relax) else lambda b: call(relax, *b.x),
        **{"axes": "..., ... -> ...", "from_relax": from_relax(name), "msc": name} | others,
    )


def from_relax(name: str, relax: str = "") -> Mapping[str, Importer]:
    """The importer of the Relax operator of that name."""
    return {relax or name: lambda n: combine(name, n.get(0), n.get(1))}


def overloads(names: str, importer: Callable[..., Any]) -> dict[str, Importer]:
    """The same importer under several ATen overloads, separated by blanks."""
    return dict.fromkeys(names.split(), importer)


def scaled(name: str) -> Callable[..., Call]:
    """`aten.add` and `aten.sub`: the second operand is multiplied by `alpha`."""

    def from_aten(self: Operand, other: Operand, alpha: float = 1) -> Call:
        if alpha == 1:
            return combine(name, self, other)
        dtype = promote(self, other)
        if dtype == "bool":
            raise UnsupportedOperator(f"booleans with alpha={alpha}")
        return call(name, operand(self, dtype), call("multiply", operand(other, dtype), scalar(alpha, dtype)))

    return from_aten


def plain(name: str, *, floating: bool = False) -> Callable[..., Call]:
    """An ATen operator of `self` and `other`."""
    return lambda self, other: combine(name, self, other, floating=floating)


def divide_from_aten(self: Operand, other: Operand, rounding_mode: str | None = None) -> Call:
    """`aten.div`, which may round down or towards zero; what it does not round is a float."""
    name = {None: "divide", "floor": "floor_divide", "trunc": "trunc_divide"}[rounding_mode]
    return combine(name, self, other, floating=rounding_mode is None)


def divided(b: Bound) -> str:
    """The axes of a division that integers can take: TVM must not divide by the zeros in the padding of an image."""
    return "..., ... -> ..."


def divide_of(n: Source) -> Call:
    """A division that rounds integers towards zero, as ONNX and Relax have it."""
    name = "divide" if kind(n.tensor(0).dtype) == 2 else "trunc_divide"
    return combine(name, n.get(0), n.get(1))


def divide_dtype(b: Bound) -> str:
    """That of the operands, which must be floats."""
    if kind(b.input(0).dtype) < 2:
        raise InvalidGraph(f"{b}: division of {b.input(0).dtype}; integers take floor_divide or trunc_divide")
    return b.input(0).dtype


def is_float(b: Bound) -> bool:
    """Whether a node's operands are floats."""
    return kind(b.input(0).dtype) == 2


def wrong_sign(rest: Any, divisor: Any, zero: Any) -> Call:
    """Where a remainder of truncated division has not the sign of the divisor, and is not zero."""
    signs = call("logical_xor", call("less", rest, zero), call("less", divisor, zero))
    return call("logical_and", call("not_equal", rest, zero), signs)


def floored_mod(b: Bound) -> Call:
    """`mod` of floats out of `fmod`, as torch computes it."""
    x, y = b.input(0), b.input(1)
    rest = call("fmod", x, y)
    return call("where", wrong_sign(rest, y, scalar(0, x.dtype)), call("add", rest, y), rest)


def floored_divide(b: Bound) -> Call:
    """`floor_divide` of floats out of `fmod`, as torch computes it: exact where `floor(x / y)` rounds up."""
    x, y = b.input(0), b.input(1)
    zero, half, one = (scalar(v, x.dtype) for v in (0, 0.5, 1))
    rest = call("fmod", x, y)
    whole = call("divide", call("subtract", x, rest), y)
    whole = call("where", wrong_sign(rest, y, zero), call("subtract", whole, one), whole)
    down = call("floor", whole)
    down = call("where", call("greater", call("subtract", whole, down), half), call("add", down, one), down)
    return call("where", call("equal", y, zero), call("divide", x, y), down)


def floor_divide_to_onnx(b: Bound) -> Any:
    """Of integers: what is left when the remainder is taken away divides evenly, so `Div` rounds nothing."""
    if is_float(b):
        return derived(floored_divide, "onnx")(b)
    x, y = b.x
    return call("Div", call("Sub", x, call("Mod", x, y, fmod=0)), y)


def power_to_relax(b: Bound) -> Any:
    """`power`, which TVM only has for floats: integers up to 2**53 survive in float64."""
    if is_float(b):
        return call("power", *b.x)
    wide = [call("astype", x, dtype="float64") for x in b.x]
    return call("astype", call("power", *wide), dtype=b.input(0).dtype)


def atan2(b: Bound) -> Call:
    """`atan2(y, x)`: `atan(y / x)`, turned by half a circle where `x` is negative, with the sign of `y`."""
    y, x = b.input(0), b.input(1)
    zero, pi = scalar(0, x.dtype), scalar(np.pi, x.dtype)
    half = call("where", call("less", y, zero), call("negative", pi), pi)
    angle = call("atan", call("divide", y, x))
    angle = call("where", call("less", x, zero), call("add", angle, half), angle)
    upright = call("multiply", call("sign", y), scalar(np.pi / 2, x.dtype))
    return call("where", call("equal", x, zero), upright, angle)


def truncated(b: Bound) -> Call:
    """`trunc_divide` of floats."""
    return call("trunc", call("divide", *b.x))


def power_from_onnx(n: Source) -> Any:
    """`Pow`, whose result has the dtype of the base."""
    x, y = n.tensor(0), n.tensor(1)
    dtype = x.dtype if x.dtype == y.dtype else promote(Tensor("", (1,), x.dtype), Tensor("", (1,), y.dtype))
    return cast_result(call("power", cast(x, dtype), cast(y, dtype)), dtype, x.dtype)


def cast_result(value: Call, found: str, wanted: str) -> Call:
    """A call with its result in another dtype."""
    return value if found == wanted else call("cast", value, dtype=wanted)


def fold(name: str) -> Importer:
    """A variadic ONNX operator as a chain of binary ones."""
    return lambda n: reduce(lambda a, b: call(name, a, b), (n.tensor(i) for i in range(len(n.x))))


def mean_from_onnx(n: Source) -> Any:
    """`Mean`: the sum over the number of operands."""
    return call("divide", fold("add")(n), scalar(len(n.x), n.tensor(0).dtype)) if len(n.x) > 1 else n.tensor(0)


def lerp(self: Tensor, end: Tensor, weight: Operand) -> Call:
    """Between two tensors: `self + weight * (end - self)`."""
    dtype = promote(self, end)
    start = operand(self, dtype)
    way = call("multiply", operand(weight, dtype), call("subtract", operand(end, dtype), start))
    return call("add", start, way)


def added(name: str) -> Importer:
    """`addcmul` and `addcdiv`: a product or quotient, times a number, is added."""

    def from_aten(self: Tensor, tensor1: Tensor, tensor2: Tensor, value: float = 1) -> Call:
        dtype = promote(self, tensor1, tensor2, floating=name == "divide")
        part = call(name, operand(tensor1, dtype), operand(tensor2, dtype))
        part = part if value == 1 else call("multiply", part, scalar(value, dtype))
        return call("add", operand(self, dtype), part)

    return from_aten


ARITHMETIC = [
    binary(
        "add", "torch.add", "Add", "add", overloads("add.Tensor add.Scalar", scaled("add")),
        {"Add": lambda n: call("add", n.tensor(0), n.tensor(1)), "Sum": fold("add"), "Mean": mean_from_onnx},
    ),
    binary(
        "subtract", "torch.sub", "Sub", "subtract",
        overloads("sub.Tensor sub.Scalar subtract.Tensor subtract.Scalar", scaled("subtract"))
        | overloads("rsub.Tensor rsub.Scalar", lambda self, other, alpha=1: scaled("subtract")(other, self, alpha)),
    ),
    binary(
        "multiply", "torch.mul", "Mul", "multiply",
        overloads("mul.Tensor mul.Scalar multiply.Tensor multiply.Scalar", plain("multiply"))
        | overloads("lerp.Scalar lerp.Tensor", lerp)
        | {"addcmul.default": added("multiply")},
    ),
    binary(
        "divide", "torch.div", "Div", "divide",
        overloads(
            "div.Tensor div.Scalar div.Tensor_mode div.Scalar_mode divide.Tensor divide.Scalar divide.Tensor_mode "
            "divide.Scalar_mode true_divide.Tensor true_divide.Scalar",
            divide_from_aten,
        )
        | {"addcdiv.default": added("divide")},
        {"Div": divide_of}, from_relax={"divide": divide_of}, dtype=divide_dtype,
    ),
    Op(
        "trunc_divide",
        axes=divided,
        torch=lambda b: in_torch("torch.div", *b.x, dtype=b.input(0).dtype, rounding_mode="trunc"),
        onnx=lambda b: derived(truncated, "onnx")(b) if is_float(b) else call("Div", *b.x),
        relax=lambda b: derived(truncated, "relax")(b) if is_float(b) else call("divide", *b.x),
        msc="divide",
    ),
    binary(
        "floor_divide", "torch.floor_divide", floor_divide_to_onnx,
        lambda b: derived(floored_divide, "relax")(b) if is_float(b) else call("floor_divide", *b.x),
        overloads("floor_divide.default floor_divide.Scalar", plain("floor_divide")), axes=divided,
    ),
    binary(
        "mod", "torch.remainder",
        lambda b: derived(floored_mod, "onnx")(b) if is_float(b) else call("Mod", *b.x, fmod=0),
        lambda b: derived(floored_mod, "relax")(b) if is_float(b) else call("floor_mod", *b.x),
        overloads("remainder.Tensor remainder.Scalar remainder.Scalar_Tensor", plain("mod")),
        {"Mod": lambda n: call("fmod" if n.attr("fmod", 0) else "mod", n.tensor(0), n.tensor(1))},
        from_relax=from_relax("mod", "floor_mod"), msc="floor_mod", axes=divided,
    ),
    binary(
        "fmod", "torch.fmod", lambda b: call("Mod", *b.x, fmod=1), "mod",
        overloads("fmod.Tensor fmod.Scalar", plain("fmod")), from_relax=from_relax("fmod", "mod"), msc="", axes=divided,
    ),
    binary(
        "power", "torch.pow", "Pow", power_to_relax,
        overloads(
            "pow.Tensor_Tensor pow.Tensor_Scalar pow.Scalar", lambda self, exponent: combine("power", self, exponent)
        ),
        {"Pow": power_from_onnx}, lacks=SMALL,
    ),
    binary(
        "maximum", "torch.maximum", "Max", "maximum", overloads("maximum.default max.other", plain("maximum")),
        {"Max": fold("maximum")}, lacks=NO_SHORT,
    ),
    binary(
        "minimum", "torch.minimum", "Min", "minimum", overloads("minimum.default min.other", plain("minimum")),
        {"Min": fold("minimum")}, lacks=NO_SHORT,
    ),
    binary("atan2", "torch.atan2", derived(atan2, "onnx"), "atan2", overloads("atan2.default arctan2.default",
           plain("atan2", floating=True))),
]  # fmt: skip
