"""The module that `qat.prepare` makes: a graph's torch module with fake quantization where the plan has integers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch

from msc_core.codegen.torch_calls import TorchCalls
from msc_core.codegen.torch_module import Interpreter, Ref, Step
from msc_core.ir import Array
from msc_core.plan import Quantized

MOMENTUM = 0.95  # of the running extremes of activations
TINY = torch.finfo(torch.float32).tiny


class Round(torch.autograd.Function):
    """Half to even, as if it were the identity for gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """The nearest whole numbers."""
        return torch.round(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        """Straight through (Bengio et al. 2013)."""
        return gradients[0]


def rounded(x: torch.Tensor) -> torch.Tensor:
    """`Round` as a function."""
    found: torch.Tensor = Round.apply(x)  # type: ignore[no-untyped-call]
    return found


class FakeQuant(torch.nn.Module):
    """Rounds a tensor to the numbers that its integers stand for.

    `dout/dx` is 1 where the integer is in range and 0 where it saturates; `dout/dscale`, with `learn`, is that of LSQ:
    `round(x/s) - x/s` in range, the limit outside, divided by the square root of values * largest integer.
    """

    scale: torch.Tensor
    zero: torch.Tensor
    share: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor

    def __init__(self, how: Quantized, weight: Array | None, learn: bool) -> None:
        super().__init__()
        self.how, self.learn, self.weight = how, learn, weight is not None
        self.observing = False  # set before each pass
        scale = torch.tensor(how.scale, dtype=torch.float32)
        self.register_buffer("zero", torch.tensor(how.zero_point, dtype=torch.float32))
        if learn:
            self.scale = torch.nn.Parameter(scale)
        else:
            self.register_buffer("scale", scale)
        low, high = how.limits
        if weight is not None:  # how far the range reaches into the values, which it keeps
            self.register_buffer("share", scale / self._span(torch.from_numpy(weight.copy())).clamp_min(TINY))
        else:
            self.register_buffer("low", (low - self.zero) * scale)
            self.register_buffer("high", (high - self.zero) * scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` rounded; the scale follows it first while `observing`."""
        if self.observing:
            with torch.no_grad():
                self._observe(x)
        scale, zero = self.positive(), self.zero
        if self.observing:  # a range that several tensors share changes again in this pass
            scale, zero = scale.clone(), zero.clone()
        if scale.requires_grad:
            factor = 1 / math.sqrt(x.numel() / len(self.scale) * max(self.how.limits[1], 1))
            scale.register_hook(lambda gradient: gradient * factor)  # type: ignore[no-untyped-call]
        shape = self._shape(x)
        step, zero = scale.reshape(shape), zero.reshape(shape)
        shaped = x.reshape(len(self.scale), -1) if self.how.block else x
        whole = (rounded(shaped / step) + zero).clamp(*self.how.limits)
        return ((whole - zero) * step).reshape(x.shape)

    def positive(self) -> torch.Tensor:
        """The scales (n,), which training could have pushed below zero."""
        return self.scale.abs().clamp_min(TINY) if self.learn else self.scale

    def trained(self) -> Quantized:
        """How the tensor is stored, with the scales of now."""
        scale, zero = self.positive().detach().tolist(), [int(z) for z in self.zero.tolist()]
        return dataclasses.replace(self.how, scale=tuple(scale), zero_point=tuple(zero), rounding="nearest")

    def _shape(self, x: torch.Tensor) -> list[int]:
        """The shape in which scales broadcast."""
        if self.how.block:
            return [-1, 1]
        if self.how.axis is None:
            return []
        return [-1 if i == self.how.axis % x.ndim else 1 for i in range(x.ndim)]

    def _span(self, x: torch.Tensor) -> torch.Tensor:
        """(n,): what the values of each scale span, from the largest absolute value if there are no zero points."""
        if self.how.block:
            rows = x.reshape(len(self.scale), -1)
        elif self.how.axis is None:
            rows = x.reshape(1, -1)
        else:
            rows = x.movedim(self.how.axis, 0).flatten(1)
        if not self.zero.any():
            return rows.abs().amax(1)
        return rows.amax(1).clamp_min(0) - rows.amin(1).clamp_max(0)

    def _observe(self, x: torch.Tensor) -> None:
        """Scales of a weight keep their share of its span; an activation's come from its running extremes."""
        if self.weight:
            span = self._span(x)
            self.scale.copy_(torch.where(span > TINY, self.share * span, self.scale))
            return
        if self.how.axis is not None:
            return
        self.low.lerp_(x.amin().clamp_max(0).float(), 1 - MOMENTUM)
        self.high.lerp_(x.amax().clamp_min(0).float(), 1 - MOMENTUM)
        largest = self.how.limits[1]
        if self.how.signed:
            self.scale.copy_((torch.maximum(-self.low, self.high) / largest).clamp_min(TINY))
        else:
            self.scale.copy_(((self.high - self.low) / largest).clamp_min(TINY))
            self.zero.copy_(torch.round(-self.low / self.scale).clamp(0, largest))


class BiasQuant(torch.nn.Module):
    """Rounds a bias to whole multiples of the product of two tensors' scales, as the int32 sums have it."""

    def __init__(self, data: FakeQuant, weight: FakeQuant) -> None:
        super().__init__()
        self.factors = (data, weight)  # a tuple, as they are registered where they belong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` rounded, in the float64 that `insert` divides in."""
        data, weight = (part.positive().detach() for part in self.factors)
        step = data * weight
        return rounded(x.double() / step.double()).to(x.dtype) * step


class FakeQuantized(Interpreter):
    """A graph's module in which some `identity` nodes are a `FakeQuant`; tensors of one range share one."""

    _msc_passes: torch.Tensor

    def __init__(
        self,
        lowered: TorchCalls,
        how: Mapping[str, Quantized],
        marks: Mapping[str, str | tuple[str, str]],
        weights: Mapping[str, Array],
        observe: int,
        learn: bool,
    ) -> None:
        """`marks` says which tensor of `how` each marked output rounds, or for a bias, whose scales it is in units of.

        Scales are observed for the first `observe` passes in training mode.
        """
        super().__init__(lowered)
        self._msc_how, self._msc_observe = dict(how), observe
        self.register_buffer("_msc_passes", torch.zeros((), dtype=torch.int64))
        shared: dict[Any, FakeQuant] = {}
        self._msc_found: dict[str, FakeQuant] = {}
        for name, quantized in how.items():
            key = name if name in weights else dataclasses.replace(quantized, consumers=())
            if key not in shared:
                shared[key] = FakeQuant(quantized, weights.get(name), learn)
            self._msc_found[name] = shared[key]
        self._msc_rounding = torch.nn.ModuleList(shared.values())
        for i, (outputs, _, dead) in enumerate(self._msc_steps):
            if outputs[0] in marks:
                (read,) = lowered.graph.node(outputs[0]).inputs
                self._msc_steps[i] = outputs, Step(self._rounds(marks[outputs[0]]), (Ref(read),), {}), dead

    def forward(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """The outputs of the graph."""
        observing = self.training and int(self._msc_passes) < self._msc_observe
        for part in self._msc_found.values():
            part.observing = observing
        if self.training:
            self._msc_passes += 1
        return super().forward(*args, **kwargs)

    def scales(self) -> dict[str, Quantized]:
        """How each tensor is stored now; integers are the nearest."""
        return {
            name: dataclasses.replace(self._msc_found[name].trained(), consumers=quantized.consumers)
            for name, quantized in self._msc_how.items()
        }

    def _rounds(self, source: str | tuple[str, str]) -> torch.nn.Module:
        if isinstance(source, str):
            return self._msc_found[source]
        data, weight = source
        return BiasQuant(self._msc_found[data], self._msc_found[weight])
