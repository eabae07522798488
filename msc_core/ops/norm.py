"""Normalization layers."""

from __future__ import annotations

from msc_core.errors import UnsupportedOperator
from msc_core.ir import Tensor
from msc_core.ops.op import TRAINING, Bound, Call, Op, call


def batch_norm_from_aten(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Call:
    """`aten.batch_norm` in evaluation mode, with affine parameters and running statistics."""
    if training or weight is None or bias is None or running_mean is None or running_var is None:
        raise UnsupportedOperator("batch_norm needs affine parameters, running statistics and model.eval()")
    return call("batch_norm", input, weight, bias, running_mean, running_var, eps=eps, momentum=momentum)


def batch_norm_to_torch(b: Bound) -> Call:
    """`F.batch_norm`, which updates the running statistics in training mode."""
    x, weight, bias, mean, var = b.x
    return call(
        "F.batch_norm", x, mean, var, weight, bias, training=TRAINING, momentum=b["momentum"], eps=b["eps"]
    )  # fmt: skip


NORM = [
    Op(
        "batch_norm",
        axes="n c ..., c, c, c, c -> n c ...",
        attrs={"eps": 1e-5, "momentum": 0.1},
        statistics=(3, 4),
        aten={"batch_norm.default": batch_norm_from_aten},
        torch=batch_norm_to_torch,
        onnx=lambda b: call("BatchNormalization", *b.x, epsilon=b["eps"], momentum=1 - b["momentum"]),
        relax=lambda b: call("item", call("nn.batch_norm", *b.x, axis=1, epsilon=b["eps"], training=False), 0),
        msc="nn.batch_norm",
    ),
]
