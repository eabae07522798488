"""torch-pruning to a budget of MACs, in an environment of its own: `python -m experiments.peer_search FOLDER NETWORK`.

The folder holds `weights.npz`, `data.npz` and `limits.json`, a list of shares of MACs that may stay. Writes
`WAY-LIMIT.onnx` there and prints one line of JSON: {limit: {way: [accuracy of each split in %, share of MACs left]}}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch_pruning

from experiments.peer_recovery import accuracy, load

WAYS = {"uniform": False, "global-L1": True}  # and whether channels of all layers compete
DIVISOR, MOST, STEPS = 4, 0.9, 12


def pruned(network: str, folder: Path, x: torch.Tensor, ratio: float, together: bool) -> torch.nn.Module:
    """The network without that share of its channels."""
    module = load(network, folder)
    importance = torch_pruning.importance.MagnitudeImportance(p=1)
    heads = [m for m in module.modules() if isinstance(m, torch.nn.Linear) and m.out_features == 10]
    torch_pruning.pruner.BasePruner(
        module, x, importance, pruning_ratio=ratio, global_pruning=together, max_pruning_ratio=MOST,
        ignored_layers=heads, round_to=DIVISOR,
    ).step()  # fmt: skip
    return module


def main() -> None:
    """The largest network of each way within each limit, by bisection of the ratio."""
    folder, network = Path(sys.argv[1]), sys.argv[2]
    with np.load(folder / "data.npz") as file:
        splits = [(file[f"x{i}"], file[f"y{i}"]) for i in range(2)]
    x = torch.from_numpy(splits[0][0][:1])
    whole, _ = torch_pruning.utils.count_ops_and_params(load(network, folder), x)
    results: dict[str, dict[str, object]] = {}
    for limit in json.loads((folder / "limits.json").read_text()):
        results[str(limit)] = {}
        for way, together in WAYS.items():
            low, high = 0.0, MOST
            for _ in range(STEPS):
                middle = (low + high) / 2
                macs, _ = torch_pruning.utils.count_ops_and_params(pruned(network, folder, x, middle, together), x)
                low, high = (low, middle) if macs <= limit * whole else (middle, high)
            module = pruned(network, folder, x, high, together)
            macs, _ = torch_pruning.utils.count_ops_and_params(module, x)
            results[str(limit)][way] = [*(accuracy(module, *split) for split in splits), macs / whole]
            torch.onnx.export(
                module, (x,), str(folder / f"{way}-{limit}.onnx"), input_names=["x"], dynamo=False,
                dynamic_axes={"x": {0: "N"}},
            )  # fmt: skip
    print(json.dumps(results), file=OUT)


if __name__ == "__main__":
    OUT, sys.stdout = sys.stdout, sys.stderr  # the tool prints
    main()
