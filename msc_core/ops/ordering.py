"""Sorting, top-k and cumulative operators."""

from __future__ import annotations

from msc_core.ops.op import Op

ORDERING: list[Op] = []
