"""AMC (He et al. 2018): DDPG over keep ratios, one step per group or layer, the final reward for every step.

Re-implemented after `mit-han-lab/amc`, which no longer runs; `ddpg.Settings` are its. With `exact`, so is the rest: a
hundred random episodes (a quarter of them all, if there are fewer than four hundred), then the actor's actions with
truncated normal noise of 0.5 that decays by 0.95 each episode, one gradient step per transition. What an agent sees and
how its ratios become counts is the environment's, for all agents alike.

What differs without `exact`, because a search here has a hundred trials where AMC had eight hundred:

1. The first trial is the uniform plan, so that the result is never below it, and the second is the same filled up to
   the budget. The rest of the warm-up, a quarter of the trials, is random, as in AMC.
2. Noise starts as in AMC, but decays by what makes it reach `LAST_NOISE` at the last trial: where channels come in
   eights, less would never change a count.
3. A plan that was tried is not tried again: noise is drawn anew, wider each time.
4. Every other trial after warm-up is an excursion: noise is added to the actions of the best plan so far instead of to
   the actor's, for a few sites.
5. Several gradient steps per transition, and what is remembered is the action that was applied, not the one proposed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from msc_gym.agents.ddpg import DDPG
from msc_gym.agents.learner import Floats, check_parts, replay, truncated
from msc_gym.agents.policy import Policy, linear_layers, make_policy
from msc_gym.agents.uniform import uniform_choices
from msc_gym.decisions import Choices
from msc_gym.envs import FEATURES, Episode
from msc_gym.task import CompressionTask

WARM_UP, EXACT_WARM_UP = 0.25, 100  # of the trials; and at most
FIRST_NOISE, LAST_NOISE = 0.5, 0.1
EXACT_DECAY = 0.95
UPDATES_PER_STEP = 4
MEMORY_EPISODES = 100
MOVES = 3  # sites that an excursion changes, on average
ATTEMPTS = 20  # to find a plan that was not tried


@dataclass
class _Seen:
    """What an agent knows of one task. Rewards count from the first, so that tasks may be worth more or less."""

    asked: int = 0
    reference: float | None = None
    tried: set[tuple[int, ...]] = field(default_factory=set)
    best: tuple[float, list[Floats]] | None = None  # reward and actions


class AMC:
    """A learning agent. `trials` scales warm-up and noise, `fill` is whether episodes use the whole budget."""

    def __init__(
        self, task: CompressionTask, trials: int = 100, seed: int = 0, fill: bool = True, exact: bool = False
    ) -> None:
        self._task, self._fill, self._exact = task, fill, exact
        share = round(WARM_UP * trials)
        self._warm_up = min(EXACT_WARM_UP, share) + 1 if exact else max(2, share)
        decay = (LAST_NOISE / FIRST_NOISE) ** (1 / max(1, trials - self._warm_up))
        self._decay = EXACT_DECAY if exact else decay
        self._first_noise = FIRST_NOISE * EXACT_DECAY if exact else FIRST_NOISE
        self._ddpg = DDPG(len(FEATURES), len(task.decide), MEMORY_EPISODES * len(task.sites), seed)
        self._rng = np.random.default_rng(seed)
        self._asked = self._told = 0
        self._tasks: dict[CompressionTask, _Seen] = {}
        self._pending: deque[tuple[CompressionTask, list[Floats]]] = deque()  # the actions of asked episodes

    def visit(self, task: CompressionTask) -> None:
        """Ask about this task from now on."""
        check_parts(self._task, task)
        self._task = task

    def ask(self) -> dict[str, int] | None:
        """The plan of the next trial."""
        seen = self._seen
        if seen.asked == 0 and not self._exact:
            choices, actions = uniform_choices(self._task), list[Floats]()
        else:
            choices, actions = self._new(seen)
        seen.tried.add(tuple(choices.values()))
        seen.asked += 1
        self._asked += 1
        self._pending.append((self._task, actions))
        return choices

    def tell(self, choices: Choices, reward: float, values: Sequence[float] = ()) -> None:
        """Learn from a finished trial."""
        task, proposed = self._pending.popleft()
        seen, steps = self._tasks[task], replay(task, choices)
        seen.reference = reward if seen.reference is None else seen.reference
        applied = [action for _, action in steps]
        if seen.best is None or reward > seen.best[0]:
            seen.best = reward, applied
        self._told += 1
        learning = self._told > self._warm_up if self._exact else self._told >= self._warm_up
        for index, (observation, _) in enumerate(steps):
            last = index == len(steps) - 1
            after = observation if last else steps[index + 1][0]
            action = proposed[index] if self._exact else applied[index]
            self._ddpg.remember(observation, action, reward - seen.reference, after, last)
            if learning:
                self._ddpg.learn(1 if self._exact else UPDATES_PER_STEP)

    def policy(self) -> Policy:
        """The actor."""
        settings = asdict(self._ddpg.settings) | {"hidden": list(self._ddpg.settings.hidden), "exact": self._exact}
        return make_policy("amc", self._task, "relu", "sigmoid", linear_layers(self._ddpg.actor), settings)

    @property
    def _seen(self) -> _Seen:
        return self._tasks.setdefault(self._task, _Seen())

    def _new(self, seen: _Seen) -> tuple[dict[str, int], list[Floats]]:
        """A proposal that was not made before, if one is found; `exact` takes the first."""
        for attempt in range(1 if self._exact else ATTEMPTS):
            choices, actions = self._propose(1.5**attempt)
            if tuple(choices.values()) not in seen.tried:
                break
        return choices, actions

    def _propose(self, widen: float) -> tuple[dict[str, int], list[Floats]]:
        """An episode: what it decides, and the actions that were meant."""
        episode, actions = Episode(self._task, self._fill), list[Floats]()
        act = self._actor(widen)
        while not episode.done:
            actions.append(act(episode))
            episode.step([float(number) for number in actions[-1]])
        return episode.choices, actions

    def _actor(self, widen: float) -> Callable[[Episode], Floats]:
        """How the next episode acts."""
        seen, size = self._seen, len(self._task.decide)
        noise = widen * self._first_noise * self._decay ** max(0, self._asked - self._warm_up)
        if not self._exact and seen.asked == 1 and widen == 1:
            whole = uniform_choices(self._task)
            return lambda episode: np.asarray(episode.actions(whole), np.float32)
        if self._asked < self._warm_up:
            return lambda episode: self._rng.uniform(size=size).astype(np.float32)
        if not self._exact and seen.best is not None and self._asked % 2 == 1:
            return lambda episode: self._moved(seen, episode.index, noise, widen)
        return lambda episode: truncated(self._rng, self._ddpg.act(episode.observation()), noise)

    def _moved(self, seen: _Seen, index: int, noise: float, widen: float) -> Floats:
        """The best plan's action at this site, sometimes with noise."""
        assert seen.best is not None
        action = seen.best[1][index]
        moves = self._rng.uniform() < widen * MOVES / len(self._task.sites)
        return truncated(self._rng, action, max(noise, 2 * LAST_NOISE)) if moves else action
