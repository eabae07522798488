"""What the tests of pools share."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from msc_gym.engine.scratch import PREFIX


def accuracies(measured) -> list[float]:
    return [m.accuracy for m in measured]


def scratches() -> set[Path]:
    """The folders of pools that are there now."""
    return set(Path(tempfile.gettempdir()).glob(f"{PREFIX}*"))


@pytest.fixture(scope="module", autouse=True)
def temporary(tmp_path_factory):
    """A temporary directory for the module alone, so that what others leave there does not count."""
    tmp_path_factory.getbasetemp()  # pytest's own is elsewhere, and stays
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="own-") as folder:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield
