"""Arithmetic of sliding windows over 1 to 3 axes, shared by convolution and pooling rows.

Padding is all the begins, then all the ends: (left, right), (top, left, bottom, right), ...
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msc_core import dims
from msc_core.dims import Dim
from msc_core.errors import InvalidGraph, UnsupportedOperator
from msc_core.ir import Tensor
from msc_core.ops.op import Bound, Call, Source, call

AXES = {1: "w", 2: "h w", 3: "d h w"}  # the letters of a signature; in capitals the output's
RANKS = tuple(AXES)
LAYOUTS = {1: ("NCW", "OIW", "IOW"), 2: ("NCHW", "OIHW", "IOHW"), 3: ("NCDHW", "OIDHW", "IODHW")}


def spread(value: int | list[int] | tuple[int, ...], rank: int) -> tuple[int, ...]:
    """`3`, `[3]` and `[3, 3]` are all (3, 3) for a rank of 2."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return tuple(int(v) for v in (values * rank if len(values) == 1 else values))


def symmetric(padding: Any, rank: int) -> tuple[int, ...]:
    """Padding as torch writes it, one number or one for each axis, for both sides."""
    return spread(padding, rank) * 2


def both_sides(padding: Any, rank: int) -> tuple[int, ...]:
    """Padding as Relax writes it: one number, one for each axis, or all the begins and then the ends."""
    values = spread(padding, rank)
    return values if len(values) == 2 * rank else values * 2


def window_size(b: Bound, kernel: tuple[Any, ...], ceil: bool = False) -> dict[str, Any]:
    """The sizes of a window's output by its letters (`H` and `W`), by the formula of torch and ONNX.

    With `ceil`, a last window that would begin beyond the padded input is dropped, as torch does. Where the size is
    symbolic and it cannot be known whether that happens, it is assumed not to.
    """
    shape, padding, stride, rank = b.input(0).shape, b["padding"], b["stride"], len(kernel)
    dilation = b["dilation"] if "dilation" in b.op.attrs else (1,) * rank
    sizes: dict[str, Dim] = {}
    for i, letter in enumerate(AXES[rank].upper().split()):
        size = shape[-rank + i]
        room = dims.add(size, padding[i], padding[i + rank], -dilation[i] * (kernel[i] - 1) - 1)
        count = dims.add(dims.ceildiv(room, stride[i]) if ceil else dims.floordiv(room, stride[i]), 1)
        if isinstance(size, int) and isinstance(count, int):
            if ceil and (count - 1) * stride[i] >= size + padding[i]:
                count -= 1
            if count < 1:
                raise InvalidGraph(f"{b}: its output would have shape {[*sizes.values(), count]}")
        sizes[letter] = count
    return sizes


def torch_padding(x: Tensor, padding: tuple[int, ...], fill: float = 0.0) -> tuple[Tensor | Call, tuple[int, ...]]:
    """What torch needs: symmetric padding as an argument, otherwise the input padded by a call of its own."""
    rank = len(padding) // 2
    begins, ends = padding[:rank], padding[rank:]
    if begins == ends:
        return x, begins
    return call("F.pad", x, torch_pairs(padding), value=fill), (0,) * rank


def torch_pairs(padding: tuple[Any, ...]) -> tuple[Any, ...]:
    """Padding as `F.pad` wants it: (begin, end) of the last axis first."""
    rank = len(padding) // 2
    pairs = zip(reversed(padding[:rank]), reversed(padding[rank:]), strict=True)
    return tuple(side for pair in pairs for side in pair)


def batched(x: Tensor, rank: int, build: Callable[[Any], Any]) -> Any:
    """`build(x)`, through a batch of one if `x` has no batch axis (torch allows that), for each of its results."""
    if len(x.shape) != rank + 1:
        return build(x)
    result = build(call("reshape", x, shape=(1, *x.shape)))

    def single(part: Any) -> Any:
        return None if part is None else call("flatten", part, start=0, end=1)

    return tuple(map(single, result)) if isinstance(result, tuple) else single(result)


def onnx_rank(n: Source) -> int:
    """The number of spatial axes of an ONNX operator's input."""
    rank = len(n.tensor(0).shape) - 2
    if rank not in RANKS:
        raise UnsupportedOperator(f"{n.op} over {rank} spatial axes; expected 1 to 3")
    return rank


def onnx_window(n: Source, kernel: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """`stride`, `dilation` and `padding` of an ONNX operator with a window, `auto_pad` worked out."""
    rank = onnx_rank(n)
    shape = n.tensor(0).shape[2:]
    stride, dilation = (tuple(n.attr(name, (1,) * rank)) for name in ("strides", "dilations"))
    auto = n.attr("auto_pad", "NOTSET")
    padding = tuple(n.attr("pads", (0,) * 2 * rank)) if auto in ("NOTSET", "") else (0,) * 2 * rank
    if auto.startswith("SAME"):
        total = []
        for size, k, s, d in zip(shape, kernel, stride, dilation, strict=True):
            if isinstance(size, str) and s > 1:
                raise UnsupportedOperator(f"{n.op} with auto_pad={auto} and stride {s} on an axis of size {size}")
            span = (k - 1) * d + 1
            total.append(max(span - 1 if isinstance(size, str) else (-(-size // s) - 1) * s + span - size, 0))
        padding = divided(total, upper=auto == "SAME_UPPER")
    return {"stride": stride, "dilation": dilation, "padding": padding}


def divided(total: list[int], *, upper: bool) -> tuple[int, ...]:
    """The padding of each axis on both sides; the odd one goes to the end if `upper`."""
    small = [t // 2 for t in total]
    large = [t - t // 2 for t in total]
    return (*small, *large) if upper else (*large, *small)


def relax_layout(n: Source, rank: int, transposed: bool = False) -> None:
    """Refuse Relax's layouts other than ours."""
    data, weight, flipped = LAYOUTS[rank]
    wanted = {"data_layout": data, "layout": data, "kernel_layout": flipped if transposed else weight}
    for name, layout in wanted.items():
        if n.attr(name, layout) != layout:
            raise UnsupportedOperator(f"{n.op} with {name}={n.attr(name)}; expected {layout}")
    if n.attr("out_layout", data) not in (data, ""):
        raise UnsupportedOperator(f"{n.op} with out_layout={n.attr('out_layout')}; expected {data}")


def product(shape: tuple[Any, ...]) -> int:
    """The product of the sizes; a symbolic dimension counts once, so costs are per sample."""
    result = 1
    for dim in shape:
        result *= dim if isinstance(dim, int) else 1
    return result
