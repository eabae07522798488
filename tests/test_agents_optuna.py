"""Optuna's samplers as agents: several objectives, plans that were tried, and a storage that is a copy."""

from __future__ import annotations

import logging

import numpy as np
import optuna
import pytest

from experiments.models import resnet20
from msc_core import MscError
from msc_gym import CompressionTask
from msc_gym.agents import AGENTS, OptunaAgent
from msc_gym.search import search
from tests.test_agents import play, worth

SAMPLERS = ("tpe", "gp", "cmaes", "nsga2")
SEVERAL = ("tpe", "gp", "nsga2")


@pytest.fixture(scope="module")
def task(tiny_data):
    return CompressionTask(resnet20(), tiny_data, calibration=10, budget={"macs": 0.3})


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'optuna.db'}"


def loaded(url: str) -> optuna.Study:
    (summary,) = optuna.get_all_study_summaries(url)
    return optuna.load_study(study_name=summary.study_name, storage=url)


def two(task, choices):
    return worth(task, choices), 1 - task.spent(choices)["macs"] / task.cost({})["macs"]


def play_two(task, agent, trials):
    told = []
    for _ in range(trials):
        choices = agent.ask()
        told.append((choices, two(task, choices)))
        agent.tell(choices, sum(told[-1][1]), told[-1][1])
    return told


@pytest.mark.parametrize("name", SAMPLERS)
def test_it_is_quiet(task, name, recwarn, capfd, caplog):
    level = optuna.logging.get_verbosity()
    with caplog.at_level(logging.INFO):
        play(task, AGENTS[name](task, trials=13), 13)
    assert not recwarn.list and not caplog.records and capfd.readouterr().err == ""
    assert optuna.logging.get_verbosity() == level


@pytest.mark.parametrize("name", SEVERAL)
def test_several_objectives_get_a_front(task, name):
    """The budget need not be used up then; plans spread over what they cost."""
    told = play_two(task, AGENTS[name](task, trials=13, seed=2, objectives=2), 13)
    assert told == play_two(task, AGENTS[name](task, trials=13, seed=2, objectives=2), 13)
    saved = [values[1] for _, values in told]
    assert all(task.within_budget(choices) for choices, _ in told) and np.ptp(saved) > 0.05


def test_values_are_listened_to_where_there_are_several_objectives(task):
    def proposals(sign):
        agent, asked = AGENTS["nsga2"](task, trials=40, objectives=2, population=6), []
        for _ in range(40):
            asked.append(agent.ask())
            agent.tell(asked[-1], 0.0, (sign * two(task, asked[-1])[1], 0.0))
        return [two(task, choices)[1] for choices in asked]

    assert np.mean(proposals(1)[-10:]) > np.mean(proposals(-1)[-10:])


def test_cma_es_is_for_one_objective(task):
    """Of several, it is told the reward: the plans are those of a search for that alone."""
    one, several = (AGENTS["cmaes"](task, trials=30, seed=1, objectives=n) for n in (1, 2))
    for _ in range(30):
        choices = one.ask()
        assert several.ask() == choices
        reward = -two(task, choices)[1]
        one.tell(choices, reward)
        several.tell(choices, reward, two(task, choices))


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_plan_that_was_tried_is_mostly_not_tried_again(task, name):
    told = play(task, AGENTS[name](task, trials=20), 20)
    assert len({tuple(choices.values()) for choices, _ in told}) >= 18


def test_what_was_not_asked_cannot_be_told(task):
    agent = AGENTS["tpe"](task)
    with pytest.raises(MscError, match="not the next that were asked"):
        agent.tell(task.floor_choices, 0.0)
    agent.ask()
    with pytest.raises(MscError, match="not the next that were asked"):
        agent.tell(task.floor_choices, 0.0)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_storage_changes_nothing_and_has_every_trial(task, name, url):
    told = play(task, AGENTS[name](task, trials=12, storage=url), 12)
    assert told == play(task, AGENTS[name](task, trials=12), 12)
    trials = loaded(url).get_trials()
    assert [(t.user_attrs["choices"], t.value) for t in trials] == told
    assert all(t.params.keys() == task.full_choices.keys() for t in trials)


def test_trials_that_are_in_the_storage_are_not_added_again(task, url):
    first = play(task, AGENTS["tpe"](task, trials=12, storage=url), 5)
    assert play(task, AGENTS["tpe"](task, trials=12, storage=url), 12)[:5] == first
    assert len(loaded(url).get_trials()) == 12


def test_the_study_of_another_search_is_refused(task, url):
    play(task, AGENTS["tpe"](task, storage=url, study="mine"), 2)
    with pytest.raises(MscError, match=r"'mine' has another trial 1.*study="):
        play(task, AGENTS["tpe"](task, seed=1, storage=url, study="mine"), 2)
    with pytest.raises(MscError, match="has 1 objectives, this search 2"):
        AGENTS["tpe"](task, storage=url, study="mine", objectives=2)


def test_studies_of_other_samplers_seeds_and_tasks_have_other_names(task, url):
    for agent, of, seed in (
        ("tpe", task, 0),
        ("nsga2", task, 0),
        ("tpe", task, 1),
        ("tpe", task.changed(floor=0.5), 0),
    ):
        play(of, AGENTS[agent](of, seed=seed, storage=url), 1)
    assert [len(s.get_trials()) for s in map(_load(url), optuna.get_all_study_summaries(url))] == [1] * 4


def _load(url):
    return lambda summary: optuna.load_study(study_name=summary.study_name, storage=url)


@pytest.mark.parametrize("bad", ["nonsense", "postgres://user:secret@nowhere/x", "sqlite:////nowhere/at/all.db"])
def test_a_storage_that_cannot_be_used_says_so_without_its_password(task, bad):
    with pytest.raises(MscError, match="Optuna storage cannot be used") as error:
        AGENTS["tpe"](task, storage=bad)
    assert "secret" not in str(error.value)


def test_a_search_that_goes_on_adds_what_is_missing_to_the_storage(tiny_task, tmp_path, url):
    """Killed between the two, a trial is in our store and not yet in Optuna's."""

    class Killed(Exception):
        pass

    def kill(index, *_):
        if index == 2:
            raise Killed

    store, options = f"sqlite:///{tmp_path / 'runs.db'}", {"storage": url}
    with pytest.raises(Killed):
        search(tiny_task, "tpe", 5, store, options=options, progress=kill)
    study = loaded(url)
    optuna.delete_study(study_name=study.study_name, storage=url)  # as if nothing had come so far
    result = search(tiny_task, "tpe", 5, store, options=options)
    assert result.resumed == 3 and len(result.trials) == 5
    assert [t.user_attrs["choices"] for t in loaded(url).get_trials()] == [dict(t.choices) for t in result.trials]
    assert loaded(url).best_value == result.best.reward


def test_a_search_with_objectives_hands_them_on(tiny_task, url):
    result = search(
        tiny_task, "nsga2", 4, batch=2, objectives=("accuracy", "macs"), options={"storage": url, "study": "two"}
    )
    study = loaded(url)
    assert study.study_name == "two" and len(study.directions) == 2
    assert [t.values[0] for t in study.get_trials()] == [t.measurement.accuracy for t in result.trials]


def test_any_sampler_is_an_agent(task):
    sampler = optuna.samplers.RandomSampler(seed=1)
    told = play(task, OptunaAgent(task, seed=1, sampler=sampler, near=0), 5)
    assert len({tuple(choices.values()) for choices, _ in told}) == 5
