"""What a run leaves besides its plans: a record of how its numbers came about, from which they can be made again."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from msc_core.errors import MscError
from msc_core.ir import write_atomic
from msc_core.reading import STRICT, read
from msc_gym.config import JobConfig
from msc_gym.engine import Evaluator, Measurement
from msc_gym.engine.worker import device, versions
from msc_gym.envs import parse_reward
from msc_gym.search import Progress, SearchResult, Trial, parse_workers, search
from msc_gym.task import CompressionTask

SCHEMA = 1
RUN_FILE, STORE_FILE = "run.json", "trials.db"
MAX_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Kept:
    """A trial worth coming back to: the best of its search, or one of its front."""

    index: int
    choices: Mapping[str, int]
    plan: str
    reward: float
    accuracy: float
    samples: int
    macs: int
    params: int
    bytes: int
    latency_ratio: float | None
    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT


@dataclass(frozen=True)
class Search:
    """One search of a run; `key` is that of its trials in the store, the first of `kept` its best."""

    agent: str
    trials: int
    seed: int
    batch: int
    key: str
    kept: tuple[Kept, ...]
    hypervolume: float
    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT


@dataclass(frozen=True)
class Run:
    """A run folder's `run.json`: `job` is the job file as it was read, `task` the fingerprint of what it meant."""

    schema: int
    job: Mapping[str, Any]
    task: str
    searches: tuple[Search, ...]
    device: str
    versions: Mapping[str, str]
    python: str
    git: str
    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT


def job_evaluator(job: JobConfig, task: CompressionTask, store: str = "") -> Evaluator:
    """An evaluator with the job's workers, on the store of its run folder or another one."""
    Path(job.out).mkdir(parents=True, exist_ok=True)
    return Evaluator(task, store or f"sqlite:///{Path(job.out) / STORE_FILE}", pool=parse_workers(job.search.workers))


def job_search(job: JobConfig, agent: str, evaluator: Evaluator, progress: Progress | None = None) -> SearchResult:
    """The search of a job by one agent."""
    s = job.search
    return search(
        evaluator.task, agent, s.trials, seed=s.seed, progress=progress, evaluator=evaluator, batch=s.batch,
        reward=parse_reward(s.reward, s.latency_limit), objectives=s.objectives, options=s.options.get(agent),
    )  # fmt: skip


def record(folder: str | Path, job: JobConfig, evaluator: Evaluator, found: Sequence[SearchResult]) -> Run:
    """Write `run.json` about these searches; the trials that are kept are measured on the whole validation split."""
    task = evaluator.task
    installed = versions(task.parsed_target.backend)
    searches = tuple(_search(result, evaluator) for result in found)
    run = Run(
        SCHEMA, job.model_dump(mode="json"), task.fingerprint, searches, device(), installed,
        platform.python_version(), git_state(),
    )  # fmt: skip
    write_atomic(Path(folder) / RUN_FILE, (json.dumps(asdict(run), indent=1) + "\n").encode())
    return run


def _search(result: SearchResult, evaluator: Evaluator) -> Search:
    s = result.settings
    chosen = [result.trials[i] for i in dict.fromkeys([result.best.index, *(t.index for t in result.front)])]
    measured = evaluator.evaluate([t.choices for t in chosen], full=True)
    kept = tuple(_kept(t, m) for t, m in zip(chosen, measured, strict=True))
    return Search(s.agent, s.trials, s.seed, s.batch, s.key(result.task), kept, result.hypervolume)


def _kept(trial: Trial, m: Measurement) -> Kept:
    costs = m.macs, m.params, m.bytes, m.latency_ratio
    return Kept(trial.index, dict(trial.choices), m.plan, trial.reward, m.accuracy, m.samples, *costs)


def load_run(folder: str | Path) -> Run:
    """Read a run folder's `run.json`. Raises `MscError` if it is not one."""
    path = Path(folder) / RUN_FILE
    try:
        if path.stat().st_size > MAX_BYTES:
            raise MscError(f"{path}: larger than {MAX_BYTES} bytes")
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise MscError(f"{path}: {error}") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise MscError(f"{path}: expected a run with schema {SCHEMA}")
    try:
        return read(Run, data, MscError)
    except MscError as error:
        raise MscError(f"{path}: {error}") from error


@dataclass(frozen=True)
class Check:
    """A kept trial measured again; `differences` are empty where it came out the same."""

    agent: str
    index: int
    differences: tuple[str, ...]

    @property
    def text(self) -> str:
        """One line."""
        return f"{self.agent} trial {self.index + 1}: {'; '.join(self.differences) or 'the same'}"


def validate(
    run: Run, task: CompressionTask, evaluator: Evaluator, progress: Callable[[Check], None] = lambda check: None
) -> list[Check]:
    """Measure the kept trials anew, through an evaluator whose store does not know them; latency is not compared.

    Raises `MscError` if `task` is not the one that the run was about.
    """
    if task.fingerprint != run.task:
        raise MscError(
            f"the run is about task {run.task}, this one is {task.fingerprint}: its model, data, target or version of"
            " this program is another"
        )
    checks = []
    for done in run.searches:
        for kept in done.kept:
            (found,) = evaluator.evaluate([kept.choices], full=True, latency=False)
            names = ("plan", "accuracy", "samples", "macs", "params", "bytes")
            pairs = {name: (getattr(kept, name), getattr(found, name)) for name in names}
            texts = [f"{name} was {old}, is {new}" for name, (old, new) in pairs.items() if old != new]
            checks.append(Check(done.agent, kept.index, (found.error,) if found.error else tuple(texts)))
            progress(checks[-1])
    return checks


def environment_changes(run: Run, backend: str) -> list[str]:
    """What differs from the machine and the packages of the run, in words."""
    now = {"device": device(), **versions(backend)}
    then = {"device": run.device, **run.versions}
    return [f"{name}: {then.get(name, '-')} then, {now.get(name, '-')} now" for name in sorted(now.keys() | then.keys())
            if now.get(name) != then.get(name)]  # fmt: skip


def git_state() -> str:
    """The commit that this code is at, with `-dirty` where files differ; empty outside of a checkout."""
    try:
        command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
