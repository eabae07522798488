"""`result.json` as types: all that a report reads, checked at the door, so that drawing code can trust it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from msc_core.errors import MscError

SCHEMA = 1
RESULT_FILE = "result.json"
MAX_RESULT_BYTES = 256 * 2**20

Interval = tuple[float, float]
Kept = dict[str, int]  # group name -> channels kept


class _Part(BaseModel):
    """Later versions may add keys; nobody may leave out what is here, or put in a number that is not finite."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False, protected_namespaces=())


class Group(_Part):
    """A channel group that the search decided on."""

    name: str
    size: Annotated[int, Field(ge=1)]
    divisor: int = 1
    nodes: tuple[str, ...] = ()


class TaskInfo(_Part):
    """What was asked for; `samples` counts them by split, `budget` holds fractions of the original."""

    model: str
    data: str
    target: str
    budget: dict[str, float] = {}
    samples: dict[str, int] = {}
    groups: tuple[Group, ...] = ()


class Row(_Part):
    """One network: accuracies in [0, 1], costs, latency relative to the unpruned network on the same engine."""

    accuracy: float
    test_accuracy: float | None = None
    macs: int
    params: int
    bytes: int
    latency_ratio: float | None = None
    latency_interval: Interval | None = None
    tvm_ratio: float | None = None
    tvm_interval: Interval | None = None


class Finetune(_Part):
    """How the winner was trained; `before` is its validation accuracy at the start."""

    steps: int = 0
    before: float | None = None


class BestRow(Row):
    """The result: who proposed it and what is left of each group."""

    agent: str
    plan: str = ""
    kept: Kept = {}
    finetune: Finetune | None = None


class AgentRow(Row):
    """An agent's best plan, before fine-tuning."""

    kept: Kept = {}
    trials: int = 0
    seconds: float | None = None
    plan: str = ""


class Trial(_Part):
    """One plan that an agent tried; `error` says why there is no measurement."""

    agent: str
    index: int
    accuracy: float = 0.0
    macs: int = 0
    params: int = 0
    bytes: int = 0
    latency_ratio: float | None = None
    latency_interval: Interval | None = None
    reward: float | None = None
    kept: Kept | None = None
    error: str | None = None


class Export(_Part):
    """An artefact in the run folder; `max_error` is its largest output error relative to the reference, maybe inf."""

    file: str
    bytes: int | None = None
    max_error: float | None = Field(default=None, allow_inf_nan=True)


class Environment(_Part):
    """Where it ran, with what."""

    device: str = ""
    versions: dict[str, str] = {}
    seed: int | None = None
    git: str | None = None


class Result(_Part):
    """A whole run."""

    name: str
    task: TaskInfo
    baseline: Row
    best: BestRow
    agents: dict[str, AgentRow] = {}
    trials: tuple[Trial, ...] = ()
    exports: dict[str, Export | None] = {}
    environment: Environment = Environment()
    seconds: dict[str, float] = {}

    @property
    def succeeded(self) -> list[Trial]:
        """The trials that have a measurement."""
        return [t for t in self.trials if not t.error]

    @property
    def failed(self) -> list[Trial]:
        """The trials that have none."""
        return [t for t in self.trials if t.error]


def parse_result(data: Mapping[str, Any] | Result) -> Result:
    """The checked form of `result.json`'s content. Raises `MscError` naming the first key that is wrong."""
    if isinstance(data, Result):
        return data
    if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, Mapping) else type(data).__name__
        raise MscError(f"expected a result with schema {SCHEMA}; found {str(found)[:40]}")
    try:
        return Result.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise MscError(f"{place}: {first['msg'][0].lower()}{first['msg'][1:]}") from None


def load_result(path: str | Path) -> Result:
    """Read a run folder or its `result.json`. Raises `MscError` naming the file."""
    path = Path(path)
    file = path / RESULT_FILE if path.is_dir() else path
    if not file.is_file():
        raise MscError(f"{path}: no {RESULT_FILE} there; expected the folder of a finished run, or its {RESULT_FILE}")
    try:
        if file.stat().st_size > MAX_RESULT_BYTES:
            raise MscError(f"larger than {MAX_RESULT_BYTES} bytes")
        return parse_result(json.loads(file.read_text("utf-8")))
    except (OSError, ValueError, RecursionError) as error:  # JSON and UTF-8 errors are ValueErrors
        raise MscError(f"{file}: not readable as JSON: {' '.join(str(error).split())[:200]}") from None
    except MscError as error:
        raise MscError(f"{file}: {error}") from None
