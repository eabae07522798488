"""Fine-tuning and distillation, against closed forms, plain torch loops and uninterrupted runs."""

from __future__ import annotations

import dataclasses
import functools
import multiprocessing
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import msc_core as msc
from msc_core.backends import build, score
from msc_core.channels import Channels
from msc_core.codegen.torch import from_module, to_torch
from msc_core.data import Dataset, Split, fashion_mnist
from msc_core.errors import MscError
from msc_core.tools.finetune import Recipe, Teacher, finetune, fit
from msc_core.tools.finetune.loop import _optimizer, _schedule
from msc_core.tools.finetune.losses import attention_map, feature_loss, kl, lp, task_loss
from msc_core.tools.prune import Pruner
from msc_core.tools.survivors import select, survivors

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


class Small(nn.Module):
    """Convolution, norm, dropout, linear: everything that has a state of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.n, self.b = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Conv2d(8, 6, 3)
        self.drop, self.fc = nn.Dropout(0.3), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.b(torch.relu(self.n(self.a(x)))))
        return self.fc(self.drop(x.mean((2, 3))))


@functools.cache
def small() -> tuple[msc.MSCGraph, Split]:
    """The network, and 64 images whose brightest part says the class."""
    torch.manual_seed(0)
    graph = msc.from_torch(Small(), torch.zeros(2, 3, 8, 8), dynamic_shapes=({0: "N"},))
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(64, 3, 8, 8)).astype(np.float32), draw.integers(0, 4, 64)
    for image, label in zip(x, y, strict=True):
        image[:, label % 2 * 4 :, label // 2 * 4 :][:, :4, :4] += 1
    return graph, Split(x, y)


PLAIN = Recipe(steps=6, batch=16, lr=0.05, augment=False, schedule="constant", weight_decay=0)


# Recipes


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"distill": 1.5}, "distill must be 0 to 1; found 1.5"),
        ({"lr": 0.0}, "lr must be above 0; found 0"),
        ({"lr": float("nan")}, "lr must be above 0; found nan"),
        ({"steps": -1}, "steps must be at least 0; found -1"),
        ({"validate": 0}, "validate must be at least 1"),
        ({"ema": 1.0}, "ema must be at least 0 and below 1"),
        ({"features": {"relu": -1.0}}, r"features\['relu'\] must be above 0"),
        ({"optimizer": "adan"}, "unknown optimizer 'adan'; did you mean 'adam'"),
        ({"schedule": "cosin"}, "did you mean 'cosine'"),
        ({"task": "bce"}, "unknown task 'bce'; known: cross_entropy, mse"),
        ({"matching": "channel"}, "did you mean 'channels'"),
    ],
)
def test_a_recipe_that_makes_no_sense_is_refused(wrong: dict, message: str) -> None:
    with pytest.raises(MscError, match=message):
        Recipe(**wrong)


# Losses


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def test_distillation_is_the_divergence_of_softened_distributions() -> None:
    """Its value, and the gradient T (p_student - p_teacher) / N: with softmax off, as MSC had it, both are others."""
    draw = np.random.default_rng(0)
    s, t, heat = draw.normal(size=(5, 7)), draw.normal(size=(5, 7)), 3.0
    student = torch.tensor(s, requires_grad=True)
    loss = kl(student, torch.tensor(t), heat)
    p, q = softmax(t / heat), softmax(s / heat)
    assert loss.item() == pytest.approx(heat**2 * (p * np.log(p / q)).sum(1).mean())
    loss.backward()
    np.testing.assert_allclose(student.grad, heat * (q - p) / 5, atol=1e-12)
    assert kl(student + 4.0, torch.tensor(t), heat).item() == pytest.approx(loss.item())


@pytest.mark.parametrize(("shape", "axis"), [((2, 5), 1), ((2, 3, 5), 2), ((2, 5, 3, 4), 1)])
def test_classes_are_last_in_sequences_and_second_in_maps(shape: tuple[int, ...], axis: int) -> None:
    draw = np.random.default_rng(0)
    s, t = (np.moveaxis(draw.normal(size=shape), axis, -1) for _ in range(2))
    p, q = softmax(t.reshape(-1, 5)), softmax(s.reshape(-1, 5))
    found = kl(*(torch.tensor(np.moveaxis(value, -1, axis).copy()) for value in (s, t)), temperature=1.0)
    assert found.item() == pytest.approx((p * np.log(p / q)).sum(1).mean())


def test_other_losses_are_their_formulas() -> None:
    draw = np.random.default_rng(0)
    s, t = draw.normal(size=(2, 3, 4, 5)), draw.normal(size=(2, 3, 4, 5))
    student, teacher = torch.tensor(s), torch.tensor(t)
    assert lp(student, teacher, 3.0).item() == pytest.approx((abs(s - t) ** 3).mean())
    expected = (abs(s - t) ** 2).mean() / (t**2).mean()
    assert feature_loss(student, teacher, "channels", 2.0).item() == pytest.approx(expected)
    energy = (s**2).mean(1).reshape(2, -1)
    expected_map = energy / np.sqrt((energy**2).sum(1, keepdims=True))
    np.testing.assert_allclose(attention_map(student), expected_map)
    assert feature_loss(2 * teacher[:, :1], teacher[:, :1], "attention", 2.0).item() == pytest.approx(0)
    y = torch.arange(4.0)
    assert task_loss("mse", y[:, None] + 2, y).item() == pytest.approx(4)
    with pytest.raises(MscError, match="one output for each of 4 labels"):
        task_loss("mse", torch.zeros(4, 2), y)


# The loop


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_it_is_the_loop_that_one_would_write(name: str) -> None:
    """Gradients of a step are its own: MSC never called `zero_grad`, so they piled up."""
    graph, data = small()
    recipe = dataclasses.replace(PLAIN, optimizer=name, lr=0.01, weight_decay=0.1)
    torch.manual_seed(0)
    module = Small()
    decayed = [p for p in module.parameters() if p.ndim > 1]
    rest = [p for p in module.parameters() if p.ndim == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = {
        "sgd": lambda: torch.optim.SGD(groups, 0.01, 0.9, nesterov=True),
        "adam": lambda: torch.optim.Adam(groups, 0.01),
        "adamw": lambda: torch.optim.AdamW(groups, 0.01),
    }[name]()
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    for _ in range(recipe.steps):
        index = torch.randint(64, (16,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(torch.from_numpy(data.x)[index]), torch.from_numpy(data.y)[index]).backward()
        optimizer.step()
    tuned = finetune(graph, data, recipe)
    for key, value in module.state_dict().items():
        if key in tuned.weights:
            np.testing.assert_allclose(tuned.weights[key], value, atol=1e-4, err_msg=key)
    assert np.abs(tuned.weights["fc.weight"] - graph.weights["fc.weight"]).max() > 1e-2


def test_schedules_are_those_of_their_names() -> None:
    graph, _ = small()

    def rates(schedule: str) -> list[float]:
        recipe = dataclasses.replace(PLAIN, steps=12, lr=1.0, schedule=schedule)
        optimizer = _optimizer(to_torch(graph), recipe)
        planned = _schedule(optimizer, recipe)
        found = []
        for _ in range(12):
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            planned.step() if len(found) < 12 else None
        return found

    assert rates("constant") == [1.0] * 12
    np.testing.assert_allclose(rates("step"), [1] * 4 + [0.1] * 4 + [0.01] * 4)
    np.testing.assert_allclose(rates("cosine"), (1 + np.cos(np.pi * np.arange(12) / 12)) / 2)
    cycle = rates("one_cycle")
    assert max(cycle) == pytest.approx(1, abs=0.1) and np.argmax(cycle) in (1, 2) and cycle[-1] < 1e-4 < cycle[0] < 0.1


def test_a_linear_network_learns_the_least_squares_solution() -> None:
    torch.manual_seed(0)
    graph = msc.from_torch(nn.Linear(5, 1), torch.zeros(2, 5), dynamic_shapes=({0: "N"},))
    draw = np.random.default_rng(0)
    x = draw.normal(size=(200, 5)).astype(np.float32)
    y = x @ np.arange(5.0) + 3 + 0.1 * draw.normal(size=200)
    recipe = Recipe(steps=300, batch=100, lr=0.05, weight_decay=0, augment=False, task="mse", schedule="cosine")
    tuned = finetune(graph, Split(x, y), recipe)
    solution = np.linalg.lstsq(np.c_[x, np.ones(200)], y, rcond=None)[0]
    np.testing.assert_allclose(tuned.weights["weight"][0], solution[:5], atol=2e-2)
    np.testing.assert_allclose(tuned.weights["bias"][0], solution[5], atol=2e-2)


def test_clipped_gradients_take_short_steps() -> None:
    graph, data = small()
    tuned = finetune(graph, data, dataclasses.replace(PLAIN, steps=1, clip=1e-3))
    names = [name for name in graph.weights if "running" not in name and "num_batches" not in name]
    moved = np.sqrt(sum(((tuned.weights[n] - graph.weights[n]).astype(np.float64) ** 2).sum() for n in names))
    assert 0 < moved <= 1.9 * 0.05 * 1e-3 * 1.01  # Nesterov's first step is 1 + momentum times the gradient


def test_the_average_of_weights_is_that_of_every_step() -> None:
    graph, data = small()
    steps = [finetune(graph, data, dataclasses.replace(PLAIN, steps=n)).weights["fc.weight"] for n in range(1, 5)]
    expected = steps[0]
    for weight in steps[1:]:
        expected = 0.8 * expected + 0.2 * weight
    found = finetune(graph, data, dataclasses.replace(PLAIN, steps=4, ema=0.8)).weights["fc.weight"]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_masked_weights_stay_zero() -> None:
    graph, data = small()
    mask = np.random.default_rng(0).random(graph.weights["b.weight"].shape) < 0.5
    tuned = finetune(graph, data, PLAIN, masks={"b.weight": mask})
    assert (tuned.weights["b.weight"][~mask] == 0).all()
    assert (tuned.weights["b.weight"][mask] != graph.weights["b.weight"][mask]).all()
    with pytest.raises(MscError, match=r"mask: no weight 'b.wait'; did you mean 'b.weight'"):
        finetune(graph, data, PLAIN, masks={"b.wait": mask})
    with pytest.raises(MscError, match=r"mask of 'a.weight': expected"):
        finetune(graph, data, PLAIN, masks={"a.weight": mask})


def test_bfloat16_trains_float32_weights_to_nearly_the_same() -> None:
    graph, data = small()
    exact, rough = (finetune(graph, data, dataclasses.replace(PLAIN, bfloat16=b)) for b in (False, True))
    for name, weight in rough.weights.items():
        assert weight.dtype == exact.weights[name].dtype
    moved = np.abs(exact.weights["fc.weight"] - graph.weights["fc.weight"]).max()
    assert 0 < np.abs(exact.weights["fc.weight"] - rough.weights["fc.weight"]).max() < 0.2 * moved


# Validation


def test_the_best_weights_are_kept_and_training_stops_when_it_gets_no_better() -> None:
    graph, data = small()
    learned = finetune(graph, data, dataclasses.replace(PLAIN, steps=60))
    noise = Split(data.x, np.random.default_rng(1).integers(0, 4, 64))
    module = to_torch(learned)
    recipe = dataclasses.replace(PLAIN, steps=200, lr=0.5, validate=5, patience=3)
    trained = fit(module, noise, recipe, validation=data)
    assert trained.steps < 100
    scores = dict(trained.history)
    assert scores[trained.best] == max(scores.values()) and trained.steps == trained.best + 15
    with build(from_module(learned, module), "torch") as runner:
        assert score(runner, data) == pytest.approx(scores[trained.best])


# Resuming


class Killed(Exception):
    pass


def kill_at(step: int):
    def report(done: int, steps: int, loss: float) -> None:
        if done == step:
            raise Killed

    return report


@pytest.mark.parametrize("killed", [4, 7])
@pytest.mark.parametrize(
    ("optimizer", "schedule", "ema"),
    [("sgd", "one_cycle", 0.0), ("adam", "cosine", 0.5), ("adamw", "step", 0.0)],
)
def test_a_run_that_was_killed_ends_with_the_same_weights(
    tmp_path: Path, optimizer: str, schedule: str, ema: float, killed: int
) -> None:
    graph, data = small()
    recipe = Recipe(steps=11, batch=8, save=3, validate=2, optimizer=optimizer, schedule=schedule, ema=ema, lr=0.01)
    whole = finetune(graph, data, recipe, graph, validation=data)
    path = tmp_path / "run.safetensors"
    with pytest.raises(Killed):
        finetune(graph, data, recipe, graph, kill_at(killed), validation=data, checkpoint=path)
    seen: list[int] = []
    again = finetune(
        graph, data, recipe, graph, lambda done, steps, loss: seen.append(done), validation=data, checkpoint=path
    )
    assert seen[0] == killed // 3 * 3 + 1, "it did not go on from the checkpoint"
    assert again == whole
    assert finetune(graph, data, recipe, graph, kill_at(11), validation=data, checkpoint=path) == whole


def _doomed(path: str) -> None:
    graph, data = small()

    def report(done: int, steps: int, loss: float) -> None:
        if done == 5:
            os.kill(os.getpid(), signal.SIGKILL)

    finetune(graph, data, Recipe(steps=8, batch=8, save=2), report=report, checkpoint=path)


def test_not_even_kill_9_loses_a_run(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    process = multiprocessing.get_context("spawn").Process(target=_doomed, args=(str(path),))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL and path.exists()
    graph, data = small()
    recipe = Recipe(steps=8, batch=8, save=2)
    assert finetune(graph, data, recipe, checkpoint=path) == finetune(graph, data, recipe)


def test_a_checkpoint_is_for_its_run_only(tmp_path: Path) -> None:
    graph, data = small()
    path = tmp_path / "run.safetensors"
    finetune(graph, data, PLAIN, checkpoint=path)
    for other in (dataclasses.replace(PLAIN, lr=0.1), dataclasses.replace(PLAIN, seed=1)):
        with pytest.raises(MscError, match="of another run"):
            finetune(graph, data, other, checkpoint=path)
    with pytest.raises(MscError, match="of another run"):
        finetune(graph, Split(data.x + 1, data.y), PLAIN, checkpoint=path)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(MscError, match="not a readable checkpoint"):
        finetune(graph, data, PLAIN, checkpoint=path)
    torch.save({"state": 1}, path)
    with pytest.raises(MscError, match="not a readable checkpoint"):
        finetune(graph, data, PLAIN, checkpoint=path)


# Teachers


def pruned_pair() -> tuple[msc.MSCGraph, msc.MSCGraph, msc.Plan, Split]:
    graph, data = small()
    groups = {g.name: g for g in Channels(graph, divisor=1).groups if not g.reason}
    plan = msc.Plan(graph.fingerprint, {name: tuple(range(1, g.size, 2)) for name, g in groups.items()})
    return graph, msc.apply(plan, graph), plan, data


def tensor_of(graph: msc.MSCGraph, node: str) -> str:
    return graph.node(node).outputs[0]


def test_features_are_compared_on_the_channels_that_are_left() -> None:
    """The first convolution's surviving channels compute what they did, so they are at no distance; others are."""
    graph, pruned, plan, data = pruned_pair()
    name = tensor_of(graph, "a")
    recipe = dataclasses.replace(PLAIN, features={name: 1.0})
    x = torch.from_numpy(data.x)
    teacher = Teacher(graph, pruned, recipe, plan)
    outputs = to_torch(teacher.extended(pruned)).eval()(x)
    assert outputs[-1].shape[1] == 4
    assert teacher.loss(x, outputs)[1].item() == pytest.approx(0, abs=1e-9)
    other = msc.Plan(plan.graph, {**plan.prune, "a": (0, 2, 4, 6)})
    assert Teacher(graph, pruned, recipe, other).loss(x, outputs)[1].item() > 0.1


def test_survivors_give_the_pruned_shape_of_every_tensor() -> None:
    graph, pruned, plan, _ = pruned_pair()
    names = [name for node in graph.nodes for name in node.outputs]
    found = survivors(graph, plan.prune, names)
    for name in names:
        shape = tuple(d if isinstance(d, int) else 2 for d in graph.tensors[name].shape)
        wanted = tuple(d if isinstance(d, int) else 2 for d in pruned.tensors[name].shape)
        assert select(np.zeros(shape), found[name]).shape == wanted
        assert select(torch.zeros(shape), found[name]).shape == wanted


@pytest.mark.parametrize("matching", ["channels", "attention"])
def test_a_student_comes_closer_to_its_teachers_features(matching: str) -> None:
    graph, pruned, plan, data = pruned_pair()
    name = tensor_of(graph, "b")
    adam = dataclasses.replace(PLAIN, steps=60, lr=0.01, optimizer="adam", distill=1.0)
    recipe = dataclasses.replace(adam, features={name: 5.0}, matching=matching)
    x, teacher = torch.from_numpy(data.x), Teacher(graph, pruned, recipe, plan)
    distance = {}
    for features in ({}, recipe.features):
        tuned = finetune(pruned, data, dataclasses.replace(recipe, features=features), graph, plan=plan)
        distance[bool(features)] = teacher.loss(x, to_torch(teacher.extended(tuned)).eval()(x))[1].item()
    assert distance[True] < 0.7 * distance[False]


def test_what_does_not_fit_is_said_before_training() -> None:
    graph, pruned, _, data = pruned_pair()
    name = tensor_of(graph, "b")

    def refuse(message: str, recipe: Recipe = PLAIN, g: msc.MSCGraph = pruned, **given: object) -> None:
        with pytest.raises(MscError, match=message):
            finetune(g, data, recipe, report=kill_at(1), **given)

    feature = dataclasses.replace(PLAIN, features={name: 1.0})
    refuse("pass the plan that pruned it, or use matching='attention'", feature, teacher=graph)
    refuse("there is no teacher", feature)
    refuse("the plan is for graph", feature, teacher=graph, plan=msc.Plan("0" * 64))
    misspelt = dataclasses.replace(PLAIN, features={f"{name}x": 1.0})
    refuse("the teacher has no such tensor; did you mean", misspelt, teacher=graph)
    logits = dataclasses.replace(PLAIN, features={graph.outputs[0]: 1.0}, matching="attention")
    refuse("attention needs positions", logits, teacher=graph)
    refuse("patience 2 needs validation data", dataclasses.replace(PLAIN, patience=2))
    with pytest.raises(MscError, match="integer labels; found float64"):
        finetune(pruned, Split(data.x, data.y + 0.5), PLAIN)


def test_rounding_and_several_inputs_are_refused() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + y

    _, data = small()
    with pytest.raises(MscError, match="a graph with one input"):
        finetune(msc.from_torch(Two(), (torch.zeros(2, 3), torch.zeros(2, 3))), data, PLAIN)
    x = msc.Tensor("x", (2, 3))
    scale, rounded = msc.Tensor("scale", ()), msc.Tensor("q", (2, 3), "int8")
    node = msc.Node("round", "quantize", ("x", "scale"), ("q",))
    weights = {"scale": np.ones((), np.float32)}
    graph = msc.MSCGraph("g", (node,), ("x",), ("q",), weights, {t.name: t for t in (x, scale, rounded)})
    with pytest.raises(MscError, match="node 'round' rounds"):
        finetune(graph, data, PLAIN)
