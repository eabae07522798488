"""Targets and runners: one contract, run against every backend that this machine has."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

from msc_core import MscError, MSCGraph, Node, Tensor, from_torch
from msc_core.backends import BACKENDS, Runner, Target, available, build, compare, load
from msc_core.backends.target import KNOWN
from msc_core.errors import Unavailable
from msc_core.infer import bind_symbols

TARGETS = [name for name in BACKENDS if available(name)[0]]


@pytest.fixture(scope="module")
def net() -> tuple[nn.Module, MSCGraph]:
    torch.manual_seed(0)
    parts = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    module = nn.Sequential(*parts, nn.Linear(8, 5)).eval()
    return module, from_torch(module, torch.randn(2, 3, 8, 8), dynamic_shapes=({0: "N"},))


@pytest.fixture(scope="module", params=TARGETS)
def runner(request, net):
    with build(net[1], request.param) as runner:
        yield runner


def batch(runner: Runner) -> int:
    """2 where the batch is open; TVM fixes it at 1."""
    return 1 if runner.inputs[0].shape[0] == 1 else 2


def images(count: int) -> np.ndarray:
    return np.random.default_rng(count).standard_normal((count, 3, 8, 8)).astype(np.float32)


# Targets


@pytest.mark.parametrize(
    "text",
    [
        "onnxruntime",
        "torch",
        "torch:compile",
        "tvm",
        "tvm:llvm -mcpu=native",
        "tensorrt:fp16",
        "openvino",
        "tensorflow",
    ],
)
def test_a_target_round_trips(text):
    assert str(Target.parse(text)) == text
    assert Target.parse(str(Target.parse(text))) == Target.parse(text)


def test_a_target_splits_into_backend_and_options():
    assert Target.parse(" tvm:llvm  -mcpu=native ") == Target("tvm", ("llvm", "-mcpu=native"))
    assert Target.parse("torch:") == Target("torch")
    assert len({Target.parse("torch"), Target("torch"), Target("tvm")}) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("onnxruntme", "did you mean 'onnxruntime'"),
        ("zzz:fp16", "known: onnxruntime, openvino"),
        ("", "unknown backend ''"),
    ],
)
def test_an_unknown_backend_is_refused(text, message):
    with pytest.raises(MscError, match=message):
        Target.parse(text)


@pytest.mark.parametrize("target", ["torch:compil", "onnxruntime:cdua"])
def test_an_unknown_option_is_refused(net, target):
    with pytest.raises(MscError, match=f"target '{target}': unknown option .*; did you mean"):
        build(net[1], target)


@pytest.mark.parametrize("name", KNOWN)
def test_availability_has_a_reason(name, net):
    usable, reason = available(name)
    assert usable or reason
    if name not in BACKENDS:
        assert reason == "no backend for it in this version yet"
    if not usable:
        with pytest.raises(Unavailable, match=f"target '{name}': {reason}"):
            build(net[1], name)


def test_cuda_without_a_gpu_says_so(net):
    for target in ("torch:cuda", "onnxruntime:cuda"):
        usable, reason = available(target)
        assert usable or "CUDA" in reason


# Every backend


@pytest.mark.parametrize("count", [1, 3])
def test_any_batch_agrees_with_torch(runner, net, count):
    x = images(count if batch(runner) > 1 else 1)
    with torch.no_grad():
        expected = net[0](torch.from_numpy(x)).numpy()
    found = runner.run({net[1].inputs[0]: x})
    assert list(found) == list(net[1].outputs)
    (output,) = found.values()
    assert output.dtype == np.float32
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)


def test_describes_its_inputs_and_outputs(runner, net):
    graph = bind_symbols(net[1], N=1) if batch(runner) == 1 else net[1]
    assert runner.inputs == tuple(graph.tensors[name] for name in graph.inputs)
    assert runner.outputs == tuple(graph.tensors[name] for name in graph.outputs)


def test_exported_and_loaded_it_is_the_same(runner, tmp_path):
    runner.export(tmp_path)
    assert json.loads((tmp_path / "runner.json").read_text())["target"] == str(runner.target)
    with load(tmp_path) as twin:
        assert (twin.target, twin.inputs, twin.outputs) == (runner.target, runner.inputs, runner.outputs)
        assert compare(twin, runner, {"input": images(batch(runner))}) == 0


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, r"expected the inputs \['input'\], found \[\]"),
        ({"inptu": images(1)}, r"found \['inptu'\]: 'inptu' is unknown; did you mean 'input'"),
        ({"input": images(1), "y": images(1)}, r"expected the inputs \['input'\], found \['input', 'y'\]"),
        ({"input": images(1).astype(np.float64)}, r"expected float32\[.*, 3, 8, 8\].*found float64\[1, 3, 8, 8\]"),
        ({"input": images(1)[:, :2]}, r"expected float32\[.*, 3, 8, 8\].*found float32\[1, 2, 8, 8\]"),
        ({"input": images(1)[0]}, r"found float32\[3, 8, 8\]"),
    ],
)
def test_feeds_that_do_not_fit_are_refused(runner, feeds, message):
    with pytest.raises(MscError, match=message):
        runner.run(feeds)


def test_what_it_is_fed_stays_as_it_is(runner):
    x = images(batch(runner))
    before = x.copy()
    x.flags.writeable = False
    runner.run({"input": x})
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("target", TARGETS)
def test_closed_it_does_not_run(target, net):
    runner = build(net[1], target)
    runner.close()
    runner.close()
    with pytest.raises(MscError, match="closed"):
        runner.run({"input": images(1)})


@pytest.mark.parametrize("target", TARGETS)
def test_several_inputs_and_outputs_by_odd_names(target):
    tensors = {name: Tensor(name, ("N", 2)) for name in ("a", "b:0", "d", "é.s")}
    nodes = (Node("d", "subtract", ("a", "b:0"), ("d",)), Node("s", "add", ("d", "b:0"), ("é.s",)))
    graph = MSCGraph("two", nodes, ("a", "b:0"), ("é.s", "d"), {}, tensors)
    a, b = np.float32([[1, 2], [3, 4]]), np.float32([[5, 7], [9, 11]])
    with build(graph, target) as runner:
        a, b = a[: batch(runner)], b[: batch(runner)]
        found = runner.run({"b:0": b, "a": a})
        assert list(found) == ["é.s", "d"]
        np.testing.assert_array_equal(found["é.s"], a)
        np.testing.assert_array_equal(found["d"], a - b)
        with pytest.raises(MscError, match=r"'b:0': expected float32\[.*, 2\].*, found float32\[3, 2\]"):
            runner.run({"a": a, "b:0": np.zeros((3, 2), np.float32)})


@pytest.mark.parametrize("target", [t for t in TARGETS if t != "tvm"])
def test_an_input_that_is_an_output(target):
    graph = MSCGraph("through", (), ("x",), ("x",), {}, {"x": Tensor("x", (2,))})
    with build(graph, target) as runner:
        x = np.float32([1, 2])
        np.testing.assert_array_equal(runner.run({"x": x})["x"], x)


def test_threads_of_torch_outlive_a_run(net):
    before = torch.get_num_threads()
    with build(net[1], "torch", threads=before + 1) as runner:
        runner.run({"input": images(1)})
    assert torch.get_num_threads() == before


@pytest.mark.slow
def test_torch_compile_agrees(net):
    with build(net[1], "torch:compile") as compiled, build(net[1], "torch") as eager:
        assert compare(compiled, eager, {"input": images(2)}) < 1e-5


# Files


@pytest.mark.parametrize("target", TARGETS)
def test_a_damaged_export_is_refused(target, net, tmp_path):
    with pytest.raises(MscError, match=r"holds no runner\.json"):
        load(tmp_path)
    with build(net[1], target) as runner:
        runner.export(tmp_path)
    for path in tmp_path.iterdir():
        content = path.read_bytes()
        damaged = [content[: len(content) // 2], content[:-1] + bytes([content[-1] ^ 1])]
        for text in damaged if path.name != "runner.json" else damaged[:1]:
            path.write_bytes(text)
            with pytest.raises(MscError, match=path.name):
                load(tmp_path)
        path.unlink()
        with pytest.raises(MscError, match=f"holds no {path.name}"):
            load(tmp_path)
        path.write_bytes(content)
    load(tmp_path).close()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 99}', '{"schema": 1, "target": "zzz"}', "\xff"])
def test_a_damaged_manifest_is_refused(text, tmp_path):
    (tmp_path / "runner.json").write_text(text, "latin-1")
    with pytest.raises(MscError, match=r"runner\.json"):
        load(tmp_path)


# Comparing


class Constant:
    """A runner that answers one array."""

    def __init__(self, value: list[float], name: str = "y") -> None:
        self.value = {name: np.float32(value)}

    def run(self, feeds: object) -> dict[str, np.ndarray]:
        return self.value


def test_compare_is_relative_to_the_largest_value():
    assert compare(Constant([1, 9.0]), Constant([1, 10.0]), {}) == pytest.approx(0.1)
    assert compare(Constant([0, 0]), Constant([0, 0]), {}) == 0
    assert compare(Constant([0.5]), Constant([0]), {}) == 0.5
    for value in (np.nan, np.inf):
        assert compare(Constant([1, value]), Constant([1, 2]), {}) == np.inf


def test_compare_refuses_other_outputs():
    with pytest.raises(MscError, match=r"expected the outputs \['z'\], found \['y'\]"):
        compare(Constant([1]), Constant([1], "z"), {})
    with pytest.raises(MscError, match=r"output 'y': expected \[2\], found \[1\]"):
        compare(Constant([1]), Constant([1, 2]), {})
