"""What every environment of the gym must do. Inherit `IdSuite` for an id or `EnvSuite` for a
wrapper, provide the fixtures, and the tests are yours.

The numbers are those of the list of must-haves that the suite grew from. Those that are about other things than an
environment have their tests elsewhere: 19 (deadlines) and 23 (parallel = serial) with the pools, 21 and 22 (the cache)
with the evaluator and the store, 24 (resume) with the search, 25 (replay) with the runs, 26 (semantics) with surgery.
12 (masks) is `MaskedSuite`, for environments that have them.
"""

from __future__ import annotations

import multiprocessing
import random
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium
import numpy as np
import psutil
import pytest
import torch
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Space
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics

from msc_core.plan import Plan
from msc_gym import CompressionTask, Measurement
from msc_gym.engine import Scoring
from msc_gym.engine.worker import Candidate
from msc_gym.envs import FEATURES

MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP]
multiprocessing.set_forkserver_preload(["msc_gym.envs"])


class Make:
    """A factory that survives pickling: `gymnasium.make` in whatever process it is called."""

    def __init__(self, name: str, kwargs: Mapping[str, Any]) -> None:
        self.name, self.kwargs = name, dict(kwargs)

    def __call__(self, **changes: Any) -> gymnasium.Env[Any, Any]:
        return gymnasium.make(self.name, **{**self.kwargs, **changes})


@dataclass(frozen=True)
class Golden:
    """What an episode with the same action at every step has to be: what `info` said, and the features summed."""

    action: Any
    counts: Sequence[int]
    bits: Sequence[int]
    features: Sequence[float]


class Toy:
    """A worker whose accuracy is a plain function of the choices: 1 where each decision takes the share `goal`."""

    def __init__(self, task: CompressionTask, goal: float = 0.5) -> None:
        self.task, self.goal = task, goal

    def __call__(self, candidate: Candidate, scoring: Scoring) -> Measurement:
        named = self.task.choices_of(candidate) if isinstance(candidate, Plan) else candidate
        shares = [d.share(named.get(d.name, d.full)) for d in self.task.decisions]
        return Measurement("toy", 1 - float(np.mean([abs(share - self.goal) for share in shares])), 100)


def failing(candidate: Candidate, scoring: Scoring) -> Measurement:
    """A worker for which everything goes wrong."""
    return Measurement("none", error="injected fault")


def extremes(space: Space[Any]) -> list[Any]:
    """The least, the middle and the greatest action."""
    if isinstance(space, Box):
        return [space.low, (space.low + space.high) / 2, space.high]
    if isinstance(space, MultiDiscrete):
        return [space.start, space.start + space.nvec // 2, space.start + space.nvec - 1]
    assert isinstance(space, Discrete)
    return [int(space.start), int(space.start + space.n // 2), int(space.start + space.n - 1)]


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
    """Fixtures to provide:

    - `make`: a `Make` with the id in its `module:ID` form and arguments that can be pickled.
    - `described`: an environment whose arguments are JSON.
    - `identity`: an environment and the actions of an episode that changes nothing; `baseline_reward` is its pay.
    - `faulty`: an environment whose measurements all say "injected".

    `vector_steps` should reach beyond the end of an episode.
    """

    vector_steps: ClassVar[int] = 12

    @pytest.fixture
    def env(self, make):
        env = make()
        yield env
        env.close()

    @pytest.fixture
    def actions(self, env) -> list[Any]:
        env.action_space.seed(7)
        return [env.action_space.sample() for _ in range(100)]

    def checked(self, env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
        """What the checkers look at; of a wrapper, itself."""
        return env.unwrapped

    def test_03_gymnasium_checker(self, env):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", message=".*different from the unwrapped version")
            check_env(self.checked(env))

    def test_04_stable_baselines3_checker(self, env):
        from stable_baselines3.common.env_checker import check_env as check

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check(self.checked(env), warn=True, skip_render_check=False)

    def test_05_the_spec_is_json(self, described):
        again = gymnasium.make(gymnasium.envs.registration.EnvSpec.from_json(described.spec.to_json()))
        assert again.observation_space == described.observation_space and again.action_space == described.action_space
        assert again.spec == described.spec
        again.close()

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

    def test_10_observations_are_bounded(self, faulty):
        env, space = faulty, faulty.observation_space
        assert isinstance(space, Box) and space.dtype == np.float32 and np.isfinite([space.low, space.high]).all()
        env.action_space.seed(0)
        observation, _ = env.reset()
        for _ in range(1000):
            assert observation.dtype == np.float32 and space.contains(observation)
            observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                observation, _ = env.reset()

    def test_11_any_action_steps_and_info_says_what_was_applied(self, env, actions):
        for wanted in [[action] * 100 for action in extremes(env.action_space)] + [actions]:
            steps, task = rollout(env, wanted), env.unwrapped.task
            assert len(steps) == len(task.sites) + 1 and steps[-1][2]
            assert task.within_budget(env.unwrapped.choices)
            for site, (*_, info) in zip(task.sites, steps[1:], strict=True):
                said = {"prune": info["count"], "quantize": info["bits"]}
                for decision in site.decisions:
                    assert said[decision.part] == env.unwrapped.choices[decision.name]
                    if decision.part == "prune":
                        assert info["applied"] == decision.share(info["count"])

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

    @pytest.mark.parametrize("mode", MODES)
    def test_17_vector_environments_are_equivalent(self, make, mode):
        sync = SyncVectorEnv([make, make], autoreset_mode=mode)
        parallel = AsyncVectorEnv([make, make], autoreset_mode=mode, context="forkserver")
        try:
            sync.action_space.seed(1)
            seen, wanted = parallel.reset(seed=5), sync.reset(seed=5)
            for _ in range(self.vector_steps):
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
            pictures = [env.render()]
            for action in actions[:2]:
                env.reset()
                env.step(action)
                pictures.append(env.render())
            if mode == "ansi":
                assert all(isinstance(p, str) and p for p in pictures)
            else:
                assert all(p.dtype == np.uint8 and p.shape == pictures[0].shape and p.shape[2] == 3 for p in pictures)
            env.close()


class IdSuite(EnvSuite):
    """For what is registered. Two fixtures more:

    - `golden`: an environment whose measurements all fail, and a list of `Golden` for it.
    - `toy`: an environment without a budget, of which a `Toy` is the worker.
    """

    def test_01_the_id_resolves_in_a_fresh_process(self, make, env):
        vector = AsyncVectorEnv([make], context="spawn")
        try:
            assert vector.single_observation_space == env.observation_space
            assert vector.single_action_space == env.action_space
            assert equal(vector.reset(seed=1)[0][0], env.reset(seed=1)[0])
        finally:
            vector.close()

    def test_02_the_version_means_this(self, golden):
        """If this fails, results change: register the next version instead of changing this one."""
        env, episodes = golden
        for expected in episodes:
            steps = rollout(env, [expected.action] * 100)
            assert [step[4]["count"] for step in steps[1:]] == expected.counts
            assert [step[4]["bits"] for step in steps[1:]] == expected.bits
            sums = np.sum([step[0] for step in steps], axis=0, dtype=np.float64)
            kept = [i for i, name in enumerate(FEATURES) if name != "sensitivity"]  # which depends on the weights
            assert sums[kept].tolist() == pytest.approx(expected.features, abs=2e-3)

    def test_30_an_agent_learns_and_learns_the_same_again(self, toy):
        from stable_baselines3 import PPO

        def learned() -> tuple[float, list[Any]]:
            agent = PPO(
                "MlpPolicy",
                toy,
                n_steps=128,
                batch_size=64,
                n_epochs=5,
                learning_rate=3e-3,
                gamma=1.0,
                seed=0,
                device="cpu",
            )
            agent.learn(1280)
            rewards, taken = [], []
            for _ in range(20):
                observation, _ = toy.reset()
                done = False
                while not done:
                    taken.append(np.asarray(agent.predict(observation, deterministic=False)[0]).tolist())
                    observation, reward, done, *_ = toy.step(np.asarray(taken[-1], toy.action_space.dtype))
                rewards.append(reward)
            return float(np.mean(rewards)), taken

        toy.action_space.seed(0)
        chance = np.mean([rollout(toy, [toy.action_space.sample() for _ in range(100)])[-1][1] for _ in range(100)])
        first = learned()
        assert first[0] > chance + 0.02
        assert learned() == first


class MaskedSuite(EnvSuite):
    """For environments with `action_masks`, in the form that sb3-contrib's MaskablePPO takes."""

    def test_12_masks_allow_what_is_feasible(self, env):
        space = env.action_space
        sizes = space.nvec.tolist() if isinstance(space, MultiDiscrete) else [int(space.n)]
        rng, done = np.random.default_rng(0), False
        env.reset()
        while not done:
            mask = env.get_wrapper_attr("action_masks")()
            assert mask.dtype == bool and mask.shape == (sum(sizes),)
            slots = np.split(mask, np.cumsum(sizes)[:-1])
            assert all(slot.any() for slot in slots)
            action = [int(rng.choice(np.flatnonzero(slot))) for slot in slots]
            *_, done, _, _ = env.step(np.array(action) if isinstance(space, MultiDiscrete) else action[0])

    def test_12_maskable_ppo_trains(self, faulty):
        from sb3_contrib import MaskablePPO

        MaskablePPO("MlpPolicy", faulty, n_steps=50, batch_size=50, device="cpu", seed=0).learn(200)
