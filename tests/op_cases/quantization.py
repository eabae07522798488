"""Cases of `msc_core/ops/quantization.py`."""

from __future__ import annotations

from tests.op_cases.inputs import Case, Direct

CASES: dict[str, list[Case]] = {}  # fmt: skip

DIRECT: dict[str, list[Direct]] = {}  # fmt: skip
