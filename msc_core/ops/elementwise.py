"""Bounds, casts and dropout; every axis passes through."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from msc_core.errors import UnsupportedOperator
from msc_core.ir import Tensor
from msc_core.ops.arithmetic import NO_SHORT, WIDER, overloads
from msc_core.ops.derived import derived
from msc_core.ops.dtypes import FLOATS, KINDS, cast, kind, operand, promote, scalar
from msc_core.ops.op import TRAINING, Bound, Call, DType, Op, Source, call

DTYPES = {*KINDS, *FLOATS}
EXACT = 2**53  # integers up to here are floats


def clip(x: Any, low: Any, high: Any) -> Any:
    """`x` between two bounds, each of them a number, a tensor, a symbolic dimension or `None`.

    Two numbers make a `clip`, anything else `maximum` and `minimum`.
    """
    numbers = [v for v in (low, high) if isinstance(v, (int, float))]
    if len(numbers) == 2 - (low is None) - (high is None) and all(abs(v) <= EXACT or math.isinf(v) for v in numbers):
        bounds = {"min": -math.inf if low is None else float(low), "max": math.inf if high is None else float(high)}
        return call("clip", operand(x, promote(x, *numbers)), **bounds)
    dtype = promote(*(v for v in (x, low, high) if v is not None))
    found = operand(x, dtype)
    for name, bound in (("maximum", low), ("minimum", high)):
        found = found if bound is None else call(name, found, operand(bound, dtype))
    return found


def clip_from_hardtanh(self: Tensor, min_val: float = -1, max_val: float = 1) -> Call:
    """`hardtanh`, which is what `nn.ReLU6` calls."""
    return call("relu6", self) if (min_val, max_val) == (0, 6) else clip(self, min_val, max_val)


def clip_from_onnx(n: Source) -> Any:
    """`Clip`: bounds are attributes before opset 11, then optional inputs."""
    if n.version < 11:
        return clip(n.tensor(0), n.attr("min"), n.attr("max"))
    return clip(n.tensor(0), *(_number(n, n.get(i)) for i in (1, 2)))


def _number(n: Source, bound: Tensor | None) -> Any:
    """The value of a bound where it is known."""
    value = None if bound is None else n.known(bound)
    return bound if value is None or value.size != 1 else value.item()


def clip_bounds(b: Bound) -> list[Any]:
    """The bounds as numbers of the input's dtype, `None` where it is open."""
    whole = kind(b.input(0).dtype) < 2
    return [None if math.isinf(v) else int(v) if whole else v for v in (b["min"], b["max"])]


def clip_to_torch(b: Bound) -> Call:
    """`torch.clamp`, which wants at least one bound."""
    low, high = clip_bounds(b)
    return call("torch.clone", *b.x) if low is high is None else call("torch.clamp", *b.x, min=low, max=high)


def clip_to_onnx(b: Bound) -> Call:
    """`Clip`, which ONNX Runtime lacks for some short dtypes."""
    dtype = b.input(0).dtype
    wide = WIDER[dtype] if dtype in NO_SHORT else dtype
    x = b.x[0] if wide == dtype else call("Cast", b.x[0], to=DType(wide))
    found = call("Clip", x, *(None if v is None else np.asarray(v, wide) for v in clip_bounds(b)))
    return found if wide == dtype else call("Cast", found, to=DType(dtype))


def clip_to_relax(b: Bound) -> Any:
    """`clip` of floats; of integers, whose bounds it would take for floats, `maximum` and `minimum`."""
    if b.input(0).dtype == "float32":
        return call("clip", *b.x, b["min"], b["max"])
    return derived(clipped, "relax")(b)


def clipped(b: Bound) -> Any:
    """A `clip` as `maximum` and `minimum`."""
    found: Any = b.input(0)
    for name, bound in zip(("maximum", "minimum"), clip_bounds(b), strict=True):
        found = found if bound is None else call(name, found, scalar(bound, b.input(0).dtype))
    return found


def cast_from_aten(self: Tensor, other: Any = None, dtype: Any = None, **ignored: Any) -> Any:
    """`to`, `type_as` and the like; device, layout and memory format say nothing about values."""
    if other is not None:
        return cast(self, other.dtype)
    name = str(dtype).removeprefix("torch.") if dtype is not None else self.dtype
    return cast(self, supported(name))


def supported(dtype: str) -> str:
    """The dtype, which must be one that every target can have."""
    if dtype not in DTYPES:
        raise UnsupportedOperator(f"a cast to {dtype}")
    return dtype


def cast_from_onnx(n: Source) -> Any:
    """`Cast`."""
    from onnx import TensorProto, helper

    code = n.attrs["to"]
    if code in (TensorProto.STRING, TensorProto.UNDEFINED):
        raise UnsupportedOperator(f"a cast to {TensorProto.DataType.Name(code)}")
    return cast(n.tensor(0), supported(str(helper.tensor_dtype_to_np_dtype(code).name)))


def dropout_from_onnx(n: Source) -> Any:
    """`Dropout` at inference, whose second output keeps everything."""
    ratio = n.constant(1, 0.5) if n.version >= 12 else n.attr("ratio", 0.5)
    training = n.version >= 12 and bool(n.constant(2, False))
    if training and float(ratio) != 0:
        raise UnsupportedOperator("Dropout in training mode, whose output is random")
    x = n.tensor(0)
    kept = call("dropout", x, p=float(ratio))
    return kept if n.outputs < 2 else (kept, call("logical_or", call("equal", x, x), call("not_equal", x, x)))


def dropout_importer(kind: str) -> Any:
    """One of the kinds of dropout that torch has."""
    return lambda input, p, train: call("dropout", input, p=p, kind=kind)


def dropout_to_torch(b: Bound) -> Call:
    """`F.dropout`, or a rarer kind."""
    if b["kind"] == "dropout":
        return call("F.dropout", *b.x, p=b["p"], training=TRAINING)
    return call(f"torch.{b['kind']}", *b.x, b["p"], TRAINING)


ELEMENTWISE = [
    Op(
        "relu6",
        axes="... -> ...",
        aten={"relu6.default": lambda self: call("relu6", self), "hardtanh.default": clip_from_hardtanh},
        torch=lambda b: call("F.relu6", *b.x),
        onnx=lambda b: call("Clip", *b.x, scalar(0, b.input(0).dtype), scalar(6, b.input(0).dtype)),
        relax=lambda b: call("clip", *b.x, 0.0, 6.0),
        from_relax={"nn.relu6": lambda n: call("relu6", n.tensor(0))},
        msc="clip",
    ),
    Op(
        "clip",
        axes="... -> ...",
        attrs={"min": -math.inf, "max": math.inf},
        aten=overloads(
            "clamp.default clamp.Tensor clip.default clip.Tensor", lambda self, min=None, max=None: clip(self, min, max)
        )
        | overloads("clamp_min.default clamp_min.Tensor", lambda self, min: clip(self, min, None))
        | overloads("clamp_max.default clamp_max.Tensor", lambda self, max: clip(self, None, max)),
        from_onnx={"Clip": clip_from_onnx},
        from_relax={"clip": lambda n: clip(n.tensor(0), n.get(1), n.get(2))},
        torch=clip_to_torch,
        onnx=clip_to_onnx,
        relax=clip_to_relax,
        msc="clip",
    ),
    Op(
        "dropout",
        axes="... -> ...",
        attrs={"p": 0.5, "kind": "dropout"},
        aten={
            f"{kind}.default": dropout_importer(kind)
            for kind in ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
        },
        from_onnx={"Dropout": dropout_from_onnx},
        from_relax={"nn.dropout": lambda n: (call("dropout", n.tensor(0), p=n.attr("rate", 0.5)),)},
        torch=dropout_to_torch,
        onnx=lambda b: call("Identity", *b.x),
        relax=lambda b: call("identity", *b.x),
        msc="nn.dropout",
    ),
    Op(
        "cast",
        axes="... -> ...",
        attrs={"dtype": "float32"},
        dtype=lambda b: b["dtype"],
        aten=overloads(
            "to.dtype to.device to.other to.dtype_layout to.prim_dtype to.prim_other to.prim_device _to_copy.default "
            "type_as.default",
            cast_from_aten,
        ),
        from_onnx={"Cast": cast_from_onnx, "CastLike": lambda n: cast(n.tensor(0), supported(n.tensor(1).dtype))},
        from_relax={"astype": lambda n: cast(n.tensor(0), supported(str(n.attr("dtype"))))},
        torch=lambda b: call("torch.Tensor.to", *b.x, DType(b["dtype"])),
        onnx=lambda b: call("Cast", *b.x, to=DType(b["dtype"])),
        relax=lambda b: call("astype", *b.x, dtype=b["dtype"]),
        msc="cast",
    ),
]  # fmt: skip
