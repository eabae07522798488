"""The pictures of a run: accuracy against cost, search progress, what is left of each group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msc_core.view.markup import Child, Markup, el
from msc_gym.report import chart, text
from msc_gym.report.chart import Frame, Point
from msc_gym.report.result import AgentRow, BestRow, Result, Row, Trial

WIDTH, HEIGHT = 520.0, 340.0
COST_NAMES = {"macs": "MACs", "params": "parameters", "bytes": "size"}


@dataclass(frozen=True)
class Axis:
    """What accuracy is drawn against: a cost as a share of the original, or the measured latency ratio."""

    key: str
    label: str
    whole: str  # the original's place on it
    of: Callable[[Row | Trial], float | None]
    tick: Callable[[float], str]


def axes_of(result: Result) -> list[Axis]:
    """The cost that the budget is about (else MACs), and latency if anything has one besides the baseline."""
    key = next((k for k in result.task.budget if k in COST_NAMES), "macs")
    full: int = max(1, getattr(result.baseline, key))

    def share(row: Row | Trial) -> float:
        value: int = getattr(row, key)
        return value / full

    cost = Axis(
        key, f"{COST_NAMES[key]}, % of the original", f"100% of {COST_NAMES[key]}", share, lambda v: f"{100 * v:.0f}"
    )
    label = f"latency on {result.task.target}, relative to the original"
    latency = Axis("latency", label, "ratio 1", lambda row: row.latency_ratio, lambda v: f"{v:.3f}".rstrip("0"))
    rows: list[Row | Trial] = [result.best, *result.agents.values(), *result.succeeded]
    measured = any(row.latency_ratio is not None for row in rows)
    return [cost, latency] if measured else [cost]


def series(result: Result) -> dict[str, int]:
    """A number for each agent, which fixes its colour and shape."""
    names = dict.fromkeys([*result.agents, *(t.agent for t in result.trials)])
    return {name: number for number, name in enumerate(names)}


def front(points: Sequence[Point]) -> list[Point]:
    """The points that no other one beats in both: lower cost, higher accuracy; by rising cost."""
    best: list[Point] = []
    for cost, accuracy in sorted(points, key=lambda p: (p[0], -p[1])):
        if not best or accuracy > best[-1][1]:
            best.append((cost, accuracy))
    return best


def accuracy_bounds(result: Result) -> tuple[float, float]:
    """Bounds of the vertical axis, chosen so that a few hopeless trials do not flatten all that matters."""
    tried = sorted(t.accuracy for t in result.succeeded)
    named = [row.accuracy for row in (result.baseline, result.best, *result.agents.values())]
    top = max([*named, *tried])
    typical = tried[len(tried) // 10] if tried else min(named)
    floor = max(min([*named, *tried]), min(*named, typical) - 0.5 * (top - typical))
    return chart.padded([floor, top])


def tradeoff(result: Result, axis: Axis, style: str = "") -> Markup:
    """Every trial, the front, the budget, and the result below the level of the original.

    The original itself is outside, at the right: with it inside, all that the search did would be a narrow band.
    """
    rows: list[Row | Trial] = [result.best, *result.agents.values(), *result.succeeded]
    values = [v for row in rows if (v := axis.of(row)) is not None]
    if axis.key == "latency":
        named = (result.best, *result.agents.values())
        values += [bound for row in named if row.latency_interval for bound in row.latency_interval]
    limit = result.task.budget.get(axis.key)
    low, high = accuracy_bounds(result)
    bounds = chart.padded(values if limit is None else [*values, limit], 0.08, 0.01)
    frame = Frame.of(WIDTH, HEIGHT, bounds, (low, high))
    numbers = series(result)
    trials = [(t, (x, max(t.accuracy, low))) for t in result.succeeded if (x := axis.of(t)) is not None]
    dots = [
        chart.mark(frame.at(at), numbers[t.agent], 3.2, f"dot c{numbers[t.agent] % chart.COLOURS}", _describe_trial(t))
        for t, at in trials
    ]
    below = sum(t.accuracy < low for t, _ in trials)
    cut = f"{below} trials below {100 * low:.1f}% are drawn on the axis" if below else ""
    return chart.picture(
        WIDTH, HEIGHT,
        f"Accuracy against {axis.label.split(',')[0]}",
        f"{len(trials)} trials; {_summary(result, axis)}",
        frame.axes(axis.label, "validation accuracy, %", axis.tick, lambda v: f"{100 * v:.1f}".removesuffix(".0")),
        frame.limit(limit, "budget") if limit is not None else None,
        dots,
        chart_front(frame, [at for _, at in trials]),
        [_agent(frame, axis, name, row, numbers[name]) for name, row in result.agents.items()],
        _landmarks(frame, axis, result),
        el("text", cut, x=4, y=HEIGHT - 6) if cut else None,
        style=style,
    )  # fmt: skip


def chart_front(frame: Frame, points: Sequence[Point]) -> Child:
    """The front as steps: a plan is as good at any higher cost."""
    best = front(points)
    return frame.steps(best, "front") if len(best) > 1 else None


def _agent(frame: Frame, axis: Axis, name: str, row: AgentRow, number: int) -> Child:
    """An agent's best plan, larger, with its interval where it has one."""
    x = axis.of(row)
    if x is None:
        return None
    whisker = (
        frame.whisker(*row.latency_interval, row.accuracy) if axis.key == "latency" and row.latency_interval else None
    )
    hint = f"{name}: {text.percent(row.accuracy)}, {_position(axis, row)}"
    return [whisker, chart.mark(frame.at((x, row.accuracy)), number, 6, f"ink c{number % chart.COLOURS}", hint)]


def _landmarks(frame: Frame, axis: Axis, result: Result) -> Child:
    """The level of the original network with a ring at the edge, and the result, a star; with their names."""
    base, best = result.baseline, result.best
    y, edge = frame.y(base.accuracy), frame.x.end
    hint = f"original: {text.percent(base.accuracy)} at {axis.whole}"
    marks: list[Child] = [
        el("line", class_="level", x1=frame.x.start, x2=edge, y1=y, y2=y),
        el("circle", el("title", hint), class_="hollow", cx=edge, cy=y, r=5),
        el("text", f"original, {axis.whole}", class_="strong", x=frame.x.start + 4, y=y - 8),
    ]
    x = axis.of(best)
    if x is None:
        return marks
    if axis.key == "latency" and best.latency_interval:
        marks.append(frame.whisker(*best.latency_interval, best.accuracy))
    at = frame.at((x, best.accuracy))
    hint = f"result: {text.percent(best.accuracy)}, {_position(axis, best)}"
    marks.append(chart.polygon(at, chart.STAR, 11, "ink", hint))
    shift, anchor = (-16, "end") if at[0] > frame.x.start + 90 else (16, "start")
    return [*marks, el("text", "result", class_="strong", x=at[0] + shift, y=at[1] + 16, text_anchor=anchor)]


def _position(axis: Axis, row: Row | Trial) -> str:
    value = axis.of(row)
    if value is None:
        return "not measured"
    return f"latency ratio {value:.3f}" if axis.key == "latency" else f"{100 * value:.1f}% of {COST_NAMES[axis.key]}"


def _summary(result: Result, axis: Axis) -> str:
    """The picture in words."""
    ends = (("original", result.baseline), ("result", result.best))
    return "; ".join(f"{name} {text.percent(row.accuracy)} at {_position(axis, row)}" for name, row in ends)


def _describe_trial(trial: Trial) -> str:
    latency = "" if trial.latency_ratio is None else f", latency ratio {trial.latency_ratio:.3f}"
    return f"{trial.agent} {trial.index + 1}: {text.percent(trial.accuracy)}, {text.count(trial.macs)} MACs{latency}"


def progress(result: Result) -> Markup | None:
    """The best accuracy so far of each agent by trial; nothing to draw if no agent tried more than once."""
    numbers = series(result)
    tried = {name: [t for t in result.trials if t.agent == name] for name in numbers}
    longest = max(map(len, tried.values()), default=0)
    if longest < 2 or not result.succeeded:
        return None
    low, high = accuracy_bounds(result)
    high = chart.padded([low, *(t.accuracy for t in result.succeeded)])[1]
    frame = Frame.of(WIDTH, HEIGHT, (1, longest), (low, high))
    lines: list[Child] = []
    for name, number in numbers.items():
        points, dots = _best_so_far(tried[name])
        colour = number % chart.COLOURS
        lines.append([chart.mark(frame.at((x, max(y, low))), number, 2, f"dot c{colour}") for x, y in dots])
        lines.append(frame.steps([(x, max(y, low)) for x, y in _through(points, longest)], f"trace s{colour}"))
        if points:
            lines.append(chart.mark(frame.at((points[-1][0], max(points[-1][1], low))), number, 5, f"ink c{colour}"))
    ends = "; ".join(f"{n} {text.percent(p[-1][1])}" for n in numbers if (p := _best_so_far(tried[n])[0]))
    axes = frame.axes(
        "trial", "best validation accuracy so far, %", "{:.0f}".format, lambda v: f"{100 * v:.1f}", whole=True
    )
    return chart.picture(WIDTH, HEIGHT, "Search progress", f"Best accuracy at the end: {ends}", axes, lines)


def _best_so_far(trials: Sequence[Trial]) -> tuple[list[Point], list[Point]]:
    """Where the best changes, and every trial; counted from 1. What is best is up to the reward, where there is one."""
    points, dots, best = list[Point](), list[Point](), float("-inf")
    for number, trial in enumerate(trials, 1):
        if trial.error:
            continue
        dots.append((number, trial.accuracy))
        worth = trial.accuracy if trial.reward is None else trial.reward
        if worth > best:
            best = worth
            points.append((number, trial.accuracy))
    return points, dots


def _through(points: list[Point], end: int) -> list[Point]:
    """The points, and the last one again at the end, so that an early best is a line."""
    return [*points, (end, points[-1][1])] if points else []


def groups(result: Result) -> Markup | None:
    """Kept channels of every group: a bar for the result, thin ones under it for the agents that it is not from."""
    if not result.task.groups:
        return None
    numbers = series(result)
    best = result.best
    lanes: list[tuple[str, BestRow | AgentRow, str]] = [
        ("result", best, f"c{numbers.get(best.agent, 0) % chart.COLOURS}")
    ]
    others = {name: row for name, row in result.agents.items() if name != best.agent}
    lanes += [(name, row, f"c{numbers[name] % chart.COLOURS}") for name, row in others.items()]
    label, bar, row_height = 190.0, 560.0, 22.0 + 6 * (len(lanes) - 1)
    content: list[Child] = []
    for index, group in enumerate(result.task.groups):
        top = index * row_height
        name = group.name if len(group.name) <= 26 else f"…{group.name[-25:]}"
        hint = f"{group.name}: {', '.join(group.nodes)}"
        content.append(el("text", el("title", hint), name, x=label - 10, y=top + 13, text_anchor="end"))
        y = top + 4
        for number, (who, row, class_) in enumerate(lanes):
            kept = row.kept.get(group.name, group.size)
            height = 11 if number == 0 else 5
            width = bar * min(1.0, kept / group.size)
            content.append(el("rect", class_="track", x=label, y=y, width=bar, height=height, rx=1.5))
            bar_hint = el("title", f"{who} keeps {kept} of {group.size} in {group.name}")
            content.append(el("rect", bar_hint, class_=class_, x=label, y=y, width=width, height=height, rx=1.5))
            y += height + 1
        kept = result.best.kept.get(group.name, group.size)
        content.append(el("text", f"{kept} of {group.size}", class_="strong", x=label + bar + 10, y=top + 13))
    words = ", ".join(f"{g.name} {result.best.kept.get(g.name, g.size)} of {g.size}" for g in result.task.groups)
    return chart.picture(
        label + bar + 90, row_height * len(result.task.groups) + 4, "Channels kept", f"Result: {words}", content
    )


def pareto_svg(result: Result) -> str:
    """The trade-off pictures side by side as one SVG file that stands alone, light and dark."""
    panels = [tradeoff(result, axis) for axis in axes_of(result)]
    style = f"{chart.variables()}{chart.STYLE}.back {{ fill: var(--surface); }}"
    legend_height = 40.0
    placed = [
        el("svg", Markup(panel), x=i * (WIDTH + 20) + 10, y=legend_height, width=WIDTH, height=HEIGHT)
        for i, panel in enumerate(panels)
    ]
    width, height = len(panels) * (WIDTH + 20), HEIGHT + legend_height + 10
    summary = "; ".join(_summary(result, axis) for axis in axes_of(result))
    back = el("rect", class_="back", width=width, height=height, rx=8)
    return chart.picture(width, height, "Accuracy against cost", summary, back, legend(result, 26), placed, style=style)


def result_name(result: Result) -> str:
    """What the star is called: fine-tuning is why it is above the trials."""
    return "result, fine-tuned" if result.best.finetune and result.best.finetune.steps else "result"


def legend(result: Result, y: float = 12) -> list[Markup]:
    """The marks and what they mean, from left to right."""
    x, items = 14.0, list[Markup]()
    for name, number in series(result).items():
        items.append(chart.mark((x, y - 4), number, 5, f"c{number % chart.COLOURS}"))
        items.append(el("text", name, x=x + 11, y=y))
        x += 32 + 7 * len(name)
    for name, shape in (("original", None), (result_name(result), chart.STAR)):
        ring = el("circle", class_="hollow", cx=x, cy=y - 4, r=5)
        items.append(chart.polygon((x, y - 4), shape, 8, "ink") if shape else ring)
        items.append(el("text", name, x=x + 12, y=y))
        x += 34 + 7 * len(name)
    return items
