"""PyTorch as a backend: eager, or `torch:compile`; on the GPU with `cuda`. Exported as the graph itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from msc_core.backends.runner import Runner, check_feeds, save_manifest
from msc_core.backends.target import Target
from msc_core.codegen.torch import to_torch
from msc_core.errors import MscError
from msc_core.ir import GRAPH_FILE, WEIGHTS_FILE, Array, MSCGraph

OPTIONS = ("compile", "cuda")


def available(options: tuple[str, ...] = ()) -> tuple[bool, str]:
    """Whether torch is installed, and for `cuda` whether it finds a GPU."""
    if not find_spec("torch"):
        return False, "torch is not installed: pip install torch"
    if "cuda" in options:
        import torch

        if not torch.cuda.is_available():
            return False, "torch finds no usable CUDA device"
    return True, ""


def build(graph: MSCGraph, target: Target, threads: int) -> Runner:
    """The graph as a torch module."""
    return TorchRunner(graph, target, threads)


def load(folder: str | Path, target: Target, threads: int) -> Runner:
    """What `export` wrote."""
    return TorchRunner(MSCGraph.load(folder), target, threads)


class TorchRunner(Runner):
    """Runs `to_torch(graph)` in evaluation mode; torch's thread count is set for the time of a call only."""

    def __init__(self, graph: MSCGraph, target: Target, threads: int) -> None:
        import torch

        target.check_options(OPTIONS)
        self.target = target
        self.inputs = tuple(graph.tensors[name] for name in graph.inputs)
        self.outputs = tuple(graph.tensors[name] for name in graph.outputs)
        self._graph, self._threads = graph, threads
        self._device = "cuda" if "cuda" in target.options else "cpu"
        module = to_torch(graph).eval().requires_grad_(False).to(self._device)
        self._module: Any = torch.compile(module) if "compile" in target.options else module

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Runner.run."""
        import torch

        if self._module is None:
            raise MscError(f"the runner of '{self.target}' is closed")
        arrays = check_feeds(self.inputs, feeds)
        with _threads(self._threads), torch.inference_mode():
            tensors = [torch.from_numpy(a if a.flags.writeable else a.copy()).to(self._device) for a in arrays]
            results = self._module(*tensors)
        results = results if isinstance(results, tuple) else (results,)
        return {t.name: result.cpu().numpy() for t, result in zip(self.outputs, results, strict=True)}

    def export(self, folder: str | Path) -> None:
        """Runner.export: the graph's two files."""
        self._graph.save(folder)
        save_manifest(self, folder, [GRAPH_FILE, WEIGHTS_FILE])

    def close(self) -> None:
        """Runner.close."""
        self._module = None


@contextmanager
def _threads(count: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    if before == count:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
