"""Runs one network: import, save and load, then every target, with a fixed batch and with a symbolic one."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from msc_core import MSCGraph, build, from_onnx, from_torch, to_onnx, to_relax, to_torch
from tests.zoo.network import SYMBOL, TOLERANCE, Inputs, Network, arrays

TARGETS = ("torch", "onnxruntime", "relax")
STATIC, BATCHES = 2, (1, 3)  # the fixed batch, and those that a symbolic one is run with
SIGNAL = 1e-3  # an output must depend on the input at least by that part of its size, or it checks nothing
Arrays = list[np.ndarray]
Run = Callable[[Mapping[str, np.ndarray]], Arrays]


class Different(AssertionError):
    """A target computes something else."""


@dataclass
class Outcome:
    """What became of one network: errors by place (empty if all is well), seconds by stage, and its size."""

    name: str
    operators: int = 0
    parameters: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    worst: dict[str, float] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str):
        """Adds the time of the block to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def run(network: Network, targets: tuple[str, ...] = TARGETS, symbolic: tuple[bool, ...] = (False, True)) -> Outcome:
    """Everything about one network. Nothing is raised: the outcome holds errors, under "import static" and the like."""
    outcome = Outcome(network.name)
    with outcome.stage("make"):
        source = network.build()
        reference = onnx_reference(source) if network.onnx else torch_reference(source)
    for free in symbolic:
        if free and not network.batch:
            continue
        kind = "symbolic" if free else "static"
        batches = BATCHES if free else (STATIC if network.batch else 1,)
        examples = [network.feeds(n) for n in batches]
        with outcome.stage("reference"):
            expected = [reference(feeds) for feeds in examples]
        problem = "" if free else dead(reference, network, batches[0], expected[0])
        if problem:
            outcome.errors["network"] = problem
        try:
            with outcome.stage("import"):
                graph = imported(network, source, free)
            with outcome.stage("file"):
                graph = reloaded(graph)
        except Exception as error:
            outcome.errors[f"import {kind}"] = reason(error)
            continue
        outcome.operators = len(graph.nodes)
        outcome.parameters = sum(w.size for w in graph.weights.values())
        for target in targets:
            try:
                with outcome.stage(target):
                    runnable = MAKE[target](graph)
                    errors = [
                        difference(runnable(named(graph, network, feeds)), wanted, network.tolerance)
                        for feeds, wanted in zip(examples, expected, strict=True)
                    ]
                outcome.worst[target] = max([outcome.worst.get(target, 0.0), *errors])
            except Exception as error:
                outcome.errors[f"{target} {kind}"] = reason(error)
    return outcome


def reason(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:400]


def imported(network: Network, source: Any, symbolic: bool) -> MSCGraph:
    """The graph, with the batch fixed or symbolic."""
    shapes = network.shapes()
    feeds = network.feeds(STATIC if network.batch else 1)
    if network.onnx:
        axes = {name: next(iter(shapes[name]), -1) if symbolic else -1 for name in feeds}
        given = {
            name: tuple(SYMBOL if i == axes[name] else d for i, d in enumerate(t.shape)) for name, t in feeds.items()
        }
        return from_onnx(source, name=network.name, shapes=given)
    return from_torch(source, feeds, name=network.name, dynamic_shapes=shapes if symbolic else None)


def reloaded(graph: MSCGraph) -> MSCGraph:
    """The graph as its files have it."""
    with tempfile.TemporaryDirectory() as folder:
        graph.save(folder)
        found = MSCGraph.load(folder)
    assert found == graph, "the saved graph is another one"
    return found


def named(graph: MSCGraph, network: Network, feeds: Inputs) -> dict[str, np.ndarray]:
    """The feeds by the names of the graph's inputs, in the graph's order."""
    assert set(graph.inputs) <= feeds.keys(), (graph.inputs, list(feeds))
    return {name: feeds[name].numpy() for name in graph.inputs}


def difference(found: Arrays, expected: Arrays, tolerance: float = TOLERANCE) -> float:
    """The largest error over the outputs, relative to each output's largest number; raises `Different`."""
    if [f.shape for f in found] != [e.shape for e in expected]:
        raise Different(f"shapes {[f.shape for f in found]}, expected {[e.shape for e in expected]}")
    if [f.dtype for f in found] != [e.dtype for e in expected]:
        raise Different(f"dtypes {[str(f.dtype) for f in found]}, expected {[str(e.dtype) for e in expected]}")
    worst = 0.0
    for index, (f, e) in enumerate(zip(found, expected, strict=True)):
        if e.size == 0:
            continue
        finite = np.isfinite(e)
        if not np.array_equal(f[~finite], e[~finite], equal_nan=True):
            raise Different(f"output {index}: other places are infinite or not a number")
        largest = np.abs(e[finite].astype(np.float64)).max(initial=0.0)
        off = np.abs(f[finite].astype(np.float64) - e[finite].astype(np.float64)).max(initial=0.0)
        if not off <= (tolerance * largest if e.dtype.kind == "f" else 0):
            raise Different(f"output {index} is {off:.3g} off, its largest number is {largest:.3g}")
        worst = max(worst, off / largest if largest else 0.0)
    return worst


def dead(reference: Callable[[Inputs], Arrays], network: Network, batch: int, expected: Arrays) -> str:
    """Why the network is no test: its first output is the same for other inputs, or not finite."""
    feeds = {k: _other(v) for k, v in network.feeds(batch).items()}
    try:
        other = reference(feeds)[0].astype(np.float64)
    except (IndexError, RuntimeError):
        return ""
    value = expected[0].astype(np.float64)
    if not np.isfinite(value).all():
        return "its output is not finite"
    changed = np.abs(other - value).max(initial=0.0) / max(np.abs(value).max(initial=0.0), 1e-30)
    return "" if changed >= SIGNAL else f"its output changes by {changed:.1e} of its size only with another input"


def _other(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_floating_point():
        return tensor.flip(-1) * 0.5 + 0.1
    return tensor.roll(1, -1) if tensor.dim() else tensor


# References and targets


def torch_reference(module: torch.nn.Module) -> Callable[[Inputs], Arrays]:
    def reference(feeds: Inputs) -> Arrays:
        with torch.no_grad():
            return arrays(module(**{name: t.clone() for name, t in feeds.items()}))

    return reference


def onnx_reference(model: Any) -> Callable[[Inputs], Arrays]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    content = model if isinstance(model, (str, bytes)) else model.SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return lambda feeds: list(session.run(None, {name: t.numpy() for name, t in feeds.items()}))


def on_torch(graph: MSCGraph) -> Run:
    module = to_torch(graph).eval()

    def runnable(feeds: Mapping[str, np.ndarray]) -> Arrays:
        with torch.no_grad():
            return arrays(module(*(torch.from_numpy(a.copy()) for a in feeds.values())))

    return runnable


def on_onnxruntime(graph: MSCGraph) -> Run:
    import onnx

    model = to_onnx(graph)
    if model.ByteSize() < 2**28:
        onnx.checker.check_model(model, full_check=True)
    runner = build(graph, "onnxruntime")
    return lambda feeds: list(runner.run(feeds).values())


def on_relax(graph: MSCGraph) -> Run:
    import tvm

    from msc_core.rewrite import flush_denormals

    executable = tvm.compile(to_relax(flush_denormals(graph)), tvm.target.Target({"kind": "llvm", "opt-level": 1}))
    machine = tvm.relax.VirtualMachine(executable, tvm.cpu())

    def runnable(feeds: Mapping[str, np.ndarray]) -> Arrays:
        result = machine["main"](*(tvm.runtime.tensor(a) for a in feeds.values()))
        return [result.numpy()] if hasattr(result, "numpy") else [r.numpy() for r in result]

    return runnable


MAKE: Mapping[str, Callable[[MSCGraph], Run]] = {"torch": on_torch, "onnxruntime": on_onnxruntime, "relax": on_relax}
