"""A compiler for trained networks: any framework -> `MSCGraph` -> prune, quantize -> any framework -> measured."""

from __future__ import annotations

from msc_core.backends import build
from msc_core.codegen.onnx import to_onnx
from msc_core.codegen.relax import to_relax
from msc_core.codegen.torch import to_torch
from msc_core.errors import MscError
from msc_core.frontends.torch import from_torch
from msc_core.ir import MSCGraph, Node, Tensor
from msc_core.measure import measure

__all__ = [
    "MSCGraph",
    "MscError",
    "Node",
    "Tensor",
    "build",
    "from_torch",
    "measure",
    "to_onnx",
    "to_relax",
    "to_torch",
]
