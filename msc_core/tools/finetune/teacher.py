"""The original network as a teacher: its outputs, and its features on the channels that the student still has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msc_core.errors import MscError, nearest
from msc_core.ir import MSCGraph
from msc_core.plan import Plan
from msc_core.tools.finetune.device import place
from msc_core.tools.finetune.losses import feature_loss, kl, lp
from msc_core.tools.finetune.recipe import Recipe
from msc_core.tools.survivors import select, selected_shape, survivors

if TYPE_CHECKING:
    import torch


class Teacher:
    """What a student learns from `graph`, whose channels it has lost by `plan`.

    `student` is the graph that is trained. A feature of `recipe.features` is a tensor that both graphs have by that
    name. Raises `MscError` where one does not, or where their shapes do not fit each other.
    """

    def __init__(self, graph: MSCGraph, student: MSCGraph, recipe: Recipe, plan: Plan | None = None) -> None:
        self.graph, self.recipe, self.features = graph, recipe, tuple(recipe.features)
        for side, owner in (("teacher", graph), ("student", student)):
            for name in self.features:
                if name not in owner.tensors or name in owner.weights:
                    raise MscError(f"feature {name!r}: the {side} has no such tensor{nearest(name, owner.tensors)}")
        if plan is not None and plan.graph != graph.fingerprint:
            raise MscError(f"the plan is for graph {plan.graph[:12]}, but the teacher is {graph.fingerprint[:12]}")
        by_channel = recipe.matching == "channels" and plan is not None
        self.kept = survivors(graph, plan.prune if plan is not None and by_channel else {}, self.features)
        for name in self.features:
            self._check(name, student)
        self._module: torch.nn.Module | None = None

    def _check(self, name: str, student: MSCGraph) -> None:
        """Shapes that can be compared."""
        found = student.tensors[name].shape
        expected = selected_shape(self.graph.tensors[name].shape, self.kept[name])
        if self.recipe.matching == "channels":
            if len(found) != len(expected) or any(
                isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(found, expected, strict=True)
            ):
                raise MscError(
                    f"feature {name!r}: the student's {list(found)} does not fit the teacher's {list(expected)}; "
                    "pass the plan that pruned it, or use matching='attention'"
                )
        elif len(found) < 3 or len(found) != len(expected):
            raise MscError(
                f"feature {name!r}: attention needs positions, (N, C, H, W) or (N, T, C); found {list(found)}"
            )

    def extended(self, student: MSCGraph) -> MSCGraph:
        """The student's graph with the features as further outputs."""
        return student.replace(outputs=(*student.outputs, *self.features))

    def loss(self, batch: torch.Tensor, outputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        """The distance between outputs, and the weighted sum over features.

        `outputs` are what the student makes of `batch`, those of `extended`.
        """
        import torch

        from msc_core.codegen.torch import to_torch

        if self._module is None:
            module = to_torch(self.extended(self.graph)).eval().requires_grad_(False)
            self._module = place(module, batch.device.type)
        with torch.no_grad(), torch.autocast(batch.device.type, torch.bfloat16, enabled=self.recipe.bfloat16):
            found = self._module(batch)
        targets = tuple(t.float() for t in (found if isinstance(found, tuple) else (found,)))
        recipe, count = self.recipe, len(self.features)
        distance = (
            kl(outputs[0], targets[0], recipe.temperature)
            if recipe.distance == "kl"
            else lp(outputs[0], targets[0], recipe.power)
        )
        total = torch.zeros((), device=batch.device)
        pairs = zip(self.features, outputs[len(outputs) - count :], targets[len(targets) - count :], strict=True)
        for name, student, teacher in pairs:
            target = select(teacher, self.kept[name])
            total = total + recipe.features[name] * feature_loss(student, target, recipe.matching, recipe.power)
        return distance, total
