"""Cases of `msc_core/ops/norm.py`."""

from __future__ import annotations

from tests.op_cases.inputs import IMAGE, Case, Direct, Norm

CASES: dict[str, list[Case]] = {
    "batch_norm": [(Norm(4), IMAGE), (Norm(4, eps=0.1, momentum=0.3), IMAGE)],
}  # fmt: skip

DIRECT: dict[str, list[Direct]] = {}  # fmt: skip
