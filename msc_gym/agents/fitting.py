"""Any numbers in [0, 1], made into choices inside the budget.

`Episode` clips one decision after the other, so the last ones pay for the first. Here all are scaled by one factor,
which suits agents that propose a plan at once: no decision is special, and a small change of a number stays small.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from itertools import pairwise

from msc_core.tools.prune.ranking import Step, take
from msc_gym.decisions import Choices, Decision
from msc_gym.task import CompressionTask

LEAST = 1e-3  # what is wanted less of is scaled as this

Numbers = Mapping[str, float]  # name of a decision -> the ratio of channels, or where among the bits, as in `Episode`


def fitted(task: CompressionTask, wanted: Numbers, fill: bool) -> dict[str, int]:
    """The options nearest to the numbers times one factor, the largest that meets the budget.

    Then what still fits is given back, so that no option can be raised. Without `fill`, or without a budget, the factor
    is at most 1 and nothing exceeds what is wanted.
    """
    whole = dict(task.full_choices)
    if not fills(task, fill):
        whole = {d.name: nearest_option(d, wanted[d.name]) for d in task.decisions}
    steps = [
        Step(-edge / max(wanted[d.name], LEAST), d.name, option)
        for d in task.decisions
        for option, edge in zip(d.options, edges(d), strict=False)
        if option < whole[d.name]
    ]
    return spend(task, {d.name: tuple(o for o in d.options if o <= whole[d.name]) for d in task.decisions}, steps)


def spend(task: CompressionTask, options: Mapping[str, tuple[int, ...]], steps: list[Step]) -> dict[str, int]:
    """The options after the cheapest steps that meet the budget, without those that turn out not to be needed.

    `steps` has one for each option but the last; taking all of them must meet the budget.
    """
    return take(options, steps, task.within_budget, undo=True)


def fills(task: CompressionTask, fill: bool) -> bool:
    """Whether plans use the budget up: if that is wanted, and there is one."""
    return fill and any(fraction < 1 for fraction in task.budget.values())


def nearest_option(decision: Decision, number: float) -> int:
    """The option that a number means; of two counts equally near, the larger."""
    return decision.options[bisect_right(edges(decision), number)]


def edges(decision: Decision) -> list[float]:
    """The numbers at which one option gives way to the next, ascending."""
    if decision.part == "prune":
        return [(low + high) / 2 / decision.full for low, high in pairwise(decision.options)]
    return [i / len(decision.options) for i in range(1, len(decision.options))]


def numbers_of(task: CompressionTask, choices: Choices) -> dict[str, float]:
    """The numbers that stand for choices: ratios of channels, and the middle of what means the same bits."""
    return {
        d.name: d.share(choices[d.name])
        if d.part == "prune"
        else (d.options.index(choices[d.name]) + 0.5) / len(d.options)
        for d in task.decisions
    }
