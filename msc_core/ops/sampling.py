"""Sampling of an image at positions that are data."""

from __future__ import annotations

from typing import Any

from msc_core.errors import UnsupportedOperator
from msc_core.ir import Tensor
from msc_core.ops.op import Bound, Call, Op, Source, call

MODES = {"linear": "bilinear", "cubic": "bicubic"}  # ONNX's names since opset 20
NUMBERED = {"mode": ("bilinear", "nearest", "bicubic"), "padding": ("zeros", "border", "reflection")}  # ATen's


def grid_axes(b: Bound) -> str:
    """Batch and channels pass; the spatial axes are the grid's."""
    rank = len(b.input(0).shape) - 2
    old, new = (" ".join(f"{letter}{i}" for i in range(rank)) for letter in "xy")
    return f"n c {old}, n {new} {rank} -> n c {new}"


def grid_sample(x: Tensor, grid: Tensor, mode: str, padding: str, align_corners: bool) -> Call:
    """The row's call."""
    if len(x.shape) != 4 and mode == "bicubic":
        raise UnsupportedOperator(f"grid_sample in mode 'bicubic' of {len(x.shape)} axes")
    return call("grid_sample", x, grid, mode=mode, padding=padding, align_corners=align_corners)


def from_aten(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool = False
) -> Call:
    """`aten.grid_sampler`."""
    mode, padding = NUMBERED["mode"][interpolation_mode], NUMBERED["padding"][padding_mode]
    return grid_sample(input, grid, mode, padding, bool(align_corners))


def from_onnx(n: Source) -> Call:
    """`GridSample`."""
    mode = n.attr("mode", "bilinear")
    padding, corners = n.attr("padding_mode", "zeros"), bool(n.attr("align_corners", 0))
    return grid_sample(n.tensor(0), n.tensor(1), MODES.get(mode, mode), padding, corners)


def from_relax(n: Source) -> Call:
    """`image.grid_sample`, whose grid has its coordinates in front."""
    grid = n.tensor(1)
    order = (0, *range(2, len(grid.shape)), 1)
    moved: Any = call("permute_dims", grid, axes=order)
    corners = bool(n.attr("align_corners", False))
    return call(
        "grid_sample", n.tensor(0), moved, mode=n.attr("method"), padding=n.attr("padding_mode"), align_corners=corners
    )


def to_onnx(b: Bound) -> Call:
    """`GridSample`, which has volumes since opset 20."""
    if len(b.input(0).shape) != 4:
        raise UnsupportedOperator(f"{b}: ONNX opset 18 samples images only")
    return call(
        "GridSample", *b.x, mode=b["mode"], padding_mode=b["padding"], align_corners=int(b["align_corners"])
    )  # fmt: skip


def to_relax(b: Bound) -> Call:
    """`image.grid_sample`."""
    rank = len(b.input(0).shape)
    grid = call("permute_dims", b.x[1], (0, rank - 1, *range(1, rank - 1)))
    return call(
        "image.grid_sample", b.x[0], grid, method=b["mode"], layout="NCHW" if rank == 4 else "NCDHW",
        padding_mode=b["padding"], align_corners=b["align_corners"],
    )  # fmt: skip


SAMPLING: list[Op] = [
    Op(
        "grid_sample",
        axes=grid_axes,
        attrs={"mode": "bilinear", "padding": "zeros", "align_corners": False},
        aten=dict.fromkeys(("grid_sampler.default", "grid_sampler_2d.default", "grid_sampler_3d.default"), from_aten),
        from_onnx={"GridSample": from_onnx},
        from_relax={"image.grid_sample": from_relax},
        torch=lambda b: call(
            "F.grid_sample", *b.x, mode=b["mode"], padding_mode=b["padding"], align_corners=b["align_corners"]
        ),
        onnx=to_onnx,
        relax=to_relax,
        msc="image.grid_sample",
    ),
]
