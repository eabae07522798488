"""Tensors made from nothing: constants of a size that may be symbolic, ranges, masks."""

from __future__ import annotations

from msc_core.ops.op import DEVICE, DType, Op, Refuse, call, size_tensor, sizes

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
        relax=Refuse("TODO"),
        msc="shape",
    ),
]
