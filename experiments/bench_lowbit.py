"""Weights of few bits: nearest integers, scales of least error, GPTQ, and biases mended after it.

`python -m experiments.bench_lowbit [--networks mobilenet ...]` prints a table and writes `docs/low_bit.md`. Only
weights are quantized, one scale for each output channel; accuracy is that of Fashion-MNIST's validation and test data
on ONNX Runtime. 500 training images calibrate.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from msc_core import MSCGraph, build
from msc_core.backends import score
from msc_core.data import fashion_mnist
from msc_core.ir import write_atomic
from msc_core.tools.quantize.precision import Precision
from msc_core.tools.quantize.quantizer import Quantizer

ROOT = Path(__file__).parents[1]
PAGE, BASELINES = ROOT / "docs" / "low_bit.md", ROOT / "experiments" / "baselines"
NETWORKS = ("mobilenet", "resnet20", "vgg")
BITS = (8, 6, 4, 3)
SAMPLES = 500
WAYS = {  # calibration of weights, rounding, and whether biases are mended
    "nearest": ("minmax", "nearest", False),
    "mse": ("mse", "nearest", False),
    "gptq": ("minmax", "gptq", False),
    "gptq + bias correction": ("minmax", "gptq", True),
}
HEAD = f"""# Weights of few bits

Written by `python -m experiments.bench_lowbit{{arguments}}`: top-1 accuracy in percent, validation / test, of the
trained baselines with only their weights quantized, one scale for each output channel, calibrated on
{SAMPLES} training images.

| network | bits | {" | ".join(WAYS)} |
|---|---|{"---|" * len(WAYS)}
"""


def rows(name: str) -> Iterator[str]:
    """A line for each number of bits, fp32 first."""
    graph, data = MSCGraph.load(BASELINES / name), fashion_mnist()
    quantizer = Quantizer(graph, np.ascontiguousarray(data.train.x[:SAMPLES]))

    def accuracy(found: MSCGraph) -> str:
        with build(found, "onnxruntime") as runner:
            return " / ".join(f"{100 * score(runner, split):.2f}" for split in (data.validation, data.test))

    yield f"| {name} | fp32 | {accuracy(graph)} |{' |' * (len(WAYS) - 1)}"
    for bits in BITS:
        cells = []
        for method, rounding, correct in WAYS.values():
            plan = quantizer.plan(Precision(bits, 0, method, rounding=rounding))
            cells.append(accuracy(quantizer.compress(plan, correct)))
        yield f"| {name} | {bits} | {' | '.join(cells)} |"


def main() -> None:
    """Print the table and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=NETWORKS, choices=NETWORKS)
    networks = parser.parse_args().networks
    changed = "" if tuple(networks) == NETWORKS else f" --networks {' '.join(networks)}"
    lines = []
    for name in networks:
        for line in rows(name):
            print(line, flush=True)
            lines.append(line)
    write_atomic(PAGE, (HEAD.format(arguments=changed) + "\n".join(lines) + "\n").encode())


if __name__ == "__main__":
    main()
