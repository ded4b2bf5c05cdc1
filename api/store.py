"""The service's own tables: API keys (later: searches, measurements). SQLite or PostgreSQL by URL, through SQLAlchemy Core."""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa

from specs.errors import InputError

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
    except sa.exc.SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error).splitlines()[0][:200]
        raise InputError(f"database {parsed.render_as_string()} cannot be used: {reason}") from None
    return engine


def _write_ahead(connection: object, _: object) -> None:
    """Readers do not wait for a writer (https://sqlite.org/wal.html)."""
    cursor = connection.cursor()  # type: ignore[attr-defined]
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.close()


def now() -> datetime:
    """This moment, with its zone."""
    return datetime.now(UTC)
