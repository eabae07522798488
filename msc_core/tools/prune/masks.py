"""Sparsity without surgery: which elements of which weights stay, as data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from msc_core.errors import InvalidPlan, nearest
from msc_core.exchange import read_safetensors
from msc_core.ir import Array, MSCGraph, Node, write_atomic
from msc_core.ops import bind

if TYPE_CHECKING:
    from msc_core.tools.prune.statistics import Statistics

SCOPES = ("global", "layer", "row")


@dataclass(frozen=True)
class Sparsity:
    """How many of a weight's elements are zero."""

    weight: str
    elements: int
    zeros: int

    @property
    def density(self) -> float:
        """The share that is not zero."""
        return 1 - self.zeros / self.elements


@dataclass(frozen=True, eq=False)
class Masks:
    """`keep[weight]`: a bool array of the weight's shape, false where it is zero. Weights not named are dense.

    `finetune(..., masks=masks.keep)` trains what is left.
    """

    keep: Mapping[str, Array]

    def __post_init__(self) -> None:
        for name, mask in self.keep.items():
            if mask.dtype != np.bool_:
                raise InvalidPlan(f"the mask of {name!r} is {mask.dtype}; expected bool")
        object.__setattr__(self, "keep", MappingProxyType(dict(self.keep)))

    def apply(self, graph: MSCGraph) -> MSCGraph:
        """The graph with masked elements set to zero; a pure function. Raises `InvalidPlan` if a mask does not fit."""
        self._check(graph)
        zeroed = {
            name: np.where(mask, graph.weights[name], 0).astype(graph.weights[name].dtype)
            for name, mask in self.keep.items()
        }
        return graph.replace(weights={**graph.weights, **zeroed})

    def save(self, path: str | Path) -> None:
        """Write a safetensors file, atomically."""
        from safetensors.numpy import save

        write_atomic(Path(path), save({name: np.ascontiguousarray(mask) for name, mask in self.keep.items()}))

    @staticmethod
    def load(path: str | Path) -> Masks:
        """Read what `save` wrote. Raises `InvalidPlan` for anything else."""
        from safetensors import SafetensorError

        try:
            return Masks(read_safetensors(Path(path).read_bytes()))
        except (OSError, KeyError, ValueError, SafetensorError) as error:
            raise InvalidPlan(f"masks {path}: {error}") from error

    def _check(self, graph: MSCGraph) -> None:
        for name, mask in self.keep.items():
            if name not in graph.weights:
                raise InvalidPlan(f"a mask for weight {name!r}, which the graph lacks{nearest(name, graph.weights)}")
            if mask.shape != graph.weights[name].shape:
                expected = list(graph.weights[name].shape)
                raise InvalidPlan(f"the mask of {name!r} is {list(mask.shape)}; expected {expected}")


def saliency(graph: MSCGraph, statistics: Statistics | None = None, names: Iterable[str] = ("*",)) -> dict[str, Array]:
    """A score for each element of the weights that layers multiply with and whose names match a glob: |w|.

    With `statistics` it is |w| * ||x||, the norm of what the element is multiplied with (Wanda, Sun et al. 2024); then
    each weight must belong to a layer that the statistics have, or `InvalidPlan` is raised.
    """
    names = tuple(names)
    scores: dict[str, Array] = {}
    for weight, node in _layers(graph).items():
        if any(weight == name or fnmatchcase(weight, name) for name in names):
            scores[weight] = np.abs(graph.weights[weight].astype(np.float64))
            if statistics is not None:
                scores[weight] *= _norms(graph, node, statistics)
    if not scores:
        raise InvalidPlan(f"no layer has a weight that matches {', '.join(names)}")
    return scores


def unstructured(saliency: Mapping[str, Array], density: float, scope: str = "layer") -> Masks:
    """Keep the `density` most salient elements: of all weights together ("global"), of each ("layer"), or of each
    position of its first axis ("row", as Wanda compares them). Counts are rounded; of equal scores the first stay.
    """  # fmt: skip
    if not 0 < density <= 1:
        raise InvalidPlan(f"density must be in (0, 1]; found {density}")
    if scope not in SCOPES:
        raise InvalidPlan(f"unknown scope {scope!r}{nearest(scope, SCOPES)}")
    if scope == "global":
        flat = np.concatenate([score.ravel() for score in saliency.values()])
        pieces = np.split(_top(flat[None], density)[0], np.cumsum([s.size for s in saliency.values()])[:-1])
        return Masks({name: piece.reshape(saliency[name].shape) for name, piece in zip(saliency, pieces, strict=True)})
    rows = {name: score.reshape(len(score) if scope == "row" else 1, -1) for name, score in saliency.items()}
    return Masks({name: _top(row, density).reshape(saliency[name].shape) for name, row in rows.items()})


def semi_structured(graph: MSCGraph, saliency: Mapping[str, Array], n: int, m: int) -> Masks:
    """Keep the `n` most salient of every `m` consecutive inputs of a layer (2:4 is what sparse tensor cores run).

    Layers whose inputs are no multiple of `m` stay dense and get no mask. Raises `InvalidPlan` if that leaves none.
    """
    if not 0 < n < m:
        raise InvalidPlan(f"n:m sparsity needs 0 < n < m; found {n}:{m}")
    masks: dict[str, Array] = {}
    layers = _layers(graph)
    for name, score in saliency.items():
        axis = _input_axis(graph, layers[name], name)
        if score.shape[axis] % m == 0:
            rows = np.moveaxis(score, axis, -1)
            kept = _top(rows.reshape(-1, m), n / m).reshape(rows.shape)
            masks[name] = np.ascontiguousarray(np.moveaxis(kept, -1, axis))
    if not masks:
        raise InvalidPlan(f"no layer's inputs are a multiple of {m}")
    return Masks(masks)


def report(graph: MSCGraph) -> list[Sparsity]:
    """The zeros of each weight that a layer multiplies with, as they are in the graph."""
    return [
        Sparsity(name, w.size, int(w.size - np.count_nonzero(w)))
        for name in _layers(graph)
        for w in [graph.weights[name]]
    ]


def _layers(graph: MSCGraph) -> dict[str, Node]:
    """The first layer that multiplies with each weight of two axes or more."""
    layers: dict[str, Node] = {}
    for node in graph.nodes:
        if bind(node, graph.tensors).op.macs is not None:
            for name in node.inputs:
                weight = graph.weights.get(name)
                if weight is not None and weight.ndim > 1 and weight.dtype.kind in "fV":  # V: bfloat16
                    layers.setdefault(name, node)
    return layers


def _input_axis(graph: MSCGraph, node: Node, weight: str) -> int:
    """The axis of a weight that its layer sums over; the last one if none is (recurrent weights)."""
    signature = bind(node, graph.tensors).signature
    kept = {letter for operand in signature.outputs for axis in operand.axes for letter in axis}
    axes = signature.operands[node.inputs.index(weight)].expand(graph.weights[weight].ndim)
    summed = [i for i, axis in enumerate(axes) if axis and not any(x in kept for x in axis if x != "g")]
    return summed[0] if summed else len(axes) - 1


def _norms(graph: MSCGraph, node: Node, statistics: Statistics) -> Array:
    """Root mean squares of a layer's columns, in a shape that broadcasts against its weight."""
    if node.name not in statistics.layers:
        raise InvalidPlan(f"the statistics have no layer {node.name!r}; gather them for all layers that are masked")
    layer = statistics.layers[node.name]
    norms = np.sqrt(np.diagonal(layer.gram, axis1=1, axis2=2)[:, None, :-1])  # (groups, 1, columns)
    return layer.product.restore(np.repeat(norms, layer.product.shape[1], axis=1))


def _top(rows: Array, density: float) -> Array:
    """A mask of the `density` largest of each row; of equal ones the first."""
    count = max(1, round(density * rows.shape[1]))
    order = np.argsort(-rows, axis=1, kind="stable")[:, :count]
    mask = np.zeros(rows.shape, bool)
    np.put_along_axis(mask, order, True, axis=1)
    return mask
