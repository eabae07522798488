"""The job file: one YAML document that says what to compress, to what budget, how to search and what to export.

A job is data. Nothing that it names is imported or executed, unknown keys are refused, paths are relative to the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from msc_core.errors import MscError, nearest
from msc_core.tools.finetune import Recipe
from msc_gym.decisions import FLOAT, Part

MAX_YAML_BYTES = 64 * 2**10
AgentName = Literal[
    "amc", "amc_paper", "ddpg", "td3", "sac", "ppo", "a2c", "trpo", "maskable_ppo", "policy",
    "tpe", "gp", "cmaes", "nsga2", "evolution", "greedy", "bisection", "grid", "uniform", "random",
]  # fmt: skip
RewardName = Literal[
    "accuracy", "accuracy_cost", "accuracy_params", "accuracy_change", "latency", "latency_target"
]  # fmt: skip
ObjectiveName = Literal["accuracy", "latency", "macs", "params", "bytes"]
ExportName = Literal["torch", "onnx", "tvm"]
BudgetKey = Literal["macs", "params", "bytes", "bops", "latency"]
Fraction = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]


class _Section(BaseModel):
    """What all sections share: typed, complete, frozen."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())


class SearchConfig(_Section):
    """`search:` who proposes plans, how often, and what they are paid for."""

    agents: list[AgentName] = Field(default=["amc", "uniform", "random"], min_length=1)
    trials: Count = 100
    seed: Annotated[int, Field(ge=0)] = 0
    workers: Count | str = 1
    """How many processes measure, or a pool: "serial", "processes:4", "ray:4"."""
    batch: Annotated[int, Field(ge=0)] = 0
    """Plans that are asked for at once; 0 for one per worker."""
    objectives: list[ObjectiveName] = []
    """Two or more for a search for the front, with an agent that can."""
    options: dict[str, dict[str, bool | int | float | str]] = {}
    """Further keywords of agents, by agent."""
    reward: RewardName = "accuracy"
    latency_limit: Fraction | None = None
    """Plans slower than this share of the original's time are charged half a point of accuracy per point above it."""


class FinetuneConfig(_Section):
    """`finetune:` how the winner is trained at the end; one of `epochs` and `steps`, the rest as in `Recipe`."""

    epochs: Annotated[float, Field(gt=0)] | None = None
    steps: Annotated[int, Field(ge=0)] | None = None
    lr: Annotated[float, Field(gt=0)] = Recipe.lr
    batch: Count = Recipe.batch
    weight_decay: Annotated[float, Field(ge=0)] = Recipe.weight_decay
    distill: Annotated[float, Field(ge=0, le=1)] = Recipe.distill
    temperature: Annotated[float, Field(gt=0)] = Recipe.temperature
    augment: bool = Recipe.augment

    @model_validator(mode="after")
    def _one_length(self) -> FinetuneConfig:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("give exactly one of 'epochs' and 'steps'")
        return self

    def recipe(self, samples: int, seed: int = 0) -> Recipe:
        """What `finetune` takes, for a training set of that many samples."""
        steps = self.steps if self.epochs is None else max(1, round(self.epochs * samples / self.batch))
        assert steps is not None  # _one_length
        shared = {name: getattr(self, name) for name in type(self).model_fields if name not in ("epochs", "steps")}
        return Recipe(steps=steps, seed=seed, **shared)


class JobConfig(_Section):
    """A whole job. `model` is a folder that `MSCGraph.save` wrote; `data` is `fashion_mnist` or an `.npz` file."""

    model: str
    data: str = "fashion_mnist"
    target: str = "onnxruntime"
    budget: dict[BudgetKey, Fraction] = Field(default={"macs": 0.5})
    decide: list[Part] = Field(default=["prune"], min_length=1)
    bits: list[Annotated[int, Field(ge=2, le=FLOAT)]] = Field(default=[8, FLOAT], min_length=1)
    divisor: Count = 8
    floor: Fraction = 0.2
    calibration: Count = 1000
    validation: Count = 2000
    search: SearchConfig = SearchConfig()
    finetune: FinetuneConfig | None = None
    export: list[ExportName] = Field(default=["torch", "onnx", "tvm"])
    out: str = ""

    @field_validator("model")
    @classmethod
    def _is_data(cls, model: str) -> str:
        module, colon, function = model.partition(":")
        if colon and function.isidentifier() and all(part.isidentifier() for part in module.split(".")):
            raise ValueError(
                f"{model!r} names Python code, which a job file cannot run;"
                f" give it on the command line (--model {model})"
            )
        return model


def load_job(path: str | Path) -> JobConfig:
    """Read and check a job file; its paths come back resolved against the file's folder.

    `out` defaults to `runs/NAME-OF-THE-FILE` under the working directory. Raises `MscError`, in one line that names the
    file, the key, its place and the nearest right name.
    """
    path = Path(path)
    data, lines = _read(path)
    try:
        job = JobConfig.model_validate(data)
    except ValidationError as error:
        raise MscError(f"{path}{_describe(error, data, lines)}") from None
    changes = {"model": _beside(path, job.model), "out": f"runs/{path.stem}"}
    if job.out:
        changes["out"] = _beside(path, job.out)
    if job.data.endswith(".npz"):
        changes["data"] = _beside(path, job.data)
    return job.model_copy(update=changes)


def read_job(data: Mapping[str, Any]) -> JobConfig:
    """A job as `JobConfig.model_dump` gave it. Raises `MscError` for anything else."""
    try:
        return JobConfig.model_validate(dict(data))
    except ValidationError as error:
        raise MscError(f"job{_describe(error, data, {})}") from None


def _beside(path: Path, name: str) -> str:
    return os.path.normpath(path.parent / name)


Place = tuple[str | int, ...]


def _read(path: Path) -> tuple[dict[str, Any], Mapping[Place, int]]:
    """The document and the line of every key."""
    if not path.is_file():
        raise MscError(f"{path}: no such job file")
    if path.stat().st_size > MAX_YAML_BYTES:
        raise MscError(f"{path}: larger than {MAX_YAML_BYTES} bytes; expected a job file")
    try:
        text = path.read_text("utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        lines = dict(_lines(root, (), path, set())) if root else {}
        data = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError, ValueError) as error:
        raise MscError(f"{path}: not readable as YAML: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(data, dict):
        raise MscError(f"{path}: expected keys and values; found {type(data).__name__}")
    return data, lines


def _lines(node: yaml.Node, place: Place, path: Path, seen: set[int]) -> Iterator[tuple[Place, int]]:
    """The line of every key; refuses aliases, which make small files large, and repeated keys, where the last wins."""
    here = f"{path}, line {node.start_mark.line + 1}"
    if id(node) in seen:
        raise MscError(f"{here}: a job file has no aliases (*name); write the value again")
    if len(place) > 10:
        raise MscError(f"{here}: nested too deeply")
    seen.add(id(node))
    yield place, node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        names: set[str] = set()
        for key, value in node.value:
            name = str(key.value)
            if name in names:
                raise MscError(f"{path}, line {key.start_mark.line + 1}: key {name!r} is given twice")
            names.add(name)
            yield from _lines(value, (*place, name), path, seen)
            yield (*place, name), key.start_mark.line + 1
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _lines(value, (*place, index), path, seen)


def _describe(error: ValidationError, data: Any, lines: Mapping[Place, int]) -> str:
    """The first complaint of pydantic in our words: `, line 3: search.trails: unknown key; did you mean 'trials'?`."""
    first = error.errors(include_url=False)[0]
    place: Place = first["loc"]
    if place and place[-1] == "[key]":  # the key of a mapping such as `budget`
        return f"{_where(place[:-1], lines)}: unknown key{nearest(str(place[-2]), get_args(BudgetKey))}"
    if first["type"] == "extra_forbidden":
        section = _section(place[:-1])
        return f"{_where(place, lines)}: unknown key{nearest(str(place[-1]), section.model_fields)}"
    if first["type"] == "literal_error":
        known = [str(value) for value in _choices(place)]
        return f"{_where(place, lines)}: unknown value {_show(first['input'])}{nearest(str(first['input']), known)}"
    if first["type"] == "missing":
        return f"{_where(place[:-1], lines)}: key {str(place[-1])!r} is missing"
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    found = "" if first["type"] == "value_error" else f"; found {_show(first['input'])}"
    return f"{_where(place, lines)}: {message}{found}"


def _where(place: Place, lines: Mapping[Place, int]) -> str:
    known = next((place[:n] for n in range(len(place), -1, -1) if place[:n] in lines), ())
    line = f", line {lines[known]}" if known else ""
    return f"{line}: {'.'.join(map(str, place))}" if place else line


def _show(value: object) -> str:
    """A value in an error, of a container only the type."""
    return repr(value)[:60] if isinstance(value, (str, int, float, bool, type(None))) else type(value).__name__


def _section(place: Place) -> type[BaseModel]:
    sections: dict[Place, type[BaseModel]] = {("search",): SearchConfig, ("finetune",): FinetuneConfig}
    return sections.get(place, JobConfig)


def _choices(place: Place) -> tuple[str, ...]:
    known: dict[str, Any] = {"agents": AgentName, "reward": RewardName, "objectives": ObjectiveName}
    return get_args(known.get(str(place[1]) if len(place) > 1 else "", ExportName))
