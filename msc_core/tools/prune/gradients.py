"""How the loss answers when a channel fades: derivatives by gates, one row for each sample, gathered once.

A gate z multiplies what a layer reads of one channel. At z = 1 the derivative of the loss by z is the sum of
gradient * weight over the elements that read the channel, so backward passes for the weights are all it takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from msc_core.channels import ChannelGroup, Member
from msc_core.errors import MscError
from msc_core.exchange import to_torch_tensor
from msc_core.ir import Array, MSCGraph, unique
from msc_core.ops import bind

if TYPE_CHECKING:
    import torch

SAMPLES = 256  # of the calibration data: each costs a backward pass
Axis = tuple[str, str, int]  # (node, weight, axis)


class Gradients:
    """`gates[node, weight, axis]` (samples, positions) float64, for every axis of `fading` weights.

    - `x`: inputs (n, ...), one array or one for each graph input by name; the first `SAMPLES` are used.
    - `y`: int labels (n,) for a first output of logits (n, classes), or float targets of the first output's shape. The
      loss is cross entropy, or half the squared error.
    - Without `y` targets are drawn from what the network says: from the softmax of outputs (n, classes), otherwise from
      a normal distribution around the output. Squares then average to the Fisher information, the curvature of the KL
      divergence from the present outputs (Martens 2020), whose own gradient is zero.
    - `loss(output, target)`: a torch scalar to be used instead; the target is what `y` has, or `None`.

    A graph of a fixed batch takes its samples in batches of that size. `gates` raises `MscError` if there are no
    inputs, if labels do not fit, or if a gradient is not finite.
    """

    def __init__(
        self,
        graph: MSCGraph,
        groups: Iterable[ChannelGroup],
        x: Array | Mapping[str, Array],
        y: Array | None = None,
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        self.graph, self.y, self._loss = graph, y, loss
        self.x = dict(x) if isinstance(x, Mapping) else dict.fromkeys(graph.inputs[:1], x)
        self.axes: list[Axis] = list(
            dict.fromkeys((m.node, m.tensor, m.axis) for g in groups for m in fading(g) if self._is_trained(m))
        )

    def _is_trained(self, member: Member) -> bool:
        """Running statistics are not."""
        bound = bind(self.graph.node(member.node), self.graph.tensors)
        return bound.node.inputs.index(member.tensor) not in bound.op.statistics

    @cached_property
    def gates(self) -> dict[Axis, Array]:
        """Gathered in one pass over the data, on first use."""
        from msc_core.codegen.torch import to_torch
        from msc_core.codegen.torch_calls import module_paths

        size = self._check()
        graph, names = _weight_per_use(self.graph)
        module = to_torch(graph).eval()
        parameters, paths = dict(module.named_parameters()), module_paths(graph.weights)
        reached = {axis: parameters[paths[names[axis[:2]]]] for axis in self.axes}
        rows: dict[Axis, list[Array]] = {axis: [] for axis in self.axes}
        count = min(SAMPLES, len(next(iter(self.x.values()))))
        for start in range(0, max(1, count // size * size), size):
            for axis, row in self._row(module, reached, slice(start, start + size)).items():
                rows[axis].append(row)
        gates = {axis: np.stack(found) for axis, found in rows.items()}
        for (node, _, _), found in gates.items():
            if not np.isfinite(found).all():
                raise MscError(f"the gradient at layer {node!r} is not finite on the calibration data")
        return gates

    def _check(self) -> int:
        """Raise unless the data can be used; how many samples go through the network at once."""
        if self.x.keys() != set(self.graph.inputs):
            raise MscError(f"gradients need the inputs {list(self.graph.inputs)}; found {list(self.x)}")
        counts = {len(array) for array in self.x.values()} | ({len(self.y)} if self.y is not None else set())
        if 0 in counts:
            raise MscError("a criterion that looks at gradients needs calibration data; found no inputs")
        if len(counts) > 1:
            raise MscError(f"inputs and labels must be equally many; found {sorted(counts)}")
        if not (output := self.graph.tensors[self.graph.outputs[0]]).dtype.startswith(("float", "bfloat")):
            raise MscError(f"output {output.name!r} is {output.dtype}, which has no gradient; expected a float")
        if self.y is not None and np.issubdtype(self.y.dtype, np.integer) and self._loss is None:
            classes = output.shape[-1]
            if isinstance(classes, int) and not 0 <= self.y.min() <= self.y.max() < classes:
                raise MscError(f"labels must be 0 to {classes - 1}; found {self.y.min()} to {self.y.max()}")
        first = self.graph.tensors[self.graph.inputs[0]].shape[:1]
        return next((d for d in first if isinstance(d, int)), 1)

    def _row(self, module: torch.nn.Module, reached: Mapping[Axis, torch.Tensor], at: slice) -> dict[Axis, Array]:
        """The derivatives of one sample's loss by the gates of each axis, (positions,)."""
        import torch

        result = module(**{name: to_torch_tensor(array[at]) for name, array in self.x.items()})
        output = result[0] if isinstance(result, tuple) else result
        loss = self._sample_loss(output, at)
        if not loss.requires_grad:
            raise MscError(f"output {self.graph.outputs[0]!r} does not depend on the weights in a differentiable way")
        weights = list({id(p): p for p in reached.values()}.values())
        gradients = torch.autograd.grad(loss, weights, allow_unused=True)
        slopes = {
            id(p): p.detach().double() * (0 if g is None else g.double())
            for p, g in zip(weights, gradients, strict=True)
        }
        return {axis: _onto(slopes[id(p)], axis[2]) for axis, p in reached.items()}

    def _sample_loss(self, output: torch.Tensor, at: slice) -> torch.Tensor:
        import torch
        from torch.nn import functional as F

        target: Any = None if self.y is None else to_torch_tensor(np.asarray(self.y[at]))
        generator = torch.Generator().manual_seed(at.start)
        if self._loss is not None:
            return self._loss(output, target)
        if target is None and output.ndim == 2 and output.shape[1] > 1:
            target = torch.multinomial(output.detach().double().softmax(1), 1, generator=generator)[:, 0]
        elif target is None:
            target = output.detach() + torch.randn(output.shape, generator=generator).to(output.dtype)
        if not target.is_floating_point():
            cross_entropy: torch.Tensor = F.cross_entropy(output, target.long())
            return cross_entropy
        if target.shape != output.shape:
            raise MscError(f"targets are {list(target.shape)}; expected the output's shape {list(output.shape)}")
        squares: torch.Tensor = ((output - target) ** 2).sum()
        return 0.5 * squares / len(output)


def fading(group: ChannelGroup) -> list[Member]:
    """Where a gate sits: at all that reads a channel; if no weight does, as for q and k, at all that makes it."""
    return [m for m in group.members if m.contracted] or list(group.members)


def _onto(product: torch.Tensor, axis: int) -> Array:
    """The sum over all axes but one."""
    summed: Array = product.movedim(axis, 0).reshape(product.shape[axis], -1).sum(1).numpy()
    return summed


def _weight_per_use(graph: MSCGraph) -> tuple[MSCGraph, dict[tuple[str, str], str]]:
    """The graph with ties undone, so that each use has its own gradient; what (node, weight) is called there."""
    uses = Counter(name for node in graph.nodes for name in set(node.inputs) if name in graph.weights)
    weights, tensors, nodes = dict(graph.weights), dict(graph.tensors), []
    names: dict[tuple[str, str], str] = {}
    for node in graph.nodes:
        own = {name: name for name in node.inputs if name in graph.weights}
        for name in own:
            if uses[name] > 1:
                own[name] = unique(f"{name}@{node.name}", tensors)
                weights[own[name]] = graph.weights[name]
                tensors[own[name]] = replace(graph.tensors[name], name=own[name])
            names[node.name, name] = own[name]
        nodes.append(replace(node, inputs=tuple(own.get(name, name) for name in node.inputs)))
    return graph.replace(nodes=tuple(nodes), weights=weights, tensors=tensors), names
