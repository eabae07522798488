"""The store: every measurement and every trial, in one database that many processes share.

SQLite by default, in WAL mode, each write one autocommitted statement: a killed process leaves whole rows or none, and
writers wait for each other instead of failing. PostgreSQL by URL works the same. Contents are JSON text, checked when
read. A store of an older version is brought up to date when it is opened.
"""

from __future__ import annotations

import json
import math
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from sqlalchemy import Engine, Table, create_engine, event, func, inspect, select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.pool import StaticPool

from msc_core.errors import MscError, Unavailable
from msc_gym.engine.measurement import Measurement
from msc_gym.engine.schema import FAILURES, MEASUREMENTS, METADATA, SCHEMA, TRIALS, VERSION, migrate

BUSY_SECONDS = 60.0  # how long a writer waits for the others
BUSY = ("locked", "busy", "already exists", "pg_type")  # what says that another process is at it: try again
T = TypeVar("T")


@dataclass(frozen=True)
class TrialRow:
    """One trial of a search: what it was paid, the choices that were applied, what was measured."""

    index: int
    reward: float
    applied: Mapping[str, int]
    measurement: Measurement


class Store:
    """Open a store by SQLAlchemy URL or by the path of an SQLite file; `Store.memory()` is private to the process.

    May be pickled and used after a fork: each process opens connections of its own. Raises `MscError` if the database
    cannot be opened or belongs to another version.
    """

    def __init__(self, url: str | Path) -> None:
        self.url = str(url) if "://" in str(url) else f"sqlite:///{url}"
        self._engine: Engine | None = None
        self._pid = 0
        self._retry(self._create)
        found = self._retry(lambda: migrate(self._connected()))
        if found > SCHEMA:
            raise MscError(f"store {self.safe_url} has schema {found}; this version reads up to {SCHEMA}")

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self.url,)

    @staticmethod
    def memory() -> Store:
        """A store that ends with the process."""
        return Store("sqlite://")

    @property
    def safe_url(self) -> str:
        """The URL without its password, for messages."""
        return make_url(self.url).render_as_string(hide_password=True)

    def get(self, key: str) -> Measurement | None:
        """The measurement stored under that cache key."""
        query = select(MEASUREMENTS.c.measurement).where(MEASUREMENTS.c.key == key)
        rows = self._retry(lambda: self._read(query))
        return Measurement.from_json(rows[0][0]) if rows else None

    def failure(self, key: str) -> Measurement | None:
        """The measurement under that key that failed last, with its reason."""
        query = select(FAILURES.c.measurement).where(FAILURES.c.key == key)
        rows = self._retry(lambda: self._read(query))
        return Measurement.from_json(rows[0][0]) if rows else None

    def put(self, key: str, plan: str, measurement: Measurement) -> None:
        """Keep a measurement with its plan or choices (JSON); the first one under a key stays, the last that failed."""
        values = {"key": key, "plan": plan, "measurement": measurement.to_json()}
        self._retry(lambda: self._delete(FAILURES, key))
        self._retry(lambda: self._insert(MEASUREMENTS if measurement.ok else FAILURES, values))

    def rows(self) -> Iterator[dict[str, Any]]:
        """Every trial as plain values: run, agent, index, reward, the measurement's fields, and choices as JSON."""
        t = TRIALS.c
        query = select(t.run, t.agent, t.index, t.reward, t.applied, t.measurement).order_by(t.run, t.agent, t.index)
        for run, agent, index, reward, applied, measurement in self._retry(lambda: self._read(query)):
            found = Measurement.from_json(measurement).to_dict()
            low, high = found.pop("latency_interval") or (None, None)
            versions = json.dumps(found.pop("versions"), sort_keys=True)
            named = {"run": run, "agent": agent, "index": index, "reward": reward}
            interval = {"latency_low": low, "latency_high": high}
            yield {**named, **found, **interval, "versions": versions, "choices": applied}

    def trials(self, run: str, agent: str) -> list[TrialRow]:
        """The trials of a run so far, in order: indices 0, 1, ... without a gap."""
        t = TRIALS.c
        query = select(t.index, t.reward, t.applied, t.measurement)
        query = query.where(t.run == run, t.agent == agent).order_by(t.index)
        rows: list[TrialRow] = []
        for index, reward, applied, measurement in self._retry(lambda: self._read(query)):
            if index != len(rows):
                break
            rows.append(TrialRow(index, reward, json.loads(applied), Measurement.from_json(measurement)))
        return rows

    def put_trial(self, run: str, agent: str, row: TrialRow) -> None:
        """Keep a trial; the first one under (run, agent, index) stays."""
        if not math.isfinite(row.reward):
            raise MscError(f"trial {row.index} of {agent} has the reward {row.reward}; rewards are finite")
        values = {
            "run": run,
            "agent": agent,
            "index": row.index,
            "reward": row.reward,
            "applied": json.dumps(dict(row.applied), sort_keys=True),
            "measurement": row.measurement.to_json(),
        }
        self._retry(lambda: self._insert(TRIALS, values))

    def counts(self) -> dict[str, int]:
        """Rows per table."""
        tables = (MEASUREMENTS, FAILURES, TRIALS)
        rows = self._retry(lambda: [self._read(select(func.count()).select_from(table)) for table in tables])
        return {table.name: found[0][0] for table, found in zip(tables, rows, strict=True)}

    def close(self) -> None:
        """Close the connections of this process; the next use opens new ones. An in-memory store is emptied."""
        if self._engine is not None and self._pid == os.getpid():
            self._engine.dispose()
        self._engine = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _connected(self) -> Engine:
        """The engine of this process; one that came through a fork is dropped without closing its connections."""
        if self._engine is None or self._pid != os.getpid():
            if self._engine is not None:
                self._engine.dispose(close=False)
            self._engine, self._pid = _engine(self.url), os.getpid()
        return self._engine

    def _create(self) -> None:
        engine = self._connected()
        present = inspect(engine).get_table_names()
        if present and VERSION.name not in present and {MEASUREMENTS.name, TRIALS.name} & set(present):
            raise MscError(f"store {self.safe_url} belongs to another program: it has the tables {', '.join(present)}")
        METADATA.create_all(engine)
        self._insert(VERSION, {"id": 1, "version": SCHEMA})

    def _insert(self, table: Table, values: dict[str, Any]) -> None:
        try:
            with self._connected().connect() as connection:
                connection.execute(table.insert().values(values))
        except IntegrityError:
            pass  # another writer was first: same key, same content

    def _delete(self, table: Table, key: str) -> None:
        with self._connected().connect() as connection:
            connection.execute(table.delete().where(table.c.key == key))

    def _read(self, query: Any) -> list[tuple[Any, ...]]:
        with self._connected().connect() as connection:
            return [tuple(row) for row in connection.execute(query)]

    def _retry(self, action: Callable[[], T]) -> T:
        """Run `action` again while another process holds the database; say what is wrong with it otherwise."""
        deadline, pause = time.monotonic() + BUSY_SECONDS, 0.005
        while True:
            try:
                return action()
            except DBAPIError as error:
                text = str(error.orig)
                if not any(word in text for word in BUSY) or time.monotonic() > deadline:
                    raise MscError(f"store {self.safe_url}: {' '.join(text.split())}") from error
            except SQLAlchemyError as error:
                raise MscError(f"store {self.safe_url}: {' '.join(str(error).split())}") from error
            time.sleep(pause * random.SystemRandom().uniform(0.5, 1.5))
            pause = min(2 * pause, 0.25)


def _engine(url: str) -> Engine:
    """An engine whose every statement is a transaction of its own."""
    try:
        parsed = make_url(url)
        sqlite = parsed.get_backend_name() == "sqlite"
        memory = sqlite and parsed.database in (None, "", ":memory:")
        options: dict[str, Any] = {"isolation_level": "AUTOCOMMIT"}
        if sqlite:
            options["connect_args"] = {"timeout": BUSY_SECONDS, "check_same_thread": False}
        if memory:
            options["poolclass"] = StaticPool
        elif sqlite:
            Path(parsed.database or "").parent.mkdir(parents=True, exist_ok=True)
        engine = create_engine(parsed, **options)
    except (ArgumentError, SQLAlchemyError) as error:
        raise MscError(f"store {url!r} is not a database URL: {error}") from error
    except ModuleNotFoundError as error:
        raise Unavailable(f"store {url.split('://')[0]}://...: install its driver: pip install {error.name}") from error
    except OSError as error:
        raise MscError(f"store {url!r}: {error}") from error
    if sqlite and not memory:
        event.listen(engine, "connect", _use_wal)
    return engine


def _use_wal(connection: Any, record: object) -> None:
    """Readers and one writer at a time do not block each other; a commit survives the death of the process."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()
