"""From graph to graph: the weights after training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msc_core.data import Split
from msc_core.errors import MscError, nearest
from msc_core.ir import Array, MSCGraph
from msc_core.plan import Plan
from msc_core.tools.finetune.loop import Report, fit
from msc_core.tools.finetune.recipe import Recipe
from msc_core.tools.finetune.teacher import Teacher


def finetune(
    graph: MSCGraph,
    train: Split,
    recipe: Recipe,
    teacher: MSCGraph | None = None,
    report: Report | None = None,
    *,
    plan: Plan | None = None,
    validation: Split | None = None,
    masks: Mapping[str, Array] | None = None,
    checkpoint: str | Path | None = None,
) -> MSCGraph:
    """The graph with weights trained on `train` (x float32, y int64 class labels); see `fit` for the loop.

    `teacher` is the original graph and `plan` what pruned it, for the features of the recipe; without a teacher the
    loss is that of the task alone. `masks` are {weight: array of its shape, zero where it stays zero}. Uses the GPU
    when there is one. Raises `MscError` for a graph that is quantized already, since rounding has no gradient: train
    the module of `quantize.qat.prepare` with `fit`.
    """
    from msc_core.codegen.torch import from_module, to_torch
    from msc_core.codegen.torch_calls import module_paths

    if recipe.steps == 0:
        return graph
    if rounded := next((node.name for node in graph.nodes if node.op == "quantize"), None):
        raise MscError(f"node {rounded!r} rounds, so nothing before it can learn: fine-tune before quantization")
    if len(graph.inputs) != 1:
        raise MscError(f"fine-tuning takes a graph with one input; found {list(graph.inputs)}")
    guide = Teacher(teacher, graph, recipe, plan) if teacher is not None else None
    module = to_torch(guide.extended(graph) if guide else graph)
    paths = module_paths(graph.weights)
    for name in masks or {}:
        if name not in paths:
            raise MscError(f"mask: no weight {name!r}{nearest(name, paths)}")
    named = {paths[name]: mask for name, mask in (masks or {}).items()}
    fit(module, train, recipe, guide, report, validation=validation, masks=named, checkpoint=checkpoint)
    return from_module(graph, module)
