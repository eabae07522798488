"""Norms of each sample by its own statistics: layer, RMS, group and instance norm.

Of an axis over which statistics are taken positions can go: then the norm is that of the positions that remain.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from msc_core import dims
from msc_core.dims import Dim
from msc_core.errors import UnsupportedOperator
from msc_core.exchange import numpy_dtype
from msc_core.ir import Tensor
from msc_core.ops.derived import derived
from msc_core.ops.dtypes import cast, scalar
from msc_core.ops.norm import along_channels, batch_norm_from_aten, moments, scaled, standardized
from msc_core.ops.op import Bound, Call, Op, Source, call, sizes
from msc_core.ops.signature import Sizes

NARROW = ("float16", "bfloat16")  # their statistics are taken in float32


def parameters(b: Bound, shape: tuple[Dim, ...]) -> tuple[Any, Any]:
    """Weight and bias, with constants of that shape for those that are absent."""
    kind = b.input(0).dtype
    if all(p is not None for p in b.x[1:3]):
        return b.x[1], b.x[2]
    if any(isinstance(d, str) for d in shape):
        raise UnsupportedOperator(f"{b}: no parameters, over the symbolic shape {list(shape)}")
    ones, zeros = (np.full(tuple(map(int, shape)), value, numpy_dtype(kind)) for value in (1, 0))
    return (ones if b.x[1] is None else b.x[1]), (zeros if b.x[2] is None else b.x[2])


# Layer norm and RMS norm: over the axes from `axis` on


def trailing_axes(b: Bound) -> str:
    """`"a0 n0 n1, n0 n1? -> a0 n0 n1"` and the like."""
    rank = len(b.input(0).shape)
    axis = b["axis"] % rank
    kept, normalized = [f"a{i}" for i in range(axis)], [f"n{i}" for i in range(axis, rank)]
    parameter = f"{' '.join(normalized)}?"
    count = 2 if b.op.name == "layer_norm" else 1
    every = " ".join([*kept, *normalized])
    return f"{every}{f', {parameter}' * count} -> {every}"


def normalized(b: Bound) -> tuple[tuple[int, ...], tuple[Dim, ...]]:
    """The axes of a layer norm and their sizes."""
    shape = b.input(0).shape
    axis = b["axis"] % len(shape)
    return tuple(range(axis, len(shape))), shape[axis:]


def layer_norm_from_aten(
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Call:
    """`aten.layer_norm`."""
    return call("layer_norm", input, weight, bias, axis=-len(normalized_shape), eps=eps)


def native_layer_norm_from_aten(
    input: Tensor, normalized_shape: Any, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Any, ...]:
    """`aten.native_layer_norm`, with the mean and the inverse deviation."""
    statistics = _mean_and_inverse(input, -len(normalized_shape), eps)
    return (layer_norm_from_aten(input, normalized_shape, weight, bias, eps), *statistics)


def _mean_and_inverse(x: Tensor, axis: int, eps: float) -> tuple[Call, Call]:
    axes = tuple(range(axis % len(x.shape), len(x.shape)))
    kind = "float32" if x.dtype in NARROW else x.dtype
    mean, variance = moments(cast(x, kind), axes)
    deviation = call("sqrt", call("add", variance, scalar(eps, kind)))
    return mean, call("divide", scalar(1.0, kind), deviation)


def layer_norm_from_onnx(n: Source) -> Any:
    """`LayerNormalization`, whose parameters may broadcast."""
    x, axis = n.tensor(0), n.attr("axis", -1)
    eps = n.attr("epsilon", 1e-5)
    shape = x.shape[axis % len(x.shape) :]
    weight, bias = n.tensor(1), n.get(2)
    if all(p is None or p.shape == shape for p in (weight, bias)):
        y = call("layer_norm", x, weight, bias, axis=axis % len(x.shape) - len(x.shape), eps=eps)
    else:
        y = scaled(call("layer_norm", x, axis=axis % len(x.shape) - len(x.shape), eps=eps), weight, bias)
    return y if n.outputs == 1 else (y, *_mean_and_inverse(x, axis, eps))


def layer_norm_from_relax(n: Source) -> Call:
    """`nn.layer_norm` over the last axes."""
    x = n.tensor(0)
    axes = sorted(a % len(x.shape) for a in n.attr("axes"))
    if axes != list(range(len(x.shape) - len(axes), len(x.shape))):
        raise UnsupportedOperator(f"nn.layer_norm over axes {axes} of {len(x.shape)}; expected the last ones")
    weight = n.tensor(1) if n.attr("scale", True) else None
    bias = n.tensor(2) if n.attr("center", True) else None
    return call("layer_norm", x, weight, bias, axis=-len(axes), eps=n.attr("epsilon", 1e-5))


def layer_norm_to_onnx(b: Bound) -> Call:
    """`LayerNormalization`, which needs a scale."""
    weight, _ = (b.x[1], None) if b.x[1] is not None else parameters(b, normalized(b)[1])
    return call("LayerNormalization", b.x[0], weight, b.x[2], axis=b["axis"], epsilon=b["eps"])


def layer_norm_steps(b: Bound) -> Any:
    """A layer norm in small steps."""
    x = b.input(0)
    return scaled(standardized(x, normalized(b)[0], b["eps"], x.dtype), *b.x[1:3])


def layer_norm_to_relax(b: Bound) -> Any:
    """`nn.layer_norm`, which needs both parameters and mixes dtypes for float64."""
    axes, shape = normalized(b)
    if b.input(0).dtype == "float64":
        return derived(layer_norm_steps, "relax")(b)
    return call("nn.layer_norm", b.x[0], *parameters(b, shape), axes=axes, epsilon=b["eps"])


def rms_norm_from_aten(
    input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None
) -> Call:
    """`aten.rms_norm`, whose default for `eps` depends on the dtype."""
    if eps is None:
        eps = 2.0**-7 if input.dtype == "bfloat16" else float(np.finfo(input.dtype).eps)
    return call("rms_norm", input, weight, axis=-len(normalized_shape), eps=eps)


def fused_rms_norm_from_aten(
    input: Tensor, normalized_shape: Any, weight: Tensor | None, eps: float | None
) -> tuple[Any, None]:
    """`aten._fused_rms_norm`, whose second output is for the backward pass."""
    return rms_norm_from_aten(input, normalized_shape, weight, eps), None


def rms_norm_from_onnx(n: Source) -> Any:
    """`RMSNormalization`, whose scale may broadcast."""
    x, axis, weight = n.tensor(0), n.attr("axis", -1), n.tensor(1)
    attrs = {"axis": axis % len(x.shape) - len(x.shape), "eps": n.attr("epsilon", 1e-5)}
    if weight.shape == x.shape[axis % len(x.shape) :]:
        return call("rms_norm", x, weight, **attrs)
    return scaled(call("rms_norm", x, **attrs), weight, None)


def rms_norm_from_relax(n: Source) -> Call:
    """`nn.rms_norm` over the last axes."""
    x, axes = n.tensor(0), n.attr("axes")
    axes = sorted(a % len(x.shape) for a in ((axes,) if isinstance(axes, int) else axes))
    if axes != list(range(len(x.shape) - len(axes), len(x.shape))):
        raise UnsupportedOperator(f"nn.rms_norm over axes {axes} of {len(x.shape)}; expected the last ones")
    return call("rms_norm", x, n.tensor(1), axis=-len(axes), eps=n.attr("epsilon", 1e-5))


def rms_norm_steps(b: Bound) -> Any:
    """An RMS norm in small steps, in float32 at least."""
    x = b.input(0)
    kind = "float32" if x.dtype in NARROW else x.dtype
    wide = cast(x, kind)
    square = call("mean", call("multiply", wide, wide), axes=normalized(b)[0], keepdims=True)
    y = call("divide", wide, call("sqrt", call("add", square, scalar(b["eps"], kind))))
    return scaled(cast(y, x.dtype, kind), b.x[1], None)


def rms_norm_to_relax(b: Bound) -> Any:
    """`nn.rms_norm`, which needs a weight and an axis that is not normalized."""
    if b.x[1] is None or len(normalized(b)[0]) == len(b.input(0).shape):
        return derived(rms_norm_steps, "relax")(b)
    return call("nn.rms_norm", *b.x, axes=normalized(b)[0], epsilon=b["eps"])


# Group norm and instance norm: over the spatial axes, for each group or channel


def group_axes(b: Bound) -> str:
    """Whole groups can go, and of each group the same channels; the spatial axes come out as new ones."""
    spatial = [f"s{i}" for i in range(len(b.input(0).shape) - 2)]
    out = [x.upper() for x in spatial]
    return f"n (g c) {' '.join(spatial)}, (g c)?, (g c)? -> n (g c) {' '.join(out)}"


def instance_axes(b: Bound) -> str:
    """Channels pass; the spatial axes come out as new ones."""
    spatial = [f"s{i}" for i in range(len(b.input(0).shape) - 2)]
    return f"n c {' '.join(spatial)}, c?, c? -> n c {' '.join(x.upper() for x in spatial)}"


def spatial_sizes(b: Bound, known: Sizes) -> Sizes:
    """The axes that are normalized over keep their sizes."""
    return {letter.upper(): size for letter, size in known.items() if letter.startswith("s")}


def group_norm_from_aten(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Call:
    """`aten.group_norm`."""
    return call("group_norm", input, weight, bias, groups=num_groups, eps=eps)


def native_group_norm_from_aten(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, N: Any, C: Any, HxW: Any, group: int, eps: float
) -> tuple[Any, ...]:
    """`aten.native_group_norm`, with the mean and the inverse deviation of each group."""
    rows = call("reshape", input, shape=(N, group, dims.mul(dims.floordiv(C, group), HxW)))
    mean, variance = moments(rows, (2,))
    inverse = call("divide", scalar(1.0, input.dtype), call("sqrt", call("add", variance, scalar(eps, input.dtype))))
    statistics = (call("reshape", part, shape=(N, group)) for part in (mean, inverse))
    return (call("group_norm", input, weight, bias, groups=group, eps=eps), *statistics)


def group_norm_from_onnx(n: Source) -> Any:
    """`GroupNormalization`, whose parameters are for each group in opset 18 and for each channel from opset 21 on."""
    x, groups = n.tensor(0), n.attr("num_groups")
    channels = x.shape[1]
    parameters: list[Any] = [n.tensor(1), n.tensor(2)]
    if parameters[0].shape == (groups,) and channels != groups:
        each = dims.floordiv(channels, groups)
        spread = [call("broadcast_to", call("reshape", p, shape=(-1, 1)), shape=(groups, each)) for p in parameters]
        parameters = [call("reshape", p, shape=(channels,)) for p in spread]
    return call("group_norm", x, *parameters, groups=groups, eps=n.attr("epsilon", 1e-5))


def group_norm_from_relax(n: Source) -> Call:
    """`nn.group_norm` of channels on axis 1."""
    x, rank = n.tensor(0), len(n.tensor(0).shape)
    if n.attr("channel_axis") % rank != 1 or sorted(a % rank for a in n.attr("axes")) != list(range(2, rank)):
        raise UnsupportedOperator(f"nn.group_norm of channels {n.attr('channel_axis')} over {n.attr('axes')}")
    weight = n.tensor(1) if n.attr("scale", True) else None
    bias = n.tensor(2) if n.attr("center", True) else None
    return call("group_norm", x, weight, bias, groups=n.attr("num_groups"), eps=n.attr("epsilon", 1e-5))


def group_norm_steps(b: Bound) -> Any:
    """A group norm as an instance norm whose channels are the groups."""
    x = b.input(0)
    shape = x.shape
    inner = dims.mul(dims.floordiv(shape[1], b["groups"]), *shape[2:])
    rows = call("reshape", x, shape=(shape[0], b["groups"], inner))
    y = call("reshape", call("instance_norm", rows, eps=b["eps"]), shape=shape)
    return scaled(y, *(along_channels(p, len(shape)) for p in b.x[1:3]))


def group_norm_to_relax(b: Bound) -> Any:
    """`nn.group_norm`, which needs both parameters and spatial axes, and mixes dtypes for float64."""
    x = b.input(0)
    if len(x.shape) == 2 or x.dtype == "float64":
        return derived(group_norm_steps, "relax")(b)
    axes = tuple(range(2, len(x.shape)))
    return call(
        "nn.group_norm", x, *parameters(b, x.shape[1:2]), num_groups=b["groups"], channel_axis=1, axes=axes,
        epsilon=b["eps"],
    )  # fmt: skip


def instance_norm_from_aten(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Any:
    """`aten.instance_norm`: a batch norm if it uses running statistics."""
    if use_input_stats:
        return call("instance_norm", input, weight, bias, eps=eps)
    return batch_norm_from_aten(input, weight, bias, running_mean, running_var, False, momentum, eps)


def instance_norm_from_relax(n: Source) -> Call:
    """`nn.instance_norm` of channels on axis 1."""
    x, rank = n.tensor(0), len(n.tensor(0).shape)
    if n.attr("channel_axis") % rank != 1 or sorted(a % rank for a in n.attr("axes")) != list(range(2, rank)):
        raise UnsupportedOperator(f"nn.instance_norm of channels {n.attr('channel_axis')} over {n.attr('axes')}")
    weight = n.tensor(1) if n.attr("scale", True) else None
    bias = n.tensor(2) if n.attr("center", True) else None
    return call("instance_norm", x, weight, bias, eps=n.attr("epsilon", 1e-5))


def instance_norm_steps(b: Bound) -> Any:
    """An instance norm in small steps."""
    x = b.input(0)
    y = standardized(x, tuple(range(2, len(x.shape))), b["eps"], x.dtype)
    return scaled(y, *(along_channels(p, len(x.shape)) for p in b.x[1:3]))


def instance_norm_to_onnx(b: Bound) -> Any:
    """`InstanceNormalization`, which ONNX Runtime has for float32 only."""
    x = b.input(0)
    if x.dtype != "float32":
        return derived(instance_norm_steps, "onnx")(b)
    return call("InstanceNormalization", x, *parameters(b, x.shape[1:2]), epsilon=b["eps"])


LAYER_NORM = [
    Op(
        "layer_norm",
        axes=trailing_axes,
        attrs={"axis": -1, "eps": 1e-5},
        aten={"layer_norm.default": layer_norm_from_aten, "native_layer_norm.default": native_layer_norm_from_aten},
        from_onnx={"LayerNormalization": layer_norm_from_onnx},
        from_relax={"nn.layer_norm": layer_norm_from_relax},
        torch=lambda b: call("F.layer_norm", b.x[0], sizes(normalized(b)[1]), b.x[1], b.x[2], eps=b["eps"]),
        onnx=layer_norm_to_onnx,
        relax=layer_norm_to_relax,
        msc="nn.layer_norm",
    ),
    Op(
        "rms_norm",
        axes=trailing_axes,
        attrs={"axis": -1, "eps": 1e-5},
        aten={"rms_norm.default": rms_norm_from_aten, "_fused_rms_norm.default": fused_rms_norm_from_aten},
        from_onnx=dict.fromkeys(("RMSNormalization", "SimplifiedLayerNormalization"), rms_norm_from_onnx),
        from_relax={"nn.rms_norm": rms_norm_from_relax},
        torch=lambda b: call("F.rms_norm", b.x[0], sizes(normalized(b)[1]), b.x[1], eps=b["eps"]),
        onnx=derived(rms_norm_steps, "onnx"),
        relax=rms_norm_to_relax,
    ),
    Op(
        "group_norm",
        axes=group_axes,
        attrs={"groups": 1, "eps": 1e-5},
        sized={"groups": "g"},
        new=spatial_sizes,
        aten={"group_norm.default": group_norm_from_aten, "native_group_norm.default": native_group_norm_from_aten},
        from_onnx={"GroupNormalization": group_norm_from_onnx},
        from_relax={"nn.group_norm": group_norm_from_relax},
        torch=lambda b: call("F.group_norm", b.x[0], b["groups"], b.x[1], b.x[2], eps=b["eps"]),
        onnx=derived(group_norm_steps, "onnx"),
        relax=group_norm_to_relax,
        msc="nn.group_norm",
    ),
    Op(
        "instance_norm",
        axes=instance_axes,
        attrs={"eps": 1e-5},
        new=spatial_sizes,
        aten={"instance_norm.default": instance_norm_from_aten},
        from_onnx={
            "InstanceNormalization": lambda n: call(
                "instance_norm", n.tensor(0), n.tensor(1), n.tensor(2), eps=n.attr("epsilon", 1e-5)
            )
        },
        from_relax={"nn.instance_norm": instance_norm_from_relax},
        torch=lambda b: call("F.instance_norm", b.x[0], None, None, b.x[1], b.x[2], eps=b["eps"]),
        onnx=instance_norm_to_onnx,
        relax=derived(instance_norm_steps, "relax"),
    ),
]  # fmt: skip
