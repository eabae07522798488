"""Models that the command line names: the folder of a saved graph, an ONNX file, or `module:function`, which is code.

Only a person at the command line may name code; a job file may not (`msc_gym.config`).
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from msc_core.backends.onnxruntime import EXACT_SUMS
from msc_core.codegen.torch import to_torch
from msc_core.dims import Dim
from msc_core.errors import MscError, nearest
from msc_core.frontends.onnx import from_onnx
from msc_core.frontends.torch import from_torch
from msc_core.ir import Array, MSCGraph, Tensor

if TYPE_CHECKING:
    import torch

MAX_WEIGHTS_BYTES = 2**33
DTYPES = ("bool", "int8", "uint8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")


def names_code(model: str) -> bool:
    """Whether `model` is written `module:function`."""
    module, colon, function = model.partition(":")
    return bool(colon) and function.isidentifier() and all(part.isidentifier() for part in module.split("."))


@dataclass(frozen=True)
class Source:
    """A model that was named: its graph, and how the original computes it, from inputs by name to a list of outputs."""

    graph: MSCGraph
    run: Callable[[Mapping[str, Array]], list[Array]]

    def fused(self) -> Source:
        """The same with whole layers in place of small operators; the original stays what to compare with."""
        from msc_core.patterns import fuse

        return replace(self, graph=fuse(self.graph))


def load_graph(model: str, samples: Sequence[Tensor] = (), batch: str = "") -> MSCGraph:
    """The graph of what `open_source` opens."""
    return open_source(model, samples, batch).graph


def open_source(model: str, samples: Sequence[Tensor] = (), batch: str = "") -> Source:
    """What a model argument names: a folder of a saved graph, an `.onnx` file, or `module:function`.

    `samples` describe one sample (no batch axis) of every input of a torch module. `batch` names the batch axis of a
    torch module (by default `N`) or of the inputs of an ONNX model (by default as in the file); a number fixes it.
    """
    path = Path(model)
    if names_code(model) and not path.exists():
        return _from_code(model, samples, batch or "N")
    if samples:
        raise MscError(f"{model}: --input is for module:function; a saved model knows its inputs")
    if path.suffix == ".onnx":
        return _from_onnx(path, batch)
    if batch:
        raise MscError(f"{model}: --batch is for ONNX files and module:function; a saved graph knows its batch")
    if not path.exists():
        raise MscError(
            f"{model}: no such folder; expected one written by MSCGraph.save, an .onnx file or module:function"
        )
    graph = MSCGraph.load(path)
    return Source(graph, lambda feeds: call_module(to_torch(graph), feeds))


def sample(text: str) -> Tensor:
    """`1,28,28` or `1x28x28`, with a dtype in front if it is not float32: `int64:128`."""
    dtype, colon, shape = text.rpartition(":")
    sizes = shape.replace("x", ",").split(",") if shape else []
    if not all(size.strip().isdecimal() and int(size) > 0 for size in sizes):
        raise MscError(f"--input {text}: expected positive sizes, such as 1,28,28 or int64:128")
    if colon and dtype not in DTYPES:
        raise MscError(f"--input {text}: unknown dtype {dtype!r}{nearest(dtype, DTYPES)}")
    return Tensor("", tuple(map(int, sizes)), dtype or "float32")


def _from_code(model: str, samples: Sequence[Tensor], batch: str) -> Source:
    if not samples:
        raise MscError(f"{model}: a torch model needs the shape of one sample, such as --input 1,28,28")
    if not batch.isdecimal() and not batch.isidentifier():
        raise MscError(f"--batch {batch}: expected a name, such as N, or a number")
    import torch

    module = load_module(model)
    count = int(batch) if batch.isdecimal() else 2
    inputs = tuple(torch.zeros(count, *map(int, s.shape), dtype=getattr(torch, s.dtype)) for s in samples)
    graph = from_torch(module, inputs, dynamic_shapes=None if batch.isdecimal() else ({0: batch},) * len(inputs))
    return Source(graph, lambda feeds: call_module(module, feeds))


def _from_onnx(path: Path, batch: str) -> Source:
    if not path.is_file():
        raise MscError(f"{path}: no such file")
    graph = from_onnx(path)
    if batch:
        first: Dim = int(batch) if batch.isdecimal() else batch
        described = [graph.tensors[name] for name in graph.inputs if graph.tensors[name].shape]
        graph = from_onnx(path, shapes={t.name: (first, *t.shape[1:]) for t in described})
    return Source(graph, lambda feeds: run_onnx(path, feeds))


def call_module(module: torch.nn.Module, feeds: Mapping[str, Array]) -> list[Array]:
    """A torch module's outputs, flattened, for inputs in order."""
    import torch
    from torch.utils import _pytree as pytree

    with torch.no_grad():
        results = module.eval()(*(torch.from_numpy(np.array(array)) for array in feeds.values()))
    return [t.detach().numpy() for t in pytree.tree_leaves(results) if isinstance(t, torch.Tensor)]


def run_onnx(path: Path, feeds: Mapping[str, Array]) -> list[Array]:
    """ONNX Runtime's outputs on the CPU."""
    try:
        import onnxruntime
    except ImportError:
        raise MscError("checking an ONNX model needs onnxruntime: pip install onnxruntime") from None
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(*EXACT_SUMS)
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return [np.asarray(result) for result in session.run(None, dict(feeds))]


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
