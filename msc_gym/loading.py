"""Models that the command line names: the folder of a saved graph, or `module:function`, which is code.

Only a person at the command line may name code; a job file may not (`msc_gym.config`).
"""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from msc_core.errors import MscError, nearest
from msc_core.frontends.torch import from_torch
from msc_core.ir import MSCGraph

if TYPE_CHECKING:
    import torch

MAX_WEIGHTS_BYTES = 2**33


def names_code(model: str) -> bool:
    """Whether `model` is written `module:function`."""
    module, colon, function = model.partition(":")
    return bool(colon) and function.isidentifier() and all(part.isidentifier() for part in module.split("."))


def load_graph(model: str, shape: tuple[int, ...] | None = None) -> MSCGraph:
    """The graph of a folder, or of what `module:function` returns, exported for samples of `shape` (no batch axis)."""
    if not names_code(model) or Path(model).exists():
        if not Path(model).exists():
            raise MscError(f"{model}: no such folder; expected one written by MSCGraph.save, or module:function")
        return MSCGraph.load(model)
    if shape is None:
        raise MscError(f"{model}: a torch model needs the shape of one sample, such as --input 1,28,28")
    import torch

    return from_torch(load_module(model), torch.zeros(2, *shape), dynamic_shapes=({0: "N"},))


def load_module(model: str, weights: str | Path | None = None) -> torch.nn.Module:
    """What `module:function` returns, with weights from a `.safetensors` file if one is given.

    The module is looked for in the working directory, too. Raises `MscError` if it, the function or a network is not
    there, or if its code raises.
    """
    import torch

    if not names_code(model):
        raise MscError(f"{model!r}: expected module:function, such as package.models:resnet20")
    name, _, function = model.partition(":")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            raise MscError(f"{model}: no module {error.name!r}, in {Path.cwd()} neither") from None
        raise MscError(f"{model}: {_raised(error)}") from error
    except Exception as error:
        raise MscError(f"{model}: {_raised(error)}") from error
    if not callable(getattr(module, function, None)):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise MscError(f"{model}: module {name!r} has no function {function!r}{nearest(function, known)}")
    try:
        network = getattr(module, function)()
    except Exception as error:
        raise MscError(f"{model}: {_raised(error)}") from error
    if not isinstance(network, torch.nn.Module):
        raise MscError(f"{model}: expected a torch.nn.Module from {function}(); found {type(network).__name__}")
    if weights is not None:
        load_weights(network, weights)
    return network


def load_weights(network: torch.nn.Module, path: str | Path) -> None:
    """Load a `.safetensors` file into a network; names and shapes must agree exactly."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = Path(path)
    if path.suffix != ".safetensors":
        raise MscError(f"{path}: expected a .safetensors file (others can hold code)")
    if not path.is_file():
        raise MscError(f"{path}: no such file")
    if path.stat().st_size > MAX_WEIGHTS_BYTES:
        raise MscError(f"{path}: larger than {MAX_WEIGHTS_BYTES} bytes")
    try:
        found = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise MscError(f"{path}: not a readable .safetensors file: {error}") from error
    wanted = network.state_dict()
    for name in wanted:
        if name not in found and not name.endswith(".num_batches_tracked"):
            raise MscError(f"{path}: weight {name!r} is missing{nearest(name, found)}")
    for name, value in found.items():
        if name not in wanted:
            raise MscError(f"{path}: weight {name!r} is not in the model{nearest(name, wanted)}")
        if value.shape != wanted[name].shape:
            shapes = f"{list(value.shape)}, in the model it is {list(wanted[name].shape)}"
            raise MscError(f"{path}: weight {name!r} is {shapes}")
    network.load_state_dict(wanted | found)


def _raised(error: Exception) -> str:
    """An exception of the user's code in one line, with where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.filename != __file__ and "importlib" not in f.filename] or frames
    return f"{type(error).__name__}: {error} ({own[-1].filename}, line {own[-1].lineno})"
