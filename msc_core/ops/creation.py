"""Tensors made from nothing: constants of a size that may be symbolic, ranges, identity matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from msc_core import dims
from msc_core.dims import Dim
from msc_core.errors import InvalidGraph, UnsupportedOperator
from msc_core.exchange import numpy_dtype
from msc_core.ir import Array, Tensor
from msc_core.ops.arithmetic import overloads
from msc_core.ops.dtypes import cast, kind, scalar
from msc_core.ops.op import DEVICE, Bound, Call, DType, Op, Source, call, size_tensor, sizes
from msc_core.ops.repeating import broadcast


def name_of(dtype: Any, default: str) -> str:
    """A dtype argument of ATen as NumPy's name."""
    return default if dtype is None else str(dtype).removeprefix("torch.")


# Filled tensors


def filled(shape: Sequence[Dim], value: Any, dtype: str) -> Any:
    """A `full` of a number, or a scalar tensor broadcast."""
    if isinstance(value, (Tensor, Call)):
        return broadcast(value if isinstance(value, Call) else cast(value, dtype), (), shape)
    if isinstance(value, str):
        return broadcast(scalar(value, dtype), (), shape)
    number = numpy_dtype(dtype).type(value).item() if dtype != "bfloat16" else float(value)
    return call("full", shape=tuple(shape), value=number, dtype=dtype)


def from_nothing(value: float) -> Callable[..., Any]:
    """The importer of `zeros`, `ones` and `empty`."""

    def importer(size: Sequence[Dim], dtype: Any = None, **placement: Any) -> Any:
        return filled(size, value, name_of(dtype, "float32"))

    return importer


def like(value: float) -> Callable[..., Any]:
    """The importer of `zeros_like` and the like."""

    def importer(self: Tensor, dtype: Any = None, **placement: Any) -> Any:
        return filled(self.shape, value, name_of(dtype, self.dtype))

    return importer


def new(value: float) -> Callable[..., Any]:
    """The importer of `new_zeros` and the like."""

    def importer(self: Tensor, size: Sequence[Dim], dtype: Any = None, **placement: Any) -> Any:
        return filled(size, value, name_of(dtype, self.dtype))

    return importer


def dtype_of(value: Any) -> str:
    """The dtype that torch gives a number."""
    return "bool" if isinstance(value, bool) else "float32" if isinstance(value, float) else "int64"


def full_from_aten(size: Sequence[Dim], fill_value: Any, dtype: Any = None, **placement: Any) -> Any:
    """`full`."""
    return filled(size, fill_value, name_of(dtype, dtype_of(fill_value)))


def full_like(self: Tensor, fill_value: Any, dtype: Any = None, **placement: Any) -> Any:
    """`full_like`."""
    return filled(self.shape, fill_value, name_of(dtype, self.dtype))


def new_full(self: Tensor, size: Sequence[Dim], fill_value: Any, dtype: Any = None, **placement: Any) -> Any:
    """`new_full`."""
    return filled(size, fill_value, name_of(dtype, self.dtype))


def constant_of_shape(n: Source) -> Any:
    """`ConstantOfShape`."""
    value = n.attr("value")
    value = np.zeros(1, np.float32) if value is None else np.asarray(value)
    return filled(n.dims(0), value.item(), value.dtype.name)


def full_from_relax(n: Source) -> Any:
    """`full`, whose value is a constant or a tensor without axes."""
    shape, value = n.dims(0), n.get(1)
    dtype = str(n.attr("dtype", "") or "")
    dtype = value.dtype if dtype in ("", "void") else dtype
    known = n.known(value) if isinstance(value, Tensor) else np.asarray(value)
    return filled(shape, value if known is None else known.item(), dtype)


def like_from_relax(value: float | None) -> Callable[[Source], Any]:
    """The importer of `zeros_like`, `ones_like` and, without a value, `full_like`."""

    def importer(n: Source) -> Any:
        x, dtype = n.tensor(0), str(n.attr("dtype", "") or "void")
        fill = n.get(1) if value is None else value
        known = n.known(fill) if isinstance(fill, Tensor) else np.asarray(fill)
        return filled(x.shape, fill if known is None else known.item(), x.dtype if dtype == "void" else dtype)

    return importer


def full_to_onnx(b: Bound) -> Call:
    """`ConstantOfShape`."""
    return call("ConstantOfShape", size_tensor(b["shape"]), value=one_value(b))


def one_value(b: Bound) -> Array:
    """The value as an array of one element."""
    return np.asarray([b["value"]]).astype(numpy_dtype(b["dtype"]))


def full_to_relax(b: Bound) -> Call:
    """`full`, which has no words for infinities."""
    value = one_value(b).reshape(())
    if kind(b["dtype"]) == 2 and not np.isfinite(value):
        return call("broadcast_to", value, sizes(b["shape"]))
    return call("full", sizes(b["shape"]), value, b["dtype"])


# Ranges


def arange_shape(b: Bound) -> tuple[Dim, ...]:
    """How many numbers there are."""
    if b["step"] == 0:
        raise InvalidGraph(f"{b}: a step of 0")
    forward = b["step"] > 0
    span = dims.sub(b["end"], b["start"]) if forward else dims.sub(b["start"], b["end"])
    return (dims.maximum(dims.ceildiv(span, abs(b["step"])), 0),)


def ranged(start: Any, end: Any, step: Any, dtype: str) -> Any:
    """Numbers from `start` to before `end`: a constant, or a row where a size decides."""
    if not any(isinstance(v, str) for v in (start, end, step)):
        return np.arange(start, end, step).astype(numpy_dtype(dtype))
    if any(not isinstance(v, (int, str)) and v != int(v) for v in (start, end, step)):
        raise UnsupportedOperator(f"a range from {start} to {end} in steps of {step}")
    if isinstance(step, str):
        raise UnsupportedOperator(f"a range in steps of the size {step}")
    first, last = (v if isinstance(v, str) else int(v) for v in (start, end))
    return call("arange", start=first, end=last, step=int(step), dtype=dtype)


def arange_from_aten(end: Any, start: Any = 0, step: Any = 1, dtype: Any = None, **placement: Any) -> Any:
    """`arange`."""
    number = "float32" if any(isinstance(v, float) for v in (start, end, step)) else "int64"
    return ranged(start, end, step, name_of(dtype, number))


def range_from_onnx(n: Source) -> Any:
    """`Range`, of known bounds."""
    start, limit, delta = (np.ravel(np.asarray(n.value(i))).tolist()[0] for i in range(3))
    return ranged(start, limit, delta, n.tensor(0).dtype)


def arange_from_relax(n: Source) -> Any:
    """`arange`."""
    start, end, step = n.x[:3]
    return ranged(start, end, step, str(n.attr("dtype")))


def arange_to_onnx(b: Bound) -> Call:
    """`Range` of int64, and a cast."""
    none = np.zeros(0, np.int64)
    bounds = (
        call("Reshape", size_tensor((v,)), none) if isinstance(v, str) else np.asarray(v, np.int64)
        for v in (b["start"], b["end"], b["step"])
    )
    found = call("Range", *bounds)
    return found if b["dtype"] == "int64" else call("Cast", found, to=DType(b["dtype"]))


def arange_to_relax(b: Bound) -> Call:
    """`arange` of int64 and a cast; counted forwards, because of a backward one Relax infers the wrong size."""
    if b["step"] > 0:
        found = call("arange", *sizes((b["start"], b["end"])), b["step"], "int64")
    else:
        steps = call("multiply", call("arange", 0, *sizes(b.out[0].shape), 1, "int64"), np.asarray(b["step"], np.int64))
        found = call("add", steps, call("shape_to_tensor", call("shape", *sizes((b["start"],)))))
    return found if b["dtype"] == "int64" else call("astype", found, b["dtype"])


def linspace(start: Any, end: Any, steps: Any, dtype: Any = None, **placement: Any) -> Any:
    """`linspace`: a constant for a known number of steps, otherwise a range, stretched."""
    kept = name_of(dtype, "float32")
    if any(isinstance(v, (str, Tensor)) for v in (start, end)) or kind(kept) < 2:
        raise UnsupportedOperator(f"linspace from {start} to {end} of {kept}")
    if isinstance(steps, int):
        return np.linspace(start, end, steps).astype(numpy_dtype(kept))
    last = scalar(dims.maximum(dims.sub(steps, 1), 1), kept)
    share = call("divide", call("arange", end=steps, dtype=kept), last)
    return call("add", call("multiply", share, scalar(float(end) - float(start), kept)), scalar(float(start), kept))


# Identity matrices


def identity(rows: Dim, columns: Dim, offset: int, dtype: str) -> Any:
    """Ones on a diagonal: a constant, or a comparison of two ranges where a size is symbolic."""
    if isinstance(rows, int) and isinstance(columns, int):
        return np.eye(rows, columns, offset).astype(numpy_dtype(dtype))
    down = call("reshape", call("arange", start=offset, end=dims.add(rows, offset)), shape=(rows, 1))
    hot = call("equal", down, call("reshape", call("arange", end=columns), shape=(1, columns)))
    return hot if dtype == "bool" else call("cast", hot, dtype=dtype)


def eye_like(n: Source) -> Any:
    """`EyeLike`."""
    from onnx import helper

    x, code = n.tensor(0), n.attr("dtype")
    dtype = x.dtype if code is None else helper.tensor_dtype_to_np_dtype(code).name
    rows, columns = x.shape
    return identity(rows, columns, n.attr("k", 0), str(dtype))


def eye_from_relax(n: Source) -> Any:
    """`eye` and `eye_like`."""
    dtype = str(n.attr("dtype", "") or "void")
    if n.op == "eye_like":
        rows, columns = n.tensor(0).shape
        return identity(rows, columns, int(n.get(1) or 0), n.tensor(0).dtype if dtype == "void" else dtype)
    return identity(n.x[0], n.x[1], int(n.get(2) or 0), dtype)


def eye_from_aten(n: Dim, m: Any = None, dtype: Any = None, **placement: Any) -> Any:
    """`eye`."""
    return identity(n, n if m is None else m, 0, name_of(dtype, "float32"))


def grid(tensors: Sequence[Tensor], indexing: str = "ij") -> tuple[Any, ...]:
    """`meshgrid`."""
    order = list(range(len(tensors)))
    if indexing == "xy" and len(tensors) > 1:
        order[0], order[1] = 1, 0
    sizes_of = [t.shape[0] if t.shape else 1 for t in tensors]
    target = [sizes_of[i] for i in order]
    found = []
    for i, t in enumerate(tensors):
        view = tuple(sizes_of[i] if order[j] == i else 1 for j in range(len(tensors)))
        found.append(broadcast(call("reshape", t, shape=view), view, target))
    return tuple(found)


CREATION: list[Op] = [
    Op(
        "sizes",
        axes=None,
        operands=0,
        attrs={"values": ()},
        symbolic=("values",),
        shape=lambda b: (len(b["values"]),),
        dtype="int64",
        torch=lambda b: call("torch.tensor", sizes(b["values"]), dtype=DType("int64"), device=DEVICE),
        onnx=lambda b: call("Identity", size_tensor(b["values"])),
        relax=lambda b: call("shape_to_tensor", call("shape", *sizes(b["values"]))),
        msc="shape",
    ),
    Op(
        "full",
        axes=lambda b: f"-> {' '.join(f'a{i}' for i in range(len(b['shape'])))}",
        moves=lambda b, value: {f"a{i}": None for i in range(len(b["shape"]))},
        new=lambda b, known: {f"a{i}": d for i, d in enumerate(b["shape"])},
        sized={"shape": "output"},
        attrs={"shape": (), "value": 0, "dtype": "float32"},
        symbolic=("shape",),
        shape=lambda b: b["shape"],
        dtype=lambda b: b["dtype"],
        aten={
            "full.default": full_from_aten,
            "full_like.default": full_like,
            "new_full.default": new_full,
            **overloads("zeros.default empty.memory_format", from_nothing(0)),
            "ones.default": from_nothing(1),
            **overloads("zeros_like.default empty_like.default", like(0)),
            "ones_like.default": like(1),
            **overloads("new_zeros.default new_empty.default", new(0)),
            "new_ones.default": new(1),
            "scalar_tensor.default": lambda s, dtype=None, **placement: filled((), s, name_of(dtype, "float32")),
            **overloads("fill.Scalar fill.Tensor", lambda self, value: filled(self.shape, value, self.dtype)),
            "zero.default": lambda self: filled(self.shape, 0, self.dtype),
        },
        from_onnx={"ConstantOfShape": constant_of_shape},
        from_relax={
            "full": full_from_relax,
            "zeros": lambda n: filled(n.dims(0), 0, str(n.attr("dtype"))),
            "ones": lambda n: filled(n.dims(0), 1, str(n.attr("dtype"))),
            "full_like": like_from_relax(None),
            "zeros_like": like_from_relax(0),
            "ones_like": like_from_relax(1),
        },
        torch=lambda b: call(
            "torch.full", sizes(b["shape"]), b["value"], dtype=DType(b["dtype"]), device=DEVICE
        ),
        onnx=full_to_onnx,
        relax=full_to_relax,
        msc="full",
    ),
    Op(
        "arange",
        axes=None,
        operands=0,
        attrs={"start": 0, "end": 0, "step": 1, "dtype": "int64"},
        symbolic=("start", "end"),
        shape=arange_shape,
        dtype=lambda b: b["dtype"],
        aten={
            **overloads("arange.default arange.start arange.start_step", arange_from_aten),
            "linspace.default": linspace,
            "eye.default": eye_from_aten,
            "eye.m": eye_from_aten,
            "meshgrid.default": grid,
            "meshgrid.indexing": grid,
        },
        from_onnx={"Range": range_from_onnx, "EyeLike": eye_like},
        from_relax={
            "arange": arange_from_relax,
            "eye": eye_from_relax,
            "eye_like": eye_from_relax,
            "meshgrid": lambda n: grid(n.x[0], n.attr("indexing", "ij")),
        },
        torch=lambda b: call(
            "torch.arange", *sizes((b["start"], b["end"])), b["step"], dtype=DType(b["dtype"]), device=DEVICE
        ),
        onnx=arange_to_onnx,
        relax=arange_to_relax,
        msc="arange",
    ),
]  # fmt: skip
