"""Batch normalization, norms across channels, and what norms are made of."""

from __future__ import annotations

from typing import Any

import numpy as np

from msc_core import dims
from msc_core.dims import Dim
from msc_core.errors import UnsupportedOperator
from msc_core.exchange import numpy_dtype
from msc_core.ir import Array, Tensor
from msc_core.ops.derived import derived
from msc_core.ops.dtypes import cast, scalar
from msc_core.ops.op import TRAINING, Bound, Call, Op, Source, call

# What norms are made of


def moments(x: Any, axes: tuple[int, ...]) -> tuple[Call, Call]:
    """The mean over some axes, which stay as 1, and the variance."""
    mean = call("mean", x, axes=axes, keepdims=True)
    centered = call("subtract", x, mean)
    return mean, call("mean", call("multiply", centered, centered), axes=axes, keepdims=True)


def standardized(x: Any, axes: tuple[int, ...], eps: float, dtype: str) -> Call:
    """`x` with a mean of 0 and a variance of 1 over some axes."""
    mean, variance = moments(x, axes)
    return call("divide", call("subtract", x, mean), call("sqrt", call("add", variance, scalar(eps, dtype))))


def scaled(x: Any, weight: Any, bias: Any) -> Any:
    """`x * weight + bias`, of those that are there."""
    x = x if weight is None else call("multiply", x, weight)
    return x if bias is None else call("add", x, bias)


def along_channels(parameter: Tensor | None, rank: int) -> Call | None:
    """A parameter of one number for each channel in the shape that fits an input of that rank."""
    return None if parameter is None else call("reshape", parameter, shape=(1, -1, *[1] * (rank - 2)))


def filled(dim: Dim, dtype: str, value: float, where: str) -> Array:
    """A constant parameter, for what is absent."""
    if isinstance(dim, str):
        raise UnsupportedOperator(f"{where}: a norm without parameters over the symbolic size {dim}")
    return np.full(dim, value, numpy_dtype(dtype))


# Batch norm


def batch_norm_from_aten(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Any:
    """`aten.batch_norm` in evaluation mode; without running statistics it takes those of the batch, as torch does."""
    if running_mean is None or running_var is None:
        axes = (0, *range(2, len(input.shape)))
        rank = len(input.shape)
        return scaled(
            standardized(input, axes, eps, input.dtype), along_channels(weight, rank), along_channels(bias, rank)
        )  # fmt: skip
    if training:
        raise UnsupportedOperator("batch_norm that updates its running statistics; call model.eval()")
    affine = [
        filled(input.shape[1], running_mean.dtype, neutral, "batch_norm") if given is None else given
        for given, neutral in ((weight, 1), (bias, 0))
    ]
    return call("batch_norm", input, *affine, running_mean, running_var, eps=eps, momentum=momentum)


def core_batch_norm_from_aten(
    input: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[Any, None, None]:
    """The core forms, whose saved statistics are for the backward pass."""
    return batch_norm_from_aten(input, weight, bias, running_mean, running_var, training, momentum, eps), None, None


def batch_norm_from_onnx(n: Source) -> Any:
    """`BatchNormalization`; in training mode by the batch's statistics, with the running ones as further outputs."""
    x = n.tensor(0)
    weight, bias, mean, variance = (cast(n.tensor(i), x.dtype) for i in (1, 2, 3, 4))
    eps, momentum = n.attr("epsilon", 1e-5), n.attr("momentum", 0.9)
    if not n.attr("training_mode", 0):
        if n.outputs > 1:
            raise UnsupportedOperator("BatchNormalization with running statistics as outputs")
        return call("batch_norm", x, weight, bias, mean, variance, eps=eps, momentum=1 - momentum)
    rank = len(x.shape)
    axes = (0, *range(2, rank))
    y = scaled(standardized(x, axes, eps, x.dtype), *(_along(p, rank) for p in (weight, bias)))
    if n.outputs == 1:
        return y
    found = [call("reshape", part, shape=n.tensor(3).shape) for part in moments(x, axes)]
    old = [n.tensor(3), n.tensor(4)]
    return (y, *(_blend(a, b, momentum, x.dtype) for a, b in zip(old, found, strict=True)))


def _along(parameter: Any, rank: int) -> Call:
    return call("reshape", parameter, shape=(1, -1, *[1] * (rank - 2)))


def _blend(old: Tensor, new: Call, momentum: float, dtype: str) -> Call:
    kept = call("multiply", old, scalar(momentum, old.dtype))
    added = call("multiply", new, scalar(1 - momentum, dtype))
    return call("add", kept, cast(added, old.dtype, dtype))


def batch_norm_from_relax(n: Source) -> Any:
    """`nn.batch_norm` in evaluation mode, which returns the running statistics too."""
    x = n.tensor(0)
    if n.attr("training", False):
        raise UnsupportedOperator("nn.batch_norm with training=True")
    weight = n.tensor(1) if n.attr("scale", True) else filled(n.tensor(1).shape[0], x.dtype, 1, n.op)
    bias = n.tensor(2) if n.attr("center", True) else filled(n.tensor(2).shape[0], x.dtype, 0, n.op)
    attrs = {"eps": n.attr("epsilon", 1e-5), "momentum": n.attr("momentum", 0.1)}
    axis, rank = n.attr("axis", 1) % len(x.shape), len(x.shape)
    if axis == 1:
        return call("batch_norm", x, weight, bias, n.tensor(3), n.tensor(4), **attrs), n.tensor(3), n.tensor(4)
    order = (0, axis, *(i for i in range(1, rank) if i != axis))
    back = tuple(order.index(i) for i in range(rank))
    y = call("batch_norm", call("permute_dims", x, axes=order), weight, bias, n.tensor(3), n.tensor(4), **attrs)
    return call("permute_dims", y, axes=back), n.tensor(3), n.tensor(4)


def batch_norm_to_torch(b: Bound) -> Call:
    """`F.batch_norm`, which updates the running statistics in training mode."""
    x, weight, bias, mean, var = b.x
    return call(
        "F.batch_norm", x, mean, var, weight, bias, training=TRAINING, momentum=b["momentum"], eps=b["eps"]
    )  # fmt: skip


# Norms across channels, and compositions


def local_response_steps(b: Bound) -> Any:
    """A local response norm in small steps: a sum of slices along the channels."""
    x = b.input(0)
    size, rest = b["size"], [0] * (len(x.shape) - 2)
    before = (size - 1) // 2
    padding = (0, before, *rest, 0, size - 1 - before, *rest)
    squares = call("pad", call("multiply", x, x), padding=padding) if size > 1 else call("multiply", x, x)
    total: Any = None
    for i in range(size):
        part = call("strided_slice", squares, axes=(1,), begin=(i,), end=(dims.add(x.shape[1], i),))
        total = part if total is None else call("add", total, part)
    total = call("multiply", total, scalar(b["alpha"] / size, x.dtype))
    base = call("add", total, scalar(b["k"], x.dtype))
    return call("divide", x, call("power", base, scalar(b["beta"], x.dtype)))


def local_response_to_onnx(b: Bound) -> Any:
    """`LRN`, which ONNX Runtime has for images and windows of an odd size."""
    if b["size"] % 2 == 0 or len(b.input(0).shape) != 4 or b.input(0).dtype != "float32":
        return derived(local_response_steps, "onnx")(b)
    return call("LRN", *b.x, size=b["size"], alpha=b["alpha"], beta=b["beta"], bias=b["k"])


def local_response_to_torch(b: Bound) -> Call:
    """`F.local_response_norm`, whose window of an even size leans to the other side."""
    x = b.x[0] if b["size"] % 2 else call("torch.flip", *b.x, (1,))
    y = call("F.local_response_norm", x, b["size"], alpha=b["alpha"], beta=b["beta"], k=b["k"])
    return y if b["size"] % 2 else call("torch.flip", y, (1,))


def lp_normalization_from_onnx(n: Source) -> Call:
    """`LpNormalization`; what has no length stays 0."""
    x, p = n.tensor(0), n.attr("p", 2)
    if p not in (1, 2):
        raise UnsupportedOperator(f"LpNormalization with p={p}; expected 1 or 2")
    axes = (n.attr("axis", -1) % len(x.shape),)
    powers = call("abs", x) if p == 1 else call("multiply", x, x)
    length = call("sum", powers, axes=axes, keepdims=True)
    length = length if p == 1 else call("sqrt", length)
    return call("divide", x, call("maximum", length, scalar(float(np.finfo(x.dtype).tiny), x.dtype)))


def mean_variance_from_onnx(n: Source) -> Call:
    """`MeanVarianceNormalization`."""
    x = n.tensor(0)
    axes = tuple(a % len(x.shape) for a in n.attr("axes", (0, 2, 3)))
    mean, variance = moments(x, axes)
    deviation = call("add", call("sqrt", variance), scalar(1e-9, x.dtype))
    return call("divide", call("subtract", x, mean), deviation)


CORE_BATCH_NORM = (
    "_native_batch_norm_legit_no_training.default", "native_batch_norm.default", "_native_batch_norm_legit.default",
    "_native_batch_norm_legit.no_stats",
)  # fmt: skip
NORM = [
    Op(
        "batch_norm",
        axes="n c ..., c, c, c, c -> n c ...",
        attrs={"eps": 1e-5, "momentum": 0.1},
        statistics=(3, 4),
        aten={"batch_norm.default": batch_norm_from_aten} | dict.fromkeys(CORE_BATCH_NORM, core_batch_norm_from_aten),
        from_onnx={
            "BatchNormalization": batch_norm_from_onnx,
            "MeanVarianceNormalization": mean_variance_from_onnx,
            "LpNormalization": lp_normalization_from_onnx,
        },
        from_relax={"nn.batch_norm": batch_norm_from_relax},
        torch=batch_norm_to_torch,
        onnx=lambda b: call("BatchNormalization", *b.x, epsilon=b["eps"], momentum=1 - b["momentum"]),
        relax=lambda b: call("item", call("nn.batch_norm", *b.x, axis=1, epsilon=b["eps"], training=False), 0),
        msc="nn.batch_norm",
    ),
    Op(
        "local_response_norm",
        axes="n c ... -> n C ...",
        attrs={"size": 1, "alpha": 1e-4, "beta": 0.75, "k": 1.0},
        new=lambda b, known: {"C": known["c"]},
        from_onnx={
            "LRN": lambda n: call(
                "local_response_norm", n.tensor(0), size=n.attr("size"), alpha=n.attr("alpha", 1e-4),
                beta=n.attr("beta", 0.75), k=n.attr("bias", 1.0),
            )
        },
        torch=local_response_to_torch,
        onnx=local_response_to_onnx,
        relax=derived(local_response_steps, "relax"),
    ),
]  # fmt: skip
