"""Plans and strategies: data that round-trips, is checked against its graph, and means exact indices."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import msc_core as msc
from msc_core.errors import InvalidPlan
from msc_core.plan import CASTS, Plan, Quantized
from msc_core.schema import plan_schema
from msc_core.tools.strategy import Prune, Rule, Strategy, keep_count
from tests.micro_networks import Chain, Residual, randomized

KEPT = st.dictionaries(
    st.text(min_size=1), st.lists(st.integers(0, 999), min_size=1, max_size=9).map(tuple), max_size=5
)
SCALE = st.floats(2**-60, 2**60, width=32)
QUANTIZED = st.builds(
    Quantized, bits=st.integers(2, 16), scale=st.tuples(SCALE, SCALE), zero_point=st.just((0, 1)),
    signed=st.booleans(), axis=st.integers(-2, 2), block=st.integers(0, 64), consumers=st.tuples(st.text(min_size=1)),
)  # fmt: skip


def with_quantized(how: str) -> str:
    return f'{{"schema": 1, "graph": "g", "prune": {{}}, "quantize": {{"x": {how}}}}}'


@pytest.fixture
def graph() -> msc.MSCGraph:
    return msc.from_torch(randomized(Residual()), torch.zeros(2, 3, 8, 8), dynamic_shapes=({0: "N"},))


@given(
    st.text(), KEPT, st.dictionaries(st.text(min_size=1), QUANTIZED, max_size=3),
    st.dictionaries(st.text(min_size=1), st.sampled_from(CASTS), max_size=3),
)  # fmt: skip
def test_json_round_trip(
    graph: str, kept: dict[str, tuple[int, ...]], quantized: dict[str, Quantized], casts: dict[str, str]
) -> None:
    plan = Plan(graph, kept, quantized, casts)
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.hash == plan.hash


def test_the_hash_ignores_order_and_repetition_and_nothing_else() -> None:
    plan = Plan("g", {"a": (2, 0, 2), "b": (1,)})
    assert plan.hash == Plan("g", {"b": (1,), "a": (0, 2)}).hash
    others = [Plan("h", plan.prune), Plan("g", {"a": (0, 1), "b": (1,)}), Plan("g", {"a": (0, 2)})]
    assert len({plan.hash, *(other.hash for other in others)}) == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "expected a plan with schema 1"),
        ('{"schema": 2}', "expected a plan with schema 1"),
        ('{"schema": 1, "graph": "g", "prune": {}, "prunes": 1}', "prunes: unknown key; did you mean 'prune'"),
        ('{"schema": 1, "graph": 3, "prune": {}}', "graph: should be a valid string; found '3'"),
        ('{"schema": 1, "graph": "g", "prune": {"a": [0.5]}}', r"prune\.a\.0: should be a valid integer"),
        ('{"schema": 1, "graph": "g", "prune": {"a": [true]}}', r"prune\.a\.0: should be a valid integer"),
        (with_quantized("[]"), r"quantize\.x: should be an object"),
        (
            with_quantized('{"bits": 8, "scale": [0.1], "sign": true}'),
            r"quantize\.x\.sign: unknown key; did you mean 'signed'",
        ),
        (with_quantized('{"bits": 8.0, "scale": [0.1]}'), r"quantize\.x\.bits: should be a valid integer; found '8.0'"),
        (with_quantized('{"bits": 1, "scale": [0.1]}'), "bits must be 2 to 16; found 1"),
        (with_quantized('{"bits": 8, "scale": [0.0]}'), "scales must be positive numbers"),
        (with_quantized('{"bits": 8, "scale": [NaN]}'), "scales must be positive numbers"),
        (with_quantized('{"bits": 8, "scale": [0.1], "zero_point": [128]}'), "a zero point from -128 to 127"),
        (with_quantized('{"bits": 8, "scale": [0.1, 0.2], "zero_point": [0, 0]}'), "need the axis"),
        ('{"schema": 1, "graph": "g", "prune": {}, "cast": {"a": "float8"}}', "float16, bfloat16; found 'float8'"),
    ],
)
def test_what_is_no_plan_is_refused(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(text)
    with pytest.raises(InvalidPlan, match=message) as error:
        Plan.load(file)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ({"blok": (0,)}, "no channel group 'blok'"),
        ({"a": ()}, "has channels 0 to 9; the plan keeps \\[\\]"),
        ({"a": (0, 10)}, "has channels 0 to 9; the plan keeps \\[0, 10\\]"),
        ({"a": (-1, 3)}, "has channels 0 to 9; the plan keeps \\[-1, 3\\]"),
        ({"fc": (0,)}, "cannot be pruned: reaches the graph output"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(
    graph: msc.MSCGraph, kept: dict[str, tuple[int, ...]], message: str
) -> None:
    with pytest.raises(InvalidPlan, match=message):
        msc.apply(Plan(graph.fingerprint, kept), graph)


def test_a_plan_for_another_graph_is_refused(graph: msc.MSCGraph) -> None:
    with pytest.raises(InvalidPlan, match="the plan is for graph 0123"):
        msc.apply(Plan("0123", {}), graph)


def test_apply_keeps_exactly_the_indices_named(graph: msc.MSCGraph) -> None:
    pruned = msc.apply(Plan(graph.fingerprint, {"a": (1, 4, 7)}), graph)
    np.testing.assert_array_equal(pruned.weights["a.weight"], graph.weights["a.weight"][[1, 4, 7]])
    np.testing.assert_array_equal(pruned.weights["b.weight"], graph.weights["b.weight"][:, [1, 4, 7]])
    assert pruned == msc.apply(Plan(graph.fingerprint, {"a": (1, 4, 7)}), graph)


def test_the_last_rule_that_matches_wins(graph: msc.MSCGraph) -> None:
    strategy = Strategy((
        Rule(prune=Prune(0.5, "l1")), Rule(names=("stem",), prune=Prune(1.0)),
        Rule(names=("[cd]",), prune=Prune(0.25, "l2")),
    ))  # fmt: skip
    plan = msc.resolve(strategy, graph)
    sizes = {g.name: g.size for g in msc.channel_groups(graph)}
    assert "stem" not in plan.prune
    assert {name: len(kept) for name, kept in plan.prune.items()}.items() <= {"a": 8, "b": 4, "c": 4}.items()
    l1 = np.abs(graph.weights["a.weight"]).sum((1, 2, 3))
    assert set(plan.prune["a"]) == set(np.argsort(-l1, kind="stable")[:8].tolist())
    assert sizes["a"] == 10


def test_ranking_by_activations_needs_data(graph: msc.MSCGraph) -> None:
    with pytest.raises(InvalidPlan, match="method 'obs' needs calibration data"):
        msc.resolve(Strategy((Rule(prune=Prune(0.5)),)), graph)


def test_density_is_met_to_the_nearest_allowed_count() -> None:
    graph = msc.from_torch(randomized(Chain()), torch.zeros(2, 3, 8, 8), dynamic_shapes=({0: "N"},))
    group = next(g for g in msc.channel_groups(graph, divisor=4) if g.size == 12)
    assert [keep_count(group, d) for d in (0.01, 0.33, 0.5, 0.6, 0.84, 1.0)] == [4, 4, 8, 8, 12, 12]


def test_plan_files_are_written_whole(tmp_path: Path) -> None:
    plan = Plan("g", {"a": (0,)})
    plan.save(tmp_path / "new" / "plan.json")
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["plan.json"]
    assert json.loads((tmp_path / "new" / "plan.json").read_text())["prune"] == {"a": [0]}


def test_the_published_schema_is_current_and_takes_what_plans_write() -> None:
    published = Path(__file__).parents[1] / "docs" / "plan.schema.json"
    assert json.loads(published.read_text()) == plan_schema(), "python -m msc_core.schema > docs/plan.schema.json"
    plan = Plan("g", {"a": (0, 3)}, {"x": Quantized(4, (0.5, 0.25), (0, 0), axis=0)}, {"b": "bfloat16"})
    checker = Draft202012Validator(plan_schema())
    checker.validate(json.loads(plan.to_json()))
    for broken in ({"schema": 2}, {"prune": {"a": [0.5]}}, {"more": 1}, {"quantize": {"x": {"bits": 8}}}):
        assert not checker.is_valid(json.loads(plan.to_json()) | broken)


def test_merged_plans_say_what_both_say_and_the_second_wins() -> None:
    how = [Quantized(bits, (0.5,)) for bits in (8, 4)]
    first = Plan("g", {"a": (0,), "b": (1,)}, {"x": how[0]}, {"n": "float16"})
    second = Plan("g", {"b": (2,)}, {"x": how[1], "y": how[0]})
    both = first.merge(second)
    assert both == Plan("g", {"a": (0,), "b": (2,)}, {"x": how[1], "y": how[0]}, {"n": "float16"})
    assert first.diff(first) == []
    assert first.diff(both) == [
        "prune b: 1 kept -> 1 kept (not 1; 2)", "quantize x: int8, scale 0.5 -> int4, scale 0.5",
        "quantize y: - -> int8, scale 0.5",
    ]  # fmt: skip
    with pytest.raises(InvalidPlan, match="one plan is for graph g, the other for h"):
        first.merge(Plan("h"))


@given(KEPT, KEPT)
def test_plans_differ_where_diff_says_so(first: dict[str, tuple[int, ...]], second: dict[str, tuple[int, ...]]) -> None:
    a, b = Plan("g", first), Plan("g", second)
    assert (a == b) == (not a.diff(b))
