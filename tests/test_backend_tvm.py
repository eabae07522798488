"""The scheduled TVM backend: right for every width, stride and grouping, quick, and exact through a file."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from experiments import models
from msc_core import MSCGraph, Node, Tensor, from_torch
from msc_core.backends import available, build, load
from msc_core.backends.target import Target
from msc_core.backends.tvm_kernels import WIDTH, Conv, Machine, conv2d, pack
from msc_core.errors import MscError
from msc_core.infer import bind_symbols, infer
from tests.micro_networks import randomized

pytestmark = pytest.mark.skipif(not available("tvm")[0], reason="TVM is not installed")
AVX512 = Machine(lanes=16, registers=30)


def error(graph: MSCGraph, expected: torch.Tensor, *inputs: torch.Tensor, target: str = "tvm") -> float:
    """The largest difference from torch relative to torch's largest value."""
    with build(graph, target) as runner:
        (found,) = runner.run({name: x.numpy() for name, x in zip(graph.inputs, inputs, strict=True)}).values()
    assert found.shape == tuple(expected.shape)
    return float(np.abs(found - expected.numpy()).max() / np.abs(expected.numpy()).max())


def module_error(module: nn.Module, *shapes: tuple[int, ...]) -> float:
    generator = torch.Generator().manual_seed(1)
    inputs = tuple(torch.randn(shape, generator=generator) for shape in shapes)
    with torch.no_grad():
        return error(from_torch(randomized(module), inputs), module(*inputs), *inputs)


CONVOLUTIONS = {
    "8 to 24": (nn.Conv2d(8, 24, 3, padding=1), (12, 12)),
    "24 to 40": (nn.Conv2d(24, 40, 3, padding=1), (14, 14)),
    "13 to 13": (nn.Conv2d(13, 13, 3, padding=1), (7, 7)),
    "1 to 16": (nn.Conv2d(1, 16, 3, padding=1), (28, 28)),
    "3 to 10 without bias": (nn.Conv2d(3, 10, 3, bias=False), (9, 11)),
    "stride 2": (nn.Conv2d(16, 32, 3, 2, 1), (14, 14)),
    "stride 2, odd size": (nn.Conv2d(16, 32, 3, 2, 1), (15, 13)),
    "stride (2, 1)": (nn.Conv2d(16, 32, (3, 2), (2, 1), (1, 0)), (14, 9)),
    "1x1": (nn.Conv2d(24, 13, 1), (7, 7)),
    "1x1, stride 2": (nn.Conv2d(16, 32, 1, 2), (14, 14)),
    "prime width": (nn.Conv2d(16, 16, 3, padding=1), (5, 31)),
    "one position": (nn.Conv2d(32, 16, 3), (3, 3)),
    "dilated": (nn.Conv2d(16, 16, 3, padding=2, dilation=2), (10, 10)),
    "depthwise": (nn.Conv2d(32, 32, 3, padding=1, groups=32), (14, 14)),
    "depthwise 13, stride 2": (nn.Conv2d(13, 13, 3, 2, 1, groups=13), (14, 14)),
    "depthwise 7x7": (nn.Conv2d(24, 24, 7, padding=3, groups=24), (14, 14)),
    "depthwise, two outputs each": (nn.Conv2d(16, 32, 3, padding=1, groups=16), (8, 8)),
    "2 groups of 16": (nn.Conv2d(24, 32, 3, padding=1, groups=2), (8, 8)),
    "4 groups of 12": (nn.Conv2d(16, 48, 3, padding=1, groups=4), (8, 8)),
    "3 groups of 5": (nn.Conv2d(9, 15, 3, padding=1, groups=3), (8, 8)),
    "8 groups of 4": (nn.Conv2d(32, 32, 3, padding=1, groups=8), (8, 8)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name):
    conv, size = CONVOLUTIONS[name]
    assert module_error(nn.Sequential(conv, nn.ReLU()), (2, conv.in_channels, *size)) < 1e-5


def test_asymmetric_padding():
    weight = np.random.default_rng(0).standard_normal((13, 8, 3, 3), np.float32)
    node = Node("c", "conv2d", ("x", "w"), ("y",), {"padding": (1, 0, 2, 1), "stride": (2, 1)})
    tensors = {"x": Tensor("x", (1, 8, 9, 9)), "w": Tensor("w", weight.shape), "y": Tensor("y", ())}
    graph = infer(MSCGraph("g", (node,), ("x",), ("y",), {"w": weight}, tensors))
    x = torch.randn(1, 8, 9, 9)
    padded = torch.nn.functional.pad(x, (0, 1, 1, 2))
    assert error(graph, torch.conv2d(padded, torch.from_numpy(weight), stride=(2, 1)), x) < 1e-5


class Parts(nn.Module):
    """Convolutions of odd widths that meet in every way that layouts and padding could get wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = models.conv_bn(3, 13), models.conv_bn(13, 13, kernel=1)
        self.gate, self.c = nn.Conv2d(13, 13, 1), nn.Conv2d(27, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(13)
        self.fc = nn.Linear(8 * 3 * 3, 5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        a = torch.relu(self.a(x))
        b = self.norm(self.b(a) + a * 2.0)
        gated = b * torch.sigmoid(self.gate(b.mean((2, 3), keepdim=True)))
        joined = torch.cat((gated, nn.functional.max_pool2d(a, 3, 1, 1), y), 1)
        c = nn.functional.avg_pool2d(torch.clamp(self.c(joined), -1, 1) / 3, 2, ceil_mode=True)
        return torch.softmax(self.fc(c.flatten(1)), -1)


def test_layouts_and_padding_never_show():
    assert module_error(Parts(), (2, 3, 6, 6), (2, 1, 6, 6)) < 1e-5


@pytest.mark.parametrize("shape", [(1, 784), (5, 13), (2, 31, 24), (1, 2, 3, 8)])
def test_linear(shape):
    module = nn.Sequential(nn.Linear(shape[-1], 40), nn.ReLU(), nn.Linear(40, 10))
    assert module_error(module, shape) < 1e-5


NETWORKS = {
    "resnet20": models.ResNet20(),
    "resnet20 of 13": models.ResNet20(13),
    "mobilenet": models.MobileNet(),
    "mobilenet of 24": models.MobileNet(24),
    "vgg of 20": models.VGG(20),
    "mlp": models.MLP(),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_network(name):
    assert module_error(NETWORKS[name], (1, 1, 28, 28)) < 1e-4


def test_every_contraction_is_scheduled():
    from tvm import tirx

    from msc_core.backends import tvm as backend

    graph = from_torch(randomized(models.MobileNet(24)), torch.randn(1, 1, 28, 28))
    module = backend._scheduled(graph, backend._compiler(Target("tvm"), 1))
    functions = [f for f in module.functions.values() if isinstance(f, tirx.PrimFunc)]
    assert all("tirx.is_scheduled" in f.attrs for f in functions)
    assert not any(WIDTH in f.script() and "vectorized" not in f.script() for f in functions)


# The runner


class Two(nn.Module):
    """Several inputs and outputs, one of which is an input."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return x + y, y, torch.relu(x)


def test_several_outputs_keep_their_order_and_names():
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    graph = from_torch(Two(), (x, y))
    with build(graph, "tvm") as runner:
        found = runner.run({"x": x.numpy(), "y": y.numpy()})
        again = runner.run({"x": y.numpy(), "y": x.numpy()})
    assert tuple(found) == graph.outputs == tuple(t.name for t in runner.outputs)
    for array, expected in zip(found.values(), Two()(x, y), strict=True):
        np.testing.assert_array_equal(array, expected)
    np.testing.assert_array_equal(again["y"], x)


def test_a_symbolic_batch_becomes_one_and_the_runner_says_so():
    graph = from_torch(models.MLP(8), torch.randn(2, 1, 28, 28), dynamic_shapes=({0: "N"},))
    with build(graph, "tvm") as runner:
        assert runner.inputs[0].shape == (1, 1, 28, 28)
        assert runner.outputs[0].shape == (1, 10)
        with pytest.raises(MscError, match="expected float32"):
            runner.run({graph.inputs[0]: np.zeros((2, 1, 28, 28), np.float32)})
    with build(bind_symbols(graph, N=4), "tvm") as runner:
        assert runner.inputs[0].shape[0] == 4


def test_export_and_load_are_exact(tmp_path, capfd):
    x = torch.randn(1, 1, 28, 28).numpy()
    graph = from_torch(randomized(models.VGG(8)), torch.from_numpy(x))
    with build(graph, "tvm") as runner:
        (expected,) = runner.run({graph.inputs[0]: x}).values()
        runner.export(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["lib.so", "runner.json"]
    with load(tmp_path) as loaded:
        assert capfd.readouterr().err == ""
        (found,) = loaded.run({graph.inputs[0]: x}).values()
        assert (loaded.inputs, str(loaded.target)) == (runner.inputs, "tvm")
        loaded.export(tmp_path / "again")
    assert (tmp_path / "again" / "lib.so").read_bytes() == (tmp_path / "lib.so").read_bytes()
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(MscError, match="closed"):
        loaded.run({graph.inputs[0]: x})


def test_a_library_for_another_cpu_is_refused(tmp_path):
    with build(from_torch(nn.ReLU(), torch.randn(3)), "tvm:llvm -mcpu=x86-64") as runner:
        runner.export(tmp_path)
    manifest = tmp_path / "runner.json"
    manifest.write_text(manifest.read_text().replace("tvm:llvm -mcpu=x86-64", "tvm"))
    with pytest.raises(MscError, match="built for the CPU 'x86-64'"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("tvm:llvm -mcpu=skylake-avx51", "did you mean 'skylake-avx512'"),
        ("tvm:stok", "did you mean 'stock'"),
        ("tvm:cuda", "unknown option 'cuda'"),
    ],
)
def test_unknown_words_are_refused(target, message):
    with pytest.raises(MscError, match=message):
        build(from_torch(nn.ReLU(), torch.randn(3)), target)


@pytest.mark.parametrize("target", ["tvm:stock", "tvm:llvm -mcpu=x86-64", "tvm:llvm -mcpu=haswell"])
def test_other_targets_agree(target):
    module, x = randomized(nn.Sequential(models.conv_bn(3, 13), nn.ReLU())), torch.randn(1, 3, 9, 9)
    with torch.no_grad():
        assert error(from_torch(module, x), module(x), x, target=target) < 1e-5


def test_two_threads_in_a_fresh_process():
    program = (
        "import os, numpy as np, torch; from experiments import models; from msc_core import build, from_torch\n"
        "before = os.sched_getaffinity(0)\n"
        "m = torch.nn.Sequential(models.conv_bn(3, 32), torch.nn.ReLU()).eval()\n"
        "x = torch.randn(1, 3, 30, 30); g = from_torch(m, x)\n"
        "for threads in (2, 1, 2):\n"
        "    (y,) = build(g, 'tvm', threads).run({g.inputs[0]: x.numpy()}).values()\n"
        "    np.testing.assert_allclose(y, m(x).detach().numpy(), rtol=1e-4, atol=1e-5)\n"
        "assert os.sched_getaffinity(0) == before, 'the caller was bound to a core'\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[1], timeout=200)


def test_scheduled_beats_stock():
    graph = from_torch(randomized(models.ResNet20()), torch.randn(1, 1, 28, 28))
    feeds = {graph.inputs[0]: np.random.default_rng(0).standard_normal((1, 1, 28, 28), np.float32)}
    best = {"tvm": np.inf, "tvm:stock": np.inf}
    runners = {target: build(graph, target) for target in best}
    for _ in range(8):
        for target, runner in runners.items():
            start = time.perf_counter()
            runner.run(feeds)
            best[target] = min(best[target], time.perf_counter() - start)
    assert best["tvm:stock"] / best["tvm"] > 5


# Kernels


def test_packing_keeps_every_weight_and_pads_with_zeros():
    weight = np.arange(1, 1 + 5 * 3 * 2, dtype=np.float32).reshape(5, 3, 2, 1)
    packed = pack(weight, tile=4, outputs=8)
    assert packed.shape == (2, 2, 1, 3, 4)
    for o in range(8):
        np.testing.assert_array_equal(packed[o // 4, :, :, :, o % 4], np.moveaxis(weight[o], 0, -1) if o < 5 else 0)


@pytest.mark.parametrize("width", [1, 4, 7, 13, 14, 28, 31, 56])
@pytest.mark.parametrize("vectors", [1, 2, 3, 4, 8])
def test_a_tile_fits_the_registers(width, vectors):
    for machine in (AVX512, Machine(8, 14), Machine(4, 28)):
        positions, used = machine.tile(width, vectors)
        assert vectors % used == 0 and positions * used + used + 1 <= machine.registers


@pytest.mark.parametrize(("outputs", "groups", "left"), [(32, 2, 2), (48, 4, 1), (32, 8, 2), (15, 3, 1), (64, 32, 4)])
def test_groups_are_merged_into_whole_vectors(outputs, groups, left):
    weight = np.ones((outputs, 2, 1, 1), np.float32)
    conv = Conv(weight, None, (1, 1), (0, 0, 0, 0), (1, 1), groups)
    merged = conv.merged(16)
    assert merged.groups == left
    assert merged.weight.sum() == weight.sum()


def test_denormal_weights_are_flushed():
    conv = Conv(np.full((16, 1, 1, 1), 1e-40, np.float32), None, (1, 1), (0, 0, 0, 0), (1, 1), 1)
    assert not conv2d(conv, (1, 4, 4, 1), AVX512)[1][0].any()
    assert conv.weight.any()
