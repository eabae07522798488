"""Where candidates are measured: in this process, in others, or on other hosts, with the same results everywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from msc_core.backends import Target
from msc_core.errors import MscError
from msc_gym.engine.measurement import Measurement
from msc_gym.engine.stages import STAGES, WAIT
from msc_gym.engine.worker import Candidate, Measure, Scoring, Worker, candidate_hash, device, versions

Job = tuple[Candidate, Scoring]


@dataclass(frozen=True)
class Limits:
    """What one candidate may take in a worker that can be killed: seconds per stage, and bytes of memory.

    `start` is for a new worker to get ready. A stage's clock starts when the worker enters it: waiting for a worker, or
    for the others to finish measuring, does not count. `memory` is of the worker with its child processes; by default
    the workers of a host share 80% of what it has.
    """

    start: float = 120.0
    compress: float = 300.0
    accuracy: float = 300.0
    build: float = 600.0
    measure: float = 180.0
    memory: int | None = None

    def __post_init__(self) -> None:
        for name in ("start", *STAGES, "memory"):
            value = getattr(self, name)
            if not (value is None and name == "memory") and not value > 0:
                raise MscError(f"limit {name} must be above 0; found {value!r}")

    def seconds(self, stage: str) -> float:
        """The limit of a stage."""
        return float("inf") if stage == WAIT else float(getattr(self, stage))

    @property
    def total(self) -> float:
        """The longest that one candidate can take in a worker of its own."""
        return self.start + sum(self.seconds(stage) for stage in STAGES)


class Pool(Protocol):
    """Measures many candidates. `size` is how many at once. One caller at a time; a closed pool may be used again."""

    size: int

    def run(self, measure: Measure, jobs: Sequence[Job], target: Target) -> Iterator[tuple[int, Measurement]]:
        """The measurement of each job with its index, as they become known; a fault is a measurement, too."""
        ...

    def place(self, target: Target) -> tuple[str, dict[str, str]]:
        """The processor and the package versions that measurements for a target are made with."""
        ...

    def close(self) -> None:
        """End all processes and remove all files. May be repeated."""
        ...


class SerialPool:
    """Measures in this process, one candidate after the other. Only the measuring of latency has a deadline."""

    size = 1

    def run(self, measure: Measure, jobs: Sequence[Job], target: Target) -> Iterator[tuple[int, Measurement]]:
        """See `Pool.run`."""
        for index, job in enumerate(jobs):
            yield index, attempt(measure, job)

    def place(self, target: Target) -> tuple[str, dict[str, str]]:
        """See `Pool.place`."""
        return here(target)

    def close(self) -> None:
        """Nothing to end."""


def here(target: Target) -> tuple[str, dict[str, str]]:
    """This host's processor, and the versions of packages in this process."""
    return device(), versions(target.backend)


def attempt(measure: Measure, job: Job) -> Measurement:
    """What `measure` finds; an exception is a measurement that says so."""
    try:
        return measure(*job)
    except Exception as error:  # faults are data
        return failed(measure, job, error)


def failed(measure: Measure, job: Job, error: Exception) -> Measurement:
    """The measurement of a candidate that could not be measured."""
    if isinstance(measure, Worker):
        return measure.failed(*job, error)
    reason = str(error) if isinstance(error, MscError) else f"{type(error).__name__}: {error}"
    return Measurement(candidate_hash(job[0]), split=job[1].split, error=reason)
