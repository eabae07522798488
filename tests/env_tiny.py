"""The conformance suite on the small trained network of the fixtures: what the three ids have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest
import yaml

from experiments.models import resnet20
from msc_gym import CompressionTask, Evaluator
from msc_gym.decisions import Part
from msc_gym.envs import Accuracy
from tests.conformance.env_suite import Golden, IdSuite, Make, Toy, failing

BITS = (4, 8, 32)


class Measured:
    """What any suite on a `task` has to provide, measured on it."""

    @pytest.fixture
    def baseline_reward(self, task):
        (baseline,) = Evaluator(task).evaluate([task.identity], latency=False)
        return Accuracy()(baseline)

    @pytest.fixture
    def faulty(self, make, task):
        return make(evaluator=Evaluator(task, worker=failing))


class TinySuite(Measured, IdSuite):
    """`largest` is the action that leaves a site as it is; `episodes` are golden for ResNet-20 within `budget`."""

    name: ClassVar[str]
    parts: ClassVar[tuple[Part, ...]]
    budget: ClassVar[Mapping[str, float]]
    largest: ClassVar[Any]
    episodes: ClassVar[Sequence[Golden]]

    @pytest.fixture
    def task(self, tiny_task):
        return tiny_task.changed(decide=self.parts, bits=BITS, budget=self.budget)

    @pytest.fixture
    def make(self, task):
        return Make(f"msc_gym:MSC/{self.name}-v0", {"task": task})

    @pytest.fixture
    def described(self, tiny_job, make):
        job = yaml.safe_load(tiny_job.read_text()) | {"decide": list(self.parts), "bits": list(BITS)}
        path = tiny_job.parent / f"{self.name}.yaml"
        path.write_text(yaml.safe_dump(job | {"budget": dict(self.budget)}))
        return make(task=str(path))

    @pytest.fixture
    def golden(self, make, tiny_data):
        task = CompressionTask(resnet20(), tiny_data, calibration=10, decide=self.parts, bits=BITS, budget=self.budget)
        return make(task=task, evaluator=Evaluator(task, worker=failing)), self.episodes

    @pytest.fixture
    def identity(self, make, task):
        free = task.changed(budget={})
        return make(task=free), [self.largest] * len(free.sites)

    @pytest.fixture
    def toy(self, make, task):
        free = task.changed(budget={})
        return make(task=free, evaluator=Evaluator(free, worker=Toy(free)))
