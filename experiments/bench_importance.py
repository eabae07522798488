"""Which criterion and which ranking prune best without training: accuracy of the baselines at the same cost.

Every cell prunes to the same share of MACs and restores accuracy in closed form, so that what differs is the choice of
channels: the criterion orders them, the ranking says how many each group keeps ("global/cost" weighs a score by what
the channel costs).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from msc_core.backends import build, score
from msc_core.data import Dataset, fashion_mnist
from msc_core.ir import MSCGraph
from msc_core.tools.prune import Pruner
from msc_core.tools.prune.importance import CRITERIA
from msc_core.tools.prune.ranking import allocate

BASELINES = Path(__file__).parent / "baselines"
NETWORKS = ("resnet20", "vgg", "mobilenet")
DIVISOR = 4
COLUMNS: dict[str, dict[str, bool]] = {
    "global": {"per_cost": False},
    "global/cost": {"per_cost": True},
    "local": {},
    "uniform": {},
}
IMAGES = 1000  # of the training split, for statistics and gradients


def main() -> None:
    """Print one table for each network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--macs", type=float, default=0.5, help="share of MACs that stays")
    parser.add_argument("--networks", nargs="+", default=NETWORKS, choices=NETWORKS)
    parser.add_argument("--criteria", nargs="+", default=CRITERIA, choices=CRITERIA)
    options = parser.parse_args()
    data = fashion_mnist()
    for name in options.networks:
        graph = MSCGraph.load(BASELINES / name)
        print(f"\n{name}: validation accuracy in %, {accuracy(graph, data):.2f} whole, at {options.macs:.0%} of MACs")
        print(f"{'criterion':12}" + "".join(f"{ranking:>12}" for ranking in COLUMNS) + f"{'seconds':>9}")
        for criterion in options.criteria:
            print(row(graph, data, criterion, options.macs), flush=True)


def row(graph: MSCGraph, data: Dataset, criterion: str, macs: float) -> str:
    """The accuracies of one criterion, and the seconds that ranking all groups took."""
    pruner = Pruner(graph, data.train.x[:IMAGES], DIVISOR, criterion, labels=data.train.y[:IMAGES])
    start = time.perf_counter()
    for group in pruner.groups:
        pruner.order(group.name)
    seconds = time.perf_counter() - start
    cells = []
    for ranking, options in COLUMNS.items():
        plan = pruner.plan(allocate(pruner, {"macs": macs}, ranking.split("/")[0], **options))
        cells.append(f"{accuracy(pruner.compress(plan), data):12.2f}")
    return f"{criterion:12}" + "".join(cells) + f"{seconds:9.1f}"


def accuracy(graph: MSCGraph, data: Dataset) -> float:
    """Of the whole validation split, in %."""
    with build(graph, "onnxruntime", threads=1) as runner:
        return 100 * score(runner, data.validation)


if __name__ == "__main__":
    main()
