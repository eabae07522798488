"""One episode, without an engine: which option each decision takes, in network order, inside the budget.

Environments and agents share it, so that both see the same observations and the same walls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from msc_core.ir import MSCGraph
from msc_core.ops import bind
from msc_gym.decisions import Choices, Decision, Site, divided
from msc_gym.task import CompressionTask

Observation = np.ndarray[Any, np.dtype[np.float32]]
FEATURES = (
    "index",  # which site, 0 for the first to 1 for the last
    "type",  # 0 if a convolution is decided on or produces the channels, 1 otherwise
    "channels_out",  # of the site, over the widest
    "channels_in",  # of its first producer, over the largest
    "positions",  # of the producer's output map, over the largest
    "stride",  # of the producer, over the largest
    "kernel",  # positions of the producer's kernel, over the largest
    "cost",  # MACs of all layers that the site touches, over the network's
    "sensitivity",  # what halving the group costs after recovery, over the largest; 0 without a group
    "prunes",  # 1 if channels are decided here
    "quantizes",  # 1 if bits are decided here
    "reduced",  # share of MACs that the decisions so far have removed
    "rest",  # share of MACs in layers that an open site touches, at their present widths
    "previous",  # the ratio of channels applied last; 1 at first
    "previous_bits",  # the bits applied last, over 32; 1 at first
)
"""AMC's eleven features (He et al. 2018), for groups and layers, and what they lack; every one is in [0, 1]."""


class Episode:
    """Walks over `task.sites` once.

    Two walls keep it inside the budget. From above, AMC's preserve form: an option is allowed if the open decisions at
    their least would still meet every limit. From below, if `fill`: an option is allowed if the open decisions left
    whole would still reach a limit; less could only waste accuracy. Where the walls cross, the upper one holds.
    """

    def __init__(self, task: CompressionTask, fill: bool = True) -> None:
        self.task = task
        self.fill = fill and any(fraction < 1 for fraction in task.budget.values())
        self.choices: dict[str, int] = {}
        self.index = 0
        self.previous = {"prune": 1.0, "quantize": 1.0}
        self._static = _static_features(task)

    @property
    def done(self) -> bool:
        """Whether everything is decided."""
        return self.index == len(self.task.sites)

    @property
    def site(self) -> Site:
        """What to decide next."""
        return self.task.sites[self.index]

    def feasible(self, decision: Decision) -> tuple[int, ...]:
        """The options of an open decision between the walls, ascending; never empty."""
        options, task = decision.options, self.task
        lean = task.floor_choices | self.choices
        high = max(0, _last(options, lambda option: task.within_budget(lean | {decision.name: option})))
        if not self.fill:
            return options[: high + 1]
        whole = task.full_choices | self.choices
        low = _last(options, lambda option: not self._reaches(whole | {decision.name: option})) + 1
        return options[min(low, high) : high + 1]

    def step(self, action: Sequence[float]) -> dict[str, int]:
        """Decide on the next site, from one number in [0, 1] for each part in `task.decide`; what was applied.

        Of channels it is the ratio to keep: the nearest feasible count is taken, the larger of two. Of bits it picks an
        option, 0 the least and 1 the most.
        """
        applied: dict[str, int] = {}
        numbers = dict(zip(self.task.decide, action, strict=True))
        for decision in self.site.decisions:
            number = numbers[decision.part]
            if decision.part == "prune":
                wanted = number * decision.full
            else:
                wanted = decision.options[min(int(number * len(decision.options)), len(decision.options) - 1)]
            option = min(self.feasible(decision), key=lambda o: (abs(o - wanted), -o))
            self.choices[decision.name] = applied[decision.name] = option
            self.previous[decision.part] = decision.share(option)
        self.index += 1
        return applied

    def actions(self, choices: Choices) -> list[float]:
        """The numbers with which `step` takes those choices at the next site; 1 where it has no such part."""
        numbers = dict.fromkeys(self.task.decide, 1.0)
        for decision in self.site.decisions:
            option = choices[decision.name]
            if decision.part == "prune":
                numbers["prune"] = decision.share(option)
            else:
                numbers["quantize"] = (decision.options.index(option) + 0.5) / len(decision.options)
        return list(numbers.values())

    def macs(self) -> float:
        """The share of MACs that remains with the open groups whole."""
        cost = self.task.cost_model
        return min(1.0, sum(cost.layer_macs(divided(self.choices)[0]).values()) / max(1, cost.full.macs))

    def observation(self) -> Observation:
        """The features of the site to decide on; after the last one those of the last."""
        row = self._static[min(self.index, len(self._static) - 1)]
        layers = self.task.cost_model.layer_macs(divided(self.choices)[0])
        total = max(1, self.task.cost_model.full.macs)
        touched = {node for site in self.task.sites[self.index :] for node in _nodes(self.task, site)}
        rest = sum(macs for node, macs in layers.items() if node in touched) / total
        values = np.asarray([*row, 1 - sum(layers.values()) / total, rest, *self.previous.values()], np.float32)
        return np.clip(values, 0, 1)

    def _reaches(self, choices: dict[str, int]) -> bool:
        spent = self.task.spent(choices)
        return any(spent[key] >= limit for key, limit in self.task.limits.items())


def _last(options: tuple[int, ...], holds: Callable[[int], bool]) -> int:
    """The index of the last option for which `holds` (true up to some option, then false); -1 if none."""
    low, high = -1, len(options) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if holds(options[middle]):
            low = middle
        else:
            high = middle - 1
    return low


_STATIC: WeakKeyDictionary[CompressionTask, Any] = WeakKeyDictionary()


def _static_features(task: CompressionTask) -> Any:
    """The features that do not change during an episode: float32 (sites, 11)."""
    if task in _STATIC:
        return _STATIC[task]
    full = task.cost_model.layer_macs({})
    total = max(1, task.cost_model.full.macs)
    rows = np.asarray(
        [
            [
                *_producer(task.graph, site),
                sum(full.get(node, 0) for node in _nodes(task, site)) / total,
                _sensitivity(task, site),
                *(float(any(d.part == part for d in site.decisions)) for part in ("prune", "quantize")),
            ]
            for site in task.sites
        ],
        np.float64,
    )
    rows[:, 1:6] /= np.maximum(rows[:, 1:6].max(axis=0), 1)
    rows[:, 7] /= max(rows[:, 7].max(), np.finfo(np.float64).tiny)
    index = np.arange(len(rows)) / max(1, len(rows) - 1)
    _STATIC[task] = np.column_stack([index, rows]).astype(np.float32)
    return _STATIC[task]


def _nodes(task: CompressionTask, site: Site) -> set[str]:
    """The layers that a site touches."""
    groups = {g.name: g.nodes for g in task.groups}
    return {node for d in site.decisions for node in (groups[d.of] if d.part == "prune" else (d.of,))}


def _sensitivity(task: CompressionTask, site: Site) -> float:
    """What halving the site's group costs, in the criterion's unit."""
    loss = [task.pruner.ranking(d.of).loss for d in site.decisions if d.part == "prune"]
    return float(loss[0][len(loss[0]) // 2]) if loss else 0.0


def _producer(graph: MSCGraph, site: Site) -> tuple[float, ...]:
    """Of the layer, or the first that makes the channels: type, channels out and in, positions, stride, kernel."""
    node = site.layer
    bound = bind(graph.node(node), graph.tensors)
    weight = [d for d in graph.tensors[bound.node.inputs[1]].shape if isinstance(d, int)]
    groups = bound["groups"] if "groups" in bound.op.attrs else 1
    stride = max(bound["stride"]) if "stride" in bound.op.attrs else 1
    elements = float(np.prod([d for d in bound.out[0].shape if isinstance(d, int)]))
    return (
        float(bound.node.op != "conv2d"),
        float(next((d.full for d in site.decisions if d.part == "prune"), weight[0])),
        float(weight[1] * groups if len(weight) > 1 else weight[0]),
        elements / max(1, weight[0]),
        float(stride),
        float(np.prod(weight[2:])),
    )
