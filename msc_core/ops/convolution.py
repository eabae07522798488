"""Convolutions over 1 to 3 axes and their transposes; grouped and depthwise ones are the same rows."""

from __future__ import annotations

from typing import Any

from msc_core import dims
from msc_core.errors import UnsupportedOperator
from msc_core.ir import Tensor
from msc_core.ops.columns import fold_from_aten, fold_from_onnx, unfold_from_aten
from msc_core.ops.derived import derived
from msc_core.ops.op import Bound, Call, Op, Shape, Source, call
from msc_core.ops.signature import Sizes
from msc_core.ops.window import (
    AXES,
    RANKS,
    batched,
    both_sides,
    divided,
    onnx_rank,
    onnx_window,
    product,
    relax_layout,
    spread,
    symmetric,
    torch_padding,
    window_size,
)  # fmt: skip

EXACT = 2**24  # integers up to here are exact in float32


def conv_from_aten(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """`aten.conv{1,2,3}d`, whose padding may be a number, one for each axis, "valid" or "same"."""
    rank = len(weight.shape) - 2
    dilation = spread(dilation, rank)
    if padding == "same":
        total = [d * (int(k) - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
        sides = divided(total, upper=True)
    else:
        sides = symmetric(0 if padding == "valid" else padding, rank)
    attrs = {"stride": spread(stride, rank), "padding": sides, "dilation": dilation, "groups": groups}
    return batched(input, rank, lambda x: call(f"conv{rank}d", x, weight, bias, **attrs))


def transpose_from_aten(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    """`aten.conv_transpose{1,2,3}d`."""
    rank = len(weight.shape) - 2
    attrs = {
        "stride": spread(stride, rank), "padding": symmetric(padding, rank), "dilation": spread(dilation, rank),
        "output_padding": spread(output_padding, rank), "groups": groups,
    }  # fmt: skip
    return batched(input, rank, lambda x: call(f"conv{rank}d_transpose", x, weight, bias, **attrs))


def convolution_from_aten(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    **flags: Any,
) -> Any:
    """`aten.convolution`, the core form of all of them; the flags of `_convolution` choose among equal kernels."""
    if transposed:
        return transpose_from_aten(input, weight, bias, stride, padding, output_padding, groups, dilation)
    return conv_from_aten(input, weight, bias, stride, padding, dilation, groups)


def conv_from_onnx(n: Source) -> Call:
    """`Conv`."""
    return _conv_from_onnx(n, n.tensor(0), n.tensor(1), n.get(2))


def _conv_from_onnx(n: Source, x: Any, weight: Any, bias: Any = None) -> Call:
    rank, kernel = onnx_rank(n), n.tensor(1).shape[2:]
    window = onnx_window(n, tuple(int(k) for k in kernel))
    return call(f"conv{rank}d", x, weight, bias, **window, groups=n.attr("group", 1))


def conv_integer_from_onnx(n: Source) -> Call:
    """`ConvInteger`: in float32, where every sum of products is an exact integer."""
    weight = n.tensor(1)
    if product(weight.shape[1:]) * 255 * 255 >= EXACT:
        raise UnsupportedOperator(f"ConvInteger with weights {list(weight.shape)}: sums would not be exact in float32")
    x, w = (_centered(n, i, i + 2) for i in (0, 1))
    return call("cast", _conv_from_onnx(n, x, w), dtype="int32")


def _centered(n: Source, index: int, zero: int) -> Any:
    """An input minus its zero point, as float32. Weights may have one zero point for each output channel."""
    x = call("cast", n.tensor(index), dtype="float32")
    if n.get(zero) is None:
        return x
    point = call("cast", n.tensor(zero), dtype="float32")
    if n.tensor(zero).shape:
        point = call("reshape", point, shape=(-1, *[1] * (len(n.tensor(index).shape) - 1)))
    return call("subtract", x, point)


def transpose_from_onnx(n: Source) -> Call:
    """`ConvTranspose`, whose padding may be given by the output's shape."""
    rank, weight = onnx_rank(n), n.tensor(1)
    kernel = tuple(int(k) for k in weight.shape[2:])
    stride, dilation = (tuple(n.attr(name, (1,) * rank)) for name in ("strides", "dilations"))
    extra = tuple(n.attr("output_padding", (0,) * rank))
    auto, wanted = n.attr("auto_pad", "NOTSET"), n.attr("output_shape")
    padding = tuple(n.attr("pads", (0,) * 2 * rank)) if auto in ("NOTSET", "") else (0,) * 2 * rank
    if wanted is not None or auto.startswith("SAME"):
        total = []
        for i, (size, k, s, d) in enumerate(zip(n.tensor(0).shape[2:], kernel, stride, dilation, strict=True)):
            if wanted is not None and isinstance(size, str):
                raise UnsupportedOperator(f"ConvTranspose with an output_shape on an axis of size {size}")
            span = d * (k - 1) + 1 + extra[i]
            total.append(span - s if wanted is None else (int(size) - 1) * s + span - int(wanted[-rank + i]))
        extra = tuple(e + max(0, -t) for e, t in zip(extra, total, strict=True))
        padding = divided([max(0, t) for t in total], upper=auto == "SAME_UPPER")
    return call(
        f"conv{rank}d_transpose", n.tensor(0), weight, n.get(2), stride=stride, padding=padding, dilation=dilation,
        output_padding=extra, groups=n.attr("group", 1),
    )  # fmt: skip


def conv_from_relax(n: Source) -> Call:
    """`nn.conv{1,2,3}d`."""
    return _from_relax(n, transposed=False)


def transpose_from_relax(n: Source) -> Call:
    """`nn.conv{1,2,3}d_transpose`."""
    return _from_relax(n, transposed=True)


def _from_relax(n: Source, transposed: bool) -> Call:
    x, weight = n.tensor(0), n.tensor(1)
    rank = len(weight.shape) - 2
    relax_layout(n, rank, transposed)
    if n.attr("out_dtype", "") not in ("", "void", x.dtype):
        raise UnsupportedOperator(f"{n.op} of {x.dtype} with out_dtype={n.attr('out_dtype')}")
    attrs: dict[str, Any] = {
        "stride": spread(n.attr("strides", 1), rank), "padding": both_sides(n.attr("padding", 0), rank),
        "dilation": spread(n.attr("dilation", 1), rank), "groups": n.attr("groups", 1),
    }  # fmt: skip
    if transposed:
        attrs["output_padding"] = spread(n.attr("output_padding", 0), rank)
    return call(f"conv{rank}d_transpose" if transposed else f"conv{rank}d", x, weight, **attrs)


def conv_to_torch(b: Bound) -> Call:
    """`F.conv2d` and the like; asymmetric padding becomes a call of its own."""
    x, padding = torch_padding(b.input(0), b["padding"])
    return call(
        f"F.{b.node.op}", x, *b.x[1:], stride=b["stride"], padding=padding, dilation=b["dilation"], groups=b["groups"]
    )  # fmt: skip


def conv_to_onnx(b: Bound) -> Call:
    """`Conv`."""
    return call(
        "Conv", *b.x, strides=b["stride"], pads=b["padding"], dilations=b["dilation"], group=b["groups"],
        kernel_shape=b.input(1).shape[2:],
    )  # fmt: skip


def conv_to_relax(b: Bound) -> Call:
    """`nn.conv2d` and the like, which have no bias, and an `add`."""
    out = call(
        f"nn.{b.node.op}", *b.x[:2], strides=b["stride"], padding=b["padding"], dilation=b["dilation"],
        groups=b["groups"],
    )  # fmt: skip
    return _biased(b, out)


def _biased(b: Bound, out: Call) -> Call:
    bias = b.x[2]
    rank = len(b.input(1).shape) - 2
    return out if bias is None else call("add", out, call("reshape", bias, (1, bias.shape[0], *[1] * rank)))


def conv_macs(b: Bound, sizes: Sizes) -> int:
    """Output positions times kernel size times input channels of a group."""
    return product(b.out[0].shape) * product(b.input(1).shape[1:])


def transpose_macs(b: Bound, sizes: Sizes) -> int:
    """Input positions times kernel size times output channels of a group."""
    return product(b.input(0).shape) * product(b.input(1).shape[1:])


def transpose_size(b: Bound) -> Sizes:
    """The sizes of a transposed convolution's output, by its letters."""
    kernel, shape = b.input(1).shape[2:], b.input(0).shape[2:]
    rank = len(kernel)
    found: Sizes = {}
    for i, letter in enumerate(AXES[rank].upper().split()):
        grown = dims.mul(dims.sub(shape[i], 1), b["stride"][i])
        span = dims.mul(b["dilation"][i], dims.sub(kernel[i], 1))
        found[letter] = dims.add(
            grown, span, 1 + b["output_padding"][i] - b["padding"][i] - b["padding"][i + rank]
        )  # fmt: skip
    return found


def _ends(b: Bound) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
    """What is cut off at the begin and at the end (negative: zeros are added), and whether targets can say it.

    Targets cut off `padding` at both sides and then add `output_padding`, smaller than the stride or the dilation.
    """
    rank = len(b["stride"])
    begins = b["padding"][:rank]
    ends = tuple(e - o for e, o in zip(b["padding"][rank:], b["output_padding"], strict=True))
    steps = zip(begins, ends, b["stride"], b["dilation"], strict=True)
    return begins, ends, all(0 <= begin - end < max(s, d) for begin, end, s, d in steps)


def transpose_to_torch(b: Bound) -> Any:
    """`F.conv_transpose2d` and the like; padding that it cannot say is a `pad` after it."""
    rank = len(b["stride"])
    begins, ends, simple = _ends(b)
    if not simple:
        return derived(padded_transpose, "torch")(b)
    extra = tuple(begin - end for begin, end in zip(begins, ends, strict=True))
    attrs = {"stride": b["stride"], "groups": b["groups"], "dilation": b["dilation"]}
    return call(f"F.conv_transpose{rank}d", *b.x, padding=begins, output_padding=extra, **attrs)


def transpose_to_onnx(b: Bound) -> Any:
    """`ConvTranspose`; where its `output_padding` would be too large, a `pad` after it."""
    steps = zip(b["output_padding"], b["stride"], b["dilation"], strict=True)
    if any(o >= max(s, d) for o, s, d in steps):
        return derived(padded_transpose, "onnx")(b)
    return call(
        "ConvTranspose", *b.x, strides=b["stride"], pads=b["padding"], dilations=b["dilation"], group=b["groups"],
        kernel_shape=b.input(1).shape[2:], output_padding=b["output_padding"],
    )  # fmt: skip


def transpose_to_relax(b: Bound) -> Any:
    """`nn.conv2d_transpose` and the like; zeros that it cannot add are a `pad` after it."""
    if any(o >= s for o, s in zip(b["output_padding"], b["stride"], strict=True)):
        return derived(padded_transpose, "relax")(b)
    attrs = {name: b[name] for name in ("padding", "output_padding", "dilation", "groups")}
    return _biased(b, call(f"nn.{b.node.op}", *b.x[:2], strides=b["stride"], **attrs))


def padded_transpose(b: Bound) -> Call:
    """A transposed convolution without padding, then all padding at once, then the bias."""
    rank = len(b["stride"])
    begins, ends, _ = _ends(b)
    attrs = {name: b[name] for name in ("stride", "dilation", "groups")}
    padding = (0, 0, *(-p for p in begins), 0, 0, *(-p for p in ends))
    out = call("pad", call(b.node.op, *b.x[:2], **attrs), padding=padding)
    bias = b.x[2]
    return out if bias is None else call("add", out, call("reshape", bias, shape=(1, -1, *[1] * rank)))


def window_axes(rank: int) -> tuple[str, str, str]:
    """The letters of the input's and output's spatial axes, and as many axes of its own for the kernel.

    >>> window_axes(2)
    ('h w', 'H W', '. .')
    """
    return AXES[rank], AXES[rank].upper(), " ".join("." * rank)


def conv(rank: int) -> Op:
    """The row of a convolution over `rank` axes."""
    spatial, out, kernel = window_axes(rank)
    overloads = [f"conv{rank}d.default", f"conv{rank}d.padding"]
    general = dict.fromkeys(("convolution.default", "_convolution.default"), convolution_from_aten)
    return Op(
        f"conv{rank}d",
        axes=f"n (g i) {spatial}, (g o) i {kernel}, (g o)? -> n (g o) {out}",
        attrs={"stride": (1,) * rank, "padding": (0,) * 2 * rank, "dilation": (1,) * rank, "groups": 1},
        sized={"groups": "g"},
        new=lambda b, sizes: window_size(b, b.input(1).shape[2:]),
        macs=conv_macs,
        aten=dict.fromkeys(overloads, conv_from_aten)
        | (general | {"im2col.default": unfold_from_aten} if rank == 2 else {}),
        from_onnx={"Conv": conv_from_onnx, "ConvInteger": conv_integer_from_onnx} if rank == 2 else {},
        from_relax={f"nn.conv{rank}d": conv_from_relax},
        torch=conv_to_torch,
        onnx=conv_to_onnx,
        relax=conv_to_relax,
        msc=f"nn.conv{rank}d" if rank < 3 else "",
    )


def conv_transpose(rank: int) -> Op:
    """The row of a transposed convolution over `rank` axes."""
    spatial, out, kernel = window_axes(rank)
    zeros: Shape = (0,) * rank
    return Op(
        f"conv{rank}d_transpose",
        axes=f"n (g i) {spatial}, (g i) o {kernel}, (g o)? -> n (g o) {out}",
        attrs={
            "stride": (1,) * rank, "padding": zeros * 2, "output_padding": zeros, "dilation": (1,) * rank, "groups": 1
        },
        sized={"groups": "g"},
        new=lambda b, sizes: transpose_size(b),
        macs=transpose_macs,
        aten={f"conv_transpose{rank}d.{'default' if rank == 1 else 'input'}": transpose_from_aten}
        | ({"col2im.default": fold_from_aten} if rank == 2 else {}),
        from_onnx={"ConvTranspose": transpose_from_onnx, "Col2Im": fold_from_onnx} if rank == 2 else {},
        from_relax={f"nn.conv{rank}d_transpose": transpose_from_relax},
        torch=transpose_to_torch,
        onnx=transpose_to_onnx,
        relax=transpose_to_relax,
    )  # fmt: skip


CONVOLUTION = [*map(conv, RANKS), *map(conv_transpose, RANKS)]
