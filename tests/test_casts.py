"""Half precision as casts: torch's own half modules are the oracle, and a cast stands only where a dtype ends."""

from __future__ import annotations

import copy
import functools
from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn

import msc_core as msc
from msc_core.errors import InvalidPlan, MscError
from msc_core.infer import infer
from msc_core.plan import Plan
from msc_core.rewrite import drop_identities, fold_batch_norm
from msc_core.tools import apply
from msc_core.tools.quantize.casts import cast, castable

TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2}  # of the largest value: a few units in the last place


class Net(nn.Module):
    """A residual, a tied weight, an embedding beside it, a norm and a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm, self.table = nn.LayerNorm(8), nn.Embedding(5, 8)
        self.up, self.down = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.down.weight = self.up.weight

    def forward(self, x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.relu(self.a(x))
        x = (x + torch.relu(self.b(x))).mean((2, 3)) + self.table(i)
        y = self.down(torch.relu(self.up(self.norm(x))))
        return y, torch.softmax(y, 1)


@functools.cache
def network() -> tuple[Net, msc.MSCGraph, dict[str, np.ndarray]]:
    torch.manual_seed(0)
    module, x, i = Net().eval(), torch.randn(2, 3, 6, 6), torch.tensor([1, 4])
    return module, msc.from_torch(module, (x, i)), {"x": x.numpy(), "i": i.numpy()}


def run(graph: msc.MSCGraph, feeds: dict[str, np.ndarray], target: str = "torch") -> list[np.ndarray]:
    with msc.build(graph, target) as runner:
        return list(runner.run(feeds).values())


def close(found: list[np.ndarray], expected: list[np.ndarray], tolerance: float) -> None:
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == np.float32
        np.testing.assert_allclose(a, b, atol=tolerance * np.abs(b).max())


def casts(graph: msc.MSCGraph) -> list[tuple[str, object]]:
    return [(node.inputs[0], node.attrs["dtype"]) for node in graph.nodes if node.op == "cast"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_node_cast_is_torchs_own_half(dtype: str) -> None:
    module, graph, feeds = network()
    found = cast(graph, dict.fromkeys((node.name for node in graph.nodes), dtype))
    assert Counter(d for _, d in casts(found)) == {dtype: 1, "float32": 2}, "at the borders of the graph only"
    half = copy.deepcopy(module).to(getattr(torch, dtype))
    with torch.no_grad():
        expected = half(torch.from_numpy(feeds["x"]).to(getattr(torch, dtype)), torch.from_numpy(feeds["i"]))
    close(run(found, feeds), [value.float().numpy() for value in expected], 1e-6)


@pytest.mark.parametrize(
    ("dtype", "target"),
    [("float16", "torch"), ("float16", "onnxruntime"), ("float16", "tvm"), ("bfloat16", "torch")],
)
def test_back_ends_compute_what_is_castable(dtype: str, target: str) -> None:
    _, graph, feeds = network()
    chosen = castable(graph, dtype)
    ops = {graph.node(name).op for name in chosen}
    assert {"conv2d", "linear", "embedding"} <= ops and not ops & {"layer_norm", "softmax", "mean"}
    found = cast(graph, chosen)
    assert infer(found).tensors == found.tensors
    close(run(found, feeds, target), run(graph, feeds), TOLERANCE[dtype])


@pytest.mark.parametrize("seed", range(8))
def test_no_cast_is_for_nothing(seed: int) -> None:
    _, graph, feeds = network()
    generator = np.random.default_rng(seed)
    dtypes = {n.name: d for n in graph.nodes if (d := generator.choice(["", "float16", "bfloat16"]))}
    found = cast(graph, dtypes)
    assert infer(found).tensors == found.tensors
    made = casts(found)
    assert len(made) == len(set(made)), "one cast for each tensor and dtype"
    behind = {node.outputs[0] for node in found.nodes if node.op == "cast"}
    assert not behind & {source for source, _ in made} - set(found.outputs), "no cast of a cast"
    assert all(found.tensors[source].dtype != dtype for source, dtype in made)
    assert [found.tensors[name] for name in found.outputs] == [graph.tensors[name] for name in graph.outputs]
    close(run(found, feeds), run(graph, feeds), TOLERANCE["bfloat16"])


def test_weights_are_stored_in_the_dtype_that_reads_them() -> None:
    _, graph, _ = network()
    up, down = (node.name for node in graph.nodes if node.op == "linear")
    (tied,) = {graph.node(up).inputs[1], graph.node(down).inputs[1]}
    one = cast(graph, {up: "float16"})
    assert one.node(up).inputs[1] == f"{tied}.float16" and one.node(down).inputs[1] == tied
    both = cast(graph, {up: "float16", down: "float16"})
    assert both.node(up).inputs[1] == both.node(down).inputs[1] == tied
    assert both.weights[tied].dtype == np.float16
    assert all(np.array_equal(both.weights[name], w) for name, w in graph.weights.items() if name != tied)


def test_a_plan_casts_and_an_empty_one_does_nothing() -> None:
    _, graph, feeds = network()
    assert cast(graph, {}) is graph
    folded = drop_identities(fold_batch_norm(graph))
    plan = Plan(graph.fingerprint, cast=castable(folded, "float16"))
    close(run(apply(plan, graph), feeds), run(cast(folded, plan.cast), feeds), 0)


def test_what_float16_cannot_hold_stays_wide_or_is_refused() -> None:
    _, graph, _ = network()
    big = graph.replace(weights={**graph.weights, "a.weight": graph.weights["a.weight"] * 1e6})
    assert "a" not in castable(big, "float16") and "a" in castable(big, "bfloat16")
    with pytest.raises(InvalidPlan, match=r"weight 'a\.weight' has .*65504"):
        cast(big, {"a": "float16"})


def test_bad_choices_are_refused() -> None:
    _, graph, _ = network()
    with pytest.raises(InvalidPlan, match="no node 'sofmax'; did you mean 'softmax'"):
        cast(graph, {"sofmax": "float16"})
    with pytest.raises(InvalidPlan, match="unknown dtype 'float61'; did you mean 'float16'"):
        cast(graph, {"a": "float61"})
    once = cast(graph, {"a": "float16"})
    fixed = next(node.name for node in once.nodes if node.op == "cast")
    with pytest.raises(InvalidPlan, match=r"\(cast\) cannot compute in float16"):
        cast(once, {fixed: "float16"})
    with pytest.raises(MscError, match=r"'a': in ONNX opset .* Conv does not take bfloat16"):
        msc.build(cast(graph, {"a": "bfloat16"}), "onnxruntime")
