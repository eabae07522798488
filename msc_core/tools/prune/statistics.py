"""Second moments of what each layer reads: the Gram matrix X^T X, gathered once on calibration data.

Everything closed-form rests on it: least-squares recovery, the optimal-brain-surgeon order, activation-aware scores.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from msc_core.channels import ChannelGroup
from msc_core.errors import MscError
from msc_core.ir import Array, MSCGraph, consumers
from msc_core.ops import bind

if TYPE_CHECKING:
    import torch

BATCH = 50
POSITIONS = 40  # of each sample's output map, drawn once per batch: neighbours tell little more
RIDGE = 1e-4
MAX_SOLUTIONS = 512


@dataclass(frozen=True, eq=False)
class Layer:
    """What a contracting layer reads. `gram` is (groups, D + 1, D + 1) float64, averaged over samples and positions.

    Columns are ordered like the weight flattened from axis 1 on (input channel, then kernel position); the last column
    is the constant 1. `centred` says whether the layer can shift its output (a bias, or a batch norm behind it).
    """

    name: str
    weight: str
    bias: str
    groups: int
    kernel: int
    centred: bool
    gram: Array

    @cached_property
    def moments(self) -> Array:
        """(groups, D, D): the covariance of the columns if `centred`, otherwise their second moment."""
        inner, mean = self.gram[:, :-1, :-1], self.gram[:, :-1, -1]
        return np.asarray(inner - mean[:, :, None] * mean[:, None, :] if self.centred else inner)

    @cached_property
    def ridge(self) -> Array:
        """(groups,): a small fraction of the mean diagonal, so that every system is solvable."""
        return np.asarray(RIDGE * np.diagonal(self.moments, axis1=1, axis2=2).mean(axis=1) + 1e-12)


class Solutions(OrderedDict[tuple[str, bytes], dict[str, Array]]):
    """Least-squares weights by layer and kept inputs: a search asks for the same ones again. The oldest make room."""

    def __setitem__(self, key: tuple[str, bytes], value: dict[str, Array]) -> None:
        super().__setitem__(key, value)
        if len(self) > MAX_SOLUTIONS:
            self.popitem(last=False)


class Statistics:
    """The `Layer` of every node that sums over a prunable axis, for calibration inputs `x` (n, ...) float32.

    `layers` raises `MscError` if there is no input, or if an activation is not finite.
    """

    def __init__(self, graph: MSCGraph, groups: Iterable[ChannelGroup], x: Array) -> None:
        self.graph, self.x = graph, x
        self.solutions = Solutions()
        self.names = list(dict.fromkeys(m.node for g in groups for m in g.members if m.contracted))

    @cached_property
    def layers(self) -> dict[str, Layer]:
        """Gathered in one pass over the calibration data, on first use."""
        if len(self.x) == 0:
            raise MscError("calibration needs at least one input; found none")
        import torch

        from msc_core.codegen.torch import to_torch

        nodes = [self.graph.node(name) for name in self.names]
        taps = tuple(dict.fromkeys(n.inputs[0] for n in nodes))
        module = to_torch(self.graph.replace(outputs=taps)).eval()
        device = "cuda" if torch.cuda.is_available() else "cpu"
        module.to(device)
        grams: dict[str, Any] = {}
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for start in range(0, len(self.x), BATCH):
                outputs = module(torch.from_numpy(self.x[start : start + BATCH]).to(device))
                values = dict(zip(taps, outputs if isinstance(outputs, tuple) else (outputs,), strict=True))
                for node in nodes:
                    columns = self._columns(node.name, values[node.inputs[0]], generator)
                    gram = (columns @ columns.mT).double() * (len(values[taps[0]]) / len(self.x) / columns.shape[-1])
                    grams[node.name] = grams.get(node.name, 0) + gram
        return {name: self._layer(name, gram.cpu().numpy()) for name, gram in grams.items()}

    def _columns(self, name: str, value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """(groups, D + 1, samples * positions): the columns that the layer multiplies with its weight."""
        import torch
        from torch.nn import functional as F

        bound = bind(self.graph.node(name), self.graph.tensors)
        if bound.node.op == "linear":
            columns = value.reshape(len(value), -1, value.shape[-1])
            columns = columns[:, _draw(columns.shape[1], generator)].permute(2, 0, 1)[None]
        else:
            top, left, bottom, right = bound["padding"]
            padded = F.pad(value, (left, right, top, bottom))
            height, width = self.graph.weights[bound.node.inputs[1]].shape[2:]
            (down, across), (spread_y, spread_x) = bound["stride"], bound["dilation"]
            out_width = (padded.shape[3] - spread_x * (width - 1) - 1) // across + 1
            out_height = (padded.shape[2] - spread_y * (height - 1) - 1) // down + 1
            positions = _draw(out_height * out_width, generator)
            rows = (positions // out_width * down)[:, None] + torch.arange(height) * spread_y
            cols = (positions % out_width * across)[:, None] + torch.arange(width) * spread_x
            patches = padded[:, :, rows[:, :, None], cols[:, None, :]]  # (samples, channels, positions, kernel)
            columns = patches.permute(1, 3, 4, 0, 2).reshape(bound["groups"], -1, len(value) * len(positions))
        columns = columns.reshape(columns.shape[0], columns.shape[1], -1)
        return torch.cat([columns, torch.ones_like(columns[:, :1])], dim=1)

    def _layer(self, name: str, gram: Array) -> Layer:
        if not np.isfinite(gram).all():
            raise MscError(f"the input of layer {name!r} is not finite on the calibration data")
        node = self.graph.node(name)
        bound = bind(node, self.graph.tensors)
        weight = self.graph.weights[node.inputs[1]]
        readers = consumers(self.graph).get(node.outputs[0], [])
        bias = node.inputs[2] if len(node.inputs) > 2 else ""
        normalized = len(readers) == 1 and readers[0].op == "batch_norm" and node.outputs[0] not in self.graph.outputs
        groups = bound["groups"] if "groups" in bound.op.attrs else 1
        kernel = int(np.prod(weight.shape[2:]))
        return Layer(name, node.inputs[1], bias, groups, kernel, bool(bias) or normalized, gram)


def _draw(count: int, generator: torch.Generator) -> torch.Tensor:
    """At most `POSITIONS` of `count` positions, without replacement."""
    import torch

    return torch.randperm(count, generator=generator)[:POSITIONS]
