"""Top-1 accuracy, counted until it is known, or until a candidate has lost against a bar that it should reach.

Stopping is a test by betting (Waudby-Smith and Ramdas 2024, "Estimating means of bounded random variables by betting",
section 5: sampling without replacement). A gambler bets, image by image, that the candidate stays below the bar. If it
would reach the bar on the whole split, no bet is favourable, so the capital exceeds 1/alpha with a probability of at
most alpha, whenever one looks (Ville's inequality). Splits are stored shuffled; that is the randomness meant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from msc_core.backends import Runner
from msc_core.data import Array, Split
from msc_core.errors import MscError

CHUNK = 100  # images between two looks
STAKES = np.array([0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9])  # of the capital, one gambler each


@dataclass(frozen=True)
class Bar:
    """The accuracy, 0 to 1, that a candidate must reach to be worth counting in full.

    `beside` says which images another network has right (see `pack`), on the same split and at least as many. Both are
    wrong about the same images, mostly, so the difference is known after far fewer. `alpha` is the share of candidates
    as good as the bar that are given up all the same, at most.
    """

    accuracy: float
    beside: str = ""
    alpha: float = 0.01

    def __post_init__(self) -> None:
        if not 0 <= self.accuracy <= 1:
            raise MscError(f"a bar is an accuracy in [0, 1]; found {self.accuracy}")
        if not 0 < self.alpha < 1:
            raise MscError(f"alpha is a probability between 0 and 1; found {self.alpha}")


@dataclass(frozen=True)
class Count:
    """What was counted: `right` (see `pack`) for the first `samples` images, all of them unless `stopped`.

    `accuracy` is theirs; of a count that was stopped it is an estimate for the whole split, below the bar.
    """

    accuracy: float
    samples: int
    right: str
    stopped: bool = False


def pack(right: Array) -> str:
    """Booleans as hexadecimal digits, four in each."""
    return np.packbits(np.asarray(right, bool)).tobytes().hex()


def unpack(text: str, samples: int) -> Array:
    """The first `samples` booleans of `pack`. Raises `MscError` if there are not so many."""
    try:
        bits = np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8))
    except ValueError as error:
        raise MscError(f"not a count: {error}") from error
    if len(bits) < samples:
        raise MscError(f"a count of {len(bits)} images; expected {samples}")
    return bits[:samples].astype(bool)


def count(runner: Runner, split: Split, bar: Bar | None = None) -> Count:
    """Count with a classifier whose batch is symbolic, by its first output; at most until it has lost against `bar`.

    Raises `MscError` if an output is not finite.
    """
    right, gamble = [np.zeros(0, bool)], Gamble(bar, len(split)) if bar else None
    for part in split.batches(CHUNK):
        right.append(_right(runner, part))
        if gamble and gamble.lost(right[-1]):
            break
    return _counted(np.concatenate(right), len(split), bar if gamble and gamble.over else None)


def recount(known: Count, samples: int, bar: Bar | None) -> Count | None:
    """What `count` would find on a split of that many images, from an earlier count; `None` if that does not say.

    A full count says it for every bar, a stopped one for bars as high as its own and higher.
    """
    right = unpack(known.right, known.samples)
    if bar is not None:
        gamble = Gamble(bar, samples)
        for end in range(CHUNK, len(right) + CHUNK, CHUNK):
            if gamble.lost(right[end - CHUNK : end]):
                return _counted(right[:end], samples, bar)
    return _counted(right, samples, None) if known.samples == samples else None


def _right(runner: Runner, part: Split) -> Array:
    """Which images a runner has right."""
    output = runner.outputs[0].name
    logits = runner.run({runner.inputs[0].name: part.x})[output]
    if not np.isfinite(logits).all():
        raise MscError(f"the output {output!r} on target '{runner.target}' is not finite")
    return np.asarray(logits.argmax(axis=-1) == part.y)


def _counted(right: Array, samples: int, lost: Bar | None) -> Count:
    """The count that these images amount to, of those on a split; `lost` is the bar that was not reached."""
    if lost is None or len(right) == samples:
        return Count(float(right.mean()), len(right), pack(right))
    found = float(right.mean())
    if lost.beside:
        beside = unpack(lost.beside, samples)
        found += float(beside.mean() - beside[: len(right)].mean())
    highest = (needed(lost, samples) - 1) / samples
    return Count(float(np.clip(found, 0.0, max(0.0, highest))), len(right), pack(right), stopped=True)


def needed(bar: Bar, samples: int) -> int:
    """How many images of a split must be right to reach the bar."""
    return math.ceil(bar.accuracy * samples - 1e-9)


class Gamble:
    """The gamblers' capital against one candidate. `over` says that it was enough once."""

    def __init__(self, bar: Bar, samples: int) -> None:
        self.over = False
        self._samples, self._limit = samples, math.log(len(STAKES) / bar.alpha)
        self._beside = unpack(bar.beside, samples) if bar.beside else None
        total = needed(bar, samples)
        self._missing: float = total if self._beside is None else (total - int(self._beside.sum()) + samples) / 2
        self._seen, self._capital = 0, np.zeros(len(STAKES))  # logarithms

    def lost(self, right: Array) -> bool:
        """Whether the candidate has lost, after these images too."""
        seen = self._outcomes(right)
        missing = self._missing - np.concatenate([[0.0], np.cumsum(seen)])
        mean = missing[:-1] / (self._samples - self._seen - np.arange(len(seen)))  # of the rest, to reach the bar
        open_ = (mean > 0) & (mean < 1)
        edge = np.where(open_, (mean - seen) / np.where(open_, 1 - mean, 1.0), 0.0)
        capital = self._capital[:, None] + np.cumsum(np.log1p(STAKES[:, None] * edge), axis=1)
        self._seen, self._missing, self._capital = self._seen + len(seen), missing[-1], capital[:, -1]
        self.over |= bool((np.logaddexp.reduce(capital) >= self._limit).any() or (mean > 1).any())
        return self.over

    def _outcomes(self, right: Array) -> Array:
        """What the gamblers see of each image, 0 to 1: right or not; beside another network, also a draw."""
        if self._beside is None:
            return right.astype(float)
        return (1 + right.astype(float) - self._beside[self._seen : self._seen + len(right)]) / 2
