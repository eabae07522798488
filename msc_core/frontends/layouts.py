"""Layouts other than ours (NHWC, HWIO ...) in Relax and Relay: operands are transposed, and the result back."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from msc_core.errors import UnsupportedOperator
from msc_core.ir import Tensor
from msc_core.ops import Call, call

WINDOWED = re.compile(r"(?:nn\.\w*(?:conv|pool)|image\.resize|nn\.upsampling)(?:([123])d)?(_transpose)?")
Operands = tuple[Any, ...]


def standard_layout(
    op: str, x: Operands, attrs: Mapping[str, Any], emit: Callable[[Call, str], Any]
) -> tuple[Operands, dict[str, Any], Callable[[Any], Any]]:
    """The operands and attributes of an operator over windows in layout NCHW and OIHW, and what restores its result.

    Other operators come back as they are. `emit` makes a call's result a tensor, under a name like the one given.
    """
    found = WINDOWED.fullmatch(op)
    if not found:
        return x, dict(attrs), lambda result: result
    rank = int(found[1] or 2)
    data, kernel = "NC" + "DHW"[-rank:], ("IO" if found[2] else "OI") + "DHW"[-rank:]
    key = "data_layout" if "data_layout" in attrs else "layout"
    given = attrs.get(key) or data
    returned = attrs.get("out_layout") or given
    weight = attrs.get("kernel_layout") or kernel
    operands = list(x)
    for index, (layout, wanted) in enumerate([(given, data), (weight, kernel)][: 2 if "kernel_layout" in attrs else 1]):
        if layout != wanted and isinstance(operands[index], Tensor):
            operands[index] = emit(call("permute_dims", operands[index], axes=order(op, layout, wanted)), wanted)
    names = {key: data, "out_layout": data, "kernel_layout": kernel}
    changed = {name: names.get(name, value) for name, value in attrs.items()}
    if returned == data:
        return tuple(operands), changed, lambda result: result
    axes = order(op, data, returned)
    return tuple(operands), changed, lambda result: call("permute_dims", result, axes=axes)


def order(op: str, source: str, target: str) -> tuple[int, ...]:
    """The axes of `permute_dims` from one layout to another.

    >>> order("nn.conv2d", "NHWC", "NCHW")
    (0, 3, 1, 2)
    """
    if sorted(source) != sorted(target):
        raise UnsupportedOperator(f"{op} in layout {source}; expected an order of {target}")
    return tuple(source.index(letter) for letter in target)
