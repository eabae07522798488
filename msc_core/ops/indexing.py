"""Gathering and scattering by index tensors."""

from __future__ import annotations

from msc_core.ops.op import Op

INDEXING: list[Op] = []
