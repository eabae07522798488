"""Activation functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from msc_core import dims
from msc_core.dims import Dim
from msc_core.errors import InvalidGraph
from msc_core.ir import Tensor
from msc_core.ops.derived import derived
from msc_core.ops.dtypes import kind, scalar
from msc_core.ops.op import Bound, Call, Emit, Importer, Op, Shape, Source, call
from msc_core.ops.unary import number, unary


def activation(
    name: str,
    torch: str | Emit,
    expand: Callable[[Bound], Any],
    onnx: str | Emit | None = None,
    relax: str | Emit | None = None,
    *,
    keywords: str = "",
    **others: Any,
) -> Op:
    """A row for an activation; where a target has no word for it, `expand` says it in other rows.

    `keywords` are the attributes that torch takes under the same names.
    """
    return unary(
        name,
        onnx or derived(expand, "onnx"),
        relax or derived(expand, "relax"),
        torch if callable(torch) else lambda b: call(torch, *b.x, **{key: b[key] for key in keywords.split()}),
        **{"msc": relax if isinstance(relax, str) else ""} | others,
    )


def leaky(b: Bound, slope: Any) -> Call:
    """`x`, or where that is negative a multiple of it."""
    (x, *_) = b.x
    return call("where", call("less", x, number(b, 0)), call("multiply", x, slope), x)


def elu(b: Bound) -> Call:
    """`scale * x`, or where that is negative `scale * alpha * expm1(input_scale * x)`."""
    (x,) = b.x
    grown = call("expm1", call("multiply", x, number(b, b["input_scale"])))
    low = call("multiply", grown, number(b, b["scale"] * b["alpha"]))
    high = x if b["scale"] == 1 else call("multiply", x, number(b, b["scale"]))
    return call("where", call("less", x, number(b, 0)), low, high)


def celu(b: Bound) -> Call:
    """`x`, or where that is negative `alpha * expm1(x / alpha)`."""
    (x,) = b.x
    low = call("multiply", call("expm1", call("multiply", x, number(b, 1 / b["alpha"]))), number(b, b["alpha"]))
    return call("where", call("less", x, number(b, 0)), low, x)


def gelu(b: Bound) -> Call:
    """By `erf`, or by `tanh` in its approximation."""
    (x,) = b.x
    half = call("multiply", x, number(b, 0.5))
    if b["approximate"] == "none":
        curve = call("erf", call("multiply", x, number(b, math.sqrt(0.5))))
    else:
        cube = call("multiply", call("multiply", x, x), x)
        inner = call("add", x, call("multiply", cube, number(b, 0.044715)))
        curve = call("tanh", call("multiply", inner, number(b, math.sqrt(2 / math.pi))))
    return call("multiply", half, call("add", curve, number(b, 1)))


def softplus(b: Bound) -> Call:
    """`log(1 + exp(beta * x)) / beta`, which is `x` above the threshold."""
    (x,) = b.x
    inner = call("multiply", x, number(b, b["beta"]))
    positive = call("maximum", inner, number(b, 0))
    curve = call("add", positive, call("log1p", call("exp", call("negative", call("abs", inner)))))
    return call(
        "where", call("greater", inner, number(b, b["threshold"])), x, call("multiply", curve, number(b, 1 / b["beta"]))
    )


def log_sigmoid(b: Bound) -> Call:
    """`min(x, 0) - log(1 + exp(-|x|))`."""
    (x,) = b.x
    tail = call("log1p", call("exp", call("negative", call("abs", x))))
    return call("subtract", call("minimum", x, number(b, 0)), tail)


def mish(b: Bound) -> Call:
    """`x * tanh(softplus(x))`."""
    return call("multiply", b.x[0], call("tanh", call("softplus", b.x[0])))


def hard_sigmoid(b: Bound) -> Call:
    """`relu6(x + 3) / 6`."""
    shifted = call("clip", call("add", b.x[0], number(b, 3)), min=0.0, max=6.0)
    return call("multiply", shifted, number(b, 1 / 6))


def hard_sigmoid_from_onnx(n: Source) -> Any:
    """`HardSigmoid`, whose slope may be another than torch's 1/6."""
    x, slope, offset = n.tensor(0), n.attr("alpha", 0.2), n.attr("beta", 0.5)
    if abs(slope - 1 / 6) < 1e-7 and offset == 0.5:
        return call("hardsigmoid", x)
    line = call("add", call("multiply", x, scalar(slope, x.dtype)), scalar(offset, x.dtype))
    return call("clip", line, min=0.0, max=1.0)


def rrelu(
    self: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: Any = False, generator: Any = None
) -> Call:
    """`rrelu` in evaluation: the mean of the slopes."""
    return call("leaky_relu", self, slope=(float(lower) + float(upper)) / 2)


def prelu_axes(b: Bound) -> str:
    """The weight has one element, or one for each channel."""
    rank, slope = len(b.input(0).shape), b.input(1).shape
    letters = " ".join(f"a{i}" for i in range(rank))
    if slope == (1,) or not slope:
        return f"{letters}, {'.' * len(slope)} -> {letters}"
    return f"{letters}, a{1 if rank > 1 else 0} -> {letters}"


def channel_slope(b: Bound) -> Any:
    """The shape in which the weight of a `prelu` broadcasts."""
    rank, slope = len(b.input(0).shape), b.input(1).shape
    return (*slope, *(1,) * (rank - 2)) if slope not in ((1,), ()) and rank > 2 else slope


def prelu_to_onnx(b: Bound) -> Call:
    """`PRelu`, whose slope broadcasts."""
    shape = channel_slope(b)
    slope = b.x[1] if shape == b.input(1).shape else call("Reshape", b.x[1], np.asarray(shape, np.int64))
    return call("PRelu", b.x[0], slope)


def prelu_to_relax(b: Bound) -> Any:
    """A selection, with the slope in a shape that broadcasts."""
    shape = channel_slope(b)
    same = shape == b.input(1).shape
    return derived(lambda b: leaky(b, b.x[1] if same else call("reshape", b.x[1], shape=shape)), "relax")(b)


def prelu_from_onnx(n: Source) -> Call:
    """`PRelu`, whose slope may have any shape that broadcasts; one with a number per channel is a `prelu`."""
    x, slope = n.tensor(0), n.tensor(1)
    rank, count = len(x.shape), dims.mul(*slope.shape)
    if count == 1 and kind(x.dtype) == 2:
        return call("prelu", x, slope if slope.shape == (1,) else call("reshape", slope, shape=(1,)))
    channels = (count, *(1,) * (rank - 2))
    if rank > 1 and count == x.shape[1] and slope.shape in (channels, (1, *channels)) and kind(x.dtype) == 2:
        return call("prelu", x, slope if slope.shape == (count,) else call("reshape", slope, shape=(count,)))
    return call("where", call("less", x, scalar(0, x.dtype)), call("multiply", x, slope), x)


def prelu_from_relax(n: Source) -> Call:
    """`nn.prelu`, along any axis."""
    x, slope = n.tensor(0), n.tensor(1)
    rank, axis = len(x.shape), n.attr("axis", 1)
    if axis % rank == min(1, rank - 1):
        return call("prelu", x, slope)
    wide = call("reshape", slope, shape=(*slope.shape, *(1,) * (rank - 1 - axis % rank)))
    return call("where", call("less", x, scalar(0, x.dtype)), call("multiply", x, wide), x)


def glu_axes(b: Bound) -> str:
    """`"a0 (2 a1) -> a0 a1"`: both halves go together."""
    rank = len(b.input(0).shape)
    letters = [f"a{i}" for i in range(rank)]
    whole = [f"(2 {x})" if i == b["axis"] % rank else x for i, x in enumerate(letters)]
    return f"{' '.join(whole)} -> {' '.join(letters)}"


def glu_shape(b: Bound) -> Shape:
    """Half of the axis."""
    shape: list[Dim] = list(b.input(0).shape)
    axis = b["axis"] % len(shape)
    if dims.mod(shape[axis], 2) != 0:
        raise InvalidGraph(f"{b}: axis {axis} has {shape[axis]}; expected an even size")
    shape[axis] = dims.floordiv(shape[axis], 2)
    return tuple(shape)


def glu_to_onnx(b: Bound) -> Call:
    """The first half times the sigmoid of the second."""
    halves = call("Split", b.x[0], axis=b["axis"], num_outputs=2)
    first, second = (call("item", halves, i, count=2) for i in range(2))
    return call("Mul", first, call("Sigmoid", second))


def glu_to_relax(b: Bound) -> Call:
    """As for ONNX."""
    halves = call("split", b.x[0], 2, axis=b["axis"] % len(b.input(0).shape))
    return call("multiply", call("item", halves, 0), call("sigmoid", call("item", halves, 1)))


def threshold(self: Tensor, threshold: float, value: float) -> Call:
    """`x` where it is above the threshold, else a value."""
    above = call("greater", self, scalar(threshold, self.dtype))
    return call("where", above, self, scalar(value, self.dtype))


def hard_shrink(self: Tensor, lambd: float = 0.5) -> Call:
    """Zero where `|x|` is at most `lambd`."""
    small = call("less_equal", call("abs", self), scalar(lambd, self.dtype))
    return call("where", small, scalar(0, self.dtype), self)


def shrink(x: Tensor, lambd: float, bias: float) -> Call:
    """ONNX's `Shrink`: zero where `|x|` is at most `lambd`, otherwise nearer to zero by `bias`."""
    wide = x if kind(x.dtype) == 2 else call("cast", x, dtype="float32")
    dtype = x.dtype if kind(x.dtype) == 2 else "float32"
    limit, step, zero = scalar(lambd, dtype), scalar(bias, dtype), scalar(0, dtype)
    low = call("where", call("less", wide, call("negative", limit)), call("add", wide, step), zero)
    found = call("where", call("greater", wide, limit), call("subtract", wide, step), low)
    return found if dtype == x.dtype else call("cast", found, dtype=x.dtype)


def elu_from_aten(self: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Call:
    """`elu`, with the two scales that only the schema has."""
    return call("elu", self, alpha=float(alpha), scale=float(scale), input_scale=float(input_scale))


def only(b: Bound, plain: bool, said: Call, expand: Callable[[Bound], Any], target: str) -> Any:
    """What a target says of the plain form of a node, and of other forms in other rows."""
    return said if plain else derived(expand, target)(b)


def is_plain_elu(b: Bound) -> bool:
    """Whether both scales are 1."""
    return bool(b["scale"] == b["input_scale"] == 1)


def gelu_from_relax(kind: str) -> Importer:
    """`nn.gelu` or `nn.gelu_tanh`."""
    return lambda n: call("gelu", n.tensor(0), approximate=kind)


def softplus_from_aten(self: Tensor, beta: float = 1, threshold: float = 20) -> Call:
    """`softplus`."""
    return call("softplus", self, beta=float(beta), threshold=float(threshold))


def selu(b: Bound) -> Call:
    """An `elu` of fixed scales."""
    return call("elu", b.x[0], alpha=SELU[0], scale=SELU[1])


def selu_to_onnx(b: Bound) -> Call:
    """`Selu`; its defaults are torch's numbers."""
    return call("Selu", *b.x)


def selu_from_onnx(n: Source) -> Call:
    """`Selu`, whose numbers may be others than usual."""
    alpha, gamma = float(n.attr("alpha", SELU[0])), float(n.attr("gamma", SELU[1]))
    usual = abs(alpha - SELU[0]) + abs(gamma - SELU[1]) < 1e-6
    return call("selu", n.tensor(0)) if usual else call("elu", n.tensor(0), alpha=alpha, scale=gamma)


def swish(n: Source) -> Call:
    """`Swish`, whose sigmoid may have another slope."""
    x, alpha = n.tensor(0), n.attr("alpha", 1.0)
    if alpha == 1:
        return call("silu", x)
    return call("multiply", x, call("sigmoid", call("multiply", x, scalar(alpha, x.dtype))))


SELU = (1.6732632423543772, 1.0507009873554805)
GELU = {"none": "nn.gelu", "tanh": "nn.gelu_tanh"}
COMPOSED: Mapping[str, Importer] = {
    "threshold": threshold,
    "hardshrink": hard_shrink,
    "softshrink": lambda self, lambd=0.5: shrink(self, lambd, lambd),
    "tanhshrink": lambda self: call("subtract", self, call("tanh", self)),
}

ACTIVATION: list[Op] = [
    unary("relu", "Relu", "nn.relu", "F.relu", integers="keep"),
    activation(
        "leaky_relu", lambda b: call("F.leaky_relu", *b.x, negative_slope=b["slope"]),
        lambda b: leaky(b, number(b, b["slope"])),
        lambda b: call("LeakyRelu", *b.x, alpha=b["slope"]), attrs={"slope": 0.01},
        aten={"leaky_relu.default": lambda self, negative_slope=0.01: call(
            "leaky_relu", self, slope=float(negative_slope)),
            "rrelu.default": rrelu,
            "rrelu_with_noise_functional.default": lambda self, noise, **how: (rrelu(self, **how), noise)},
        from_onnx={"LeakyRelu": lambda n: call("leaky_relu", n.tensor(0), slope=float(n.attr("alpha", 0.01)))},
        from_relax={"nn.leakyrelu": lambda n: call("leaky_relu", n.tensor(0), slope=float(n.attr("alpha", 0.01)))},
        msc="nn.leaky_relu",
    ),
    Op(
        "prelu",
        axes=prelu_axes,
        aten={
            f"{name}.default": lambda self, weight: call("prelu", self, weight) for name in ("prelu", "_prelu_kernel")
        },
        from_onnx={"PRelu": prelu_from_onnx},
        from_relax={"nn.prelu": prelu_from_relax},
        torch=lambda b: call("F.prelu", *b.x),
        onnx=prelu_to_onnx,
        relax=prelu_to_relax,
    ),
    activation(
        "elu", lambda b: only(b, is_plain_elu(b), call("F.elu", *b.x, alpha=b["alpha"]), elu, "torch"), elu,
        lambda b: only(b, is_plain_elu(b), call("Elu", *b.x, alpha=b["alpha"]), elu, "onnx"),
        attrs={"alpha": 1.0, "scale": 1.0, "input_scale": 1.0},
        aten={"elu.default": elu_from_aten},
        from_onnx={"Elu": lambda n: call("elu", n.tensor(0), alpha=float(n.attr("alpha", 1.0)))},
    ),
    activation("selu", "F.selu", selu, selu_to_onnx, "nn.selu", from_onnx={"Selu": selu_from_onnx}),
    activation(
        "celu", "F.celu", celu, attrs={"alpha": 1.0}, keywords="alpha",
        aten={"celu.default": lambda self, alpha=1.0: call("celu", self, alpha=float(alpha))},
        from_onnx={"Celu": lambda n: call("celu", n.tensor(0), alpha=float(n.attr("alpha", 1.0)))},
    ),
    activation(
        "gelu", "F.gelu", gelu, None, lambda b: call(GELU[b["approximate"]], *b.x), attrs={"approximate": "none"},
        keywords="approximate",
        aten={"gelu.default": lambda self, approximate="none": call("gelu", self, approximate=approximate)},
        from_onnx={"Gelu": lambda n: call("gelu", n.tensor(0), approximate=n.attr("approximate", "none"))},
        from_relax={name: gelu_from_relax(kind) for kind, name in GELU.items()}, msc="nn.gelu",
    ),
    activation(
        "silu", "F.silu", lambda b: call("multiply", b.x[0], call("sigmoid", b.x[0])), None, "nn.silu",
        from_onnx={"Swish": swish},
    ),
    activation("mish", "F.mish", mish, "Mish"),
    activation(
        "hardsigmoid", "F.hardsigmoid", hard_sigmoid, lambda b: call("HardSigmoid", *b.x, alpha=1 / 6, beta=0.5),
        from_onnx={"HardSigmoid": hard_sigmoid_from_onnx},
    ),
    activation(
        "hardswish", "F.hardswish", lambda b: call("multiply", b.x[0], call("hardsigmoid", b.x[0])), "HardSwish"
    ),
    activation(
        "softplus", "F.softplus", softplus,
        lambda b: only(b, b["beta"] == 1 and b["threshold"] == 20, call("Softplus", *b.x), softplus, "onnx"),
        attrs={"beta": 1.0, "threshold": 20.0}, keywords="beta threshold",
        aten={"softplus.default": softplus_from_aten},
        from_onnx={"Softplus": lambda n: call("softplus", n.tensor(0))},
        from_relax={"nn.softplus": lambda n: softplus_from_aten(n.tensor(0), **n.attrs)},
    ),
    activation(
        "softsign", "F.softsign", lambda b: call("divide", b.x[0], call("add", call("abs", b.x[0]), number(b, 1))),
        "Softsign", aten={},
    ),
    activation("log_sigmoid", "F.logsigmoid", log_sigmoid),
    Op(
        "glu",
        axes=glu_axes,
        attrs={"axis": -1},
        shape=glu_shape,
        aten={"glu.default": lambda self, dim=-1: call("glu", self, axis=dim)}
        | {f"{name}.default": importer for name, importer in COMPOSED.items()},
        from_onnx={
            "ThresholdedRelu": lambda n: threshold(n.tensor(0), n.attr("alpha", 1.0), 0),
            "Shrink": lambda n: shrink(n.tensor(0), n.attr("lambd", 0.5), n.attr("bias", 0.0)),
        },
        torch=lambda b: call("F.glu", *b.x, dim=b["axis"]),
        onnx=glu_to_onnx,
        relax=glu_to_relax,
    ),
]  # fmt: skip
