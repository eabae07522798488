"""A comparison as a table, as JSON and as a page."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING, Any

from msc_core.view.markup import Markup, el

if TYPE_CHECKING:
    from msc_core.tools.track.compare import Comparison, Difference

SCHEMA = 1
HEADS = ("node", "op", "tensor", "shape", "max error", "relative", "cosine", "SQNR dB", "error", "jump", "")
STYLE = """
body { margin: 24px; color: #17202b; background: #fff; font: 14px/1.5 system-ui, "Segoe UI", sans-serif; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 3px 14px 3px 0; border-bottom: 1px solid #edf0f3; overflow-wrap: anywhere; }
th { color: #5c6774; font-weight: 500; } .number { text-align: right; white-space: nowrap; }
.first { background: #fde8e6; } .wrong { background: #fdf4e3; }
"""


def to_text(found: Comparison) -> str:
    """A summary, then one line per tensor; `!` marks what went wrong."""
    rows = [HEADS, *map(_cells, found.rows)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADS))]
    table = ["  ".join(_pad(cell, widths[i], i) for i, cell in enumerate(row)).rstrip() for row in rows]
    return "\n".join((*_summary(found), "", *table)) + "\n"


def to_json(found: Comparison) -> str:
    """See `Comparison.to_json`."""
    first = found.first
    data = {"schema": SCHEMA, **dataclasses.asdict(found), "first": first.tensor if first else None}
    return json.dumps(_finite(data), indent=1) + "\n"


def to_html(found: Comparison) -> str:
    """See `Comparison.to_html`."""
    first = found.first
    body = [
        el(
            "tr",
            [el("td", cell, class_="number" if 4 <= i <= 9 else None) for i, cell in enumerate(_cells(row))],
            class_="first" if row is first else "wrong" if row.wrong else None,
        )
        for row in found.rows
    ]
    page = el(
        "html",
        el(
            "head", el("meta", charset="utf-8"),
            el("meta", http_equiv="Content-Security-Policy", content="default-src 'none'; style-src 'unsafe-inline'"),
            el("title", f"{found.candidate} against {found.reference}"), el("style", Markup(STYLE)),
        ),
        el(
            "body", [el("p", line) for line in _summary(found)],
            el("table", el("thead", el("tr", [el("th", head) for head in HEADS])), el("tbody", body)),
        ),
        lang="en",
    )  # fmt: skip
    return f"<!DOCTYPE html>\n{page}\n"


def _summary(found: Comparison) -> list[str]:
    lines = [f"{found.candidate} against {found.reference}: {len(found.rows)} tensors, {found.samples} samples"]
    if first := found.first:
        what = first.note or f"its error of {first.error:.3g} is {first.jump:.3g} above that of its inputs"
        lines.append(f"First to go wrong: {first.op} {first.node!r}, tensor {first.tensor!r}: {what}")
        lines += [f"  {cause}" for cause in found.causes]
    else:
        worst = max((row.jump for row in found.rows if not math.isnan(row.jump)), default=0.0)
        lines.append(f"No layer adds an error above {found.threshold:.3g}; the most is {worst:.3g}")
    return lines


def _cells(row: Difference) -> tuple[str, ...]:
    name = row.tensor if row.tensor == row.reference else f"{row.tensor} ({row.reference})"
    numbers = (f"{row.absolute:.3g}", f"{row.relative:.3g}", f"{row.cosine:.6f}", f"{row.sqnr:.1f}")
    jumps = (f"{row.error:.3g}", f"{row.jump:+.2g}")
    if math.isnan(row.error):
        numbers, jumps = ("",) * 4, ("",) * 2
    mark = " ".join(part for part in ("!" if row.wrong else "", row.note) if part)
    return (row.node, row.op, name, "x".join(map(str, row.shape)) or "scalar", *numbers, *jumps, mark)


def _pad(cell: str, width: int, column: int) -> str:
    return cell.rjust(width) if 4 <= column <= 9 else cell.ljust(width)


def _finite(value: Any) -> Any:
    """The value with null for numbers that JSON lacks."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    return [_finite(part) for part in value] if isinstance(value, (list, tuple)) else value
