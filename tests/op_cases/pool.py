"""Cases of `msc_core/ops/pool.py`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.op_cases.inputs import IMAGE, Case, Direct, Fn, rand

ASYMMETRIC = {"padding": (1, 0, 2, 1)}  # top, left, bottom, right
LINE, VOLUME, EVEN = (rand(2, 4, 9),), (rand(2, 4, 5, 4, 6),), (rand(1, 2, 8, 10),)
WITH_INDICES = torch.ops.aten.max_pool2d_with_indices.default


def unpooled(x: torch.Tensor) -> torch.Tensor:
    """The maxima back at their places."""
    y, places = F.max_pool2d(x, 2, return_indices=True)
    return F.max_unpool2d(y, places, 2, output_size=x.shape)


CASES: dict[str, list[Case]] = {
    "max_pool1d": [
        (nn.MaxPool1d(3, stride=2, padding=1), LINE), (nn.MaxPool1d(2, dilation=3, ceil_mode=True), (rand(4, 9),)),
    ],
    "max_pool2d": [
        (nn.MaxPool2d(2), IMAGE),
        (nn.MaxPool2d((3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)), IMAGE),
        (nn.MaxPool2d(2, ceil_mode=True), IMAGE),
        (nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True), EVEN),
        (Fn(lambda x: WITH_INDICES(x, [3, 3], [2, 2])[0]), IMAGE),
    ],
    "max_pool3d": [(nn.MaxPool3d(2), VOLUME), (nn.MaxPool3d((3, 2, 2), stride=2, padding=1, ceil_mode=True), VOLUME)],
    "avg_pool1d": [(nn.AvgPool1d(2), LINE), (nn.AvgPool1d(3, 2, 1, ceil_mode=True, count_include_pad=False), LINE)],
    "avg_pool2d": [
        (nn.AvgPool2d(2), IMAGE),
        (nn.AvgPool2d(3, stride=2, padding=1), IMAGE),
        (nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False), IMAGE),
        (nn.AvgPool2d(2, ceil_mode=True), IMAGE),
        (nn.AvgPool2d(3, stride=2, padding=1, ceil_mode=True), EVEN),
        (nn.AvgPool2d(3, stride=2, padding=1, ceil_mode=True, count_include_pad=False), EVEN),
        (nn.AvgPool2d((3, 2), stride=2, padding=(1, 0), divisor_override=5), IMAGE),
        (nn.AvgPool2d(2), (rand(4, 6, 5),)),
    ],
    "avg_pool3d": [
        (nn.AvgPool3d((3, 2, 2), stride=2, padding=1, ceil_mode=True), VOLUME),
        (nn.AvgPool3d(2, padding=1, count_include_pad=False), VOLUME),
        (nn.AvgPool3d(2, divisor_override=3), VOLUME),
    ],
    "max_pool1d_indices": [(nn.MaxPool1d(3, 2, 1, return_indices=True), LINE)],
    "max_pool2d_indices": [
        (nn.MaxPool2d(2, return_indices=True), IMAGE),
        (nn.MaxPool2d((3, 2), stride=(2, 1), padding=1, dilation=(1, 2), ceil_mode=True, return_indices=True), IMAGE),
        (Fn(unpooled), (rand(2, 3, 4, 7),)),
    ],
    "max_pool3d_indices": [(nn.MaxPool3d(2, padding=1, return_indices=True), VOLUME)],
}  # fmt: skip


def averaged(x: torch.Tensor, padding: tuple[int, ...], kernel: int, stride: int, dilation: int = 1) -> torch.Tensor:
    """The average of the positions of each window that are not padding."""

    def total(values: torch.Tensor) -> torch.Tensor:
        ones = torch.ones(values.shape[1], 1, kernel, kernel)
        padded = F.pad(values, padding)
        return F.conv2d(padded, ones, stride=stride, dilation=dilation, groups=values.shape[1])

    return total(x) / total(torch.ones_like(x))


THREES = {"kernel": (3, 3), "stride": (2, 2)}
DIRECT: dict[str, list[Direct]] = {
    "max_pool2d": [
        (
            {"x": rand(2, 4, 9, 7) - 5},
            ASYMMETRIC | THREES,
            lambda x: F.max_pool2d(F.pad(x, (0, 1, 1, 2), value=-torch.inf), 3, 2),
        ),
        (
            {"x": rand(2, 4, 8, 7) - 5},
            THREES | {"padding": (2, 0, 2, 1), "ceil_mode": True},
            lambda x: F.max_pool2d(F.pad(x, (0, 2, 2, 1), value=-torch.inf), 3, 2),
        ),
    ],
    "max_pool2d_indices": [
        (
            {"x": rand(1, 2, 6, 6)},
            {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0, 1, 0)},
            lambda x: F.max_pool2d(x, 2, return_indices=True)[1],
        ),
    ],
    "avg_pool2d": [
        (
            {"x": rand(2, 4, 9, 7)},
            ASYMMETRIC | THREES,
            lambda x: F.avg_pool2d(F.pad(x, (0, 1, 1, 2)), 3, 2),
        ),
        (
            {"x": rand(2, 4, 9, 7)},
            ASYMMETRIC | THREES | {"count_include_pad": False},
            lambda x: averaged(x, (0, 1, 1, 2), 3, 2),
        ),
        (
            {"x": rand(2, 4, 9, 7)},
            {"kernel": (2, 2), "dilation": (2, 2), "padding": (1, 1, 1, 1), "count_include_pad": False},
            lambda x: averaged(x, (1, 1, 1, 1), 2, 1, 2),
        ),
    ],
}  # fmt: skip
