"""torch-pruning on a baseline, in an environment of its own: `python -m experiments.peer_recovery FOLDER NETWORK`.

The folder holds `weights.npz`, `data.npz` and `kept.json`, {plan: {layer: share of its outputs that is pruned}}. Prints
one line of JSON: {plan: {importance: [accuracy of each split in %, parameters]}}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch_pruning

from experiments import models

IMPORTANCE = {
    "L1": lambda: torch_pruning.importance.MagnitudeImportance(p=1, group_reduction="first", normalizer=None),
    "group L2": lambda: torch_pruning.importance.GroupMagnitudeImportance(p=2),
}


def load(network: str, folder: Path) -> torch.nn.Module:
    """The baseline as the torch module that it was trained as."""
    module: torch.nn.Module = getattr(models, network)()
    with np.load(folder / "weights.npz") as weights:
        state = {name: torch.from_numpy(weights[name]) for name in weights.files}
    module.load_state_dict(state, strict=False)
    return module.eval()


def accuracy(module: torch.nn.Module, x: np.ndarray, y: np.ndarray) -> float:
    """In %."""
    with torch.no_grad():
        found = [module(torch.from_numpy(x[i : i + 250])).argmax(1).numpy() for i in range(0, len(x), 250)]
    return float(100 * (np.concatenate(found) == y).mean())


def main() -> None:
    """Prune by each plan and importance."""
    folder, network = Path(sys.argv[1]), sys.argv[2]
    with np.load(folder / "data.npz") as file:
        splits = [(file[f"x{i}"], file[f"y{i}"]) for i in range(2)]
    results: dict[str, dict[str, object]] = {}
    for plan, ratios in json.loads((folder / "kept.json").read_text()).items():
        results[plan] = {}
        for name, importance in IMPORTANCE.items():
            module = load(network, folder)
            layers = dict(module.named_modules())
            pruner = torch_pruning.pruner.BasePruner(
                module, torch.from_numpy(splits[0][0][:1]), importance(), pruning_ratio=0.0,
                pruning_ratio_dict={layers[layer]: ratio for layer, ratio in ratios.items()},
                ignored_layers=[m for m in layers.values() if isinstance(m, torch.nn.Linear) and m.out_features == 10],
            )  # fmt: skip
            pruner.step()
            accuracies = [accuracy(module, x, y) for x, y in splits]
            results[plan][name] = [*accuracies, sum(p.numel() for p in module.parameters())]
    print(json.dumps(results), file=OUT)


if __name__ == "__main__":
    OUT, sys.stdout = sys.stdout, sys.stderr  # the tool prints
    main()
