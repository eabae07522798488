"""Activation functions."""

from __future__ import annotations

from msc_core.ops.op import Op
from msc_core.ops.unary import unary

ACTIVATION: list[Op] = [unary("relu", "Relu", "nn.relu", "F.relu", integers="keep")]
