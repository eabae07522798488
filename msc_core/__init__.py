"""A compiler for trained networks: any framework -> `MSCGraph` -> prune, quantize -> any framework -> measured."""

from __future__ import annotations

from msc_core.backends import build
from msc_core.channels import ChannelGroup, channel_groups
from msc_core.codegen.onnx import to_onnx
from msc_core.codegen.relax import to_relax
from msc_core.codegen.torch import to_torch
from msc_core.errors import MscError
from msc_core.frontends.onnx import from_onnx
from msc_core.frontends.relax import from_relax
from msc_core.frontends.relay import from_relay
from msc_core.frontends.torch import from_torch
from msc_core.ir import MSCGraph, Node, Tensor
from msc_core.measure import measure
from msc_core.pipeline import Manager
from msc_core.plan import Plan, Quantized
from msc_core.tools import apply, resolve
from msc_core.tools.strategy import Prune, Rule, Strategy

__all__ = [
    "ChannelGroup",
    "MSCGraph",
    "Manager",
    "MscError",
    "Node",
    "Plan",
    "Prune",
    "Quantized",
    "Rule",
    "Strategy",
    "Tensor",
    "apply",
    "build",
    "channel_groups",
    "from_onnx",
    "from_relax",
    "from_relay",
    "from_torch",
    "measure",
    "resolve",
    "to_onnx",
    "to_relax",
    "to_torch",
]
