"""Which agent finds the best plan: `python -m experiments.search_quality` writes docs/search_quality.md, .csv and .svg.

Every agent gets as many evaluations on the same images, with the same recovery and no training, for each budget and
seed; torch-pruning's ways of spreading a budget stand beside them. It takes about two hours on two cores, and goes on
where it was interrupted.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import subprocess
import tempfile
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from experiments import peers
from experiments.bench_recovery import REQUIREMENTS
from msc_core.backends import build, score
from msc_core.data import fashion_mnist
from msc_core.frontends.onnx import from_onnx
from msc_core.ir import MSCGraph, write_atomic
from msc_core.tools.finetune import Recipe, finetune
from msc_gym import CompressionTask, Evaluator, search

ROOT = Path(__file__).parents[1]
BASELINES, PAGE = ROOT / "experiments" / "baselines", ROOT / "docs" / "search_quality.md"
CELLS = (("resnet20", 0.5), ("resnet20", 0.3), ("resnet20", 0.2), ("mobilenet", 0.3))
AGENTS = ("uniform", "random", "greedy", "evolution", "tpe", "cmaes", "nsga2", "amc", "td3", "ppo")
PEERS = ("uniform", "global-L1")
TUNED = 0.3  # the limit at which the best of each is fine-tuned for an epoch
VALIDATION = 2000
EPOCH = Recipe(steps=430)  # of 128 images: one of the 55,000
TEXT = """# Which agent finds the best plan

Written by `python -m experiments.search_quality{arguments}`. Each agent chooses how many channels every group keeps so
that at most so many MACs remain, with {trials} evaluations on {images} validation images, and accuracy is restored in
closed form; nobody trains. The best plan of each search is then counted on all validation images and on the test
images. Mean and standard deviation over {seeds} seed(s), in %. *torch-pruning* 1.6.1 ranks by L1 and restores nothing.
"Tuned" is the test accuracy of the best seed after one epoch with distillation, at {tuned:.0%} of the MACs.

![best validation accuracy so far](search_quality.svg)
"""


@dataclass(frozen=True)
class Row:
    """One search: accuracies in %, `macs` the share that is left, `tuned` 0 where nothing was trained."""

    network: str
    limit: float
    agent: str
    seed: int
    validation: float
    test: float
    macs: float
    trials: int
    tuned: float = 0.0


@cache
def task(network: str, limit: float) -> CompressionTask:
    """The task of a cell; what is known of the network is shared between budgets."""
    model = BASELINES / network
    return CompressionTask(model, "fashion_mnist", budget={"macs": limit}, validation=VALIDATION)


def one(network: str, limit: float, agent: str, seed: int, trials: int, store: str) -> tuple[Row, list[float]]:
    """A search, and the best accuracy so far after each of its trials."""
    it = task(network, limit)
    with Evaluator(it, store) as evaluator:
        found = search(it, agent, trials, seed=seed, evaluator=evaluator)
        plan = found.best.plan
        (validation,) = evaluator.evaluate([plan], full=True, latency=False)
        (test,) = evaluator.evaluate([plan], split="test", latency=False)
    best = np.maximum.accumulate([100 * t.measurement.accuracy for t in found.trials])
    left = validation.macs / it.cost_model.full.macs
    accuracies = 100 * validation.accuracy, 100 * test.accuracy
    return Row(network, limit, agent, seed, *accuracies, left, len(found.trials)), [float(v) for v in best]


def tuned(network: str, limit: float, agent: str, seed: int, trials: int, store: str) -> float:
    """Test accuracy of a search's best plan after an epoch of training."""
    it = task(network, limit)
    with Evaluator(it, store) as evaluator:
        plan = search(it, agent, trials, seed=seed, evaluator=evaluator).best.plan
    return after_training(it.compress(plan), it.graph)


def after_training(graph: MSCGraph, teacher: MSCGraph) -> float:
    """In %."""
    data = fashion_mnist()
    trained = finetune(graph, data.train, EPOCH, teacher, validation=data.validation)
    with build(trained, "onnxruntime") as runner:
        return 100 * score(runner, data.test)


def peer_rows(network: str, limits: Iterable[float]) -> list[Row]:
    """What torch-pruning makes of the network."""
    graph, data, limits = MSCGraph.load(BASELINES / network), fashion_mnist(), list(limits)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.savez(folder / "weights.npz", **graph.weights)
        splits = enumerate((data.validation, data.test))
        np.savez(folder / "data.npz", **{f"{k}{i}": a for i, s in splits for k, a in (("x", s.x), ("y", s.y))})
        (folder / "limits.json").write_text(json.dumps(limits))
        command = [peers.python("torch-pruning", *REQUIREMENTS), "-m", "experiments.peer_search", folder, network]
        said = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)
        rows = []
        for limit in limits:
            for way, (validation, test, macs) in said[str(limit)].items():
                trained = after_training(from_onnx(folder / f"{way}-{limit}.onnx"), graph) if limit == TUNED else 0.0
                rows.append(Row(network, limit, f"torch-pruning {way}", 0, validation, test, macs, 0, trained))
    return rows


def table(rows: list[Row], network: str, limit: float) -> str:
    """A cell's table, the best test accuracy first."""
    lines = [f"## {network}, at most {limit:.0%} of the MACs\n"]
    lines += ["| agent | validation | test | MACs | tuned |", "|---|---|---|---|---|"]
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if (row.network, row.limit) == (network, limit):
            groups.setdefault(row.agent, []).append(row)
    for agent, found in sorted(groups.items(), key=lambda item: -np.mean([r.test for r in item[1]])):
        cells = [_spread([getattr(r, name) for r in found]) for name in ("validation", "test")]
        name = f"*{agent}*" if agent.startswith("torch-pruning") else agent
        trained = max(r.tuned for r in found)
        left = np.mean([r.macs for r in found])
        lines.append(f"| {name} | {' | '.join(cells)} | {left:.1%} | {f'{trained:.2f}' if trained else ''} |")
    return "\n".join(lines) + "\n"


def _spread(values: list[float]) -> str:
    mean = f"{np.mean(values):.2f}"
    return f"{mean} ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else mean


def draw(curves: dict[tuple[str, float, str], list[list[float]]], path: Path) -> None:
    """Mean of the best so far against evaluations, a panel for each cell."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "search", "font.size": 8}
    from matplotlib import pyplot

    cells = list(dict.fromkeys(key[:2] for key in curves))
    figure, panels = pyplot.subplots(1, len(cells), figsize=(4 * len(cells), 3.2), squeeze=False)
    for panel, cell in zip(panels[0], cells, strict=True):
        for (*where, agent), found in curves.items():
            if tuple(where) == cell:
                length = max(map(len, found))
                padded = [[*c, *[c[-1]] * (length - len(c))] for c in found]
                panel.plot(np.arange(1, length + 1), np.mean(padded, axis=0), label=agent, lw=1.2)
        panel.set(title=f"{cell[0]}, {cell[1]:.0%} of MACs", xlabel="evaluations", xscale="log")
        low = min(c[-1] for key, found in curves.items() if key[:2] == cell for c in found)
        panel.set_ylim(bottom=low - 2)
    panels[0][0].set_ylabel("best validation accuracy, %")
    panels[0][-1].legend(fontsize=6, loc="lower right")
    figure.tight_layout()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    write_atomic(path, buffer.getvalue())


def main() -> None:
    """Search, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--agents", nargs="+", default=AGENTS, choices=AGENTS)
    parser.add_argument("--cells", nargs="+", default=[f"{n}:{limit}" for n, limit in CELLS], metavar="NETWORK:SHARE")
    parser.add_argument("--jobs", type=int, default=2, help="processes, one search each")
    parser.add_argument("--store", default=f"sqlite:///{ROOT / 'runs' / 'search_quality.db'}")
    parser.add_argument("--output", type=Path, default=PAGE)
    options = parser.parse_args()
    cells = [(name, float(share)) for name, share in (cell.split(":") for cell in options.cells)]
    (ROOT / "runs").mkdir(exist_ok=True)
    os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}  # of the processes that search
    wanted = [
        (*cell, agent, seed, options.trials, options.store)
        for cell in cells for agent in options.agents for seed in range(options.seeds if agent != "uniform" else 1)
    ]  # fmt: skip
    rows: list[Row] = []
    curves: dict[tuple[str, float, str], list[list[float]]] = {}
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        for row, curve in pool.map(one, *zip(*wanted, strict=True)):
            print(
                f"{row.network} {row.limit} {row.agent} {row.seed}: {row.validation:.2f} / {row.test:.2f}", flush=True
            )
            rows.append(row)
            curves.setdefault((row.network, row.limit, row.agent), []).append(curve)
        best = {(r.network, r.limit, r.agent): r for r in sorted(rows, key=lambda r: r.validation) if r.limit == TUNED}
        jobs = {row: pool.submit(tuned, row.network, row.limit, row.agent, row.seed, options.trials, options.store)
                for row in best.values()}  # fmt: skip
        rows = [Row(**(asdict(r) | {"tuned": jobs[r].result() if r in jobs else 0.0})) for r in rows]
    for network in dict.fromkeys(name for name, _ in cells):
        rows += peer_rows(network, [share for name, share in cells if name == network])
    changed = [f"--{name} {' '.join(getattr(options, name)) if name in ('agents', 'cells') else getattr(options, name)}"
               for name in ("seeds", "trials", "agents", "cells")
               if getattr(options, name) != parser.get_default(name)]  # fmt: skip
    text = TEXT.format(arguments="".join(f" {c}" for c in changed), trials=options.trials, images=VALIDATION,
                       seeds=options.seeds, tuned=TUNED)  # fmt: skip
    page = "\n".join([text, *(table(rows, *cell) for cell in cells)])
    print(page)
    write_atomic(options.output, page.encode())
    lines = io.StringIO()
    writer = csv.DictWriter(lines, [f.name for f in fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    write_atomic(options.output.with_suffix(".csv"), lines.getvalue().encode())
    draw(curves, options.output.with_suffix(".svg"))


if __name__ == "__main__":
    main()
