"""Fusion: groups of small operators that say one large one become that one. The list at the end is the whole of it.

Networks that come through ONNX or Relax arrive in pieces (an attention as five operators, a bias as an addition).
Whole, they prune, quantize and run better. Every row is exact up to rounding.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from msc_core.errors import InvalidGraph
from msc_core.frontends.builder import GraphBuilder
from msc_core.ir import Array, MSCGraph, Node, Tensor
from msc_core.match import (
    Pattern,
    Site,
    View,
    constant,
    either,
    number,
    op,
    permutation,
    product,
    scaled,
    sites,
    tensor,
)  # fmt: skip
from msc_core.ops import OPS, Bound, Call, call
from msc_core.ops.indexing import positions

CONVOLUTIONS = tuple(name for name in OPS if name.startswith("conv"))
DIVISIONS = ("multiply", "divide")


@dataclass(frozen=True)
class Fusion:
    """A row: what to look for at the output of `roots`, and what to put there; `None` where a detail does not fit."""

    name: str
    roots: tuple[str, ...]
    pattern: Pattern
    build: Callable[[Site], Call | None]


def fuse(graph: MSCGraph, patterns: Sequence[Fusion] | None = None) -> MSCGraph:
    """The graph with every match of `patterns` (by default all, `PATTERNS`) replaced, row by row in their order.

    A match whose inner values anything else needs, or that are graph outputs, is none. The replacement takes the name
    of the first operator of the match and the tensor name of the last one. Nothing found: the same graph.
    """
    for fusion in PATTERNS if patterns is None else patterns:
        graph = _apply(graph, fusion)
    return graph


def _apply(graph: MSCGraph, fusion: Fusion) -> MSCGraph:
    view = View(graph)
    found: dict[str, tuple[Site, Call]] = {}  # root -> what replaces it
    taken: set[str] = set()
    for node in graph.nodes:
        if node.op in fusion.roots:
            for site in sites(view, fusion.pattern, node):
                replacement = None if taken & {n.name for n in site.nodes} else fusion.build(site)
                if replacement is not None and _fits(graph, site, replacement):
                    found[node.name] = site, replacement
                    taken |= {n.name for n in site.nodes}
                    break
    if not found:
        return graph
    gone = {name for node in graph.nodes if node.name in taken for name in node.outputs}
    build = GraphBuilder()
    build.tensors = {name: t for name, t in graph.tensors.items() if name not in gone}
    build.weights = dict(graph.weights)
    build.node_names = {node.name for node in graph.nodes if node.name not in taken}
    for node in graph.nodes:
        if node.name in found:
            _emit(build, *found[node.name])
        elif node.name not in taken:
            build.nodes.append(node)
    return build.graph(graph.name, graph.inputs, graph.outputs)


def _emit(build: GraphBuilder, site: Site, replacement: Call) -> Any:
    """The replacement in place of the root."""
    for name, array in site.new.items():
        build.weight(name, array)
    (output,) = site.root.outputs
    made = build.emit(replacement, site.name, site.scope, [output])
    return build.add(dataclasses.replace(made, layout=site.view.graph.tensors[output].layout))


def _fits(graph: MSCGraph, site: Site, replacement: Call) -> bool:
    """Whether the replacement has the shape and dtype of what it replaces."""
    trial = GraphBuilder()
    trial.tensors = dict(graph.tensors)
    for name, array in site.new.items():
        trial.weight(name, array)
    old = graph.tensors[site.root.outputs[0]]
    try:
        made = trial.emit(replacement, "trial")
    except InvalidGraph:
        return False
    return bool((made.shape, made.dtype) == (old.shape, old.dtype))


# Layers: a weight and a bias


def _along(array: Array, rank: int, axis: int, size: Any) -> Array | None:
    """The vector of `size` that an array is, if it varies only along one axis of a tensor of that rank."""
    if array.ndim > rank:
        return None
    shape = (1,) * (rank - array.ndim) + array.shape
    others = [d for i, d in enumerate(shape) if i != axis % rank]
    if any(d != 1 for d in others) or shape[axis] not in (1, size):
        return None
    return np.ascontiguousarray(np.broadcast_to(array.reshape(-1), (size,)))


def add_bias(axis: int) -> Callable[[Site], Call | None]:
    """The layer with the constant as its bias, if that varies only along the layer's output axis."""

    def build(site: Site) -> Call | None:
        layer: Node = site["layer"]
        shape = site.view.graph.tensors[layer.outputs[0]].shape
        bias = _along(site.array("bias"), len(shape), axis, shape[axis])
        if bias is None:
            return None
        return call(layer.op, site.tensor("x"), site.tensor("w"), site.weight("bias", bias, "bias"), **layer.attrs)

    return build


def matmul_to_linear(site: Site) -> Call | None:
    """`linear`, whose weight is the transposed matrix."""
    matrix = site.array("w")
    return call("linear", site.tensor("x"), site.weight("w", matrix.T, "weight")) if matrix.ndim == 2 else None


# Normalizations


def normalized(b: Bound) -> int:
    """Over how many of the last axes a reduction runs; 0 if it is over others, or drops them."""
    rank = len(b.input(0).shape)
    axes = sorted(axis % rank for axis in b["axes"])
    return len(axes) if b["keepdims"] and axes == list(range(rank - len(axes), rank)) else 0


def normalize(name: str) -> Callable[[Site], Call | None]:
    """The norm without weights, if all means and variances run over the same axes."""

    def build(site: Site) -> Call | None:
        counts = {normalized(b) for b in (*site.bounds("mean"), *site.bounds("variance"))}
        return call(name, site.tensor("x"), axis=-counts.pop(), eps=site["eps"]) if len(counts) == 1 else None

    return build


def _parameter(site: Site, name: str) -> Tensor | None:
    """The constant as a parameter of the norm in front of it, if it has the shape of the normalized axes."""
    b = site.view.bound(site["norm"])
    shape = b.input(0).shape[b["axis"] % len(b.input(0).shape) :]
    array = site.array(name)
    if array.shape != (1,) * (array.ndim - len(shape)) + shape:
        return None
    return site.weight(name, array.reshape(array.shape[array.ndim - len(shape) :]), name)


def scale_norm(site: Site) -> Call | None:
    """The norm with the constant that it is multiplied with as its weight."""
    weight = _parameter(site, "weight")
    return None if weight is None else call(site["norm"].op, site.tensor("x"), weight, **site["norm"].attrs)


def shift_norm(site: Site) -> Call | None:
    """The norm with the constant that is added as its bias."""
    bias = _parameter(site, "bias")
    return None if bias is None else call("layer_norm", site.tensor("x"), site.tensor("w"), bias, **site["norm"].attrs)


# Attention


def transposed(site: Site, name: str) -> Tensor | Call | None:
    """The tensor behind a `permute_dims`, with its last two axes the other way round."""
    b: Bound = site.view.bound(site[name])
    axes = permutation(b)
    axes = (*axes[:-2], axes[-1], axes[-2])
    return b.input(0) if axes == tuple(range(len(axes))) else call("permute_dims", b.input(0), axes=axes)


def over_last(b: Bound) -> bool:
    """Whether a reduction runs over the last axis alone, and keeps it."""
    return normalized(b) == 1


def to_attention(site: Site) -> Call | None:
    """`attention` with the constants on the queries, the keys and the scores as one scale.

    Where a mask hides all keys from a query, `attention` gives zeros; pieces that do not look after that give NaN.
    """
    q, v = site.tensor("q"), site.tensor("v")
    names = [name for name in ("mask", "shown", "hidden") if name in site.found.values]
    mask: Tensor | Call | None = None
    for name in names:
        mask = site.tensor(name)
        if len(names) > 1 or len(mask.shape) < 2:
            return None
        mask = call("logical_not", mask) if name == "hidden" else mask
    if len(q.shape) not in (3, 4) or len(v.shape) != len(q.shape):
        return None
    scale = site["outer"] * site["left"] * site["right"]
    return call("attention", q, transposed(site, "kt"), v, mask, scale=scale)


def to_embedding(site: Site) -> Call | None:
    """`embedding` of a table; negative indices, where there may be some, are counted from the front first."""
    (b,) = site.bounds("take")
    if len(b.input(0).shape) != 2 or b["axis"] % 2:
        return None
    return call("embedding", site.tensor("w"), positions(b) if b["wrap"] else site.tensor("indices"))


# The list

X, W = tensor("x"), constant("w")


def squared(pattern: Pattern) -> Pattern:
    """The square, however it is written."""
    return either(op("square", pattern), op("power", pattern, number(2)), op("multiply", pattern, pattern))


def root_of(pattern: Pattern) -> Pattern:
    """The square root."""
    return either(op("sqrt", pattern), op("power", pattern, number(0.5)))


def over_root(top: Pattern, bottom: Pattern) -> Pattern:
    """`top / sqrt(bottom)`, however it is written."""
    root = root_of(bottom)
    inverse = either(
        op("rsqrt", bottom), op("power", bottom, number(-0.5)), op("reciprocal", root), op("divide", number(1), root)
    )
    return either(op("divide", top, root), op("multiply", top, inverse))


def activation(name: str, roots: tuple[str, ...], pattern: Pattern, **attrs: Any) -> Fusion:
    """A row for a function of one tensor."""
    return Fusion(name, roots, pattern, lambda site: call(name, site.tensor("x"), **attrs))


ROOT_2, TANH = math.sqrt(0.5), math.sqrt(2 / math.pi)
CENTERED = op("subtract", X, op("mean", X, where=normalized))
VARIANCE = either(
    op("mean", squared(CENTERED), where=normalized),
    op("variance", X, where=lambda b: b["correction"] == 0 and normalized(b)),
)
MEAN_OF_SQUARES = op("mean", squared(X), where=normalized)
EPS = number("eps")
CUBE = either(op("power", X, number(3)), op("multiply", X, squared(X)))
INNER = either(
    scaled(TANH, op("add", X, scaled(0.044715, CUBE))),
    product(TANH, X, op("add", number(1), scaled(0.044715, squared(X)))),
    product(TANH, X, op("add", number(1), product(0.044715, X, X))),
)
SHIFTED = op("add", X, number(3))
UP_TO_6 = either(op("relu6", SHIFTED), op("clip", SHIFTED, where=lambda b: (b["min"], b["max"]) == (0, 6)))
SCORES = scaled(
    "outer", op("matmul", scaled("left", tensor("q")), scaled("right", op("permute_dims", tensor("k"), node="kt")))
)
HIDING = number(-math.inf)
MASKED = either(
    SCORES,
    op("add", SCORES, tensor("mask")),
    op("where", tensor("shown"), SCORES, HIDING),
    op("where", tensor("hidden"), HIDING, SCORES),
)
ALIKE = op("equal", MASKED, HIDING)
BLIND = either(
    op("all", ALIKE, where=over_last),
    op("cast", op("min", op("cast", ALIKE), where=over_last)),  # how ONNX and Relax say it
    op("equal", op("max", MASKED, where=over_last), HIDING),
)
SOFTMAX = op("softmax", MASKED, where=lambda b: b["axis"] % len(b.input(0).shape) == len(b.input(0).shape) - 1)
SURE = either(SOFTMAX, op("where", BLIND, number(0), SOFTMAX))
PROBABILITIES = either(SURE, op("dropout", SURE, where=lambda b: b["p"] == 0))


def convolution(layer: str) -> Fusion:
    """A convolution and the addition of its bias, which varies along axis 1."""
    return Fusion(
        f"{layer} with bias", ("add",), op("add", op(layer, X, W, node="layer"), constant("bias")), add_bias(1)
    )


PATTERNS: Sequence[Fusion] = (
    Fusion("attention", ("matmul",), op("matmul", PROBABILITIES, tensor("v")), to_attention),
    Fusion("linear", ("matmul",), op("matmul", X, W), matmul_to_linear),
    Fusion("linear with bias", ("add",), op("add", op("linear", X, W, node="layer"), constant("bias")), add_bias(-1)),
    *map(convolution, CONVOLUTIONS),
    Fusion("embedding", ("take",), op("take", W, tensor("indices")), to_embedding),
    activation("gelu", ("multiply",), product(0.5, X, op("add", number(1), op("erf", scaled(ROOT_2, X))))),
    activation("gelu", ("multiply",), product(0.5, X, op("add", number(1), op("tanh", INNER))), approximate="tanh"),
    Fusion("layer_norm", DIVISIONS, over_root(CENTERED, op("add", VARIANCE, EPS)), normalize("layer_norm")),
    Fusion("weight of layer_norm", ("multiply",), op("multiply", op("layer_norm", X, node="norm"), constant("weight")),
           scale_norm),
    Fusion("bias of layer_norm", ("add",), op("add", op("layer_norm", X, W, node="norm"), constant("bias")),
           shift_norm),
    Fusion("rms_norm", DIVISIONS, over_root(X, op("add", MEAN_OF_SQUARES, EPS)), normalize("rms_norm")),
    Fusion("weight of rms_norm", ("multiply",), op("multiply", op("rms_norm", X, node="norm"), constant("weight")),
           scale_norm),
    activation("silu", ("multiply",), op("multiply", X, op("sigmoid", X))),
    activation("mish", ("multiply",), op("multiply", X, op("tanh", op("softplus", X)))),
    activation("hardswish", DIVISIONS, product(1 / 6, X, UP_TO_6)),
    activation("hardsigmoid", DIVISIONS, scaled(1 / 6, UP_TO_6)),
    activation("hardswish", ("multiply",), op("multiply", X, op("hardsigmoid", X))),
)  # fmt: skip
