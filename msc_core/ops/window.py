"""Arithmetic of sliding windows over 1 to 3 axes, shared by convolution and pooling rows.

Padding is all the begins, then all the ends: (left, right), (top, left, bottom, right), ...
"""

from __future__ import annotations

from typing import Any

from msc_core import dims
from msc_core.dims import Dim
from msc_core.errors import InvalidGraph
from msc_core.ir import Tensor
from msc_core.ops.op import Bound, Call, call

AXES = {1: "w", 2: "h w", 3: "d h w"}  # the letters of a signature; in capitals the output's


def spread(value: int | list[int] | tuple[int, ...], rank: int) -> tuple[int, ...]:
    """`3`, `[3]` and `[3, 3]` are all (3, 3) for a rank of 2."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return tuple(int(v) for v in (values * rank if len(values) == 1 else values))


def symmetric(padding: Any, rank: int) -> tuple[int, ...]:
    """Padding as torch writes it, one number or one for each axis, for both sides."""
    return spread(padding, rank) * 2


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
    pairs = [pair for sides in zip(reversed(begins), reversed(ends), strict=True) for pair in sides]
    return call("F.pad", x, tuple(pairs), value=fill), (0,) * rank
