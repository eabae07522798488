"""The commands that apply one tool: what they leave, what they say, and every mistake before any work."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import msc_core as msc
from msc_core.cost import cost
from msc_gym import cli
from tests.test_docs import ROOT, blocks, run


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A working directory with a saved network and data."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2), nn.ReLU()
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 4))
    msc.from_torch(net.eval(), torch.zeros(2, 1, 12, 12), name="net", dynamic_shapes=({0: "N"},)).save("net")
    rng = np.random.default_rng(0)
    splits = {"train": 64, "validation": 40, "test": 24}
    arrays = {}
    for name, count in splits.items():  # noise, of which a quarter of the image has more: which one is the class
        x, y = rng.standard_normal((count, 2, 6, 2, 6), np.float32), rng.integers(0, 4, count)
        x[np.arange(count), y // 2, :, y % 2] += 2
        arrays |= {f"{name}_x": x.reshape(count, 1, 12, 12), f"{name}_y": y}
    np.savez("data.npz", **arrays)
    return tmp_path


def done(capsys, *arguments: str) -> str:
    """What a command that succeeds says."""
    assert cli.run(arguments) == cli.DONE, capsys.readouterr().err
    said = capsys.readouterr()
    assert said.err == ""
    return said.out


def complaint(capsys, *arguments: str) -> str:
    """What a command says of the user's mistake."""
    assert cli.run(arguments) == cli.MISTAKE
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize("command", ["prune", "quantize", "apply", "track", "finetune"])
def test_help_has_an_example(command):
    result = CliRunner().invoke(cli.app, [command, "--help"])
    assert result.exit_code == 0
    assert f"Example: msc-gym {command}" in " ".join(result.output.split())


def test_prune_and_apply_make_the_same_network(folder, capsys):
    said = done(capsys, "prune", "net", "--density", "0.5", "--method", "l1", "--out", "a")
    assert "macs" in said and "accuracy" not in said
    plan, small = msc.Plan.load("a/plan.json"), msc.MSCGraph.load("a/graph")
    assert {name: len(kept) for name, kept in plan.prune.items()} == {"0": 8, "2": 8}
    assert small == msc.apply(plan, msc.MSCGraph.load("net"))
    done(capsys, "apply", "a/plan.json", "net", "--out", "b")
    assert msc.MSCGraph.load("b/graph") == small


def test_with_data_accuracy_is_restored_and_counted(folder, capsys):
    said = done(capsys, "prune", "net", "--data", "data.npz", "--out", "a")
    assert "of 40 validation samples" in said
    plan, x = msc.Plan.load("a/plan.json"), np.load("data.npz")["train_x"]
    assert msc.MSCGraph.load("a/graph") == msc.apply(plan, msc.MSCGraph.load("net"), x)
    assert msc.MSCGraph.load("a/graph") != msc.apply(plan, msc.MSCGraph.load("net"))


def test_a_strategy_file_says_what_each_layer_gets(folder, capsys):
    Path("rules.yaml").write_text(
        "rules:\n- prune: {density: 0.5, method: l1}\n- names: ['0']\n  prune: {density: 1}\n"
    )
    done(capsys, "prune", "net", "--strategy", "rules.yaml", "--out", "a")
    assert {name: len(kept) for name, kept in msc.Plan.load("a/plan.json").prune.items()} == {"2": 8}


def test_finetuning_trains_with_the_original_as_teacher(folder, capsys):
    done(capsys, "prune", "net", "--method", "l1", "--out", "a")
    few = ["--steps", "40", "--batch", "16", "--data", "data.npz", "--distill", "0.1", "--no-augment"]
    said = done(capsys, "finetune", "a/graph", "--teacher", "net", "--plan", "a/plan.json", "--feature", "1=0.5", *few,
                "--out", "b")  # fmt: skip
    assert "finetune 40/40: loss" in said and "of 40 validation samples" in said
    pruned, tuned = msc.MSCGraph.load("a/graph"), msc.MSCGraph.load("b/graph")
    assert tuned.nodes == pruned.nodes and tuned != pruned
    assert [path.name for path in Path("b").iterdir()] == ["graph"]


def test_a_budget_says_how_much_and_a_ranking_where(folder, capsys):
    for ranking in ("global", "local", "uniform"):
        done(capsys, "prune", "net", "--budget", "macs=0.6", "--ranking", ranking, "--method", "l1", "--out", ranking)
        small, full = (cost(msc.MSCGraph.load(path)).macs for path in (f"{ranking}/graph", "net"))
        assert small <= 0.6 * full


def test_int8_is_tracked_and_a_fault_is_found(folder, capsys):
    said = done(capsys, "quantize", "net", "--data", "data.npz", "--method", "mse", "--out", "q")
    assert "of 40 validation samples" in said
    plan = msc.Plan.load("q/plan.json")
    assert {how.bits for how in plan.quantize.values()} == {8}
    assert msc.MSCGraph.load("q/graph") == msc.apply(plan, msc.MSCGraph.load("net"))
    assert "No layer adds an error" in done(
        capsys, "track", "net", "q/graph", "--target", "onnxruntime", "--data", "data.npz"
    )
    broken = msc.MSCGraph.load("q/graph")
    scale = next(name for name in broken.weights if name.startswith("2.weight.scale"))
    broken.replace(weights={**broken.weights, scale: broken.weights[scale] * 2}).save("broken")
    assert cli.run(["track", "net", "broken", "--data", "data.npz", "--html", "page.html"]) == cli.FAILED
    assert "First to go wrong: conv2d '2'" in capsys.readouterr().out
    assert Path("page.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prune", "net", "--budget", "mac=0.5", "--method", "l1"], "unknown budget 'mac'; did you mean 'macs'"),
        (["prune", "net", "--budget", "macs=x"], "--budget macs=x: expected NAME=NUMBER"),
        (["prune", "net", "--budget", "macs=0.01", "--method", "l1"], "cannot be met"),
        (
            ["prune", "net", "--budget", "macs=0.5", "--ranking", "globl"],
            "unknown ranking 'globl'; did you mean 'global'",
        ),
        (
            ["quantize", "net", "--data", "data.npz", "--weights", "1"],
            "weights must be 0 (float) or 2 to 16 bits; found 1",
        ),
        (["quantize", "net", "--data", "data.npz", "--method", "kl"], "unknown calibration 'kl'"),
        (["finetune", "net", "--data", "data.npz", "--lr", "-1"], "lr must be above 0; found -1.0"),
        (["finetune", "net", "--data", "data.npz", "--feature", "1=x"], "--feature 1=x: expected NAME=NUMBER"),
        (
            ["finetune", "net", "--data", "data.npz", "--teacher", "net", "--feature", "7"],
            "the teacher has no such tensor",
        ),
        (
            ["finetune", "net", "--data", "data.npz", "--optimizer", "sgdm"],
            "unknown optimizer 'sgdm'; did you mean 'sgd'",
        ),
        (["prune", "net", "--density", "0", "--method", "l1"], "density must be in (0, 1]; found 0.0"),
        (["prune", "net"], "method 'obs' needs calibration data to rank channels"),
        (["prune", "net", "--method", "l3", "--data", "data.npz"], "unknown importance criterion 'l3'; known: "),
        (["prune", "net", "--strategy", "none.yaml"], "none.yaml"),
        (["prune", "nett", "--method", "l1"], "nett: no such folder"),
        (["prune", "net", "--data", "data.csv"], "unknown data set 'data.csv'"),
        (["apply", "none.json", "net"], "none.json"),
        (["apply", "other.json", "net"], "the plan is for graph 0123"),
        (["apply", "odd.json", "net"], "no channel group '1'"),
        (["apply", "range.json", "net"], "has channels 0 to 15; the plan keeps [99]"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(folder, capsys, arguments, message):
    fingerprint = msc.MSCGraph.load("net").fingerprint
    for name, plan in (("other", msc.Plan("0123")), ("odd", msc.Plan(fingerprint, {"1": (0,)})),
                       ("range", msc.Plan(fingerprint, {"0": (99,)}))):  # fmt: skip
        plan.save(f"{name}.json")
    assert message in complaint(capsys, *arguments, "--out", "out")
    assert not Path("out").exists()


@pytest.mark.slow
def test_the_commands_of_the_guide_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("experiments").symlink_to(ROOT / "experiments")
    guide = (ROOT / "docs/tools.md").read_text()
    (rules,) = re.findall(r"^```yaml\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    Path("RULES.yaml").write_text(rules)
    commands = re.findall(r"^    msc-gym (.*)$", guide, re.MULTILINE)
    assert len(commands) == 6
    for command in commands:
        done(capsys, *command.split())


def test_the_code_of_the_guide_runs(tmp_path):
    (block,) = blocks(ROOT / "docs/tools.md")
    assert "prune stem.body.conv: 8 kept -> 8 kept" in run(block, tmp_path)
