"""Quantization-aware training: gradients in closed form, scales that freeze, and integers that come back exactly."""

from __future__ import annotations

import copy
import functools

import numpy as np
import pytest
import torch
from torch import nn

import msc_core as msc
from msc_core.data import Split
from msc_core.errors import InvalidPlan
from msc_core.plan import Plan, Quantized
from msc_core.rewrite import drop_identities, fold_batch_norm
from msc_core.tools import apply
from msc_core.tools.finetune import Recipe, fit
from msc_core.tools.quantize.insert import floats, integers
from msc_core.tools.quantize.precision import Precision
from msc_core.tools.quantize.qat import finish, prepare
from msc_core.tools.quantize.qat_module import FakeQuant
from msc_core.tools.quantize.quantizer import Quantizer

WAYS = {
    "int8": Precision(),
    "weights of 4 bits": Precision(4, 0, "mse", rounding="gptq"),
    "4 and 6 bits": Precision(4, 6),
    "one scale, with a zero point": Precision(5, 8, per_channel=False, symmetric=False),
}


class Net(nn.Module):
    """A norm to fold, a residual, a concat whose inputs share a range, a pool."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.na = nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.b, self.c = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(16, 8, 3)
        self.fc = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.na(self.a(x)))
        x = torch.cat([x, torch.relu(x + self.b(x))], 1)
        return self.fc(nn.functional.max_pool2d(torch.relu(self.c(x)), 2).mean((2, 3)))


@functools.cache
def problem() -> tuple[msc.MSCGraph, Split]:
    """A network, and images in four classes: stripes down, across, both or neither, in noise."""
    torch.manual_seed(0)
    x, y = 0.5 * torch.randn(256, 1, 8, 8), torch.arange(256) % 4
    x[y % 2 == 0, :, :, ::2] += 1
    x[y // 2 == 0, :, ::2] += 1
    module = Net()
    for _ in range(30):
        module(x)
    graph = msc.from_torch(module.eval(), torch.zeros(2, 1, 8, 8), dynamic_shapes=({0: "N"},))
    return graph, Split(x.numpy(), y.numpy())


def planned(way: str) -> tuple[msc.MSCGraph, Split, Plan]:
    graph, data = problem()
    return graph, data, Quantizer(graph, data.x).plan(WAYS[way])


def run(graph: msc.MSCGraph, x: np.ndarray, target: str = "torch") -> np.ndarray:
    with msc.build(graph, target) as runner:
        (found,) = runner.run({graph.inputs[0]: x}).values()
    return found


def evaluated(module: nn.Module, x: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        found: np.ndarray = module.eval()(torch.from_numpy(x)).numpy()
    return found


@pytest.mark.parametrize("how", [
    Quantized(3, (0.5,)), Quantized(3, (0.5,), (2,), signed=False),
    Quantized(4, (0.1, 0.2, 0.4), (0, 1, -2), axis=1), Quantized(4, (0.1, 0.3, 0.2, 0.4), (0,) * 4, axis=0, block=6),
])  # fmt: skip
def test_gradients_in_closed_form(how: Quantized) -> None:
    x = torch.linspace(-2.1, 2.3, 24).reshape(2, 3, 4).requires_grad_()
    part = FakeQuant(how, None, learn=True)
    seed = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    found = part(x)
    (found * seed).sum().backward()
    array = x.detach().numpy()
    np.testing.assert_array_equal(found.detach().numpy(), floats(integers(array, how), how))
    view = ((4, 6), (4, 1)) if how.block else ((2, 3, 4), (1, 3, 1) if how.axis else ())
    scale, zero = (np.reshape(v, view[1]) for v in (how.scale, how.zero_point))
    v, g = array.reshape(view[0]) / scale, seed.numpy().reshape(view[0])
    low, high = how.limits
    inside = (np.rint(v) + zero >= low) & (np.rint(v) + zero <= high)
    assert inside.any() and not inside.all()
    np.testing.assert_array_equal(x.grad.numpy().reshape(view[0]) != 0, inside)
    np.testing.assert_allclose(x.grad.numpy().reshape(view[0]), g * inside, rtol=1e-6)
    slope = g * np.where(inside, np.rint(v) - v, (np.rint(v) + zero).clip(low, high) - zero)
    axes = tuple(i for i, n in enumerate(np.shape(scale)) if n == 1) if np.ndim(scale) else None
    expected = np.ravel(slope.sum(axis=axes)) / np.sqrt(x.numel() / len(how.scale) * high)
    np.testing.assert_allclose(part.scale.grad.numpy(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_before_training_it_is_what_the_plan_makes(way: str) -> None:
    graph, data, plan = planned(way)
    np.testing.assert_allclose(evaluated(prepare(graph, plan), data.x), run(apply(plan, graph), data.x), atol=2e-6)


@pytest.mark.parametrize("learn", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_trained_integers_come_back_exactly(way: str, learn: bool) -> None:
    graph, data, plan = planned(way)
    module = prepare(graph, plan, observe=5, learn=learn)
    trained = fit(module, data, Recipe(steps=40, batch=64, lr=5e-3, augment=False), validation=data)
    assert trained.history[-1][1] > trained.history[0][1] + 0.2, "it learns through the rounding"
    new, after = finish(module, graph, plan)
    assert after.quantize != plan.quantize and after.quantize.keys() == plan.quantize.keys()
    quantized = apply(after, new)
    with torch.no_grad():
        for name, how in after.quantize.items():
            if name in new.weights:
                fake = module._msc_found[name](torch.from_numpy(new.weights[name].copy())).numpy()
                np.testing.assert_array_equal(fake, floats(integers(new.weights[name], how), how))
                whole = quantized.weights[f"{name}.int"]
                np.testing.assert_array_equal(whole.reshape(fake.shape), integers(new.weights[name], how))
    expected = evaluated(module, data.x)
    found = run(quantized, data.x)
    np.testing.assert_allclose(found, expected, atol=2e-6 if way == "weights of 4 bits" else 1e-2)
    assert (found.argmax(1) == expected.argmax(1)).mean() > 0.99
    assert (run(quantized, data.x, "onnxruntime").argmax(1) == expected.argmax(1)).mean() > 0.98


def test_scales_follow_the_values_and_freeze() -> None:
    graph, data, plan = planned("int8")
    module = prepare(graph, plan, observe=3)
    x = torch.from_numpy(data.x[:32])

    def scales(factor: float) -> list[torch.Tensor]:
        module(x * factor)
        return [part.scale.clone() for part in module._msc_rounding]

    module.eval()
    before = scales(3)
    module.train()
    moved = [scales(3) for _ in range(3)][-1]
    frozen = scales(9)
    module.get_parameter("b.weight").data.mul_(2)
    assert not all(torch.equal(a, b) for a, b in zip(before, moved, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(moved, frozen, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(frozen, scales(1), strict=True))
    again = copy.deepcopy(prepare(graph, plan, observe=3))
    again.load_state_dict(module.state_dict())
    again.train()(x * 9)
    assert all(torch.equal(a, part.scale) for a, part in zip(frozen, again._msc_rounding, strict=True)), "resumed"


def test_tensors_of_one_range_stay_so() -> None:
    graph, data, plan = planned("int8")
    module = prepare(graph, plan)
    module.train()(torch.from_numpy(data.x[:32] * 2))
    new, after = finish(module, graph, plan)
    joined = next(node for node in new.nodes if node.op == "concat")
    (first, *others) = (after.quantize[name] for name in (*joined.inputs, *joined.outputs))
    assert all(how.scale == first.scale and how.zero_point == first.zero_point for how in others)


def test_what_is_no_plan_to_train_with_is_refused() -> None:
    graph, _, plan = planned("int8")
    with pytest.raises(InvalidPlan, match="the plan is for graph"):
        prepare(drop_identities(fold_batch_norm(graph)), plan)
    with pytest.raises(InvalidPlan, match="prune first, cast last"):
        prepare(graph, Plan(graph.fingerprint, cast={"a": "float16"}))
    with pytest.raises(InvalidPlan, match=r"no tensor 'a.wieght'; did you mean 'a.weight'"):
        prepare(graph, Plan(graph.fingerprint, quantize={"a.wieght": Quantized(8, (1.0,))}))
