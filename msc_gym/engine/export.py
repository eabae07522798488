"""The trials of a store as one table, for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from msc_core.errors import MscError, Unavailable
from msc_core.ir import write_atomic
from msc_gym.engine.store import Store

SUFFIXES = (".csv", ".parquet")


def export(store: Store, path: str | Path) -> int:
    """Write a row for each trial, as CSV or Parquet by the file's suffix; how many there are.

    Raises `MscError` for another suffix or an empty store, `Unavailable` for Parquet without pyarrow.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise MscError(f"{path}: expected a name that ends in {' or '.join(SUFFIXES)}")
    rows = list(store.rows())
    if not rows:
        raise MscError(f"store {store.safe_url} has no trials")
    write_atomic(path, _csv(rows) if path.suffix == ".csv" else _parquet(rows))
    return len(rows)


def _csv(rows: list[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _parquet(rows: list[dict[str, Any]]) -> bytes:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise Unavailable("Parquet needs the package pyarrow: pip install pyarrow; .csv needs nothing") from None
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), buffer)
    return buffer.getvalue()
