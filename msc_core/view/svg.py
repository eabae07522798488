"""A graph as an SVG picture: boxes in ranks, arrows with shapes, one colour per group of channels; no scripts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from msc_core.channels import ChannelGroup, Channels
from msc_core.ir import MSCGraph, Node
from msc_core.layout import infer_layouts
from msc_core.ops import OPS, bind
from msc_core.view.markup import Markup, el
from msc_core.view.placement import Box, Placement, place

MARGIN, HEADER = 28, 74
STRETCH, LABEL = 40, 20  # heights of a node and of the shape below it
PALETTE = (
    ("#e8f0fe", "#2f6fed"), ("#fdeedd", "#d9720f"), ("#dcf5ee", "#12937c"), ("#f0e9fd", "#7c4ddb"),
    ("#fde8ef", "#d13a74"), ("#f2f3d3", "#84850f"), ("#dff2fb", "#1583b5"), ("#e4f5e3", "#389240"),
    ("#f6ebe1", "#9a6337"), ("#f9e5fa", "#b13fbd"),
)  # fmt: skip
PINNED, PLAIN = ("#f4f5f7", "#9aa4b2"), ("#ffffff", "")
STYLE = """
.graph text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; fill: #17202b; }
.graph .head { font-size: 19px; font-weight: 650; } .graph .sub { font-size: 12.5px; fill: #5c6774; }
.graph .box { stroke: #cfd6df; stroke-width: 1; } .graph .op { font-weight: 620; }
.graph .name { font-size: 10.5px; fill: #5c6774; }
.graph .weight { font-size: 10.5px; fill: #5c6774; font-weight: 400; }
.graph .end { fill: #22303f; } .graph .ends { fill: #ffffff; font-weight: 600; }
.graph .edge { fill: none; stroke: #8e99a8; stroke-width: 1.3; }
.graph .shape { font-size: 10px; fill: #45505d; stroke: #ffffff; stroke-width: 3.5; paint-order: stroke;
  stroke-linejoin: round; }
"""
TIMES = "\N{MULTIPLICATION SIGN}"
NARROW, WIDE = set("fijlrtI.,:;'|()[]!-_/ "), set("mwMWNOQG@%")


@dataclass(frozen=True)
class Colours:
    """The groups of a graph's channels, and which one the output of each node belongs to."""

    groups: list[ChannelGroup]
    of_node: Mapping[str, int]

    def pair(self, node: str) -> tuple[str, str]:
        """Tint and accent of a node."""
        return self.of_group(self.of_node[node]) if node in self.of_node else PLAIN

    def of_group(self, index: int) -> tuple[str, str]:
        """Tint and accent of a group."""
        if self.groups[index].reason:
            return PINNED
        return PALETTE[sum(not g.reason for g in self.groups[:index]) % len(PALETTE)]


def to_svg(graph: MSCGraph) -> str:
    """The picture as a file of its own, light on white."""
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{drawing(infer_layouts(graph), colours(graph))}\n'


def colours(graph: MSCGraph) -> Colours:
    """Which group the channels behind each node are in: the one that most positions of its output belong to."""
    channels = Channels(graph)
    owner = np.full(max(1, channels.ids.count), -1)
    for number, group in enumerate(channels.groups):
        owner[channels.dropped({group.name: ()})] = number
    found = {}
    for node in graph.nodes:
        for ids in channels.axes.get(node.outputs[0], ()):
            if ids is not None:
                resolved = channels.ids.resolve(ids)
                numbers = owner[resolved[resolved >= 0]]
                counts = np.bincount(numbers[numbers >= 0], minlength=1)
                if counts.any():
                    found[node.name] = int(counts.argmax())
                    break
    return Colours(channels.groups, found)


def drawing(graph: MSCGraph, found: Colours) -> Markup:
    """The `<svg>` element. Each node is a `<g class="node" data-node="its index">`."""
    picture = _Picture(graph, found)
    placed = picture.placed
    header = f"{len(graph.nodes)} nodes, {sum(w.size for w in graph.weights.values()):,} weights"
    free = sum(not g.reason for g in found.groups)
    legend = f"colours: groups of channels that are pruned together ({free}); grey: pinned ({len(found.groups) - free})"
    least = MARGIN * 2 + 1.15 * max(width(graph.name, 19), width(header, 12.5), width(legend, 12.5))
    whole = max(placed.width + 2 * MARGIN, least)
    shift = (whole - placed.width) / 2
    tall = placed.height + HEADER + 2 * MARGIN
    marker = el("marker", el("path", d="M0 0L8 4L0 8z", fill="#8e99a8"), id="arrow", viewBox="0 0 8 8", refX="7.5",
                refY="4", markerWidth="7", markerHeight="7", orient="auto")  # fmt: skip
    return el(
        "svg",
        el("title", f"Graph {graph.name}", id="graph-title"),
        el("desc", f"{header}. {', '.join(graph.inputs)} go in, {', '.join(graph.outputs)} come out.", id="graph-desc"),
        el("style", Markup(STYLE)),
        el("defs", marker),
        el("rect", class_="paper", width=whole, height=tall, fill="#ffffff"),
        el("text", shortened(graph.name, 80), class_="head", x=MARGIN, y=MARGIN + 16),
        el("text", header, class_="sub", x=MARGIN, y=MARGIN + 38),
        el("text", legend, class_="sub", x=MARGIN, y=MARGIN + 56),
        el("g", picture.edges(), picture.boxes(), picture.shapes(),
           transform=f"translate({shift:.1f} {HEADER + MARGIN})"),
        class_="graph", role="img", aria_labelledby="graph-title graph-desc", xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {whole:.0f} {tall:.0f}", width=whole, height=tall,
    )  # fmt: skip


class _Picture:
    """The boxes of a graph: its inputs, then its nodes, then its outputs."""

    def __init__(self, graph: MSCGraph, found: Colours) -> None:
        self.graph, self.colours = graph, found
        first = len(graph.inputs)
        source = {name: i for i, name in enumerate(graph.inputs)}
        source |= {name: first + i for i, node in enumerate(graph.nodes) for name in node.outputs}
        readers = [(node.inputs, first + i) for i, node in enumerate(graph.nodes)]
        readers += [((name,), first + len(graph.nodes) + i) for i, name in enumerate(graph.outputs)]
        self.edge_list = [(source[name], box) for names, box in readers for name in names if name in source]
        self.labels = {i: shape_text(graph, (name,)) for i, name in enumerate(graph.inputs)}
        self.labels |= {first + i: shape_text(graph, node.outputs) for i, node in enumerate(graph.nodes)}
        boxes = [self._end(name, i) for i, name in enumerate(graph.inputs)]
        boxes += [self._box(node, first + i) for i, node in enumerate(graph.nodes)]
        boxes += [self._end(name, -1) for name in graph.outputs]
        self.placed: Placement = place(boxes, self.edge_list)

    def _end(self, name: str, index: int) -> Box:
        half = width(shortened(name, 28), 12) / 2 + 16
        return Box(half, max(half, self._beside(index)), 28)

    def _beside(self, index: int) -> float:
        """How far the shape beside the arrow out of a box reaches."""
        return width(self.labels[index], 10) + 10 if index in self.labels else 0

    def _box(self, node: Node, index: int) -> Box:
        weight = self._weight(node)
        top = width(node.op, 13.5) + (width(weight, 10.5) + 8 if weight else 0)
        half = max(top, width(shortened(node.name), 10.5), 44) / 2 + 15
        return Box(half, max(half, self._beside(index)), STRETCH)

    def _weight(self, node: Node) -> str:
        """The shape of the largest weight, which is what a layer is known by."""
        shapes = [self.graph.weights[name].shape for name in node.inputs if name in self.graph.weights]
        largest = max(shapes, key=lambda s: int(np.prod(s)), default=())
        return TIMES.join(map(str, largest))

    def boxes(self) -> list[Markup]:
        """All boxes, with what a pointer shows."""
        graph, first = self.graph, len(self.graph.inputs)
        ends = [(i, name, "input") for i, name in enumerate(graph.inputs)]
        ends += [(first + len(graph.nodes) + i, name, "output") for i, name in enumerate(graph.outputs)]
        drawn = [self._pill(i, name, kind) for i, name, kind in ends]
        return drawn + [self._node(first + i, i, node) for i, node in enumerate(graph.nodes)]

    def _pill(self, index: int, name: str, kind: str) -> Markup:
        box, text = self.placed.boxes[index], shortened(name, 28)
        half = width(text, 12) / 2 + 16
        return el(
            "g", el("title", f"{kind} {name}: {shape_text(self.graph, (name,))} {self.graph.tensors[name].dtype}"),
            el("rect", class_="end", x=box.x - half, y=box.y, width=2 * half, height=box.height, rx=box.height / 2),
            el("text", text, class_="ends", x=box.x, y=box.y + 18.5, text_anchor="middle"),
        )  # fmt: skip

    def _node(self, index: int, number: int, node: Node) -> Markup:
        box = self.placed.boxes[index]
        tint, accent = self.colours.pair(node.name)
        left, weight = box.x - box.left, self._weight(node)
        span = Markup(el("tspan", weight, class_="weight", dx="7")) if weight else Markup()
        bar = Markup()
        if accent:
            bar = el("path", d=f"M{left + 5:.1f} {box.y:.1f}h-1a4 4 0 0 0 -4 4v{box.height - 8:.0f}a4 4 0 0 0 4 4h1z",
                     fill=accent)  # fmt: skip
        return el(
            "g", el("title", tooltip(self.graph, node)),
            el("rect", class_="box", x=left, y=box.y, width=2 * box.left, height=box.height, rx=5, fill=tint), bar,
            el("text", node.op, span, class_="op", x=box.x + 2, y=box.y + 17, text_anchor="middle"),
            el("text", shortened(node.name), class_="name", x=box.x + 2, y=box.y + 31.5, text_anchor="middle"),
            class_="node", data_node=str(number),
        )  # fmt: skip

    def edges(self) -> list[Markup]:
        """The trunks as one path per source, and a path with an arrow to every reader."""
        drawn = []
        boxes = self.placed.boxes
        for segments in self.placed.segments.values():
            trunk = [self._curve(a, b) for a, b in segments if boxes[b].passing]
            if trunk:
                drawn.append(el("path", class_="edge", d="".join(trunk)))
            for a, b in segments:
                if not boxes[b].passing:
                    drawn.append(el("path", class_="edge", d=self._curve(a, b), marker_end="url(#arrow)"))
        return drawn

    def _curve(self, a: int, b: int) -> str:
        """From the bottom of one box to the top of another; straight down beside the boxes of a rank."""
        one, two = self.placed.boxes[a], self.placed.boxes[b]
        y, end = one.y + one.height, two.y
        if abs(one.x - two.x) < 0.5:
            return f"M{one.x:.1f} {y:.1f}V{end:.1f}"
        start = min(end - 26, (y + STRETCH / 2 if one.passing else y) + LABEL)  # first past the shape
        middle = (start + end) / 2
        return (
            f"M{one.x:.1f} {y:.1f}V{start:.1f}C{one.x:.1f} {middle:.1f} {two.x:.1f} {middle:.1f} {two.x:.1f} {end:.1f}"
        )

    def shapes(self) -> list[Markup]:
        """What flows out of every box, beside its arrow."""
        return [
            el("text", text, class_="shape", x=self.placed.boxes[i].x + 7,
               y=self.placed.boxes[i].y + self.placed.boxes[i].height + 14)
            for i, text in self.labels.items()
            if i in self.placed.segments
        ]  # fmt: skip


def shape_text(graph: MSCGraph, names: tuple[str, ...]) -> str:
    """Sizes and layout of a tensor; the different ones of several outputs with how often they come."""
    texts = Counter(
        " ".join(filter(None, (TIMES.join(map(str, t.shape)) or "scalar", t.layout)))
        for t in (graph.tensors[name] for name in names)
    )
    found = [text if count == 1 else f"{count} of {text}" for text, count in texts.items()]
    return ", ".join(found[:2]) + (", ..." if len(found) > 2 else "")


def tooltip(graph: MSCGraph, node: Node) -> str:
    """A node in a few lines: what it is called, its attributes, its weights and what it puts out."""
    lines = [node.name, node.op]
    if node.op in OPS:
        b = bind(node, graph.tensors)
        lines += [f"{key} = {b[key]}" for key in b.op.attrs]
    lines += [f"{name}: {shape_text(graph, (name,))}" for name in node.inputs if name in graph.weights]
    return "\n".join([*lines, f"gives {shape_text(graph, node.outputs)}"])


def shortened(text: str, most: int = 34) -> str:
    """The end of a long name, which tells it from others."""
    return text if len(text) <= most else "…" + text[1 - most :]


def width(text: str, size: float) -> float:
    """About how wide a text is in a common sans-serif font of that size."""
    units = sum(0.33 if c in NARROW else 0.86 if c in WIDE else 0.68 if c.isupper() else 0.57 for c in text)
    return units * size
