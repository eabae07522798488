"""`msc-gym translate` and what `inspect` draws, against the source model itself."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

from msc_core import MSCGraph, from_onnx, from_relax, from_torch, to_onnx
from msc_core.backends import available
from msc_core.errors import MscError
from msc_gym import cli
from msc_gym.loading import open_source, sample
from msc_gym.translate import TOLERANCE, Translation, difference, random_feeds, translate
from tests.test_cli import complaint
from tests.test_docs import ROOT, blocks, run

MODULE = """
import torch
from torch import nn


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.fc = nn.Embedding(7, 6), nn.Linear(6, 3)

    def forward(self, ids, x):
        return self.fc(self.table(ids) + x), x * 2


class Gelu(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1 + torch.erf(x * 0.5**0.5))


def net():
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2), Gelu()
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))


def table():
    torch.manual_seed(0)
    return Table()
"""
TARGETS = ["torch", "onnx", pytest.param("relax", marks=pytest.mark.skipif(not available("tvm")[0], reason="no TVM"))]


@pytest.fixture
def code(tmp_path, monkeypatch) -> str:
    """The name of a module with networks in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(tmp_path)])
    name = f"translated_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    return name


@pytest.fixture
def onnx_file(code) -> Path:
    """An ONNX model that torch knows nothing of: it comes from the graph's writer."""
    graph = open_source(f"{code}:net", [sample("1,12,12")]).graph
    Path("net.onnx").write_bytes(to_onnx(graph).SerializeToString())
    return Path("net.onnx")


def said(capsys, *arguments: object) -> str:
    assert cli.run([str(a) for a in arguments]) == cli.DONE, capsys.readouterr().err
    return capsys.readouterr().out


@pytest.mark.parametrize("target", TARGETS)
def test_code_is_written_for_every_target_and_agrees_with_the_module(code, target, capsys):
    out = said(capsys, "translate", f"{code}:net", "--input", "1x12x12", "--to", target, "--out", "out")
    files = {"torch": {"model.py", "model.safetensors"}, "onnx": {"model.onnx"},
             "relax": {"module.json", "module.txt", "params.safetensors"}}[target]  # fmt: skip
    assert {p.name for p in Path("out").iterdir()} == files
    assert all(f"out/{name}: " in out for name in files) and ", N=2: " in out
    assert float(re.search(r": (\S+) of the output's range", out)[1]) < 1e-5


@pytest.mark.parametrize("target", TARGETS)
def test_an_onnx_file_is_compared_with_onnxruntime_on_that_file(onnx_file, target, capsys):
    assert "of the output's range" in said(capsys, "translate", onnx_file, "--to", target, "--out", "out")
    source = open_source(str(onnx_file))
    (expected,) = source.run(feeds := random_feeds(source.graph, 0)[0])
    import onnxruntime

    session = onnxruntime.InferenceSession(onnx_file, providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(expected, session.run(None, feeds)[0])


@pytest.mark.parametrize("target", TARGETS)
def test_several_inputs_of_other_dtypes_and_several_outputs(code, target, capsys):
    inputs = ["--input", "int64:5", "--input", "5,6"]
    said(capsys, "translate", f"{code}:table", *inputs, "--to", target, "--out", "out")


def test_a_saved_graph_is_a_source(code, capsys):
    open_source(f"{code}:net", [sample("1,12,12")]).graph.save("saved")
    said(capsys, "translate", "saved", "--to", "onnx", "--out", "out")


def test_the_artefacts_stand_for_themselves(code, capsys):
    source = open_source(f"{code}:net", [sample("1,12,12")])
    for target in ("torch", "onnx"):
        said(capsys, "translate", f"{code}:net", "--input", "1,12,12", "--to", target, "--out", target)
    assert from_onnx("onnx/model.onnx").inspect()["ops"] == source.graph.inspect()["ops"]
    script = "import sys, torch, model; print(model.load()(torch.zeros(3, 1, 12, 12)).shape, 'msc_core' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd="torch", capture_output=True, text=True, check=False)
    assert "torch.Size([3, 4]) False" in done.stdout, done.stderr


@pytest.mark.skipif(not available("tvm")[0], reason="no TVM")
def test_the_relax_module_comes_back_from_its_files(code, capsys):
    import tvm

    source = open_source(f"{code}:net", [sample("1,12,12")])
    said(capsys, "translate", f"{code}:net", "--input", "1,12,12", "--to", "relax", "--out", "out")
    module = tvm.ir.load_json(Path("out/module.json").read_text())
    graph = from_relax(module, params=load_file("out/params.safetensors"))
    feeds, _ = random_feeds(graph, 0)
    from msc_core import build

    with build(graph, "torch") as runner:
        assert difference(source.run(feeds), list(runner.run(feeds).values())) < 1e-5
    assert "R.nn.conv2d" in Path("out/module.txt").read_text()


def test_opset_and_batch(code, onnx_file, capsys):
    said(
        capsys,
        "translate",
        f"{code}:net",
        "--input",
        "1,12,12",
        "--batch",
        "B",
        "--opset",
        21,
        "--to",
        "onnx",
        "--out",
        "out",
    )
    model = onnx.load("out/model.onnx")
    assert model.opset_import[0].version == 21
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "B"
    said(capsys, "translate", f"{code}:net", "--input", "1,12,12", "--batch", "3", "--to", "onnx", "--out", "fixed")
    assert onnx.load("fixed/model.onnx").graph.input[0].type.tensor_type.shape.dim[0].dim_value == 3
    said(capsys, "translate", onnx_file, "--batch", "4", "--to", "onnx", "--out", "four")
    assert onnx.load("four/model.onnx").graph.input[0].type.tensor_type.shape.dim[0].dim_value == 4


def test_fuse_writes_whole_layers(code, capsys):
    arguments = ["translate", f"{code}:net", "--input", "1,12,12", "--to", "torch", "--out", "out"]
    said(capsys, *arguments)
    assert "F.gelu" not in Path("out/model.py").read_text()
    said(capsys, *arguments, "--fuse")
    assert "F.gelu" in Path("out/model.py").read_text()


# Wrong answers, and mistakes


def test_a_wrong_translation_fails(onnx_file, capsys):
    from msc_gym import loading

    right = loading.run_onnx
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "run_onnx", lambda path, feeds: [a * 1.001 for a in right(path, feeds)])
        assert cli.run(["translate", str(onnx_file), "--to", "torch", "--out", "out"]) == cli.FAILED
    out, err = capsys.readouterr()
    assert "0.001 of the output's range" in out and "more than rounding explains" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["nothing", "--to", "torch"],
            "no such folder; expected one written by MSCGraph.save, an .onnx file or module",
        ),
        (["nothing.onnx", "--to", "torch"], "nothing.onnx: no such file"),
        (["broken.onnx", "--to", "torch"], "broken.onnx"),
        (["net.onnx", "--to", "onx"], "--to onx: expected one of torch, onnx, relax"),
        (["net.onnx", "--to", "torch", "--opset", "18"], "--opset is for --to onnx"),
        (["net.onnx", "--to", "onnx", "--opset", "3"], "opset"),
        (["net.onnx", "--to", "torch", "--input", "3"], "--input is for module:function"),
        (["saved", "--to", "torch", "--batch", "N"], "--batch is for ONNX files"),
        (["CODE:net", "--to", "torch"], "needs the shape of one sample"),
        (["CODE:net", "--to", "torch", "--input", "1,x,3"], "--input 1,x,3: expected positive sizes"),
        (["CODE:net", "--to", "torch", "--input", "flot32:3"], "unknown dtype 'flot32'; did you mean 'float32'"),
        (["CODE:net", "--to", "torch", "--input", "1,12,12", "--batch", "a b"], "--batch a b: expected a name"),
        (["CODE:net", "--to", "torch", "--input", "2,12,12"], "CODE"),
    ],
)
def test_mistakes_are_one_line(code, onnx_file, arguments, message, capsys):
    Path("broken.onnx").write_bytes(b"no model")
    open_source(f"{code}:net", [sample("1,12,12")]).graph.save("saved")
    said_line = complaint(capsys, "translate", *(a.replace("CODE", code) for a in arguments), "--out", "out")
    assert message.replace("CODE", "") in said_line
    assert not Path("out").exists()


def test_differences():
    a = np.asarray([1.0, -4.0, np.inf, np.nan], np.float32)
    assert difference([a], [a.copy()]) == 0
    assert difference([a], [a + np.asarray([0, 1, 0, 0], np.float32)]) == 0.25
    assert difference([a], [np.nan_to_num(a)]) == float("inf")
    assert difference([np.zeros(2)], [np.full(2, np.nan)]) == float("inf")
    assert difference([np.asarray([True, False])], [np.asarray([True, True])]) == 1
    for other in (a.astype(np.float64), a[:2]):
        with pytest.raises(MscError, match=r"the outputs are .*; the original's are float32"):
            difference([a], [other])
    assert not Translation((), float("nan"), TOLERANCE["float16"], {}).ok


def test_random_inputs_have_one_size_for_a_symbol(code):
    graph = from_torch(nn.Linear(4, 3), torch.zeros(2, 5, 4), dynamic_shapes=({0: "N", 1: "T"},))
    feeds, sizes = random_feeds(graph, 0)
    assert sizes == {"N": 2, "T": 16} and next(iter(feeds.values())).shape == (2, 16, 4)


def test_translate_refuses_a_target_that_it_does_not_know(code, tmp_path):
    source = open_source(f"{code}:net", [sample("1,12,12")])
    with pytest.raises(MscError, match="expected one of torch, onnx, relax"):
        translate(source, "tf", tmp_path)


# The guide

GUIDE = ROOT / "docs/translate.md"


def test_the_commands_of_the_guide_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    Path("experiments").symlink_to(ROOT / "experiments")
    commands = re.findall(r"^    msc-gym (.*)$", GUIDE.read_text(), re.MULTILINE)
    assert len(commands) == 5
    for command in commands:
        if "--to relax" not in command or available("tvm")[0]:
            said(capsys, *command.split())
    assert Path("runs/net.html").is_file()


def test_the_code_of_the_guide_runs(tmp_path):
    (block,) = blocks(GUIDE)
    assert run(block, tmp_path).strip() == "['matmul', 'sigmoid', 'multiply'] -> ['linear', 'silu']"


# inspect


def test_inspect_reads_onnx_and_draws(onnx_file, capsys):
    files = ["--svg", "a.svg", "--html", "folder/a.html", "--prototxt", "a.prototxt"]
    out = said(capsys, "inspect", onnx_file, *files)
    assert "2 conv2d" in out and "MACs" in out and "pinned" in out
    assert Path("a.svg").read_text().startswith("<?xml") and "<svg" in Path("folder/a.html").read_text()
    assert 'type: "conv2d"' in Path("a.prototxt").read_text()


def test_inspect_of_onnx_and_of_the_graph_agree(onnx_file, capsys):
    from_onnx(onnx_file).save("saved")
    onnx_said, saved = (json.loads(said(capsys, "inspect", m, "--json")) for m in (onnx_file, "saved"))
    assert onnx_said == saved and MSCGraph.load("saved").fingerprint == saved["fingerprint"]
