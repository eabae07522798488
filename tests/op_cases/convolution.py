"""Cases of `msc_core/ops/convolution.py`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.op_cases.inputs import IMAGE, Case, Direct, Fn, rand

ASYMMETRIC = {"padding": (1, 0, 2, 1)}  # top, left, bottom, right
LINE, VOLUME = (rand(2, 4, 9),), (rand(2, 4, 5, 4, 6),)
CASES: dict[str, list[Case]] = {
    "conv1d": [
        (nn.Conv1d(4, 6, 3), LINE),
        (nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2, bias=False), LINE),
        (nn.Conv1d(4, 4, 4, groups=4, padding="same"), LINE),
    ],
    "conv2d": [
        (nn.Conv2d(4, 6, 3), IMAGE),
        (nn.Unfold((2, 3), padding=(1, 0), stride=(2, 1), dilation=(1, 2)), IMAGE),
        (nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2), bias=False), IMAGE),
        (nn.Conv2d(4, 6, 3, groups=2), IMAGE),
        (nn.Conv2d(4, 8, 3, groups=4, padding="same", dilation=2), IMAGE),
        (nn.Conv2d(4, 6, (2, 4), padding="same"), IMAGE),
        (nn.Conv2d(4, 6, 3, padding="valid"), IMAGE),
        (nn.Conv2d(4, 6, 3), (rand(4, 9, 7),)),
        (Fn(torch.convolution, None, (2, 1), (1, 1), (1, 1), False, (0, 0), 2), (IMAGE[0], rand(6, 2, 3, 3))),
    ],
    "conv3d": [
        (nn.Conv3d(4, 6, 3), VOLUME),
        (nn.Conv3d(4, 6, (2, 3, 1), stride=(1, 2, 1), padding=(1, 0, 2), groups=2), VOLUME),
    ],
    "conv1d_transpose": [
        (nn.ConvTranspose1d(4, 6, 3), LINE),
        (nn.ConvTranspose1d(4, 6, 4, stride=2, padding=1, output_padding=1, groups=2, bias=False), LINE),
        (nn.ConvTranspose1d(4, 6, 3, stride=2, padding=2, dilation=2, output_padding=1), LINE),
    ],
    "conv2d_transpose": [
        (nn.ConvTranspose2d(4, 6, 3), IMAGE),
        (nn.Fold((5, 7), (2, 3), padding=(1, 0), stride=(2, 1), dilation=(1, 2)), (rand(2, 12, 9),)),
        (nn.ConvTranspose2d(4, 6, (3, 2), stride=(2, 3), padding=(1, 0), output_padding=(1, 2), groups=2), IMAGE),
        (nn.ConvTranspose2d(4, 4, 3, groups=4, dilation=2, padding=1, bias=False), IMAGE),
        (Fn(torch.convolution, None, (2, 1), (1, 1), (1, 1), True, (1, 0), 1), (IMAGE[0], rand(4, 2, 3, 3))),
        (nn.ConvTranspose2d(4, 6, 3), (rand(4, 5, 7),)),
    ],
    "conv3d_transpose": [
        (nn.ConvTranspose3d(4, 6, 2), VOLUME),
        (nn.ConvTranspose3d(4, 6, (3, 2, 2), stride=(2, 1, 2), padding=(1, 0, 1), output_padding=(1, 0, 1)), VOLUME),
        (nn.ConvTranspose3d(4, 6, 2, stride=2, groups=2), VOLUME),
    ],
}  # fmt: skip


def cropped(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A transposed convolution with zeros after it on two axes, cut on one side."""
    full = F.pad(F.conv_transpose2d(x, w, stride=2), (0, 3, -1, 2))
    return full + b.reshape(-1, 1, 1)


DIRECT: dict[str, list[Direct]] = {
    "conv2d": [
        ({"x": rand(2, 4, 9, 7), "w": rand(6, 4, 3, 3)}, ASYMMETRIC, lambda x, w: F.conv2d(F.pad(x, (0, 1, 1, 2)), w)),
    ],
    "conv1d_transpose": [
        (
            {"x": rand(2, 4, 5), "w": rand(4, 3, 3)},
            {"padding": (2, 0), "stride": (2,)},
            lambda x, w: F.conv_transpose1d(x, w, stride=2)[:, :, 2:],
        ),
    ],
    "conv2d_transpose": [
        (
            {"x": rand(2, 4, 5, 4), "w": rand(4, 3, 3, 3), "b": rand(3)},
            {"padding": (0, 0, 1, 2), "stride": (2, 2)},
            lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2)[:, :, :-1, :-2],
        ),
        (
            {"x": rand(2, 4, 5, 4), "w": rand(4, 3, 3, 3), "b": rand(3)},
            {"padding": (1, 0, 0, 0), "stride": (2, 2), "output_padding": (2, 3)},
            cropped,
        ),
    ],
}  # fmt: skip
