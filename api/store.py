"""The service's own tables: keys, searches, events, workers, measurements. SQLite or PostgreSQL, through SQLAlchemy Core.

The tables of the workflow engine (DBOS) are in the same database, so that a search is stored and queued in one transaction.
"""

from __future__ import annotations

import sqlite3
import time
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from autoconfig.specs.errors import InputError
from dbos import DBOS

METADATA = sa.MetaData()
KEYS = sa.Table(
    "autoconfig_api_keys",
    METADATA,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("name", sa.String(200), nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("scopes", sa.String(200), nullable=False),
    sa.Column("created", sa.DateTime(timezone=True), nullable=False),
    sa.Column("revoked", sa.DateTime(timezone=True)),
)
SEARCHES = sa.Table(
    "autoconfig_searches",
    METADATA,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("id", sa.String(36), nullable=False, unique=True),
    sa.Column("owner", sa.String(32), nullable=False),
    sa.Column("idempotency_key", sa.String(200)),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("created", sa.DateTime(timezone=True), nullable=False),
    sa.Column("started", sa.DateTime(timezone=True)),
    sa.Column("ended", sa.DateTime(timezone=True)),
    sa.Column("result", sa.LargeBinary),
    sa.Column("problem", sa.LargeBinary),
    sa.Column("spent_seconds", sa.Float),
    sa.UniqueConstraint("owner", "idempotency_key"),
)
OPEN = ("queued", "running")
ENDED = ("done", "failed", "cancelled")
STATES = (*OPEN, *ENDED)
"""Of a search."""
EVENTS = sa.Table(
    "autoconfig_search_events",
    METADATA,
    sa.Column("search_id", sa.String(36), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("time", sa.DateTime(timezone=True), nullable=False),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("data", sa.Text, nullable=False),
)
WORKERS = sa.Table(
    "autoconfig_workers",
    METADATA,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("beat", sa.Integer, nullable=False),
    sa.Column("version", sa.String(64)),
    sa.Column("profiles", sa.Integer),
    sa.Column("beaten", sa.DateTime(timezone=True)),
)
"""`profiles`: 1 where the worker takes up searches that measure; `beaten`: its last beat by the database's clock."""
MEASUREMENTS = sa.Table(
    "autoconfig_measurements",
    METADATA,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("owner", sa.String(32), nullable=False),
    sa.Column("run", sa.String(200), nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("created", sa.DateTime(timezone=True), nullable=False),
    sa.UniqueConstraint("owner", "run"),
)
CALIBRATIONS = sa.Table(
    "autoconfig_calibrations",
    METADATA,
    sa.Column("owner", sa.String(32), primary_key=True),
    sa.Column("revision", sa.Integer, nullable=False),
    sa.Column("fitted", sa.Integer, nullable=False),
    sa.Column("body", sa.Text),
)
BUSY_SECONDS = 30


def engine_of(url: str) -> sa.Engine:
    """An engine with the tables in place. Raises InputError for a bad URL or a database that does not answer."""
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError:
        raise InputError(f"database {url[:80]!r} is no URL; give sqlite:///FILE or postgresql://USER@HOST/NAME") from None
    if parsed.get_backend_name() not in ("sqlite", "postgresql"):
        raise InputError(f"database {parsed.render_as_string()}: give sqlite:///FILE or postgresql://USER@HOST/NAME")
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    sqlite = parsed.get_backend_name() == "sqlite"
    engine = sa.create_engine(parsed, pool_pre_ping=True, connect_args={"timeout": BUSY_SECONDS} if sqlite else {})
    if sqlite:
        sa.event.listen(engine, "connect", _write_ahead)
    try:
        METADATA.create_all(engine)
        _add_new_columns(engine)
        DBOS.migrate(dbos_url(url))
    except sa.exc.SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error).splitlines()[0][:200]
        raise InputError(f"database {parsed.render_as_string()} cannot be used: {reason}") from None
    return engine


def _give_subseconds(connection: Any, _: object) -> None:
    """DBOS takes the time from SQLite as `unixepoch('subsec')` on Python 3.12 and later, which SQLite has from 3.42 on
    (https://sqlite.org/changes.html) and older ones answer with NULL: there the function is ours."""
    if isinstance(connection, sqlite3.Connection):
        connection.create_function("unixepoch", 1, lambda _: time.time())


if sqlite3.sqlite_version_info < (3, 42):
    sa.event.listen(sa.Engine, "connect", _give_subseconds)  # DBOS makes engines of its own


def _add_new_columns(engine: sa.Engine) -> None:
    """A database of an older version gets the columns that came later; they may be empty, so the older version goes on with it.

    Processes that start together may add the same column: whoever comes second finds it there.
    """
    for table in METADATA.sorted_tables:
        there = {column["name"] for column in sa.inspect(engine).get_columns(table.name)}
        for column in table.columns:
            if column.name in there:
                continue
            kind = column.type.compile(engine.dialect)
            try:
                with engine.begin() as connection:
                    connection.execute(sa.text(f"ALTER TABLE {table.name} ADD COLUMN {column.name} {kind}"))
            except sa.exc.DBAPIError:
                if column.name not in {one["name"] for one in sa.inspect(engine).get_columns(table.name)}:
                    raise


def dbos_url(url: str) -> str:
    """The database as DBOS names it."""
    parsed = sa.make_url(url)
    plain = parsed.set(drivername="postgresql") if parsed.get_backend_name() == "postgresql" else parsed
    return plain.render_as_string(hide_password=False)


def _write_ahead(connection: object, _: object) -> None:
    """Readers do not wait for a writer (https://sqlite.org/wal.html)."""
    cursor = connection.cursor()  # type: ignore[attr-defined]
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.close()


def now() -> datetime:
    """This moment, with its zone."""
    return datetime.now(UTC)


def utc(moment: datetime | None) -> Any:
    """A stored moment with its zone: SQLite forgets it, and it is UTC."""
    return moment if moment is None or moment.tzinfo is not None else moment.replace(tzinfo=UTC)
