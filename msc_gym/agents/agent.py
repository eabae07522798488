"""What an agent is: a plain object that proposes all choices of an episode and is told what they were worth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msc_gym.decisions import Choices


class Agent(Protocol):
    """`ask`, then `tell`, as often as there are trials; or several times `ask`, then as often `tell` in that order.

    An agent is a deterministic function of its arguments and of what it was asked and told, and draws from generators
    of its own: asked and told the same again, it proposes the same again. That is how a search resumes.
    """

    def ask(self) -> dict[str, int] | None:
        """An option for every decision of the task, within its budget; `None` if there is nothing more to propose."""
        ...

    def tell(self, choices: Choices, reward: float, values: Sequence[float] = ()) -> None:
        """What choices that were asked are worth: finite, higher is better.

        `values` are the objectives, where a search has several; then `reward` is a weighted sum of them.
        """
        ...
