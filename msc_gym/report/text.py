"""How numbers are written, once for terminal and page: rounded to what they mean, with units."""

from __future__ import annotations

import math
from collections.abc import Sequence

NONE = "–"  # noqa: RUF001  a dash where there is no value
MINUS = "−"  # noqa: RUF001


def percent(value: float | None, digits: int = 2) -> str:
    """A fraction as a percentage.

    >>> percent(0.93124)
    '93.12%'
    """
    return NONE if value is None else f"{100 * value:.{digits}f}%"


def points(difference: float | None) -> str:
    """A difference of two fractions in percentage points, with its sign.

    >>> points(0.0123)
    '+1.23'
    """
    if difference is None:
        return NONE
    text = f"{100 * abs(difference):.2f}"
    return text if float(text) == 0 else f"{'+' if difference > 0 else MINUS}{text}"


def count(value: float) -> str:
    """Three significant digits with a suffix.

    >>> [count(v) for v in (999, 271_800, 31_000_000, 2e9)]
    ['999', '272k', '31.0M', '2.00G']
    """
    return _scaled(value, 1000, ("", "k", "M", "G", "T"))


def size(value: float | None) -> str:
    """Bytes in decimal units.

    >>> [size(v) for v in (12, 1_094_123)]
    ['12 B', '1.09 MB']
    """
    return NONE if value is None else _scaled(value, 1000, (" B", " kB", " MB", " GB", " TB"))


def _scaled(value: float, base: int, units: Sequence[str]) -> str:
    unit = 0
    while abs(value) >= base * 0.9995 and unit < len(units) - 1:
        value, unit = value / base, unit + 1
    if unit == 0:
        return f"{value:.0f}{units[0]}"
    digits = max(0, 2 - math.floor(math.log10(abs(value) * 1.0005)))
    return f"{value:.{digits}f}{units[unit]}"


def ratio(value: float | None) -> str:
    """A latency ratio.

    >>> ratio(0.6239)
    '0.624'
    """
    return NONE if value is None else f"{value:.3f}"


def interval(bounds: Sequence[float] | None) -> str:
    """A confidence interval; empty if there is none.

    >>> interval((0.6111, 0.634))
    '[0.611, 0.634]'
    """
    return "" if bounds is None else f"[{bounds[0]:.3f}, {bounds[1]:.3f}]"


def duration(seconds: float | None) -> str:
    """Seconds, minutes or hours.

    >>> [duration(s) for s in (0.04, 8.21, 83, 7300)]
    ['40 ms', '8.2 s', '1 min 23 s', '2 h 01 min']
    """
    if seconds is None:
        return NONE
    if seconds < 0.9995:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    return (
        f"{whole // 60} min {whole % 60:02d} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    )


def check_error(value: float | None) -> str:
    """The error of an exported network: what matters is its order of magnitude.

    >>> check_error(3.1e-7)
    '3e-07'
    """
    return NONE if value is None else f"{value:.0e}" if math.isfinite(value) else "not finite"
