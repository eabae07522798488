"""Which stage of a measurement this process is in, told to whoever watches it; and one stopwatch at a time per host."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

STAGES = ("compress", "accuracy", "build", "measure")
WAIT = "wait"  # for the stopwatch, which no deadline counts
PATIENCE = 600.0  # seconds, after which a reading may be disturbed: whoever has the stopwatch may be stopped for good
PAUSE = 0.02

_lock = Path(tempfile.gettempdir()) / f"msc-gym-{os.getuid()}.lock"
_report: Callable[[str], None] | None = None


def enter(stage: str) -> None:
    """Say which of `STAGES` begins now; a pool kills a worker that stays in one for too long."""
    if _report is not None:
        _report(stage)


def report_to(report: Callable[[str], None]) -> None:
    """Have `report` called with every stage that this process enters."""
    global _report
    _report = report


@contextmanager
def stopwatch() -> Iterator[None]:
    """The stage "measure", once no other process of this user on this host is in it."""
    enter(WAIT)
    descriptor = os.open(_lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        end = time.monotonic() + PATIENCE
        while not locked(descriptor) and time.monotonic() < end:
            time.sleep(PAUSE)
        enter("measure")
        yield
    finally:
        os.close(descriptor)  # and with it the lock, as the death of the process would


def locked(descriptor: int) -> bool:
    """Take the lock on an open file, unless another process has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
