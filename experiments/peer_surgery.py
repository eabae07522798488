"""torch-pruning on micro-networks, run in an environment of its own: `python -m experiments.peer_surgery NAME...`.

Prints one line of JSON for each network: its name and an outcome for each importance. The tool is called as its README
says: output layers are ignored, parameters outside of layers are declared where its default (the last axis that is not
one) would be wrong, and attention layers are declared with their heads. There whole heads are pruned, and if that does
not come out right, the width of heads; the better outcome counts.
"""

from __future__ import annotations

import copy
import io
import json
import os
import sys
import warnings
from dataclasses import asdict
from functools import partial

import numpy as np
import torch
import torch_pruning
from torch import Tensor, nn

from experiments.surgery_stages import RATIO, STAGES, Outcome, Pruned, arrays, examine, run_onnx, single_threaded
from tests.micro_networks import NETWORKS

IMPORTANCE = {
    "l1": partial(torch_pruning.importance.GroupMagnitudeImportance, p=1),
    "random": torch_pruning.importance.RandomImportance,
}


def heads_of(module: nn.Module) -> dict[nn.Module, int]:
    """The layers that make heads, with their number."""
    found: dict[nn.Module, int] = {}
    for part in module.modules():
        if isinstance(part, nn.MultiheadAttention):
            found[part] = part.num_heads
        for name in ("q", "k", "v", "qkv"):
            if hasattr(part, "heads") and hasattr(part, name):
                found[getattr(part, name)] = part.shared if hasattr(part, "shared") and name in "kv" else part.heads
    return found


def update_heads(module: nn.Module, heads: dict[nn.Module, int]) -> None:
    """What the tool leaves to its user: the number of heads in attributes."""
    for part in module.modules():
        if isinstance(part, nn.MultiheadAttention):
            part.num_heads = heads[part]
            part.head_dim = part.embed_dim // part.num_heads
        elif hasattr(part, "heads"):
            part.heads = heads[part.qkv if hasattr(part, "qkv") else part.q]
            if hasattr(part, "shared"):
                part.shared = heads[part.k]


def prune(module: nn.Module, x: Tensor, importance: str, ignored: list[str], whole_heads: bool) -> Pruned:
    """The module, with half of its channels."""
    heads = heads_of(module)
    loose = [(getattr(module, name), axis) for name, axis in getattr(module, "pruning_axes", {}).items()]
    fresh = copy.deepcopy(module)
    pruner = torch_pruning.pruner.BasePruner(
        module,
        x,
        importance=IMPORTANCE[importance](),
        pruning_ratio=1 - RATIO,
        ignored_layers=[m for name, m in module.named_modules() if name in ignored],
        num_heads=heads,
        prune_num_heads=whole_heads and bool(heads),
        prune_head_dims=not whole_heads,
        head_pruning_ratio=1 - RATIO if whole_heads and heads else 0.0,
        unwrapped_parameters=loose or None,
    )
    pruner.step()
    update_heads(module, pruner.num_heads)

    def reload() -> nn.Module:
        return torch_pruning.load_state_dict(fresh, torch_pruning.state_dict(module))

    def onnx(x: Tensor) -> np.ndarray:
        buffer = io.BytesIO()
        try:
            torch.onnx.export(module.eval(), (x,), buffer, dynamo=False)
        except Exception:  # what the older exporter does not know, the newer and slower one does
            buffer = io.BytesIO()
            torch.onnx.export(module.eval(), (x,), buffer, dynamo=True, verbose=False)
        return run_onnx(buffer.getvalue(), x)

    return Pruned(module, arrays(module), reload, onnx)


def outcome(module: nn.Module, x: Tensor, importance: str, ignored: list[str]) -> Outcome:
    """The best of what the tool offers."""
    found = []
    for whole_heads in (True, False):
        torch.manual_seed(0)
        found.append(examine(module, x, lambda m, w=whole_heads: prune(m, x, importance, ignored, w)))
        if not found[-1].stage or not heads_of(module):
            break
    return max(found, key=lambda o: list(STAGES).index(o.stage))


def main() -> None:
    """Examine the networks named in the JSON of standard input: {name: [layers to ignore]}."""
    warnings.simplefilter("ignore")
    single_threaded()
    networks = {network.name: network for network in NETWORKS}
    for name, ignored in json.load(sys.stdin).items():
        network = networks[name]
        module, x = network.module(), network.inputs()
        outcomes = {i: asdict(outcome(module, x, i, ignored)) for i in IMPORTANCE}
        print(json.dumps({"name": name, **outcomes}), file=OUT, flush=True)


if __name__ == "__main__":
    OUT = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the tool prints, and so does PyTorch's exporter
    main()
