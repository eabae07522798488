"""Selecting and repeating parts of axes: slices, splits, tiles, flips."""

from __future__ import annotations

from msc_core.ops.op import Op

SLICING: list[Op] = []
