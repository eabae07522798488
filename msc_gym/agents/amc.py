"""AMC (He et al. 2018): DDPG over keep ratios, one step per group or layer, the final reward for every step.

Re-implemented after `mit-han-lab/amc`, which no longer runs; `ddpg.Settings` are its. What differs, because a search
here has a hundred trials where AMC had eight hundred:

1. The first trial is the uniform plan, so that the result is never below it, and the second is the same filled up to
   the budget. The rest of the warm-up, a quarter of the trials, is random, as in AMC.
2. Noise is a truncated normal that starts at AMC's 0.5 and decays each trial after warm-up, but by what makes it reach
   `LAST_NOISE` at the last trial: where channels come in eights, less would never change a count.
3. A plan that was tried is not tried again: noise is drawn anew, wider each time.
4. Every other trial after warm-up is an excursion: noise is added to the actions of the best plan so far instead of to
   the actor's, for a few sites.
5. Several gradient steps per transition.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from msc_gym.agents.ddpg import DDPG, Floats
from msc_gym.agents.uniform import uniform_choices
from msc_gym.decisions import Choices
from msc_gym.envs import FEATURES, Episode
from msc_gym.task import CompressionTask

WARM_UP = 0.25
FIRST_NOISE, LAST_NOISE = 0.5, 0.1
UPDATES_PER_STEP = 4
MEMORY_EPISODES = 100
MOVES = 3  # sites that an excursion changes, on average
ATTEMPTS = 20  # to find a plan that was not tried

Path = list[tuple[Floats, Floats]]  # of an episode: observation and action of each step


class AMC:
    """A learning agent. `trials` scales warm-up and noise, `fill` is whether episodes use the whole budget."""

    def __init__(self, task: CompressionTask, trials: int = 100, seed: int = 0, fill: bool = True) -> None:
        self._task, self._fill = task, fill
        self._warm_up = max(2, round(WARM_UP * trials))
        self._decay = (LAST_NOISE / FIRST_NOISE) ** (1 / max(1, trials - self._warm_up))
        self._ddpg = DDPG(len(FEATURES), len(task.decide), MEMORY_EPISODES * len(task.sites), seed)
        self._rng = np.random.default_rng(seed)
        self._trial = 0
        self._tried: set[tuple[int, ...]] = set()
        self._best: tuple[float, list[Floats]] | None = None  # reward and actions

    def ask(self) -> dict[str, int] | None:
        """The plan of the next trial."""
        if self._trial == 0:
            return uniform_choices(self._task)
        for attempt in range(ATTEMPTS):
            choices = self._propose(1.5**attempt)
            if tuple(choices.values()) not in self._tried:
                break
        return choices

    def tell(self, choices: Choices, reward: float, values: Sequence[float] = ()) -> None:
        """Learn from a finished trial."""
        self._tried.add(tuple(choices[d.name] for d in self._task.decisions))
        steps = self._replay(choices)
        if self._best is None or reward > self._best[0]:
            self._best = reward, [action for _, action in steps]
        for index, (observation, action) in enumerate(steps):
            last = index == len(steps) - 1
            after = observation if last else steps[index + 1][0]
            self._ddpg.remember(observation, action, reward, after, last)
        self._trial += 1
        if self._trial >= self._warm_up:
            self._ddpg.learn(UPDATES_PER_STEP * len(steps))

    def _propose(self, widen: float) -> dict[str, int]:
        episode = Episode(self._task, self._fill)
        if self._trial == 1 and widen == 1:
            whole = uniform_choices(self._task)
            while not episode.done:
                episode.step(episode.actions(whole))
            return episode.choices
        noise = widen * FIRST_NOISE * self._decay ** max(0, self._trial - self._warm_up)
        excursion = self._best is not None and self._trial % 2 == 1
        while not episode.done:
            if self._trial < self._warm_up:
                action: Floats = self._rng.uniform(size=len(self._task.decide)).astype(np.float32)
            elif excursion:
                action = self._moved(episode.index, noise, widen)
            else:
                action = self._noisy(self._ddpg.act(episode.observation()), noise)
            episode.step([float(number) for number in action])
        return episode.choices

    def _moved(self, index: int, noise: float, widen: float) -> Floats:
        """The best plan's action at this site, sometimes with noise."""
        assert self._best is not None
        action = self._best[1][index]
        moves = self._rng.uniform() < widen * MOVES / len(self._task.sites)
        return self._noisy(action, max(noise, 2 * LAST_NOISE)) if moves else action

    def _noisy(self, action: Floats, sigma: float) -> Floats:
        """Draws from the normal around each number, truncated to [0, 1]."""
        return np.asarray([self._truncated(float(number), sigma) for number in action], np.float32)

    def _truncated(self, mean: float, sigma: float) -> float:
        for _ in range(100):
            value = float(self._rng.normal(mean, sigma))
            if 0 <= value <= 1:
                return value
        return mean

    def _replay(self, choices: Choices) -> Path:
        """What an episode with those choices sees; the budget allows them, so only the lower wall must be off."""
        episode, steps = Episode(self._task, fill=False), []
        while not episode.done:
            action = episode.actions(choices)
            steps.append((episode.observation(), np.asarray(action, np.float32)))
            episode.step(action)
        return steps
