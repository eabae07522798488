"""Softmax, and the losses that are made of its logarithm."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from msc_core import dims
from msc_core.errors import UnsupportedOperator
from msc_core.ir import Tensor
from msc_core.ops.arithmetic import overloads
from msc_core.ops.derived import derived
from msc_core.ops.dtypes import cast, kind, promote, scalar
from msc_core.ops.extremes import index
from msc_core.ops.op import Bound, Call, Importer, Op, Shape, Source, call

REDUCTIONS = ("none", "mean", "sum")  # by torch's numbers


def softmax_axes(b: Bound) -> str:
    """All axes pass, but the one that is normalized over comes out as a new one, `S`."""
    rank = len(b.input(0).shape)
    out = ["S" if i == b["axis"] % rank else f"a{i}" for i in range(rank)]
    return f"{' '.join(f'a{i}' for i in range(rank))} -> {' '.join(out)}"


def along(name: str, x: Any, axis: int, shape: Shape) -> Call:
    """A softmax of `x`, whose shape is given; a tensor without axes has one for a moment."""
    if shape:
        return call(name, x, axis=axis)
    return call("reshape", call(name, call("reshape", x, shape=(1,)), axis=0), shape=())


def from_aten(name: str, sign: int = 1) -> Importer:
    """`aten.softmax` and its like, which may compute in another dtype."""

    def importer(self: Tensor, dim: int, dtype: Any = None, half_to_float: bool = False) -> Call:
        wanted = "float32" if half_to_float else self.dtype if dtype is None else str(dtype).removeprefix("torch.")
        x = cast(self, wanted)
        return along(name, x if sign > 0 else call("negative", x), dim, self.shape)

    return importer


def from_onnx(name: str) -> Importer:
    """`Softmax`, which before opset 13 ran over all axes from the given one on."""

    def importer(n: Source) -> Call:
        x = n.tensor(0)
        axis = n.attr("axis", -1 if n.version >= 13 else 1)
        rank = len(x.shape)
        if n.version >= 13 or axis % rank == rank - 1:
            return along(name, x, axis, x.shape)
        rows = (dims.mul(*x.shape[: axis % rank]), dims.mul(*x.shape[axis % rank :]))
        return call("reshape", call(name, call("reshape", x, shape=rows), axis=1), shape=x.shape)

    return importer


def hardmax(n: Source) -> Call:
    """`Hardmax`: 1 where the first maximum is, otherwise 0."""
    x = n.tensor(0)
    axis = n.attr("axis", -1) % len(x.shape)
    length = x.shape[axis]
    if (n.version < 13 and axis != len(x.shape) - 1) or not isinstance(length, int):
        raise UnsupportedOperator(f"Hardmax over the axis {axis} of {list(x.shape)}")
    positions = np.arange(length).reshape(length, *(1,) * (len(x.shape) - 1 - axis))
    return call("cast", call("equal", index("argmax", x, axis, True), positions), dtype=x.dtype)


def softmax(name: str, onnx: str, relax: str, aten: dict[str, Importer], **importers: Importer) -> Op:
    """A row for a function that normalizes along an axis."""
    return Op(
        name,
        axes=softmax_axes,
        attrs={"axis": -1},
        new=lambda b, sizes: {"S": b.input(0).shape[b["axis"]]},
        aten=aten,
        from_onnx={onnx: from_onnx(name)} | importers,
        from_relax={relax: lambda n: along(name, n.tensor(0), n.attr("axis", -1), n.tensor(0).shape)},
        torch=lambda b: call(f"torch.{name}", *b.x, dim=b["axis"]),
        onnx=lambda b: call(onnx, *b.x, axis=b["axis"]),
        relax=lambda b: call(relax, *b.x, axis=b["axis"]),
        msc=relax,
    )


# Losses


def loss_shape(b: Bound) -> Shape:
    """That of the targets, or none."""
    return b.input(1).shape if b["reduction"] == "none" else ()


def one_hot(target: Any, shape: Shape, batch: Shape, axis: int) -> Call:
    """Booleans that are true at the target's class, along the axis of classes of `shape`."""
    classes = shape[axis]
    if not isinstance(classes, int):
        raise UnsupportedOperator(f"a loss over {classes} classes")
    positions = np.arange(classes).reshape(classes, *(1,) * (len(shape) - 1 - axis))
    return call("equal", call("reshape", target, shape=(*batch[:axis], 1, *batch[axis:])), positions)


def per_class(weight: Tensor, x: Tensor, axis: int) -> Call:
    """A weight for each class in a shape that broadcasts with `x`."""
    return call("reshape", weight, shape=(*weight.shape, *(1,) * (len(x.shape) - 1 - axis)))


def nll_loss(b: Bound) -> Any:
    """The negative log-probability of each target, weighted by its class; a target may be ignored."""
    x, target, weight = b.x
    assert x is not None and target is not None
    axis = min(1, len(x.shape) - 1)
    labels = cast(target, "int64")
    hot = one_hot(labels, x.shape, target.shape, axis)
    counted = call("not_equal", labels, scalar(b["ignore_index"], "int64"))
    zero = scalar(0, x.dtype)
    picked = call("sum", call("where", hot, x, zero), axes=(axis,), keepdims=False)
    share: Any = call("cast", counted, dtype=x.dtype)
    if weight is not None:
        weights = call("where", hot, per_class(weight, x, axis), zero)
        share = call("multiply", share, call("sum", weights, axes=(axis,), keepdims=False))
    loss = call("negative", call("where", counted, call("multiply", picked, share), zero))
    if b["reduction"] == "none":
        return loss
    axes = tuple(range(len(target.shape)))
    total = call("sum", loss, axes=axes, keepdims=False)
    return total if b["reduction"] == "sum" else call("divide", total, call("sum", share, axes=axes, keepdims=False))


def nll_from_aten(
    self: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1, ignore_index: int = -100
) -> Call:
    """`nll_loss` of any rank."""
    return call(
        "nll_loss", self, target, weight, reduction=REDUCTIONS[reduction], ignore_index=int(ignore_index)
    )  # fmt: skip


def reduce_mean_or_sum(x: Any, axes: tuple[int, ...], reduction: str) -> Any:
    """A loss of each sample, added up or averaged."""
    return x if reduction == "none" else call(reduction, x, axes=axes, keepdims=False)


def cross_entropy_from_aten(
    self: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:
    """`cross_entropy`, whose targets are classes or probabilities."""
    axis = min(1, len(self.shape) - 1)
    logs = call("log_softmax", self, axis=axis)
    if target.shape != self.shape:
        if label_smoothing:
            raise UnsupportedOperator(f"cross_entropy of classes with label_smoothing={label_smoothing}")
        return call("nll_loss", logs, target, weight, reduction=REDUCTIONS[reduction], ignore_index=int(ignore_index))
    likely: Any = target
    if label_smoothing:
        kept = call("multiply", target, scalar(1 - label_smoothing, self.dtype))
        likely = call("add", kept, scalar(label_smoothing / int(self.shape[axis]), self.dtype))
    if weight is not None:
        likely = call("multiply", likely, per_class(weight, self, axis))
    loss = call("negative", call("sum", call("multiply", logs, likely), axes=(axis,), keepdims=False))
    batch = (*self.shape[:axis], *self.shape[axis + 1 :])
    axes = tuple(range(len(batch)))
    if REDUCTIONS[reduction] != "mean":
        return reduce_mean_or_sum(loss, axes, REDUCTIONS[reduction])
    total = call("sum", loss, axes=axes, keepdims=False)
    return call("divide", total, scalar(dims.mul(*batch), self.dtype))


def loss_from_onnx(n: Source) -> Any:
    """`NegativeLogLikelihoodLoss` and `SoftmaxCrossEntropyLoss`, which may also return the log-probabilities."""
    x, target, weight = n.tensor(0), n.tensor(1), n.get(2)
    attrs = {"reduction": n.attr("reduction", "mean"), "ignore_index": int(n.attr("ignore_index", -100))}
    labels = cast(target, "int64")
    if n.op != "SoftmaxCrossEntropyLoss":
        return call("nll_loss", x, labels, weight, **attrs)
    logs = call("log_softmax", x, axis=1)
    loss = call("nll_loss", logs, labels, weight, **attrs)
    return loss if n.outputs < 2 else (loss, logs)


def loss_from_relax(n: Source) -> Call:
    """`nn.nll_loss`."""
    attrs = {"reduction": n.attr("reduction", "mean"), "ignore_index": int(n.attr("ignore_index", -100))}
    return call("nll_loss", n.tensor(0), cast(n.tensor(1), "int64"), n.get(2), **attrs)


def point_loss(name: str) -> Importer:
    """Losses that compare two tensors element by element."""

    def importer(self: Tensor, target: Tensor, reduction: int = 1, beta: float = 1.0, delta: float = 1.0) -> Any:
        dtype = promote(self, target)
        if kind(dtype) < 2:
            raise UnsupportedOperator(f"{name} of {dtype}")
        number = partial(scalar, dtype=dtype)
        difference = call("subtract", cast(self, dtype), cast(target, dtype))
        size, square = call("abs", difference), call("multiply", difference, difference)
        edge = {"smooth_l1_loss": beta, "huber_loss": delta}.get(name, 0)
        if name == "mse_loss":
            loss = square
        elif name == "l1_loss" or edge == 0:
            loss = size
        else:
            far = call("subtract", size, number(edge / 2))
            near = call("multiply", square, number(0.5 / edge))
            loss = call("where", call("less", size, number(edge)), near, far)
            loss = loss if name == "smooth_l1_loss" else call("multiply", loss, number(edge))
        rank = max(len(self.shape), len(target.shape))
        return reduce_mean_or_sum(loss, tuple(range(rank)), REDUCTIONS[reduction])

    return importer


SOFTMAX = [
    softmax(
        "softmax", "Softmax", "nn.softmax",
        overloads("softmax.int _softmax.default special_softmax.int", from_aten("softmax"))
        | {"softmin.int": from_aten("softmax", -1)},
        Hardmax=hardmax,
    ),
    softmax(
        "log_softmax", "LogSoftmax", "nn.log_softmax",
        overloads("log_softmax.int _log_softmax.default special_log_softmax.int", from_aten("log_softmax")),
    ),
    Op(
        "nll_loss",
        axes=None,
        operands=3,
        attrs={"reduction": "mean", "ignore_index": -100},
        shape=loss_shape,
        aten=overloads("nll_loss.default nll_loss_nd.default nll_loss2d.default", nll_from_aten)
        | {"cross_entropy_loss.default": cross_entropy_from_aten}
        | {f"{name}.default": point_loss(name) for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")},
        from_onnx={"NegativeLogLikelihoodLoss": loss_from_onnx, "SoftmaxCrossEntropyLoss": loss_from_onnx},
        from_relax={"nn.nll_loss": loss_from_relax},
        torch=lambda b: call(
            "F.nll_loss", *b.x, reduction=b["reduction"], ignore_index=b["ignore_index"]
        ),
        onnx=derived(nll_loss, "onnx"),
        relax=derived(nll_loss, "relax"),
        msc="nn.nll_loss",
    ),
]  # fmt: skip
