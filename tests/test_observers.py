"""Ranges of activations, each method against a plain NumPy version on the whole data at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msc_core.errors import MscError
from msc_core.tools.quantize.observers import (
    BINS,
    METHODS,
    Histogram,
    check_finite,
    count,
    limits,
    parameters,
    percentile,
)

RNG = np.random.default_rng(0)
DATA = {
    "normal": RNG.normal(size=20_000),
    "relu": np.maximum(RNG.normal(size=20_000), 0),
    "outliers": np.concatenate([RNG.normal(size=20_000), [40.0, -25.0]]),
    "positive": RNG.exponential(size=20_000) + 3,
    "negative": -RNG.exponential(size=20_000),
    "uniform": RNG.uniform(-1, 2, size=20_000),
}


def histogram(values: np.ndarray) -> Histogram:
    """Gathered in pieces, as from batches."""
    low, high = float(values.min()), float(values.max())
    return Histogram(low, high, sum(count(piece, low, high) for piece in np.array_split(values, 7)))


def error(values: np.ndarray, low: float, high: float, bits: int, signed: bool) -> float:
    """Mean squared error of values that are quantized with a range."""
    scale, zero = parameters((low, high), bits, signed)
    smallest, largest = limits(bits, signed)
    return float(np.mean((((np.rint(values / scale) + zero).clip(smallest, largest) - zero) * scale - values) ** 2))


@pytest.mark.parametrize("name", DATA)
def test_batches_do_not_matter(name: str) -> None:
    values = DATA[name]
    whole = np.histogram(values, bins=BINS, range=(values.min(), values.max()))[0]
    np.testing.assert_array_equal(histogram(values).counts, whole)


@pytest.mark.parametrize("name", DATA)
def test_minmax_is_the_extremes(name: str) -> None:
    assert METHODS["minmax"](histogram(DATA[name]), 8, True) == (DATA[name].min(), DATA[name].max())


@pytest.mark.parametrize("name", DATA)
def test_percentile_is_numpy_s_of_the_absolute_values(name: str) -> None:
    values, found = DATA[name], percentile(histogram(DATA[name]), 8, False)
    threshold = np.percentile(np.abs(values), 99.99)
    step = np.ptp(values) / BINS
    assert max(-found[0], found[1]) == pytest.approx(threshold, abs=2 * step)
    assert values.min() <= found[0] <= found[1] <= values.max()


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("name", DATA)
def test_mse_is_the_best_of_all_fractions(name: str, bits: int, signed: bool) -> None:
    values = DATA[name]
    low, high = METHODS["mse"](histogram(values), bits, signed)
    best = min(error(values, values.min() * f, values.max() * f, bits, signed) for f in np.linspace(0.2, 1, 161))
    assert error(values, low, high, bits, signed) <= best * 1.02 + 1e-12


def divergence(counts: np.ndarray, stop: int, levels: int) -> float:
    """The textbook loop: quantize `counts[:stop]` to `levels`, expand, compare with the clipped distribution."""
    p = counts[:stop].astype(float).copy()
    q = np.zeros(stop)
    for level in range(levels):
        bins = [i for i in range(stop) if i * levels // stop == level]
        filled = [i for i in bins if counts[i] > 0]
        for i in filled:
            q[i] = counts[bins].sum() / len(filled)
    p[-1] += counts[stop:].sum()
    q = np.maximum(q, 1e-12 * p.sum())
    p, q = p / p.sum(), q / q.sum()
    return sum(a * np.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


@pytest.mark.parametrize("name", ["normal", "outliers", "relu"])
def test_entropy_has_the_least_divergence(name: str) -> None:
    """MSC's KL calibration raised an error before it compared anything; this one runs, and against the textbook."""
    values, signed, levels = DATA[name], True, 32
    low, high = METHODS["entropy"](histogram(values), 6, signed)
    found, top = max(-low, high), np.abs(values).max()
    counts = np.histogram(np.abs(histogram(values).centers), BINS, (0, top), weights=histogram(values).counts)[0]
    counts[0] = counts[1]
    stops = range(levels, BINS + 1, (BINS - levels) // 128)
    losses = {stop: divergence(counts, stop, levels) for stop in stops}
    stop = min(losses, key=losses.__getitem__)
    assert found == pytest.approx(min(top * stop / BINS, top), abs=2 * top / BINS)


def test_entropy_cuts_outliers_off() -> None:
    low, high = METHODS["entropy"](histogram(DATA["outliers"]), 8, True)
    assert high < 20 and low > -20


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [0.0, 3.0, -2.0])
def test_a_constant_tensor_keeps_its_value(method: str, value: float) -> None:
    values = np.full(100, value)
    for signed in (True, False):
        low, high = METHODS[method](histogram(values), 8, signed)
        assert error(values, low, high, 8, signed) <= 1e-4


@settings(max_examples=200, deadline=None)
@given(st.floats(-1e6, 1e6), st.floats(0, 1e6), st.integers(2, 16), st.booleans())
def test_zero_is_exact_and_the_range_is_covered(low: float, width: float, bits: int, signed: bool) -> None:
    high = low + width
    scale, zero = parameters((low, high), bits, signed)
    smallest, largest = limits(bits, signed)
    assert scale > 0 and np.float32(scale) == scale and smallest <= zero <= largest
    assert (smallest - zero) * scale <= min(low, 0) + scale
    assert (largest - zero) * scale >= max(high, 0) - scale


@pytest.mark.parametrize("extremes", [(float("nan"), 1.0), (0.0, float("inf")), (-float("inf"), 0.0)])
def test_what_is_not_finite_is_named(extremes: tuple[float, float]) -> None:
    with pytest.raises(MscError, match="tensor 'conv' is not finite on the calibration data"):
        check_finite("conv", *extremes)
