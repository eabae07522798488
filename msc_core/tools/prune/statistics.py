"""Second moments of what each layer reads: the Gram matrix X^T X, gathered once on calibration data.

Everything closed-form rests on it: least-squares recovery, the optimal-brain-surgeon order, activation-aware scores.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from msc_core.channels import ChannelGroup
from msc_core.errors import MscError
from msc_core.ir import Array, MSCGraph, consumers
from msc_core.tools.calibration import Inputs, batches
from msc_core.tools.prune.product import Product, product

if TYPE_CHECKING:
    import torch

POSITIONS = 40  # of each sample's output map, drawn once per batch: neighbours tell little more
RIDGE = 1e-4
MAX_COLUMNS = 8192  # a layer with more has no Gram matrix: this one is half a GB
SOLUTION_BYTES = 2**28


@dataclass(frozen=True, eq=False)
class Layer:
    """What a contracting layer reads. `gram` is (groups, D + 1, D + 1) float64, averaged over samples and positions.

    Columns are those of the `product`'s matrix; the last column is the constant 1. `centred` says whether the layer can
    shift its output (a bias, or a batch norm behind it).
    """

    product: Product
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
        return ridge(self.moments)


def ridge(moments: Array, share: float = RIDGE) -> Array:
    """(groups,): a share of the mean diagonal of (groups, D, D)."""
    return np.asarray(share * np.diagonal(moments, axis1=1, axis2=2).mean(axis=1) + 1e-12)


class Solutions(OrderedDict[tuple[str, bytes], Array]):
    """Least-squares matrices by layer and kept inputs: a search asks for the same ones again. The oldest make room."""

    used = 0

    def __setitem__(self, key: tuple[str, bytes], value: Array) -> None:
        super().__setitem__(key, value)
        self.used += value.nbytes
        while self.used > SOLUTION_BYTES and len(self) > 1:
            self.used -= self.popitem(last=False)[1].nbytes


class Statistics:
    """The `Layer` of each node named, for calibration inputs `x`: an array (n, ...), or one for each input by name.

    Nodes that are no product with a weight of their own (recurrent layers, attention scores, tied weights), or have
    more than `MAX_COLUMNS`, have no `Layer`. `layers` raises `MscError` if there is no input, or an activation is not
    finite.
    """

    def __init__(self, graph: MSCGraph, names: Iterable[str], x: Inputs) -> None:
        self.graph, self.x = graph, x
        self.solutions = Solutions()
        uses = consumers(graph)
        found = (product(graph, name, uses) for name in dict.fromkeys(names))
        self.products = {p.node: p for p in found if p and p.columns <= MAX_COLUMNS}

    @cached_property
    def layers(self) -> dict[str, Layer]:
        """Gathered in one pass over the calibration data, on first use."""
        import torch

        from msc_core.codegen.torch import to_torch

        fed = batches(self.graph, self.x)
        taps = tuple(dict.fromkeys(p.source for p in self.products.values()))
        if not taps:
            return {}
        module = to_torch(self.graph.replace(outputs=taps)).eval().to(next(iter(fed[0].values())).device)
        grams: dict[str, Any] = {}
        generator = torch.Generator().manual_seed(0)
        counts = [len(next(iter(feeds.values()))) for feeds in fed]
        with torch.no_grad():
            for feeds, count in zip(fed, counts, strict=True):
                outputs = module(**feeds)
                values = dict(zip(taps, outputs if isinstance(outputs, tuple) else (outputs,), strict=True))
                for name, p in self.products.items():
                    columns = with_one(p.gather(values[p.source], draw(p, values[p.source], count, generator)))
                    gram = (columns @ columns.mT).double() * (count / sum(counts) / columns.shape[-1])
                    grams[name] = grams.get(name, 0) + gram
        return {name: self._layer(name, gram.cpu().numpy()) for name, gram in grams.items()}

    def _layer(self, name: str, gram: Array) -> Layer:
        check_finite(name, gram)
        p = self.products[name]
        return Layer(p, bool(p.bias) or norm_behind(self.graph, p) != "", gram)


def readers(groups: Iterable[ChannelGroup]) -> list[str]:
    """The nodes that sum over an axis of these groups."""
    return list(dict.fromkeys(m.node for g in groups for m in g.members if m.contracted))


def norm_behind(graph: MSCGraph, layer: Product) -> str:
    """The batch norm that alone reads a layer's output, or ""."""
    uses = consumers(graph).get(layer.output, [])
    alone = len(uses) == 1 and uses[0].op == "batch_norm" and layer.output not in graph.outputs
    return uses[0].name if alone else ""


def check_finite(name: str, gram: Array) -> None:
    """Raise `MscError` if what a layer reads is not finite."""
    if not np.isfinite(gram).all():
        raise MscError(f"the input of layer {name!r} is not finite on the calibration data")


def with_one(columns: torch.Tensor) -> torch.Tensor:
    """(groups, D + 1, n): the columns and the constant 1."""
    import torch

    return torch.cat([columns, torch.ones_like(columns[:, :1])], dim=1)


def draw(layer: Product, value: torch.Tensor, samples: int, generator: torch.Generator) -> torch.Tensor:
    """Which of the layer's positions to look at: at most `POSITIONS` for each sample, without replacement."""
    import torch

    count = math.prod(layer.positions(value))
    limit = POSITIONS if layer.window else POSITIONS * samples
    return torch.randperm(count, generator=generator)[:limit].to(value.device)
