"""What an agent has learned, as data: a small network from an observation to the numbers of an action.

Trained on one network, it can be applied to another that decides the same parts. It is stored as JSON and safetensors
and computed with NumPy, so reading one runs no code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from msc_core.errors import MscError
from msc_core.exchange import read_safetensors
from msc_core.ir import write_atomic
from msc_core.reading import STRICT, read
from msc_gym.decisions import Part
from msc_gym.envs import FEATURES, Episode
from msc_gym.task import CompressionTask

if TYPE_CHECKING:
    import torch

Floats = np.ndarray[Any, np.dtype[np.float32]]
Layer = tuple[Floats, Floats]  # weight (out, in), bias (out,)
SCHEMA = 1
POLICY_FILE, TENSORS_FILE = "policy.json", "policy.safetensors"
MAX_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Head:
    """A policy's `policy.json`; `digest` is the SHA-256 of the rest of it with the other file.

    - `activation`: after every layer but the last.
    - `output`: how the last layer becomes numbers in [0, 1], one for each part: by a sigmoid, from the -1 to 1 of a
      tanh or of clipping, or as the highest of so many `levels` per part, the i-th of n standing for (i + 1) / n.
    - `settings`: how it was trained, for people.
    """

    schema: int
    agent: str
    parts: tuple[Part, ...]
    features: tuple[str, ...]
    activation: Literal["relu", "tanh"]
    output: Literal["sigmoid", "tanh", "clip", "levels"]
    settings: Mapping[str, bool | int | float | str | list[int]] = field(default_factory=dict)
    digest: str = ""
    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT


@dataclass(frozen=True, eq=False)
class Policy:
    """A deterministic map from an observation to the numbers of `Episode.step`.

    Raises `MscError` where layers do not follow each other, or do not fit the features and the parts.
    """

    head: Head
    layers: tuple[Layer, ...]

    def __post_init__(self) -> None:
        sizes = [len(self.head.features), *(len(bias) for _, bias in self.layers)]
        shapes = [(*weight.shape, *bias.shape[1:]) for weight, bias in self.layers]
        parts, last = len(self.head.parts), sizes[-1]
        if not shapes or shapes != list(zip(sizes[1:], sizes[:-1], strict=True)):
            raise MscError(f"a policy of {sizes[0]} features has layers of {shapes}, which do not follow each other")
        if not parts or last % parts or (self.levels == 1) == (self.head.output == "levels"):
            raise MscError(f"a policy for {parts} parts ends in {last} numbers, read as {self.head.output}")
        if not all(np.isfinite(array).all() for layer in self.layers for array in layer):
            raise MscError("a policy has numbers that are not finite")

    @property
    def levels(self) -> int:
        """How many numbers the last layer has for each part."""
        return len(self.layers[-1][1]) // max(1, len(self.head.parts))

    def act(self, observation: Floats, allowed: np.ndarray[Any, np.dtype[np.bool_]] | None = None) -> list[float]:
        """The numbers for an observation (features,); `allowed` are the levels (parts, levels) to choose among."""
        values = observation
        for index, (weight, bias) in enumerate(self.layers):
            values = weight @ values + bias
            if index < len(self.layers) - 1:
                values = np.tanh(values) if self.head.activation == "tanh" else np.maximum(values, 0)
        if self.head.output == "levels":
            scores = values.reshape(len(self.head.parts), -1)
            scores = scores if allowed is None else np.where(allowed, scores, -np.inf)
            return [level_number(int(level), self.levels) for level in scores.argmax(axis=1)]
        if self.head.output == "sigmoid":
            return [float(x) for x in 1 / (1 + np.exp(-np.clip(values, -80, 80)))]
        bounded = np.tanh(values) if self.head.output == "tanh" else np.clip(values, -1, 1)
        return [float(x) for x in (1 + bounded) / 2]

    def decide(self, episode: Episode) -> list[float]:
        """The numbers for the next site of an episode."""
        levels = self.head.output == "levels"
        return self.act(episode.observation(), allowed_levels(episode, self.levels) if levels else None)

    def choices(self, task: CompressionTask, fill: bool = True) -> dict[str, int]:
        """What it chooses for a task. Raises `MscError` if the task decides other parts."""
        self.check(task)
        episode = Episode(task, fill)
        while not episode.done:
            episode.step(self.decide(episode))
        return episode.choices

    def check(self, task: CompressionTask) -> None:
        """Raises `MscError` if the task decides other parts."""
        if self.head.parts != tuple(task.decide):
            names = " and ".join(self.head.parts), " and ".join(task.decide)
            raise MscError(f"the policy of {self.head.agent} decides {names[0]}; the task {names[1]}")

    def save(self, folder: str | Path) -> None:
        """Write `policy.json` and `policy.safetensors`; each is written beside and renamed."""
        from safetensors.numpy import save

        tensors = {f"{i}.{n}": a for i, layer in enumerate(self.layers) for n, a in zip("wb", layer, strict=True)}
        content = save(tensors)
        head = asdict(replace(self.head, digest=_digest(self.head, content)))
        write_atomic(Path(folder) / TENSORS_FILE, content)
        write_atomic(Path(folder) / POLICY_FILE, (json.dumps(head, indent=1) + "\n").encode())

    @staticmethod
    def load(folder: str | Path) -> Policy:
        """Read a saved policy. Raises `MscError` if it is damaged, edited, or of another version or feature list."""
        try:
            head, content = _read(Path(folder) / POLICY_FILE), _bytes(Path(folder) / TENSORS_FILE)
            if _digest(head, content) != head.digest:
                raise MscError(f"{POLICY_FILE} and {TENSORS_FILE} do not belong together, or were edited")
            tensors = read_safetensors(content)
            names = [(f"{i}.w", f"{i}.b") for i in range(len(tensors) // 2)]
            if sorted(tensors) != sorted(name for pair in names for name in pair):
                raise MscError(f"{TENSORS_FILE} has {sorted(tensors)}; expected 0.w, 0.b, 1.w, ...")
            if any(array.dtype != np.float32 for array in tensors.values()):
                raise MscError(f"{TENSORS_FILE} must hold float32")
            return Policy(head, tuple((tensors[w], tensors[b]) for w, b in names))
        except MscError as error:
            raise MscError(f"{folder}: {error}") from error
        except Exception as error:  # safetensors has no public exception for every malformed file
            raise MscError(f"{folder}: not a policy: {error}") from error


def make_policy(
    agent: str,
    task: CompressionTask,
    activation: str,
    output: str,
    layers: Sequence[Layer],
    settings: Mapping[str, Any],
) -> Policy:
    """A policy for tasks that decide what `task` decides."""
    named = {"agent": agent, "parts": list(task.decide), "features": list(FEATURES), "settings": dict(settings)}
    head = {"schema": SCHEMA, **named, "activation": activation, "output": output}
    return Policy(read(Head, head, MscError), tuple(layers))


def linear_layers(*modules: torch.nn.Module) -> list[Layer]:
    """Copies of the linear layers of modules that are applied in order."""
    from torch import nn

    found = [layer for module in modules for layer in module.modules() if isinstance(layer, nn.Linear)]
    return [(layer.weight.detach().numpy().copy(), layer.bias.detach().numpy().copy()) for layer in found]


def level_number(level: int, levels: int) -> float:
    """The number that a level stands for."""
    return (level + 1) / levels


def allowed_levels(episode: Episode, levels: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """The levels nearest to the options that the next site may take: bool (parts, levels), one or more in each row.

    Where a part has nothing to decide, only the last.
    """
    parts = tuple(episode.task.decide)
    allowed = np.zeros((len(parts), levels), np.bool_)
    most = {decision.name: decision.options[-1] for decision in episode.site.decisions}
    allowed[:, -1] = [part not in {d.part for d in episode.site.decisions} for part in parts]
    for decision in episode.site.decisions:
        row = parts.index(decision.part)
        for option in episode.feasible(decision):
            number = episode.actions(most | {decision.name: option})[row]
            allowed[row, max(0, round(number * levels) - 1)] = True
    return allowed


def _digest(head: Head, content: bytes) -> str:
    rest = json.dumps(asdict(replace(head, digest="")), sort_keys=True).encode()
    return hashlib.sha256(rest + content).hexdigest()


def _read(path: Path) -> Head:
    try:
        data = json.loads(_bytes(path).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise MscError(f"{path.name}: {error}") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise MscError(f"{path.name}: expected a policy with schema {SCHEMA}")
    head = read(Head, data, MscError)
    if head.features != FEATURES:
        missing, more = [f for f in FEATURES if f not in head.features], [f for f in head.features if f not in FEATURES]
        raise MscError(
            f"{path.name}: the policy was trained on other observations than this version makes"
            f" ({len(head.features)} features; not there: {missing or 'none'}, unknown: {more or 'none'})"
        )
    return head


def _bytes(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise MscError(f"{path.name}: larger than {MAX_BYTES} bytes")
        return path.read_bytes()
    except OSError as error:
        raise MscError(f"{path.name}: {error.strerror}") from error
