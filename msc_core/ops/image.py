"""Operators on spatial axes: padding, resizing, sampling, pixel shuffling."""

from __future__ import annotations

from msc_core.ops.op import Op

IMAGE: list[Op] = []
