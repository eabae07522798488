"""The graph: what it refuses, and files that give back exactly what was saved or say that they do not."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import msc_core.ir
from msc_core import MSCGraph, Node, Tensor
from msc_core.errors import InvalidGraph
from msc_core.exchange import numpy_dtype
from msc_core.ir import GRAPH_FILE, WEIGHTS_FILE, consumers, unique

ODD = ["a:0", "x.y", "é", "重み", "a b", "a/b", '"', "\\", "\n", "0", "..", "🙂"]
NAMES = st.one_of(st.sampled_from(ODD), st.text(min_size=1, max_size=8))
FLOATS = st.floats(width=64, allow_nan=True, allow_infinity=True)
ATTRS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63), FLOATS, NAMES),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=5,
)
DTYPES = ["float32", "float64", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool"]


@st.composite
def graphs(draw: st.DrawFn) -> MSCGraph:
    """Graphs of nodes that nobody has to be able to run, with odd names, attributes and weights."""
    names = draw(st.lists(NAMES, min_size=3, max_size=10, unique=True))
    count = draw(st.integers(1, len(names) - 2))
    stored, defined = names[:count], names[count:]
    weights, tensors = {}, {}
    for name in stored[1:]:
        shape = tuple(draw(st.lists(st.integers(1, 3), max_size=3)))
        dtype = numpy_dtype(draw(st.sampled_from(DTYPES)))
        size = math.prod(shape) * dtype.itemsize
        data = draw(st.binary(min_size=size, max_size=size))
        weights[name] = np.frombuffer(data, np.uint8).reshape(*shape, dtype.itemsize)
        weights[name] = (weights[name] > 127)[..., 0] if dtype.kind == "b" else weights[name].view(dtype)[..., 0]
        tensors[name] = Tensor(name, shape, dtype.name)
    known = list(stored)
    nodes = []
    for name in defined:
        inputs = tuple(draw(st.lists(st.sampled_from([*known, ""]), max_size=3)))
        attrs = draw(st.dictionaries(NAMES, ATTRS, max_size=3))
        nodes.append(Node(name, draw(NAMES), inputs, (name,), attrs, draw(st.one_of(st.just(""), NAMES))))
        known.append(name)
    for name in (stored[0], *defined):
        dims = draw(st.lists(st.one_of(st.integers(1, 9), NAMES), max_size=3))
        tensors[name] = Tensor(name, tuple(dims), draw(st.sampled_from(DTYPES)), draw(st.sampled_from(["", "NCHW"])))
    outputs = tuple(draw(st.lists(st.sampled_from(defined), min_size=1, max_size=2)))
    return MSCGraph(draw(NAMES), tuple(nodes), (stored[0],), outputs, weights, tensors)


def bits(value: object) -> object:
    """A value in which equal floats are equal to the bit, and NaN is equal to itself."""
    if isinstance(value, tuple):
        return tuple(map(bits, value))
    return (
        ("nan" if math.isnan(value) else struct.pack("<d", value)) if isinstance(value, float) else (type(value), value)
    )


def assert_same(found: MSCGraph, expected: MSCGraph) -> None:
    """Equality of every field, order included: stricter than `==`, which compares hashes."""
    assert (found.name, found.inputs, found.outputs) == (expected.name, expected.inputs, expected.outputs)
    assert list(found.tensors.items()) == list(expected.tensors.items())
    for one, other in zip(found.nodes, expected.nodes, strict=True):
        assert dataclasses.replace(one, attrs={}) == dataclasses.replace(other, attrs={})
        assert list(one.attrs) == list(other.attrs)
        assert [bits(v) for v in one.attrs.values()] == [bits(v) for v in other.attrs.values()]
    assert list(found.weights) == list(expected.weights)
    for name, array in found.weights.items():
        assert (array.dtype, array.shape) == (expected.weights[name].dtype, expected.weights[name].shape)
        assert array.tobytes() == expected.weights[name].tobytes()
    assert found == expected
    assert found.fingerprint == expected.fingerprint


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(graph=graphs())
def test_saved_and_loaded_a_graph_is_the_same(graph, tmp_path_factory):
    folder = tmp_path_factory.mktemp("graph")
    graph.save(folder)
    assert_same(MSCGraph.load(folder), graph)
    assert_same(pickle.loads(pickle.dumps(graph)), graph)  # noqa: TID251 (our own bytes, as Ray passes them)
    assert_same(copy.deepcopy(graph), graph)


@settings(max_examples=50, deadline=None)
@given(graph=graphs(), data=st.data())
def test_any_change_changes_the_fingerprint(graph, data):
    def changed_node(**changes: object) -> MSCGraph:
        return graph.replace(nodes=(*graph.nodes[:-1], dataclasses.replace(graph.nodes[-1], **changes)))

    last = graph.nodes[-1]
    candidates = [
        graph.replace(name=graph.name + "x"),
        graph.replace(outputs=(*graph.outputs, last.name)),
        changed_node(op=last.op + "x"),
        changed_node(scope=last.scope + "x"),
        changed_node(attrs={**last.attrs, "new attribute": 1}),
        graph.replace(
            tensors={**graph.tensors, last.name: dataclasses.replace(graph.tensors[last.name], layout="CHW")}
        ),
    ]
    for name, array in graph.weights.items():
        flipped = bytearray(array.tobytes())
        flipped[data.draw(st.integers(0, len(flipped) - 1))] ^= 1
        changed = np.frombuffer(bytes(flipped), array.dtype).reshape(array.shape)
        candidates.append(graph.replace(weights={**graph.weights, name: changed}))
    fingerprints = [candidate.fingerprint for candidate in candidates]
    assert graph.fingerprint not in fingerprints
    assert len(set(fingerprints)) == len(fingerprints)


def net(shift: float = 0.0) -> MSCGraph:
    """`y = clip(x + w)`."""
    tensors = {name: Tensor(name, ("N", 2)) for name in ("x", "s", "y")} | {"w": Tensor("w", (2,))}
    nodes = (
        Node("s", "add", ("x", "w"), ("s",), scope="block.0"),
        Node("y", "clip", ("s",), ("y",), {"min": -math.inf, "max": 0.1}),
    )
    return MSCGraph("net", nodes, ("x",), ("y",), {"w": np.float32([1, 2]) + np.float32(shift)}, tensors)


def test_a_fingerprint_is_the_same_everywhere_since_stores_are_keyed_by_it():
    assert net().fingerprint == "a3bed3669ac0c876e8c9f5c0c984269cc25606a0975d0774c763a46f39a2857f"
    assert hash(net()) == hash(net())
    assert net() != "net"


def test_a_graph_is_frozen():
    graph = net()
    source = np.float32([1, 2])
    mine = graph.replace(weights={"w": source})
    before = mine.fingerprint
    with pytest.raises(dataclasses.FrozenInstanceError):
        graph.name = "x"
    for table, key in [(graph.weights, "w"), (graph.tensors, "x"), (graph.nodes[0].attrs, "a")]:
        with pytest.raises(TypeError):
            table[key] = None
    with pytest.raises(ValueError, match="read-only"):
        graph.weights["w"][0] = 3
    assert source.flags.writeable
    assert mine.fingerprint == before


def test_what_nothing_uses_is_dropped_and_the_rest_ordered():
    graph = net()
    extra = graph.replace(
        weights={"unused": np.zeros(3), **graph.weights},
        tensors={"unused": Tensor("unused", (3,), "float64"), **dict(reversed(graph.tensors.items()))},
    )
    assert_same(extra, graph)
    assert list(graph.tensors) == ["x", "w", "s", "y"]


def test_inspect_counts():
    assert net().inspect() == {
        "name": "net",
        "inputs": {"x": "float32['N', 2]"},
        "outputs": {"y": "float32['N', 2]"},
        "ops": {"add": 1, "clip": 1},
        "parameters": 2,
        "bytes": 8,
    }


def test_nodes_by_name_and_consumers():
    graph = net()
    assert graph.node("y") is graph.nodes[1]
    with pytest.raises(KeyError):
        graph.node("x")
    assert consumers(graph) == {"x": [graph.nodes[0]], "w": [graph.nodes[0]], "s": [graph.nodes[1]]}


def test_unique():
    assert [unique("a", taken) for taken in ({"b"}, {"a"}, {"a", "a_1"})] == ["a", "a_1", "a_2"]


TENSORS = {name: Tensor(name, (2,)) for name in "xyzw"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes": (Node("n", "relu", ("z",), ("y",)),)}, r"node 'n' \(relu\) reads 'z', which no input"),
        ({"nodes": (Node("n", "relu", ("x",), ("x",)),)}, r"node 'n' \(relu\) defines 'x', which is already defined"),
        ({"nodes": (Node("n", "relu", ("x",), ("w",)),)}, r"graph output 'y' is not defined"),
        ({"outputs": ("z",)}, "graph output 'z' is not defined by any node"),
        ({"outputs": ("",)}, "graph output '' is not defined"),
        ({"tensors": {"x": TENSORS["x"]}}, "tensor 'y' has no shape and dtype"),
        ({"nodes": tuple(Node("n", "relu", ("x",), (o,)) for o in "yz")}, "node name 'n' is used 2 times"),
        (
            {"nodes": (Node("n", "add", ("x", "w"), ("y",)),), "weights": {"w": np.zeros(3, np.float32)}},
            r"weight 'w' is float32\[3\], but its tensor says float32\[2\]",
        ),
        (
            {"nodes": (Node("n", "add", ("x", "w"), ("y",)),), "weights": {"w": np.zeros(2)}},
            r"weight 'w' is float64\[2\], but its tensor says float32\[2\]",
        ),
    ],
)
def test_a_broken_rule_is_named(changes, message):
    graph = MSCGraph("g", (Node("n", "relu", ("x",), ("y",)),), ("x",), ("y",), {}, TENSORS)
    with pytest.raises(InvalidGraph, match=message):
        graph.replace(**{"tensors": TENSORS} | changes)


# Files


def test_an_attribute_that_json_cannot_hold_is_refused(tmp_path):
    graph = net()
    bad = graph.replace(nodes=(graph.nodes[0], dataclasses.replace(graph.nodes[1], attrs={"min": np.float32(1)})))
    with pytest.raises(InvalidGraph, match=r"attribute .* has type float32; expected int, float"):
        bad.save(tmp_path)


@pytest.mark.parametrize("file", [GRAPH_FILE, WEIGHTS_FILE])
@pytest.mark.parametrize("damage", ["missing", "empty", "half", "a bit", "of another graph", "text"])
def test_damaged_or_mixed_files_are_refused(file, damage, tmp_path):
    net().save(tmp_path)
    net(shift=1).save(tmp_path / "other")
    path = tmp_path / file
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        spot = content.index(b'"add"') + 1 if file == GRAPH_FILE else len(content) - 1
        path.write_bytes(
            {
                "empty": b"",
                "half": content[: len(content) // 2],
                "a bit": content[:spot] + bytes([content[spot] ^ 1]) + content[spot + 1 :],
                "of another graph": (tmp_path / "other" / file).read_bytes(),
                "text": b"hello",
            }[damage]
        )
    with pytest.raises(InvalidGraph):
        MSCGraph.load(tmp_path)


@pytest.mark.parametrize("stop_at", [GRAPH_FILE, WEIGHTS_FILE])
def test_a_save_that_is_cut_short_is_noticed_or_harmless(stop_at, tmp_path, monkeypatch):
    net().save(tmp_path)
    write = msc_core.ir.write_atomic

    def killed(path, content):
        if path.name == stop_at:
            raise KeyboardInterrupt
        write(path, content)

    monkeypatch.setattr(msc_core.ir, "write_atomic", killed)
    with pytest.raises(KeyboardInterrupt):
        net(shift=1).save(tmp_path)
    if stop_at == WEIGHTS_FILE:  # the first of the two
        assert_same(MSCGraph.load(tmp_path), net())
    else:
        with pytest.raises(InvalidGraph, match=r"graph\.json and weights\.safetensors do not belong together"):
            MSCGraph.load(tmp_path)
    monkeypatch.undo()
    net(shift=1).save(tmp_path)
    assert_same(MSCGraph.load(tmp_path), net(shift=1))
    assert sorted(p.name for p in tmp_path.iterdir()) == [GRAPH_FILE, WEIGHTS_FILE]


@pytest.mark.parametrize(
    "edit",
    [
        lambda data: [],
        lambda data: {},
        lambda data: data | {"schema": 2},
        lambda data: data | {"nodes": None},
        lambda data: data | {"nodes": [1]},
        lambda data: data | {"tensors": [["x"]]},
        lambda data: data | {"weights": ["w", "nope"]},
        lambda data: data | {"weights": []},
        lambda data: data | {"fingerprint": None},
        lambda data: data | {"outputs": ["nope"]},
        lambda data: data | {"name": "edited"},
    ],
)
def test_edited_json_is_refused(edit, tmp_path):
    net().save(tmp_path)
    data = json.loads((tmp_path / GRAPH_FILE).read_text())
    (tmp_path / GRAPH_FILE).write_text(json.dumps(edit(data)))
    with pytest.raises(InvalidGraph):
        MSCGraph.load(tmp_path)


def test_deep_json_is_refused(tmp_path):
    net().save(tmp_path)
    (tmp_path / GRAPH_FILE).write_text("[" * 100_000)
    with pytest.raises(InvalidGraph, match="RecursionError"):
        MSCGraph.load(tmp_path)


def test_huge_json_is_refused_unread(tmp_path, monkeypatch):
    net().save(tmp_path)
    monkeypatch.setattr(msc_core.ir, "MAX_JSON_BYTES", 100)
    with pytest.raises(InvalidGraph, match="larger than 100 bytes"):
        MSCGraph.load(tmp_path)


@pytest.mark.parametrize("name", ODD)
def test_odd_weight_names_survive(name, tmp_path):
    graph = net()
    nodes = (dataclasses.replace(graph.nodes[0], inputs=("x", name)), graph.nodes[1])
    weights, tensors = {name: graph.weights["w"]}, {**graph.tensors, name: Tensor(name, (2,))}
    odd = graph.replace(nodes=nodes, weights=weights, tensors=tensors)
    odd.save(tmp_path)
    assert_same(MSCGraph.load(tmp_path), odd)


def test_json_is_readable(tmp_path):
    net().save(tmp_path)
    data = json.loads((tmp_path / GRAPH_FILE).read_text())
    assert data["nodes"][1] == {
        "name": "y", "op": "clip", "inputs": ["s"], "outputs": ["y"], "scope": "",
        "attrs": {"min": {"float": "-inf"}, "max": 0.1},
    }  # fmt: skip
