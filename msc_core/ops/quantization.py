"""Explicit quantization, as in ONNX QDQ."""

from __future__ import annotations

from msc_core.ops.op import Op

QUANTIZATION: list[Op] = []
