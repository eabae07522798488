"""The tracker finds what was broken on purpose, on every back end, and nothing where nothing is broken."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import msc_core as msc
from msc_core.channels import Channels
from msc_core.data import fashion_mnist
from msc_core.errors import InvalidPlan, MscError
from msc_core.infer import infer
from msc_core.rewrite import drop_identities, fold_batch_norm
from msc_core.tools.prune import Pruner
from msc_core.tools.quantize.casts import cast, castable
from msc_core.tools.quantize.insert import quantize
from msc_core.tools.quantize.quantizer import Quantizer
from msc_core.tools.track import Stage, track, track_stages
from msc_core.tools.track.errors import Sums

BASELINES = Path(__file__).parents[1] / "experiments" / "baselines"
TARGETS = ("torch", "onnxruntime", "tvm")


class Deep(nn.Module):
    """Five layers and a residual, so that an error has somewhere to go."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.na = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.b, self.c = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.d, self.fc = nn.Conv2d(8, 12, 3), nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.na(self.a(x)))
        x = x + torch.relu(self.c(torch.relu(self.b(x))))
        return self.fc(nn.functional.max_pool2d(torch.relu(self.d(x)), 2).mean((2, 3)))


@functools.cache
def network() -> tuple[msc.MSCGraph, np.ndarray]:
    torch.manual_seed(0)
    module = Deep()
    x = torch.randn(8, 3, 8, 8)
    for _ in range(20):
        module(x)  # running statistics
    graph = msc.from_torch(module.eval(), torch.zeros(2, 3, 8, 8), dynamic_shapes=({0: "N"},))
    return graph, x.numpy()


def with_weight(graph: msc.MSCGraph, name: str, array: np.ndarray) -> msc.MSCGraph:
    return graph.replace(weights={**graph.weights, name: array.astype(np.float32)})


def with_attr(graph: msc.MSCGraph, name: str, **attrs: object) -> msc.MSCGraph:
    nodes = [dataclasses.replace(n, attrs={**n.attrs, **attrs}) if n.name == name else n for n in graph.nodes]
    return graph.replace(nodes=tuple(nodes))


def integers(graph: msc.MSCGraph, x: np.ndarray, bits: int = 8, block: int = 0) -> msc.MSCGraph:
    """The folded graph with what its layers read rounded to integers, by the largest values on `x`."""
    graph = drop_identities(fold_batch_norm(graph))
    layers = [graph.node(name) for name in ("b", "c", "d", "fc")]
    with msc.build(graph.replace(outputs=tuple(node.inputs[0] for node in layers)), "torch") as runner:
        largest = {name: float(np.abs(value).max()) for name, value in runner.run({graph.inputs[0]: x}).items()}
    how = {name: msc.Quantized(bits, (most / (2 ** (bits - 1) - 1),)) for name, most in largest.items()}
    for name in (node.inputs[1] for node in layers):
        weight = graph.weights[name]
        runs = np.abs(weight.reshape(-1, block or weight[0].size)).max(1) / (2 ** (bits - 1) - 1)
        how[name] = msc.Quantized(bits, tuple(runs), (0,) * len(runs), axis=0, block=block)
    return quantize(graph, how)


# Nothing is broken


@pytest.mark.parametrize("target", TARGETS)
def test_back_ends_agree_on_every_tensor(target: str) -> None:
    graph, x = network()
    found = track(graph, graph, x, target)
    assert found.first is None and found.samples == 8
    assert [row.tensor for row in found.rows] == [name for node in graph.nodes for name in node.outputs]
    assert max(row.error for row in found.rows) < 1e-5
    assert min(row.sqnr for row in found.rows) > 100 and min(row.cosine for row in found.rows) > 1 - 1e-6


@pytest.mark.parametrize("target", TARGETS)
def test_a_healthy_int8_network_has_no_wrong_layer(target: str) -> None:
    graph, x = network()
    found = track(graph, integers(graph, x), x, target)
    assert found.first is None
    stored = {row.reference: row for row in found.rows if row.op == "dequantize"}
    assert set(stored) == {graph.node(name).inputs[0] for name in ("b", "c", "d", "fc")}
    assert all(1e-4 < row.error < 0.05 for row in stored.values())


@pytest.mark.parametrize(("bits", "block"), [(4, 0), (8, 4), (12, 0)])
def test_other_bit_widths_and_blocks_are_understood(bits: int, block: int) -> None:
    graph, x = network()
    found = track(graph, integers(graph, x, bits, block), x)
    assert found.first is None
    assert [row.reference for row in found.rows if row.op == "dequantize"] == [
        graph.node(name).inputs[0] for name in ("b", "c", "d", "fc")
    ]


@pytest.mark.parametrize(
    ("target", "dtype", "least", "most"),
    [("torch", "float16", 1e-5, 1e-2), ("onnxruntime", "float16", 1e-5, 1e-2), ("torch", "bfloat16", 1e-3, 5e-2)],
)
def test_half_precision_explains_its_own_error(target: str, dtype: str, least: float, most: float) -> None:
    graph, x = network()
    half = cast(graph, castable(graph, dtype))
    found = track(graph, half, x, target)
    assert found.first is None and least < max(row.error for row in found.rows) < most
    weights = {**half.weights, "d.weight": -half.weights["d.weight"]}
    first = track(graph, half.replace(weights=weights), x, target).first
    assert first is not None and first.node == "d"


def test_folded_norms_keep_their_names() -> None:
    graph, x = network()
    found = track(graph, fold_batch_norm(graph), x)
    assert found.first is None
    assert graph.node("na").outputs[0] in {row.tensor for row in found.rows}


# Something is broken


@pytest.mark.parametrize(("target", "layer"), [*((target, "d") for target in TARGETS), ("torch", "b")])
def test_a_corrupted_weight_is_found(target: str, layer: str) -> None:
    graph, x = network()
    weight = graph.weights[f"{layer}.weight"].copy()
    weight[3] *= -1
    found = track(graph, with_weight(graph, f"{layer}.weight", weight), x, target)
    assert found.first is not None and found.first.node == layer
    assert found.causes == (found.causes[0],) and found.causes[0].startswith(
        f"weight '{layer}.weight' (input 1) differs"
    )
    assert found.rows[-1].error > 1e-2, "it reaches the output, which is not what is pointed at"


@pytest.mark.parametrize(("target", "factor"), [*((target, 0.2) for target in TARGETS), ("torch", 60.0)])
def test_a_wrong_scale_is_found(target: str, factor: float) -> None:
    """Too small a scale cuts values off, too large a one rounds them away."""
    graph, x = network()
    quantized, read = integers(graph, x), graph.node("d").inputs[0]
    scale = f"{read}.scale"
    broken = with_weight(quantized, scale, quantized.weights[scale] * factor)
    found = track(graph, broken, x, target)
    assert found.first is not None and (found.first.op, found.first.reference) == ("dequantize", read)
    assert "int8 at scale" in found.causes[0]


@pytest.mark.parametrize("target", TARGETS)
def test_a_wrong_scale_of_a_weight_is_found(target: str) -> None:
    graph, x = network()
    quantized = integers(graph, x)
    found = track(graph, with_weight(quantized, "c.weight.scale", quantized.weights["c.weight.scale"] * 2), x, target)
    assert found.first is not None and found.first.node == "c"
    assert "weight 'c.weight' (input 1) differs" in found.causes[0]


@pytest.mark.parametrize("target", TARGETS)
def test_a_wrong_attribute_is_found(target: str) -> None:
    graph, x = network()
    found = track(graph, with_attr(graph, "na", eps=0.5), x, target)
    assert found.first is not None and found.first.node == "na"
    assert found.causes == (f"eps is 0.5, not {dict(graph.node('na').attrs).get('eps', 1e-5)}",)


def test_a_wrong_stride_shows_as_a_shape() -> None:
    graph, x = network()
    found = track(graph, infer(with_attr(graph, "d", dilation=(2, 2))), x)
    assert found.first is not None and (found.first.node, found.first.note[:13]) == ("d", "shape differs")
    assert found.causes == ("dilation is (2, 2), not (1, 1)",)
    assert [row.tensor for row in found.rows if row.wrong] == [found.first.tensor]


def test_what_is_not_finite_is_wrong() -> None:
    graph, x = network()
    weight = graph.weights["c.weight"].copy()
    weight[0, 0, 0, 0] = np.inf
    found = track(graph, with_weight(graph, "c.weight", weight), x)
    assert found.first is not None and (found.first.node, found.first.note) == ("c", "not finite")
    assert found.causes == ("weight 'c.weight' (input 1) is not finite",)


def test_a_residual_that_reads_another_tensor_is_found() -> None:
    graph, x = network()
    add = next(node for node in graph.nodes if node.op == "add")
    other = graph.node("na").outputs[0]
    nodes = [dataclasses.replace(n, inputs=(other, n.inputs[1])) if n is add else n for n in graph.nodes]
    found = track(graph, graph.replace(nodes=tuple(nodes)), x)
    assert found.first is not None and found.first.node == add.name
    assert found.causes == (f"input 0 is {other!r}, not {add.inputs[0]!r}",)


def test_a_trained_network_in_int8_is_healthy_until_one_bias_is_not() -> None:
    graph, data = msc.MSCGraph.load(BASELINES / "resnet20"), fashion_mnist()
    quantizer = Quantizer(graph, data.train.x[:100])
    quantized, x = quantizer.compress(quantizer.plan()), data.validation.x[:16]
    healthy = track(graph, quantized, x, "onnxruntime")
    assert healthy.first is None and min(row.sqnr for row in healthy.rows) > 20
    name = next(n for n in quantized.weights if n.endswith("bias.int") and "4.body2" in n)
    bias = quantized.weights[name] * 50
    broken = quantized.replace(weights={**quantized.weights, name: bias})
    found = track(graph, broken, x, "onnxruntime", reference_target="onnxruntime")
    assert found.first is not None and name.startswith(found.first.node)
    assert any("(input 2) differs" in cause for cause in found.causes)


# Pruning


def test_pruned_tensors_are_compared_on_the_channels_that_are_left() -> None:
    graph, x = network()
    groups = [g for g in Channels(graph, divisor=1).groups if not g.reason]
    plan = msc.Plan(graph.fingerprint, {groups[-1].name: tuple(range(0, groups[-1].size, 2))})
    pruned = msc.apply(plan, graph)
    found = track(graph, pruned, x, "onnxruntime", plan=plan)
    rows = {row.node: row for row in found.rows}
    assert rows["d"].error < 1e-6, "what is left of the layer computes what it did"
    assert rows["fc"].error > 0.05 and rows["fc"].note == ""
    blind = {row.node: row for row in track(graph, pruned, x).rows}
    assert blind["d"].note == f"shape differs: expected {[8, 12, 6, 6]}" and not blind["d"].wrong
    assert math.isnan(blind["d"].error) and blind["c"].error < 1e-6
    with pytest.raises(InvalidPlan, match="the plan is for graph"):
        track(pruned, graph, x, plan=plan)


def test_a_fault_in_a_pruned_and_recovered_network_is_found() -> None:
    graph, x = network()
    pruner = Pruner(graph, x, divisor=1)
    plan = pruner.plan({g.name: max(1, g.size * 3 // 4) for g in pruner.groups})
    pruned = pruner.compress(plan)
    assert track(graph, pruned, x, plan=plan).first is None
    found = track(graph, with_weight(pruned, "d.weight", -pruned.weights["d.weight"]), x, plan=plan)
    assert found.first is not None and found.first.node == "d"


# Selection, stages, memory


def test_globs_select_tensors_and_errors_come_from_the_nearest_of_them() -> None:
    graph, x = network()
    names = [graph.node(name).outputs[0] for name in ("b", "fc")]
    broken = with_weight(graph, "c.weight", -graph.weights["c.weight"])
    found = track(graph, broken, x, tensors=names)
    assert [row.tensor for row in found.rows] == names
    assert found.first is not None and found.first.node == "fc", "the first of the selected"
    with pytest.raises(MscError, match="no tensor of both graphs matches 'zz\\*'; they share"):
        track(graph, graph, x, tensors=("*", "zz*"))


def test_stages_are_compared_as_they_are_named() -> None:
    graph, x = network()
    quantized = integers(graph, x)
    stages = {"baseline": Stage(graph), "optimize": Stage(quantized), "compile": Stage(quantized, "onnxruntime")}
    found = track_stages(stages, x, batch=4)
    assert list(found) == [("optimize", "baseline"), ("compile", "optimize"), ("compile", "baseline")]
    assert all(comparison.first is None for comparison in found.values())
    compiled = found["compile", "optimize"]
    assert {row.op for row in compiled.rows} >= {"quantize", "dequantize", "conv2d"}
    assert max(row.error for row in compiled.rows) < 0.02 < 0.5 < min(row.cosine for row in compiled.rows)
    with pytest.raises(MscError, match="no stage 'optimise'; did you mean 'optimize'"):
        track_stages(stages, x, {"optimise": ["baseline"]})


def test_little_memory_and_small_batches_change_nothing() -> None:
    graph, x = network()
    quantized = integers(graph, x)
    whole, parts = track(graph, quantized, x, batch=8), track(graph, quantized, x, batch=3, memory=1000)
    assert parts.samples == 8
    for a, b in zip(whole.rows, parts.rows, strict=True):
        for measure in ("absolute", "error", "cosine", "jump"):
            assert getattr(a, measure) == pytest.approx(getattr(b, measure), rel=1e-3, abs=1e-6)


def test_several_inputs_and_other_dtypes() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.relu(x)[index] * 2, x > 0

    graph = msc.from_torch(Two(), (torch.zeros(4, 3), torch.zeros(2, dtype=torch.int64)))
    feeds = {graph.inputs[0]: np.eye(4, 3, dtype=np.float32), graph.inputs[1]: np.array([1, 3])}
    assert track(graph, graph, feeds, "onnxruntime").first is None


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (np.zeros((0, 3, 8, 8), np.float32), "is empty"),
        (np.full((2, 3, 8, 8), np.nan, np.float32), "is not finite"),
        ({"y": np.zeros((2, 3, 8, 8), np.float32)}, "is missing"),
        (np.zeros((2, 3, 9, 8), np.float32), r"expected float32\[2, 3, 8, 8\], found float32\[2, 3, 9, 8\]"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(inputs: object, message: str) -> None:
    graph, _ = network()
    with pytest.raises(MscError, match=message):
        track(graph, graph, inputs)


# Measures and reports


def test_measures_are_those_of_all_batches_as_one_array() -> None:
    draw = np.random.default_rng(0)
    r, c = draw.normal(size=(6, 5)), draw.normal(size=(6, 5))
    sums = Sums()
    for part in range(3):
        sums.add(r[2 * part : 2 * part + 2], c[2 * part : 2 * part + 2])
    assert sums.error == pytest.approx(np.linalg.norm(c - r) / np.linalg.norm(r))
    assert sums.cosine == pytest.approx((r * c).sum() / np.linalg.norm(r) / np.linalg.norm(c))
    assert sums.sqnr == pytest.approx(10 * np.log10((r**2).sum() / ((r - c) ** 2).sum()))
    assert (sums.largest, sums.relative) == (abs(c - r).max(), abs(c - r).max() / abs(r).max())
    same, zero = Sums(), Sums()
    same.add(r, r)
    zero.add(0 * r, 0 * r)
    for found in (same, zero):
        assert (found.error, found.sqnr, found.cosine) == (0, math.inf, pytest.approx(1))
    lost = Sums()
    lost.add(np.array([1.0, np.inf]), np.array([np.nan, np.inf]))
    assert lost.error == math.inf and lost.sqnr == -math.inf
    both = Sums()
    both.add(np.array([1.0, -np.inf]), np.array([1.0, -np.inf]))
    assert both.error == 0, "a mask of -inf is none of the candidate's faults"


def test_reports_say_where_it_began() -> None:
    graph, x = network()
    odd = with_weight(graph, "c.weight", graph.weights["c.weight"] * np.inf).replace(name="<b>&")
    found = track(graph, odd, x)
    assert found.first is not None
    text = found.to_text()
    assert f"First to go wrong: conv2d 'c', tensor '{found.first.tensor}': not finite" in text
    assert len(text.splitlines()) > len(found.rows)
    data = json.loads(found.to_json())
    assert data["first"] == found.first.tensor and len(data["rows"]) == len(found.rows)
    assert next(row for row in data["rows"] if row["node"] == "c")["error"] is None
    page = found.to_html()
    assert "&lt;b&gt;&amp;" in page and "<b>&" not in page and page.count("<tr") == len(found.rows) + 1
    assert 'class="first"' in page
    clean = track(graph, graph, x).to_text()
    assert "No layer adds an error above 0.001" in clean
