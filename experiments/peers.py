"""Environments for the tools that we are compared with: each its own, so that none of them decides our versions."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

CACHE = Path.home() / ".cache" / "msc-gym" / "peers"


def python(name: str, *requirements: str) -> Path:
    """The interpreter of the environment `name`, which is made and filled the first time.

    Raises `subprocess.CalledProcessError` if a requirement cannot be installed.
    """
    folder = CACHE / name
    interpreter, installed = folder / "bin" / "python", folder / "installed.txt"
    wanted = "\n".join(requirements)
    if not installed.exists() or installed.read_text() != wanted:
        print(f"installing {', '.join(requirements)} into {folder}", file=sys.stderr, flush=True)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([interpreter, "-m", "pip", "install", "-q", *requirements], check=True)
        installed.write_text(wanted)
    return interpreter
