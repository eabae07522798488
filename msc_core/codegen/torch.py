"""`MSCGraph` -> PyTorch: a module that interprets the graph, and readable source that needs torch only."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from msc_core.codegen.torch_calls import module_paths, torch_calls
from msc_core.codegen.torch_source import print_source
from msc_core.errors import InvalidGraph
from msc_core.exchange import from_torch_tensor
from msc_core.ir import Array, MSCGraph, write_atomic

if TYPE_CHECKING:
    import torch

SOURCE_FILE, STATE_FILE = "model.py", "model.safetensors"


def to_torch(graph: MSCGraph) -> torch.nn.Module:
    """A module that computes what the graph computes, in training mode as a new torch module is.

    Weights are registered at their dotted names (`torch_calls.module_paths` has the exceptions), so its `state_dict()`
    is keyed as that of the model the graph came from. Running statistics, scalars and integers are buffers, the rest
    parameters. Inputs are taken by position or by name; several outputs come as a tuple. In training mode batch norm
    normalizes by the batch and dropout drops. Raises `UnsupportedOperator` where torch cannot say a node.
    """
    from msc_core.codegen.torch_module import Interpreter

    return Interpreter(torch_calls(graph))


def from_module(graph: MSCGraph, module: torch.nn.Module) -> MSCGraph:
    """The graph with the weights that `module`, once `to_torch(graph)` or its printed source, has now.

    Raises `InvalidGraph` if a weight is missing or has another shape or dtype.
    """
    state = module.state_dict()
    weights: dict[str, Array] = {}
    for name, path in module_paths(graph.weights).items():
        if path not in state:
            raise InvalidGraph(f"the module has no {path!r}, which graph {graph.name!r} needs for weight {name!r}")
        weights[name] = from_torch_tensor(state[path])
    return graph.replace(weights=weights)


def torch_source(graph: MSCGraph) -> str:
    """Python source of a module named after the graph, one line per node, and of `load()`, which reads its weights."""
    return print_source(torch_calls(graph), STATE_FILE)


def save_torch(graph: MSCGraph, folder: str | Path) -> None:
    """Write `model.py` (see `torch_source`) and `model.safetensors`; they need torch only."""
    from safetensors.numpy import save

    paths = module_paths(graph.weights)
    state = {paths[name]: np.ascontiguousarray(array).reshape(array.shape) for name, array in graph.weights.items()}
    write_atomic(Path(folder) / STATE_FILE, save(state))
    write_atomic(Path(folder) / SOURCE_FILE, torch_source(graph).encode())
