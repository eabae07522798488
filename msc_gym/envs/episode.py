"""One episode, without an engine: which count each group gets, in network order, inside the budget.

Environments and agents share it, so that both see the same observations and the same walls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from msc_core.channels import ChannelGroup
from msc_core.ir import MSCGraph
from msc_core.ops import bind
from msc_gym.task import CompressionTask

Observation = np.ndarray[Any, np.dtype[np.float32]]
FEATURES = (
    "index",  # which group, 0 for the first to 1 for the last
    "type",  # 0 if a convolution produces the channels, 1 otherwise
    "channels_out",  # of the group, over the widest group
    "channels_in",  # of its first producer, over the largest
    "positions",  # of the producer's output map, over the largest
    "stride",  # of the producer, over the largest
    "kernel",  # positions of the producer's kernel, over the largest
    "cost",  # MACs of all layers that the group touches, over the network's
    "reduced",  # share of MACs that the decisions so far have removed
    "rest",  # share of MACs in layers that an open group touches, at their present widths
    "previous",  # the ratio applied last; 1 at first
)
"""AMC's eleven features (He et al. 2018) for groups instead of layers; every one is in [0, 1]."""


class Episode:
    """Walks over `task.groups` once.

    Two walls keep it inside the budget. From above, AMC's preserve form: a count is allowed if the open groups at their
    floor would still meet every limit. From below, if `fill`: a count is allowed if the open groups left whole would
    still reach a limit; less could only waste accuracy. Where the walls cross, the upper one holds.
    """

    def __init__(self, task: CompressionTask, fill: bool = True) -> None:
        self.task = task
        self.fill = fill and any(fraction < 1 for fraction in task.budget.values())
        self.counts: dict[str, int] = {}
        self.previous = 1.0
        self._static = _static_features(task)

    @property
    def index(self) -> int:
        """How many groups are decided."""
        return len(self.counts)

    @property
    def done(self) -> bool:
        """Whether every group is."""
        return self.index == len(self.task.groups)

    @property
    def group(self) -> ChannelGroup:
        """The group to decide on."""
        return self.task.groups[self.index]

    def feasible(self) -> tuple[int, ...]:
        """The counts of this group between the walls, ascending; never empty."""
        choices, task = self.task.choices(self.group), self.task
        lean = task.floor_counts | self.counts
        high = _last(choices, lambda count: task.within_budget(lean | {self.group.name: count}))
        if not self.fill:
            return choices[: high + 1]
        whole = task.full_counts | self.counts
        low = _last(choices, lambda count: not self._reaches(whole | {self.group.name: count})) + 1
        return choices[min(low, high) : high + 1]

    def step(self, ratio: float) -> int:
        """Keep the feasible count nearest to `ratio * size`, the larger of two; returns it."""
        wanted = ratio * self.group.size
        count = min(self.feasible(), key=lambda c: (abs(c - wanted), -c))
        self.previous = count / self.group.size
        self.counts[self.group.name] = count
        return count

    def macs(self) -> float:
        """The share of MACs that remains with the open groups whole."""
        cost = self.task.cost_model
        return min(1.0, sum(cost.layer_macs(self.counts).values()) / max(1, cost.full.macs))

    def observation(self) -> Observation:
        """The features of the group to decide on; after the last one those of the last."""
        row = self._static[min(self.index, len(self._static) - 1)]
        layers = self.task.cost_model.layer_macs(self.counts)
        total = max(1, self.task.cost_model.full.macs)
        touched = {node for group in self.task.groups[self.index :] for node in group.nodes}
        rest = sum(macs for node, macs in layers.items() if node in touched) / total
        values = np.asarray([*row, 1 - sum(layers.values()) / total, rest, self.previous], np.float32)
        return np.clip(values, 0, 1)

    def _reaches(self, counts: dict[str, int]) -> bool:
        spent = self.task.spent(counts)
        return any(spent[key] >= limit for key, limit in self.task.limits.items())


def _last(choices: tuple[int, ...], holds: Callable[[int], bool]) -> int:
    """The index of the last choice for which `holds` (true up to some choice, then false); -1 if none."""
    low, high = -1, len(choices) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if holds(choices[middle]):
            low = middle
        else:
            high = middle - 1
    return low


_STATIC: WeakKeyDictionary[CompressionTask, Any] = WeakKeyDictionary()


def _static_features(task: CompressionTask) -> Any:
    """The features that do not change during an episode: float32 (groups, 8)."""
    if task in _STATIC:
        return _STATIC[task]
    full = task.cost_model.layer_macs({})
    total = max(1, task.cost_model.full.macs)
    rows = np.asarray(
        [
            [*_producer(task.graph, group), sum(full.get(node, 0) for node in group.nodes) / total]
            for group in task.groups
        ],
        np.float64,
    )
    rows[:, 1:6] /= np.maximum(rows[:, 1:6].max(axis=0), 1)
    index = np.arange(len(rows)) / max(1, len(rows) - 1)
    _STATIC[task] = np.column_stack([index, rows]).astype(np.float32)
    return _STATIC[task]


def _producer(graph: MSCGraph, group: ChannelGroup) -> tuple[float, ...]:
    """Of the first layer that makes the channels: type, channels out and in, positions, stride, kernel."""
    bound = bind(graph.node(group.nodes[0]), graph.tensors)
    tensor = graph.tensors[next(m.tensor for m in group.members if m.node == bound.node.name)]
    weight = [d for d in tensor.shape if isinstance(d, int)]
    groups = bound["groups"] if "groups" in bound.op.attrs else 1
    stride = max(bound["stride"]) if "stride" in bound.op.attrs else 1
    elements = float(np.prod([d for d in bound.out[0].shape if isinstance(d, int)]))
    return (
        float(bound.node.op != "conv2d"),
        float(group.size),
        float(weight[1] * groups if len(weight) > 1 else weight[0]),
        elements / max(1, weight[0]),
        float(stride),
        float(np.prod(weight[2:])),
    )
