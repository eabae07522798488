"""Activation functions."""

from __future__ import annotations

from msc_core.ops.op import Op

ACTIVATION: list[Op] = []
