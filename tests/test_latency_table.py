"""Latency from a table of blocks: how a network is cut, which blocks are one entry, and what a budget makes of it."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from msc_core.backends import Target, build
from msc_core.cost import cost
from msc_core.errors import MscError
from msc_core.infer import single
from msc_core.measure import Meter
from msc_core.rewrite import fold_batch_norm
from msc_core.tools.latency_table import BlockMeter, LatencyTable, block_key, cut, in_integers, rank_correlation
from msc_gym.envs.episode import Episode
from msc_gym.task import CompressionTask


def by_macs(block) -> float:
    """A machine on which time is work: a millionth of the original for each thousand MACs, and something for a call."""
    return cost(block).macs * 1e-6 + 0.01


@pytest.fixture(scope="module")
def folded(tiny_task):
    return fold_batch_norm(single(tiny_task.graph))


@pytest.fixture
def table(tiny_task):
    return LatencyTable(tiny_task.graph, tiny_task.pruner.channels, by_macs)


def test_blocks_in_order_compute_what_the_network_does(folded):
    x = np.random.default_rng(0).standard_normal(folded.tensors[folded.inputs[0]].shape).astype(np.float32)
    values = {folded.inputs[0]: x}
    for block in cut(folded).values():
        with build(block, "onnxruntime") as runner:
            values |= runner.run({name: values[name] for name in block.inputs})
    with build(folded, "onnxruntime") as runner:
        (expected,) = runner.run({folded.inputs[0]: x}).values()
    np.testing.assert_allclose(values[folded.outputs[0]], expected, rtol=1e-4, atol=1e-5)
    assert sum(len(block.nodes) for block in cut(folded).values()) == len(folded.nodes)


def test_a_block_in_integers_reads_and_makes_integers(folded):
    for layer, block in cut(folded).items():
        found = in_integers(block, layer, Target.parse("onnxruntime"))
        assert {found.tensors[name].dtype for name in found.inputs} == {"uint8"}
        if folded.outputs[0] not in block.outputs:
            assert {found.tensors[name].dtype for name in found.outputs} == {"uint8"}
        with build(found, "onnxruntime") as runner:
            feeds = {t.name: np.full(t.shape, 3, t.dtype) for t in runner.inputs}
            assert all(np.isfinite(v.astype(float)).all() for v in runner.run(feeds).values())


def test_equal_shapes_are_one_entry_and_others_are_not(folded, table, tiny_task):
    blocks = list(cut(folded).values())
    renamed = blocks[0].replace(name="other", weights={k: w + 1 for k, w in blocks[0].weights.items()})
    assert block_key(renamed) == block_key(blocks[0])
    assert len({block_key(block) for block in blocks}) == len(blocks)
    group = tiny_task.groups[0]
    before = table.total({}), len(table.memo)
    assert table.total({group.name: group.size}) == before[0] and len(table.memo) == before[1]
    assert (
        table.total({group.name: group.counts[0]}) < before[0] and len(table.memo) == before[1] + 2
    )  # it and a reader


def test_only_what_is_asked_for_is_measured_and_what_is_known_is_not(table, tiny_task):
    (first, *_) = table.layers
    table.entry(first, {})
    assert len(table.memo) == 1
    everything = table.prepare({g.name: tiny_task.choices(g) for g in tiny_task.groups}, integers=True)

    def nothing(block):
        raise AssertionError("measured")

    known = LatencyTable(tiny_task.graph, tiny_task.pruner.channels, nothing, memo=table.memo)
    assert known.ratio(tiny_task.floor_choices, {first: 8}) == table.ratio(tiny_task.floor_choices, {first: 8})
    assert known.prepare({g.name: tiny_task.choices(g) for g in tiny_task.groups}, integers=True) == everything


def test_the_fit_finds_the_slope_and_the_original_stays_one(table, tiny_task):
    rng, samples = np.random.default_rng(0), []
    for _ in range(6):
        counts = {g.name: int(rng.choice(tiny_task.choices(g))) for g in tiny_task.groups}
        samples.append((counts, {}, 1 + 0.7 * (table.total(counts) - table.total({}))))
    assert table.errors(samples).maximum > 0.01
    table.fit(samples)
    assert table.slope == pytest.approx(0.7) and table.ratio({}) == pytest.approx(1)
    found = table.errors(samples)
    assert found.maximum < 1e-9 and found.rank == pytest.approx(1) and found.samples == 6
    assert sum(table.part(layer, samples[0][0]) for layer in table.layers) == pytest.approx(samples[0][2])
    assert sum(map(table.share, table.layers)) == pytest.approx(1)
    with pytest.raises(MscError, match="other than the original"):
        table.fit([({}, {}, 1.0)])


def test_ranks():
    a = np.array([1.0, 5.0, 3.0, 9.0])
    assert rank_correlation(a, a**3) == pytest.approx(1) and rank_correlation(a, -a) == pytest.approx(-1)


def test_a_block_is_measured_against_the_network(tiny_task, folded):
    (layer, *_), blocks = cut(folded), cut(folded)
    with Meter() as meter:
        measure = BlockMeter(tiny_task.baseline_runner, meter)
        one, whole = measure(blocks[layer]), measure(folded)
    assert 0 < one < whole and whole == pytest.approx(1, abs=0.3)


@pytest.fixture
def timed(tiny_task, monkeypatch):
    """The tiny task with a limit on predicted latency, on a machine where time is work."""
    monkeypatch.setattr(BlockMeter, "__call__", lambda self, block: by_macs(block))
    task = tiny_task.changed(budget={}, blocks={})
    least = task.latency_table.ratio(tiny_task.floor_choices)
    return tiny_task.changed(budget={"latency": (1 + least) / 2}, blocks={})


def test_episodes_end_within_a_latency_budget(timed):
    rng = np.random.default_rng(0)
    for _ in range(10):
        episode = Episode(timed)
        while not episode.done:
            episode.step([rng.random()])
        assert timed.within_budget(episode.choices)
        assert timed.latency_table.ratio(episode.choices) <= timed.budget["latency"] + 1e-6
    assert not timed.within_budget({})
    assert sum(timed.latency_share(site) for site in timed.sites) <= 1 + 1e-9


def test_the_entries_travel_with_the_task(timed):
    make, values = timed.__reduce__()
    twin = make(*values)
    assert twin.blocks == timed.blocks != {} and copy.deepcopy(timed) is timed
    assert twin.cost({})["latency"] == pytest.approx(1e9, abs=10)


def test_bits_have_no_least_latency(tiny_task):
    with pytest.raises(MscError, match="budget latency needs decide"):
        CompressionTask(tiny_task.graph, tiny_task.dataset, budget={"latency": 0.5}, decide=("prune", "quantize"))
