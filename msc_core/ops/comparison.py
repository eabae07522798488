"""Comparisons, logic, selection and bits."""

from __future__ import annotations

from msc_core.ops.op import Op

COMPARISON: list[Op] = []
