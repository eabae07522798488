"""TVM on the CPU as a backend: `tvm`, `tvm:llvm -mcpu=skylake-avx512`, `tvm:stock`.

A graph is folded in NumPy, emitted as NHWC kernels (`tvm_emit.py`), fused by Relax and scheduled by one fixed rule
(`tvm_schedule.py`): untuned TVM is tens of times slower than other engines and ranks networks by their MACs alone, so
its latency is no measurement. `stock` leaves all that out and is there to compare with.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from msc_core.backends.runner import Runner, check_feeds, load_manifest, save_manifest
from msc_core.backends.target import Target
from msc_core.backends.tvm_emit import emit
from msc_core.backends.tvm_kernels import Machine
from msc_core.backends.tvm_schedule import schedule
from msc_core.codegen.relax import import_tvm, to_relax
from msc_core.errors import MscError, nearest
from msc_core.infer import bind_symbols
from msc_core.ir import Array, MSCGraph, Tensor, write_atomic
from msc_core.rewrite import drop_identities, flush_denormals, fold_batch_norm

OPTIONS = ("llvm", "stock", "-mcpu=native")  # -mcpu takes any CPU that LLVM knows
LIBRARY_FILE = "lib.so"


def available(options: tuple[str, ...] = ()) -> tuple[bool, str]:
    """Whether TVM is installed."""
    found = find_spec("tvm") is not None
    return found, "" if found else "tvm is not installed: pip install apache-tvm 'apache-tvm-ffi<0.1.15'"


def build(graph: MSCGraph, target: Target, threads: int) -> Runner:
    """Compile the graph for sizes that are fixed: every symbolic dimension (the batch) becomes 1.

    The schedule needs sizes to choose its tiles by. For another batch, bind it first: `bind_symbols(graph, N=8)`.
    """
    tvm = import_tvm()
    compiler = _compiler(target, threads)
    symbols = {d: 1 for t in graph.tensors.values() for d in t.shape if isinstance(d, str)}
    graph = flush_denormals(bind_symbols(graph, **symbols) if symbols else graph)
    module = to_relax(graph) if "stock" in target.options else _scheduled(graph, compiler)
    executable = tvm.compile(module, compiler)
    inputs = tuple(graph.tensors[name] for name in graph.inputs)
    outputs = tuple(graph.tensors[name] for name in graph.outputs)
    return TvmRunner(executable, target, inputs, outputs, threads, threads > 1)


def load(folder: str | Path, target: Target, threads: int) -> Runner:
    """What `export` wrote. It is machine code: load only what you trust.

    Raises `MscError` if it was built for the CPU of another machine; a build for one thread stays sequential.
    """
    tvm = import_tvm()
    manifest = load_manifest(folder)
    path = Path(folder) / LIBRARY_FILE
    if not path.is_file():
        raise MscError(f"{folder} holds no {LIBRARY_FILE}")
    built, here = manifest.get("mcpu"), _mcpu(target)
    if built != here:
        raise MscError(
            f"{folder} was built for the CPU {built!r}, this one is {here!r}; build for 'tvm:llvm -mcpu={here}'"
        )
    with _without_chatter():
        library = tvm.runtime.load_module(str(path))
        runner = TvmRunner(
            library, target, manifest["inputs"], manifest["outputs"], threads, manifest.get("parallel", True)
        )
    runner.library = path.read_bytes()
    return runner


class TvmRunner(Runner):
    """Runs `main` of a compiled module on Relax's virtual machine. `inputs` and `outputs` have fixed sizes."""

    def __init__(
        self, executable: Any, target: Target, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...], threads: int,
        parallel: bool,
    ) -> None:  # fmt: skip
        self.target, self.inputs, self.outputs, self.threads = target, inputs, outputs, threads
        self._tvm = import_tvm()
        self._executable = executable
        self._parallel = parallel
        self.library: bytes | None = None  # of a runner that was loaded, so that it can be exported again
        self._main: Any = self._tvm.relax.VirtualMachine(executable, self._tvm.cpu())["main"]
        # One set of input buffers, written through NumPy views: TVM's own copies cost more than a small network.
        self._arguments = [self._tvm.runtime.empty(tensor.shape, tensor.dtype) for tensor in inputs]
        self._views = [np.from_dlpack(argument) for argument in self._arguments]

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Runner.run."""
        if self._main is None:
            raise MscError(f"the runner of '{self.target}' is closed")
        for view, array in zip(self._views, check_feeds(self.inputs, feeds), strict=True):
            view[...] = array
        if self._parallel:
            _use_threads(self._tvm, self.threads)
        results = self._main(*self._arguments)
        results = [results] if len(self.outputs) == 1 else results
        arrays = [np.from_dlpack(result).copy() for result in results]
        return {tensor.name: array for tensor, array in zip(self.outputs, arrays, strict=True)}

    def export(self, folder: str | Path) -> None:
        """Runner.export: `lib.so`, weights included. Needs a C compiler to link it, except for a loaded runner."""
        if self._main is None:
            raise MscError(f"the runner of '{self.target}' is closed")
        with TemporaryDirectory() as scratch:
            library = self.library
            if library is None:
                path = Path(scratch) / LIBRARY_FILE
                with _without_chatter():
                    self._executable.export_library(str(path))
                library = path.read_bytes()
        write_atomic(Path(folder) / LIBRARY_FILE, library)
        versions = {"tvm": self._tvm.__version__}
        save_manifest(
            self, folder, [LIBRARY_FILE], mcpu=_mcpu(self.target), parallel=self._parallel, versions=versions
        )  # fmt: skip

    def close(self) -> None:
        """Runner.close."""
        self._main = self._executable = None


@contextlib.contextmanager
def _without_chatter() -> Iterator[None]:
    """Without the line that TVM 0.27 writes to stderr for each constant that it saves or loads; errors are raised."""
    sys.stderr.flush()
    saved, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)


def _scheduled(graph: MSCGraph, compiler: Any) -> Any:
    """The module that is ready for the rest of TVM's own pipeline: nothing in it is left to legalize."""
    tvm = import_tvm()
    transform = tvm.relax.transform
    machine = _machine(compiler)
    module = emit(drop_identities(fold_batch_norm(graph)), machine)
    # No FoldConstant: what it would fold is folded already, and it takes seconds.
    passes = [
        transform.LegalizeOps(),
        transform.AnnotateTIROpPattern(),
        transform.FuseOps(),
        transform.FuseTIR(),
        transform.DeadCodeElimination(),
    ]
    with compiler:
        return schedule(tvm.transform.Sequential(passes)(module), machine)


def _mcpu(target: Target) -> str:
    """The CPU that a target names. Raises `MscError` for unknown words and CPUs."""
    from tvm.target import codegen

    name = "native"
    for option in target.options:
        if option.startswith("-mcpu="):
            name = option.removeprefix("-mcpu=")
        elif option not in OPTIONS:
            raise MscError(f"target '{target}': unknown option {option!r}{nearest(option, OPTIONS)}")
    if name == "native":
        return str(codegen.llvm_get_system_cpu())
    triple = codegen.llvm_get_system_triple()
    if not codegen.llvm_is_valid_cpu(name, triple):
        known = list(map(str, codegen.llvm_get_cpu_archlist(_llvm("generic", 1))))
        raise MscError(f"target '{target}': LLVM knows no CPU {name!r}{nearest(name, known)}")
    return name


def _llvm(mcpu: str, threads: int) -> Any:
    """TVM's target for that CPU (TVM refuses strings with options)."""
    from tvm.target import Target as LlvmTarget
    from tvm.target import codegen

    return LlvmTarget(
        {"kind": "llvm", "mcpu": mcpu, "mtriple": str(codegen.llvm_get_system_triple()), "num-cores": threads}
    )  # fmt: skip


def _compiler(target: Target, threads: int) -> Any:
    return _llvm(_mcpu(target), threads)


def _machine(compiler: Any) -> Machine:
    """Vector sizes by the CPU's features; a few registers are left for addresses of weights and for constants."""
    from tvm.target import codegen

    cores = int(compiler.attrs["num-cores"])
    if not str(compiler.attrs["mtriple"]).startswith("x86_64"):
        return Machine(lanes=4, registers=28, cores=cores)
    if codegen.llvm_cpu_has_features("avx512f", compiler):
        return Machine(lanes=16, registers=30, cores=cores)
    wide = codegen.llvm_cpu_has_features("avx", compiler)
    return Machine(lanes=8 if wide else 4, registers=14, cores=cores)


def _use_threads(tvm: Any, threads: int) -> None:
    """Have TVM's pool run on that many threads. Its size is fixed by the environment when it starts.

    Left to itself it also binds the calling thread to the first core, whatever the process was pinned to.
    """
    os.environ.setdefault("TVM_NUM_THREADS", str(max(os.cpu_count() or 1, threads)))
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    count = tvm.get_global_func("runtime.NumThreads")
    if int(count()) == threads:
        return
    tvm.get_global_func("runtime.config_threadpool")(1, threads)
    if int(count()) != threads:
        raise MscError(
            f"TVM's thread pool has {count()} threads, {threads} were asked for; "
            "set TVM_NUM_THREADS before the process first runs TVM"
        )
