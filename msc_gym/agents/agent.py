"""What an agent is: a plain object that proposes kept counts for a whole episode and is told what they were worth."""

from __future__ import annotations

from typing import Protocol

from msc_gym.task import Counts


class Agent(Protocol):
    """`ask`, then `tell`, as often as there are trials.

    An agent is a deterministic function of its arguments and of what it was told, and draws from generators of its
    own: asked and told the same again, it proposes the same again. That is how a search resumes.
    """

    def ask(self) -> dict[str, int] | None:
        """Kept counts for every group of the task, within its budget; `None` if there is nothing more to propose."""
        ...

    def tell(self, counts: Counts, reward: float) -> None:
        """What the counts that were asked last are worth: finite, higher is better."""
        ...
