"""The manager on a real network and real engines, with a plan that is given; artefacts run without this project."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import msc_core as msc
from msc_core.cost import cost
from msc_core.data import Dataset, fashion_mnist
from msc_core.errors import MscError
from msc_core.pipeline import Config, Report
from msc_core.pipeline.manager import STAGES, Fixed
from msc_core.tools.finetune import Recipe
from msc_core.tools.prune import Pruner
from msc_core.tools.quantize.quantizer import Quantizer

BASELINES = Path(__file__).parents[1] / "experiments" / "baselines"
TORCH_ALONE = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("msc_core", "msc_gym", "safetensors", "onnx", "onnxruntime", "tvm"):
            raise ImportError(name)
sys.meta_path.insert(0, Block())
import numpy, torch
sys.path.insert(0, sys.argv[1])
import model
with torch.no_grad():
    out = model.load(sys.argv[1] + "/model.safetensors")(torch.from_numpy(numpy.load(sys.argv[2])))
numpy.save(sys.argv[3], out.numpy())
"""


@pytest.fixture(scope="module")
def data() -> Dataset:
    whole = fashion_mnist()
    small = {name: getattr(whole, name).head(300) for name in ("train", "validation", "test")}
    return dataclasses.replace(whole, **small)


@pytest.fixture(scope="module")
def graph() -> msc.MSCGraph:
    return msc.MSCGraph.load(BASELINES / "mobilenet")


@pytest.fixture(scope="module")
def finished(
    data: Dataset, graph: msc.MSCGraph, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Report, Path, list[str]]:
    out = tmp_path_factory.mktemp("run")
    pruner = Pruner(graph, data.train.x)
    plan = pruner.plan({g.name: g.counts[len(g.counts) // 2] for g in pruner.groups})
    heard: list[str] = []
    config = Config(data, Fixed(plan), out, finetune=Recipe(steps=5, batch=32), pruner=pruner)
    report = msc.Manager(graph, config, lambda stage, done, total, text: heard.append(stage)).run()
    return report, out, heard


def test_stages_run_in_order_and_are_timed(finished: tuple[Report, Path, list[str]]) -> None:
    report, _, heard = finished
    assert tuple(dict.fromkeys(heard)) == STAGES == tuple(report.seconds)


def test_the_report_compares_both_networks_on_both_engines(
    finished: tuple[Report, Path, list[str]], graph: msc.MSCGraph
) -> None:
    report, _, _ = finished
    assert report.baseline.cost == cost(graph)
    assert report.best.cost == cost(report.graph)
    assert report.best.cost.macs < 0.6 * report.baseline.cost.macs
    assert report.baseline.accuracy > 0.9
    for row in (report.baseline, report.best):
        assert set(row.latency) == {"onnxruntime", "tvm"}
    same = report.baseline.latency["onnxruntime"]
    assert same.interval[0] <= 1 <= same.interval[1]


def test_the_plan_is_saved_and_says_which_graph_it_is_for(
    finished: tuple[Report, Path, list[str]], graph: msc.MSCGraph
) -> None:
    report, out, _ = finished
    assert msc.Plan.load(out / "plan.json") == report.plan
    assert json.loads((out / "plan.json").read_text())["graph"] == graph.fingerprint


def test_artefacts_run_elsewhere_and_agree(
    finished: tuple[Report, Path, list[str]], data: Dataset, tmp_path: Path
) -> None:
    report, out, _ = finished
    x = data.test.x[:16]
    session = onnxruntime.InferenceSession(out / "onnx" / "model.onnx", providers=["CPUExecutionProvider"])
    (onnx_says,) = session.run(None, {session.get_inputs()[0].name: x})
    np.save(tmp_path / "x.npy", x)
    command = [
        sys.executable,
        "-I",
        "-c",
        TORCH_ALONE,
        str(out / "torch"),
        str(tmp_path / "x.npy"),
        str(tmp_path / "y"),
    ]
    subprocess.run(command, check=True, timeout=120)
    torch_says = np.load(tmp_path / "y.npy")
    np.testing.assert_allclose(onnx_says, torch_says, rtol=1e-4, atol=1e-4)
    from msc_core.backends import load

    with load(out / "tvm") as runner:
        (tvm_says,) = runner.run({runner.inputs[0].name: x[:1]}).values()
    np.testing.assert_allclose(tvm_says, torch_says[:1], rtol=1e-4, atol=1e-4)
    for name, artefact in report.artefacts.items():
        assert artefact.bytes == (out / artefact.file).stat().st_size
        assert artefact.max_error < 1e-4, name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"export": ("onx",)}, "unknown export format 'onx'; did you mean 'onnx'"),
        ({"target": "onnxruntme"}, "onnxruntime"),
        ({"target": "tensorrt"}, "no backend for it in this version yet"),
    ],
)
def test_mistakes_are_found_before_any_work(
    changes: dict[str, object], message: str, data: Dataset, graph: msc.MSCGraph, tmp_path: Path
) -> None:
    class Never:
        def plan(self, graph: msc.MSCGraph, config: Config) -> msc.Plan:
            raise AssertionError("planned before the check")

    config = dataclasses.replace(Config(data, Never(), tmp_path / "out"), **changes)
    with pytest.raises(MscError, match=message):
        msc.Manager(graph, config).run()
    assert not (tmp_path / "out").exists()


def test_a_plan_that_quantizes_is_carried_out(data: Dataset, graph: msc.MSCGraph, tmp_path: Path) -> None:
    kept = {g.name: tuple(range(g.counts[-2])) for g in msc.channel_groups(graph) if len(g.counts) > 3}
    small = msc.apply(msc.Plan(graph.fingerprint, kept), graph, data.train.x)
    plan = msc.Plan(graph.fingerprint, kept, Quantizer(small, data.train.x).plan().quantize)
    config = Config(
        data, Fixed(plan), tmp_path, export=("torch", "onnx"), pruner=Pruner(graph, data.train.x, recovery="sequential")
    )
    report = msc.Manager(graph, config).run()
    assert report.graph == msc.apply(plan, graph, data.train.x)
    assert report.best.cost.bytes < 0.35 * report.baseline.cost.bytes
    assert report.best.accuracy >= report.before - 0.02
    ops = {node.op_type for node in onnx.load(tmp_path / "onnx/model.onnx").graph.node}
    assert {"QuantizeLinear", "DequantizeLinear"} <= ops
