"""Whatever the actions are, an episode ends within its budget; and what it reckons on the way is the task's cost."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from experiments.models import mobilenet, resnet20
from msc_core import MscError
from msc_gym import CompressionTask
from msc_gym.config import BudgetKey, get_args
from msc_gym.decisions import divided
from msc_gym.envs import Episode
from msc_gym.envs.spending import Ledger

PARTS = {"Prune": ("prune",), "Quantize": ("quantize",), "Compress": ("prune", "quantize")}
KEYS = sorted({*get_args(BudgetKey)} - {"latency"})  # that is about clocks; see test_latency_table


@pytest.fixture(scope="module")
def large(tiny_data):
    """Untrained networks with many groups: enough for everything but accuracy."""
    return {net.__name__: CompressionTask(net(), tiny_data, calibration=10) for net in (resnet20, mobilenet)}


def drawn_task(large, data, parts) -> CompressionTask:
    """A network with any budget that it can meet."""
    keys = data.draw(st.sets(st.sampled_from(KEYS), max_size=3))
    budget = {key: data.draw(st.floats(0.02, 1.0)) for key in sorted(keys)}
    bits = data.draw(st.sampled_from([(8, 32), (4, 8), (2, 3, 5, 8, 32)]))
    task = large[data.draw(st.sampled_from(sorted(large)))]
    task.cost_model  # noqa: B018  shared from now on
    try:
        return task.changed(budget=budget, decide=parts, bits=bits, floor=data.draw(st.sampled_from([0.1, 0.2, 0.5])))
    except MscError as error:
        assert "cannot be met" in str(error)
        assume(False)
        raise


@pytest.mark.parametrize("name", PARTS)
@settings(deadline=None, max_examples=40)
@given(st.data())
def test_every_episode_ends_within_its_budget(large, name, data):
    task = drawn_task(large, data, PARTS[name])
    episode = Episode(task, fill=data.draw(st.booleans()))
    numbers = data.draw(st.lists(st.floats(0, 1), min_size=3, max_size=11))
    while not episode.done:
        for decision in episode.site.decisions:
            assert set(episode.feasible(decision)) <= set(decision.options)
        episode.step([numbers[(episode.index + i) % len(numbers)] for i in range(len(task.decide))])
    assert list(episode.choices) == [d.name for d in task.decisions]
    spent, whole = task.cost(episode.choices), task.cost({})
    assert all(spent[key] <= fraction * whole[key] + 1e-6 for key, fraction in task.budget.items())


@pytest.mark.parametrize("name", PARTS)
@settings(deadline=None, max_examples=25)
@given(st.data())
def test_the_running_cost_is_that_from_scratch(large, name, data):
    task = drawn_task(large, data, PARTS[name])
    start = data.draw(st.sampled_from([task.floor_choices, task.full_choices]))
    running, choices = (
        (Ledger.of(task).lean if start is task.floor_choices else Ledger.of(task).whole).copy(),
        dict(start),
    )
    for _ in range(8):
        decision = data.draw(st.sampled_from(task.decisions))
        option = data.draw(st.sampled_from(decision.options))
        what_if, limits = task.cost(choices | {decision.name: option}), task.limits
        assert running.meets(decision.name, option) == task.within_budget(choices | {decision.name: option})
        assert running.reaches(decision.name, option) == any(what_if[key] >= limits[key] for key in limits)
        if data.draw(st.booleans()):
            running.choose(decision.name, option)
            choices[decision.name] = option
    cost, layers = task.cost(choices), task.cost_model.layer_macs(divided(choices)[0])
    assert running.spent() == {key: cost[key] for key in ("macs", *task.limits)}
    assert running.macs == sum(layers.values()) / task.cost_model.full.macs
    index = data.draw(st.integers(0, len(task.sites)))
    groups = {g.name: g.nodes for g in task.groups}
    open_ = {n for site in task.sites[index:] for d in site.decisions for n in groups.get(d.name, (d.of,))}
    assert (
        running.rest(index) == sum(macs for node, macs in layers.items() if node in open_) / task.cost_model.full.macs
    )


def test_the_terms_of_a_network_are_few(large):
    """One for each layer, as each depends on other groups; batch norms share those of their group."""
    task = large["resnet20"].changed(budget={"bytes": 0.5})
    ledger = Ledger.of(task)
    assert len(task.cost_model.kernels) <= len(ledger.terms) < len(task.graph.weights) / 2
    assert Ledger.of(task) is ledger
