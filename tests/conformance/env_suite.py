"""What every environment of the gym must do. Inherit `EnvSuite`, provide its three fixtures, and the tests are yours.

The numbers are those of the list of must-haves that the suite grew from; the ones about whole searches and stores are
tested elsewhere.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
import torch
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Box
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics


class Make:
    """A factory that survives pickling: `gymnasium.make` in whatever process it is called."""

    def __init__(self, name: str, kwargs: Mapping[str, Any]) -> None:
        self.name, self.kwargs = name, dict(kwargs)

    def __call__(self, **changes: Any) -> gymnasium.Env[Any, Any]:
        return gymnasium.make(self.name, **{**self.kwargs, **changes})


def rollout(env: gymnasium.Env[Any, Any], actions: list[Any]) -> list[tuple[Any, ...]]:
    """(observation, reward, terminated, truncated, info) of each step of one episode, as many actions as it takes."""
    observation, info = env.reset()
    steps: list[tuple[Any, ...]] = [(observation, 0.0, False, False, info)]
    for action in actions:
        steps.append(env.step(action))
        if steps[-1][2] or steps[-1][3]:
            break
    return steps


def same(a: list[tuple[Any, ...]], b: list[tuple[Any, ...]]) -> bool:
    """Whether two rollouts are equal to the last bit."""
    return len(a) == len(b) and all(
        x[0].tobytes() == y[0].tobytes() and x[1:] == y[1:] for x, y in zip(a, b, strict=True)
    )


def equal(a: Any, b: Any) -> bool:
    """Whether two nests of arrays, as vector environments return them, are equal."""
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, tuple) or (isinstance(a, np.ndarray) and a.dtype == object):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return np.array_equal(a, b)


class EnvSuite:
    """Fixtures to provide: `make` (a `Make` with the id in its `module:ID` form and arguments that can be pickled),
    `identity` (actions of an episode that changes nothing) with `baseline_reward`, and `faulty` (an environment whose
    measurements all fail)."""

    @pytest.fixture
    def env(self, make):
        env = make()
        yield env
        env.close()

    @pytest.fixture
    def actions(self, env) -> list[Any]:
        env.action_space.seed(7)
        return [env.action_space.sample() for _ in range(100)]

    def test_03_gymnasium_checker(self, env):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check_env(env.unwrapped)

    def test_04_stable_baselines3_checker(self, env):
        from stable_baselines3.common.env_checker import check_env as check

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check(env.unwrapped, warn=True, skip_render_check=False)

    def test_06_an_episode_is_a_function_of_its_actions(self, env, make, actions):
        first = rollout(env, actions)
        assert same(first, rollout(env, actions))
        env.reset(seed=3)
        assert same(first, rollout(env, actions))  # also after an unseeded reset
        other = make()
        assert same(first, rollout(other, actions))
        other.close()

    def test_07_global_randomness_is_not_touched(self, env, actions):
        rollout(env, actions)  # what is computed once is computed here
        before = random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state()
        rollout(env, actions)
        after = random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state()
        assert before[:2] == after[:2] and torch.equal(before[2], after[2])

    def test_08_a_proxy_reward_comes_without_clock_values(self, env, actions):
        assert env.unwrapped.reward.deterministic
        for _, _, _, _, info in rollout(env, actions):
            assert not [key for key in info if "latency" in key or "second" in key or "time" in key]

    def test_09_rewards_are_declared_and_finite(self, env, actions):
        reward = env.unwrapped.reward
        assert isinstance(reward.deterministic, bool) and np.isfinite(reward.floor)
        for _, value, *_ in rollout(env, actions)[1:]:
            assert type(value) is float and np.isfinite(value) and value >= reward.floor

    def test_10_observations_are_bounded(self, env):
        space = env.observation_space
        assert isinstance(space, Box) and space.dtype == np.float32 and np.isfinite([space.low, space.high]).all()
        env.action_space.seed(0)
        observation, _ = env.reset()
        for _ in range(1000):
            assert observation.dtype == np.float32 and space.contains(observation)
            observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                observation, _ = env.reset()

    def test_11_any_action_steps_and_info_says_what_was_applied(self, env):
        low, high = env.action_space.low, env.action_space.high
        for value in (low, high, (low + high) / 2):
            assert all(0 < step[4]["applied"] <= 1 for step in rollout(env, [value] * 100)[1:])

    def test_13_the_last_step_terminates(self, env, actions):
        steps = rollout(env, actions)[1:]
        assert [step[2] for step in steps] == [False] * (len(steps) - 1) + [True]
        assert not any(step[3] for step in steps)

    def test_14_order_is_enforced(self, make, actions):
        env = make()
        for each in (env, env.unwrapped):
            with pytest.raises(ResetNeeded):
                each.step(actions[0])
        rollout(env, actions)
        with pytest.raises(ResetNeeded):
            env.unwrapped.step(actions[0])
        env.close()

    def test_15_info_has_one_schema(self, env, actions):
        schemas = {tuple((k, type(v)) for k, v in info.items()) for *_, info in rollout(env, actions)}
        assert len(schemas) == 1
        assert all(kind in (int, float, bool, str) for _, kind in schemas.pop())

    def test_16_episode_statistics_sum_the_rewards(self, env, actions):
        steps = rollout(RecordEpisodeStatistics(env), actions)
        assert steps[-1][4]["episode"]["r"] == pytest.approx(sum(step[1] for step in steps))
        assert steps[-1][4]["episode"]["l"] == len(steps) - 1

    @pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
    def test_17_vector_environments_are_equivalent(self, make, mode):
        """In spawned workers, where the id has to resolve anew (must-have 1)."""
        sync = SyncVectorEnv([make, make], autoreset_mode=mode)
        parallel = AsyncVectorEnv([make, make], autoreset_mode=mode, context="spawn")
        try:
            sync.action_space.seed(1)
            seen, wanted = parallel.reset(seed=5), sync.reset(seed=5)
            for _ in range(12):
                assert equal(seen, wanted)
                action = sync.action_space.sample()
                seen, wanted = parallel.step(action), sync.step(action)
            assert {"applied", "_applied"} <= wanted[-1].keys()
        finally:
            sync.close()
            parallel.close()

    def test_18_a_fault_ends_the_episode_and_is_told(self, faulty, actions):
        *_, (_, reward, terminated, truncated, info) = rollout(faulty, actions)
        assert terminated and not truncated and reward == faulty.unwrapped.reward.floor
        assert "injected" in info["error"]
        faulty.close()

    def test_20_a_repeated_plan_is_not_measured_again(self, env, actions):
        rollout(env, actions)
        misses = env.unwrapped.evaluator.misses
        rollout(env, actions)
        assert env.unwrapped.evaluator.misses == misses

    def test_27_the_identity_is_paid_the_baseline_reward(self, identity, baseline_reward):
        env, actions = identity
        steps = rollout(env, actions)
        assert steps[-1][1] == baseline_reward and steps[-1][4]["macs"] == 1.0
        env.close()

    def test_28_closing_is_clean(self, make, actions):
        before = set(psutil.Process().children(recursive=True))
        env = make()
        rollout(env, actions)
        env.close()
        env.close()
        assert not set(psutil.Process().children(recursive=True)) - before

    def test_29_every_mode_renders_its_type(self, make, actions):
        assert make().unwrapped.render() is None
        for mode in make().metadata["render_modes"]:
            env = make(render_mode=mode)
            env.reset()
            pictures = [env.render()] + [(env.step(action), env.render())[1] for action in actions[:2]]
            if mode == "ansi":
                assert all(isinstance(p, str) and p for p in pictures)
            else:
                assert all(p.dtype == np.uint8 and p.shape == pictures[0].shape and p.shape[2] == 3 for p in pictures)
            env.close()
