"""A run on disk: one safetensors file, its numbers as JSON in the header, renamed into place; never unpickled."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from msc_core.data import Split
from msc_core.errors import MscError
from msc_core.ir import write_atomic
from msc_core.tools.finetune.recipe import Recipe
from msc_core.tools.finetune.run import Run
from msc_core.tools.finetune.teacher import Teacher

if TYPE_CHECKING:
    import torch

SCHEMA = 1
ENTRY = "msc_finetune"


def identity(
    module: torch.nn.Module,
    train: Split,
    recipe: Recipe,
    teacher: Teacher | None,
    validation: Split | None,
    masks: list[tuple[torch.Tensor, torch.Tensor]],
) -> str:
    """A hash of all that a run depends on: a checkpoint is for that run only."""
    data = asdict(recipe) | {"save": 0}  # how often it is written changes nothing
    digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode())
    digest.update(teacher.graph.fingerprint.encode() if teacher else b"")
    for name, value in module.state_dict().items():
        digest.update(name.encode())
        digest.update(_bytes(value))
    for _, mask in masks:
        digest.update(_bytes(mask))
    for split in (train, validation):
        for array in (split.x, split.y) if split is not None else ():
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def save(path: Path, run: Run, key: str) -> None:
    """Write everything that the next step depends on."""
    import torch
    from safetensors.torch import save as serialize

    state = run.optimizer.state_dict()
    tensors = {f"module/{name}": value for name, value in run.module.state_dict().items()}
    tensors |= {f"best/{name}": value for name, value in run.best.items()}
    if run.average is not None:
        tensors |= {f"average/{name}": value for name, value in run.average.state_dict().items()}
    for index, values in state["state"].items():
        tensors |= {f"optimizer/{index}/{name}": value for name, value in values.items() if value is not None}
    tensors |= {"random/data": run.generator.get_state(), "random/torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        tensors["random/cuda"] = torch.cuda.get_rng_state()
    numbers = {
        "schema": SCHEMA, "key": key, "step": run.step, "loss": run.loss, "waited": run.waited, "history": run.history,
        "groups": state["param_groups"], "schedule": run.schedule.state_dict(),
    }  # fmt: skip
    whole = {name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}
    write_atomic(path, serialize(whole, metadata={ENTRY: json.dumps(numbers)}))


def load(path: Path, run: Run, key: str) -> None:
    """Set `run` to what `save` wrote. Raises `MscError` for another run's checkpoint, or what is none."""
    import torch
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            numbers = json.loads((file.metadata() or {})[ENTRY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is no mapping
        if numbers["schema"] != SCHEMA:
            raise MscError(f"checkpoint {path} has schema {numbers['schema']}; this version reads {SCHEMA}")
    except (OSError, KeyError, ValueError, RecursionError, SafetensorError) as error:
        raise MscError(f"{path} is not a readable checkpoint: {type(error).__name__}: {error}") from error
    if numbers["key"] != key:
        raise MscError(
            f"checkpoint {path} is of another run (network, data or recipe differ); delete it or use another"
        )
    parts = _parts(tensors)
    run.module.load_state_dict(parts["module"])
    where = next(run.module.parameters()).device
    run.best = {name: value.to(where) for name, value in parts.get("best", {}).items()}
    if run.average is not None:
        run.average.load_state_dict(parts["average"])
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in parts.get("optimizer", {}).items():
        index, slot = name.split("/")
        state.setdefault(int(index), {})[slot] = value
    run.optimizer.load_state_dict({"state": state, "param_groups": numbers["groups"]})
    run.schedule.load_state_dict(numbers["schedule"])
    run.generator.set_state(parts["random"]["data"])
    torch.set_rng_state(parts["random"]["torch"])
    if "cuda" in parts["random"] and torch.cuda.is_available():
        torch.cuda.set_rng_state(parts["random"]["cuda"])
    run.step, run.loss, run.waited = numbers["step"], numbers["loss"], numbers["waited"]
    run.history = [(step, score) for step, score in numbers["history"]]


def _parts(tensors: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Tensors by the first part of their names."""
    parts: dict[str, dict[str, Any]] = {}
    for name, value in tensors.items():
        part, rest = name.split("/", 1)
        parts.setdefault(part, {})[rest] = value
    return parts


def _bytes(value: torch.Tensor) -> bytes:
    import torch

    return value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
