"""A PostgreSQL server for the tests: the distribution's programs on a folder and a port of their own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

USER = "postgres"  # the server refuses to be run by root


@contextmanager
def server() -> Iterator[str]:
    """The URL of a new server, which ends with the block. Skips, naming it, where a component is missing."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not programs:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    if not find_spec("psycopg"):
        pytest.skip("the package psycopg is not installed")
    folder, control = Path(tempfile.mkdtemp(prefix="postgres-")), programs[-1].with_name("pg_ctl")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    if os.getuid() == 0:
        shutil.chown(folder, USER)
    data, options = folder / "data", f"-p {port} -c listen_addresses=127.0.0.1 -k {folder} -c fsync=off"
    try:
        _run(programs[-1], "-D", data, "-A", "trust", "-U", USER)
        _run(control, "-D", data, "-o", options, "-l", folder / "log", "-w", "start")
        yield f"postgresql+psycopg://{USER}@127.0.0.1:{port}/postgres"
    finally:
        subprocess.run(_command(control, "-D", data, "-m", "immediate", "stop"), capture_output=True, check=False)
        shutil.rmtree(folder, ignore_errors=True)


def _run(*command: object) -> None:
    done = subprocess.run(_command(*command), capture_output=True, text=True, timeout=120, check=False, cwd="/")
    assert done.returncode == 0, done.stdout + done.stderr


def _command(*command: object) -> list[str]:
    user = ["runuser", "-u", USER, "--"] if os.getuid() == 0 else []
    return [*user, *map(str, command)]
