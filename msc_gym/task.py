"""A compression task: a trained model, its data, the target to run on and the budget to meet."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
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
from msc_core.tools.prune import CostModel, Pruner
from msc_gym.config import BudgetKey, JobConfig, load_job

if TYPE_CHECKING:
    import torch

BUDGET_KEYS: tuple[str, ...] = get_args(BudgetKey)
Counts = Mapping[str, int]  # group name -> channels kept


@dataclass(frozen=True, eq=False)
class CompressionTask:
    """What to compress, on which data, for which target, to what budget. Frozen; everything derived is cached.

    - `model`: an `MSCGraph`, the folder of a saved one, or a `torch.nn.Module`, exported with a symbolic batch.
      One input (N, ...) float32, first output logits (N, classes). The attribute holds the graph afterwards.
    - `data`: a `Dataset`, or a name that `msc_core.data.load` knows.
    - `target`: where latency is measured; see `Target.parse`.
    - `budget`: upper limits as fractions of the original in (0, 1], by `macs`, `params` or `bytes`.
    - `divisor`, `floor`: kept counts are multiples of `divisor` (a group may say otherwise) and at least `floor` of the
      group, AMC's lower bound.
    - `calibration`: training images for recovery, chosen by `seed`. `validation`: images that score a candidate during
      a search, the first so many of the split; finalists use all. Both are limited by what there is.

    Raises `MscError` where a part is missing, of the wrong type or out of range, or where the budget cannot be met.
    """

    model: MSCGraph | str | Path | torch.nn.Module
    data: Dataset | str
    target: Target | str = "onnxruntime"
    budget: Mapping[str, float] = field(default_factory=lambda: {"macs": 0.5})
    divisor: int = DIVISOR
    floor: float = 0.2
    calibration: int = 1000
    validation: int = 2000
    seed: int = 0

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
    def cost_model(self) -> CostModel:
        """What any counts cost, in microseconds of arithmetic."""
        return CostModel(self.graph, self.pruner.groups)

    @cached_property
    def limits(self) -> dict[str, float]:
        """The budget in absolute numbers."""
        return {key: fraction * getattr(self.cost_model.full, key) for key, fraction in self.budget.items()}

    def within_budget(self, counts: Counts) -> bool:
        """Whether a graph with those counts meets every limit."""
        spent = self.spent(counts)
        return all(spent[key] <= limit + 1e-6 for key, limit in self.limits.items())

    def spent(self, counts: Counts) -> dict[str, int]:
        """What a graph with those counts costs, in the budget's terms."""
        if self.limits.keys() == {"macs"}:  # the usual budget, and half the work
            return {"macs": sum(self.cost_model.layer_macs(counts).values())}
        cost = self.cost_model.cost(counts)
        return {key: getattr(cost, key) for key in self.limits}

    @cached_property
    def full_counts(self) -> dict[str, int]:
        """Every group whole."""
        return {g.name: g.size for g in self.groups}

    @cached_property
    def floor_counts(self) -> dict[str, int]:
        """Every group at its floor."""
        return {g.name: self.choices(g)[0] for g in self.groups}

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
        """`fingerprint` with what a search depends on besides: budget and floor."""
        parts = [self.fingerprint, dict(self.budget), self.floor]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def _check_feasible(self) -> None:
        if not self.groups:
            reasons = sorted({g.reason for g in self.pruner.channels.groups if g.reason})
            raise MscError(
                f"graph {self.graph.name!r} has no channels that can be pruned"
                f" (divisor {self.divisor}, floor {self.floor}{'; ' + reasons[0] if reasons else ''})"
            )
        smallest = self.cost_model.cost(self.floor_counts)
        for key, limit in self.limits.items():
            if getattr(smallest, key) > limit + 1e-6:
                reach = getattr(smallest, key) / getattr(self.cost_model.full, key)
                raise MscError(
                    f"budget {key}: {self.budget[key]:g} cannot be met: with every group at its floor"
                    f" (floor {self.floor:g}, divisor {self.divisor}) {reach:.3f} of {key} remain"
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


def _check_fraction(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise MscError(f"{name} must be a fraction in (0, 1]; found {value!r}")
