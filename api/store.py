"""What the service was started with, its own tables (keys, searches, events, workers, measurements; SQLite or PostgreSQL,
through SQLAlchemy Core) and API keys: made and revoked by `autoconfig keys`, kept as hashes, with scopes and a rate limit
each.

The tables of the workflow engine (DBOS) are in the same database, so that a search is stored and queued in one transaction. A
key is `ac_ID_SECRET`; 32 random bytes make the secret, so that a plain SHA-256 of it is enough (nothing to guess).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import sqlite3
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from autoconfig.specs.errors import InputError, UnknownNameError, without_password
from dbos import DBOS

LOOPBACK = ("127.0.0.1", "::1", "localhost")
MAX_BODY_BYTES = 2 * 2**20
DEFAULT_DATABASE = "sqlite:///autoconfig-service.db"


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """One process of the service."""

    database: str = DEFAULT_DATABASE
    keys_required: bool = False
    access_log: bool = False
    allowed_hosts: tuple[str, ...] = ()
    """Names in `Host` and `Origin` beside its own: of a proxy in front of it."""
    workers: int = 2
    answer_seconds: float = 30.0
    """Longest that a synchronous answer may take."""
    max_body_bytes: int = MAX_BODY_BYTES
    cache_bytes: int = 64 * 2**20
    requests_per_second: float = 50.0
    """Per API key; bursts of twice as many."""
    queued_searches: int = 100
    """That one API key may have in the queue; without keys all together."""
    event_streams: int = 50
    """That one API key may have open of this process; without keys all together."""
    keep_days: int = 90
    """After its end a search is deleted; 0: never."""


METADATA = sa.MetaData()
OPEN = ("queued", "running")
ENDED = ("done", "failed", "cancelled")
STATES = (*OPEN, *ENDED)
TIME, SHORT, LONG = sa.DateTime(timezone=True), sa.String(32), sa.String(200)


def _table(
    name: str,
    /,
    *constraints: sa.UniqueConstraint,
    key: str | tuple[str, ...] = "id",
    empty: tuple[str, ...] = (),
    **columns: Any,
) -> sa.Table:
    """A table with `columns` (name=type), of which those in `empty` may be empty; a key `number` counts up."""
    keys = (key,) if isinstance(key, str) else key
    found = [sa.Column(n, kind, primary_key=n in keys, nullable=n in empty) for n, kind in columns.items()]
    return sa.Table(name, METADATA, *found, *constraints)


KEYS = _table(
    "autoconfig_api_keys",
    empty=("revoked",),
    id=SHORT,
    name=LONG,
    digest=sa.String(64),
    scopes=LONG,
    created=TIME,
    revoked=TIME,
)
SEARCHES = _table(
    "autoconfig_searches", sa.UniqueConstraint("id"), sa.UniqueConstraint("owner", "idempotency_key"), key="number",
    empty=("idempotency_key", "started", "ended", "result", "problem", "spent_seconds", "turn"),
    number=sa.Integer, id=sa.String(36), owner=SHORT, idempotency_key=LONG, body=sa.Text, state=sa.String(16), created=TIME,
    started=TIME, ended=TIME, result=sa.LargeBinary, problem=sa.LargeBinary, spent_seconds=sa.Float, turn=sa.Integer,
)  # fmt: skip
"""`owner`: the id of the API key that made it, empty without keys; `turn`: its place in the queue."""
sa.Index("autoconfig_searches_by_state", SEARCHES.c.state, SEARCHES.c.turn, SEARCHES.c.owner)
EVENTS = _table(
    "autoconfig_search_events",
    key=("search_id", "number"),
    search_id=sa.String(36),
    number=sa.Integer,
    time=TIME,
    kind=SHORT,
    data=sa.Text,
)
WORKERS = _table(
    "autoconfig_workers",
    empty=("version", "profiles", "beaten"),
    id=sa.String(64),
    beat=sa.Integer,
    version=sa.String(64),
    profiles=sa.Integer,
    beaten=TIME,
)
"""`profiles`: 1 where the worker takes up searches that measure; `beaten`: its last beat by the database's clock."""
MEASUREMENTS = _table(
    "autoconfig_measurements",
    sa.UniqueConstraint("owner", "run"),
    key="number",
    number=sa.Integer,
    owner=SHORT,
    run=LONG,
    body=sa.Text,
    created=TIME,
)
CALIBRATIONS = _table(
    "autoconfig_calibrations", key="owner", empty=("body",), owner=SHORT, revision=sa.Integer, fitted=sa.Integer, body=sa.Text
)
BUSY_SECONDS = 30


GIVE_URL = "give sqlite:///FILE or postgresql://USER@HOST:PORT/NAME"
DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "postgresql+psycopg": "postgresql+psycopg"}


def engine_of(url: str) -> sa.Engine:
    """An engine with the tables in place. Raises InputError for a bad URL or a database that does not answer."""
    shown = without_password(url)[:200]
    try:
        parsed = sa.make_url(url)
        if "@" in (parsed.host or ""):  # the driver would name it, and with it the end of a password
            raise ValueError("host")
    except (sa.exc.ArgumentError, ValueError):  # of these texts some hold the password
        hint = "is the port a number, and are / and @ of a password written %2F and %40?"
        raise InputError(f"database {shown!r} is no URL; {GIVE_URL}; {hint}") from None
    if parsed.drivername not in DRIVERS:
        raise InputError(f"database {shown}: {GIVE_URL}")
    parsed = parsed.set(drivername=DRIVERS[parsed.drivername])
    sqlite = parsed.drivername == "sqlite"
    if sqlite:
        _close_to_others(parsed.database)
    try:
        engine = sa.create_engine(parsed, pool_pre_ping=True, connect_args={"timeout": BUSY_SECONDS} if sqlite else {})
        if sqlite:
            # readers do not wait for a writer (https://sqlite.org/wal.html)
            sa.event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA journal_mode=WAL").close())
        METADATA.create_all(engine)
        _add_new_columns(engine)
        DBOS.migrate(dbos_url(url))
    except (sa.exc.SQLAlchemyError, ValueError) as error:  # ValueError: of an option of the URL
        reason = str(getattr(error, "orig", None) or error).splitlines()[0][:200]
        raise InputError(f"database {shown} cannot be used: {without_password(reason)}") from None
    return engine


def _close_to_others(file: str | None) -> None:
    """SQLite makes its files as the umask has it, and questions and digests of keys are in them: a new one is its owner's
    alone, and one that everybody may read (as earlier releases made it) becomes so. What is made beside it has its mode."""
    if not file or file == ":memory:" or file.startswith("file:"):
        return
    with suppress(OSError):  # SQLite says what is wrong
        os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))
    for path in (file, f"{file}-wal", f"{file}-shm"):
        with suppress(OSError):  # it is not there, or another user's
            mode = os.stat(path).st_mode
            if mode & stat.S_IROTH:
                os.chmod(path, stat.S_IMODE(mode) & 0o700)


AGAIN = "the database does not answer; try again"
FULL = "the disk of the database is full: nothing is stored until its operator makes room"
READ_ONLY = "the database cannot be written to: its disk or file is read-only"


def trouble(error: sa.exc.SQLAlchemyError) -> str:
    """What a caller is told where the database fails. Names of errors: https://sqlite.org/rescode.html,
    https://www.postgresql.org/docs/current/errcodes-appendix.html."""
    cause = getattr(error, "orig", None)
    name = str(getattr(cause, "sqlite_errorname", None) or getattr(cause, "sqlstate", None))
    if name in ("SQLITE_FULL", "SQLITE_IOERR_SHMSIZE", "53100"):
        return FULL
    return READ_ONLY if name.startswith("SQLITE_READONLY") else AGAIN


def _give_subseconds(connection: Any, _: object) -> None:
    """DBOS takes the time from SQLite as `unixepoch('subsec')` on Python 3.12 and later, which SQLite has from 3.42 on
    (https://sqlite.org/changes.html) and older ones answer with NULL: there the function is ours."""
    if isinstance(connection, sqlite3.Connection):
        connection.create_function("unixepoch", 1, lambda _: time.time())


if sqlite3.sqlite_version_info < (3, 42):
    sa.event.listen(sa.Engine, "connect", _give_subseconds)  # DBOS makes engines of its own


def _add_new_columns(engine: sa.Engine) -> None:
    """A database of an older version gets the columns and indexes that came later; columns may be empty, so the older version
    goes on with it.

    Processes that start together may add the same one: whoever comes second finds it there.
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
        for index in table.indexes:
            try:
                index.create(engine, checkfirst=True)
            except sa.exc.DBAPIError:
                if index.name not in {one["name"] for one in sa.inspect(engine).get_indexes(table.name)}:
                    raise


def dbos_url(url: str) -> str:
    """The database as DBOS names it."""
    parsed = sa.make_url(url)
    plain = parsed.set(drivername="postgresql") if parsed.get_backend_name() == "postgresql" else parsed
    return plain.render_as_string(hide_password=False)


def now() -> datetime:
    """This moment, with its zone."""
    return datetime.now(UTC)


def utc(moment: datetime | None) -> Any:
    """A stored moment with its zone: SQLite forgets it, and it is UTC."""
    return moment if moment is None or moment.tzinfo is not None else moment.replace(tzinfo=UTC)


SCOPES = ("read", "plan", "profile", "admin")
"""read: look; plan: ask questions; profile: start and cancel searches, bring measurements; admin: everything, metrics."""
PREFIX = "ac"


@dataclass(frozen=True, kw_only=True)
class Key:
    """A key as it is listed; the secret is shown once, when it is made."""

    id: str
    name: str
    scopes: tuple[str, ...]
    created: datetime
    revoked: datetime | None

    def allows(self, scope: str) -> bool:
        return scope in self.scopes or "admin" in self.scopes


def create_key(engine: sa.Engine, name: str, scopes: tuple[str, ...]) -> str:
    """A new key's text. Raises InputError."""
    if not name.strip() or len(name) > 200:
        raise InputError("a key needs a name of 1 to 200 characters, for example the team that uses it")
    if not scopes:
        raise InputError(f"a key needs a scope: {', '.join(SCOPES)}")
    for scope in scopes:
        if scope not in SCOPES:
            raise UnknownNameError("scope", scope, SCOPES, f"scopes: {', '.join(SCOPES)}")
    identity, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    with engine.begin() as connection:
        connection.execute(
            KEYS.insert().values(
                id=identity, name=name.strip(), digest=_digest(secret), scopes=",".join(sorted(set(scopes))), created=now()
            )
        )
    return f"{PREFIX}_{identity}_{secret}"


def list_keys(engine: sa.Engine) -> list[Key]:
    """Every key, the oldest first."""
    with engine.connect() as connection:
        rows = connection.execute(sa.select(KEYS).order_by(KEYS.c.created, KEYS.c.id)).all()
    return [_key(row) for row in rows]


def revoke_key(engine: sa.Engine, identity: str) -> None:
    """The key is refused from now on. Raises InputError where there is none of this id."""
    with engine.begin() as connection:
        done = connection.execute(KEYS.update().where(KEYS.c.id == identity, KEYS.c.revoked.is_(None)).values(revoked=now()))
    if done.rowcount == 0:
        raise InputError(f"there is no key {identity[:40]!r} that is not revoked; autoconfig keys list shows the ids")


def find_key(engine: sa.Engine, text: str) -> Key | None:
    """The key of this text; None where it is unknown, wrong or revoked."""
    parts = text.split("_", 2)
    if len(parts) != 3 or parts[0] != PREFIX or len(text) > 200:
        return None
    with engine.connect() as connection:
        row = connection.execute(sa.select(KEYS).where(KEYS.c.id == parts[1], KEYS.c.revoked.is_(None))).first()
    if row is None or not hmac.compare_digest(row.digest, _digest(parts[2])):
        return None
    return _key(row)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _key(row: sa.Row[tuple[object, ...]]) -> Key:
    return Key(id=row.id, name=row.name, scopes=tuple(row.scopes.split(",")), created=row.created, revoked=row.revoked)


class RateLimit:
    """A token bucket per key: `rate` requests a second, bursts of twice as many. Of this process alone."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._buckets: dict[str, tuple[float, float]] = {}

    def wait(self, identity: str) -> float:
        """Seconds until the next request may come; 0: this one may, and is counted."""
        burst, moment = 2 * self._rate, time.monotonic()
        level, before = self._buckets.get(identity, (burst, moment))
        level = min(burst, level + (moment - before) * self._rate)
        if level < 1.0:
            self._buckets[identity] = (level, moment)
            return (1.0 - level) / self._rate
        self._buckets[identity] = (level - 1.0, moment)
        return 0.0
