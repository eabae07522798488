"""The wrappers keep what the suite asks of an environment, and do what they are for."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import yaml
from gymnasium.error import InvalidAction, ResetNeeded
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from experiments.models import mobilenet, resnet20
from msc_core import MscError
from msc_gym import CompressionTask, Evaluator
from msc_gym.envs import CompressEnv, CycleTasks, Discretize, OneShot, PruneEnv, QuantizeEnv
from tests.conformance.env_suite import EnvSuite, Make, MaskedSuite, Toy, extremes, failing, rollout, same
from tests.env_tiny import BITS, Measured


class Around(Make):
    """A factory of an id in a wrapper."""

    def __init__(self, wrapper: Any, name: str, kwargs: dict[str, Any], **arguments: Any) -> None:
        super().__init__(name, kwargs)
        self.wrapper, self.arguments = wrapper, arguments

    def __call__(self, **changes: Any) -> gymnasium.Env[Any, Any]:
        return self.wrapper(super().__call__(**changes), **self.arguments)


class WrapperSuite(Measured, EnvSuite):
    """On `MSC/Compress-v0`, which has both kinds of decisions."""

    wrapper: Any
    vector_steps = 8

    def checked(self, env):
        return env

    @pytest.fixture
    def task(self, tiny_task):
        return tiny_task.changed(decide=("prune", "quantize"), bits=BITS, budget={"bops": 0.1})

    @pytest.fixture
    def make(self, task):
        return Around(self.wrapper, "msc_gym:MSC/Compress-v0", {"task": task})

    @pytest.fixture
    def described(self, tiny_job, make):
        job = yaml.safe_load(tiny_job.read_text()) | {"decide": ["prune", "quantize"], "bits": list(BITS)}
        path = tiny_job.parent / "wrapped.yaml"
        path.write_text(yaml.safe_dump(job | {"budget": {"bops": 0.1}}))
        return make(task=str(path))

    @pytest.fixture
    def identity(self, make, task):
        env = make(task=task.changed(budget={}))
        return env, [extremes(env.action_space)[-1]] * len(task.sites)


class TestOneShot(WrapperSuite):
    wrapper, vector_steps = OneShot, 3

    def test_11_any_action_steps_and_info_says_what_was_applied(self, env, actions):
        task = env.unwrapped.task
        for action in (*extremes(env.action_space), *actions[:20]):
            steps = rollout(env, [action] * 2)
            assert len(steps) == 2 and steps[-1][2] and task.within_budget(env.unwrapped.choices)
            assert steps[-1][4]["site"] == len(task.sites) - 1


class TestDiscretize(WrapperSuite, MaskedSuite):
    wrapper = Discretize


class TestCycleTasks(WrapperSuite):
    @pytest.fixture
    def make(self, task):
        free = task.changed(budget={})
        return Around(CycleTasks, "msc_gym:MSC/Compress-v0", {"task": task}, tasks=[free], evaluators=None)

    @pytest.fixture
    def described(self, tiny_job, make):
        job = yaml.safe_load(tiny_job.read_text()) | {"bits": list(BITS), "budget": {"bops": 0.2}}
        path = tiny_job.parent / "turn.yaml"
        path.write_text(yaml.safe_dump(job))
        return CycleTasks(gymnasium.make("msc_gym:MSC/Compress-v0", task=str(path)), tasks=[str(path)])

    @pytest.fixture
    def identity(self, make, task):
        env = CycleTasks(gymnasium.make("msc_gym:MSC/Compress-v0", task=task.changed(budget={})), [task])
        return env, [env.action_space.high] * len(task.sites)

    @pytest.fixture
    def faulty(self, make, task):
        make.arguments["evaluators"] = [Evaluator(task, worker=failing)]
        return make(evaluator=Evaluator(task, worker=failing))

    def test_06_an_episode_is_a_function_of_its_actions(self, env, make, actions):
        first, second = rollout(env, actions), rollout(env, actions)
        assert not same(first, second)  # another budget
        assert same(first, rollout(env, actions)) and same(second, rollout(env, actions))
        env.reset(seed=3)
        assert same(second, rollout(env, actions))  # after the first of all, the second

    def test_20_a_repeated_plan_is_not_measured_again(self, env, actions):
        for _ in env.unwrapped.tasks, env.unwrapped.tasks:
            rollout(env, actions)
        before = [(e.unwrapped.evaluator, e.unwrapped.evaluator.misses) for e in env._envs]
        for _ in before:
            rollout(env, actions)
        assert all(evaluator.misses == misses for evaluator, misses in before)


@pytest.fixture(scope="module")
def both(tiny_task):
    task = tiny_task.changed(decide=("prune", "quantize"), bits=BITS, budget={})
    return {cls: cls(t, Evaluator(t, worker=Toy(t))) for cls in (PruneEnv, QuantizeEnv, CompressEnv)
            for t in [task.deciding(*cls.decide)]}  # fmt: skip


@pytest.mark.parametrize(
    ("cls", "space", "shot", "indices"),
    [
        (PruneEnv, Discrete(5), Box(-1, 1, (4,), np.float32), [5] * 4),
        (QuantizeEnv, Discrete(3), MultiDiscrete([3] * 5), [3] * 5),
        (CompressEnv, MultiDiscrete([5, 3]), Box(-1, 1, (10,), np.float32), [5, 3] * 5),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_spaces_follow_the_options(both, cls, space, shot, indices):
    env = both[cls]  # groups have 2, 4, 4 and 5 counts
    assert Discretize(env).action_space == space and OneShot(env).action_space == shot
    assert OneShot(Discretize(env)).action_space == MultiDiscrete(indices)
    assert Discretize(env).observation_space == OneShot(env).observation_space == env.observation_space


@pytest.mark.parametrize("cls", [PruneEnv, QuantizeEnv, CompressEnv])
def test_all_forms_play_the_same_episode(both, cls):
    env = both[cls]
    env.action_space.seed(3)
    actions = [env.action_space.sample() for _ in env.task.sites]
    steps = rollout(env, actions)
    choices = env.choices
    shot = rollout(OneShot(env), [np.asarray(actions).reshape(-1)])
    assert shot[1][1:] == steps[-1][1:] and env.choices == choices
    indices = []
    for site in env.task.sites:
        taken = {d.part: d.options.index(choices[d.name]) for d in site.decisions}
        row = [taken.get(part, 0) for part in env.task.decide]
        indices.append(np.array(row) if len(row) > 1 else row[0])
    picked = rollout(Discretize(env), indices)
    assert picked[-1][1] == steps[-1][1] and env.choices == choices
    both_forms = rollout(OneShot(Discretize(env)), [np.asarray(indices).reshape(-1)])
    assert both_forms[1][1:] == picked[-1][1:]


def test_masks_are_the_walls(tiny_task):
    task = tiny_task.changed(budget={"macs": 0.5})
    env = Discretize(PruneEnv(task, Evaluator(task, worker=failing)))
    with pytest.raises(ResetNeeded):
        env.action_masks()
    env.reset()
    for site in task.sites:
        (decision,) = site.decisions
        feasible = env.unwrapped.episode.feasible(decision)
        mask = env.action_masks()
        assert [o for o, allowed in zip(decision.options, mask, strict=False) if allowed] == list(feasible)
        assert not mask[len(decision.options) :].any()
        index = int(np.flatnonzero(mask)[-1])
        env.step(index)
        assert env.unwrapped.choices[decision.name] == decision.options[index]  # nothing was clipped
    with pytest.raises(ResetNeeded):
        env.action_masks()


def test_other_networks_take_turns(tiny_data):
    """An agent sees one space of observations, whatever the network."""
    tasks = [CompressionTask(net(), tiny_data, calibration=10) for net in (resnet20, mobilenet)]
    evaluators = [Evaluator(task, worker=failing) for task in tasks]
    env = CycleTasks(PruneEnv(tasks[0], evaluators[0]), tasks[1:], evaluators[1:])
    assert env.tasks == tasks
    lengths = []
    for _ in range(3):
        steps = rollout(env, [np.zeros(1, np.float32)] * 100)
        assert all(env.observation_space.contains(step[0]) for step in steps)
        assert env.unwrapped.task is tasks[len(lengths) % 2]
        lengths.append(len(steps) - 1)
    assert lengths == [len(tasks[0].sites), len(tasks[1].sites), len(tasks[0].sites)]
    longest = max(len(d.options) for task in tasks for d in task.decisions)
    assert Discretize(env).action_space == Discrete(longest)
    assert OneShot(env).action_space.shape == (max(lengths),)
    env.close()


def test_what_wrappers_refuse(both, tiny_task):
    env = OneShot(both[PruneEnv])
    env.reset()
    with pytest.raises(InvalidAction, match=r"expected \(4,\) numbers"):
        env.step(np.zeros(3))
    env = Discretize(both[PruneEnv])
    env.reset()
    with pytest.raises(InvalidAction, match=r"expected Discrete\(5\); found 5"):
        env.step(5)
    other = tiny_task.changed(decide=("quantize",), bits=(8, 32), budget={})
    with pytest.raises(MscError, match=r"one action space; found Discrete\(3\), Discrete\(2\)"):
        CycleTasks(both[QuantizeEnv], [other])
