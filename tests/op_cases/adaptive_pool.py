"""Cases of `msc_core/ops/adaptive_pool.py`."""

from __future__ import annotations

from torch import nn

from tests.op_cases.inputs import IMAGE, Case, Direct, rand

LINE, VOLUME = (rand(2, 4, 9),), (rand(2, 3, 4, 6, 5),)
CASES: dict[str, list[Case]] = {
    "adaptive_avg_pool1d": [(nn.AdaptiveAvgPool1d(4), LINE), (nn.AdaptiveAvgPool1d(1), LINE)],
    "adaptive_avg_pool2d": [
        (nn.AdaptiveAvgPool2d(1), IMAGE), (nn.AdaptiveAvgPool2d((3, 1)), IMAGE), (nn.AdaptiveAvgPool2d((4, 5)), IMAGE),
        (nn.AdaptiveAvgPool2d((None, 2)), (rand(3, 4, 6),)),
    ],
    "adaptive_avg_pool3d": [(nn.AdaptiveAvgPool3d(1), VOLUME), (nn.AdaptiveAvgPool3d((3, 4, 2)), VOLUME)],
    "adaptive_max_pool1d": [(nn.AdaptiveMaxPool1d(4), LINE), (nn.AdaptiveMaxPool1d(1), LINE)],
    "adaptive_max_pool2d": [
        (nn.AdaptiveMaxPool2d(1), IMAGE), (nn.AdaptiveMaxPool2d((3, 7)), IMAGE), (nn.AdaptiveMaxPool2d((4, 5)), IMAGE),
    ],
    "adaptive_max_pool3d": [(nn.AdaptiveMaxPool3d((2, 3, 5)), VOLUME), (nn.AdaptiveMaxPool3d((3, 4, 2)), VOLUME)],
    "adaptive_max_pool1d_indices": [(nn.AdaptiveMaxPool1d(3, return_indices=True), LINE)],
    "adaptive_max_pool2d_indices": [(nn.AdaptiveMaxPool2d((3, 1), return_indices=True), IMAGE)],
    "adaptive_max_pool3d_indices": [(nn.AdaptiveMaxPool3d((2, 3, 1), return_indices=True), VOLUME)],
}  # fmt: skip

DIRECT: dict[str, list[Direct]] = {}  # fmt: skip
