"""What a graph costs on paper: multiply-accumulates, parameters and bytes, per node and in total."""

from __future__ import annotations

from dataclasses import dataclass

from msc_core.ir import MSCGraph
from msc_core.ops import bind


@dataclass(frozen=True)
class Cost:
    """`macs` of one forward pass (a symbolic batch counts as one sample), `params` and their `bytes`."""

    macs: int
    params: int
    bytes: int


def cost(graph: MSCGraph) -> Cost:
    """The cost of the whole graph. Running statistics of batch norm are bytes but not parameters, as in torch."""
    statistics = {
        n.inputs[i] for n in graph.nodes for i in bind(n, graph.tensors).op.statistics if i < len(n.inputs)
    }  # fmt: skip
    return Cost(
        macs=sum(macs_by_node(graph).values()),
        params=sum(w.size for name, w in graph.weights.items() if name not in statistics),
        bytes=sum(w.nbytes for w in graph.weights.values()),
    )


def macs_by_node(graph: MSCGraph) -> dict[str, int]:
    """MACs of every node that has any: convolutions and linear layers (element-wise work is not counted)."""
    macs = {}
    for node in graph.nodes:
        bound = bind(node, graph.tensors)
        if bound.op.macs is not None:
            macs[node.name] = bound.op.macs(bound, bound.sizes())
    return macs
