"""Arithmetic of sliding windows, shared by convolution and pooling rows. Padding is (top, left, bottom, right)."""

from __future__ import annotations

from typing import Any

from msc_core.errors import InvalidGraph
from msc_core.ir import Tensor
from msc_core.ops.op import Bound, Call, call

Pair = tuple[int, int]
Quad = tuple[int, int, int, int]


def pair(value: int | list[int] | tuple[int, ...]) -> Pair:
    """`3`, `[3]` and `[3, 3]` are all (3, 3)."""
    values = (value,) if isinstance(value, int) else tuple(value)
    first, second = values * 2 if len(values) == 1 else values
    return int(first), int(second)


def symmetric(padding: Any) -> Quad:
    """Padding as torch writes it, one number or (vertical, horizontal), for all four sides."""
    vertical, horizontal = pair(padding)
    return vertical, horizontal, vertical, horizontal


def window_size(b: Bound, kernel: Pair, ceil: bool = False) -> dict[str, Any]:
    """The sizes `H` and `W` of a window's output, by the formula of torch and ONNX.

    With `ceil`, a last window that would begin beyond the padded input is dropped, as torch does.
    """
    shape, padding, stride = b.input(0).shape, b["padding"], b["stride"]
    dilation = b["dilation"] if "dilation" in b.op.attrs else (1, 1)
    sizes = {}
    for i, letter in enumerate("HW"):
        size = shape[2 + i]
        if not isinstance(size, int):
            raise InvalidGraph(f"{b}: a window over the symbolic axis {size!r} is not supported; fix its size")
        room = size + padding[i] + padding[i + 2] - dilation[i] * (kernel[i] - 1) - 1
        count = (-(-room // stride[i]) if ceil else room // stride[i]) + 1
        if ceil and (count - 1) * stride[i] >= size + padding[i]:
            count -= 1
        sizes[letter] = count
    return sizes


def torch_padding(x: Tensor, padding: Quad, fill: float = 0.0) -> tuple[Tensor | Call, Pair]:
    """What torch needs: symmetric padding as an argument, otherwise the input padded by a call of its own."""
    top, left, bottom, right = padding
    if (top, left) == (bottom, right):
        return x, (top, left)
    return call("F.pad", x, (left, right, top, bottom), value=fill), (0, 0)
