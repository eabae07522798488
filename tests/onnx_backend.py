"""ONNX's own node tests: from_onnx, then torch, ONNX Runtime and TVM; `python -m tests.onnx_backend` writes the table.

Each test runs in a child process, so that a crash of a library is a failure of one test. A test whose parameters
(shapes, axes, sizes) are inputs of the model is tried with them as constants if they are needed at import.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from msc_core import MscError, MSCGraph, build, from_onnx, to_relax, to_torch

TARGETS = ("torch", "onnxruntime", "relax")
FLOORS = {"torch": 0.85, "onnxruntime": 0.85, "relax": 0.75}
REPORT = Path(__file__).parents[1] / "docs" / "onnx_backend.md"
RANDOM = ("Bernoulli",)  # ONNX does not say which numbers come out
CONTROL = ("If", "Loop", "Scan", "SequenceMap")
PART = 8  # a run of a part takes every eighth test
TIME_LIMIT = 60.0  # seconds for one test


@dataclass(frozen=True)
class Outcome:
    """What became of one test on one target: "pass", "refused" or "failed", and why."""

    test: str
    op: str
    target: str
    state: str
    reason: str = ""


def load(pattern: str = "") -> dict[str, object]:
    """The node tests with tensors in and out: no strings, sequences, training, control flow or random numbers."""
    from onnx.backend.test import loader

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tests = loader.load_model_tests(kind="node")
    return {t.name: t for t in sorted(tests, key=lambda t: (operator(t), t.name)) if counts(t) and pattern in t.name}


def counts(test) -> bool:
    graph = test.model.graph
    values = (*graph.input, *graph.output)
    return (
        all(v.type.HasField("tensor_type") for v in values)
        and all(v.type.tensor_type.elem_type != onnx.TensorProto.STRING for v in values)
        and not any(n.op_type in (*CONTROL, *RANDOM) or n.domain.endswith(".training") for n in graph.node)
        and not any(n.domain == "ai.onnx.ml" for n in graph.node)
        and not re.search("training_mode|train|bernoulli", test.name)
    )


def operator(test) -> str:
    """The operator under test: that of a model of one node, or the test's name for one of its expansions."""
    nodes = test.model.graph.node
    return nodes[0].op_type if len(nodes) == 1 else re.sub(r"^test_", "", test.name)


def run_test(test, targets: tuple[str, ...] = TARGETS) -> Iterator[Outcome]:
    """One test on each target."""
    op = operator(test)
    inputs, expected = ([array(a) for a in part] for part in test.data_sets[0])
    try:
        graph, feeds = imported(test.model, inputs)
    except MscError as error:
        yield from (Outcome(test.name, op, target, "refused", str(error)) for target in targets)
        return
    except Exception as error:
        yield from (Outcome(test.name, op, target, "failed", f"import: {error!r}") for target in targets)
        return
    for target in targets:
        try:
            found = RUN[target](graph, feeds)
            difference = compare(found, expected, test.rtol, test.atol)
            yield Outcome(test.name, op, target, "failed" if difference else "pass", difference)
        except MscError as error:
            yield Outcome(test.name, op, target, "refused", str(error))
        except Exception as error:
            yield Outcome(test.name, op, target, "failed", f"{type(error).__name__}: {str(error)[:300]}")


def array(value) -> np.ndarray:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def imported(model: onnx.ModelProto, inputs: list[np.ndarray]) -> tuple[MSCGraph, dict[str, np.ndarray]]:
    """The graph and its feeds; parameters among the inputs become constants where they must be known."""
    feeds = {value.name: a for value, a in zip(model.graph.input, inputs, strict=False) if value.name}
    try:
        return from_onnx(model), feeds
    except MscError as error:
        if "expected a constant" not in str(error):
            raise
    first, *rest = feeds
    whole = [name for name in rest if feeds[name].dtype.kind in "iub" and feeds[name].ndim <= 2]
    for names in (whole, rest, [first, *rest]):
        if not names:
            continue
        try:
            graph = from_onnx(model, constants={name: feeds[name] for name in names})
            return graph, {name: a for name, a in feeds.items() if name not in names}
        except MscError as error:
            if len(names) == len(feeds) or "expected a constant" not in str(error):
                raise
    raise AssertionError(first)


def compare(found: list[np.ndarray], expected: list[np.ndarray], rtol: float, atol: float) -> str:
    """What is different, or "" if nothing is."""
    if len(found) != len(expected):
        return f"{len(found)} outputs, {len(expected)} expected"
    for f, e in zip(found, expected, strict=True):
        if f.dtype != e.dtype or f.shape != e.shape:
            return f"found {f.dtype}{list(f.shape)}, expected {e.dtype}{list(e.shape)}"
        if e.dtype.kind not in "fc" and e.dtype.name != "bfloat16":
            if not np.array_equal(f, e):
                return f"{np.mean(f != e):.0%} of {e.size} integers differ"
            continue
        epsilon = {"float16": 2e-3, "bfloat16": 2e-2}.get(e.dtype.name, 1e-6)
        a, b = f.astype(np.float64), e.astype(np.float64)
        if not np.array_equal(np.isnan(a), np.isnan(b)):
            return f"wrong numbers: {np.isnan(a).sum()} are NaN, {np.isnan(b).sum()} expected"
        if not np.allclose(a, b, rtol=max(rtol, epsilon), atol=max(atol, epsilon), equal_nan=True):
            return f"wrong numbers: up to {np.nanmax(np.abs(a - b)):.3g} off"
    return ""


def run_torch(graph: MSCGraph, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    import torch

    module = to_torch(graph).eval()
    with torch.no_grad():
        results = torch.utils._pytree.tree_leaves(module(*(tensor(a) for a in feeds.values())))
    return [numpy(r) for r in results]


def tensor(a: np.ndarray):
    """NumPy to torch; bfloat16 by its bits."""
    import torch

    if a.dtype.name == "bfloat16":
        return torch.from_numpy(a.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(a))


def numpy(t) -> np.ndarray:
    import ml_dtypes
    import torch

    if t.dtype == torch.bfloat16:
        return t.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return t.detach().numpy()


def run_onnxruntime(graph: MSCGraph, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    import onnx

    from msc_core import to_onnx

    onnx.checker.check_model(to_onnx(graph), full_check=True)
    with build(graph, "onnxruntime") as runner:
        return list(runner.run(feeds).values())


def run_relax(graph: MSCGraph, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    import tvm

    executable = tvm.compile(to_relax(graph), tvm.target.Target({"kind": "llvm"}))
    machine = tvm.relax.VirtualMachine(executable, tvm.cpu())
    result = machine["main"](*(tvm.runtime.tensor(a) for a in feeds.values()))
    return [result.numpy()] if hasattr(result, "numpy") else [r.numpy() for r in result]


RUN = {"torch": run_torch, "onnxruntime": run_onnxruntime, "relax": run_relax}


def child(names: list[str], targets: tuple[str, ...] = TARGETS) -> None:
    """Run these tests and print their outcomes as lines of JSON, each test announced first."""
    tests = load()
    for name in names:
        print(json.dumps({"start": name}), flush=True)
        for outcome in run_test(tests[name], targets):
            print(json.dumps(asdict(outcome)), flush=True)


def run(names: list[str], processes: int = 2, targets: tuple[str, ...] = TARGETS) -> list[Outcome]:
    """The outcomes of tests, dealt out to child processes; one that dies is replaced and its test has failed."""
    import threading

    outcomes: list[Outcome] = []

    def work(waiting: list[str]) -> None:
        while waiting:
            started, done = "", set()
            command = [sys.executable, "-W", "ignore", "-m", "tests.onnx_backend", "--child", *targets]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "TVM_NUM_THREADS": "1"}
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                env=environment, cwd=Path(__file__).parents[1],
            )  # fmt: skip
            assert process.stdin and process.stdout
            process.stdin.write("\n".join(waiting))
            process.stdin.close()
            timer = threading.Timer(TIME_LIMIT, process.kill)
            timer.start()
            for line in process.stdout:
                if not line.startswith("{"):
                    continue
                record = json.loads(line)
                if "start" in record:
                    timer.cancel()
                    timer = threading.Timer(TIME_LIMIT, process.kill)
                    timer.start()
                    started = record["start"]
                    done.add(started)
                else:
                    outcomes.append(Outcome(**record))
            timer.cancel()
            if process.wait() != 0:
                told = {o.target for o in outcomes if o.test == started}
                reason = f"the process ended with {process.returncode}"
                outcomes.extend(Outcome(started, "", t, "failed", reason) for t in targets if t not in told)
                if not started:
                    raise RuntimeError("a child process cannot start")
            waiting = [name for name in waiting if name not in done]

    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(work, (names[i::processes] for i in range(processes))))
    return outcomes


def rates(outcomes: list[Outcome]) -> dict[str, float]:
    """The share of passed tests on each target."""
    states = Counter((o.target, o.state) for o in outcomes)
    return {t: states[t, "pass"] / max(1, sum(states[t, s] for s in ("pass", "refused", "failed"))) for t in TARGETS}


def summary(reason: str) -> str:
    """A refusal without the names of one test."""
    reason = re.sub(r"^node '[^']*' \(([\w.]+)\): (operator [\w.]+: )?", r"\1: ", reason)
    reason = re.sub(r"node '[^']*' ", "", reason)
    return re.sub(r"'[^']*'", "'...'", reason)[:160].replace("|", "/").replace("\n", " ")


def markdown(outcomes: list[Outcome], total: int) -> str:
    """The report."""
    lines = [
        "# ONNX's own node tests",
        "",
        "Written by `python -m tests.onnx_backend`; do not edit. Every test of `onnx.backend.test` of kind `node` with",
        "tensors in and out (no strings, sequences, training, control flow, random numbers, `ai.onnx.ml`) is imported",
        "by `from_onnx` and run by each target. Refused means an error that says why; there are no wrong answers.",
        "",
        f"onnx {onnx.__version__}, opset {onnx.defs.onnx_opset_version()}, {total} tests.",
        "",
        "| target | pass | refused | failed | rate | floor |",
        "|---|---|---|---|---|---|",
    ]
    states = Counter((o.target, o.state) for o in outcomes)
    share = rates(outcomes)
    for t in TARGETS:
        row = " | ".join(str(states[t, s]) for s in ("pass", "refused", "failed"))
        lines.append(f"| {t} | {row} | {share[t]:.1%} | {FLOORS[t]:.0%} |")
    if failed := [o for o in outcomes if o.state == "failed"]:
        lines += ["", "## Failures", "", *(f"- {o.test} on {o.target}: {summary(o.reason)}" for o in failed)]
    lines += ["", "## What is refused", "", "| reason | " + " | ".join(TARGETS) + " |", "|---|---|---|---|"]
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    for o in outcomes:
        if o.state == "refused":
            reasons[summary(o.reason)][o.target] += 1
    for reason, counter in sorted(reasons.items(), key=lambda item: (-item[1].total(), item[0])):
        lines.append(f"| {reason} | " + " | ".join(str(counter[t] or "") for t in TARGETS) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", default="", help="only tests with this in their name; prints, writes no report")
    parser.add_argument("--child", nargs="*", choices=TARGETS, help=argparse.SUPPRESS)
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=TARGETS)
    parser.add_argument("-j", type=int, default=2, help="processes")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    if args.child is not None:
        return child(sys.stdin.read().split(), tuple(args.child))
    start = time.time()
    names = list(load(args.k))
    outcomes = run(names, args.j, tuple(args.targets))
    if args.out or not args.k:
        (args.out or REPORT).write_text(markdown(outcomes, len(names)), encoding="utf-8")
    shown: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for o in outcomes:
        if o.state == "failed" or (args.k and o.state == "refused"):
            shown[o.state, o.test, o.reason].append(o.target)
    for (state, test, reason), targets in shown.items():
        print(f"{state:8}{test} [{', '.join(targets)}] {reason[:220]}")
    print(
        {t: f"{r:.1%}" for t, r in rates(outcomes).items() if t in args.targets},
        f"{len(names)} tests, {time.time() - start:.0f} s",
    )


if __name__ == "__main__":
    main()
