"""The command line: every mistake is one line with the place and the remedy, exit codes mean what the README says."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

from msc_core import from_torch
from msc_gym import cli
from msc_gym.loading import load_module
from msc_gym.report import load_result
from tests.synthetic_result import synthetic_result

MODULE = """
import torch
from torch import nn


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3), Fourier())

    def forward(self, x):
        return self.body(x).mean((2, 3))


class Fourier(nn.Module):
    def forward(self, x):
        return torch.fft.fft(x).real


def net():
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2), nn.ReLU()
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))


def odd():
    return Odd()


def fails():
    raise ValueError("two\\nlines")


def number():
    return 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A working directory with a module of networks, a saved one, a small data set and a job file for it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(tmp_path)])
    name = f"networks_{abs(hash(tmp_path))}"  # a module is imported once per process
    (tmp_path / f"{name}.py").write_text(MODULE)
    module = load_module(f"{name}:net")
    from_torch(module, torch.zeros(2, 1, 12, 12), name="net", dynamic_shapes=({0: "N"},)).save(tmp_path / "net")
    save_file(module.state_dict(), tmp_path / "net.safetensors")
    rng = np.random.default_rng(0)
    splits = {"train": 64, "validation": 40, "test": 24}
    arrays = {f"{s}_x": rng.standard_normal((n, 1, 12, 12), np.float32) for s, n in splits.items()}
    arrays |= {f"{s}_y": rng.integers(0, 4, n) for s, n in splits.items()}
    np.savez(tmp_path / "data.npz", **arrays)
    job(tmp_path)
    return tmp_path


def job(folder: Path, text: str = "", **changes: object) -> Path:
    values = {"model": "net", "data": "data.npz", "budget": {"macs": 0.6}, "out": "run", "calibration": 32}
    values |= {"search": {"agents": ["uniform", "random"], "trials": 3}, "export": ["torch", "onnx"]} | changes
    (folder / "task.yaml").write_text(json.dumps(values) + text)  # JSON is YAML
    return folder / "task.yaml"


def networks(folder: Path) -> str:
    return next(folder.glob("networks_*.py")).stem


def complaint(capsys, *arguments: object, code: int = cli.MISTAKE) -> str:
    """What a failing command says, without its prefix."""
    assert cli.run([str(a) for a in arguments]) == code
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), lines
    return lines[0].removeprefix("error: ")


# Mistakes


@pytest.mark.parametrize("command", ["search", "compress"])
@pytest.mark.parametrize(
    ("changes", "text", "message"),
    [
        ({"serach": {}}, "", "line 1: serach: unknown key; did you mean 'search'?"),
        ({"search": {"trails": 3}}, "", "search.trails: unknown key; did you mean 'trials'?"),
        ({"budget": {"macs": 1.5}}, "", "budget.macs: "),
        ({"budget": {"macs": 0}}, "", "budget.macs: "),
        ({"budget": {"flops": 0.5}}, "", "unknown key"),
        ({"budget": {"macs": 0.01}}, "", "budget macs: 0.01 cannot be met"),
        (
            {"target": "onnxruntme"},
            "",
            "'onnxruntme'; did you mean 'onnxruntime'? known: onnxruntime, openvino, tens",
        ),
        ({"target": "cuda"}, "", "known: onnxruntime, openvino, tensorflow, tensorrt, torch, tvm"),
        ({"model": "nowhere"}, "", "nowhere holds no graph.json"),
        ({"model": "package.module:net"}, "", "names Python code, which a job file cannot run"),
        ({"data": "nothing.npz"}, "", "nothing.npz"),
        ({"search": {"agents": ["amd"]}}, "", "unknown value 'amd'; did you mean 'amc'?"),
        ({}, "\n  - [", "task.yaml: not readable as YAML"),
    ],
)
def test_a_wrong_job(command, changes, text, message, folder, capsys):
    said = complaint(capsys, command, job(folder, text, **changes))
    assert message in said
    assert not list(folder.glob("run/*.json"))


@pytest.mark.parametrize("command", ["search", "compress"])
def test_a_missing_job(command, folder, capsys):
    assert "no such job file" in complaint(capsys, command, folder / "none.yaml")


@pytest.mark.parametrize("command", ["inspect", "compress"])
def test_an_operator_that_is_not_there(command, folder, capsys):
    model = f"{networks(folder)}:odd"
    arguments = ["inspect", model, "--input", "1,12,12"] if command == "inspect" else [
        "compress", folder / "task.yaml", "--model", model
    ]  # fmt: skip
    said = complaint(capsys, *arguments)
    assert "operator aten.fft_fft.default is not in the op table" in said
    assert "body.1" in said  # where in the model
    assert re.search(r"networks_\d+\.py\", line 17", said)  # where in the source


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("nte", "has no function 'nte'; did you mean 'net'?"),
        ("fails", "ValueError: two lines ("),
        ("number", "expected a torch.nn.Module from number(); found int"),
    ],
)
def test_a_function_that_gives_no_network(function, message, folder, capsys):
    said = complaint(capsys, "inspect", f"{networks(folder)}:{function}", "--input", "1,12,12")
    assert message in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspect"], "Missing argument"),
        (["inspect", "nowhere"], "nowhere: no such folder; expected one written by MSCGraph.save"),
        (["inspect", "nowhere.at.all:net", "--input", "1,2"], "no module 'nowhere'"),
        (["inspect", "NETWORKS:net"], "needs the shape of one sample"),
        (["inspect", "NETWORKS:net", "--input", "1,-2"], "--input 1,-2: expected positive sizes"),
        (["inspect", "net", "--jsno"], "No such option"),
        (["frobnicate"], "No such command 'frobnicate'"),
        (["search", "task.yaml", "--trials", "0"], "--trials"),
        (["search", "task.yaml", "--trials", "many"], "--trials"),
        (["search", "task.yaml", "--agent", "amd"], "unknown agent 'amd'; did you mean 'amc'?"),
        (["search", "task.yaml", "--store", "nosql://x"], "nosql"),
        (["compress", "task.yaml", "--weights", "net.safetensors"], "--weights needs --model"),
        (["compress", "task.yaml", "--model", "net"], "expected module:function"),
        (["compress", "task.yaml", "--model", "NETWORKS:net", "--weights", "w.pt"], "expected a .safetensors file"),
        (["compress", "task.yaml", "--model", "NETWORKS:net", "--weights", "w.safetensors"], "no such file"),
        (["report", "run"], "no result.json there"),
    ],
)
def test_a_wrong_command(arguments, message, folder, capsys):
    assert message in complaint(capsys, *(a.replace("NETWORKS", networks(folder)) for a in arguments))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"0.weight": torch.zeros(16, 1, 3, 3)}, "weight '0.bias' is missing"),
        ({"0.bias": torch.zeros(5)}, "weight '0.bias' is [5], in the model it is [16]"),
        ({"0.bais": torch.zeros(16)}, "weight '0.bais' is not in the model; did you mean '0.bias'?"),
        (None, "not a readable .safetensors file"),
    ],
)
def test_weights_that_do_not_fit(state, message, folder, capsys):
    layers = nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.ReLU(), nn.ReLU(), nn.Linear(16, 4)
    whole = nn.Sequential(*layers).state_dict()
    if state is None:
        (folder / "w.safetensors").write_bytes(b"\x80" * 50)
    else:
        save_file(state if "0.weight" in state else whole | state, folder / "w.safetensors")
    model = f"{networks(folder)}:net"
    assert message in complaint(capsys, "compress", "task.yaml", "--model", model, "--weights", "w.safetensors")


def test_control_characters_of_a_file_do_not_reach_the_terminal(folder, capsys):
    said = complaint(capsys, "search", job(folder, model="x\x1b[31m\ny"))
    assert said.isprintable()


# Failures, interruption


def test_an_unexpected_error_is_one_line(folder, capsys, monkeypatch):
    monkeypatch.setattr(cli.search_commands, "load_job", lambda path: 1 / 0)
    said = complaint(capsys, "search", "task.yaml", code=cli.FAILED)
    assert said == "ZeroDivisionError: division by zero (--debug shows the traceback)"


def test_debug_shows_the_traceback(folder, capsys, monkeypatch):
    monkeypatch.setattr(cli.search_commands, "load_job", lambda path: 1 / 0)
    assert cli.run(["search", "task.yaml", "--debug"]) == cli.FAILED
    said = capsys.readouterr().err
    assert "Traceback" in said and said.splitlines()[-1] == "error: ZeroDivisionError: division by zero"


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "msc_gym.cli", *arguments]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_ctrl_c_says_how_to_go_on_and_the_same_command_does(folder):
    job(folder, search={"agents": ["random"], "trials": 2000})
    process = start(folder, "search", "task.yaml")
    assert process.stdout is not None
    deadline = time.monotonic() + 120
    while "random 1/2000" not in process.stdout.readline():
        assert process.poll() is None and time.monotonic() < deadline
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == cli.INTERRUPTED
    assert said.strip() == "interrupted: the same command continues where it stopped"
    job(folder, search={"agents": ["random"], "trials": 3})
    again = start(folder, "search", "task.yaml")
    text, said = again.communicate(timeout=120)
    assert (again.returncode, said) == (0, "")
    assert "0 from the cache" not in text


def test_a_reader_that_leaves_is_no_error(folder):
    process = start(folder, "inspect", "net", "--json")
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    process.wait(timeout=60)
    assert "Traceback" not in said and "BrokenPipe" not in said


def test_a_mistake_as_a_program(folder):
    process = start(folder, "compress", "none.yaml")
    text, said = process.communicate(timeout=60)
    assert (process.returncode, text, said) == (2, "", "error: none.yaml: no such job file\n")


# Commands


@pytest.mark.parametrize("command", ["doctor", "inspect", "translate", "search", "compress", "report"])
def test_help_has_an_example(command):
    result = CliRunner().invoke(cli.app, [command, "--help"])
    assert result.exit_code == 0
    assert f"Example: msc-gym {command}" in " ".join(result.output.split())


def test_without_arguments_there_is_help(capsys):
    assert cli.run([]) == cli.DONE
    assert "compress" in capsys.readouterr().out


def test_doctor(capsys):
    assert cli.run(["doctor"]) == cli.DONE
    said = capsys.readouterr().out
    assert re.search(r"✓ onnxruntime +works", said) and re.search(r"✓ torch +works", said)
    assert "cores" in said and "fashion_mnist" in said and said.rstrip().endswith("ready")


def test_doctor_without_an_essential(capsys, monkeypatch):
    monkeypatch.setattr("msc_gym.doctor.available", lambda name: (name != "torch", "not installed"))
    assert cli.run(["doctor"]) == cli.FAILED
    assert "not ready" in capsys.readouterr().out


def test_inspect(folder, capsys):
    assert cli.run(["inspect", "net"]) == cli.DONE
    said = capsys.readouterr().out
    for fact in ("float32['N', 1, 12, 12]", "2 conv2d", "MACs", "pinned: reaches the graph output"):
        assert fact in said


def test_inspect_as_json_of_code_and_of_a_folder(folder, capsys):
    assert cli.run(["inspect", "net", "--json"]) == cli.DONE
    saved = json.loads(capsys.readouterr().out)
    assert cli.run(["inspect", f"{networks(folder)}:net", "--input", "1x12x12", "--json"]) == cli.DONE
    coded = json.loads(capsys.readouterr().out)
    assert saved["cost"] == coded["cost"] and saved["groups"] == coded["groups"]
    assert [(g["name"], g["size"], g["divisor"], bool(g["reason"])) for g in saved["groups"]] == [
        ("0", 16, 8, False), ("2", 16, 8, False), ("6", 4, 4, True)
    ]  # fmt: skip
    assert {m["node"] for m in saved["groups"][0]["members"]} == {"0", "2"}


def test_search_prints_its_trials(folder, capsys):
    assert cli.run(["search", "task.yaml", "--agent", "random", "--trials", "2", "--seed", "3"]) == cli.DONE
    said = capsys.readouterr().out
    assert len(re.findall(r"^random +\d+ ", said, re.MULTILINE)) == 2
    assert "best" in said and "uniform" not in said
    assert (folder / "run/trials.db").is_file()


def test_compress_and_report(folder, capsys):
    model = f"{networks(folder)}:net"
    arguments = ["compress", "task.yaml", "--model", model, "--weights", "net.safetensors", "--out", "other"]
    assert cli.run([*arguments, "--trials", "2"]) == cli.DONE
    said = capsys.readouterr()
    assert "result" in said.out and "other/report.html" in said.out and said.err == ""
    result = load_result(folder / "other")
    assert result.best.macs <= 0.6 * result.baseline.macs
    assert set(result.agents) == {"uniform", "random"}
    for file in ("plan.json", "report.html", "onnx/model.onnx", "torch/model.py", "torch/model.safetensors"):
        assert (folder / "other" / file).is_file(), file
    (folder / "other/report.html").unlink()
    assert cli.run(["report", "other"]) == cli.DONE
    assert (folder / "other/report.html").is_file()


def test_report_of_a_file_elsewhere(tmp_path, capsys):
    (tmp_path / "result.json").write_text(json.dumps(synthetic_result()))
    assert cli.run(["report", str(tmp_path / "result.json"), "--out", str(tmp_path / "page.html")]) == cli.DONE
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert capsys.readouterr().out == f"{tmp_path / 'page.html'}\n"


def test_the_module_of_networks_is_what_the_line_numbers_say():
    assert textwrap.dedent(MODULE).splitlines()[16] == "        return torch.fft.fft(x).real"
