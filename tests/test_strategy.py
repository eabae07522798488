"""Rules: which layers they select, which of them wins, and MSC's dictionaries in our terms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import msc_core as msc
from msc_core.errors import InvalidPlan
from msc_core.tools.quantize.precision import Precision
from msc_core.tools.strategy import Distill, Prune, Rule, Strategy
from msc_core.tools.strategy_files import load_strategy, read_strategy
from tests.micro_networks import Residual, randomized


@pytest.fixture(scope="module")
def graph() -> msc.MSCGraph:
    return msc.from_torch(randomized(Residual()), torch.zeros(2, 3, 8, 8), dynamic_shapes=({0: "N"},))


BITS4, BITS8 = Precision(weights=4), Precision()


@pytest.mark.parametrize(
    ("rule", "layers"),
    [
        (Rule(ops=("conv2d",)), {"stem", "a", "b", "project", "c", "d"}),
        (Rule(ops=("nn.conv2d",)), {"stem", "a", "b", "project", "c", "d"}),
        (Rule(ops=("lin*",)), {"fc"}),
        (Rule(names=("[ab]",)), {"a", "b"}),
        (Rule(names=("a", "fc")), {"a", "fc"}),
        (Rule(tensors=("project.weight",)), {"project"}),
        (Rule(marks=("outputs",)), {"fc"}),
        (Rule(marks=("late",)), {"c", "d"}),
        (Rule(ops=("conv2d",), names=("[af]*",)), {"a"}),
    ],
)
def test_selectors(graph: msc.MSCGraph, rule: Rule, layers: set[str]) -> None:
    import dataclasses

    strategy = Strategy((dataclasses.replace(rule, quantize=BITS8),), marks={"late": ("c", "d.weight")})
    assert set(strategy.decide("quantize", graph)) == layers


def test_the_last_rule_that_speaks_of_an_action_wins(graph: msc.MSCGraph) -> None:
    strategy = Strategy((
        Rule(ops=("conv2d",), quantize=BITS8, cast="float16"), Rule(names=("a",), quantize=BITS4),
        Rule(names=("a", "b"), cast="float32"),
    ))  # fmt: skip
    assert strategy.decide("quantize", graph)["a"] == BITS4
    assert strategy.decide("quantize", graph)["b"] == BITS8
    assert strategy.decide("cast", graph) == {**dict.fromkeys("cd", "float16"), "stem": "float16", "project": "float16",
                                              **dict.fromkeys("ab", "float32")}  # fmt: skip


def test_a_group_is_selected_by_its_name_and_by_what_produces_its_channels(graph: msc.MSCGraph) -> None:
    groups = msc.channel_groups(graph, divisor=1)
    shared = next(g for g in groups if {"b", "project", "d"} <= set(g.nodes))
    for name in ("b", "project", "d"):
        assert set(Strategy((Rule(names=(name,), prune=Prune(0.5)),)).prune(graph, groups)) == {shared.name}
    assert "c" in {r for r in Strategy((Rule(names=("c",), prune=Prune(0.5)),)).prune(graph, groups)}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"rules": [{"op": ["conv2d"]}]}, r"rules\.0\.op: unknown key; did you mean 'ops'"),
        ({"rules": [{"ops": ["conv2"]}]}, r"rules\.0: no operator 'conv2'; did you mean"),
        ({"rules": [{"prune": {"density": 1.5}}]}, r"rules\.0\.prune: density must be in \(0, 1\]; found 1\.5"),
        ({"rules": [{"quantize": {"weights": 1}}]}, r"weights must be 0 \(float\) or 2 to 16 bits; found 1"),
        ({"rules": [{"quantize": {"method": "minmx"}}]}, "unknown calibration 'minmx'; did you mean 'minmax'"),
        ({"rules": [{"cast": "float8"}]}, "cast must be one of float32"),
        ({"rules": [{"marks": ["lat"]}], "marks": {"late": ["c"]}}, "no mark 'lat'; did you mean 'late'"),
        ({"rules": 3}, "rules: should be"),
        ({}, "key 'rules' is missing"),
        ("text", "should be"),
        ([{"tool_type": "pruner"}], "tool 0: expected 'tool_config'"),
        ([{"tool_type": "prunner", "tool_config": {"strategys": []}}], "unknown tool_type 'prunner'; did you mean"),
        ([{"tool_type": "pruner", "tool_config": {"strategys": [{"methods": {"weights": "per_chanel"}}]}}],
         "unknown method 'per_chanel'; did you mean 'per_channel'"),
        ([{"tool_type": "pruner", "tool_config": {"strategys": [{"methods": {"weights": "per_channel"}}]}}],
         "density must be a number; found None"),
        ([{"tool_type": "pruner", "tool_config": {"strategys": [{"methods": {}, "op_type": ["x"]}]}}],
         "unknown key 'op_type'; did you mean 'op_types'"),
    ],
)  # fmt: skip
def test_what_is_no_strategy_is_refused(data: Any, message: str, tmp_path: Path) -> None:
    file = tmp_path / "strategy.json"
    file.write_text(json.dumps(data))
    with pytest.raises(InvalidPlan, match=message) as error:
        load_strategy(file)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Rule(names=("fd",), quantize=BITS8), "names: nothing in the graph is called 'fd'; did you mean"),
        (Rule(tensors=("project.weigth",), quantize=BITS8), "did you mean 'project.weight'"),
    ],
)
def test_a_name_that_nothing_has_is_refused(graph: msc.MSCGraph, rule: Rule, message: str) -> None:
    with pytest.raises(InvalidPlan, match=message):
        Strategy((rule,)).decide("quantize", graph)


def test_a_strategy_file_says_what_it_said(tmp_path: Path) -> None:
    strategy = Strategy((
        Rule(ops=("conv2d",), prune=Prune(0.5, "l1", 4), quantize=Precision(4, 0, rounding="gptq")),
        Rule(marks=("late",), distill=Distill("kl", 0.5), track=True, cast="bfloat16"),
    ), marks={"late": ("c",)})  # fmt: skip
    (tmp_path / "s.json").write_text(strategy.to_json())
    assert load_strategy(tmp_path / "s.json") == strategy
    (tmp_path / "s.yaml").write_text("rules:\n- names: ['a*']\n  prune: {density: 0.25, method: l2}\n")
    assert load_strategy(tmp_path / "s.yaml") == Strategy((Rule(names=("a*",), prune=Prune(0.25, "l2")),))


MSC_TOOLS = [
    {"tool_type": "pruner", "tool_config": {"plan_file": "msc_pruner.json", "strategys": [{"methods": {
        "weights": {"method_name": "per_channel", "density": 0.8, "stride": 8},
        "output": {"method_name": "per_channel", "density": 0.8}}}]}},
    {"tool_type": "quantizer", "tool_config": {"plan_file": "msc_quantizer.json", "strategys": [
        {"methods": {"tensor": {"method_name": "quantize_normal", "nbits": -1}}, "tensor_ids": ["relu:0-c-conv2d_1"]},
        {"methods": {"input": "gather_maxmin", "output": "gather_maxmin", "weights": "gather_max_per_channel"},
         "op_types": ["nn.conv2d", "msc.linear_bias"], "stages": ["gather"]},
        {"methods": {"input": "calibrate_kl_divergence", "output": "calibrate_maxmin"},
         "op_types": ["nn.conv2d", "msc.linear_bias"], "stages": ["calibrate"]},
        {"methods": {"input": "quantize_normal", "weights": {"method_name": "quantize_normal", "nbits": 4},
                     "output": "dequantize_normal"}, "op_types": ["nn.conv2d", "msc.linear_bias"]}]}},
    {"tool_type": "distiller", "tool_config": {"plan_file": "msc_distiller.json", "options": {"optimizer": "adam"},
     "strategys": [{"methods": {"mark": "loss_lp_norm"}, "marks": ["loss"]}]}},
    {"tool_type": "tracker", "tool_config": {"plan_file": "msc_tracker.json", "strategys": [{"op_types": ["nn.relu"],
     "methods": {"output": {"method_name": "save_compared", "compare_to": {"optimize": ["baseline"]}}}}]}},
]  # fmt: skip


def test_the_tools_of_msc_become_rules_the_more_specific_later() -> None:
    strategy = read_strategy(MSC_TOOLS)
    conv = Precision(weights=4, method="minmax", per_channel=True)
    assert strategy.rules == (
        Rule(prune=Prune(0.8, "l1", 8)),
        Rule(ops=("nn.conv2d", "linear"), quantize=conv),
        Rule(ops=("nn.relu",), track=True),
        Rule(marks=("outputs",), distill=Distill("lp")),
        Rule(names=("conv2d_1",), quantize=Precision(weights=0, activations=0)),
    )
