"""The report: one HTML page that needs nothing else, no script, no network; every value is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msc_core.ir import write_atomic
from msc_core.view.markup import Child, Markup, el, join
from msc_gym.report import chart, figures, text
from msc_gym.report.result import AgentRow, Result, Row, parse_result

MAX_FAILURES = 100
POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # even a value that got through could load or run nothing
STYLE = """
* { box-sizing: border-box; }
body { margin: 0; background: var(--surface); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 6px; letter-spacing: -.01em; overflow-wrap: anywhere; }
h2 { font-size: 19px; margin: 48px 0 12px; }
p { margin: 0 0 12px; max-width: 74ch; } .muted, figcaption { color: var(--muted); } figcaption { font-size: 14px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); gap: 14px; margin: 28px 0 0; }
.tile { background: var(--raised); border: 1px solid var(--line); border-radius: 10px; padding: 14px 18px; }
.tile dt { color: var(--muted); font-size: 14px; } .tile dd { margin: 0; }
.tile .value { font-size: 30px; font-weight: 650; line-height: 1.25; font-variant-numeric: tabular-nums; }
.tile .note { color: var(--muted); font-size: 14px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 15px; font-variant-numeric: tabular-nums; }
th, td { padding: 8px 12px; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--muted); font-weight: 500; font-size: 14px; vertical-align: bottom; }
tbody th, td { vertical-align: top; } .scroll + p { margin-top: 12px; }
th:first-child, td:first-child, .words td, .words th { text-align: left; } .words td:last-child { white-space: normal; }
tbody th { color: var(--ink); font-weight: 500; font-size: 15px; }
tr.result > * { font-weight: 650; background: var(--raised); }
td small { display: block; color: var(--muted); font-size: 12.5px; font-weight: 400; }
.good { color: var(--good); } .bad { color: var(--bad); }
figure { margin: 0; min-width: 0; } svg { display: block; width: 100%; height: auto; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr)); gap: 28px; }
.legend { max-width: 640px; margin: 0 0 8px; }
.facts { display: grid; grid-template-columns: max-content 1fr; gap: 4px 20px; margin: 0; }
.facts dt { color: var(--muted); }
.facts dd { margin: 0; overflow-wrap: anywhere; }
code { font: 13.5px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
footer { margin-top: 56px; padding-top: 16px; border-top: 1px solid var(--line); color: var(--muted);
  font-size: 14px; }
@media print { main { max-width: none; padding: 0; } h2 { break-after: avoid; }
  figure, tr, .tile { break-inside: avoid; } }
"""


def write_report(result: Mapping[str, Any] | Result, path: str | Path) -> None:
    """Write the page, atomically. Raises `MscError` if `result` is not what `result.json` holds."""
    write_atomic(Path(path), render(parse_result(result)).encode("utf-8"))


def write_pareto(result: Mapping[str, Any] | Result, path: str | Path) -> None:
    """Write the trade-off picture alone, as an SVG file for documents."""
    write_atomic(Path(path), figures.pareto_svg(parse_result(result)).encode("utf-8"))


def render(result: Result) -> str:
    """The page."""
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("meta", http_equiv="Content-Security-Policy", content=POLICY),
        el("title", f"{result.name} – compression report"),  # noqa: RUF001
        el("style", Markup(chart.variables() + STYLE + chart.STYLE)),
    )
    sections = [_header(result), _tiles(result), _comparison(result), _tradeoff(result), _progress(result)]
    sections += [_groups(result), _method(result), _artefacts(result), _failures(result), _footer(result)]
    return "<!doctype html>\n" + el("html", head, el("body", el("main", sections)), lang="en") + "\n"


def _header(result: Result) -> Child:
    task = result.task
    budget = " and ".join(f"{text.percent(v, 0)} of the {figures.COST_NAMES.get(k, k)}" for k, v in task.budget.items())
    asked = (
        f"{task.model} on {task.data}, for {task.target}, within {budget}."
        if budget
        else f"{task.model} on {task.data}."
    )
    return [el("h1", result.name), el("p", asked, class_="muted")]


def _tiles(result: Result) -> Child:
    base, best = result.baseline, result.best
    tested = best.test_accuracy is not None and base.test_accuracy is not None
    now, before = (best.test_accuracy, base.test_accuracy) if tested else (best.accuracy, base.accuracy)
    assert now is not None and before is not None
    tiles = [
        ("Test accuracy" if tested else "Validation accuracy", text.percent(now),
         [_change(now - before), f" points from {text.percent(before)}"]),
        ("MACs", text.percent(best.macs / max(1, base.macs), 1), f"{text.count(best.macs)} of {text.count(base.macs)}"),
        ("Parameters", text.percent(best.params / max(1, base.params), 1),
         f"{text.count(best.params)} of {text.count(base.params)}, {text.size(best.bytes)}"),
        *_speed(f"Speed on {result.task.target}", best.latency_ratio, best.latency_interval),
        *_speed("Speed on TVM", best.tvm_ratio, best.tvm_interval),
    ]  # fmt: skip
    return el("dl", [_tile(*tile) for tile in tiles], class_="tiles")


def _speed(name: str, ratio: float | None, interval: tuple[float, float] | None) -> list[tuple[str, str, Child]]:
    if ratio is None or ratio <= 0:
        return []
    unsure = el("p", "no measurable difference") if interval and interval[0] <= 1 <= interval[1] else None
    bounds = text.interval(interval).replace(" ", "\u00a0")
    return [(name, f"{1 / ratio:.2f}×", ["latency ratio ", f"{text.ratio(ratio)} {bounds}", unsure])]  # noqa: RUF001


def _tile(name: str, value: str, note: Child) -> Markup:
    return el(
        "div", el("dt", name), el("dd", value, class_="value"), el("dd", note, class_="note"), class_="tile"
    )  # fmt: skip


def _change(difference: float) -> Markup:
    return el("span", text.points(difference), class_="good" if difference > -0.01005 else "bad")


def _section(title: str, *content: Child) -> Markup:
    return el("section", el("h2", title), *content)


def table(heads: Iterable[str], rows: Iterable[Child], class_: str | None = None) -> Markup:
    """A table that scrolls on its own where the screen is narrow."""
    head = el("thead", el("tr", [el("th", name, scope="col") for name in heads]))
    return el("div", el("table", head, el("tbody", list(rows)), class_=class_), class_="scroll")


def _comparison(result: Result) -> Markup:
    base, best = result.baseline, result.best
    tvm = base.tvm_ratio is not None or best.tvm_ratio is not None
    measured = any(row.latency_ratio is not None for row in (best, *result.agents.values()))
    engines = {f"latency, {result.task.target}": "latency"} if measured else {}
    engines |= {"latency, TVM": "tvm"} if tvm else {}
    tested = [] if base.test_accuracy is None and best.test_accuracy is None else ["test"]
    heads = ["", "validation", *tested, "MACs", "parameters", "size", *engines]
    shown = (*tested, *engines.values())
    rows: list[Child] = [_row(base, base, "original", shown)]
    rows += [_row(row, base, f"{name}, {_trials(row)}", shown) for name, row in result.agents.items()]
    rows.append(_row(best, base, "result", shown, "result"))
    made = f"The result is the plan of {best.agent}"
    if best.finetune is not None and best.finetune.steps:
        before = (
            f" from {text.percent(best.finetune.before)} validation accuracy"
            if best.finetune.before is not None
            else ""
        )
        made += f", fine-tuned for {best.finetune.steps} steps{before}"
    note = f"{made}. Agents are compared before fine-tuning. Latency is relative to the original on the same engine."
    return _section("Comparison", table(heads, rows), el("p", note, class_="muted"))


def _trials(row: AgentRow) -> str:
    return "1 trial" if row.trials == 1 else f"{row.trials} trials"


def _row(row: Row, base: Row, name: str, shown: tuple[str, ...], class_: str | None = None) -> Markup:
    def share(key: str, write: Any) -> Child:
        value, full = getattr(row, key), getattr(base, key)
        return el("td", write(value), None if row is base else el("small", text.percent(value / max(1, full), 1)))

    def speed(ratio: float | None, interval: tuple[float, float] | None) -> Markup:
        return el("td", text.ratio(ratio), el("small", text.interval(interval)) if interval else None)

    return el(
        "tr",
        el("th", name, scope="row"),
        el("td", text.percent(row.accuracy), _difference(row.accuracy, base.accuracy, row is base)),
        el("td", text.percent(row.test_accuracy), _difference(row.test_accuracy, base.test_accuracy, row is base))
        if "test" in shown else None,
        share("macs", text.count), share("params", text.count), share("bytes", text.size),
        [speed(getattr(row, f"{key}_ratio"), getattr(row, f"{key}_interval")) for key in shown if key != "test"],
        class_=class_,
    )  # fmt: skip


def _difference(value: float | None, base: float | None, same: bool) -> Child:
    return None if same or value is None or base is None else el("small", text.points(value - base))


def _figure(svg: Markup | None, caption: str) -> Child:
    return None if svg is None else el("figure", svg, el("figcaption", caption))


def _legend(result: Result) -> Markup:
    width = 60 + sum(40 + 7 * len(name) for name in ("original", figures.result_name(result), *figures.series(result)))
    svg = chart.picture(
        width, 20, "Legend", "Marks of the agents, the original and the result", figures.legend(result, 14)
    )
    return el("div", Markup(svg), class_="legend", style=f"width:{width}px;max-width:100%")


def _tradeoff(result: Result) -> Markup:
    seen, whole = result.task.samples.get("search", 0), result.task.samples.get("validation", 0)
    again = f", counted again on {whole:,} images instead of {seen:,}" if 0 < seen < whole else ""
    trials = "Small marks are trials, scored without training; the line is their front, the dashed one the budget."
    best = f"Large marks are each agent's best plan{again}; whiskers are intervals."
    captions = {"latency": best}
    pictures = [_figure(figures.tradeoff(result, a), captions.get(a.key, trials)) for a in figures.axes_of(result)]
    missing = None if len(pictures) > 1 else el("p", "Latency was not measured in this run.", class_="muted")
    return _section("Accuracy against cost", _legend(result), el("div", pictures, class_="figures"), missing)


def _progress(result: Result) -> Child:
    svg = figures.progress(result)
    caption = "Accuracy of the best plan so far, by reward; small marks are single trials."
    return svg and _section("Search", el("div", _figure(svg, caption), _search_facts(result), class_="figures"))


def _search_facts(result: Result) -> Markup:
    rows = [
        el("tr", el("th", name, scope="row"), el("td", f"{row.trials}"), el("td", text.percent(row.accuracy)),
           el("td", text.count(row.macs)), el("td", text.duration(row.seconds)))
        for name, row in result.agents.items()
    ]  # fmt: skip
    return table(["agent", "trials", "best, validation", "MACs", "time"], rows)


def _groups(result: Result) -> Child:
    svg = figures.groups(result)
    others = [name for name in result.agents if name != result.best.agent]
    caption = f"Thick bars are the result, found by {result.best.agent}."
    caption += f" Thin ones are the best plans of {' and '.join(others)}, in that order." if others else ""
    return svg and _section("Channels kept by group", _figure(svg, caption))


def _method(result: Result) -> Markup:
    env, samples = result.environment, result.task.samples
    facts = {
        "Latency": "The original and the candidate run by turns in one pinned process, in two rounds that must agree;"
        " what counts is the ratio of their minima; the interval covers both rounds and how much they vary within.",
        "Accuracy": "Top-1. A search sees training and validation images only; test images are used once, at the end.",
        "Samples": ", ".join(f"{name} {number:,}" for name, number in samples.items()),
        "Device": env.device,
        "Versions": ", ".join(f"{name} {version}" for name, version in env.versions.items()),
        "Seed": "" if env.seed is None else str(env.seed),
        "Source": env.git or "",
        "Time": ", ".join(f"{stage} {text.duration(s)}" for stage, s in result.seconds.items()),
    }
    return _section("How it was measured", _facts(facts))


def _facts(facts: Mapping[str, str]) -> Markup:
    return el("dl", [(el("dt", name), el("dd", value)) for name, value in facts.items() if value], class_="facts")


def _artefacts(result: Result) -> Child:
    made = {name: export for name, export in result.exports.items() if export is not None}
    if not made:
        return None
    rows = [
        el("tr", el("th", name, scope="row"), el("td", el("code", e.file)), el("td", text.size(e.bytes)),
           el("td", text.check_error(e.max_error)))
        for name, e in made.items()
    ]  # fmt: skip
    note = "The error is the largest difference of any output from the reference, relative to the largest output."
    return _section("Artefacts", table(["", "file", "size", "error"], rows, "words"), el("p", note, class_="muted"))


def _failures(result: Result) -> Child:
    failed = result.failed
    if not failed:
        return None
    rows = [
        el("tr", el("th", t.agent, scope="row"), el("td", str(t.index + 1)), el("td", t.error))
        for t in failed[:MAX_FAILURES]
    ]
    more = len(failed) - MAX_FAILURES
    rest = el("p", f"and {more} more", class_="muted") if more > 0 else None
    return _section(f"Failed trials ({len(failed)})", table(["agent", "trial", "reason"], rows, "words"), rest)


def _footer(result: Result) -> Markup:
    total = sum(result.seconds.values())
    return el("footer", join(f"Made by msc-gym{f' in {text.duration(total)}' if total else ''}."))
