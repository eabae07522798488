"""Masks: which elements they keep, against loops; that they hold while weights are trained."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import msc_core as msc
from msc_core.codegen.torch import to_torch
from msc_core.data import Split
from msc_core.errors import InvalidPlan
from msc_core.tools.finetune import Recipe, finetune
from msc_core.tools.prune import Pruner
from msc_core.tools.prune.masks import Masks, report, saliency, semi_structured, unstructured


class Net(nn.Module):
    """One of each kind of layer that is masked; the first has inputs that are no multiple of four."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.conv = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 12, 3, padding=1)
        self.grouped, self.up = nn.Conv2d(12, 18, 1, groups=3), nn.ConvTranspose2d(18, 8, 2, stride=2)
        self.norm, self.fc = nn.BatchNorm2d(8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.grouped(F.relu(self.conv(F.relu(self.first(x))))))
        return self.fc(F.relu(self.norm(self.up(x))).mean((2, 3)))


WEIGHTS = ("first.weight", "conv.weight", "grouped.weight", "up.weight", "fc.weight")
INPUT_AXES = {"conv.weight": 1, "grouped.weight": 1, "fc.weight": 1}


@functools.cache
def graph() -> msc.MSCGraph:
    torch.manual_seed(0)
    return msc.from_torch(Net().eval(), torch.zeros(2, 3, 8, 8), dynamic_shapes=({0: "N"},))


def test_every_layers_weight_can_be_masked_and_nothing_else() -> None:
    assert tuple(saliency(graph())) == WEIGHTS
    assert tuple(saliency(graph(), names=("f*", "up.weight"))) == ("first.weight", "up.weight", "fc.weight")


@pytest.mark.parametrize(("n", "m"), [(2, 4), (1, 4), (1, 2)])
def test_n_of_every_m_inputs_stay_and_they_are_the_largest(n: int, m: int) -> None:
    masks = semi_structured(graph(), saliency(graph()), n, m)
    axes = INPUT_AXES | ({"up.weight": 0} if 18 % m == 0 else {})
    assert masks.keep.keys() == axes.keys(), "inputs that are no multiple stay dense"
    for name, axis in axes.items():
        rows = np.moveaxis(np.abs(graph().weights[name]), axis, -1)
        kept = np.moveaxis(masks.keep[name], axis, -1)
        for at in np.ndindex(*rows.shape[:-1]):
            for start in range(0, rows.shape[-1], m):
                block, mask = rows[at][start : start + m], kept[at][start : start + m]
                assert mask.sum() == n
                assert block[mask].min() >= block[~mask].max()


def test_four_of_eight() -> None:
    masks = semi_structured(graph(), saliency(graph()), 4, 8)
    assert masks.keep.keys() == {"conv.weight", "fc.weight"}
    assert {mask.mean() for mask in masks.keep.values()} == {0.5}


@pytest.mark.parametrize("density", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("scope", ["global", "layer", "row"])
def test_unstructured_masks_keep_the_largest(scope: str, density: float) -> None:
    scores = saliency(graph())
    masks = unstructured(scores, density, scope)
    pools = {
        "global": [
            (
                np.concatenate([s.ravel() for s in scores.values()]),
                np.concatenate([m.ravel() for m in masks.keep.values()]),
            )
        ],
        "layer": [(s.ravel(), masks.keep[name].ravel()) for name, s in scores.items()],
        "row": [
            (row.ravel(), mask.ravel())
            for name, s in scores.items()
            for row, mask in zip(s, masks.keep[name], strict=True)
        ],
    }[scope]
    for score, kept in pools:
        assert kept.sum() == max(1, round(density * score.size))
        assert kept.all() or score[kept].min() >= score[~kept].max()


def test_activations_weigh_what_they_are_multiplied_with() -> None:
    """Wanda's score against activations that torch computes."""
    x = np.random.default_rng(0).normal(size=(30, 3, 8, 8)).astype(np.float32)
    statistics = Pruner(graph(), x, divisor=1).statistics
    found = saliency(graph(), statistics, ("fc.weight",))["fc.weight"]
    features = graph().replace(outputs=(graph().node("fc").inputs[0],))
    with torch.no_grad():
        read = to_torch(features).eval()(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(found, np.abs(graph().weights["fc.weight"]) * np.sqrt((read**2).mean(axis=0)), rtol=1e-4)


def test_activations_of_kernels_are_those_of_each_position() -> None:
    x = np.random.default_rng(0).normal(size=(30, 3, 8, 8)).astype(np.float32)
    statistics = Pruner(graph(), x, divisor=1).statistics
    for name in ("conv", "grouped"):
        node = graph().node(name)
        with torch.no_grad():
            read = to_torch(graph().replace(outputs=(node.inputs[0],))).eval()(torch.from_numpy(x))
        weight = graph().weights[f"{name}.weight"]
        columns = F.unfold(read, weight.shape[2:], padding=weight.shape[-1] // 2)
        norms = columns.square().mean((0, 2)).sqrt().numpy().reshape(-1, *weight.shape[1:])
        rows = np.repeat(norms, len(weight) // len(norms), axis=0)
        found = saliency(graph(), statistics, (f"{name}.weight",))[f"{name}.weight"]
        np.testing.assert_allclose(found, np.abs(weight) * rows, rtol=1e-4)


def test_masks_are_applied_to_a_new_graph() -> None:
    masks = unstructured(saliency(graph()), 0.25)
    before = graph().fingerprint
    masked = masks.apply(graph())
    assert graph().fingerprint == before
    for name, weight in graph().weights.items():
        expected = weight * masks.keep[name] if name in masks.keep else weight
        assert np.array_equal(masked.weights[name], expected)
    assert masks.apply(masked) == masked


def test_the_report_counts_zeros() -> None:
    masks = unstructured(saliency(graph(), names=("conv.weight", "fc.weight")), 0.25, "layer")
    found = {row.weight: row for row in report(masks.apply(graph()))}
    assert tuple(found) == WEIGHTS
    assert (found["fc.weight"].elements, found["fc.weight"].zeros, found["fc.weight"].density) == (40, 30, 0.25)
    assert found["first.weight"].zeros == 0


def test_masks_come_back_from_a_file(tmp_path: Path) -> None:
    masks = semi_structured(graph(), saliency(graph()), 2, 4)
    masks.save(tmp_path / "masks.safetensors")
    back = Masks.load(tmp_path / "masks.safetensors")
    assert back.keep.keys() == masks.keep.keys()
    assert all(np.array_equal(back.keep[name], mask) for name, mask in masks.keep.items())


def test_masks_hold_through_training() -> None:
    """Half of the steps' worth of gradients goes to masked elements; none of it may arrive."""
    rng = np.random.default_rng(0)
    data = Split(rng.normal(size=(32, 3, 8, 8)).astype(np.float32), rng.integers(0, 5, 32))
    masks = semi_structured(graph(), saliency(graph()), 2, 4)
    trained = finetune(graph(), data, Recipe(steps=3, batch=16, distill=0, augment=False), masks=masks.keep)
    for name, mask in masks.keep.items():
        assert not trained.weights[name][~mask].any()
        assert (trained.weights[name] != graph().weights[name]).any()
        assert np.count_nonzero(trained.weights[name]) == mask.sum()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: semi_structured(graph(), saliency(graph()), 4, 4), "0 < n < m; found 4:4"),
        (lambda: semi_structured(graph(), saliency(graph()), 2, 7), "no layer's inputs are a multiple of 7"),
        (lambda: unstructured(saliency(graph()), 0), r"density must be in \(0, 1\]; found 0"),
        (lambda: unstructured(saliency(graph()), 0.5, "rows"), "unknown scope 'rows'; did you mean 'row'"),
        (lambda: saliency(graph(), names=("conv.wait",)), "no layer has a weight that matches conv.wait"),
        (lambda: Masks({"conv.wait": np.ones(3, bool)}).apply(graph()), "lacks; did you mean 'conv.weight'"),
        (lambda: Masks({"fc.weight": np.ones((5, 7), bool)}).apply(graph()), r"is \[5, 7\]; expected \[5, 8\]"),
        (lambda: Masks({"fc.weight": np.ones((5, 8))}), "is float64; expected bool"),
        (lambda: Masks.load(Path(__file__)), "masks .*test_masks.py: "),
        (lambda: Masks.load("nowhere.safetensors"), "masks nowhere.safetensors: "),
    ],
)
def test_what_makes_no_sense_is_refused(make: object, message: str) -> None:
    with pytest.raises(InvalidPlan, match=message):
        make()  # type: ignore[operator]
