"""The error of one array against another, as sums over batches."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from msc_core.ir import Array


@dataclass
class Sums:
    """Grows by `add`; the measures are those of all arrays as one."""

    count: int = 0
    signal: float = 0.0
    noise: float = 0.0
    found: float = 0.0
    product: float = 0.0
    largest: float = 0.0
    """Of |difference|."""
    range: float = 0.0
    """The largest |reference|."""
    finite: bool = True
    """Whether the candidate is finite wherever the reference is."""

    def add(self, reference: Array, candidate: Array) -> None:
        """Take in two arrays of one shape. Where the reference is not finite, both count as zero."""
        r, c = _real(reference), _real(candidate)
        usable = np.isfinite(r)
        if not usable.all():
            r, c = r[usable], c[usable]
        if not np.isfinite(c).all():
            self.finite = False
            r, c = r[np.isfinite(c)], c[np.isfinite(c)]
        difference = c - r
        self.count += r.size
        self.signal += float(r @ r)
        self.found += float(c @ c)
        self.product += float(r @ c)
        self.noise += float(difference @ difference)
        self.largest = max(self.largest, float(np.max(np.abs(difference), initial=0.0)))
        self.range = max(self.range, float(np.max(np.abs(r), initial=0.0)))

    @property
    def error(self) -> float:
        """The root mean square of the difference in units of the reference's, or absolute where that is zero."""
        if not self.finite:
            return math.inf
        return math.sqrt(self.noise / (self.signal or max(self.count, 1)))

    @property
    def relative(self) -> float:
        """The largest difference in units of the largest reference, or absolute where that is zero."""
        return self.largest / (self.range or 1.0) if self.finite else math.inf

    @property
    def cosine(self) -> float:
        """Of the angle between both as vectors; 1 if both are zero, 0 if one is."""
        if self.signal == self.found == 0:
            return 1.0
        norm = math.sqrt(self.signal) * math.sqrt(self.found)
        return min(1.0, self.product / norm) if norm else 0.0

    @property
    def sqnr(self) -> float:
        """Signal to quantization noise in dB; inf without noise."""
        return -20 * math.log10(self.error) if 0 < self.error < math.inf else math.inf if self.error == 0 else -math.inf


def _real(array: Array) -> Array:
    """Flat float64; complex numbers become two."""
    if array.dtype.kind == "c":
        array = np.stack([array.real, array.imag])
    flat: Array = array.astype(np.float64).ravel()
    return flat
