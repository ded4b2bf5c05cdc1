"""Measured runs that jobs bring back, and the calibration that they make: the shipped one refined, one for each API key.

Runs are rows by owner and id. The calibration is made from all of an owner's runs, after they are stored: `revision` counts
changes of the runs, `fitted` says which revision the stored calibration is of, so that of two processes that fit at once the
later revision stays.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from autoconfig.api.problems import RefusedError
from autoconfig.api.store import CALIBRATIONS, MEASUREMENTS, now, utc

MAX_RUNS = 2_000
"""Of one owner: fitting them takes seconds."""
FRESH_SECONDS = 1.0
"""So long a process takes an owner's calibration for unchanged without asking the database."""


class TooManyError(RefusedError):
    """More runs than are kept of one owner."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A stored run."""

    number: int
    body: dict[str, Any]
    created: datetime

    def json(self) -> dict[str, Any]:
        created = self.created.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
        return {"id": self.body["id"], "created": created, "run": self.body}


@dataclass(frozen=True)
class OwnCalibration:
    """An owner's calibration as JSON."""

    version: str
    text: str


def add(engine: sa.Engine, owner: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Store runs; one whose id is there replaces it. Raises TooManyError."""
    with engine.begin() as connection:
        _next_revision(connection, owner)
        for row in rows:
            text = json.dumps(row, sort_keys=True)
            mine = (MEASUREMENTS.c.owner == owner) & (MEASUREMENTS.c.run == row["id"])
            if connection.execute(MEASUREMENTS.update().where(mine).values(body=text, created=now())).rowcount == 0:
                connection.execute(MEASUREMENTS.insert().values(owner=owner, run=row["id"], body=text, created=now()))
        count = sa.select(sa.func.count()).select_from(MEASUREMENTS).where(MEASUREMENTS.c.owner == owner)
        if connection.execute(count).scalar_one() > MAX_RUNS:
            raise TooManyError(422, f"at most {MAX_RUNS:,} runs are kept for a key; replace some by their ids", field="rows")


def remove(engine: sa.Engine, owner: str, ids: Sequence[str] | None) -> int:
    """Forget an owner's runs (None: all of them); how many there were."""
    chosen = MEASUREMENTS.c.owner == owner
    if ids is not None:
        chosen &= MEASUREMENTS.c.run.in_(ids)
    with engine.begin() as connection:
        _next_revision(connection, owner)
        return connection.execute(MEASUREMENTS.delete().where(chosen)).rowcount


def _next_revision(connection: sa.Connection, owner: str) -> None:
    """Takes the owner's row for this transaction: of two that add runs at once, the second waits."""
    mine = CALIBRATIONS.c.owner == owner
    if connection.execute(CALIBRATIONS.update().where(mine).values(revision=CALIBRATIONS.c.revision + 1)).rowcount == 0:
        try:
            with connection.begin_nested():
                connection.execute(CALIBRATIONS.insert().values(owner=owner, revision=1, fitted=0))
        except sa.exc.IntegrityError:  # another one came first
            connection.execute(CALIBRATIONS.update().where(mine).values(revision=CALIBRATIONS.c.revision + 1))


def runs_of(engine: sa.Engine, owner: str) -> tuple[int, list[dict[str, Any]]]:
    """(revision, runs by id). The revision is read first: the runs may be newer than it, never older."""
    with engine.connect() as connection:
        revision = connection.execute(sa.select(CALIBRATIONS.c.revision).where(CALIBRATIONS.c.owner == owner)).scalar() or 0
        query = sa.select(MEASUREMENTS.c.body).where(MEASUREMENTS.c.owner == owner).order_by(MEASUREMENTS.c.run)
        return revision, [json.loads(text) for text in connection.execute(query).scalars()]


def store(engine: sa.Engine, owner: str, revision: int, text: str | None) -> None:
    """The calibration of a revision (None: of no runs), unless that of a later one is there."""
    mine = (CALIBRATIONS.c.owner == owner) & (CALIBRATIONS.c.fitted < revision)
    with engine.begin() as connection:
        connection.execute(CALIBRATIONS.update().where(mine).values(fitted=revision, body=text))


def listed(engine: sa.Engine, owner: str, *, after: int, limit: int) -> list[Measured]:
    """Runs in the order of their coming, from number `after` + 1 on."""
    query = sa.select(MEASUREMENTS).where(MEASUREMENTS.c.owner == owner, MEASUREMENTS.c.number > after)
    with engine.connect() as connection:
        rows = connection.execute(query.order_by(MEASUREMENTS.c.number).limit(limit)).all()
    return [Measured(number=row.number, body=json.loads(row.body), created=utc(row.created)) for row in rows]


def current(engine: sa.Engine, owner: str) -> OwnCalibration | None:
    """The owner's calibration; None where there are no runs of his."""
    with engine.connect() as connection:
        text = connection.execute(sa.select(CALIBRATIONS.c.body).where(CALIBRATIONS.c.owner == owner)).scalar()
    return None if text is None else OwnCalibration(json.loads(text)["version"], text)


class Known:
    """The calibrations of one process's callers, looked up again after FRESH_SECONDS."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[float, OwnCalibration | None]] = {}

    def fresh(self, owner: str) -> tuple[bool, OwnCalibration | None]:
        moment, found = self._held.get(owner, (float("-inf"), None))
        return time.monotonic() - moment < FRESH_SECONDS, found

    def hold(self, owner: str, found: OwnCalibration | None) -> None:
        self._held[owner] = (time.monotonic(), found)
