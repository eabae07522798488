"""Optuna's samplers: a parameter in [0, 1] for each decision, all together fitted to the budget.

The sampler works on a study in memory, which a resumed search fills anew, so that nothing but the trials decides what
is proposed. An Optuna storage, if one is wanted, gets a copy of every trial, to be looked at with optuna-dashboard.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from msc_core.errors import MscError
from msc_core.tools.threads import one_thread
from msc_gym.agents.fitting import fitted, numbers_of
from msc_gym.agents.uniform import uniform_choices
from msc_gym.decisions import Choices
from msc_gym.task import CompressionTask

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.samplers import BaseSampler

ATTEMPTS = 3  # to find a plan that was not tried: a sampler that is told the same too often sees nothing else
NEAR = 0.1  # of the trials are near the uniform plan, at first
CHANGED = 0.3  # of their numbers are not the uniform plan's
SPREAD = 0.35  # the standard deviation of these from it
POPULATION = 20  # of NSGA-II: Optuna's 50 would leave three generations of 150 trials


class OptunaAgent:
    """Any sampler of Optuna's, one of `SAMPLERS` by name. The first plan is the uniform one.

    Then comes a share `near` of the trials with plans near it, but for CMA-ES, whose generations are its own. With
    several `objectives` all `values` are maximized, and the budget is an upper limit that need not be used up; those
    in `SINGLE` are told the reward only. `settings` are those of the named sampler.
    With a `storage`, the URL of a database, finished trials are copied to its study `study`: parameters are what the
    sampler proposed, the user attribute "choices" has what that came to. Trials that are there already must be the
    same. Raises `MscError` if they are not, or if the storage cannot be used.
    """

    def __init__(
        self,
        task: CompressionTask,
        trials: int = 100,
        seed: int = 0,
        fill: bool = True,
        sampler: BaseSampler | str = "tpe",
        objectives: int = 1,
        near: float = NEAR,
        storage: str | None = None,
        study: str = "",
        **settings: int,
    ) -> None:
        from optuna import create_study
        from optuna.distributions import FloatDistribution

        if isinstance(sampler, str):
            objectives, near = (1, 0.0) if sampler in SINGLE else (objectives, near)
            sampler = SAMPLERS[sampler](seed, **settings)
        count = round(near * trials)
        self._task, self._fill, self._objectives = task, fill and objectives == 1, objectives
        self._space = {d.name: FloatDistribution(0, 1) for d in task.decisions}
        self._pending: deque[tuple[dict[str, int], Trial]] = deque()
        self._known: dict[tuple[int, ...], list[float]] = {}
        self._copy = (
            None if storage is None else _Copy(storage, study or _study_name(task, sampler, count, seed), objectives)
        )
        with _quiet():
            self._study = create_study(sampler=sampler, directions=["maximize"] * objectives)
        self._first = uniform_choices(task)
        centre = numbers_of(task, self._first)
        rng, numbers = np.random.default_rng(seed), np.array(list(centre.values()))
        self._study.enqueue_trial(centre)
        for _ in range(count):
            noise = rng.normal(0, SPREAD, len(numbers)) * (rng.uniform(size=len(numbers)) < CHANGED)
            changed = (numbers + noise).clip(0, 1).tolist()
            self._study.enqueue_trial(dict(zip(centre, changed, strict=True)))

    def ask(self) -> dict[str, int] | None:
        """What the sampler proposes; if that came to a plan that was tried, it is told so and asked again."""
        with one_thread():
            for attempt in range(ATTEMPTS):
                trial = self._study.ask(dict(self._space))
                choices = dict(self._first) if trial.number == 0 else fitted(self._task, trial.params, self._fill)
                known = self._known.get(tuple(choices.values()))
                if known is None or attempt == ATTEMPTS - 1:
                    break
                self._study.tell(trial, known)
        self._pending.append((choices, trial))
        return choices

    def tell(self, choices: Choices, reward: float, values: Sequence[float] = ()) -> None:
        """Of the oldest plan that was asked and not told. Raises `MscError` for another."""
        asked, trial = self._pending.popleft() if self._pending else ({}, None)
        if trial is None or asked != choices:
            raise MscError(f"told of choices that are not the next that were asked: {dict(choices)}, not {asked}")
        told = list(values) if self._objectives > 1 else [reward]
        self._known[tuple(asked.values())] = told
        with one_thread():
            self._study.tell(trial, told)
        if self._copy is not None:
            self._copy.add(trial, asked, told)


class _Copy:
    """The study in a storage, to which trials are added in order, unless they are there."""

    def __init__(self, storage: str, name: str, objectives: int) -> None:
        from optuna import create_study
        from optuna.exceptions import OptunaError
        from sqlalchemy.exc import SQLAlchemyError

        self.name = name
        try:
            with _quiet():
                self._study: Study = create_study(
                    storage=storage, study_name=name, load_if_exists=True, directions=["maximize"] * objectives
                )
        except (OptunaError, SQLAlchemyError, ImportError, ValueError) as error:
            reason = str(error).splitlines()[0].replace(storage, "URL")
            raise MscError(f"the Optuna storage cannot be used: {reason}") from None
        if len(self._study.directions) != objectives:
            self._refuse(f"has {len(self._study.directions)} objectives, this search {objectives}")
        self._there = self._study.get_trials(deepcopy=False)
        self._count = 0

    def add(self, trial: Trial, choices: dict[str, int], values: list[float]) -> None:
        from optuna.trial import create_trial

        index, self._count = self._count, self._count + 1
        if index >= len(self._there):
            copied = create_trial(
                params=trial.params, distributions=trial.distributions, values=values, user_attrs={"choices": choices}
            )
            self._study.add_trial(copied)
        elif (self._there[index].user_attrs.get("choices"), self._there[index].values) != (choices, values):
            self._refuse(f"has another trial {index}")

    def _refuse(self, what: str) -> None:
        raise MscError(f"Optuna study {self.name!r} {what}: it is of another search; give another name (study=...)")


def _tpe(seed: int) -> BaseSampler:
    """Tree-structured Parzen estimators, a density for each decision on its own; a joint one is caught in one place."""
    from optuna.samplers import TPESampler

    return TPESampler(seed=seed, multivariate=False, constant_liar=True)


def _gp(seed: int) -> BaseSampler:
    """A Gaussian process with expected improvement."""
    from optuna.samplers import GPSampler

    return GPSampler(seed=seed, warn_independent_sampling=False)


def _cmaes(seed: int) -> BaseSampler:
    """Covariance matrix adaptation."""
    from optuna.samplers import CmaEsSampler

    return CmaEsSampler(seed=seed, warn_independent_sampling=False)


def _nsga2(seed: int, population: int = POPULATION) -> BaseSampler:
    """A genetic algorithm that keeps a front of several objectives."""
    from optuna.samplers import NSGAIISampler

    return NSGAIISampler(seed=seed, population_size=population)


SAMPLERS: Mapping[str, Callable[..., BaseSampler]] = {"tpe": _tpe, "gp": _gp, "cmaes": _cmaes, "nsga2": _nsga2}
SINGLE = ("cmaes",)  # for one objective


def _study_name(task: CompressionTask, sampler: BaseSampler, near: int, seed: int) -> str:
    kind = type(sampler).__name__.removesuffix("Sampler")
    return f"{task.graph.name} {kind} {seed} {near} {task.search_fingerprint}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna announces every study."""
    from optuna import logging

    level = logging.get_verbosity()
    logging.set_verbosity(logging.WARNING)
    try:
        yield
    finally:
        logging.set_verbosity(level)
