"""The naive loop of public tools, in an environment of its own: `python -m experiments.peer_loop FOLDER NETWORK`.

For each line of input, a seed, it copies the network, prunes it at random with torch-pruning, counts accuracy with
torch on the images of `data.npz`, exports it with `torch.onnx.export`, opens an ONNX Runtime session and times it; it
answers with a line of JSON: [seconds, accuracy, share of MACs, milliseconds].
"""

from __future__ import annotations

import io
import json
import sys
import time
from copy import deepcopy
from pathlib import Path

import numpy as np
import onnxruntime
import torch
import torch_pruning

from experiments.peer_recovery import accuracy, load

RUNS = 600  # as many as our own measurement takes: 2 rounds of 30 pairs, several runs in each


def evaluate(network: torch.nn.Module, x: np.ndarray, y: np.ndarray, seed: int) -> tuple[float, float, float]:
    """Accuracy, MACs and milliseconds of the network pruned at random."""
    random, module, example = np.random.default_rng(seed), deepcopy(network), torch.from_numpy(x[:1])
    convolutions = [m for m in module.modules() if isinstance(m, torch.nn.Conv2d)]
    ratios = {m: float(random.uniform(0, 0.8)) for m in convolutions}
    heads = [m for m in module.modules() if isinstance(m, torch.nn.Linear) and m.out_features == 10]
    importance = torch_pruning.importance.MagnitudeImportance(p=1)
    torch_pruning.pruner.BasePruner(
        module, example, importance, pruning_ratio=0.0, pruning_ratio_dict=ratios, ignored_layers=heads, round_to=8
    ).step()
    macs, _ = torch_pruning.utils.count_ops_and_params(module, example)
    found = accuracy(module, x, y)
    buffer = io.BytesIO()
    torch.onnx.export(module, (example,), buffer, input_names=["x"], dynamo=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(buffer.getvalue(), options, providers=["CPUExecutionProvider"])
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        session.run(None, {"x": x[:1]})
        times.append(time.perf_counter() - start)
    return found, macs, 1e3 * float(np.median(times))


def main() -> None:
    """Answer line after line."""
    torch.set_num_threads(1)
    folder, name = Path(sys.argv[1]), sys.argv[2]
    network = load(name, folder)
    with np.load(folder / "data.npz") as file:
        x, y = file["x"], file["y"]
    whole, _ = torch_pruning.utils.count_ops_and_params(network, torch.from_numpy(x[:1]))
    for line in sys.stdin:
        start = time.perf_counter()
        found, macs, milliseconds = evaluate(network, x, y, int(line))
        print(json.dumps([time.perf_counter() - start, found, macs / whole, milliseconds]), file=OUT, flush=True)


if __name__ == "__main__":
    OUT, sys.stdout = sys.stdout, sys.stderr  # the tools print
    main()
