"""How fast the scheduled TVM backend is, as ratios to TVM's stock pipeline and to ONNX Runtime.

    python -m experiments.bench_tvm [--rounds 200] [--json FILE]

One process, pinned to one core, one thread, batch 1; the engines take turns round by round and each is represented by
its fastest run, so a busy machine disturbs the ratios little. Weights are random: they do not affect latency.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from experiments import models
from msc_core import MSCGraph, build, from_torch
from msc_core.backends import Runner, compare

NETWORKS = {"resnet20": models.resnet20, "mobilenet": models.mobilenet, "vgg": models.vgg}
ENGINES = {"scheduled": "tvm", "stock": "tvm:stock", "onnxruntime": "onnxruntime"}
STOCK_EVERY = 10  # rounds; it is so slow that it would take most of the time


@dataclass(frozen=True)
class Row:
    """One network: minima in microseconds, seconds to build, the two ratios, and the error relative to ONNX Runtime."""

    network: str
    microseconds: dict[str, float]
    build_seconds: dict[str, float]
    over_stock: float
    over_onnxruntime: float
    error: float


def minima(runners: dict[str, Runner], graph: MSCGraph, rounds: int) -> dict[str, float]:
    """The fastest of `rounds` interleaved runs of each engine, in microseconds."""
    feeds = {name: torch.randn(graph.tensors[name].shape).numpy() for name in graph.inputs}
    best = dict.fromkeys(runners, float("inf"))
    for round_ in range(rounds):
        for engine, runner in runners.items():
            if engine == "stock" and round_ % STOCK_EVERY:
                continue
            start = time.perf_counter()
            runner.run(feeds)
            best[engine] = min(best[engine], 1e6 * (time.perf_counter() - start))
    return best


def bench(network: str, rounds: int) -> Row:
    """Build a network for each engine and time them against each other."""
    torch.manual_seed(0)
    module = NETWORKS[network]().eval()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_var.fill_(0.2)  # or the signal of an untrained network fades, and errors with it
    graph = from_torch(module, torch.randn(1, 1, 28, 28))
    runners, seconds = {}, {}
    for engine, target in ENGINES.items():
        start = time.perf_counter()
        runners[engine] = build(graph, target)
        seconds[engine] = round(time.perf_counter() - start, 2)
    feeds = {graph.inputs[0]: torch.randn(1, 1, 28, 28).numpy()}
    error = compare(runners["scheduled"], runners["onnxruntime"], feeds)
    best = minima(runners, graph, rounds)
    return Row(
        network,
        {engine: round(value, 1) for engine, value in best.items()},
        seconds,
        round(best["stock"] / best["scheduled"], 1),
        round(best["onnxruntime"] / best["scheduled"], 2),
        error,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", type=Path, help="also write the rows there")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    build(from_torch(nn.ReLU(), torch.randn(1)), "tvm")  # imports TVM, which is not part of a build
    print("network     x faster than stock TVM   x faster than ONNX Runtime   build s (scheduled / stock)   error")
    rows = []
    for network in NETWORKS:
        row = bench(network, arguments.rounds)
        rows.append(row)
        builds = f"{row.build_seconds['scheduled']} / {row.build_seconds['stock']}"
        print(f"{network:12}{row.over_stock:23}{row.over_onnxruntime:29}{builds:>31}{row.error:8.0e}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
