"""Is this machine ready? Facts for bug reports, and each backend tried on a small network, not only looked for."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from msc_core.backends import available, build, compare
from msc_core.backends.target import KNOWN
from msc_core.data import FASHION_MNIST_PATHS, fashion_mnist
from msc_core.errors import MscError
from msc_core.ir import MSCGraph, Node, Tensor

ESSENTIAL = ("onnxruntime", "torch")
PACKAGES = (
    "msc-gym", "apache-tvm", "gymnasium", "numpy", "onnx", "onnxruntime", "safetensors", "SQLAlchemy",
    "stable-baselines3", "tensorflow", "openvino", "tensorrt-rtx-cu12", "torch",
)  # fmt: skip
CPU_FEATURES = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "asimd", "sve")
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Check:
    """One finding; `ok` is `None` for a mere fact. The machine is not ready if an essential one is false."""

    section: str
    name: str
    ok: bool | None
    detail: str
    essential: bool = False


def diagnose() -> Iterator[Check]:
    """Every finding, one by one, since some take seconds."""
    yield Check("versions", "python", None, platform.python_version())
    for package in PACKAGES:
        yield Check("versions", package, None, _version(package))
    yield from _cpu()
    yield from map(_backend, KNOWN)
    yield _data()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _cpu() -> Iterator[Check]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Check("machine", "cores", None, f"{usable} usable of {os.cpu_count()}")
    info = Path("/proc/cpuinfo")
    text = info.read_text(errors="replace") if info.is_file() else ""
    model = next((line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")), "")
    yield Check("machine", "processor", None, f"{platform.machine()} {model}".strip())
    flags = {word for line in text.splitlines() if line.startswith(("flags", "Features")) for word in line.split()}
    yield Check("machine", "features", None, " ".join(f for f in CPU_FEATURES if f in flags) or "none that we know")


def small_network() -> MSCGraph:
    """A convolution and a ReLU at batch 1."""
    weight = np.linspace(-1, 1, 8 * 3 * 3, dtype=np.float32).reshape(8, 1, 3, 3)
    tensors = [Tensor("x", (1, 1, 8, 8)), Tensor("w", weight.shape), Tensor("conv", (1, 8, 6, 6))]
    tensors.append(Tensor("relu", (1, 8, 6, 6)))
    nodes = (Node("conv", "conv2d", ("x", "w"), ("conv",)), Node("relu", "relu", ("conv",), ("relu",)))
    return MSCGraph("small", nodes, ("x",), ("relu",), {"w": weight}, {t.name: t for t in tensors})


def _backend(name: str) -> Check:
    essential = name in ESSENTIAL
    started = time.perf_counter()
    try:
        usable, reason = available(name)
        if not usable:
            return Check("backends", name, False, reason, essential)
        graph = small_network()
        feeds = {"x": np.linspace(-1, 1, 64, dtype=np.float32).reshape(1, 1, 8, 8)}
        with build(graph, name) as runner, build(graph, "torch") as reference:
            error = compare(runner, reference, feeds)
    except Exception as problem:  # whatever is wrong with a framework is what was asked for
        text = " ".join(str(problem).split())[:200]
        return Check("backends", name, False, f"{type(problem).__name__}: {text}", essential)
    if error > TOLERANCE:
        return Check("backends", name, False, f"differs from torch by {error:.1e}", essential)
    return Check("backends", name, True, f"works ({time.perf_counter() - started:.1f} s)", essential)


def _data() -> Check:
    try:
        found = fashion_mnist()
    except MscError as error:  # not essential: a job may bring its own data
        return Check("data", "fashion_mnist", False, str(error))
    sizes = f"{len(found.train):,} train, {len(found.validation):,} validation, {len(found.test):,} test"
    full = any(FASHION_MNIST_PATHS[0].glob("*-ubyte*"))
    return Check(
        "data", "fashion_mnist", True, sizes + ("" if full else "; the rest is in Debian's dataset-fashion-mnist")
    )
