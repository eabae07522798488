"""Fine-tuning and distillation, against closed forms, plain torch loops and uninterrupted runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import msc_core as msc
from msc_core.backends import build, score
from msc_core.data import Dataset, fashion_mnist
from msc_core.errors import MscError
from msc_core.tools.finetune import Recipe, finetune
from msc_core.tools.prune import Pruner

BASELINES = Path(__file__).parents[1] / "experiments" / "baselines"


@pytest.fixture(scope="module")
def data() -> Dataset:
    return fashion_mnist()


def test_finetuning_improves_a_pruned_network_and_repeats_exactly(data: Dataset) -> None:
    graph = msc.MSCGraph.load(BASELINES / "mobilenet")
    pruner = Pruner(graph, data.train.x[:200])
    pruned = pruner.compress(pruner.plan({g.name: g.counts[len(g.counts) // 4] for g in pruner.groups}))
    seen: list[int] = []
    recipe = Recipe(steps=30, batch=64, lr=0.01)
    tuned = finetune(pruned, data.train, recipe, teacher=graph, report=lambda done, total, loss: seen.append(done))
    assert seen == list(range(1, 31))
    assert tuned.nodes == pruned.nodes

    def accuracy(g: msc.MSCGraph) -> float:
        with build(g, "onnxruntime") as runner:
            return score(runner, data.validation.head(2000))

    assert accuracy(tuned) > accuracy(pruned) + 0.02
    assert finetune(pruned, data.train, Recipe(steps=0)) is pruned
    short = Recipe(steps=3, batch=16)
    assert finetune(pruned, data.train, short) == finetune(pruned, data.train, short)


def test_finetuning_that_diverges_says_when(data: Dataset) -> None:
    graph = msc.MSCGraph.load(BASELINES / "mobilenet")
    with pytest.raises(MscError, match=r"diverged at step .* lower lr"):
        finetune(graph, data.train.head(256), Recipe(steps=50, batch=32, lr=1e6, augment=False))


def test_a_recipe_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(MscError, match="fine-tuning needs"):
        Recipe(distill=1.5)
