"""A folder that ends with its owner, even one that is killed: then the next owner on the host removes it."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path

from msc_gym.engine.stages import locked

PREFIX = "msc-pool-"
OWNER = "owner"  # a file that the owner keeps locked while it lives


class Scratch:
    """A new private folder, `path`; `close`, the end of this process, or the next `Scratch` removes it."""

    def __init__(self) -> None:
        remove_stale()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        descriptor = os.open(self.path / "new", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        locked(descriptor)
        (self.path / "new").rename(self.path / OWNER)  # nobody sees it before it is locked
        self._end = weakref.finalize(self, _remove, self.path, descriptor, os.getpid())

    def close(self) -> None:
        """Remove the folder; may be repeated."""
        self._end()


def remove_stale() -> None:
    """Remove the folders whose owners are dead."""
    for owner in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{OWNER}"):
        try:
            descriptor = os.open(owner, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:  # another user's, or removed meanwhile
            continue
        if locked(descriptor):
            shutil.rmtree(owner.parent, ignore_errors=True)
        os.close(descriptor)


def _remove(path: Path, descriptor: int, owner: int) -> None:
    if os.getpid() == owner:  # not in a fork
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)
