"""`msc-gym store`: what is in a store, and how to get it out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from msc_core.errors import MscError

Url = Annotated[str, typer.Argument(metavar="STORE", help="A database URL, an SQLite file, or a run folder.")]


def info(store: Url) -> None:
    """Count what a store holds."""
    from msc_gym.engine import Store

    with Store(_existing(store)) as opened:
        for name, count in opened.counts().items():
            print(f"{name:<12} {count:,}")


def export(
    store: Url,
    out: Annotated[Path, typer.Option(help="A .csv or .parquet file.")],
) -> None:
    """Write a row for each trial, with everything that was measured."""
    from msc_gym.engine import Store
    from msc_gym.engine.export import export as run_export

    with Store(_existing(store)) as opened:
        print(f"{out}: {run_export(opened, out):,} trials")


def _existing(store: str) -> str:
    """The store's URL. Raises `MscError` for a file that is not there, which opening would make."""
    from msc_gym.runs import STORE_FILE

    if "://" in store and not store.startswith("sqlite:///"):
        return store
    path = Path(store.removeprefix("sqlite:///"))
    path = path / STORE_FILE if path.is_dir() else path
    if not path.is_file():
        raise MscError(f"{path}: no such store")
    return str(path)
