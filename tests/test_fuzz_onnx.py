"""Damaged models and graphs: an `MscError` or a result, never a crash, a hang or code that runs."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import time

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from msc_core import MscError, MSCGraph, from_onnx

FUZZ = settings(
    max_examples=200, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)  # fmt: skip
TIME_LIMIT = 5.0  # seconds for one damaged model
NUMBERS = st.sampled_from([0, 1, -1, 2, 3, 7, 100, -100, 2**31, 2**40, -(2**40), 2**62])
node = helper.make_node


@functools.cache
def model() -> onnx.ModelProto:
    """A small network with convolution, shapes that are computed, constants, a condition and a reduction."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.random((4, 3, 3, 3), np.float32),
        "b": rng.random(4, np.float32),
        "zero": np.int64(0),
        "axes": np.asarray([0]),
        "rest": np.asarray([-1]),
        "pads": np.asarray([0, 0, 1, 1, 0, 0, 1, 1]),
        "yes": np.asarray(True),
        "m": rng.random((144, 5), np.float32),
    }
    then = helper.make_graph([node("Relu", ["p"], ["t"])], "then", [], [_info("t", None)])
    other = helper.make_graph([node("Neg", ["p"], ["t"])], "else", [], [_info("t", None)])
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], "conv", kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2], group=1),
        node("Pad", ["c", "pads"], ["p"], "pad"),
        node("If", ["yes"], ["r"], "if", then_branch=then, else_branch=other),
        node("Shape", ["r"], ["s"], "shape"),
        node("Gather", ["s", "zero"], ["n"], "gather", axis=0),
        node("Unsqueeze", ["n", "axes"], ["n1"], "unsqueeze"),
        node("Concat", ["n1", "rest"], ["to"], "concat", axis=0),
        node("Reshape", ["r", "to"], ["f"], "reshape"),
        node("Gemm", ["f", "m"], ["g"], "gemm", alpha=0.5, transB=0),
        node("Softmax", ["g"], ["q"], "softmax", axis=-1),
        node("ReduceMean", ["q"], ["y"], "mean", axes=[1], keepdims=0),
    ]
    initializers = [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()]
    graph = helper.make_graph(nodes, "fuzzed", [_info("x", ("N", 3, 8, 8))], [_info("y", None)], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _info(name, shape):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch):
    """What executes code is out of reach while a damaged file is read."""

    def refuse(*args, **kwargs):
        raise AssertionError("a damaged model made code run")

    for owner, name in [(os, "system"), (os, "popen"), (subprocess, "Popen")]:
        monkeypatch.setattr(owner, name, refuse)


def survives(load, content) -> bool:
    """Whether it loads; an `MscError` of one line is fine too, anything else and anything slow is not."""
    start = time.monotonic()
    try:
        graph = load(content)
        assert isinstance(graph, MSCGraph)
        return True
    except MscError as error:
        assert str(error)
        return False
    finally:
        assert time.monotonic() - start < TIME_LIMIT


def test_the_model_itself_loads():
    assert survives(from_onnx, model())


@FUZZ
@given(st.data())
def test_damaged_bytes(tmp_path, data):
    content = bytearray(model().SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        kind = data.draw(st.sampled_from(["flip", "set", "cut", "insert", "repeat"]))
        if kind == "flip":
            content[at] ^= 1 << data.draw(st.integers(0, 7))
        elif kind == "set":
            content[at] = data.draw(st.integers(0, 255))
        elif kind == "cut":
            del content[at : at + data.draw(st.integers(1, 200))]
        elif kind == "insert":
            content[at:at] = data.draw(st.binary(min_size=1, max_size=8))
        else:
            content[at:at] = content[at : at + data.draw(st.integers(1, 50))]
        if not content:
            break
    path = tmp_path / "damaged.onnx"
    path.write_bytes(bytes(content))
    survives(from_onnx, path)


@FUZZ
@given(st.data())
def test_damaged_structure(data):
    proto = onnx.ModelProto()
    proto.CopyFrom(model())
    for _ in range(data.draw(st.integers(1, 3))):
        damage(proto, data)
    survives(from_onnx, proto)


def damage(proto: onnx.ModelProto, data) -> None:
    """One change that keeps the protobuf well-formed."""
    graph = proto.graph
    kind = data.draw(st.sampled_from(DAMAGE))
    victim = graph.node[data.draw(st.integers(0, len(graph.node) - 1))]
    tensors = [name for n in graph.node for name in (*n.input, *n.output)]
    if kind == "drop node" and len(graph.node) > 1:
        graph.node.remove(victim)
    elif kind == "rename operator":
        victim.op_type = data.draw(
            st.sampled_from(["Conv", "Relu", "Loop", "Scan", "Resize", "LSTM", "Einsum", "Tile", "X"])
        )
    elif kind == "rewire" and victim.input:
        victim.input[data.draw(st.integers(0, len(victim.input) - 1))] = data.draw(st.sampled_from([*tensors, "", "?"]))
    elif kind == "add input":
        victim.input.append(data.draw(st.sampled_from(tensors)))
    elif kind == "drop input" and victim.input:
        victim.input.pop()
    elif kind == "attribute" and victim.attribute:
        chosen = victim.attribute[data.draw(st.integers(0, len(victim.attribute) - 1))]
        chosen.i = data.draw(NUMBERS)
        chosen.ints[:] = data.draw(st.lists(NUMBERS, max_size=5))
        chosen.type = data.draw(st.sampled_from([1, 2, 3, 6, 7, 8, chosen.type]))
    elif kind == "number" and chosen_initializers(graph):
        tensor = data.draw(st.sampled_from(chosen_initializers(graph)))
        tensor.CopyFrom(
            numpy_helper.from_array(np.asarray(data.draw(st.lists(NUMBERS, max_size=8)), np.int64), tensor.name)
        )
    elif kind == "dims" and graph.initializer:
        tensor = graph.initializer[data.draw(st.integers(0, len(graph.initializer) - 1))]
        tensor.dims[:] = data.draw(st.lists(NUMBERS, max_size=5))
    elif kind == "dtype" and graph.initializer:
        graph.initializer[data.draw(st.integers(0, len(graph.initializer) - 1))].data_type = data.draw(
            st.integers(0, 30)
        )
    elif kind == "input shape":
        dims = graph.input[0].type.tensor_type.shape.dim
        if dims:
            dims[data.draw(st.integers(0, len(dims) - 1))].dim_value = data.draw(NUMBERS)
    elif kind == "opset":
        proto.opset_import[0].version = data.draw(st.integers(-1, 40))
    elif kind == "swap":
        nodes = list(graph.node)
        order = data.draw(st.permutations(range(len(nodes))))
        copies = [onnx.NodeProto.FromString(nodes[i].SerializeToString()) for i in order]
        del graph.node[:]
        graph.node.extend(copies)


def chosen_initializers(graph) -> list:
    return [t for t in graph.initializer if t.data_type == TensorProto.INT64]


DAMAGE = [
    "drop node", "rename operator", "rewire", "add input", "drop input", "attribute", "number", "dims", "dtype",
    "input shape", "opset", "swap",
]  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A graph on disk, as text that can be damaged."""
    folder = tmp_path_factory.mktemp("graph")
    from_onnx(model()).save(folder)
    return folder, (folder / "graph.json").read_text("utf-8")


JUNK = st.one_of(
    st.none(), st.booleans(), NUMBERS, st.floats(), st.text(max_size=8),
    st.sampled_from(["__import__('os').system('true')", "N*" * 500 + "N", "9**9**9", "(" * 200, "relu"]),
    st.lists(st.integers(-3, 3), max_size=3), st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)  # fmt: skip


@FUZZ
@given(st.data())
def test_damaged_graph_json(saved, data):
    folder, text = saved
    tree = json.loads(text)
    tree.pop("fingerprint")
    for _ in range(data.draw(st.integers(1, 3))):
        at = tree
        while True:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            if not keys:
                break
            key = data.draw(st.sampled_from(keys))
            if isinstance(at[key], (dict, list)) and at[key] and data.draw(st.integers(0, 3)):
                at = at[key]
                continue
            if data.draw(st.booleans()):
                at[key] = data.draw(JUNK)
            else:
                del at[key]
            break
        if not tree:
            break
    fingerprint = ""
    (folder / "graph.json").write_text(json.dumps(tree), "utf-8")
    try:
        MSCGraph.load(folder)
    except MscError as error:
        fingerprint = str(error)
    assert fingerprint  # without the right fingerprint nothing loads


@FUZZ
@given(st.data())
def test_damaged_graph_with_its_fingerprint(saved, data):
    """Someone who edits a graph may also compute the fingerprint; the graph then runs or is refused."""
    folder, text = saved
    tree = json.loads(text)
    chosen = data.draw(st.sampled_from(tree["nodes"]))
    kind = data.draw(st.sampled_from(["op", "inputs", "attrs", "tensor"]))
    if kind == "op":
        chosen["op"] = data.draw(st.sampled_from(["relu", "conv2d", "reshape", "nothing", "softmax"]))
    elif kind == "inputs":
        chosen["inputs"] = data.draw(st.lists(st.sampled_from([t[0] for t in tree["tensors"]]), max_size=3))
    elif kind == "attrs":
        chosen["attrs"] = {key: data.draw(JUNK) for key in chosen["attrs"]}
    else:
        data.draw(st.sampled_from(tree["tensors"]))[1] = data.draw(st.lists(JUNK, max_size=3))
    (folder / "graph.json").write_text(json.dumps(tree | {"fingerprint": fingerprint(tree, folder)}), "utf-8")

    def load(path):
        from msc_core.infer import infer

        return infer(MSCGraph.load(path))

    survives(load, folder)


def fingerprint(tree, folder) -> str:
    """What `MSCGraph.load` will compute, "" if it does not come so far."""
    (folder / "graph.json").write_text(json.dumps(tree | {"fingerprint": ""}), "utf-8")
    found = []
    original = MSCGraph.fingerprint
    try:
        MSCGraph.fingerprint = property(lambda self: found.append(original.func(self)) or found[-1])
        MSCGraph.load(folder)
    except MscError:
        pass
    finally:
        MSCGraph.fingerprint = original
    return found[0] if found else ""
