"""Post-training quantization: precisions and calibration data in, exact scales out, integers in the graph."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from msc_core.backends import Target
from msc_core.errors import InvalidPlan, nearest
from msc_core.ir import MSCGraph
from msc_core.plan import Plan, Quantized
from msc_core.rewrite import drop_identities, fold_batch_norm
from msc_core.tools.calibration import Inputs
from msc_core.tools.prune.statistics import Statistics
from msc_core.tools.quantize.correct import correct_bias
from msc_core.tools.quantize.gptq import round_weights
from msc_core.tools.quantize.insert import quantize
from msc_core.tools.quantize.observers import METHODS, Histogram, check_finite, count, parameters
from msc_core.tools.quantize.placement import LAYERS, TABLE, layers, place
from msc_core.tools.quantize.precision import Precision
from msc_core.tools.quantize.run import outputs
from msc_core.tools.quantize.weight_scales import weight_scales


class Quantizer:
    """Quantizes one graph for a target; the ranges are gathered once, then any precisions are a look-up.

    `graph` is a float network; its batch norms are folded first, as `apply` does. `x` is calibration data: some hundred
    samples (n, ...) of its input, or of each input by name. What is quantized where is the target's row of
    `placement.TABLE`. `equalize(graph)` may come first, where weights have one scale for all channels.
    """

    def __init__(self, graph: MSCGraph, x: Inputs, target: str = "onnxruntime") -> None:
        self.graph, self.x = graph, x
        self.folded = drop_identities(fold_batch_norm(graph))
        self.placement = TABLE[Target.parse(target).backend]
        self.layers = layers(self.folded)

    def plan(self, precision: Precision | Mapping[str, Precision] | None = None) -> Plan:
        """The exact scales for that precision of all layers, or of those named (the others stay float).

        Raises `InvalidPlan` for an unknown layer, `MscError` where calibration data is missing or gives no range.
        """
        wanted = precision if isinstance(precision, Mapping) else dict.fromkeys(self.layers, precision or Precision())
        for name in wanted:
            if name not in self.layers:
                raise InvalidPlan(f"no layer {name!r} to quantize{nearest(name, self.layers)}")
        return Plan(self.graph.fingerprint, quantize=self._weights(wanted) | self._activations(wanted))

    def compress(self, plan: Plan, correct: bool = False) -> MSCGraph:
        """The quantized graph; weights whose rounding is "gptq" are rounded on the calibration data.

        Without them, and unless biases are to be mended too (`correct`), it is what `apply` returns. Raises
        `InvalidPlan` if the plan is for another graph or does not fit.
        """
        if plan.graph != self.graph.fingerprint:
            raise InvalidPlan(f"the plan is for graph {plan.graph[:12]}, this one is {self.graph.fingerprint[:12]}")
        found = quantize(self.folded, plan.quantize)  # refuses what does not fit before any long work
        rounded = round_weights(self.folded, plan.quantize, self._statistics, centred=correct)
        if not rounded and not correct:
            return found
        graph = correct_bias(self.folded, plan.quantize, self.x, rounded) if correct else self.folded
        return quantize(graph, plan.quantize, rounded)

    def _weights(self, wanted: Mapping[str, Precision]) -> dict[str, Quantized]:
        found: dict[str, Quantized] = {}
        for name, precision in wanted.items():
            node = self.folded.node(name)
            if precision.weights:
                how = weight_scales(self.folded.weights[node.inputs[1]], LAYERS[node.op], precision, name)
                before = found.get(node.inputs[1])
                found[node.inputs[1]] = how if before is None or how.bits > before.bits else before  # tied
        return found

    def _activations(self, wanted: Mapping[str, Precision]) -> dict[str, Quantized]:
        active = {name for name, precision in wanted.items() if precision.activations}
        if not active:
            return {}
        same = place(self.folded, active, self.placement)
        asked: dict[str, Precision] = {}  # by representative: the layer with the most bits decides
        for name in sorted(active, key=lambda name: wanted[name].activations):
            asked[same[self.folded.node(name).inputs[0]]] = wanted[name]
        default = max(wanted.values(), key=lambda precision: precision.activations)
        ranges: dict[str, tuple[float, float]] = {}
        for tensor, first in same.items():
            precision = asked.get(first, default)
            method, bits = METHODS[precision.method], precision.activations
            low, high = method(self._histogram(tensor, precision.method), bits, self.placement.signed)
            old = ranges.get(first, (low, high))
            ranges[first] = min(old[0], low), max(old[1], high)
        found = {}
        for tensor, first in same.items():
            bits = asked.get(first, default).activations
            scale, zero = parameters(ranges[first], bits, self.placement.signed)
            found[tensor] = Quantized(
                bits, (scale,), (zero,), self.placement.signed, consumers=self._consumers(tensor, wanted)
            )
        return found

    def _consumers(self, tensor: str, wanted: Mapping[str, Precision]) -> tuple[str, ...]:
        """Everyone who reads it, but for layers whose activations stay float."""
        readers = [node.name for node in self.folded.nodes if tensor in node.inputs]
        kept = [name for name in readers if name not in self.layers or (name in wanted and wanted[name].activations)]
        return () if len(kept) == len(readers) else tuple(kept)

    def _histogram(self, tensor: str, method: str) -> Histogram:
        if method != "minmax":
            return self._histograms[tensor]
        return Histogram(*self._extremes[tensor], np.zeros(0))

    @cached_property
    def _statistics(self) -> Statistics:
        return Statistics(self.folded, self.layers, self.x)

    @cached_property
    def _tensors(self) -> tuple[str, ...]:
        return tuple(place(self.folded, set(self.layers), self.placement))

    @cached_property
    def _extremes(self) -> dict[str, tuple[float, float]]:
        found: dict[str, tuple[float, float]] = {}
        for values in outputs(self.folded, self._tensors, self.x):
            for name, value in values.items():
                low, high = float(value.min()), float(value.max())
                check_finite(name, low, high)
                old = found.get(name, (low, high))
                found[name] = min(old[0], low), max(old[1], high)
        return found

    @cached_property
    def _histograms(self) -> dict[str, Histogram]:
        counts = {name: np.zeros(1, np.int64) for name in self._extremes}
        for values in outputs(self.folded, self._tensors, self.x):
            for name, value in values.items():
                counts[name] = counts[name] + count(value, *self._extremes[name])
        return {name: Histogram(*self._extremes[name], counts[name]) for name in counts}
