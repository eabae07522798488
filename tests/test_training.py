"""Training: the tasks by turns, everything in the store, interrupted or not, and a policy at the end."""

from __future__ import annotations

import builtins
import dataclasses
import json
import threading

import pytest

from msc_core import MscError, from_torch
from msc_core.errors import Unavailable
from msc_gym import CompressionTask, search
from msc_gym.agents import Policy
from msc_gym.engine import Store
from msc_gym.training import TRAINING_FILE, train

EPISODES = 9


@pytest.fixture(scope="module")
def other(tiny_data):
    """Another network on the same data: narrower, untrained."""
    import torch
    from torch import nn

    with torch.random.fork_rng():
        torch.manual_seed(0)
        body = nn.Conv2d(1, 24, 3, 2, 1), nn.ReLU(), nn.Conv2d(24, 32, 3, 2, 1), nn.ReLU()
        net = nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
        graph = from_torch(net.eval(), torch.zeros(2, 1, 28, 28), dynamic_shapes=({0: "N"},), name="narrow")
    return CompressionTask(graph, tiny_data, budget={"macs": 0.6}, calibration=100, validation=200)


@pytest.fixture(scope="module")
def trained(tiny_task, other, tmp_path_factory):
    """A training that nobody disturbed, its store and its folder."""
    folder = tmp_path_factory.mktemp("training")
    url = f"sqlite:///{folder}/store.db"
    return train([tiny_task, other], "ppo", EPISODES, url, seed=2, out=folder, options={"episodes": 2}), url, folder


def signature(result) -> list[tuple]:
    return [(t.index, t.task.graph.name, dict(t.choices), t.reward) for t in result.trials]


def test_episodes_are_about_the_tasks_by_turns(trained, tiny_task, other):
    result, _, _ = trained
    assert [t.index for t in result.trials] == list(range(EPISODES)) and result.resumed == 0
    assert [t.task for t in result.trials] == [(tiny_task, other)[i % 2] for i in range(EPISODES)]
    assert all(t.task.within_budget(t.choices) and t.measurement.ok for t in result.trials)
    assert result.best(1).reward == max(t.reward for t in result.trials[1::2])


def test_the_final_measurements_are_the_policys(trained, tiny_task, other):
    result, url, folder = trained
    for task, found in zip((tiny_task, other), result.final, strict=True):
        assert found.ok and found.macs <= task.limits["macs"]
        applied = search(task, "policy", 1, url, options={"path": str(folder)})
        assert applied.trials[0].measurement.accuracy == found.accuracy
        assert applied.trials[0].choices == Policy.load(folder).choices(task)
    assert result.policy.head.agent == "ppo"


def test_a_folder_has_what_happened(trained):
    result, _, folder = trained
    data = json.loads((folder / TRAINING_FILE).read_text())
    assert [t["reward"] for t in data["trials"]] == [t.reward for t in result.trials]
    assert [t["name"] for t in data["tasks"]] == ["tiny", "narrow"]
    assert data["agent"] == "ppo" and data["options"] == {"episodes": 2}


def test_the_same_call_again_measures_nothing(trained, tiny_task, other, tmp_path):
    result, url, folder = trained
    with Store(url) as store:
        before = store.counts()
        again = train([tiny_task, other], "ppo", EPISODES, store, seed=2, out=tmp_path, options={"episodes": 2})
        assert store.counts() == before
    assert again.resumed == EPISODES and signature(again) == signature(result)
    for name in ("policy.json", "policy.safetensors", TRAINING_FILE):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


class Stop(Exception):
    pass


def test_an_interrupted_training_goes_on_where_it_stopped(trained, tiny_task, other, tmp_path):
    result, _, _ = trained

    def stop(index, total, agent, measurement, best, hits):
        if index == 4:
            raise Stop

    run = {"agent": "ppo", "episodes": EPISODES, "seed": 2, "options": {"episodes": 2}, "store": f"{tmp_path}/s.db"}
    with pytest.raises(Stop):
        train([tiny_task, other], progress=stop, **run)
    again = train([tiny_task, other], **run)
    assert again.resumed == 5 and signature(again) == signature(result)
    assert again.policy.choices(tiny_task) == result.policy.choices(tiny_task)


def test_another_seed_or_order_is_another_training(trained, tiny_task, other):
    _, url, _ = trained
    assert train([tiny_task, other], "ppo", 2, url, seed=3, options={"episodes": 2}).resumed == 0
    assert train([other, tiny_task], "ppo", EPISODES, url, seed=2, options={"episodes": 2}).resumed == 0


@pytest.mark.parametrize("agent", ["amc", "td3"])
def test_batches(tiny_task, other, agent):
    threads = threading.enumerate()
    one, again = (train([tiny_task, other], agent, 8, batch=3) for _ in range(2))
    assert signature(one) == signature(again) and len(one.trials) == 8
    assert threading.enumerate() == threads


def test_progress_hears_of_every_episode(tiny_task):
    heard = []
    train(tiny_task, "a2c", 3, progress=lambda *told: heard.append(told))
    assert [(index, total, agent) for index, total, agent, *_ in heard] == [(i, 3, "a2c") for i in range(3)]
    assert heard[-1][4].reward == max(-1 + told[3].accuracy for told in heard)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"agent": "uniform"}, "agent 'uniform' does not learn"),
        ({"agent": "pppo"}, "did you mean 'ppo'"),
        ({"episodes": 0}, "episodes must be an integer of at least 1; found 0"),
        ({"tasks": []}, "tasks must be an integer of at least 1; found 0"),
        ({"tensorboard": True}, "scalars need a folder"),
        ({"options": {"lr": 1}}, "has no setting 'lr'"),
    ],
)
def test_what_cannot_be_trained(tiny_task, change, message):
    with pytest.raises(MscError, match=message):
        train(**{"tasks": tiny_task, "episodes": 1} | change)


def test_tasks_must_decide_the_same(tiny_task):
    with pytest.raises(MscError, match="the task decides quantize; the agent prune"):
        train([tiny_task, dataclasses.replace(tiny_task, decide=("quantize",), budget={})], episodes=2)


def test_scalars_need_a_package(tiny_task, tmp_path, monkeypatch):
    known = builtins.__import__

    def without(name, *rest):
        if name.startswith(("tensorboard", "torch.utils.tensorboard")):
            raise ImportError(name)
        return known(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(Unavailable, match="pip install tensorboard"):
        train(tiny_task, episodes=1, out=tmp_path, tensorboard=True)


def test_scalars_are_written(tiny_task, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = train(tiny_task, "ppo", 3, out=tmp_path, tensorboard=True)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    for name, values in {
        "reward": [t.reward for t in result.trials],
        "accuracy": [t.measurement.accuracy for t in result.trials],
        "macs": [t.measurement.macs / result.baselines[0].macs for t in result.trials],
    }.items():
        assert [e.value for e in events.Scalars(f"tiny/{name}")] == pytest.approx(values)
