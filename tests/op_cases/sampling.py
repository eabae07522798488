"""Cases of `msc_core/ops/sampling.py`."""

from __future__ import annotations

import itertools

import torch.nn.functional as F

from tests.op_cases.inputs import Case, Direct, Fn, rand

IMAGE_AND_GRID = (rand(2, 3, 5, 7), rand(2, 4, 6, 2) * 1.5)
FORMS = itertools.product(("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection"), (False, True))
CASES: dict[str, list[Case]] = {
    "grid_sample": [
        *((Fn(F.grid_sample, mode=m, padding_mode=p, align_corners=a), IMAGE_AND_GRID) for m, p, a in FORMS),
    ],
}  # fmt: skip

DIRECT: dict[str, list[Direct]] = {}
