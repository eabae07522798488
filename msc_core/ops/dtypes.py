"""Dtypes of operands: promotion as torch does it, casts and scalars, shared by the importers of rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from msc_core.errors import UnsupportedOperator
from msc_core.exchange import numpy_dtype
from msc_core.ir import Array, Tensor
from msc_core.ops.op import Call, call

KINDS = {"bool": 0, "uint8": 1, "int8": 1, "int16": 1, "uint16": 1, "int32": 1, "uint32": 1, "int64": 1, "uint64": 1}
FLOATS = ("bfloat16", "float16", "float32", "float64")


def kind(dtype: str) -> int:
    """0 for bool, 1 for integers, 2 for floats."""
    return KINDS.get(dtype, 2)


def promote(*operands: Tensor | float | str, floating: bool = False) -> str:
    """The dtype of a result by torch's rules (`torch.result_type`).

    The highest kind among tensors with axes decides; tensors without axes, then Python numbers and dimensions only
    count if their kind is higher. With `floating`, what would be an integer becomes float32, as for a true division.

    >>> promote(Tensor("a", (2,), "float16"), Tensor("b", (), "float32"), 2.0)
    'float16'
    >>> promote(Tensor("a", (2,), "int32"), 0.5), promote(Tensor("a", (2,), "bool"), 3)
    ('float32', 'int64')
    """
    ranked: list[list[str]] = [[], [], []]
    for operand in operands:
        if operand is None:
            raise UnsupportedOperator("an operand is a number that is computed from symbolic sizes")
        if isinstance(operand, Tensor):
            ranked[0 if operand.shape else 1].append(operand.dtype)
        else:
            ranked[2].append("bool" if isinstance(operand, bool) else _number(operand))
    result = ""
    for dtypes in ranked:
        for group in [_join(dtypes)] if dtypes else []:
            if not result or kind(group) > kind(result):
                result = group
    return "float32" if floating and kind(result) < 2 else result


def _number(value: float | str) -> str:
    return "float32" if isinstance(value, float) else "int64"


def _join(dtypes: list[str]) -> str:
    """The common dtype of operands of one rank."""
    top = max(map(kind, dtypes))
    candidates = [d for d in dict.fromkeys(dtypes) if kind(d) == top]
    if len(candidates) == 1:
        return candidates[0]
    if top == 2:
        return "float32" if set(candidates) == {"bfloat16", "float16"} else max(candidates, key=FLOATS.index)
    return np.result_type(*candidates).name


def cast(x: Tensor | Call, dtype: str, known: str = "") -> Any:
    """`x` in another dtype: itself if it has that one. Of a call, `known` is the dtype that it has."""
    return x if (x.dtype if isinstance(x, Tensor) else known) == dtype else call("cast", x, dtype=dtype)


def operand(value: Tensor | float | str, dtype: str) -> Any:
    """An operand of `promote` in the dtype that came out: a cast, or a number as a constant."""
    if isinstance(value, Tensor):
        return cast(value, dtype)
    return scalar(value, dtype)


def scalar(value: float | str, dtype: str) -> Array | Call:
    """A number as a constant without axes; a symbolic dimension as a computed one."""
    if not isinstance(value, str):
        return np.asarray(value).astype(numpy_dtype(dtype))
    size = call("reshape", call("sizes", values=(value,)), shape=())
    return size if dtype == "int64" else call("cast", size, dtype=dtype)
