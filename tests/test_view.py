"""Pictures of graphs: well-formed, complete, escaped, without anything that runs or is loaded but one known script."""

from __future__ import annotations

import base64
import hashlib
import html as htmllib
import re
import time
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from torch import nn

from experiments import models
from msc_core import MSCGraph, Node, Tensor, from_torch
from msc_core.view.placement import Box, place
from msc_core.view.svg import PALETTE, PINNED, colours
from tests import micro_networks

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '<script>alert("1")</script>&\x00"\\\n'


def network(module: nn.Module, *shape: int) -> MSCGraph:
    return from_torch(module, torch.randn(2, *shape), dynamic_shapes=({0: "N"},))


@pytest.fixture(scope="module")
def resnet() -> MSCGraph:
    return network(models.ResNet20(8), 1, 28, 28)


@pytest.fixture(scope="module")
def hostile() -> MSCGraph:
    """A graph all of whose names are markup."""
    names = [f"{HOSTILE}{i}" for i in range(3)]
    tensors = {name: Tensor(name, (2, 3)) for name in names}
    nodes = (
        Node(names[1], "relu", (names[0],), (names[1],), scope=HOSTILE),
        Node(names[2], "dropout", (names[1],), (names[2],)),
    )
    return MSCGraph(HOSTILE, nodes, (names[0],), (names[2],), {}, tensors)


def chain(length: int) -> MSCGraph:
    """A long network with a connection past every four nodes."""
    tensors = {f"t{i}": Tensor(f"t{i}", ("N", 16, 32, 32)) for i in range(length + 1)}
    nodes = [
        Node(f"block.{i}", "add", (f"t{i}", f"t{i - 4}"), (f"t{i + 1}",)) if i % 4 == 3 and i > 4
        else Node(f"block.{i}", "relu", (f"t{i}",), (f"t{i + 1}",))
        for i in range(length)
    ]  # fmt: skip
    return MSCGraph("chain", tuple(nodes), ("t0",), (f"t{length}",), {}, tensors)


# SVG


def parsed(graph: MSCGraph) -> ElementTree.Element:
    return ElementTree.fromstring(graph.to_svg())


def test_svg_has_a_box_per_node_a_title_and_a_view_box(resnet):
    root = parsed(resnet)
    assert root.tag == f"{SVG}svg" and root.get("role") == "img" and len(root.get("viewBox").split()) == 4
    assert root.find(f"{SVG}title").text == f"Graph {resnet.name}"
    boxes = [g for g in root.iter(f"{SVG}g") if g.get("class") == "node"]
    assert sorted(int(g.get("data-node")) for g in boxes) == list(range(len(resnet.nodes)))
    ops = {int(g.get("data-node")): g.find(f"{SVG}text").text for g in boxes}
    assert [ops[i] for i in range(len(ops))] == [node.op for node in resnet.nodes]
    ends = [t.text for t in root.iter(f"{SVG}text") if t.get("class") == "ends"]
    assert ends == [*resnet.inputs, *resnet.outputs]


def test_svg_says_shapes_and_layouts_on_edges(resnet):
    shapes = [t.text for t in parsed(resnet).iter(f"{SVG}text") if t.get("class") == "shape"]
    assert len(shapes) == len(resnet.nodes) + 1
    assert shapes[0].replace("\N{MULTIPLICATION SIGN}", "x") == "Nx1x28x28 NCHW"
    assert shapes[-1].replace("\N{MULTIPLICATION SIGN}", "x") == "Nx10 NC"


def test_every_arrow_ends_at_a_box(resnet):
    root = parsed(resnet)
    arrows = [p for p in root.iter(f"{SVG}path") if p.get("marker-end")]
    readers = sum(len({x for x in node.inputs if x not in resnet.weights}) for node in resnet.nodes)
    assert len(arrows) == readers + len(resnet.outputs)
    boxes = [r for r in root.iter(f"{SVG}rect") if r.get("class") in ("box", "end")]
    for arrow in arrows:
        numbers = [float(n) for n in re.findall(r"-?[\d.]+", arrow.get("d"))]
        x, y = (numbers[0] if "C" not in arrow.get("d") else numbers[-2]), numbers[-1]
        assert any(
            abs(float(r.get("y")) - y) < 0.2 and 0 <= x - float(r.get("x")) <= float(r.get("width")) for r in boxes
        )


def test_nothing_overlaps(resnet):
    rects = [r for r in parsed(resnet).iter(f"{SVG}rect") if r.get("class") in ("box", "end")]
    spans = [tuple(float(r.get(k)) for k in ("x", "y", "width", "height")) for r in rects]
    for i, (x, y, w, h) in enumerate(spans):
        for a, b, c, d in spans[i + 1 :]:
            assert x + w < a or a + c < x or y + h < b or b + d < y


def test_colours_are_those_of_the_groups():
    graph = network(micro_networks.Residual().eval(), 3, 9, 9)
    found = colours(graph)
    free = [g for g in found.groups if not g.reason]
    pair = {node.name: found.pair(node.name) for node in graph.nodes}
    assert pair["b"] == pair["project"] == pair["d"] == pair["add"] != pair["a"]
    assert {pair[name] for name in ("stem", "a", "b", "c")} == set(PALETTE[: len(free)])
    assert pair["fc"] == PINNED


@pytest.mark.parametrize("method", ["to_svg", "to_html"])
def test_names_are_escaped(hostile, method):
    written = getattr(hostile, method)()
    assert "<script>alert" not in written and "\x00" not in written
    assert "&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&amp;\ufffd" in written
    if method == "to_svg":
        ElementTree.fromstring(written)


def test_svg_runs_and_loads_nothing(resnet):
    written = resnet.to_svg()
    assert "<script" not in written and " on" + "load=" not in written
    assert set(re.findall(r"https?://[^\"\s]+", written)) == {"http://www.w3.org/2000/svg"}


def test_several_hundred_nodes_take_less_than_two_seconds():
    graph = chain(600)
    start = time.perf_counter()
    assert graph.to_svg().count('class="node"') == 600
    assert time.perf_counter() - start < 2


@pytest.mark.parametrize("length", [0, 1])
def test_small_graphs_can_be_drawn(length):
    assert len(list(parsed(chain(length)).iter(f"{SVG}rect"))) == 3 + length  # the paper, input and output


def test_outputs_that_are_inputs_or_weights_can_be_drawn():
    tensors = {name: Tensor(name, (2,)) for name in "xwy"}
    node = Node("n", "add", ("x", "w"), ("y",))
    graph = MSCGraph("odd", (node,), ("x",), ("y", "x", "w"), {"w": np.ones(2, np.float32)}, tensors)
    root = parsed(graph)
    assert [t.text for t in root.iter(f"{SVG}text") if t.get("class") == "ends"] == ["x", "y", "x", "w"]
    assert "data-row" in graph.to_html() and read_prototxt(graph.to_prototxt()).layer[0].bottom == ["x"]


# Placement


def test_a_long_edge_goes_around_what_it_passes():
    boxes = [Box(20, 20, 30) for _ in range(5)]
    placed = place(boxes, [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)])
    assert [b.rank for b in placed.boxes[:5]] == [0, 1, 2, 3, 4]
    points = [b for b in placed.boxes if b.passing]
    assert [p.rank for p in points] == [1, 2, 3]
    assert all(abs(p.x - placed.boxes[p.rank].x) > 20 for p in points)
    assert len({round(b.x) for b in placed.boxes[1:4]}) == 1  # the chain is straight


def test_one_trunk_serves_all_readers():
    placed = place([Box(20, 20, 30) for _ in range(5)], [(0, 1), (1, 2), (2, 3), (3, 4), (0, 3), (0, 4)])
    assert sum(b.passing for b in placed.boxes) == 3


def test_crossings_are_removed():
    boxes = [Box(20, 20, 30) for _ in range(6)]
    placed = place(boxes, [(0, 5), (1, 4), (2, 3)])
    by_x = sorted(range(3), key=lambda i: placed.boxes[i].x)
    assert sorted(range(3), key=lambda i: placed.boxes[5 - i].x) == by_x


def test_what_nothing_feeds_stands_above_its_reader():
    placed = place([Box(20, 20, 30) for _ in range(4)], [(0, 1), (1, 3), (2, 3)])
    assert placed.boxes[2].rank == 1


# HTML


def test_the_page_allows_its_own_script_only(resnet):
    page = resnet.to_html()
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src &#x27;sha256-{digest}&#x27;" in page and "default-src &#x27;none&#x27;" in page
    assert not re.search(r"<(link|img|iframe|object|embed)\b| on\w+=|src=", page)


def test_the_page_lists_every_node_and_the_reason_of_every_pinned_group(resnet):
    page = resnet.to_html()
    assert re.findall(r'data-row="(\d+)"', page) == [str(i) for i in range(len(resnet.nodes))]
    for node in resnet.nodes:
        assert f"{node.name}</td><td>{node.op}</td>" in page
    pinned = [g for g in colours(resnet).groups if g.reason]
    assert pinned and all(f"pinned: {htmllib.escape(g.reason)}" in page for g in pinned)


def test_a_page_of_500_nodes():
    page = chain(500).to_html()
    assert page.count("data-row=") == 500


# Prototxt


def read_prototxt(text: str):
    """The text, read by protobuf with the fields of Caffe that we write; what is in `layer_param` is free."""
    F = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="net.proto", package="caffe", syntax="proto2")
    fields = {
        "Shape": [("dim", F.TYPE_INT64, F.LABEL_REPEATED, "")],
        "Layer": [("name", F.TYPE_STRING, F.LABEL_OPTIONAL, ""), ("type", F.TYPE_STRING, F.LABEL_OPTIONAL, ""),
                  ("bottom", F.TYPE_STRING, F.LABEL_REPEATED, ""), ("top", F.TYPE_STRING, F.LABEL_REPEATED, "")],
        "Net": [("name", F.TYPE_STRING, F.LABEL_OPTIONAL, ""), ("input", F.TYPE_STRING, F.LABEL_REPEATED, ""),
                ("input_shape", F.TYPE_MESSAGE, F.LABEL_REPEATED, ".caffe.Shape"),
                ("layer", F.TYPE_MESSAGE, F.LABEL_REPEATED, ".caffe.Layer")],
    }  # fmt: skip
    for name, members in fields.items():
        message = file.message_type.add(name=name)
        for number, (field, kind, label, type_name) in enumerate(members, 1):
            message.field.add(name=field, number=number, type=kind, label=label, type_name=type_name or None)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    net = message_factory.GetMessageClass(pool.FindMessageTypeByName("caffe.Net"))()
    return text_format.Parse(text, net, allow_unknown_field=True)


def test_prototxt_is_protobuf_text_that_says_the_structure(resnet):
    net = read_prototxt(resnet.to_prototxt())
    assert net.name == resnet.name and list(net.input) == list(resnet.inputs)
    assert [list(s.dim) for s in net.input_shape] == [[-1, 1, 28, 28]]
    assert [(n.name, n.type, list(n.bottom), list(n.top)) for n in net.layer] == [
        (n.name, n.op, [x for x in n.inputs if x not in resnet.weights], list(n.outputs)) for n in resnet.nodes
    ]


def test_prototxt_holds_attributes_and_weights(resnet):
    text = resnet.to_prototxt()
    node = next(n for n in resnet.nodes if n.op == "conv2d")
    assert f'input_1: "{node.inputs[1]}: float32[8, 1, 3, 3]"' in text or "float32[" in text
    assert 'stride: "(1, 1)"' in text and "groups: 1" in text and "eps: 1e-05" in text


def test_strings_in_prototxt_are_escaped(hostile):
    net = read_prototxt(hostile.to_prototxt())
    assert net.name == hostile.name and [n.name for n in net.layer] == [n.name for n in hostile.nodes]


def test_other_values_in_prototxt():
    tensors = {name: Tensor(name, (2, 3)) for name in ("x", "y", "z")}
    nodes = (
        Node("a", "clip", ("x",), ("y",), {"max": 6.0}),
        Node("b", "gelu", ("y",), ("z",), {"approximate": "tanh"}),
    )
    text = MSCGraph("g", nodes, ("x",), ("z",), {}, tensors).to_prototxt()
    read_prototxt(text)
    assert "min: -inf" in text and "max: 6.0" in text and 'approximate: "tanh"' in text
