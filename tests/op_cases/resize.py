"""Cases of `msc_core/ops/resize.py`."""

from __future__ import annotations

import torch.nn.functional as F

from tests.op_cases.inputs import Case, Direct, Fn, rand

PICTURE = (rand(2, 3, 5, 7),)
CASES: dict[str, list[Case]] = {
    "resize": [
        (Fn(F.interpolate, scale_factor=2), PICTURE),
        (Fn(F.interpolate, size=(3, 10)), PICTURE),
        (Fn(F.interpolate, scale_factor=(1.5, 0.6)), PICTURE),
        (Fn(F.interpolate, size=7, mode="nearest-exact"), (rand(2, 3, 4),)),
        (Fn(F.interpolate, scale_factor=2, mode="linear"), (rand(2, 3, 4),)),
        (Fn(F.interpolate, scale_factor=2, mode="bilinear"), PICTURE),
        (Fn(F.interpolate, size=(9, 4), mode="bilinear"), PICTURE),
        (Fn(F.interpolate, size=(9, 4), mode="bilinear", align_corners=True), PICTURE),
        (Fn(F.interpolate, scale_factor=1.7, mode="bilinear"), PICTURE),
        (Fn(F.interpolate, size=(1, 4), mode="bilinear"), PICTURE),
        (Fn(F.interpolate, size=(3, 4), mode="bilinear", antialias=True), PICTURE),
        (Fn(F.interpolate, size=(9, 4), mode="bicubic"), PICTURE),
        (Fn(F.interpolate, size=(3, 12), mode="bicubic", align_corners=True), PICTURE),
        (Fn(F.interpolate, size=(3, 4), mode="bicubic", antialias=True), PICTURE),
        (Fn(F.interpolate, size=(3, 4, 9), mode="trilinear"), (rand(1, 2, 4, 3, 5),)),
        (Fn(F.interpolate, size=(3, 5, 9)), (rand(1, 2, 4, 3, 5),)),
    ],
}  # fmt: skip

DIRECT: dict[str, list[Direct]] = {
    "resize": [
        ({"x": rand(2, 4, 5)}, {"size": (2, 10), "coordinates": "asymmetric", "rounding": "floor"},
         lambda x: x[:, ::2].repeat_interleave(2, 2)),
    ],
}  # fmt: skip
