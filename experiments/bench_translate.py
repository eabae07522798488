"""What importing and storing a graph cost, as ratios to the least that the same machine can do in the same run.

`python -m experiments.bench_translate [--rounds 5]`. Importing a network of 500 operators is compared with
`torch.export` alone, which it contains; saving, loading and fingerprinting a graph of 100 MB with writing, reading and
hashing that many bytes. Rounds are interleaved; the median of the paired ratios is printed with their range.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

from msc_core import MSCGraph, Node, Tensor, from_torch
from msc_core.infer import infer


class Block(nn.Module):
    """Four operators: convolution, batch norm, ReLU, addition."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.conv(x))) + x


def large(megabytes: int = 100, layers: int = 25) -> MSCGraph:
    """A chain of linear layers with that many bytes of weights."""
    width = int((megabytes * 2**20 / 4 / layers) ** 0.5)
    rng = np.random.default_rng(0)
    weights = {f"w{i}": rng.standard_normal((width, width), np.float32) for i in range(layers)}
    names = ["x", *(f"y{i}" for i in range(layers))]
    nodes = tuple(Node(f"n{i}", "linear", (names[i], f"w{i}"), (names[i + 1],)) for i in range(layers))
    tensors = {name: Tensor(name, (1, width)) for name in names}
    tensors |= {name: Tensor(name, array.shape) for name, array in weights.items()}
    return infer(MSCGraph("large", nodes, ("x",), (names[-1],), weights, tensors))


def seconds(function: Callable[[], object]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def compare(what: str, ours: Callable[[], object], least: Callable[[], object], rounds: int) -> None:
    """Print the ratio of two calls, measured in turn."""
    ours(), least()
    ratios = sorted(seconds(ours) / seconds(least) for _ in range(rounds))
    print(f"{what:58} {statistics.median(ratios):5.2f}  [{ratios[0]:.2f}, {ratios[-1]:.2f}]", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    network, x = nn.Sequential(*(Block(16) for _ in range(125))).eval(), torch.randn(2, 16, 8, 8)
    for kind, shapes in (("fixed batch", None), ("symbolic batch", ({0: torch.export.Dim("N")},))):
        compare(
            f"from_torch, {kind} / torch.export",
            lambda shapes=shapes: from_torch(network, x, dynamic_shapes=shapes),
            lambda shapes=shapes: torch.export.export(network, (x,), dynamic_shapes=shapes, strict=False),
            rounds,
        )
    graph = large()
    content = b"".join(array.tobytes() for array in graph.weights.values())
    with tempfile.TemporaryDirectory() as folder:
        plain, saved = Path(folder) / "plain", Path(folder) / "saved"
        compare("save (with fingerprint) / write + SHA-256", lambda: graph.replace().save(saved),
                lambda: (plain.write_bytes(content), hashlib.sha256(content)), rounds)  # fmt: skip
        compare("load (checks the fingerprint) / read + SHA-256", lambda: MSCGraph.load(saved),
                lambda: hashlib.sha256(plain.read_bytes()), rounds)  # fmt: skip
        compare("fingerprint / SHA-256", lambda: graph.replace().fingerprint, lambda: hashlib.sha256(content), rounds)


if __name__ == "__main__":
    main()
