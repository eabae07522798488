"""The tables of the store, their version, and how an older one becomes the newest."""

from __future__ import annotations

from sqlalchemy import Column, Connection, Engine, Float, Integer, MetaData, String, Table, Text, select

SCHEMA = 3

METADATA = MetaData()
VERSION = Table("msc_gym_schema", METADATA, Column("id", Integer, primary_key=True), Column("version", Integer))


def _measured(name: str) -> Table:
    return Table(
        name,
        METADATA,
        Column("key", String(64), primary_key=True),
        Column("plan", Text, nullable=False),
        Column("measurement", Text, nullable=False),
    )


MEASUREMENTS, FAILURES = _measured("measurements"), _measured("failures")
TRIALS = Table(
    "trials",
    METADATA,
    Column("run", String(64), primary_key=True),
    Column("agent", String(64), primary_key=True),
    Column("index", Integer, primary_key=True, autoincrement=False),
    Column("reward", Float, nullable=False),
    Column("applied", Text, nullable=False),
    Column("measurement", Text, nullable=False),
)

MIGRATIONS: dict[int, tuple[str, ...]] = {  # from that version to the next; missing tables are made before
    1: ("ALTER TABLE trials DROP COLUMN plan",),
    2: (),
}


def migrate(engine: Engine) -> int:
    """Bring the database to `SCHEMA`, in one transaction that waits for other writers; the version that it has then."""
    sqlite = engine.dialect.name == "sqlite"
    with engine.connect() as connection:
        if (version := _version(connection)) >= SCHEMA:
            return version
        connection.exec_driver_sql("BEGIN IMMEDIATE" if sqlite else "BEGIN")
        try:
            if not sqlite:
                connection.exec_driver_sql(f"LOCK TABLE {VERSION.name} IN ACCESS EXCLUSIVE MODE")
            version = _version(connection)  # another process may have been first
            while version < SCHEMA:
                for statement in MIGRATIONS[version]:
                    connection.exec_driver_sql(statement)
                version += 1
            connection.execute(VERSION.update().values(version=version))
        except BaseException:
            connection.exec_driver_sql("ROLLBACK")
            raise
        connection.exec_driver_sql("COMMIT")
    return version


def _version(connection: Connection) -> int:
    return int(connection.execute(select(VERSION.c.version)).scalar_one())
