"""Counting accuracy stops when a candidate has lost, and hardly ever when it has not."""

from __future__ import annotations

import numpy as np
import pytest

from msc_core.backends import build, score
from msc_core.errors import MscError
from msc_gym.engine import Evaluator
from msc_gym.engine.accuracy import CHUNK, Bar, Count, Gamble, count, needed, pack, recount, unpack

SAMPLES = 2000
ALPHA = 0.05  # larger than the default, so that a broken test shows in few trials


def networks(rng: np.random.Generator, right: float, lost: float, won: float) -> tuple[np.ndarray, np.ndarray]:
    """Which images an original network has right, and which another that loses and wins some; exact shares."""
    first, second = np.zeros(SAMPLES, bool), np.zeros(SAMPLES, bool)
    whole, gone, more = round(right * SAMPLES), round(lost * SAMPLES), round(won * SAMPLES)
    first[:whole], second[gone : whole + more] = True, True
    order = rng.permutation(SAMPLES)
    return first[order], second[order]


def looks(right: np.ndarray, bar: Bar) -> int:
    """After how many images counting stops; all of them if it does not."""
    gamble = Gamble(bar, len(right))
    for start in range(0, len(right), CHUNK):
        if gamble.lost(right[start : start + CHUNK]):
            return start + CHUNK
    return len(right)


@pytest.mark.parametrize("lost", [0.005, 0.03, 0.1])
@pytest.mark.parametrize("paired", [True, False])
def test_a_candidate_as_good_as_the_bar_is_seldom_given_up(lost, paired):
    rng, stopped = np.random.default_rng(0), 0
    for _ in range(300):
        original, candidate = networks(rng, 0.9, lost, lost)  # the hardest case: exactly as good
        bar = Bar(candidate.mean(), pack(original) if paired else "", ALPHA)
        stopped += looks(candidate, bar) < SAMPLES
    assert stopped <= ALPHA * 300 + 2 * np.sqrt(ALPHA * 300)


@pytest.mark.parametrize(("loss", "most"), [(0.3, 150), (0.1, 300), (0.05, 700), (0.02, 1800)])
def test_a_bad_candidate_is_given_up_early(loss, most):
    rng = np.random.default_rng(1)
    spent = [looks(c, Bar(o.mean(), pack(o))) for o, c in (networks(rng, 0.9, loss + 0.01, 0.01) for _ in range(30))]
    assert np.mean(spent) <= most


def test_pairing_tells_sooner():
    rng = np.random.default_rng(2)
    pairs = [networks(rng, 0.9, 0.05, 0.01) for _ in range(30)]
    alone, beside = ([looks(c, Bar(o.mean(), text and pack(o))) for o, c in pairs] for text in ("", "x"))
    assert np.mean(beside) < 0.75 * np.mean(alone)


def test_a_count_stops_only_below_the_bar_and_estimates_the_whole(tiny_task):
    split = tiny_task.scoring_split()
    with build(tiny_task.graph, "onnxruntime") as runner:
        whole = count(runner, split)
        assert whole == count(runner, split, Bar(whole.accuracy))
        assert (whole.accuracy, whole.samples) == (score(runner, split), len(split))
        high = count(runner, split, Bar(1.0))
    assert high.stopped and high.samples < len(split) and high.accuracy < 1.0
    assert (unpack(high.right, high.samples) == unpack(whole.right, high.samples)).all()


def test_an_estimate_makes_up_for_easy_images():
    original, candidate = networks(np.random.default_rng(3), 0.9, 0.12, 0.02)
    found = recount(Count(float(candidate.mean()), SAMPLES, pack(candidate)), SAMPLES, Bar(0.9, pack(original)))
    assert found is not None and found.stopped
    seen = slice(found.samples)
    expected = candidate[seen].mean() + original.mean() - original[seen].mean()
    assert found.accuracy == pytest.approx(min(expected, 0.9 - 1 / SAMPLES))


def test_an_earlier_count_answers_for_bars_as_high_as_its_own():
    original, candidate = networks(np.random.default_rng(4), 0.9, 0.08, 0.02)
    full = Count(float(candidate.mean()), SAMPLES, pack(candidate))
    bars = [Bar(a, pack(original)) for a in (0.5, 0.84, 0.88, 0.9, 0.95)]
    truth = [recount(full, SAMPLES, bar) for bar in bars]
    assert [t.stopped for t in truth if t] == [False, False, True, True, True]
    assert [t.samples for t in truth if t] == sorted((t.samples for t in truth if t), reverse=True)
    for known in truth[2:]:
        assert known is not None
        for bar, expected in zip(bars, truth, strict=True):
            found = recount(known, SAMPLES, bar)
            assert found == expected if expected and expected.samples <= known.samples else found is None
    assert recount(full, SAMPLES, None) == full


def test_the_store_answers_for_any_bar_as_counting_would(tiny_task):
    plan = tiny_task.plan({g.name: tiny_task.choices(g)[0] for g in tiny_task.groups})
    with Evaluator(tiny_task) as engine, Evaluator(tiny_task) as other:
        low, high = (engine.evaluate([plan], latency=False, bar=bar)[0] for bar in (0.0, 1.0))
        assert engine.hits == 2 and not low.stopped and high.stopped  # the original, and the plan again
        assert low.samples == len(tiny_task.scoring_split())
        assert other.evaluate([plan], latency=False, bar=1.0)[0].count == high.count
        misses = other.misses
        assert other.evaluate([plan], latency=False, bar=1.0)[0].count == high.count and other.misses == misses
        assert other.evaluate([plan], latency=False, bar=0.0)[0].count == low.count and other.misses == misses + 1
        assert not other.evaluate([plan], latency=False, bar=1.0, full=True)[0].stopped


def test_what_cannot_be_caught_up_is_over():
    right = np.zeros(SAMPLES, bool)
    assert looks(right, Bar(0.999, alpha=1e-9)) == CHUNK
    assert looks(~right, Bar(1.0)) == SAMPLES
    assert needed(Bar(0.9505), SAMPLES) == 1901


@pytest.mark.parametrize("wrong", [{"accuracy": 1.1}, {"accuracy": float("nan")}, {"accuracy": 0.5, "alpha": 0.0}])
def test_a_bar_is_checked(wrong):
    with pytest.raises(MscError):
        Bar(**wrong)


@pytest.mark.parametrize("text", ["zz", "ff"])
def test_a_count_is_checked(text):
    with pytest.raises(MscError):
        unpack(text, 9)
