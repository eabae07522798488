"""Artefacts of a finished graph. Each is checked against torch and runs on another machine without this project."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from msc_core.backends import Target, agreement, build
from msc_core.infer import single
from msc_core.ir import Array, MSCGraph, write_atomic


@dataclass(frozen=True)
class Artefact:
    """A file of an export, its size, and its largest error against torch, relative to the largest output."""

    file: str
    bytes: int
    max_error: float


def export_torch(graph: MSCGraph, folder: Path) -> str:
    """`model.py` and `model.safetensors`; torch alone runs them."""
    from msc_core.codegen.torch import STATE_FILE, save_torch

    save_torch(graph, folder)
    return STATE_FILE


def export_onnx(graph: MSCGraph, folder: Path) -> str:
    """`model.onnx`; any ONNX runtime runs it."""
    from msc_core.codegen.onnx import to_onnx

    write_atomic(folder / "model.onnx", to_onnx(graph).SerializeToString())
    return "model.onnx"


def export_tvm(graph: MSCGraph, folder: Path) -> str:
    """`lib.so` for one sample, compiled for this processor; TVM's virtual machine loads it."""
    with build(single(graph), "tvm") as runner:
        runner.export(folder)
    return "lib.so"


@dataclass(frozen=True)
class Format:
    """How a format is written, and the target on which it is checked."""

    write: Callable[[MSCGraph, Path], str]
    target: str
    batched: bool


FORMATS: Mapping[str, Format] = {
    "torch": Format(export_torch, "torch", batched=True),
    "onnx": Format(export_onnx, "onnxruntime", batched=True),
    "tvm": Format(export_tvm, "tvm", batched=False),
}


def export(graph: MSCGraph, name: str, folder: Path, x: Array, tolerance: float) -> Artefact:
    """Write one format to `folder` after its engine has been found to agree with torch on the inputs `x`.

    Raises `MscError` if it differs by more than `tolerance`; nothing is written then.
    """
    form = FORMATS[name]
    checked, sample = (graph, x) if form.batched else (single(graph), x[:1])
    with build(checked, form.target) as runner:
        error = agreement(runner, checked, sample, tolerance)
    file = form.write(graph, folder)
    return Artefact(f"{folder.name}/{file}", (folder / file).stat().st_size, error)


def engines(target: Target, formats: tuple[str, ...]) -> list[Target]:
    """The engines on which the result is timed: the target first, then those of the exported formats."""
    named = [Target.parse(FORMATS[name].target) for name in formats if name == "tvm"]
    return list(dict.fromkeys([target, *named]))
