"""What the tests of the gym share: a small network, trained for a moment on real images, and a job file about it."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: spinning threads cost tenfold on shared cores
if "PYTEST_XDIST_WORKER" in os.environ:  # one of several processes: a core for each
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest

from msc_core.data import Dataset, fashion_mnist


@pytest.fixture(scope="session")
def tiny_data() -> Dataset:
    data = fashion_mnist()
    return Dataset("tiny", data.train.head(2000), data.validation.head(400), data.test.head(200))


@pytest.fixture(scope="session")
def tiny_job(tmp_path_factory, tiny_data) -> Path:
    """A job file, with the graph and an `.npz` of the data next to it."""
    folder = tmp_path_factory.mktemp("job")
    trained(tiny_data).save(folder / "model")
    splits = {s: getattr(tiny_data, s) for s in ("train", "validation", "test")}
    np.savez(folder / "tiny.npz", **{f"{s}_{part}": getattr(v, part) for s, v in splits.items() for part in "xy"})
    text = "model: model\ndata: tiny.npz\nbudget: {macs: 0.5}\ncalibration: 200\nvalidation: 300\n"
    (folder / "job.yaml").write_text(text + "search: {trials: 10}\nout: runs/job\n")
    return folder / "job.yaml"


@pytest.fixture(scope="session")
def tiny_task(tiny_job):
    from msc_gym import CompressionTask

    return CompressionTask.from_yaml(tiny_job)


def trained(data: Dataset):
    """Four convolutions, 150 steps: about 75% right, four groups that can be pruned."""
    import torch
    from torch import nn

    from msc_core import from_torch

    def block(i: int, o: int, stride: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU())

    state, threads = torch.get_rng_state(), torch.get_num_threads()
    torch.set_num_threads(1)  # the machine may be busy, and two threads that wait for each other take ten times longer
    try:
        torch.manual_seed(0)
        head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10)
        net = nn.Sequential(block(1, 16, 2), block(16, 32, 2), block(32, 32, 1), block(32, 48, 2), *head)
        optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, nesterov=True)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=150)
        x, y = torch.from_numpy(data.train.x), torch.from_numpy(data.train.y)
        for _ in range(150):
            index = torch.randint(len(x), (64,))
            loss = nn.functional.cross_entropy(net(x[index]), y[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        return from_torch(net.eval(), x[:2], dynamic_shapes=({0: "N"},), name="tiny")
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(state)
