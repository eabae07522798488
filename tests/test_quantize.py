"""Post-training quantization: exact integers from a plan, what becomes integer where, one meaning on every target."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import msc_core as msc
from msc_core.backends import build, score
from msc_core.data import fashion_mnist
from msc_core.errors import InvalidPlan, MscError
from msc_core.infer import bind_symbols
from msc_core.ir import MSCGraph, Node, Tensor
from msc_core.plan import Plan, Quantized
from msc_core.tools.quantize.insert import floats, integers, quantize
from msc_core.tools.quantize.precision import Precision
from msc_core.tools.quantize.quantizer import Quantizer
from tests.micro_networks import Chain, Concat, Inverted, Pools, Residual, SqueezeExcite, TiedWeights, randomized

BASELINES = Path(__file__).parents[1] / "experiments" / "baselines"
NETWORKS = (Chain, Residual, Inverted, Concat, Pools, SqueezeExcite, TiedWeights)
TARGETS = ("torch", "onnxruntime", "tvm")


def imported(network: type[nn.Module], samples: int = 64) -> tuple[MSCGraph, np.ndarray]:
    torch.manual_seed(0)
    x = np.random.default_rng(0).normal(size=(samples, 3, 8, 8)).astype(np.float32)
    return msc.from_torch(randomized(network()), torch.zeros(2, 3, 8, 8), dynamic_shapes=({0: "N"},)), x


def run(graph: MSCGraph, x: np.ndarray, target: str = "torch") -> np.ndarray:
    fixed = bind_symbols(graph, N=len(x)) if target == "tvm" else graph
    with build(fixed, target) as runner:
        return next(iter(runner.run({graph.inputs[0]: x}).values()))


def sqnr(expected: np.ndarray, found: np.ndarray) -> float:
    """Signal to quantization noise, in decibels."""
    return float(10 * np.log10((expected**2).sum() / ((found - expected) ** 2).sum()))


# What a plan means


SHAPES = st.sampled_from([((4, 6), 0, 0), ((4, 6), 1, 0), ((4, 6), None, 0), ((4, 6), 0, 3), ((2, 3, 2, 2), 0, 6)])


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.integers(2, 16), st.booleans(), st.integers(0, 1000))
def test_integers_are_the_nearest_in_range(shape: tuple, bits: int, signed: bool, seed: int) -> None:
    """Against the definition, element by element."""
    (sizes, axis, block), rng = shape, np.random.default_rng(seed)
    array = rng.normal(size=sizes).astype(np.float32)
    count = 1 if axis is None else sizes[axis] * (array[0].size // block if block else 1)
    zero = rng.integers(0, 2, size=count)
    how = Quantized(bits, tuple(np.float32(rng.uniform(0.01, 1, count))), tuple(zero), signed, axis, block)
    found, low, high = integers(array, how), *how.limits
    for place in np.ndindex(*sizes):
        flat = place[0] * array[0].size + np.ravel_multi_index(place[1:], sizes[1:]) if axis == 0 else 0
        i = 0 if axis is None else flat // block if block else place[axis]
        expected = np.clip(np.rint(array[place] / np.float32(how.scale[i])) + zero[i], low, high)
        assert found[place] == expected
        np.testing.assert_allclose(floats(found, how)[place], (expected - zero[i]) * how.scale[i], rtol=1e-6)
    assert found.dtype == how.dtype


def dense(inputs: int = 4, outputs: int = 3) -> MSCGraph:
    """relu(linear(x)), read twice."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(size=(outputs, inputs)).astype(np.float32), "b": np.ones(outputs, np.float32)}
    tensors = {name: Tensor(name, array.shape) for name, array in weights.items()}
    tensors |= {"x": Tensor("x", ("N", inputs))}
    tensors |= {name: Tensor(name, ("N", outputs)) for name in ("l", "r", "s", "t")}
    nodes = (
        Node("l", "linear", ("x", "w", "b"), ("l",)), Node("r", "relu", ("l",), ("r",)),
        Node("s", "sigmoid", ("r",), ("s",)), Node("t", "tanh", ("r",), ("t",)),
    )  # fmt: skip
    return MSCGraph("dense", nodes, ("x",), ("s", "t"), weights, tensors)


def test_only_the_consumers_named_read_integers() -> None:
    found = quantize(dense(), {"r": Quantized(8, (0.1,), (3,), signed=False, consumers=("s",))})
    assert Counter(node.op for node in found.nodes)["quantize"] == 1
    assert found.node("t").inputs == ("r",)
    assert found.node("s").inputs == ("r.dequantize",)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("bits", "block"), [(8, 0), (4, 0), (4, 2), (2, 4), (12, 0)])
def test_a_weight_is_what_its_integers_stand_for(bits: int, block: int, target: str) -> None:
    graph = dense()
    how = Quantized(bits, (0.125,) * (3 * (4 // block if block else 1)), (0,) * (3 * (4 // block if block else 1)),
                    axis=0, block=block)  # fmt: skip
    found = quantize(graph, {"w": how})
    assert "w" not in found.weights
    rounded = graph.replace(weights={**graph.weights, "w": floats(integers(graph.weights["w"], how), how)})
    x = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    np.testing.assert_allclose(run(found, x, target), run(rounded, x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_sums_are_wider_than_a_byte(target: str) -> None:
    """MSC accumulated int8 products in int8. Here the largest products of 512 inputs come out exactly."""
    graph = dense(512, 4)
    weights = {"w": np.full((4, 512), 127, np.float32), "b": np.arange(4, dtype=np.float32)}
    plan = {"x": Quantized(8, (1.0,), (0,), signed=False), "w": Quantized(8, (1.0,), (0,))}
    found = quantize(graph.replace(weights=weights, nodes=graph.nodes[:1], outputs=("l",)), plan)
    assert found.weights["l.bias.int"].dtype == np.int32
    x = np.full((2, 512), 255, np.float32)
    np.testing.assert_array_equal(run(found, x, target), np.full((2, 4), 512 * 255 * 127) + np.arange(4.0))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"ww": Quantized(8, (1.0,))}, "quantize: no tensor 'ww'; did you mean 'w'"),
        ({"r": Quantized(8, (1.0,), consumers=("l",))}, "node 'l' does not read tensor 'r'"),
        ({"w": Quantized(8, (1.0,) * 4, (0,) * 4, axis=0)}, "tensor 'w' needs 3 scales; the plan has 4"),
        ({"w": Quantized(8, (1.0,) * 3, (0,) * 3, axis=2)}, "tensor 'w' has 2 axes; the plan's axis is 2"),
        ({"w": Quantized(4, (1.0,) * 4, (0,) * 4, axis=0, block=3)}, "blocks of 3 do not divide a row of 'w'"),
        ({"r": Quantized(4, (1.0,) * 3, (0,) * 3, axis=0, block=1)}, "blocks are for axis 0 of weights"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(how: dict[str, Quantized], message: str) -> None:
    graph = dense()
    before = graph.fingerprint
    with pytest.raises(InvalidPlan, match=message):
        msc.apply(Plan(before, quantize=how), graph)
    assert graph.fingerprint == before


# What a quantizer plans


@pytest.mark.parametrize("network", NETWORKS, ids=lambda n: n.__name__)
@pytest.mark.parametrize("target", TARGETS)
def test_int8_is_near_float_and_the_same_everywhere(network: type[nn.Module], target: str) -> None:
    """The gate that MSC switched off: integers must give what floats give, and every engine the same integers."""
    graph, x = imported(network)
    found = Quantizer(graph, x).compress(Quantizer(graph, x).plan())
    expected, simulated, here = run(graph, x), run(found, x), run(found, x, target)
    assert sqnr(expected, here) > 25
    assert sqnr(simulated, here) > sqnr(expected, simulated) + 6, "engines differ by less than quantization does"


@pytest.mark.parametrize("network", NETWORKS, ids=lambda n: n.__name__)
def test_more_bits_are_nearer(network: type[nn.Module]) -> None:
    graph, x = imported(network)
    quantizer = Quantizer(graph, x)
    expected = run(graph, x)
    found = [sqnr(expected, run(quantizer.compress(quantizer.plan(Precision(b, b))), x)) for b in (3, 5, 8, 12)]
    assert found == sorted(found)


def test_a_layer_is_quantized_as_it_asks() -> None:
    graph, x = imported(Residual)
    quantizer = Quantizer(graph, x)
    assert quantizer.layers == ("stem", "a", "b", "project", "c", "d", "fc")
    plan = quantizer.plan({"a": Precision(4, 8), "b": Precision(8, 0), "c": Precision(0, 8)})
    assert {name: plan.quantize[name].bits for name in plan.quantize if name.endswith("weight")} == {
        "a.weight": 4, "b.weight": 8,
    }  # fmt: skip
    assert (
        graph.node("b").inputs[0] not in plan.quantize or "b" not in plan.quantize[graph.node("b").inputs[0]].consumers
    )
    found = quantizer.compress(plan)
    assert found.node("c").inputs[1] == "c.weight"
    assert found.node("stem").inputs == graph.node("stem").inputs


def test_after_a_relu_all_codes_are_used_for_what_is_positive() -> None:
    graph, x = imported(Chain)
    plan = Quantizer(graph, x).plan()
    behind = [n.outputs[0] for n in graph.nodes if n.op == "relu"]
    assert {plan.quantize[name].zero_point for name in behind} == {(0,)}
    assert all(not plan.quantize[name].signed for name in behind)


def test_joined_tensors_share_a_scale() -> None:
    graph, x = imported(Concat)
    plan, joined = Quantizer(graph, x).plan(), next(n for n in graph.nodes if n.op == "concat")
    assert len({(plan.quantize[t].scale, plan.quantize[t].zero_point) for t in joined.inputs}) == 1


def test_a_channel_of_zeros_has_a_scale() -> None:
    """MSC divided by zero."""
    graph, x = imported(Chain)
    weights = {name: array.copy() for name, array in graph.weights.items()}
    weights["a.weight"][2] = 0
    weights["b.weight"][:] = 0
    dead = graph.replace(weights=weights)
    quantizer = Quantizer(dead, x)
    assert np.isfinite(run(quantizer.compress(quantizer.plan()), x)).all()


def test_bad_calibration_is_one_clear_error() -> None:
    graph, x = imported(Chain)
    with pytest.raises(MscError, match="calibration needs at least one input; found none"):
        Quantizer(graph, x[:0]).plan()
    broken = x.copy()
    broken[3, 0, 0, 0] = np.nan
    with pytest.raises(MscError, match="tensor 'x' is not finite on the calibration data"):
        Quantizer(graph, broken).plan()
    with pytest.raises(InvalidPlan, match="no layer 'aa' to quantize; did you mean 'a'"):
        Quantizer(graph, x).plan({"aa": Precision()})
    with pytest.raises(InvalidPlan, match="layer 'a': blocks of 5 do not divide a row"):
        Quantizer(graph, x).plan({"a": Precision(block=5)})
    with pytest.raises(InvalidPlan, match="the plan is for graph 0123"):
        Quantizer(graph, x).compress(Plan("0123"))


def test_weight_only_needs_no_data() -> None:
    graph, x = imported(Chain)
    plan = Quantizer(graph, x[:0]).plan(Precision(8, 0))
    assert set(plan.quantize) == {"a.weight", "b.weight", "fc.weight"}
    assert sqnr(run(graph, x), run(msc.apply(plan, graph), x)) > 30


def test_pruned_and_quantized_by_one_plan() -> None:
    graph, x = imported(Residual)
    kept = {"a": (0, 2, 4, 6, 8)}
    small = msc.apply(Plan(graph.fingerprint, kept), graph)
    plan = Plan(graph.fingerprint, kept, Quantizer(small, x).plan().quantize)
    assert msc.apply(plan, graph) == Quantizer(small, x).compress(dataclasses.replace(plan, graph=small.fingerprint))
    assert sqnr(run(small, x), run(msc.apply(plan, graph), x, "onnxruntime")) > 25


def test_a_plan_with_gptq_is_rounded_on_the_data_that_it_is_applied_with() -> None:
    graph, x = imported(Residual)
    quantizer = Quantizer(graph, x)
    plan = quantizer.plan(Precision(4, 0, rounding="gptq"))
    found = msc.apply(plan, graph, x)
    assert found == quantizer.compress(plan) != msc.apply(plan, graph)
    assert sqnr(run(graph, x), run(found, x)) > sqnr(run(graph, x), run(msc.apply(plan, graph), x))


# On trained networks


@pytest.fixture(scope="module", params=["resnet20", pytest.param("mobilenet", marks=pytest.mark.slow)])
def trained(request: pytest.FixtureRequest) -> tuple[MSCGraph, MSCGraph]:
    graph = MSCGraph.load(BASELINES / request.param)
    quantizer = Quantizer(graph, fashion_mnist().train.x[:256])
    return graph, quantizer.compress(quantizer.plan())


def test_onnxruntime_computes_in_integers_throughout(trained: tuple[MSCGraph, MSCGraph], tmp_path: Path) -> None:
    graph, found = trained
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(tmp_path / "optimized.onnx"), 3
    content = msc.to_onnx(found).SerializeToString()
    onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    ops = Counter(node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node)
    convolutions = sum(node.op == "conv2d" for node in graph.nodes)
    assert ops["QLinearConv"] == convolutions and ops["QGemm"] == 1
    assert not ops.keys() & {"Conv", "FusedConv", "Gemm", "MatMul", "Add", "DequantizeLinear"}


def test_accuracy_stays_and_torch_agrees_with_onnxruntime(trained: tuple[MSCGraph, MSCGraph]) -> None:
    graph, found = trained
    data = fashion_mnist().validation.head(1000)
    with build(graph, "onnxruntime") as runner:
        full = score(runner, data)
    with build(found, "onnxruntime") as runner:
        assert score(runner, data) >= full - 0.004
        here = next(iter(runner.run({graph.inputs[0]: data.x}).values())).argmax(1)
    assert (run(found, data.x).argmax(1) != here).mean() <= 0.003
