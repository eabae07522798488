"""What restores accuracy after pruning without any training, side by side with torch-pruning: writes docs/recovery.md.

Every row prunes a baseline with the same numbers of channels in each layer; what differs is which channels, and what is
done to the weights that stay.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from experiments import peers
from msc_core.backends import build, score
from msc_core.cost import cost
from msc_core.data import Dataset, fashion_mnist
from msc_core.ir import MSCGraph
from msc_core.plan import Plan
from msc_core.tools.prune import Pruner
from msc_core.tools.prune.ranking import allocate
from msc_core.tools.prune.sequential import reestimate_batch_norm
from msc_core.tools.threads import one_thread

ROOT = Path(__file__).parents[1]
NETWORKS = ("resnet20", "vgg", "mobilenet")
TORCH = f"torch=={torch.__version__.partition('+')[0]}"
REQUIREMENTS = (
    "torch-pruning==1.6.1",
    TORCH,
    "numpy",
    "onnx",
    "onnxruntime",
    "onnxscript",
)  # as bench_surgery has them
SHARES = (0.5, 0.25)  # of MACs that stay
CRITERIA = ("l1", "activation", "obs")
IMAGES, DIVISOR, FLOOR = 1000, 4, 0.1
TEXT = """# Accuracy after pruning, without any training

Written by `python -m experiments.bench_recovery`. The baselines on Fashion-MNIST are pruned until at most 50% or 25% of
their MACs remain, with one density for all groups of channels, and so with the same number of channels of each layer in
every row. torch-pruning 1.6.1 prunes the torch module with the same weights. Ours slices the weights ("sliced"),
re-estimates batch norms ("batch norm"), solves all layers at once ("one-shot") or one after the other ("sequential"),
on {images} training images without labels. Accuracies in % on validation / test images; seconds are those of one thread
for recovery itself.
"""

Row = tuple[str, str, float, float, float]  # criterion, recovery, validation and test accuracy, seconds


def main() -> None:
    """Measure, print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=NETWORKS, choices=NETWORKS)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "recovery.md")
    options = parser.parse_args()
    data, parts = fashion_mnist(), [TEXT.format(images=IMAGES)]
    for name in options.networks:
        for part in tables(name, data):
            print(part, flush=True)
            parts.append(part)
        options.output.write_text("\n".join(parts))


def tables(name: str, data: Dataset) -> list[str]:
    """One table for each share of MACs."""
    graph = MSCGraph.load(ROOT / "experiments" / "baselines" / name)
    x = data.train.x[:IMAGES]
    pruners = {criterion: Pruner(graph, x, DIVISOR, criterion) for criterion in CRITERIA}
    any_of = pruners["l1"]
    any_of.statistics = pruners["obs"].statistics  # its own would be the same
    counts = {share: allocate(any_of, {"macs": share}, "uniform", floor=FLOOR) for share in SHARES}
    peer = peer_rows(name, graph, any_of, counts, data)
    whole = accuracies(graph, data)
    found = []
    for share in SHARES:
        rows = peer[str(share)]
        for criterion, pruner in pruners.items():
            rows += own_rows(pruner, pruner.plan(counts[share]), criterion, data)
        left = cost(pruners["l1"].compress(pruners["l1"].plan(counts[share]))).macs / cost(graph).macs
        lines = [f"## {name}, {left:.0%} of MACs left (whole: {whole[0]:.2f} / {whole[1]:.2f})\n"]
        lines += ["| Channels by | Weights | Validation | Test | Seconds |", "| - | - | -: | -: | -: |"]
        lines += [f"| {c} | {r} | {v:.2f} | {t:.2f} | {s:.1f} |" for c, r, v, t, s in rows]
        found.append("\n".join(lines) + "\n")
    return found


def own_rows(pruner: Pruner, plan: Plan, criterion: str, data: Dataset) -> list[Row]:
    """What each recovery reaches with the same channels."""
    rows: list[Row] = []
    for recovery in ("none", "one-shot", "sequential"):
        other = Pruner(pruner.graph, pruner.x, DIVISOR, criterion, recovery)
        other.statistics = pruner.statistics
        _ = pruner.statistics.layers  # gathered once for all plans, so not part of the time
        start = time.perf_counter()
        graph = other.compress(plan)
        seconds = time.perf_counter() - start
        rows.append((criterion, "sliced" if recovery == "none" else recovery, *accuracies(graph, data), seconds))
        if recovery == "none":
            start = time.perf_counter()
            with one_thread():
                graph = reestimate_batch_norm(graph, pruner.x)
            seconds = time.perf_counter() - start
            rows.append((criterion, "batch norm", *accuracies(graph, data), seconds))
    return rows


def peer_rows(
    name: str, graph: MSCGraph, pruner: Pruner, counts: dict[float, dict[str, int]], data: Dataset
) -> dict[str, list[Row]]:
    """What torch-pruning makes of the same module. Raises `RuntimeError` unless it keeps as many parameters."""
    ratios: dict[str, dict[str, float]] = {}
    for share, wanted in counts.items():
        ratios[str(share)] = {
            m.node: 1 - (wanted[g.name] + 0.5) / g.size  # it rounds kept counts down
            for g in pruner.groups
            for m in g.members
            if not m.contracted and graph.node(m.node).op == "conv2d" and wanted.get(g.name, g.size) < g.size
        }
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "weights.npz", **graph.weights)
        splits = (data.validation, data.test)
        arrays = {f"{k}{i}": a for i, s in enumerate(splits) for k, a in (("x", s.x), ("y", s.y))}
        np.savez(Path(folder) / "data.npz", **arrays)
        (Path(folder) / "kept.json").write_text(json.dumps(ratios))
        command = [peers.python("torch-pruning", *REQUIREMENTS), "-m", "experiments.peer_recovery", folder, name]
        said = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)
    rows: dict[str, list[Row]] = {}
    for share, results in said.items():
        ours = cost(Pruner(graph, pruner.x, DIVISOR, "l1", "none").compress(pruner.plan(counts[float(share)]))).params
        for importance, (validation, test, params) in results.items():
            if params != ours:
                raise RuntimeError(f"torch-pruning keeps {params} parameters of {name}, we keep {ours}")
            rows.setdefault(share, []).append((f"torch-pruning, {importance}", "sliced", validation, test, 0.0))
    return rows


def accuracies(graph: MSCGraph, data: Dataset) -> tuple[float, float]:
    """On the validation and test images, in %."""
    with build(graph, "onnxruntime", threads=1) as runner:
        return 100 * score(runner, data.validation), 100 * score(runner, data.test)


if __name__ == "__main__":
    main()
