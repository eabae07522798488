"""Vector environments are what a `SyncVectorEnv` of single ones is, and measure the endings of a step as one batch."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from msc_core import MscError
from msc_gym import Evaluator
from msc_gym.envs import CompressEnv, CompressVectorEnv, PruneEnv, PruneVectorEnv, QuantizeEnv, QuantizeVectorEnv
from tests.conformance.env_suite import MODES, Toy, equal, failing
from tests.env_tiny import BITS

KINDS = {PruneEnv: PruneVectorEnv, QuantizeEnv: QuantizeVectorEnv, CompressEnv: CompressVectorEnv}


class Recorded(Evaluator):
    """An evaluator that keeps how many plans it was asked for at once."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.batches: list[int] = []

    def evaluate(self, plans, *args, **kwargs):
        self.batches.append(len(plans))
        return super().evaluate(plans, *args, **kwargs)


@pytest.fixture(params=KINDS, ids=lambda cls: cls.__name__)
def kind(request):
    return request.param


@pytest.fixture
def task(kind, tiny_task):
    return tiny_task.changed(
        decide=kind.decide, bits=BITS, budget={"bops": 0.1} if kind is not PruneEnv else {"macs": 0.5}
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reward", ["accuracy", "accuracy_change"])
def test_it_is_a_sync_vector_env(kind, task, mode, reward):
    single = SyncVectorEnv([lambda: kind(task, Evaluator(task, worker=Toy(task)), reward)] * 3, autoreset_mode=mode)
    vector = KINDS[kind](3, task, Evaluator(task, worker=Toy(task)), reward, autoreset_mode=mode)
    assert vector.metadata == single.metadata and vector.metadata["autoreset_mode"] == mode
    assert (vector.single_action_space, vector.observation_space) == (
        single.single_action_space,
        single.observation_space,
    )
    assert equal(vector.reset(seed=1), single.reset(seed=1))
    vector.action_space.seed(1)
    for step in range(4 * len(task.sites)):
        if step == 7:  # from here on the episodes end at different steps
            options = {"reset_mask": np.array([False, True, False])}
            assert equal(vector.reset(options=dict(options)), single.reset(options=dict(options)))
        actions = vector.action_space.sample()
        assert equal(vector.step(actions), single.step(actions))
    vector.close()
    single.close()


def test_the_endings_of_a_step_are_one_batch(kind, task):
    evaluator = Recorded(task, worker=Toy(task))
    env = KINDS[kind](4, task, evaluator, autoreset_mode=AutoresetMode.SAME_STEP)
    env.reset()
    env.action_space.seed(0)
    for _ in task.sites:
        assert evaluator.batches == []
        env.step(env.action_space.sample())
    assert evaluator.batches == [4, 1, 1, 1, 1]  # the batch, then each environment finds its own
    assert evaluator.hits >= 4
    env.close()


def test_failures_are_measured_once_too(kind, task):
    evaluator = Evaluator(task, worker=failing)
    env = RecordEpisodeStatistics(KINDS[kind](2, task, evaluator))
    env.reset()
    for _ in task.sites:
        _, rewards, terminations, _, info = env.step(env.action_space.sample())
    assert terminations.all() and (rewards == -1).all() and (info["episode"]["r"] == -1).all()
    assert list(info["error"]) == ["injected fault"] * 2 and evaluator.misses <= 2
    env.close()


def test_make_vec_makes_it(kind, task):
    name = kind.__name__.removesuffix("Env")
    env = gymnasium.make_vec(f"msc_gym:MSC/{name}-v0", num_envs=2, task=task)
    assert isinstance(env, KINDS[kind]) and isinstance(env, VectorEnv) and env.num_envs == 2
    assert env.spec.id == f"MSC/{name}-v0"
    sync = gymnasium.make_vec(f"msc_gym:MSC/{name}-v0", num_envs=2, vectorization_mode="sync", task=task)
    assert sync.observation_space == env.observation_space
    env.close()
    env.close()
    sync.close()


def test_what_is_refused(tiny_task):
    with pytest.raises(MscError, match="num_envs must be an integer of at least 1; found 0"):
        PruneVectorEnv(0, tiny_task)
