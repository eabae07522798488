"""Recurrent networks, kept whole: LSTM, GRU and RNN."""

from __future__ import annotations

from msc_core.ops.op import Op

RECURRENT: list[Op] = []
