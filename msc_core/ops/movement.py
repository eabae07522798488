"""Operators that move positions without changing them; `channels.py` follows them position by position."""

from __future__ import annotations

from typing import Any

from msc_core import dims
from msc_core.dims import Dim
from msc_core.errors import InvalidGraph
from msc_core.ir import Tensor
from msc_core.ops.op import Bound, Call, Op, call, size_tensor, sizes


def flatten_shape(b: Bound) -> tuple[Dim, ...]:
    """Axes `start` to `end` become one."""
    shape = b.input(0).shape
    if not shape:
        return (1,)
    start, end = b["start"] % len(shape), b["end"] % len(shape)
    return (*shape[:start], dims.mul(*shape[start : end + 1]), *shape[end + 1 :])


def reshape_shape(b: Bound) -> tuple[Dim, ...]:
    """The target with its -1 worked out; the numbers of elements must agree."""
    source, target = b.input(0).shape, b["shape"]
    count, rest = dims.mul(*source), dims.mul(*(d for d in target if d != -1))
    open_ = target.count(-1)
    fits = count == rest if open_ == 0 else rest != 0 and dims.mod(count, rest) == 0 and open_ == 1
    if not fits:
        raise InvalidGraph(f"{b}: cannot reshape {list(source)} to {list(target)}")
    return tuple(dims.floordiv(count, rest) if d == -1 else d for d in target)


def concat_shape(b: Bound) -> tuple[Dim, ...]:
    """The first operand's shape with the sizes along `axis` added up."""
    shapes = [t.shape for t in b.x if t is not None]
    axis = b["axis"] % len(shapes[0])
    if len({(*s[:axis], *s[axis + 1 :]) for s in shapes}) > 1:
        raise InvalidGraph(f"{b}: cannot concatenate {[list(s) for s in shapes]} along axis {axis}")
    return (*shapes[0][:axis], dims.add(*(s[axis] for s in shapes)), *shapes[0][axis + 1 :])


def reshape_to_onnx(b: Bound) -> Call:
    """`Reshape`, with -1 for an axis that is the only symbolic one."""
    shape = b.out[0].shape
    single = sum(isinstance(d, str) for d in shape) == 1 and 0 not in shape
    return call("Reshape", b.x[0], size_tensor(-1 if single and isinstance(d, str) else d for d in shape), allowzero=1)


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
            call("Flatten", *b.x, axis=1) if b["start"] == 1 and len(b.out[0].shape) == 2 else reshape_to_onnx(b)
        ),
        relax=lambda b: call("reshape", *b.x, sizes(b.out[0].shape)),
        msc="reshape",
    ),
    Op(
        "reshape",
        axes="... -> ...",
        movement="reshape",
        attrs={"shape": ()},
        sized={"shape": "output"},
        symbolic=("shape",),
        shape=reshape_shape,
        aten={"view.default": reshape_from_aten, "reshape.default": reshape_from_aten},
        torch=lambda b: call("torch.reshape", *b.x, sizes(b.out[0].shape)),
        onnx=reshape_to_onnx,
        relax=lambda b: call("reshape", *b.x, sizes(b.out[0].shape)),
        msc="reshape",
    ),
    Op(
        "concat",
        axes="... -> ...",
        movement="concat",
        operands=-1,
        attrs={"axis": 0},
        shape=concat_shape,
        aten={"cat.default": lambda tensors, dim=0: call("concat", *tensors, axis=dim)},
        torch=lambda b: call("torch.cat", tuple(b.x), dim=b["axis"]),
        onnx=lambda b: call("Concat", *b.x, axis=b["axis"]),
        relax=lambda b: call("concat", tuple(b.x), axis=b["axis"]),
        msc="concat",
    ),
]
