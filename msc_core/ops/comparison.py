"""Comparisons, logic, selection and bits."""

from __future__ import annotations

from typing import Any

from msc_core.ir import Tensor
from msc_core.ops.arithmetic import Operand, binary, overloads, plain, with_kernel
from msc_core.ops.dtypes import operand, promote, scalar
from msc_core.ops.op import Bound, Call, Op, call


def truth(x: Operand) -> Any:
    """An operand as a boolean: whether it is not zero."""
    if not isinstance(x, Tensor):
        return scalar(bool(x), "bool")
    return x if x.dtype == "bool" else call("not_equal", x, scalar(0, x.dtype))


def comparison(name: str, torch: str, onnx: str, names: str, negated: bool = False) -> Op:
    """A row for a comparison, whose result is boolean. With `negated`, ONNX only has its opposite."""

    def to_onnx(b: Bound) -> Call:
        dtype = b.input(0).dtype
        found = with_kernel(onnx, *b.x, dtype=dtype, back=False)
        if dtype == "bool" and onnx == "Equal":
            found = call(onnx, *b.x)
        return call("Not", found) if negated else found

    aten = " ".join(f"{n}.Tensor {n}.Scalar" for n in names.split())
    return binary(
        name, torch, to_onnx, name, overloads(aten, plain(name)),
        {} if negated else {onnx: lambda n: call(name, n.tensor(0), n.tensor(1))}, dtype="bool",
    )  # fmt: skip


def logical(name: str, onnx: str) -> Op:
    """A row for a function of two booleans."""
    return binary(
        name, f"torch.{name}", lambda b: call(onnx, *b.x), name,
        {f"{name}.default": lambda self, other: call(name, truth(self), truth(other))},
        {onnx: lambda n: call(name, n.tensor(0), n.tensor(1))}, dtype="bool",
    )  # fmt: skip


def where(condition: Tensor, a: Operand, b: Operand) -> Call:
    """A selection between operands of any dtypes."""
    dtype = promote(a, b)
    return call("where", truth(condition), operand(a, dtype), operand(b, dtype))


def masked_fill(self: Tensor, mask: Tensor, value: Operand) -> Call:
    """`self`, or where the mask is true a value of its dtype."""
    return call("where", mask, operand(value, self.dtype), self)


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
    Op(
        "where",
        axes="..., ..., ... -> ...",
        dtype=lambda b: b.input(1).dtype,
        aten=overloads(
            "where.self where.ScalarSelf where.ScalarOther where.Scalar",
            lambda condition, self, other: where(condition, self, other),
        )
        | overloads("masked_fill.Scalar masked_fill.Tensor", masked_fill),
        from_onnx={"Where": lambda n: call("where", n.tensor(0), n.tensor(1), n.tensor(2))},
        from_relax={"where": lambda n: where(n.tensor(0), n.get(1), n.get(2)),
                    "masked_fill": lambda n: masked_fill(n.tensor(0), n.tensor(1), n.get(2))},
        torch=lambda b: call("torch.where", *b.x),
        onnx=lambda b: call("Where", *b.x),
        relax=lambda b: call("where", *b.x),
        msc="where",
    ),
]  # fmt: skip
