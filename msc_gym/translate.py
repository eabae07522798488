"""From one framework to another: write a model for the target, run what was written, and compare with the original."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from msc_core import dims
from msc_core.codegen.relax import import_tvm
from msc_core.errors import MscError
from msc_core.infer import symbols
from msc_core.ir import Array, MSCGraph, write_atomic
from msc_gym.loading import Source, call_module, run_onnx

TOLERANCE = {"float16": 5e-3, "bfloat16": 5e-2}  # by the coarsest dtype among the outputs; otherwise ROUNDING
ROUNDING = 2e-5
BATCH, LENGTH = 2, 16  # sizes for symbolic dimensions: of first axes, and of others
ONNX_FILE, MODULE_FILE, SCRIPT_FILE, PARAMS_FILE = "model.onnx", "module.json", "module.txt", "params.safetensors"

Run = Callable[[Mapping[str, Array]], list[Array]]


@dataclass(frozen=True)
class Translation:
    """The files that were written, and how far their answer is from the original's: relative to its largest value."""

    files: tuple[Path, ...]
    difference: float
    tolerance: float
    sizes: Mapping[str, int]

    @property
    def ok(self) -> bool:
        """Whether the two agree up to rounding."""
        return self.difference <= self.tolerance


def translate(source: Source, target: str, folder: Path, opset: int | None = None, seed: int = 0) -> Translation:
    """Write `source` for a target ("torch", "onnx" or "relax") into a folder and check it on random inputs.

    Raises `UnsupportedOperator` where the target cannot say an operator.
    """
    if target not in WRITERS:
        raise MscError(f"--to {target}: expected one of {', '.join(WRITERS)}")
    if opset is not None and target != "onnx":
        raise MscError(f"--opset is for --to onnx, not for --to {target}")
    files, run = WRITERS[target](source.graph, folder, opset)
    feeds, sizes = random_feeds(source.graph, seed)
    expected = source.run(feeds)
    return Translation(files, difference(expected, run(feeds)), tolerance(expected), sizes)


# Targets: each writes its files and returns what runs them


def to_torch(graph: MSCGraph, folder: Path, opset: int | None) -> tuple[tuple[Path, ...], Run]:
    """`model.py` and `model.safetensors`, which need torch only."""
    from msc_core.codegen.torch import SOURCE_FILE, STATE_FILE, save_torch

    save_torch(graph, folder)

    def run(feeds: Mapping[str, Array]) -> list[Array]:
        return call_module(runpy.run_path(str(folder / SOURCE_FILE))["load"](), feeds)

    return (folder / SOURCE_FILE, folder / STATE_FILE), run


def to_onnx(graph: MSCGraph, folder: Path, opset: int | None) -> tuple[tuple[Path, ...], Run]:
    """`model.onnx`, checked with ONNX Runtime."""
    from msc_core.codegen.onnx import to_onnx as build
    from msc_core.codegen.onnx_opset import OPSET

    path = folder / ONNX_FILE
    write_atomic(path, build(graph, opset or OPSET).SerializeToString())
    return (path,), lambda feeds: run_onnx(path, feeds)


def to_relax(graph: MSCGraph, folder: Path, opset: int | None) -> tuple[tuple[Path, ...], Run]:
    """The module as data, the same as TVMScript to read, and the parameters that `main` takes behind its inputs."""
    from safetensors.numpy import load_file, save

    from msc_core.codegen import relax

    tvm = import_tvm()
    module = relax.to_relax(graph, "free")
    paths = folder / MODULE_FILE, folder / SCRIPT_FILE, folder / PARAMS_FILE
    write_atomic(paths[0], tvm.ir.save_json(module).encode())
    write_atomic(paths[1], f"{module.script()}\n".encode())
    write_atomic(paths[2], save({name: np.ascontiguousarray(w).reshape(w.shape) for name, w in graph.weights.items()}))
    order = list(graph.weights)

    def run(feeds: Mapping[str, Array]) -> list[Array]:
        weights = load_file(paths[2])
        executable = tvm.compile(tvm.ir.load_json(paths[0].read_text("utf-8")), tvm.target.Target("llvm"))
        main = tvm.relax.VirtualMachine(executable, tvm.cpu())["main"]
        given = [*feeds.values(), *(weights[name] for name in order)]
        results = main(*(tvm.runtime.tensor(np.ascontiguousarray(a).reshape(np.shape(a))) for a in given))
        single = len(graph.outputs) == 1
        return [np.from_dlpack(result).copy() for result in ([results] if single else results)]

    return paths, run


WRITERS = {"torch": to_torch, "onnx": to_onnx, "relax": to_relax}


# Comparing


def random_feeds(graph: MSCGraph, seed: int) -> tuple[dict[str, Array], dict[str, int]]:
    """Inputs by name, and the sizes that were given to symbols. Integers are 0 or 1, which any table has a row for."""
    rng = np.random.default_rng(seed)
    first = {str(t.shape[0]) for t in (graph.tensors[name] for name in graph.inputs) if t.shape}
    sizes = {symbol: BATCH if symbol in first else LENGTH for symbol in symbols(graph)}
    feeds: dict[str, Array] = {}
    for name in graph.inputs:
        t = graph.tensors[name]
        shape = tuple(int(dims.substitute(d, sizes)) for d in t.shape)
        floats = "float" in t.dtype
        values = rng.standard_normal(shape) if floats else rng.integers(0, 2, shape)
        feeds[name] = np.asarray(values).astype(_dtype(t.dtype))
    return feeds, sizes


def _dtype(name: str) -> np.dtype[np.generic]:
    if name == "bfloat16":
        import ml_dtypes  # noqa: F401 (teaches NumPy the name)
    return np.dtype(name)


def difference(expected: list[Array], found: list[Array]) -> float:
    """The largest distance over all outputs, relative to the largest expected value; what is not finite must agree.

    Raises `MscError` if the two have different numbers of outputs, shapes or dtypes.
    """
    kinds = [[f"{a.dtype.name}{list(a.shape)}" for a in arrays] for arrays in (expected, found)]
    if kinds[0] != kinds[1]:
        raise MscError(f"the outputs are {', '.join(kinds[1])}; the original's are {', '.join(kinds[0])}")
    worst = 0.0
    for e, f in zip(expected, found, strict=True):
        e, f = e.astype(np.float64), f.astype(np.float64)
        finite = np.isfinite(e)
        if not np.array_equal(e[~finite], f[~finite], equal_nan=True) or not np.isfinite(f[finite]).all():
            return float("inf")
        scale = float(np.max(np.abs(e[finite]), initial=0.0)) or 1.0
        worst = max(worst, float(np.max(np.abs(e[finite] - f[finite]), initial=0.0)) / scale)
    return worst


def tolerance(outputs: list[Array]) -> float:
    """How far two runs may differ by rounding."""
    return max((TOLERANCE.get(a.dtype.name, ROUNDING) for a in outputs), default=ROUNDING)
