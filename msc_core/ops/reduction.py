"""Operators that run over whole axes: a letter that only the input has is reduced over."""

from __future__ import annotations

from typing import Any

import numpy as np

from msc_core.errors import UnsupportedOperator
from msc_core.ir import Tensor
from msc_core.ops.dtypes import cast, kind
from msc_core.ops.op import Bound, Call, Op, call


def reduced_axes(b: Bound) -> str:
    """`"a0 a1 a2 -> a0 1"` and the like, for a reduction over `axes`."""
    rank = len(b.input(0).shape)
    axes = [axis % rank for axis in b["axes"]]
    kept = [f"a{i}" if i not in axes else "1" for i in range(rank) if i not in axes or b["keepdims"]]
    return f"{' '.join(f'a{i}' for i in range(rank))} -> {' '.join(kept)}"


def softmax_axes(b: Bound) -> str:
    """All axes pass, but the one that is normalized over comes out as a new one, `S`."""
    rank = len(b.input(0).shape)
    out = ["S" if i == b["axis"] % rank else f"a{i}" for i in range(rank)]
    return f"{' '.join(f'a{i}' for i in range(rank))} -> {' '.join(out)}"


def mean_from_aten(self: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Call:
    """`aten.mean`, over all axes where `dim` is absent."""
    if dtype is not None:
        raise UnsupportedOperator(f"mean with dtype={dtype}")
    axes = tuple(range(len(self.shape))) if not dim and dim != 0 else (dim,) if isinstance(dim, int) else tuple(dim)
    return call("mean", self, axes=axes, keepdims=keepdim)


def softmax_from_aten(self: Tensor, dim: int, dtype: Any = None) -> Call:
    """`aten.softmax`."""
    if dtype is not None:
        raise UnsupportedOperator(f"softmax with dtype={dtype}")
    return call("softmax", self, axis=dim)


def sum_from_aten(self: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Call:
    """`aten.sum`, of integers and booleans in int64."""
    wanted = str(dtype).removeprefix("torch.") if dtype is not None else "int64" if kind(self.dtype) < 2 else self.dtype
    axes = tuple(range(len(self.shape))) if not dim and dim != 0 else (dim,) if isinstance(dim, int) else tuple(dim)
    return call("sum", cast(self, wanted), axes=axes, keepdims=keepdim)


REDUCTION = [
    Op(
        "sum",
        axes=reduced_axes,
        attrs={"axes": (), "keepdims": False},
        aten={"sum.default": sum_from_aten, "sum.dim_IntList": sum_from_aten},
        torch=lambda b: call("torch.sum", *b.x, dim=b["axes"], keepdim=b["keepdims"]),
        onnx=lambda b: call("ReduceSum", *b.x, np.asarray(b["axes"], np.int64), keepdims=int(b["keepdims"])),
        relax=lambda b: call("sum", *b.x, axis=b["axes"], keepdims=b["keepdims"]),
        msc="sum",
    ),
    Op(
        "mean",
        axes=reduced_axes,
        attrs={"axes": (), "keepdims": False},
        aten={"mean.default": mean_from_aten, "mean.dim": mean_from_aten},
        torch=lambda b: call("torch.mean", *b.x, dim=b["axes"], keepdim=b["keepdims"]),
        onnx=lambda b: call("ReduceMean", *b.x, np.asarray(b["axes"], np.int64), keepdims=int(b["keepdims"])),
        relax=lambda b: call("mean", *b.x, axis=b["axes"], keepdims=b["keepdims"]),
        msc="mean",
    ),
    Op(
        "softmax",
        axes=softmax_axes,
        attrs={"axis": -1},
        new=lambda b, sizes: {"S": b.input(0).shape[b["axis"]]},
        aten={"softmax.int": softmax_from_aten},
        torch=lambda b: call("torch.softmax", *b.x, dim=b["axis"]),
        onnx=lambda b: call("Softmax", *b.x, axis=b["axis"]),
        relax=lambda b: call("nn.softmax", *b.x, axis=b["axis"]),
        msc="nn.softmax",
    ),
]
