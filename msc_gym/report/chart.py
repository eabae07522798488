"""The few parts that our charts are made of, as SVG: scales with round ticks, a frame with axes, marks, a style.

Colours are CSS variables with a light and a dark value, so a chart is readable on either, in the page or on its own.
Agents differ by colour and by shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from msc_core.view.markup import Child, Markup, el

Point = tuple[float, float]

LIGHT = {
    "surface": "#ffffff", "raised": "#f6f7f9", "ink": "#16191d", "muted": "#5b6470", "line": "#d9dee5",
    "grid": "#edf0f3", "good": "#127a43", "bad": "#b3261e",
    "c0": "#2463eb", "c1": "#c2620a", "c2": "#0b8a78", "c3": "#8a3ffc", "c4": "#c4316b", "c5": "#6f6a00",
}  # fmt: skip
DARK = {
    "surface": "#12161b", "raised": "#1a2027", "ink": "#e8ecf1", "muted": "#9aa5b1", "line": "#333c47",
    "grid": "#232a33", "good": "#5fd08e", "bad": "#ff8a80",
    "c0": "#6ea8ff", "c1": "#f2a65a", "c2": "#45cdb8", "c3": "#c39bff", "c4": "#ff86ae", "c5": "#d6cf5a",
}  # fmt: skip
COLOURS = 6
STYLE = """
svg text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: var(--muted); }
svg .strong { fill: var(--ink); font-weight: 600; }
svg .grid { stroke: var(--grid); } svg .axis { stroke: var(--line); }
svg .limit { stroke: var(--ink); stroke-dasharray: 4 4; opacity: .55; }
svg .front { fill: none; stroke: var(--ink); stroke-width: 1.5; opacity: .5; }
svg .level { stroke: var(--ink); stroke-dasharray: 1 4; stroke-linecap: round; opacity: .7; }
svg .whisker { stroke: var(--ink); stroke-width: 1.5; }
svg .ink { fill: var(--ink); stroke: var(--surface); stroke-width: 1.5; }
svg .hollow { fill: var(--surface); stroke: var(--ink); stroke-width: 2; }
svg .dot { fill-opacity: .5; stroke: var(--surface); stroke-width: .5; }
svg .trace { fill: none; stroke-width: 2; stroke-linejoin: round; }
svg .track { fill: var(--grid); }
""" + "".join(f"svg .c{i} {{ fill: var(--c{i}); }} svg .s{i} {{ stroke: var(--c{i}); }}\n" for i in range(COLOURS))


def variables() -> str:
    """The style rules that set every colour, light and dark."""

    def rule(colours: dict[str, str]) -> str:
        return ":root { " + " ".join(f"--{name}: {value};" for name, value in colours.items()) + " }"

    return f"{rule(LIGHT)}\n@media (prefers-color-scheme: dark) {{ {rule(DARK)} }}\n"


@dataclass(frozen=True)
class Scale:
    """Maps values from `low` to `high` onto pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, wanted: int, whole: bool = False) -> list[float]:
        """Round values in range, about as many as wanted; `whole` ones if what is counted has no parts."""
        rough = (self.high - self.low) / wanted
        power = 10.0 ** math.floor(math.log10(rough))
        step = min((power * factor for factor in (1, 2, 2.5, 5, 10)), key=lambda s: abs(s - rough))
        step = max(1, round(step)) if whole else step
        first = math.ceil(self.low / step - 1e-9)
        return [step * i for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


def padded(values: Iterable[float], share: float = 0.06, least: float = 0.005) -> tuple[float, float]:
    """Bounds with some air around the values; never empty, even around a single one."""
    found = list(values) or [0.0, 1.0]
    air = max(share * (max(found) - min(found)), least)
    return min(found) - air, max(found) + air


@dataclass(frozen=True)
class Frame:
    """A plot area with its two scales."""

    x: Scale
    y: Scale

    @staticmethod
    def of(width: float, height: float, x: tuple[float, float], y: tuple[float, float]) -> Frame:
        """The frame in a picture of that size, for those bounds."""
        return Frame(Scale(*x, 52, width - 14), Scale(*y, height - 42, 44))

    def at(self, point: Point) -> Point:
        """The pixel of a value."""
        return self.x(point[0]), self.y(point[1])

    def axes(
        self,
        x_label: str,
        y_label: str,
        x_text: Callable[[float], str],
        y_text: Callable[[float], str],
        whole: bool = False,
    ) -> Child:
        """Grid, tick labels and axis titles; the title of the vertical axis is above it, to be read without turning."""
        x, y = self.x, self.y
        rows = [
            (el("line", class_="grid", x1=x.start, x2=x.end, y1=y(v), y2=y(v)),
             el("text", y_text(v), x=x.start - 7, y=y(v) + 4, text_anchor="end"))
            for v in y.ticks(5)
        ]  # fmt: skip
        columns = [
            (el("line", class_="axis", x1=x(v), x2=x(v), y1=y.start, y2=y.start + 4),
             el("text", x_text(v), x=x(v), y=y.start + 18, text_anchor="middle"))
            for v in x.ticks(6, whole)
        ]  # fmt: skip
        base = el("line", class_="axis", x1=x.start, x2=x.end, y1=y.start, y2=y.start)
        titles = (
            el("text", x_label, x=x.end, y=y.start + 36, text_anchor="end"),
            el("text", y_label, x=4, y=12),
        )
        return [rows, base, columns, titles]

    def limit(self, value: float, label: str) -> Child:
        """A dashed vertical line with its name on top."""
        x = self.x(value)
        return [
            el("line", class_="limit", x1=x, x2=x, y1=self.y.start, y2=self.y.end),
            el("text", label, x=x, y=self.y.end - 7, text_anchor="middle"),
        ]

    def steps(self, points: Sequence[Point], class_: str) -> Child:
        """A line that changes its height only at points."""
        if not points:
            return None
        (x, y), *rest = (self.at(p) for p in points)
        return el("path", class_=class_, d=f"M{x:.1f} {y:.1f}" + "".join(f"H{a:.1f}V{b:.1f}" for a, b in rest))

    def whisker(self, low: float, high: float, y: float) -> Child:
        """A horizontal interval."""
        left, right, y = max(self.x(low), self.x.start), min(self.x(high), self.x.end), self.y(y)
        return el(
            "path",
            class_="whisker",
            d=f"M{left:.1f} {y:.1f}H{right:.1f}M{left:.1f} {y - 4:.1f}v8M{right:.1f} {y - 4:.1f}v8",
        )


OUTLINES: tuple[tuple[Point, ...], ...] = (  # unit shapes after the circle: square, triangle, diamond, bar, wedge
    (),
    ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    ((0, -1.2), (1.15, 0.85), (-1.15, 0.85)),
    ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
    ((-1.4, -0.5), (1.4, -0.5), (1.4, 0.5), (-1.4, 0.5)),
    ((0, 1.2), (1.15, -0.85), (-1.15, -0.85)),
)
STAR = tuple(
    (
        math.sin(math.pi * i / 5) * (1.0 if i % 2 == 0 else 0.45),
        -math.cos(math.pi * i / 5) * (1.0 if i % 2 == 0 else 0.45),
    )
    for i in range(10)
)


def polygon(at: Point, outline: Sequence[Point], radius: float, class_: str, hint: str = "") -> Markup:
    """A shape of that radius around a pixel; `hint` shows when it is pointed at."""
    corners = "L".join(f"{at[0] + radius * x:.1f} {at[1] + radius * y:.1f}" for x, y in outline)
    return el("path", el("title", hint) if hint else None, class_=class_, d=f"M{corners}Z")


def mark(at: Point, shape: int, radius: float, class_: str, hint: str = "") -> Markup:
    """The mark of a series: its shape around a pixel."""
    outline = OUTLINES[shape % len(OUTLINES)]
    if outline:
        return polygon(at, outline, radius, class_, hint)
    return el("circle", el("title", hint) if hint else None, class_=class_, cx=at[0], cy=at[1], r=radius)


def picture(width: float, height: float, title: str, description: str, *content: Child, style: str = "") -> Markup:
    """An SVG with a name and a description for those who cannot see it; with `style` it stands alone."""
    return el(
        "svg", el("title", title), el("desc", description), el("style", Markup(style)) if style else None, *content,
        xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width:g} {height:g}", role="img",
        aria_label=f"{title}. {description}",
    )  # fmt: skip
