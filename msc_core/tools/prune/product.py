"""A layer as what it is to linear algebra: a matrix times columns, whatever its window, groups or rank."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from msc_core.channels import Member
from msc_core.ir import Array, MSCGraph
from msc_core.ops import bind
from msc_core.ops.window import torch_pairs

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False)
class Product:
    """A convolution, transposed convolution, linear layer or product with a matrix: outputs = matrix @ columns + bias.

    `shape` is (groups, outputs and inputs of a group, kernel positions). Columns of the matrix are ordered by input,
    then kernel position. `bias` is the name of a weight that no other node reads, or "". `window` has the attributes of
    a convolution: stride, padding, dilation, and output_padding if it is transposed.
    """

    node: str
    source: str
    output: str
    weight: str
    bias: str
    kind: str
    shape: tuple[int, int, int, int]
    kernel: tuple[int, ...]
    window: dict[str, Any]

    @property
    def transposed(self) -> bool:
        """Whether it is a transposed convolution."""
        return self.kind.endswith("_transpose")

    @property
    def columns(self) -> int:
        """Columns of the matrix of one group."""
        return self.shape[2] * self.shape[3]

    def blocks(self, weight: Array) -> Array:
        """A weight, or anything of its shape, as (groups, outputs, inputs, kernel positions)."""
        groups, outputs, inputs, kernel = self.shape
        if self.transposed:
            return np.swapaxes(weight.reshape(groups, inputs, outputs, kernel), 1, 2)
        if self.kind == "matmul":
            return weight.T.reshape(self.shape)
        return weight.reshape(self.shape)

    def matrix(self, weight: Array) -> Array:
        """A weight as (groups, outputs, columns) float64."""
        return self.blocks(weight.astype(np.float64)).reshape(*self.shape[:2], -1)

    def restore(self, matrix: Array) -> Array:
        """The weight for a matrix (groups, outputs, columns), also one with fewer of each."""
        groups, outputs, columns = matrix.shape
        inputs = columns // self.shape[3]
        blocks = matrix.reshape(groups, outputs, inputs, self.shape[3])
        if self.transposed:
            return np.swapaxes(blocks, 1, 2).reshape(groups * inputs, outputs, *self.kernel)
        if self.kind == "matmul":
            return np.ascontiguousarray(blocks.reshape(outputs, inputs).T)
        return blocks.reshape(groups * outputs, inputs, *self.kernel)

    def channels(self, member: Member) -> Array | None:
        """The channel that each column belongs to (columns,), -1 for none; `None` if groups of the layer differ."""
        inputs = self.shape[2]
        index = member.index.reshape(-1, inputs) if self.transposed else member.index[None]
        return np.repeat(index[0], self.shape[3]) if (index == index[0]).all() else None

    def kept(self, shape: tuple[int, ...], positions: list[Array]) -> tuple[Array, Array, Array] | None:
        """Masks of the groups, outputs and inputs that remain with the `positions` of each axis of a weight of `shape`.

        `None` if what remains is no grid of these.
        """
        mask = np.zeros(shape, bool)
        mask[np.ix_(*positions)] = True
        blocks = self.blocks(mask)
        groups, outputs, inputs = (np.asarray(blocks.any(axis=axes)) for axes in ((1, 2, 3), (0, 2, 3), (0, 1, 3)))
        grid = groups[:, None, None, None] & outputs[:, None, None] & inputs[:, None]
        return (groups, outputs, inputs) if (blocks == grid).all() else None

    def positions(self, value: torch.Tensor) -> tuple[int, ...]:
        """How many columns an input gives: the shape of its rows, or that of the output's map for each sample."""
        if not self.window:
            return tuple(value.shape[:-1])
        span = self._padded(tuple(value.shape[2:]))
        return tuple(
            (size - d * (k - 1) - 1) // s + 1
            for size, k, s, d in zip(span, self.kernel, self._stride, self.window["dilation"], strict=True)
        )

    def gather(self, value: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """(groups, columns, samples * places): what the matrix multiplies at those places of all `positions`."""
        import torch
        from torch.nn import functional as F

        if not self.window:
            return value.reshape(-1, value.shape[-1])[places].T[None]
        if self.transposed:
            value = self._spread(value)
        value = F.pad(value, torch_pairs(self._padding))
        for axis, (k, s, d) in enumerate(zip(self.kernel, self._stride, self.window["dilation"], strict=True)):
            value = value.unfold(2 + axis, d * (k - 1) + 1, s)[..., ::d]
        rank = len(self.kernel)
        at: list[Any] = [slice(None), slice(None), *torch.unravel_index(places, value.shape[2 : 2 + rank])]
        patches = value[tuple(at)]
        if self.transposed:
            patches = patches.flip(tuple(range(3, 3 + rank)))
        samples, groups = len(value), self.shape[0]
        blocks = patches.reshape(samples, groups, -1, len(places), math.prod(self.kernel))
        return blocks.permute(1, 2, 4, 0, 3).reshape(groups, -1, samples * len(places))

    def results(self, value: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """(groups, outputs, samples * places) of a tensor of the output's shape, at the places of `gather`."""
        if not self.window:
            return value.reshape(-1, value.shape[-1])[places].T[None]
        flat = value.flatten(2)[:, :, places]
        return flat.reshape(len(value), self.shape[0], -1, len(places)).permute(1, 2, 0, 3).flatten(2)

    @property
    def _stride(self) -> tuple[int, ...]:
        return (1,) * len(self.kernel) if self.transposed else self.window["stride"]

    @property
    def _padding(self) -> tuple[int, ...]:
        """All the begins, then all the ends; those of a transposed convolution are around its `_spread`."""
        padding, rank = self.window["padding"], len(self.kernel)
        if not self.transposed:
            return tuple(padding)
        reach = [d * (k - 1) for k, d in zip(self.kernel, self.window["dilation"], strict=True)]
        extra = (*[0] * rank, *self.window["output_padding"])
        return tuple(r - p + e for r, p, e in zip(reach * 2, padding, extra, strict=True))

    def _padded(self, sizes: tuple[int, ...]) -> list[int]:
        """The axes that the window slides over, padding included."""
        rank = len(self.kernel)
        if self.transposed:
            sizes = tuple((size - 1) * s + 1 for size, s in zip(sizes, self.window["stride"], strict=True))
        return [size + self._padding[i] + self._padding[i + rank] for i, size in enumerate(sizes)]

    def _spread(self, value: torch.Tensor) -> torch.Tensor:
        """The input with zeros between its positions, as many as the stride leaves out."""
        sizes = [(n - 1) * s + 1 for n, s in zip(value.shape[2:], self.window["stride"], strict=True)]
        spread = value.new_zeros(*value.shape[:2], *sizes)
        at: list[Any] = [..., *(slice(None, None, s) for s in self.window["stride"])]
        spread[tuple(at)] = value
        return spread


def product(graph: MSCGraph, name: str, uses: dict[str, list[Any]]) -> Product | None:
    """The layer `name`, given the `consumers` of the graph; `None` if it is none, or shares its weight."""
    node = graph.node(name)
    bound = bind(node, graph.tensors)
    weight = graph.weights.get(node.inputs[1]) if len(node.inputs) > 1 else None
    if weight is None or weight.dtype != np.float32 or node.inputs[0] in graph.weights:
        return None
    if len(uses[node.inputs[1]]) > 1 or node.inputs[1] in graph.outputs:
        return None
    given = node.inputs[2] if len(node.inputs) > 2 else ""
    bias = given if given in graph.weights and len(uses[given]) == 1 else ""
    if given and not bias:
        return None
    size, window, kernel = weight.shape, dict[str, Any](), tuple[int, ...]()
    if node.op == "linear":
        shape = 1, size[0], size[1], 1
    elif node.op == "matmul" and weight.ndim == 2:
        shape = 1, size[1], size[0], 1
    elif node.op.startswith("conv"):
        groups, kernel = bound["groups"], size[2:]
        window = {
            key: bound[key] for key in ("stride", "padding", "dilation", "output_padding") if key in bound.op.attrs
        }
        outputs, inputs = (size[1], size[0] // groups) if "output_padding" in window else (size[0] // groups, size[1])
        shape = groups, outputs, inputs, math.prod(kernel)
    else:
        return None
    return Product(name, node.inputs[0], node.outputs[0], node.inputs[1], bias, node.op, shape, kernel, window)
