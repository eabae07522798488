"""A graph as one HTML page that needs nothing else: the picture to zoom and search, every node, every channel group."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable

from msc_core.cost import cost, macs_by_node
from msc_core.ir import MSCGraph, Node
from msc_core.layout import infer_layouts
from msc_core.view.markup import Child, Markup, el, join
from msc_core.view.svg import Colours, colours, drawing, shape_text

STYLE = """
* { box-sizing: border-box; }
:root { color-scheme: light; }
body { margin: 0; height: 100vh; display: grid; grid-template: auto minmax(0, 1fr) / minmax(0, 1fr) minmax(360px, 38%);
  color: #17202b; background: #fff; font: 14px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
header { grid-column: 1 / 3; display: flex; flex-wrap: wrap; align-items: center; gap: 6px 22px; padding: 10px 20px;
  border-bottom: 1px solid #dde2e9; }
h1 { font-size: 18px; margin: 0; overflow-wrap: anywhere; }
.fact { color: #5c6774; } .fact b { color: #17202b; font-weight: 600; }
.tools { margin-left: auto; display: flex; gap: 6px; align-items: center; }
input, button { font: inherit; border: 1px solid #cbd2db; border-radius: 6px; background: #fff; padding: 4px 10px; }
input { width: 220px; } button { cursor: pointer; min-width: 32px; } button:hover { background: #f2f5f9; }
input:focus-visible, button:focus-visible, tr:focus-visible { outline: 2px solid #2f6fed; outline-offset: -1px; }
main { overflow: hidden; position: relative; background: #fff; cursor: grab; touch-action: none; }
main.moving { cursor: grabbing; } main svg { width: 100%; height: 100%; display: block; user-select: none; }
.node { cursor: pointer; } .node.hit .box { stroke: #17202b; stroke-width: 1.6; }
.node.here .box { stroke: #2f6fed; stroke-width: 3; } svg.searching .node:not(.hit) { opacity: .28; }
aside { border-left: 1px solid #dde2e9; display: flex; flex-direction: column; min-height: 0; }
section { overflow: auto; flex: 0 1 auto; max-height: 36%; padding: 0 18px 14px; border-bottom: 1px solid #dde2e9; }
section:last-child { flex: 1 1 0; max-height: none; border: 0; }
h2 { font-size: 15px; margin: 14px 0 4px; } .note { color: #5c6774; margin: 0 0 8px; }
table { border-collapse: collapse; width: 100%; font-size: 12.5px; font-variant-numeric: tabular-nums; }
th { position: sticky; top: 0; background: #fff; color: #5c6774; font-weight: 500; text-align: left; }
th, td { padding: 4px 8px 4px 0; border-bottom: 1px solid #edf0f3; vertical-align: top; overflow-wrap: anywhere; }
td:first-child { min-width: 172px; padding-left: 16px; text-indent: -16px; }
.number { text-align: right; white-space: nowrap; } tr[data-row] { cursor: pointer; }
tr[data-row]:hover { background: #f6f8fb; } tr.here { background: #e8f0fe; } tr.out { display: none; }
.dot { display: inline-block; width: 9px; height: 9px; border-radius: 3px; margin-right: 7px; }
.reason { color: #5c6774; }
@media print { body { display: block; } main { height: auto; overflow: visible; } aside { border: 0; display: block; }
  section { max-height: none; } .tools { display: none; } }
"""
SCRIPT = """
"use strict";
const frame = document.querySelector("main"), svg = frame.querySelector("svg"), find = document.querySelector("#find");
const whole = svg.viewBox.baseVal, full = { width: whole.width, height: whole.height };
const nodes = [...svg.querySelectorAll(".node")], rows = [...document.querySelectorAll("tr[data-row]")];
const byNumber = new Map(nodes.map((node) => [node.dataset.node, node]));
let view = { x: 0, y: 0, scale: 1 };
function show() {
  const width = frame.clientWidth / view.scale, height = frame.clientHeight / view.scale;
  svg.setAttribute("viewBox", `${view.x} ${view.y} ${width} ${height}`);
}
function zoom(factor, px = frame.clientWidth / 2, py = frame.clientHeight / 2) {
  const scale = Math.min(6, Math.max(0.02, view.scale * factor));
  view = { x: view.x + px / view.scale - px / scale, y: view.y + py / view.scale - py / scale, scale };
  show();
}
function fit(scale) {
  view = { x: full.width / 2 - frame.clientWidth / scale / 2, y: 0, scale };
  show();
}
const whole_scale = () => Math.min(frame.clientWidth / full.width, frame.clientHeight / full.height);
const start_scale = () => Math.min(1, Math.max(0.35, frame.clientWidth / full.width));
function select(number, move) {
  document.querySelectorAll(".here").forEach((old) => old.classList.remove("here"));
  const node = byNumber.get(number), row = rows.find((each) => each.dataset.row === number);
  node.classList.add("here");
  row.classList.add("here");
  if (!move) { row.scrollIntoView({ block: "center" }); return; }
  const box = node.getBoundingClientRect(), pane = frame.getBoundingClientRect();
  view.x += (box.left + box.width / 2 - pane.left - pane.width / 2) / view.scale;
  view.y += (box.top + box.height / 2 - pane.top - pane.height / 2) / view.scale;
  if (view.scale < 0.6) zoom(1 / view.scale); else show();
}
let hits = [], next = 0;
function search() {
  const words = find.value.toLowerCase().split(/\\s+/).filter(Boolean);
  hits = [];
  for (const row of rows) {
    const text = row.textContent.toLowerCase(), found = words.every((word) => text.includes(word));
    row.classList.toggle("out", !found);
    byNumber.get(row.dataset.row).classList.toggle("hit", found && words.length > 0);
    if (found) hits.push(row.dataset.row);
  }
  next = 0;
  svg.classList.toggle("searching", words.length > 0);
  document.querySelector("#count").textContent = words.length ? `${hits.length} found` : "";
}
find.addEventListener("input", search);
find.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && hits.length) select(hits[next++ % hits.length], true);
  if (event.key === "Escape") { find.value = ""; search(); }
});
frame.addEventListener("wheel", (event) => {
  event.preventDefault();
  const pane = frame.getBoundingClientRect();
  if (event.ctrlKey || event.metaKey) {
    zoom(Math.exp(-event.deltaY / 120), event.clientX - pane.left, event.clientY - pane.top);
  } else {
    view.x += event.deltaX / view.scale; view.y += event.deltaY / view.scale; show();
  }
}, { passive: false });
let grip = null, moved = 0;
frame.addEventListener("pointerdown", (event) => { grip = [event.clientX, event.clientY]; moved = 0; });
window.addEventListener("pointermove", (event) => {
  if (!grip) return;
  const dx = event.clientX - grip[0], dy = event.clientY - grip[1];
  moved += Math.abs(dx) + Math.abs(dy);
  view.x -= dx / view.scale; view.y -= dy / view.scale; grip = [event.clientX, event.clientY];
  frame.classList.add("moving"); show();
});
window.addEventListener("pointerup", () => { grip = null; frame.classList.remove("moving"); });
svg.addEventListener("click", (event) => {
  const node = event.target.closest(".node");
  if (node && moved < 5) select(node.dataset.node, false);
});
for (const row of rows) {
  row.addEventListener("click", () => select(row.dataset.row, true));
  row.addEventListener("keydown", (event) => { if (event.key === "Enter") select(row.dataset.row, true); });
}
document.querySelector("#in").addEventListener("click", () => zoom(1.25));
document.querySelector("#away").addEventListener("click", () => zoom(0.8));
document.querySelector("#fit").addEventListener("click", () => fit(whole_scale()));
document.querySelector("#full").addEventListener("click", () => fit(start_scale()));
window.addEventListener("resize", show);
fit(start_scale());
"""


def to_html(graph: MSCGraph) -> str:
    """The page. Nothing is loaded from anywhere, and only the script above may run."""
    graph = infer_layouts(graph)
    found = colours(graph)
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    head = el(
        "head", el("meta", charset="utf-8"), el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("title", f"{graph.name}: graph"), el("style", Markup(STYLE)),
    )  # fmt: skip
    body = el(
        "body", _header(graph, found), el("main", drawing(graph, found)),
        el("aside", map(_section, (_tensors(graph), _groups(found), _nodes(graph, found)))),
        el("script", Markup(SCRIPT)),
    )  # fmt: skip
    return f"<!DOCTYPE html>\n{el('html', head, body, lang='en')}\n"


def _section(content: Markup) -> Markup:
    return el("section", content)


def _header(graph: MSCGraph, found: Colours) -> Markup:
    total = cost(graph)
    facts = {
        "nodes": len(graph.nodes),
        "parameters": total.params,
        "MACs": total.macs,
        "channel groups": len(found.groups),
    }
    tools = el(
        "div",
        el("span", "", id="count", class_="fact", aria_live="polite"),
        el("input", id="find", type="search", placeholder="Find nodes (Enter: next)", aria_label="Find nodes"),
        el("button", "−", id="away", type="button", title="Smaller", aria_label="Smaller"),  # noqa: RUF001
        el("button", "+", id="in", type="button", title="Larger (or Ctrl and wheel)", aria_label="Larger"),
        el("button", "Whole", id="fit", type="button"), el("button", "Start", id="full", type="button"),
        class_="tools",
    )  # fmt: skip
    return el(
        "header", el("h1", graph.name),
        [el("span", el("b", f"{value:,}"), f" {name}", class_="fact") for name, value in facts.items()], tools,
    )  # fmt: skip


def _table(heads: Iterable[str], rows: Iterable[Markup], numbers: tuple[str, ...] = ()) -> Markup:
    cells = [el("th", head, scope="col", class_="number" if head in numbers else None) for head in heads]
    return el("table", el("thead", el("tr", cells)), el("tbody", rows))


def _row(cells: Iterable[tuple[Child, str | None]], **attributes: str | None) -> Markup:
    return el("tr", [el("td", cell, class_=kind) for cell, kind in cells], **attributes)


def _dot(colour: str) -> Markup:
    return el("span", class_="dot", style=f"background: {colour}") if colour else Markup()


def _groups(found: Colours) -> Markup:
    """What is pruned together, and why the rest is not."""
    if not found.groups:
        return join([el("h2", "Channel groups"), el("p", "No channels that are known to flow through.", class_="note")])
    rows = []
    for number, group in enumerate(found.groups):
        accent = found.of_group(number)[1]
        last: Child = el("span", f"pinned: {group.reason}", class_="reason") if group.reason else ", ".join(group.nodes)
        rows.append(_row([([_dot(accent), group.name], None), (f"{group.size:,}", "number"), (last, None)]))
    return join(
        [
            el("h2", "Channel groups"),
            el("p", "Channels that are pruned together; boxes in the picture have their colour.", class_="note"),
            _table(("group", "channels", "layers, or why it is pinned"), rows, ("channels",)),
        ]
    )


def _tensors(graph: MSCGraph) -> Markup:
    """Inputs and outputs."""
    rows = [
        _row([(name, None), (kind, None), (graph.tensors[name].dtype, None), (shape_text(graph, (name,)), None)])
        for kind, names in (("input", graph.inputs), ("output", graph.outputs))
        for name in names
    ]
    return join([el("h2", "Inputs and outputs"), _table(("name", "", "dtype", "shape and layout"), rows)])


def _nodes(graph: MSCGraph, found: Colours) -> Markup:
    """One row per node; the script ties it to its box."""
    macs = macs_by_node(graph)
    rows = [_node(graph, found, number, node, macs.get(node.name)) for number, node in enumerate(graph.nodes)]
    heads = ("node", "operator", "gives", "weights", "MACs")
    return join([el("h2", "Nodes"), _table(heads, rows, ("weights", "MACs"))])


def _node(graph: MSCGraph, found: Colours, number: int, node: Node, macs: int | None) -> Markup:
    weights = sum(graph.weights[name].size for name in dict.fromkeys(node.inputs) if name in graph.weights)
    return _row(
        [
            ([_dot(found.pair(node.name)[1]), node.name], None), (node.op, None),
            (shape_text(graph, node.outputs), None), (f"{weights:,}" if weights else "", "number"),
            (f"{macs:,}" if macs else "", "number"),
        ],
        data_row=str(number), tabindex="0",
    )  # fmt: skip
