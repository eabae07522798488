"""ONNX's own node tests: no wrong answer, no crash, and the floors; every eighth test here, all of them when slow."""

from __future__ import annotations

import contextlib
import functools

import onnx
import onnxruntime
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented  # a kernel that it lacks

from msc_core import MscError, to_onnx
from msc_core.errors import UnsupportedOperator
from tests import onnx_backend
from tests.onnx_backend import FLOORS, PART, Outcome


@functools.cache
def outcomes(every: int) -> tuple[list[Outcome], int]:
    """Every n-th test, the operators in order, so that each operator is there."""
    names = list(onnx_backend.load())[::every]
    return onnx_backend.run(names), len(names)


def check(every: int, slack: float = 0) -> None:
    found, count = outcomes(every)
    assert len(found) == len(FLOORS) * count, "a test did not report"
    failed = [f"{o.test} on {o.target}: {o.reason}" for o in found if o.state == "failed"]
    assert not failed, "\n".join(failed)
    unexplained = [o for o in found if o.state == "refused" and not o.reason]
    assert not unexplained
    rates = onnx_backend.rates(found)
    assert all(rates[target] >= floor - slack for target, floor in FLOORS.items()), rates


@pytest.mark.timeout(900)
def test_an_eighth_of_the_node_tests():
    check(PART, slack=0.03)  # of operators with many tests that are refused, a part may have more than its share


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_node_tests():
    check(1)


def test_other_opsets_give_the_same_answers_or_are_refused():
    compared = 0
    for test in list(onnx_backend.load().values())[::12]:
        inputs, expected = ([onnx_backend.array(a) for a in part] for part in test.data_sets[0])
        if any(a.dtype.name == "bfloat16" for a in (*inputs, *expected)):
            continue
        with contextlib.suppress(MscError):
            graph, feeds = onnx_backend.imported(test.model, inputs)
            for opset in (13, 15, 17, 20, 23, onnx.defs.onnx_opset_version()):
                with contextlib.suppress(UnsupportedOperator, NotImplemented):
                    model = to_onnx(graph, opset=opset)
                    session = onnxruntime.InferenceSession(
                        model.SerializeToString(), providers=["CPUExecutionProvider"]
                    )
                    found = session.run(None, feeds)
                    assert not onnx_backend.compare(found, expected, test.rtol, test.atol), (test.name, opset)
                    compared += 1
    assert compared > 500


def test_a_child_that_dies_is_a_failure_of_one_test(monkeypatch):
    """The others run on, in a new process."""
    names = [name for name in onnx_backend.load("test_relu") if "expanded" not in name][:1]
    monkeypatch.setattr(onnx_backend, "TIME_LIMIT", 0.01)
    with pytest.raises(RuntimeError, match="a child process cannot start"):
        onnx_backend.run(names, 1)


def test_what_differs_is_a_failure():
    import numpy as np

    one = np.ones(3, np.float32)
    assert onnx_backend.compare([one], [one], 1e-3, 1e-7) == ""
    assert "wrong numbers" in onnx_backend.compare([one * 1.1], [one], 1e-3, 1e-7)
    assert "integers differ" in onnx_backend.compare([np.int64([1])], [np.int64([2])], 1e-3, 1e-7)
    assert "found float64" in onnx_backend.compare([one.astype(np.float64)], [one], 1e-3, 1e-7)
    assert "expected" in onnx_backend.compare([one, one], [one], 1e-3, 1e-7)
    assert "wrong numbers" in onnx_backend.compare([one * np.nan], [one], 1e-3, 1e-7)
