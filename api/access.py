"""API keys: made and revoked by `autoconfig keys`, kept as hashes, with scopes and a rate limit each.

A key is `ac_ID_SECRET`; 32 random bytes make the secret, so that a plain SHA-256 of it is enough (nothing to guess).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from autoconfig.api.store import KEYS, now
from autoconfig.specs.errors import InputError, UnknownNameError

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
        """Whether the key may do what needs `scope`."""
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
