"""Operators that act on each position alone; every axis passes through and operands broadcast."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from msc_core.ir import Tensor
from msc_core.ops.dtypes import cast
from msc_core.ops.op import TRAINING, Call, DType, Op, call
from msc_core.ops.unary import unary


def clip_from_aten(self: Tensor, min: Any = None, max: Any = None) -> Call:
    """`clamp`, open on a side that is `None`."""
    return call("clip", self, min=-math.inf if min is None else float(min), max=math.inf if max is None else float(max))


def clip_from_hardtanh(self: Tensor, min_val: float = -1, max_val: float = 1) -> Call:
    """`hardtanh`, which is what `nn.ReLU6` calls."""
    return clip_from_aten(self, min_val, max_val) if (min_val, max_val) != (0, 6) else call("relu6", self)


def cast_from_aten(self: Tensor, other: Tensor | None = None, dtype: Any = None, **ignored: Any) -> Any:
    """`to`, `type_as` and the like; device, layout and memory format say nothing about values."""
    name = other.dtype if other is not None else str(dtype).removeprefix("torch.") if dtype is not None else self.dtype
    return cast(self, name)


ELEMENTWISE = [
    unary("relu", "Relu", "nn.relu", "F.relu", integers="keep"),
    Op(
        "relu6",
        axes="... -> ...",
        aten={
            f"{name}.default": fn
            for name, fn in [
                ("relu6", lambda self: call("relu6", self)),
                ("relu6_", lambda self: call("relu6", self)),
                ("hardtanh", clip_from_hardtanh),
                ("hardtanh_", clip_from_hardtanh),
            ]
        },
        torch=lambda b: call("F.relu6", *b.x),
        onnx=lambda b: call("Clip", *b.x, np.float32(0), np.float32(6)),
        relax=lambda b: call("clip", *b.x, 0.0, 6.0),
        msc="clip",
    ),
    Op(
        "clip",
        axes="... -> ...",
        attrs={"min": -math.inf, "max": math.inf},
        aten={"clamp.default": clip_from_aten, "clamp_.default": clip_from_aten},
        torch=lambda b: call("torch.clamp", *b.x, min=b["min"], max=b["max"]),
        onnx=lambda b: call("Clip", *b.x, np.float32(b["min"]), np.float32(b["max"])),
        relax=lambda b: call("clip", *b.x, b["min"], b["max"]),
        msc="clip",
    ),
    Op(
        "dropout",
        axes="... -> ...",
        attrs={"p": 0.5},
        aten={
            f"{name}.default": lambda input, p, train: call("dropout", input, p=p) for name in ("dropout", "dropout_")
        },
        torch=lambda b: call("F.dropout", *b.x, p=b["p"], training=TRAINING),
        onnx=lambda b: call("Identity", *b.x),
        relax=lambda b: call("identity", *b.x),
        msc="nn.dropout",
    ),
    Op(
        "identity",
        axes="... -> ...",
        torch=lambda b: call("torch.clone", *b.x),
        onnx=lambda b: call("Identity", *b.x),
        relax=lambda b: call("identity", *b.x),
        from_onnx={"Identity": lambda n: n.tensor(0)},
        msc="",
    ),
    Op(
        "cast",
        axes="... -> ...",
        attrs={"dtype": "float32"},
        dtype=lambda b: b["dtype"],
        aten=dict.fromkeys(("to.dtype", "_to_copy.default", "to.dtype_layout", "type_as.default"), cast_from_aten),
        torch=lambda b: call("torch.Tensor.to", *b.x, DType(b["dtype"])),
        onnx=lambda b: call("Cast", *b.x, to=DType(b["dtype"])),
        relax=lambda b: call("astype", *b.x, dtype=b["dtype"]),
        msc="cast",
    ),
]
