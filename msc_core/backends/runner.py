"""A built network: what every backend returns, and the checks and the manifest that all of them share."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from msc_core.backends.target import Target
from msc_core.data import Split, accuracy
from msc_core.dims import Dim
from msc_core.errors import MscError, nearest
from msc_core.ir import Array, Tensor, write_atomic

MANIFEST_FILE = "runner.json"
MANIFEST_SCHEMA = 1


class Runner(Protocol):
    """A network that is ready to run on one target; a context manager that closes itself.

    `inputs` and `outputs` describe the tensors by the graph's names; a symbolic dimension may have any size.
    """

    target: Target
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name, for inputs by name. Raises `MscError` if an input does not fit (see `check_feeds`)."""
        ...

    def export(self, folder: str | Path) -> None:
        """Write the artefact and `runner.json`; `msc_core.backends.load` reads them again."""
        ...

    def close(self) -> None:
        """Free what the backend holds; the runner cannot run any more."""
        ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def check_feeds(inputs: tuple[Tensor, ...], feeds: Mapping[str, Array]) -> list[Array]:
    """The arrays in the order of `inputs`.

    Raises `MscError`, saying what was expected and found, for a missing or unknown name, a dtype or shape that
    differs, or two sizes for one symbol.
    """
    if len(feeds) != len(inputs) or any(tensor.name not in feeds for tensor in inputs):
        names = [tensor.name for tensor in inputs]
        unknown = [name for name in feeds if name not in names]
        hint = f": {unknown[0]!r} is unknown{nearest(unknown[0], names)}" if unknown else ""
        raise MscError(f"expected the inputs {names}, found {list(feeds)}{hint}")
    arrays, symbols = [], dict[str, int]()
    for tensor in inputs:
        array = np.asarray(feeds[tensor.name])
        if array.dtype.name != tensor.dtype or not _fits(array.shape, tensor.shape, symbols):
            sizes = f" with {symbols}" if symbols else ""
            raise MscError(
                f"input {tensor.name!r}: expected {tensor.dtype}{list(tensor.shape)}{sizes}, "
                f"found {array.dtype.name}{list(array.shape)}"
            )
        arrays.append(array)
    return arrays


def _fits(found: tuple[int, ...], expected: tuple[Dim, ...], symbols: dict[str, int]) -> bool:
    """Whether a shape is the expected one; a symbol takes the size that it meets first."""
    if len(found) != len(expected):
        return False
    return all(
        size == (symbols.setdefault(dim, size) if isinstance(dim, str) else dim)
        for size, dim in zip(found, expected, strict=True)
    )


def save_manifest(runner: Runner, folder: str | Path, files: Iterable[str] = (), **facts: Any) -> None:
    """Write `runner.json`: the target, the inputs and outputs, and what else the backend wants to find again.

    `files` are the names of what the backend has written; their hashes go along, so that a damaged file is not loaded.
    """

    def rows(tensors: tuple[Tensor, ...]) -> list[dict[str, Any]]:
        return [{"name": t.name, "shape": list(t.shape), "dtype": t.dtype, "layout": t.layout} for t in tensors]

    manifest = {
        "schema": MANIFEST_SCHEMA,
        "target": str(runner.target),
        "inputs": rows(runner.inputs),
        "outputs": rows(runner.outputs),
        "files": {name: _digest(Path(folder) / name) for name in files},
        **facts,
    }
    write_atomic(Path(folder) / MANIFEST_FILE, (json.dumps(manifest, indent=1) + "\n").encode())


def load_manifest(folder: str | Path) -> dict[str, Any]:
    """`runner.json` with `target` as a `Target` and `inputs`, `outputs` as tuples of `Tensor`s.

    Raises `MscError` if the file is missing or not one of ours, or if another file is not the one it was written with.
    """
    path = Path(folder) / MANIFEST_FILE
    if not path.is_file():
        raise MscError(f"{folder} holds no {MANIFEST_FILE}; expected a folder written by Runner.export")
    try:
        manifest = json.loads(path.read_text("utf-8"))
        if manifest["schema"] != MANIFEST_SCHEMA:
            raise MscError(f"{path} has schema {manifest['schema']}; this version reads {MANIFEST_SCHEMA}")
        for side in ("inputs", "outputs"):
            manifest[side] = tuple(
                Tensor(row["name"], tuple(row["shape"]), row["dtype"], row["layout"]) for row in manifest[side]
            )
        manifest["target"] = Target.parse(manifest["target"])
        for name, digest in manifest["files"].items():
            if not (path.parent / name).is_file():
                raise MscError(f"{folder} holds no {name}, which {MANIFEST_FILE} names")
            if _digest(path.parent / name) != digest:
                raise MscError(f"{path.parent / name} is damaged, or does not belong to {MANIFEST_FILE}")
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise MscError(f"{path} is not a readable manifest: {type(error).__name__}: {error}") from error
    return dict(manifest)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def compare(runner: Runner, reference: Runner, feeds: Mapping[str, Array]) -> float:
    """The largest error of `runner` relative to the largest reference value, over all outputs; inf if not finite.

    Raises `MscError` if the two have different outputs.
    """
    found, expected = runner.run(feeds), reference.run(feeds)
    if found.keys() != expected.keys():
        raise MscError(f"expected the outputs {list(expected)}, found {list(found)}")
    worst = 0.0
    for name, wanted in expected.items():
        if found[name].shape != wanted.shape:
            raise MscError(f"output {name!r}: expected {list(wanted.shape)}, found {list(found[name].shape)}")
        difference = np.abs(found[name].astype(np.float64) - wanted.astype(np.float64))
        if not np.isfinite(difference).all():
            return float("inf")
        scale = float(np.max(np.abs(wanted), initial=0.0)) or 1.0
        worst = max(worst, float(np.max(difference, initial=0.0)) / scale)
    return worst


def cores() -> int:
    """How many processors this process may use, for work that is not timed: `OMP_NUM_THREADS`, or all that it has."""
    told = os.environ.get("OMP_NUM_THREADS", "")
    if told.isdecimal() and int(told):
        return int(told)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def score(runner: Runner, split: Split, batch: int = 250) -> float:
    """Top-1 accuracy in [0, 1] of a classifier, from its first output; the runner's batch must be symbolic.

    Raises `MscError` if an output is not finite.
    """
    name, output = runner.inputs[0].name, runner.outputs[0].name
    logits = np.concatenate([runner.run({name: part.x})[output] for part in split.batches(batch)])
    if not np.isfinite(logits).all():
        raise MscError(f"the output {output!r} on target '{runner.target}' is not finite")
    return accuracy(logits, split.y)
