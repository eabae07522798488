"""Attention, kept whole, and embeddings."""

from __future__ import annotations

from msc_core.ops.op import Op

ATTENTION: list[Op] = []
