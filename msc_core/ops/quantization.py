"""Explicit quantization, as in ONNX QDQ: scales and zero points for a whole tensor or for the positions of an axis."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from msc_core.errors import UnsupportedOperator
from msc_core.ir import Tensor
from msc_core.ops.arithmetic import overloads
from msc_core.ops.contraction import matmul_integer_from_onnx
from msc_core.ops.convolution import conv_integer_from_onnx
from msc_core.ops.derived import derived
from msc_core.ops.dtypes import cast, kind, scalar
from msc_core.ops.op import Bound, Call, Importer, Op, Shape, Source, call

QUANTIZED = ("int8", "uint8", "int16", "uint16")  # what a quantize can make
STORED = (*QUANTIZED, "int32")  # what a dequantize can take


def is_per_tensor(scale: Shape) -> bool:
    """Whether there is one scale for all elements."""
    return scale in ((), (1,))


def axes(b: Bound) -> str:
    """Scale and zero point share an axis with the tensor, or have none."""
    x, scale = b.input(0), b.input(1)
    letters = [f"a{i}" for i in range(len(x.shape))]
    shared = "." * len(scale.shape) if is_per_tensor(scale.shape) else letters[b["axis"]]
    every = " ".join(letters) or "..."
    return f"{every}, {shared}, {shared}? -> {every}"


def broadcast(b: Bound, parameter: Tensor) -> Any:
    """A scale or zero point in a shape that broadcasts with the tensor."""
    if parameter.shape == ():
        return parameter
    rank = len(b.input(0).shape)
    after = 0 if is_per_tensor(parameter.shape) else rank - 1 - b["axis"] % rank
    shape = () if is_per_tensor(parameter.shape) else (*parameter.shape, *(1,) * after)
    return parameter if shape == parameter.shape else call("reshape", parameter, shape=shape)


def quantize(b: Bound) -> Call:
    """Divide, round half to even, add the zero point, saturate."""
    x, scale, zero = b.input(0), b.input(1), b.x[2]
    found = call("round", call("divide", x, broadcast(b, scale)))
    if zero is not None:
        found = call("add", found, call("cast", broadcast(b, zero), dtype=x.dtype))
    limits = np.iinfo(b["dtype"])
    return call("cast", call("clip", found, min=float(limits.min), max=float(limits.max)), dtype=b["dtype"])


def dequantize(b: Bound) -> Call:
    """Subtract the zero point, multiply."""
    x, scale, zero = b.input(0), b.input(1), b.x[2]
    whole: Any = cast(x, "int32")
    if zero is not None:
        whole = call("subtract", whole, call("cast", broadcast(b, zero), dtype="int32"))
    return call("multiply", call("cast", whole, dtype=b["dtype"]), broadcast(b, scale))


def quantize_dtype(b: Bound) -> str:
    """What a quantize makes: the target's dtype."""
    if b["dtype"] not in QUANTIZED:
        raise UnsupportedOperator(f"{b}: quantization to {b['dtype']}; expected one of {', '.join(QUANTIZED)}")
    return str(b["dtype"])


def zeros(b: Bound, dtype: str) -> Any:
    """The zero point of a node, zeros where it has none."""
    return b.x[2] if b.x[2] is not None else np.zeros(tuple(map(int, b.input(1).shape)), dtype)


def quantize_to_onnx(b: Bound) -> Any:
    """`QuantizeLinear`, which before opset 21 only makes bytes."""
    if b["dtype"] not in ("int8", "uint8") or b.input(0).dtype != "float32":
        return derived(quantize, "onnx")(b)
    return call("QuantizeLinear", *b.x[:2], zeros(b, b["dtype"]), axis=b["axis"])


def dequantize_to_onnx(b: Bound) -> Any:
    """`DequantizeLinear`, which takes bytes, or int32 without a zero point."""
    x = b.input(0)
    if b["dtype"] == "float32" and (x.dtype in ("int8", "uint8") or (x.dtype == "int32" and b.x[2] is None)):
        return call("DequantizeLinear", *b.x, axis=b["axis"])
    return derived(dequantize, "onnx")(b)


def to_relax(name: str) -> Any:
    """`quantize` or `dequantize`, whose single scale must have no axes."""

    def emit(b: Bound) -> Any:
        scale: Any = b.input(1)
        zero = zeros(b, b["dtype"] if name == "quantize" else b.input(0).dtype)
        if scale.shape == (1,):
            scale, zero = call("reshape", scale, ()), call("reshape", zero, ())
        axis = b["axis"] % max(len(b.input(0).shape), 1)
        return call(name, b.x[0], scale, zero, axis=axis, out_dtype=b["dtype"])

    return emit


# Importers


def quantize_from_onnx(n: Source) -> Call:
    """`QuantizeLinear`; the zero point, or an attribute, says the dtype."""
    x, scale, zero = n.tensor(0), n.tensor(1), n.get(2)
    unblocked(n, x, scale)
    code = n.attr("output_dtype", 0)
    dtype = zero.dtype if zero is not None else onnx_dtype(code) if code else "uint8"
    if dtype not in QUANTIZED:
        raise UnsupportedOperator(f"{n.op} to {dtype}")
    return call("quantize", cast(x, scale.dtype), scale, zero, axis=n.attr("axis", 1), dtype=dtype)


def dequantize_from_onnx(n: Source) -> Call:
    """`DequantizeLinear`, whose result has the dtype of the scale."""
    x, scale = n.tensor(0), n.tensor(1)
    unblocked(n, x, scale)
    if x.dtype not in STORED:
        raise UnsupportedOperator(f"{n.op} of {x.dtype}")
    code = n.attr("output_dtype", 0)
    found = call("dequantize", x, scale, n.get(2), axis=n.attr("axis", 1), dtype=scale.dtype)
    return cast(found, onnx_dtype(code), scale.dtype) if code else found


def onnx_dtype(code: int) -> str:
    """NumPy's name of an ONNX dtype."""
    from onnx import helper

    return str(helper.tensor_dtype_to_np_dtype(code).name)


def unblocked(n: Source, x: Tensor, scale: Tensor) -> None:
    """Raise where a scale serves a block of an axis."""
    if n.attr("block_size", 0) or (len(scale.shape) > 1):
        raise UnsupportedOperator(f"{n.op} by blocks, with scales of the shape {list(scale.shape)}")


def dynamic_quantize(n: Source) -> tuple[Any, ...]:
    """`DynamicQuantizeLinear`: the range of the data, with 0 in it, becomes 0 to 255."""
    x = n.tensor(0)
    over = tuple(range(len(x.shape)))
    zero = scalar(0, x.dtype)
    high = call("maximum", call("max", x, axes=over, keepdims=False), zero)
    low = call("minimum", call("min", x, axes=over, keepdims=False), zero)
    width = call("subtract", high, low)
    flat = call("equal", width, zero)
    scale = call("where", flat, scalar(1, x.dtype), call("divide", width, scalar(255, x.dtype)))
    point = call("round", call("clip", call("negative", call("divide", low, scale)), min=0.0, max=255.0))
    point = call("cast", point, dtype="uint8")
    return call("quantize", x, scale, point, dtype="uint8"), scale, point


def qlinear(n: Source) -> Any:
    """`QLinearMatMul` and `QLinearConv`: the exact product of integers, in float32 times the scales, quantized."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (n.tensor(i) for i in range(8))
    if any(t.shape not in ((), (1,)) for t in (a_scale, b_scale, y_scale, y_zero)):
        raise UnsupportedOperator(f"{n.op} with a scale for each row or channel")
    plain = replace(n, op=f"{n.op.removeprefix('QLinear')}Integer", x=(a, b, a_zero, b_zero))
    total = matmul_integer_from_onnx(plain) if n.op == "QLinearMatMul" else conv_integer_from_onnx(plain)
    if n.get(8) is not None:
        bias = call("reshape", n.tensor(8), shape=(-1, *[1] * (len(a.shape) - 2)))
        total = call("add", total, bias)
    scales = (call("reshape", cast(t, "float32"), shape=()) for t in (a_scale, b_scale))
    scaled = call("multiply", call("cast", total, dtype="float32"), call("multiply", *scales))
    step = call("reshape", cast(y_scale, "float32"), shape=())
    return call("quantize", scaled, step, call("reshape", y_zero, shape=()), dtype=y_zero.dtype)


def fake_quantize(
    self: Tensor, scale: Any, zero_point: Any, quant_min: int, quant_max: int, axis: int | None = None
) -> Call:
    """`aten.fake_quantize_...`: quantized and back, by multiplications with the inverse of the scale."""
    dtype = self.dtype
    if kind(dtype) < 2:
        raise UnsupportedOperator(f"fake quantization of {dtype}")
    rank = len(self.shape)

    def parameter(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return scalar(value, dtype)
        shape = () if axis is None else (*value.shape, *(1,) * (rank - 1 - axis % rank))
        shaped = value if shape == value.shape else call("reshape", value, shape=shape)
        return cast(shaped, dtype, value.dtype)

    factor, point = parameter(scale), parameter(zero_point)
    inverse = np.asarray(1 / factor, dtype) if isinstance(factor, np.ndarray) else call("reciprocal", factor)
    whole = call("add", call("round", call("multiply", self, inverse)), point)
    bounded = call("clip", whole, min=float(quant_min), max=float(quant_max))
    return call("multiply", call("subtract", bounded, point), factor)


def fake_quantize_per_channel(
    self: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> Call:
    """The same with a scale for each channel."""
    return fake_quantize(self, scale, zero_point, quant_min, quant_max, axis)


def without_mask(importer: Importer) -> Importer:
    """The form that core ATen has, whose second output only serves gradients."""
    return lambda **arguments: (importer(**arguments), None)


def stored(name: str, axis_given: bool) -> Importer:
    """`quantized_decomposed.quantize_...` and `dequantize_...` of PyTorch's exported quantization."""

    def importer(
        input: Tensor,
        scale: Any = None,
        zero_point: Any = None,
        quant_min: int = 0,
        quant_max: int = 0,
        dtype: Any = None,
        axis: int = 0,
        scales: Any = None,
        zero_points: Any = None,
        out_dtype: Any = None,
        eps: float = 0.0,
    ) -> Any:
        kept = str(dtype).removeprefix("torch.")
        factor, point = (scales, zero_points) if axis_given else (scale, zero_point)
        factor = cast(factor, "float32") if isinstance(factor, Tensor) else np.asarray(factor, np.float32)
        point = cast(point, kept) if isinstance(point, Tensor) else np.asarray(point or 0, kept)
        if kept not in (QUANTIZED if name == "quantize" else STORED):
            raise UnsupportedOperator(f"{name} with {kept}")
        if name == "dequantize":
            target = "float32" if out_dtype is None else str(out_dtype).removeprefix("torch.")
            return cast(call("dequantize", input, factor, point, axis=axis), target, "float32")
        found = call("quantize", cast(input, "float32"), factor, point, axis=axis, dtype=kept)
        limits = np.iinfo(kept)
        if (quant_min, quant_max) == (limits.min, limits.max):
            return found
        return call("clip", found, min=float(quant_min), max=float(quant_max))

    return importer


def decomposed(name: str) -> dict[str, Importer]:
    """All overloads of one direction."""
    prefix = f"quantized_decomposed.{name}_per"
    return {
        f"{prefix}_tensor.default": stored(name, False),
        f"{prefix}_tensor.tensor": stored(name, False),
        f"{prefix}_channel.default": stored(name, True),
    }


def from_relax(name: str) -> Importer:
    """`quantize` and `dequantize` of Relax."""

    def importer(n: Source) -> Call:
        dtype = str(n.attr("out_dtype", "int8" if name == "quantize" else "float32"))
        return call(name, n.tensor(0), n.tensor(1), n.tensor(2), axis=n.attr("axis", -1), dtype=dtype)

    return importer


QUANTIZATION = [
    Op(
        "quantize",
        axes=axes,
        attrs={"axis": 1, "dtype": "int8"},
        dtype=quantize_dtype,
        aten=decomposed("quantize")
        | overloads(
            "fake_quantize_per_tensor_affine.default fake_quantize_per_tensor_affine.tensor_qparams", fake_quantize
        )
        | overloads("fake_quantize_per_channel_affine.default", fake_quantize_per_channel)
        | overloads("fake_quantize_per_tensor_affine_cachemask.default", without_mask(fake_quantize))
        | overloads("fake_quantize_per_channel_affine_cachemask.default", without_mask(fake_quantize_per_channel)),
        from_onnx={"QuantizeLinear": quantize_from_onnx, "DynamicQuantizeLinear": dynamic_quantize}
        | dict.fromkeys(("QLinearMatMul", "QLinearConv"), qlinear),
        from_relax={"quantize": from_relax("quantize")},
        torch=derived(quantize, "torch"),
        onnx=quantize_to_onnx,
        relax=to_relax("quantize"),
        msc="quantize",
    ),
    Op(
        "dequantize",
        axes=axes,
        attrs={"axis": 1, "dtype": "float32"},
        dtype=lambda b: b["dtype"],
        aten=decomposed("dequantize"),
        from_onnx={"DequantizeLinear": dequantize_from_onnx},
        from_relax={"dequantize": from_relax("dequantize")},
        torch=derived(dequantize, "torch"),
        onnx=dequantize_to_onnx,
        relax=to_relax("dequantize"),
        msc="dequantize",
    ),
]
