"""A compression task: a trained model, its data, the target to run on and the budget to meet."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from msc_core import data as datasets
from msc_core.backends import Runner, Target, build
from msc_core.channels import DIVISOR, ChannelGroup
from msc_core.data import Array, Dataset, Split
from msc_core.errors import MscError, nearest
from msc_core.frontends.torch import from_torch
from msc_core.infer import single
from msc_core.ir import MSCGraph
from msc_core.plan import Plan
from msc_core.rewrite import drop_identities, fold_batch_norm
from msc_core.tools import finish
from msc_core.tools.latency_table import BlockMeter, LatencyTable
from msc_core.tools.prune import CostModel, Pruner
from msc_core.tools.quantize.placement import layers
from msc_core.tools.quantize.precision import Precision
from msc_core.tools.quantize.quantizer import Quantizer
from msc_gym.config import BudgetKey, JobConfig, load_job
from msc_gym.decisions import FLOAT, PARTS, Choices, Decision, Part, Site, bits_of, divided

if TYPE_CHECKING:
    import torch

BUDGET_KEYS: tuple[str, ...] = get_args(BudgetKey)
QUANTIZE_SAMPLES = 256  # of the calibration inputs, for the ranges of activations
ACTIVATION_BITS = 8
REMEMBERED = 8  # pruned networks, with the ranges of their activations
Kept = tuple[tuple[str, tuple[int, ...]], ...]  # the channels of each group that is pruned
SHARED = (
    "calibration_inputs",
    "pruner",
    "cost_model",
    "baseline_runner",
    "kernels",
    "_pruned",
    "_quantizer",
)  # whatever is decided


@dataclass(frozen=True, eq=False)
class CompressionTask:
    """What to compress, on which data, for which target, to what budget. Frozen; everything derived is cached.

    - `model`: an `MSCGraph`, the folder of a saved one, or a `torch.nn.Module`, exported with a symbolic batch.
      One input (N, ...) float32, first output logits (N, classes). The attribute holds the graph afterwards.
    - `data`: a `Dataset`, or a name that `msc_core.data.load` knows.
    - `target`: where latency is measured; see `Target.parse`.
    - `budget`: upper limits as fractions of the original in (0, 1], by `macs`, `params`, `bytes` (of weights at their
      bits), `bops` (MACs times the bits of both factors, 32 for float) or, if only channels are decided, `latency` as
      the `latency_table` predicts it.
    - `decide`: what a search chooses, "prune", "quantize" or both; `bits`: what it may give a layer, 32 for float.
    - `divisor`, `floor`: kept counts are multiples of `divisor` (a group may say otherwise) and at least `floor` of the
      group, AMC's lower bound.
    - `blocks`: entries of the latency table that are known; those that are measured are added. Clock values: with the
      same entries a search is the same.
    - `calibration`: training images for recovery, chosen by `seed`. `validation`: images that score a candidate during
      a search, the first so many of the split; finalists use all. Both are limited by what there is.

    Raises `MscError` where a part is missing, of the wrong type or out of range, or where the budget cannot be met.
    """

    model: MSCGraph | str | Path | torch.nn.Module
    data: Dataset | str
    target: Target | str = "onnxruntime"
    budget: Mapping[str, float] = field(default_factory=lambda: {"macs": 0.5})
    decide: Sequence[Part] = ("prune",)
    bits: Sequence[int] = (8, FLOAT)
    divisor: int = DIVISOR
    floor: float = 0.2
    calibration: int = 1000
    validation: int = 2000
    seed: int = 0
    blocks: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        data = datasets.load(self.data) if isinstance(self.data, str) else self.data
        if not isinstance(data, Dataset):
            raise MscError(f"data must be a Dataset or a name; found {type(data).__name__}")
        target = Target.parse(self.target) if isinstance(self.target, str) else self.target
        budget = dict(sorted(_checked_budget(self.budget).items()))
        for name, low in (("divisor", 1), ("calibration", 1), ("validation", 1), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise MscError(f"{name} must be an integer of at least {low}; found {value!r}")
        _check_fraction("floor", self.floor)
        object.__setattr__(self, "decide", _checked_parts(self.decide))
        object.__setattr__(self, "bits", _checked_bits(self.bits))
        for name, value in (("data", data), ("target", target), ("budget", MappingProxyType(budget))):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "model", _as_graph(self.model, data))
        _check_graph(self.graph, data)
        self._check_feasible()

    def __reduce__(self) -> tuple[Any, ...]:  # caches stay behind: runners hold engines
        values = (getattr(self, f.name) for f in fields(self))
        return CompressionTask, tuple(dict(v) if isinstance(v, Mapping) else v for v in values)

    def __deepcopy__(self, memo: object) -> CompressionTask:  # frozen; gymnasium copies an environment's arguments
        return self

    @staticmethod
    def from_yaml(path: str | Path) -> CompressionTask:
        """The task of a job file (the same file that `msc-gym compress` takes)."""
        try:
            return CompressionTask.from_job(load_job(path))
        except MscError as error:
            raise error if str(error).startswith(str(path)) else type(error)(f"{path}: {error}") from error

    @staticmethod
    def from_job(job: JobConfig, model: torch.nn.Module | MSCGraph | None = None) -> CompressionTask:
        """The task of a checked job; `model` replaces the one that it names."""
        return CompressionTask(
            model=job.model if model is None else model,
            data=job.data,
            target=job.target,
            budget={str(key): value for key, value in job.budget.items()},
            decide=tuple(job.decide),
            bits=tuple(job.bits),
            divisor=job.divisor,
            floor=job.floor,
            calibration=job.calibration,
            validation=job.validation,
            seed=job.search.seed,
        )

    @property
    def graph(self) -> MSCGraph:
        """The original network."""
        assert isinstance(self.model, MSCGraph)
        return self.model

    @property
    def dataset(self) -> Dataset:
        """The data set."""
        assert isinstance(self.data, Dataset)
        return self.data

    @cached_property
    def calibration_inputs(self) -> Array:
        """Training inputs (n, ...) float32 that recovery sees: a sample without replacement, in stored order."""
        x = self.dataset.train.x
        chosen = np.random.default_rng(self.seed).permutation(len(x))[: self.calibration]
        return x[np.sort(chosen)]

    @cached_property
    def pruner(self) -> Pruner:
        """Groups, importance and recovery for this graph and calibration data."""
        return Pruner(self.graph, self.calibration_inputs, divisor=self.divisor)

    @cached_property
    def groups(self) -> tuple[ChannelGroup, ...]:
        """The groups that leave a choice, in network order: what an episode decides on."""
        return tuple(g for g in self.pruner.groups if len(self.choices(g)) > 1)

    def choices(self, group: ChannelGroup) -> tuple[int, ...]:
        """The counts that may be kept, ascending: the allowed ones from the floor up."""
        allowed = tuple(c for c in group.counts if c >= self.floor * group.size - 1e-9)
        return allowed or (group.size,)

    @cached_property
    def kernels(self) -> dict[str, str]:
        """The weight of each layer that can be quantized, in network order."""
        folded = drop_identities(fold_batch_norm(self.graph))
        return {name: self.graph.node(name).inputs[1] for name in layers(folded)}

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        """What an episode decides on, step by step; with both parts, a layer and the first group that it begins."""
        sites = []
        for node in self.graph.nodes:
            groups = [g for g in self.groups if g.nodes[0] == node.name] if "prune" in self.decide else []
            found = [[Decision(g.name, "prune", g.name, self.choices(g), g.size)] for g in groups]
            if "quantize" in self.decide and node.name in self.kernels:
                bits = Decision(bits_of(node.name), "quantize", node.name, tuple(self.bits), FLOAT)
                found = [[*found[0], bits], *found[1:]] if found else [[bits]]
            sites += [Site(node.name, tuple(decisions)) for decisions in found]
        return tuple(sites)

    @cached_property
    def decisions(self) -> tuple[Decision, ...]:
        """Everything that is decided, in the order of the sites."""
        return tuple(decision for site in self.sites for decision in site.decisions)

    def deciding(self, *parts: Part) -> CompressionTask:
        """The same task with other parts decided."""
        return self if parts == tuple(self.decide) else self.changed(decide=parts)

    def changed(self, **changes: Any) -> CompressionTask:
        """The task with another budget, floor, bits or parts; what is known of the network is known to both."""
        other = replace(self, **changes)
        other.__dict__.update({name: self.__dict__[name] for name in SHARED if name in self.__dict__})
        return other

    @cached_property
    def cost_model(self) -> CostModel:
        """What any counts cost, in microseconds of arithmetic."""
        return CostModel(self.graph, self.pruner.groups)

    @cached_property
    def limits(self) -> dict[str, float]:
        """The budget in absolute numbers."""
        whole = self.cost({})
        return {key: fraction * whole[key] for key, fraction in self.budget.items()}

    def within_budget(self, choices: Choices) -> bool:
        """Whether a network with those choices meets every limit."""
        spent = self.spent(choices)
        return all(spent[key] <= limit + 1e-6 for key, limit in self.limits.items())

    def spent(self, choices: Choices) -> Mapping[str, float]:
        """What a network with those choices costs, in the budget's terms."""
        if self.limits.keys() == {"macs"}:  # the usual budget, and half the work
            return {"macs": sum(self.cost_model.layer_macs(divided(choices)[0]).values())}
        return self.cost(choices)

    def cost(self, choices: Choices) -> dict[str, float]:
        """`macs`, `params`, `bytes` and `bops` with those choices; what is not named is whole and float.

        Under a budget on it also `latency`, predicted, in billionths of the original's.

        Bytes are those of the weights, packed to their bits; the scales of a quantized layer take no more than the
        batch norm does that was folded into it.
        """
        counts, bits = divided(choices)
        cost, macs = self.cost_model.cost(counts), self.cost_model.layer_macs(counts)
        saved = 0.0
        for layer, width in bits.items():
            saved += self.cost_model.elements(self.kernels[layer], counts) * (FLOAT - width) / 8
        operations = sum(n * factors(bits.get(layer)) for layer, n in macs.items())
        found: dict[str, float] = {
            "macs": cost.macs,
            "params": cost.params,
            "bytes": round(cost.bytes - saved),
            "bops": operations,
        }
        if "latency" in self.budget:
            found["latency"] = sum(
                self.latency_of(layer, counts, bits.get(layer)) for layer in self.latency_table.layers
            )
        return found

    @cached_property
    def latency_table(self) -> LatencyTable:
        """Predicts latency on the target, from blocks that are measured when they are first asked for."""
        meter = BlockMeter(self.baseline_runner)
        return LatencyTable(self.graph, self.pruner.channels, meter, self.parsed_target, self.blocks)

    def latency_of(self, layer: str, counts: Mapping[str, int], bits: int | None = None) -> int:
        """What a layer contributes to the network's predicted latency, in billionths of the original's."""
        return round(1e9 * self.latency_table.part(layer, counts, bits)) if layer in self.latency_table.layers else 0

    def latency_share(self, site: Site) -> float:
        """A site's part of the original network's latency; 0 unless the budget is about latency."""
        known = "latency" in self.budget and site.layer in self.latency_table.layers
        return self.latency_table.share(site.layer) if known else 0.0

    @cached_property
    def full_choices(self) -> dict[str, int]:
        """Everything whole and float, or as near to it as the options are."""
        return {d.name: d.options[-1] for d in self.decisions}

    @cached_property
    def floor_choices(self) -> dict[str, int]:
        """Every decision at its least."""
        return {d.name: d.options[0] for d in self.decisions}

    def plan(self, choices: Choices) -> Plan:
        """The exact plan: which channels stay, and scales for the ranges of the pruned network."""
        counts, bits = divided(choices)
        plan = self.pruner.plan(counts)
        if not bits:
            return plan
        found = self._quantizer(tuple(plan.prune.items())).plan(
            {layer: Precision(width, ACTIVATION_BITS) for layer, width in bits.items()}
        )
        return replace(plan, quantize=found.quantize)

    def planned(self, candidate: Plan | Choices) -> Plan:
        """A plan as it is, choices as the plan that they stand for."""
        return candidate if isinstance(candidate, Plan) else self.plan(candidate)

    def choices_of(self, plan: Plan) -> dict[str, int]:
        """The choices that a plan comes from; groups and layers that it does not name are left out."""
        bits = {bits_of(layer): plan.quantize[w].bits for layer, w in self.kernels.items() if w in plan.quantize}
        return {name: len(kept) for name, kept in plan.prune.items()} | bits

    def compress(self, plan: Plan) -> MSCGraph:
        """The network that a plan describes, with its accuracy restored."""
        plan.check(self.graph, self.pruner.channels.groups)
        return finish(plan, self._pruned(tuple(plan.prune.items())), self.calibration_inputs[:QUANTIZE_SAMPLES])

    @cached_property
    def _pruned(self) -> Callable[[Kept], MSCGraph]:
        return lru_cache(REMEMBERED)(lambda kept: self.pruner.compress(Plan(self.graph.fingerprint, dict(kept))))

    @cached_property
    def _quantizer(self) -> Callable[[Kept], Quantizer]:
        inputs, target = self.calibration_inputs[:QUANTIZE_SAMPLES], str(self.parsed_target)
        return lru_cache(REMEMBERED)(lambda kept: Quantizer(self._pruned(kept), inputs, target))

    @property
    def identity(self) -> Plan:
        """The plan that prunes nothing; its measurement is the baseline."""
        return Plan(self.graph.fingerprint)

    @cached_property
    def baseline_runner(self) -> Runner:
        """The original network on the target, batch 1: what latency is relative to."""
        return build(single(self.graph), self.parsed_target)

    @property
    def parsed_target(self) -> Target:
        """The parsed target."""
        assert isinstance(self.target, Target)
        return self.target

    def scoring_split(self, split: str = "validation", full: bool = False) -> Split:
        """The samples that a measurement counts on; all of the split if `full` or if it is not validation."""
        if split not in ("validation", "test"):
            raise MscError(f"unknown split {split!r}{nearest(split, ['validation', 'test'])}")
        whole: Split = getattr(self.dataset, split)
        return whole if full or split == "test" else whole.head(self.validation)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all that a measurement depends on here: graph, data, recovery, target. Not the budget."""
        parts = [self.pruner.fingerprint, self.dataset.fingerprint, self.validation, str(self.target)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    @cached_property
    def search_fingerprint(self) -> str:
        """`fingerprint` with what a search depends on besides: budget, floor and what is decided."""
        parts = [self.fingerprint, dict(self.budget), self.floor, *self.decide, *self.bits]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def _check_feasible(self) -> None:
        if "latency" in self.budget and "quantize" in self.decide:
            raise MscError(
                "budget latency needs decide: [prune]; integers may be slower, so bits have no least latency"
            )
        if not self.sites:
            reasons = sorted({g.reason for g in self.pruner.channels.groups if g.reason})
            raise MscError(
                f"graph {self.graph.name!r} has nothing to decide on: {' or '.join(self.decide)}"
                f" (divisor {self.divisor}, floor {self.floor}{'; ' + reasons[0] if reasons else ''})"
            )
        smallest, whole = self.cost(self.floor_choices), self.cost({})
        for key, limit in self.limits.items():
            if smallest[key] > limit + 1e-6:
                raise MscError(
                    f"budget {key}: {self.budget[key]:g} cannot be met: with every decision at its least"
                    f" (floor {self.floor:g}, divisor {self.divisor}) {smallest[key] / whole[key]:.3f} of {key} remain"
                )


def batch_symbol(graph: MSCGraph) -> str:
    """The symbol of the first axis of the input. Raises `MscError` if it is a number."""
    batch = graph.tensors[graph.inputs[0]].shape[0] if graph.tensors[graph.inputs[0]].shape else None
    if not isinstance(batch, str):
        raise MscError(
            f"graph {graph.name!r} has the fixed batch {batch}; export it with a symbolic one:"
            " from_torch(model, inputs, dynamic_shapes=({0: 'N'},))"
        )
    return batch


def _as_graph(model: object, data: Dataset) -> MSCGraph:
    if isinstance(model, MSCGraph):
        return model
    if isinstance(model, (str, Path)):
        return MSCGraph.load(model)
    if any(cls.__module__.startswith("torch.nn.") for cls in type(model).__mro__):  # without importing torch
        import torch

        if isinstance(model, torch.nn.Module):
            example = torch.from_numpy(data.train.x[:2].copy())
            return from_torch(model, example, dynamic_shapes=({0: "N"},))
    raise MscError(f"model must be an MSCGraph, its folder or a torch.nn.Module; found {type(model).__name__}")


def _check_graph(graph: MSCGraph, data: Dataset) -> None:
    if len(graph.inputs) != 1:
        raise MscError(f"graph {graph.name!r} has {len(graph.inputs)} inputs; a task needs one")
    batch_symbol(graph)
    tensor = graph.tensors[graph.inputs[0]]
    if tensor.dtype != "float32" or tensor.shape[1:] != data.train.x.shape[1:]:
        raise MscError(
            f"graph {graph.name!r} takes {tensor.dtype}{list(tensor.shape)},"
            f" but data set {data.name!r} has float32{['N', *data.train.x.shape[1:]]}"
        )


def _checked_budget(budget: object) -> dict[str, float]:
    if not isinstance(budget, Mapping):
        raise MscError(f"budget must map {', '.join(BUDGET_KEYS)} to fractions; found {type(budget).__name__}")
    for key, value in budget.items():
        if key not in BUDGET_KEYS:
            raise MscError(f"budget: unknown key {key!r}{nearest(str(key), BUDGET_KEYS)}")
        _check_fraction(f"budget {key}", value)
    return {str(key): float(value) for key, value in budget.items()}


def _checked_parts(parts: object) -> tuple[Part, ...]:
    if isinstance(parts, str) or not isinstance(parts, Sequence) or not parts:
        raise MscError(f"decide must name {' or '.join(PARTS)}; found {parts!r}")
    for part in parts:
        if part not in PARTS:
            raise MscError(f"decide: unknown part {part!r}{nearest(str(part), PARTS)}")
    return tuple(part for part in PARTS if part in parts)


def _checked_bits(bits: object) -> tuple[int, ...]:
    wanted = f"bits must be integers from 2 to 8, and {FLOAT} for float"
    if isinstance(bits, str) or not isinstance(bits, Sequence) or not bits:
        raise MscError(f"{wanted}; found {bits!r}")
    for width in bits:
        if isinstance(width, bool) or not isinstance(width, int) or not (2 <= width <= 8 or width == FLOAT):
            raise MscError(f"{wanted}; found {width!r}")
    return tuple(sorted(set(bits)))


def factors(bits: int | None) -> int:
    """Bits of one factor times those of the other, for a layer whose weights have so many."""
    return FLOAT * FLOAT if bits is None else bits * ACTIVATION_BITS


def _check_fraction(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise MscError(f"{name} must be a fraction in (0, 1]; found {value!r}")
