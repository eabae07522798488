"""One quantized graph, one meaning: micro-networks in torch and ONNX Runtime; and nothing converted for nothing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import msc_core as msc
from msc_core.backends import build
from msc_core.data import fashion_mnist
from msc_core.errors import MscError
from msc_core.ir import MSCGraph, consumers
from msc_core.tools.quantize.precision import Precision
from msc_core.tools.quantize.quantizer import Quantizer
from tests.micro_networks import NETWORKS, Network

BASELINES = Path(__file__).parents[1] / "experiments" / "baselines"
QUANTIZABLE = [n for n in NETWORKS if not n.tokens]


def int8(network: Network) -> tuple[MSCGraph, MSCGraph, np.ndarray]:
    x = network.inputs(24)
    graph = msc.from_torch(network.module(), network.inputs(2), dynamic_shapes=({0: "N"},))
    quantizer = Quantizer(graph, x.numpy())
    return quantizer.folded, quantizer.compress(quantizer.plan()), x.numpy()


def run(graph: MSCGraph, x: np.ndarray, target: str) -> np.ndarray:
    with build(graph, target) as runner:
        return next(iter(runner.run({graph.inputs[0]: x}).values())).astype(np.float64)


@pytest.mark.parametrize("network", QUANTIZABLE[::12], ids=lambda n: n.name)
def test_torch_and_onnxruntime_agree_and_are_near_float(network: Network) -> None:
    """The engines may round a value between two integers differently: their distance is a fraction of int8's error."""
    float_, found, x = int8(network)
    wanted, simulated, here = run(float_, x, "torch"), run(found, x, "torch"), run(found, x, "onnxruntime")
    power = np.square(wanted).mean()
    assert np.square(here - wanted).mean() < 0.01 * power
    assert np.square(here - simulated).mean() <= max(0.3 * np.square(simulated - wanted).mean(), 1e-8 * power)


@pytest.mark.parametrize("network", QUANTIZABLE[::8], ids=lambda n: n.name)
def test_nothing_is_converted_for_nothing(network: Network) -> None:
    """A tensor is quantized once, for all who read it; no pair is behind a pair, nor between a layer and its ReLU."""
    _, found, _ = int8(network)
    readers = consumers(found)
    producer = {name: node for node in found.nodes for name in node.outputs}
    quantized = [node.inputs[0] for node in found.nodes if node.op == "quantize"]
    assert max(Counter(quantized).values(), default=1) == 1
    for node in found.nodes:
        before = producer.get(node.inputs[0]) if node.inputs else None
        assert not (node.op == "quantize" and before and before.op == "dequantize")
        if node.op == "relu" and before and before.op == "dequantize":
            layer = producer[producer[before.inputs[0]].inputs[0]]
            assert (
                layer.op not in ("conv2d", "linear")
                or len(readers[layer.outputs[0]]) > 1
                or (len(readers[before.outputs[0]]) > 1)
            )
        if node.op in ("sigmoid", "silu", "softmax", "layer_norm"):
            assert found.tensors[node.outputs[0]].dtype == "float32"


class Both(nn.Module):
    """Two inputs that are added after a layer each."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.c(torch.relu(self.a(x) + self.b(y)))


def test_several_inputs_are_calibrated_by_name() -> None:
    torch.manual_seed(0)
    graph = msc.from_torch(Both().eval(), (torch.zeros(2, 6), torch.zeros(2, 4)), dynamic_shapes=({0: "N"}, {0: "N"}))
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(60, 6)).astype(np.float32), "y": rng.normal(size=(60, 4)).astype(np.float32)}
    quantizer = Quantizer(graph, feeds)
    plan = quantizer.plan()
    assert {"x", "y"} <= plan.quantize.keys()
    for correct in (False, True):
        with build(quantizer.compress(plan, correct), "onnxruntime") as runner, build(graph, "torch") as full:
            wanted, found = (next(iter(r.run(feeds).values())) for r in (full, runner))
        assert np.square(found - wanted).mean() < 1e-3 * np.square(wanted).mean()
    with pytest.raises(MscError, match="calibration: input 'y' is missing"):
        Quantizer(graph, {"x": feeds["x"]}).plan()
    with pytest.raises(MscError, match="calibration: no input 'z'; known: x, y"):
        Quantizer(graph, {**feeds, "z": feeds["x"]}).plan()
    with pytest.raises(MscError, match="as many samples of every input"):
        Quantizer(graph, {**feeds, "y": feeds["y"][:3]}).plan()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["minmax", "percentile", "entropy", "mse"])
@pytest.mark.parametrize("name", ["resnet20", "vgg", "mobilenet"])
def test_decisions_are_the_same_in_torch_and_onnxruntime(name: str, method: str) -> None:
    """On the whole validation split, and near those of float32."""
    graph, data = MSCGraph.load(BASELINES / name), fashion_mnist()
    quantizer = Quantizer(graph, data.train.x[:256])
    found, x, y = quantizer.compress(quantizer.plan(Precision(method=method))), data.validation.x, data.validation.y
    here, simulated, full = (
        run(g, x, target).argmax(1) for g, target in ((found, "onnxruntime"), (found, "torch"), (graph, "onnxruntime"))
    )
    assert (here != simulated).mean() <= 0.003
    assert (here == y).mean() >= (full == y).mean() - 0.003
