"""Ranges of activations: which interval of a tensor's values the integers should span.

Every method looks at the same two things, gathered batch by batch: the extremes, and a histogram between them. So what
it finds does not depend on the batches, up to where values on the edge of a bin fall.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from msc_core.errors import MscError
from msc_core.ir import Array
from msc_core.plan import Quantized

BINS = 2048
PERCENTILE = 99.99
FRACTIONS = np.linspace(0.2, 1.0, 161)  # of the extremes, tried by "mse"
Range = tuple[float, float]


@dataclass(frozen=True, eq=False)
class Histogram:
    """`counts` (BINS,) of values in equal bins between `low` and `high`, which are the extremes."""

    low: float
    high: float
    counts: Array

    @property
    def centers(self) -> Array:
        """The middle of each bin (BINS,) float64."""
        step = (self.high - self.low) / len(self.counts)
        return self.low + step * (np.arange(len(self.counts)) + 0.5)


def count(values: Array, low: float, high: float) -> Array:
    """The counts of a batch for a `Histogram` between `low` and `high`."""
    return np.histogram(values, bins=BINS, range=(low, high if high > low else low + 1))[0]


def minmax(histogram: Histogram, bits: int, signed: bool) -> Range:
    """Everything."""
    return histogram.low, histogram.high


def percentile(histogram: Histogram, bits: int, signed: bool) -> Range:
    """All but the hundredth of a percent of values that is furthest from zero, by absolute value."""
    size = np.abs(histogram.centers)
    order = np.argsort(size, kind="stable")
    inside = np.cumsum(histogram.counts[order]) >= PERCENTILE / 100 * histogram.counts.sum()
    return _clipped(histogram, float(size[order][np.argmax(inside)]))


def entropy(histogram: Histogram, bits: int, signed: bool) -> Range:
    """The threshold whose quantized distribution loses the least information (Migacz 2017).

    The distribution of absolute values, clipped at the threshold with the outliers in its last bin, is compared by
    Kullback-Leibler divergence with itself, merged into the levels that `bits` give it.
    """
    both = histogram.low < 0 < histogram.high or signed
    levels = 2 ** (bits - 1) if both else 2**bits
    top = max(abs(histogram.low), abs(histogram.high))
    counts = np.histogram(np.abs(histogram.centers), bins=BINS, range=(0, top or 1), weights=histogram.counts)[0]
    counts[0] = counts[1]  # zeros, which any scale keeps, would outweigh all others
    if levels >= BINS:
        return minmax(histogram, bits, signed)
    stops = range(levels, BINS + 1, max(1, (BINS - levels) // 128))
    losses = [_divergence(counts, stop, levels) for stop in stops]
    return _clipped(histogram, top * stops[int(np.argmin(losses))] / BINS)


def mse(histogram: Histogram, bits: int, signed: bool) -> Range:
    """The fraction of the extremes with the least mean squared error of the quantized values."""
    ranges = [(histogram.low * f, histogram.high * f) for f in FRACTIONS]
    centers = histogram.centers

    def error(wanted: Range) -> float:
        scale, zero, (low, high) = *parameters(wanted, bits, signed), limits(bits, signed)
        restored = ((np.rint(centers / scale) + zero).clip(low, high) - zero) * scale
        return float((histogram.counts * (restored - centers) ** 2).sum())

    best: Range = min(reversed(ranges), key=error)
    return best


METHODS: Mapping[str, Callable[[Histogram, int, bool], Range]] = {
    "minmax": minmax,
    "percentile": percentile,
    "entropy": entropy,
    "mse": mse,
}


def limits(bits: int, signed: bool) -> tuple[int, int]:
    """The smallest and the largest integer."""
    return Quantized(bits, (1.0,), signed=signed).limits


def parameters(wanted: Range, bits: int, signed: bool) -> tuple[float, int]:
    """Scale (a float32) and zero point of a range: symmetric about zero if `signed`, otherwise with zero inside."""
    low, high = min(wanted[0], 0.0), max(wanted[1], 0.0)
    smallest, largest = limits(bits, signed)
    if signed:
        return positive(max(-low, high) / largest), 0
    scale = positive((high - low) / largest)
    return scale, int(np.clip(np.rint(-low / scale), smallest, largest))


def positive(scale: float) -> float:
    """A scale as float32, 1 where there is nothing but zeros to tell apart."""
    found = np.float32(scale)
    return float(found) if found >= np.finfo(np.float32).tiny else 1.0


def check_finite(name: str, low: float, high: float) -> None:
    """Raise `MscError` for a tensor that holds NaN or infinity."""
    if not (np.isfinite(low) and np.isfinite(high)):
        raise MscError(f"tensor {name!r} is not finite on the calibration data: it goes from {low} to {high}")


def _clipped(histogram: Histogram, threshold: float) -> Range:
    return max(histogram.low, -threshold), min(histogram.high, threshold)


def _divergence(counts: Array, stop: int, levels: int) -> float:
    """KL divergence of the first `stop` bins, outliers in the last, from their merging into `levels`."""
    clipped = counts[:stop].astype(np.float64)
    merged = _merged(clipped, levels)
    clipped[-1] += counts[stop:].sum()
    seen = clipped > 0
    p, q = clipped / clipped.sum(), np.maximum(merged, 1e-12 * clipped.sum())
    q = q / q.sum()
    return float((p[seen] * np.log(p[seen] / q[seen])).sum())


def _merged(counts: Array, levels: int) -> Array:
    """Bins merged into `levels` equal groups, each spread again over its bins that are not empty."""
    group = np.arange(len(counts)) * levels // len(counts)
    total = np.bincount(group, counts, levels)
    filled = np.bincount(group, counts > 0, levels)
    return np.where(counts > 0, (total / np.maximum(filled, 1))[group], 0.0)
