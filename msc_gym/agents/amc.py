"""AMC (He et al. 2018): DDPG over keep ratios, one decision per group, the final reward for every step.

Re-implemented after `mit-han-lab/amc`, which no longer runs; `ddpg.Settings` are its. What differs, because a search
here has a hundred trials where AMC had eight hundred:

1. The first trial is the uniform plan, so that the result is never below it, and the second is the same filled up to
   the budget. The rest of the warm-up, a quarter of the trials, is random, as in AMC.
2. Noise is a truncated normal that starts at AMC's 0.5 and decays each trial after warm-up, but by what makes it reach
   `LAST_NOISE` at the last trial: where channels come in eights, less would never change a count.
3. A plan that was tried is not tried again: noise is drawn anew, wider each time.
4. Every other trial after warm-up is an excursion: noise is added to the ratios of the best plan so far instead of to
   the actor's, for a few groups.
5. Several gradient steps per transition.
"""

from __future__ import annotations

import numpy as np

from msc_gym.agents.ddpg import DDPG, Floats
from msc_gym.agents.uniform import uniform_counts
from msc_gym.envs import FEATURES, Episode
from msc_gym.task import CompressionTask, Counts

WARM_UP = 0.25
FIRST_NOISE, LAST_NOISE = 0.5, 0.1
UPDATES_PER_STEP = 4
MEMORY_EPISODES = 100
MOVES = 3  # groups that an excursion changes, on average
ATTEMPTS = 20  # to find a plan that was not tried

Path = list[tuple[Floats, float]]  # of an episode: observation and applied ratio of each step


class AMC:
    """A learning agent. `trials` scales warm-up and noise, `fill` is whether episodes use the whole budget."""

    def __init__(self, task: CompressionTask, trials: int = 100, seed: int = 0, fill: bool = True) -> None:
        self._task, self._fill = task, fill
        self._warm_up = max(2, round(WARM_UP * trials))
        self._decay = (LAST_NOISE / FIRST_NOISE) ** (1 / max(1, trials - self._warm_up))
        self._ddpg = DDPG(len(FEATURES), MEMORY_EPISODES * len(task.groups), seed)
        self._rng = np.random.default_rng(seed)
        self._trial = 0
        self._tried: set[tuple[int, ...]] = set()
        self._best: tuple[float, dict[str, float]] | None = None  # reward and ratios

    def ask(self) -> dict[str, int] | None:
        """The plan of the next trial."""
        if self._trial == 0:
            return uniform_counts(self._task)
        for attempt in range(ATTEMPTS):
            counts = self._propose(1.5**attempt)
            if tuple(counts.values()) not in self._tried:
                break
        return counts

    def tell(self, counts: Counts, reward: float) -> None:
        """Learn from a finished trial."""
        ratios = {g.name: counts[g.name] / g.size for g in self._task.groups}
        self._tried.add(tuple(counts[g.name] for g in self._task.groups))
        if self._best is None or reward > self._best[0]:
            self._best = reward, ratios
        steps = self._replay(counts)
        for index, (observation, ratio) in enumerate(steps):
            last = index == len(steps) - 1
            after = observation if last else steps[index + 1][0]
            self._ddpg.remember(observation, ratio, reward, after, last)
        self._trial += 1
        if self._trial >= self._warm_up:
            self._ddpg.learn(UPDATES_PER_STEP * len(steps))

    def _propose(self, widen: float) -> dict[str, int]:
        episode = Episode(self._task, self._fill)
        if self._trial == 1 and widen == 1:
            while not episode.done:
                episode.step(uniform_counts(self._task)[episode.group.name] / episode.group.size)
            return episode.counts
        noise = widen * FIRST_NOISE * self._decay ** max(0, self._trial - self._warm_up)
        excursion = self._best is not None and self._trial % 2 == 1
        while not episode.done:
            if self._trial < self._warm_up:
                ratio = float(self._rng.uniform())
            elif excursion:
                ratio = self._moved(episode, noise, widen)
            else:
                ratio = self._noisy(self._ddpg.act(episode.observation()), noise)
            episode.step(ratio)
        return episode.counts

    def _moved(self, episode: Episode, noise: float, widen: float) -> float:
        """The best plan's ratio for this group, sometimes with noise."""
        assert self._best is not None
        ratio = self._best[1][episode.group.name]
        moves = self._rng.uniform() < widen * MOVES / len(self._task.groups)
        return self._noisy(ratio, max(noise, 2 * LAST_NOISE)) if moves else ratio

    def _noisy(self, ratio: float, sigma: float) -> float:
        """A draw from the normal around `ratio` truncated to [0, 1]."""
        for _ in range(100):
            value = float(self._rng.normal(ratio, sigma))
            if 0 <= value <= 1:
                return value
        return ratio

    def _replay(self, counts: Counts) -> Path:
        """What an episode with those counts sees; the budget allows them, so only the lower wall must be off."""
        episode, steps = Episode(self._task, fill=False), []
        while not episode.done:
            ratio = counts[episode.group.name] / episode.group.size
            steps.append((episode.observation(), ratio))
            episode.step(ratio)
        return steps
