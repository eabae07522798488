"""Operators that move positions without changing them; `channels.py` follows them position by position."""

from __future__ import annotations

from typing import Any

import numpy as np

from msc_core.errors import InvalidGraph, UnsupportedOperator
from msc_core.ir import Dim, Tensor
from msc_core.ops.op import Bound, Call, Op, call


def flatten_shape(b: Bound) -> tuple[Dim, ...]:
    """Axes `start` to `end` become one."""
    shape = b.input(0).shape
    start, end = b["start"] % len(shape), b["end"] % len(shape)
    merged = shape[start : end + 1]
    if any(isinstance(d, str) for d in merged) and len(merged) > 1:
        raise InvalidGraph(f"{b}: cannot flatten the symbolic axes {list(merged)}")
    return (*shape[:start], merged[0] if len(merged) == 1 else int(np.prod(merged)), *shape[end + 1 :])  # type: ignore[arg-type]


def reshape_shape(b: Bound) -> tuple[Dim, ...]:
    """The target with its -1 worked out; symbolic axes must survive as they are."""
    source, target = b.input(0).shape, b["shape"]
    symbols = [[d for d in shape if isinstance(d, str)] for shape in (source, target)]
    count = int(np.prod([d for d in source if isinstance(d, int)]))
    rest = int(np.prod([d for d in target if isinstance(d, int) and d != -1]))
    if -1 in target and len(symbols[1]) == len(symbols[0]) - 1 and rest == count:
        (lost,) = [s for s in symbols[0] if s not in symbols[1]]
        return tuple(lost if d == -1 else d for d in target)
    if sorted(symbols[0]) != sorted(symbols[1]) or rest == 0 or count % rest or (-1 not in target and count != rest):
        raise InvalidGraph(f"{b}: cannot reshape {list(source)} to {list(target)}")
    return tuple(count // rest if d == -1 else d for d in target)


def concat_shape(b: Bound) -> tuple[Dim, ...]:
    """The first operand's shape with the sizes along `axis` added up."""
    shapes = [t.shape for t in b.x if t is not None]
    axis = b["axis"] % len(shapes[0])
    rest = {(*s[:axis], *s[axis + 1 :]) for s in shapes}
    sizes = [s[axis] for s in shapes]
    if len(rest) > 1 or any(isinstance(s, str) for s in sizes):
        raise InvalidGraph(f"{b}: cannot concatenate {[list(s) for s in shapes]} along axis {axis}")
    return (*shapes[0][:axis], sum(sizes), *shapes[0][axis + 1 :])


def shape_constant(shape: tuple[Dim, ...]) -> Any:
    """An ONNX `Reshape` target: one symbolic axis is -1."""
    if sum(isinstance(d, str) for d in shape) > 1:
        raise UnsupportedOperator(f"reshape to {list(shape)}: ONNX can leave one axis open, not several")
    return np.asarray([-1 if isinstance(d, str) else d for d in shape], np.int64)


def reshape_from_aten(self: Tensor, **target: Any) -> Call:
    """`view`, `reshape`, `unflatten` and the like, whose target has different names in the schemas."""
    (shape,) = target.values()
    return call("reshape", self, shape=tuple(shape))


MOVEMENT = [
    Op(
        "flatten",
        axes="... -> ...",
        movement="reshape",
        attrs={"start": 0, "end": -1},
        shape=flatten_shape,
        aten={
            "flatten.using_ints": lambda self, start_dim=0, end_dim=-1: call(
                "flatten", self, start=start_dim, end=end_dim
            )
        },
        torch=lambda b: call("torch.flatten", *b.x, b["start"], b["end"]),
        onnx=lambda b: (
            call("Flatten", *b.x, axis=1)
            if b["start"] == 1 and len(b.out[0].shape) == 2
            else call("Reshape", *b.x, shape_constant(b.out[0].shape))
        ),
        relax=lambda b: call("reshape", *b.x, b.out[0].shape),
        msc="reshape",
    ),
    Op(
        "reshape",
        axes="... -> ...",
        movement="reshape",
        attrs={"shape": ()},
        sized={"shape": "output"},
        shape=reshape_shape,
        aten={"view.default": reshape_from_aten, "reshape.default": reshape_from_aten},
        torch=lambda b: call("torch.reshape", *b.x, tuple(-1 if isinstance(d, str) else d for d in b.out[0].shape)),
        onnx=lambda b: call("Reshape", *b.x, shape_constant(b.out[0].shape)),
        relax=lambda b: call("reshape", *b.x, b.out[0].shape),
        msc="reshape",
    ),
    Op(
        "concat",
        axes="... -> ...",
        movement="concat",
        attrs={"axis": 0},
        shape=concat_shape,
        aten={"cat.default": lambda tensors, dim=0: call("concat", *tensors, axis=dim)},
        torch=lambda b: call("torch.cat", tuple(b.x), dim=b["axis"]),
        onnx=lambda b: call("Concat", *b.x, axis=b["axis"]),
        relax=lambda b: call("concat", tuple(b.x), axis=b["axis"]),
        msc="concat",
    ),
]
