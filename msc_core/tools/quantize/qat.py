"""Quantization-aware training: a torch module that rounds as the integer graph will, and its way back into a plan."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from msc_core.errors import InvalidPlan
from msc_core.ir import MSCGraph, Node, unique
from msc_core.plan import Plan
from msc_core.rewrite import drop_identities, fold_batch_norm
from msc_core.tools.quantize.insert import BIASED, quantize

if TYPE_CHECKING:
    from msc_core.tools.quantize.qat_module import FakeQuantized

OBSERVED = 100


def prepare(graph: MSCGraph, plan: Plan, observe: int = OBSERVED, learn: bool = False) -> FakeQuantized:
    """A module to train in place of `to_torch(graph)`; it has batch norms folded and computes what `apply` makes.

    In the first `observe` forward passes in training mode the scales follow the values, starting from the plan's; then
    they are frozen. With `learn` they are parameters instead (LSQ, Esser et al. 2020). Rounding passes gradients on,
    saturation does not. Raises `InvalidPlan` if the plan is for another graph, prunes or casts, or does not fit.
    """
    from msc_core.codegen.torch_calls import torch_calls
    from msc_core.tools.quantize.qat_module import FakeQuantized

    folded = _folded(graph, plan)
    marked, sources = _marked(folded, plan)
    weights = {name: folded.weights[name] for name in plan.quantize if name in folded.weights}
    return FakeQuantized(torch_calls(marked), plan.quantize, sources, weights, 0 if learn else observe, learn)


def finish(module: FakeQuantized, graph: MSCGraph, plan: Plan) -> tuple[MSCGraph, Plan]:
    """The float graph with the trained weights, and the plan for it with the trained scales.

    `module` is what `prepare` made of `graph` and `plan`. `apply` of the two computes what the module does in eval
    mode: with the same integers, and sums that differ by the order of float32 additions.
    """
    from msc_core.codegen.torch import from_module

    trained = from_module(_folded(graph, plan), module)
    return trained, Plan(trained.fingerprint, quantize=module.scales())


def _folded(graph: MSCGraph, plan: Plan) -> MSCGraph:
    if plan.graph != graph.fingerprint:
        raise InvalidPlan(f"the plan is for graph {plan.graph[:12]}, but this graph is {graph.fingerprint[:12]}")
    if plan.prune or plan.cast:
        raise InvalidPlan("training of a quantized network takes a plan that only quantizes: prune first, cast last")
    folded = drop_identities(fold_batch_norm(graph))
    quantize(folded, plan.quantize)  # refuses what does not fit
    return folded


def _marked(graph: MSCGraph, plan: Plan) -> tuple[MSCGraph, dict[str, str | tuple[str, str]]]:
    """The graph with an `identity` where something is rounded, and what each one's output is made from.

    That is a tensor of the plan or, for a bias that becomes int32, the two tensors whose scales it is in units of.
    """
    tensors, nodes = dict(graph.tensors), list[Node]()
    taken = {*tensors, *(node.name for node in graph.nodes)}
    sources: dict[str, str | tuple[str, str]] = {}
    stand_ins: dict[str, str] = {}

    def mark(name: str, source: str | tuple[str, str]) -> str:
        output = unique(f"{name}.fake", taken)
        taken.add(output)
        tensors[output] = dataclasses.replace(tensors[name], name=output)
        nodes.append(Node(output, "identity", (name,), (output,)))
        sources[output] = source
        return output

    for node in graph.nodes:
        inputs = list(node.inputs)
        for i, name in enumerate(inputs):
            how = plan.quantize.get(name)
            if how is not None and (not how.consumers or node.name in how.consumers):
                stand_ins[name] = inputs[i] = stand_ins[name] if name in stand_ins else mark(name, name)
        if _integer_bias(graph, plan, node, inputs):
            inputs[2] = mark(inputs[2], (node.inputs[0], node.inputs[1]))
        nodes.append(dataclasses.replace(node, inputs=tuple(inputs)))
    return graph.replace(nodes=tuple(nodes), tensors=tensors), sources


def _integer_bias(graph: MSCGraph, plan: Plan, node: Node, inputs: list[str]) -> bool:
    """Whether `insert` makes the bias an int32."""
    if node.op not in BIASED or len(inputs) < 3 or inputs[2] not in graph.weights or inputs[:2] == [*node.inputs[:2]]:
        return False
    data, weight = (plan.quantize.get(name) for name in node.inputs[:2])
    if data is None or weight is None or len(data.scale) > 1 or weight.block:
        return False
    return weight.axis in (None, 0)
