"""`from_relax`: what `to_relax` writes comes back the same, and modules of TVM's own front ends compute what torch does."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn

from experiments import models
from msc_core import MSCGraph, from_relax, from_torch, to_relax, to_torch
from msc_core.errors import InvalidGraph, MscError, UnsupportedOperator
from msc_core.ops import OPS, Refuse
from tests.micro_networks import randomized
from tests.test_ops import DIRECT, FORMS, NODES, arrays, imported, one_node, run_torch

tvm = pytest.importorskip("tvm")
relax = tvm.relax
R = tvm.relax.op


def agree(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert [f.dtype for f in found] == [e.dtype for e in expected]
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(f, e, rtol=1e-5, atol=1e-5)


def there_and_back(graph: MSCGraph, feeds: dict[str, np.ndarray], expected: list[np.ndarray]) -> None:
    """Through Relax and back, unless a row says that Relax has no words for it."""
    if any(isinstance(OPS[node.op].relax, Refuse) for node in graph.nodes):
        with pytest.raises(UnsupportedOperator, match=r"node .*: "):
            to_relax(graph)
        return
    back = from_relax(to_relax(graph))
    assert back.inputs == graph.inputs
    assert [back.tensors[name] for name in back.outputs] == [graph.tensors[name] for name in graph.outputs]
    agree(run_torch(back, feeds), expected)


@pytest.mark.parametrize(("row", "index"), NODES)
def test_every_row_survives_the_round_trip(row, index):
    graph, feeds, expected = imported(row, index)
    there_and_back(graph, feeds, expected)


@pytest.mark.parametrize(("row", "index"), FORMS)
def test_every_form_survives_the_round_trip(row, index):
    inputs, attrs, expected = DIRECT[row][index]
    feeds = {name: t.numpy() for name, t in inputs.items() if t is not None}
    there_and_back(one_node(row, inputs, attrs), feeds, arrays(expected(*inputs.values())))
