"""The extremes of whole axes, and where they are."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from msc_core import dims
from msc_core.errors import UnsupportedOperator
from msc_core.exchange import numpy_dtype
from msc_core.ir import Array, Tensor
from msc_core.ops.arithmetic import overloads, with_kernel
from msc_core.ops.comparison import truth
from msc_core.ops.dtypes import cast, kind
from msc_core.ops.op import Bound, Call, Emit, Importer, Op, Source, call
from msc_core.ops.reduction import Axes, all_axes, count, explicit, from_onnx, plain, reduction


def extreme(name: str) -> dict[str, Importer]:
    """`aten.amax`, `aten.max` and their like; with one axis, the indices come too."""

    def over(self: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
        return extremum(name, self, all_axes(self, dim), keepdim)

    def along(self: Tensor, dim: int, keepdim: bool = False) -> Any:
        return extremum(name, self, all_axes(self, dim), keepdim), index(f"arg{name}", self, dim, keepdim)

    return {f"a{name}.default": over, f"{name}.default": lambda self: over(self), f"{name}.dim": along}


def extremum(name: str, x: Tensor, axes: Axes, keepdims: bool) -> Call | Array:
    """The largest or smallest element; of booleans, whether any or all are true."""
    if count(x, axes) == 0:
        return of_nothing(name, x, axes, keepdims)
    row = {"max": "any", "min": "all"}[name] if x.dtype == "bool" else name
    return call(row, x, axes=axes, keepdims=keepdims)


def of_nothing(name: str, x: Tensor, axes: Axes, keepdims: bool) -> Array:
    """The extreme of no elements: the lowest or highest number there is."""
    shape = [1 if i in axes else d for i, d in enumerate(x.shape) if i not in axes or keepdims]
    if not all(isinstance(d, int) for d in shape):
        raise UnsupportedOperator(f"a {name} of no elements in a symbolic shape {shape}")
    dtype = np.dtype(x.dtype)
    if dtype.kind == "f":
        lowest, highest = -np.inf, np.inf
    else:
        lowest, highest = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return np.full([int(d) for d in shape], lowest if name == "max" else highest, dtype)


def index(row: str, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Call:
    """`argmax` or `argmin`, of the whole tensor where `dim` is `None`."""
    whole = cast(x, "uint8") if x.dtype == "bool" else x
    if dim is None or not x.shape:
        found = call(row, call("reshape", whole, shape=(dims.mul(*x.shape),)), axis=0)
        return call("reshape", found, shape=(1,) * len(x.shape) if keepdim else ())
    return call(row, whole, axis=dim % len(x.shape), keepdims=keepdim)


def last_index(n: Source) -> Call:
    """`ArgMax` or `ArgMin`: the first index, or the last one, which is the largest where the extreme is reached."""
    row, x, keepdims = n.op.lower(), n.tensor(0), bool(n.attr("keepdims", 1))
    axis = n.attr("axis", 0) % max(len(x.shape), 1)
    if not n.attr("select_last_index", 0):
        return index(row, x, axis, keepdims)
    length = x.shape[axis]
    if not isinstance(length, int):
        raise UnsupportedOperator(f"{n.op} with select_last_index over a symbolic axis")
    positions = np.arange(length).reshape(length, *(1,) * (len(x.shape) - 1 - axis))
    reached = call("equal", x, call(row.removeprefix("arg"), x, axes=(axis,), keepdims=True))
    return call("max", call("where", reached, positions, np.asarray(-1)), axes=(axis,), keepdims=keepdims)


def indexed(name: str, onnx: str) -> Op:
    """A row for the position of an extreme along an axis: the first one."""

    def to_onnx(b: Bound) -> Call:
        return with_kernel(
            onnx, *b.x, dtype=b.input(0).dtype, lacks=("bool", "bfloat16", "int16", "uint16", "uint32"), back=False,
            axis=b["axis"], keepdims=int(b["keepdims"]),
        )  # fmt: skip

    def axes(b: Bound) -> str:
        rank = len(b.input(0).shape)
        kept = ["1" if i == b["axis"] % rank else f"a{i}" for i in range(rank)]
        kept = kept if b["keepdims"] else [letter for letter in kept if letter != "1"]
        return f"{' '.join(f'a{i}' for i in range(rank))} -> {' '.join(kept)}"

    def relaxed(n: Source) -> Any:
        return index(name, n.tensor(0), n.attr("axis"), bool(n.attr("keepdims")))

    return Op(
        name,
        axes=axes,
        attrs={"axis": 0, "keepdims": False},
        dtype="int64",
        aten={f"{name}.default": lambda self, dim=None, keepdim=False: index(name, self, dim, keepdim)},
        from_onnx={onnx: last_index},
        from_relax={name: relaxed},
        torch=lambda b: call(f"torch.{name}", *b.x, dim=b["axis"], keepdim=b["keepdims"]),
        onnx=to_onnx,
        relax=lambda b: call(name, *b.x, axis=b["axis"], keepdims=b["keepdims"]),
        msc=name,
    )


def extreme_to_relax(name: str, none: float) -> Emit:
    """`max` or `min`, to which TVM's generic kernels give the largest finite number where all elements are infinite."""

    def to_relax(b: Bound) -> Call:
        x, where = b.input(0), {"axis": explicit(b), "keepdims": b["keepdims"]}
        found = call(name, x, **where)
        if kind(x.dtype) < 2:
            return found
        edge = np.asarray(none, numpy_dtype(x.dtype))
        finite = call("max", call("astype", call("not_equal", x, edge), dtype="int8"), **where)
        return call("where", call("astype", finite, dtype="bool"), found, edge)

    return to_relax


def boolean(name: str, onnx: str, relax: str) -> Op:
    """A row for `any` or `all` of booleans, which other targets say with numbers."""

    def from_aten(self: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
        axes = all_axes(self, dim)
        if count(self, axes) == 0:
            return of_nothing({"any": "max", "all": "min"}[name], replace(self, dtype="bool"), axes, keepdim)
        found = call(name, truth(self), axes=axes, keepdims=keepdim)
        return call("cast", found, dtype="uint8") if self.dtype == "uint8" else found

    def to_relax(b: Bound) -> Call:
        found = call(relax, call("astype", *b.x, dtype="int8"), axis=explicit(b), keepdims=b["keepdims"])
        return call("astype", found, dtype="bool")

    aten = overloads(f"{name}.default {name}.dim {name}.dims", from_aten)
    return reduction(name, plain(f"torch.{name}"), onnx, to_relax, aten, from_relax={}, msc="")


EXTREMES = [
    reduction(
        "max", plain("torch.amax"), "ReduceMax", extreme_to_relax("max", -math.inf), extreme("max"),
        lacks=("bfloat16", "int16", "uint16", "uint32"), msc="max",
        from_onnx={"ReduceMax": from_onnx(lambda *x: extremum("max", *x))},
    ),
    reduction(
        "min", plain("torch.amin"), "ReduceMin", extreme_to_relax("min", math.inf), extreme("min"),
        lacks=("bfloat16", "int16", "uint16", "uint32"), msc="min",
        from_onnx={"ReduceMin": from_onnx(lambda *x: extremum("min", *x))},
    ),
    boolean("any", "ReduceMax", "max"),
    boolean("all", "ReduceMin", "min"),
    indexed("argmax", "ArgMax"),
    indexed("argmin", "ArgMin"),
]  # fmt: skip
