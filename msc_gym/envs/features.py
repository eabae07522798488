"""What an agent sees of a site: AMC's features, and what they lack, each in [0, 1]."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from msc_core.ir import MSCGraph
from msc_core.ops import bind
from msc_gym.decisions import Site
from msc_gym.envs.spending import touched
from msc_gym.task import CompressionTask

Floats = np.ndarray[Any, np.dtype[np.float32]]
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
    "latency",  # share of the network's time, where the task knows it from a table; else 0
    "reduced",  # share of MACs that the decisions so far have removed
    "rest",  # share of MACs in layers that an open site touches, at their present widths
    "previous",  # the ratio of channels applied last; 1 at first
    "previous_bits",  # the bits applied last, over 32; 1 at first
)
"""AMC's eleven features (He et al. 2018), for groups and layers, and what they lack; every one is in [0, 1]."""


def static_features(task: CompressionTask) -> Floats:
    """The features that do not change during an episode, up to "latency": (sites, 12). Computed once per task."""
    if task not in _STATIC:
        _STATIC[task] = _static(task)
    return _STATIC[task]


_STATIC: WeakKeyDictionary[CompressionTask, Floats] = WeakKeyDictionary()


def _static(task: CompressionTask) -> Floats:
    full = task.cost_model.layer_macs({})
    total = max(1, task.cost_model.full.macs)
    rows = np.asarray(
        [
            [
                *_producer(task.graph, site),
                sum(full.get(node, 0) for node in touched(task, site)) / total,
                _sensitivity(task, site),
                *(float(any(d.part == part for d in site.decisions)) for part in ("prune", "quantize")),
                task.latency_share(site),
            ]
            for site in task.sites
        ],
        np.float64,
    )
    rows[:, 1:6] /= np.maximum(rows[:, 1:6].max(axis=0), 1)
    rows[:, 7] /= max(rows[:, 7].max(), np.finfo(np.float64).tiny)
    index = np.arange(len(rows)) / max(1, len(rows) - 1)
    return np.column_stack([index, rows]).astype(np.float32).clip(0, 1)


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
