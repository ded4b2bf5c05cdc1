"""Searches as rows: accepted, listed, told about, cancelled. Which process works on them is the workflow engine's affair.

    queued -> running -> done | failed
        \\________\\____-> cancelled

A state is only ever left forwards: every update names the states that it may leave, so that a search ends exactly once.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from autoconfig.api.problems import RefusedError
from autoconfig.api.store import EVENTS, KEYS, OPEN, SEARCHES, STATES, WORKERS, now, utc
from autoconfig.api.wire.bodies import asked
from dbos import DBOSClient, EnqueueOptions

QUEUE = "autoconfig-searches"
PROFILE_QUEUE = "autoconfig-profiles"
"""Searches that measure: only workers that can run jobs listen to it."""
WORKFLOW = "run_search"
WORKFLOW_VERSION = "autoconfig-searches-1"
"""Which workers may take a search up: raised only where the steps of the workflow change, so that an upgrade between a kill
and a restart finishes what the older version began."""
BEAT_SECONDS = 2.0
DEAD_AFTER_SECONDS = 12.0
"""A worker whose count of beats has not changed for so long, by the watcher's own clock, is taken for dead."""
QUOTA_SECONDS = 10
"""After which a key whose searches fill its share of the queue may try again."""
BEGUN = ("running", "done", "failed")
TRIAL = "trial"
"""The kind of an event that tells of a trial's end."""


class ConflictError(RefusedError):
    """The idempotency key was used for another question."""


@dataclass(frozen=True, kw_only=True)
class StoredSearch:
    """One accepted search."""

    id: str
    number: int
    owner: str
    body: dict[str, Any]
    state: str
    created: datetime
    started: datetime | None
    ended: datetime | None
    problem: dict[str, Any] | None
    spent_seconds: float = 0.0
    """While a worker had it: what a budget in time counts."""

    @property
    def may_have_jobs(self) -> bool:
        """Cancelled, but the worker that had its jobs may have gone before it heard of it: whoever follows ends them."""
        return self.state == "cancelled" and self.started is not None and bool(self.body.get("profile"))

    def json(self, note: str | None = None) -> dict[str, Any]:
        """As the API shows it; `note`: what keeps it waiting."""

        def moment(value: datetime | None) -> str | None:
            return None if value is None else value.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"

        times = {"created": moment(self.created), "started": moment(self.started), "ended": moment(self.ended)}
        return {"id": self.id, "state": self.state, **times, "question": self.body, "problem": self.problem, "note": note}


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened to a search."""

    number: int
    kind: str
    data: str


class QuotaError(RefusedError):
    """The key has as many searches in the queue as it may have."""


def submit(
    engine: sa.Engine, client: DBOSClient, owner: str, body: dict[str, Any], key: str | None = None, quota: int | None = None
) -> tuple[StoredSearch, bool]:
    """(the search, whether it is new). Row and queue entry are one transaction. `quota`: the most that an owner may have in the
    queue. Raises ConflictError, QuotaError."""
    text = json.dumps(body, sort_keys=True)
    if key is not None:
        known = _by_key(engine, owner, key, body)
        if known is not None:
            return known, False
    identity = str(uuid.uuid4())
    try:
        with engine.begin() as connection:
            # of two that one key submits at once the second waits (SQLite has one writer at a time, from the insert on)
            connection.execute(sa.select(KEYS.c.id).where(KEYS.c.id == owner).with_for_update())
            row = {"owner": owner, "idempotency_key": key, "body": text, "state": "queued", "created": now()}
            connection.execute(SEARCHES.insert().values(id=identity, **row))
            turn = _take_turn(connection, identity, owner, quota)
            _add_event(connection, identity, "state", {"state": "queued"})
            _enqueue(connection, client, identity, body, turn)
    except sa.exc.IntegrityError:  # the same key at the same moment
        known = _by_key(engine, owner, key or "", body)
        if known is None:
            raise
        return known, False
    found = get(engine, identity)
    assert found is not None
    return found, True


def _take_turn(connection: sa.Connection, identity: str, owner: str, quota: int | None) -> int:
    """The new search's place in the queue, after the owner's others and after what was begun last: owners take turns, so that
    many searches of one do not stand before the first of another (start-time fair queuing: Goyal, Vin, Cheng, SIGCOMM 1996,
    every search counted as long as another). Raises QuotaError."""
    queued = (SEARCHES.c.state == "queued") & (SEARCHES.c.owner == owner)
    count, own = connection.execute(sa.select(sa.func.count(), sa.func.max(SEARCHES.c.turn)).where(queued)).one()
    if quota is not None and count > quota:
        text = f"{quota} of your searches wait in the queue, as many as may: submit again when some have begun, or cancel some"
        raise QuotaError(429, text, {"Retry-After": str(QUOTA_SECONDS)})
    latest = [sa.select(sa.func.max(SEARCHES.c.turn)).where(SEARCHES.c.state == state).scalar_subquery() for state in BEGUN]
    turn: int = max(own or 0, *(begun or 0 for begun in connection.execute(sa.select(*latest)).one())) + 1
    connection.execute(SEARCHES.update().where(SEARCHES.c.id == identity).values(turn=turn))
    return turn


def _enqueue(connection: sa.Connection, client: DBOSClient, identity: str, body: dict[str, Any], turn: int) -> None:
    options: EnqueueOptions = {
        "workflow_name": WORKFLOW,
        "queue_name": PROFILE_QUEUE if body.get("profile") else QUEUE,
        "workflow_id": identity,
        "app_version": WORKFLOW_VERSION,
        "priority": turn,
    }
    client.enqueue_in_transaction(connection, options, identity)


def requeue(engine: sa.Engine, client: DBOSClient, identity: str, *, stale: bool) -> None:
    """A search that is not over is queued anew; `stale`: the engine takes it for done, and forgets that first. Of two that do
    it at once the second finds it queued."""
    query = sa.select(SEARCHES.c.body, SEARCHES.c.turn).where(SEARCHES.c.id == identity, SEARCHES.c.state.in_(OPEN))
    with engine.connect() as connection:
        if connection.execute(query).first() is None:
            return
    if stale:
        client.delete_workflows([identity])
    with engine.begin() as connection:
        row = connection.execute(query.with_for_update()).first()
        if row is not None:
            _enqueue(connection, client, identity, json.loads(row.body), row.turn or 1)


def unended(engine: sa.Engine) -> list[str]:
    """Ids of the searches that are not over, in the order of their acceptance."""
    query = sa.select(SEARCHES.c.id).where(SEARCHES.c.state.in_(OPEN)).order_by(SEARCHES.c.number)
    with engine.connect() as connection:
        return [*connection.execute(query).scalars()]


def _by_key(engine: sa.Engine, owner: str, key: str, body: dict[str, Any]) -> StoredSearch | None:
    """Questions are compared by what they ask: fields that came with a later release are at their defaults in older rows."""
    query = sa.select(SEARCHES).where(SEARCHES.c.owner == owner, SEARCHES.c.idempotency_key == key)
    with engine.connect() as connection:
        row = connection.execute(query).first()
    if row is None:
        return None
    if asked(json.loads(row.body)) != asked(body):
        raise ConflictError(409, "this Idempotency-Key was used for another question; take a new one", field="Idempotency-Key")
    return _search(row)


def get(engine: sa.Engine, identity: str, owner: str | None = None) -> StoredSearch | None:
    """The search of this id; None where there is none, as where it is no id at all, and where it is not this owner's (None: of
    anybody)."""
    if not _is_id(identity):
        return None
    query = sa.select(SEARCHES).where(SEARCHES.c.id == identity)
    if owner is not None:
        query = query.where(SEARCHES.c.owner == owner)
    with engine.connect() as connection:
        row = connection.execute(query).first()
    return None if row is None else _search(row)


def _is_id(text: str) -> bool:
    """Ids are UUIDs as `submit` writes them; a database may refuse other texts (PostgreSQL: one with a zero byte)."""
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def listed(
    engine: sa.Engine, *, after: int, limit: int, state: str | None = None, owner: str | None = None
) -> list[StoredSearch]:
    """Searches of an owner (None: of everybody) in the order of their acceptance, from number `after` + 1 on."""
    query = sa.select(SEARCHES).where(SEARCHES.c.number > after).order_by(SEARCHES.c.number).limit(limit)
    if state is not None:
        query = query.where(SEARCHES.c.state == state)
    if owner is not None:
        query = query.where(SEARCHES.c.owner == owner)
    with engine.connect() as connection:
        return [_search(row) for row in connection.execute(query)]


def counts(engine: sa.Engine) -> dict[str, int]:
    """State -> searches."""
    query = sa.select(SEARCHES.c.state, sa.func.count()).group_by(SEARCHES.c.state)
    with engine.connect() as connection:
        found = {state: count for state, count in connection.execute(query)}
    return {state: found.get(state, 0) for state in STATES}


NOBODY_MEASURES = "no worker that measures is there: start autoconfig worker --profile-folder DIR"


def note(engine: sa.Engine, search: StoredSearch) -> str | None:
    """What keeps a search waiting; None: nothing but its turn."""
    if search.state != "queued" or not search.body.get("profile"):
        return None
    measuring = (WORKERS.c.profiles == 1) & (WORKERS.c.version == WORKFLOW_VERSION) & WORKERS.c.beaten.is_not(None)
    query = sa.select(WORKERS.c.beaten, sa.func.now()).where(measuring)
    with engine.connect() as connection:
        beats = [(utc(beaten), utc(moment)) for beaten, moment in connection.execute(query)]
    there = any((moment - beaten).total_seconds() <= DEAD_AFTER_SECONDS for beaten, moment in beats)
    return None if there else NOBODY_MEASURES


def trials_by_outcome(engine: sa.Engine) -> dict[str, int]:
    """Outcome -> trials of searches that measure that ended so."""
    as_json = sa.type_coerce if engine.dialect.name == "sqlite" else sa.cast
    outcome = as_json(EVENTS.c.data, sa.JSON)["outcome"].as_string().label("outcome")
    query = sa.select(outcome, sa.func.count()).where(EVENTS.c.kind == TRIAL).group_by(sa.text("outcome"))
    with engine.connect() as connection:
        return {name or "": count for name, count in connection.execute(query)}


def result_of(engine: sa.Engine, identity: str) -> bytes | None:
    """The rendered answer of a search that is done."""
    with engine.connect() as connection:
        return connection.execute(sa.select(SEARCHES.c.result).where(SEARCHES.c.id == identity)).scalar()


class TakenForDeadError(Exception):
    """The worker has no row any more: what it claimed is not its own."""


def begin(engine: sa.Engine, identity: str, worker: str) -> bool:
    """The search is being worked on by this worker; False where it was cancelled or has ended. Raises TakenForDeadError."""
    with engine.begin() as connection:
        if connection.execute(sa.select(WORKERS.c.id).where(WORKERS.c.id == worker)).first() is None:
            raise TakenForDeadError(worker)
        moved = _move(connection, identity, "running", ("queued",), started=now())
        if moved:
            return True
        state = connection.execute(sa.select(SEARCHES.c.state).where(SEARCHES.c.id == identity)).scalar()
    return state == "running"


def end(engine: sa.Engine, identity: str, *, result: bytes | None = None, problem: bytes | None = None) -> bool:
    """The search is over, with a result or a problem document; False where it was over already."""
    state = "done" if problem is None else "failed"
    with engine.begin() as connection:
        return _move(connection, identity, state, OPEN, ended=now(), result=result, problem=problem)


def cancel(engine: sa.Engine, identity: str) -> bool:
    """The search is over without a result; False where it was over already."""
    with engine.begin() as connection:
        return _move(connection, identity, "cancelled", OPEN, ended=now())


def spend(engine: sa.Engine, identity: str, seconds: float) -> None:
    """How long workers have had the search so far, all together."""
    with engine.begin() as connection:
        connection.execute(SEARCHES.update().where(SEARCHES.c.id == identity).values(spent_seconds=seconds))


def say(engine: sa.Engine, identity: str, kind: str, data: dict[str, Any]) -> None:
    """Adds an event, which /events sends on."""
    with engine.begin() as connection:
        _add_event(connection, identity, kind, data)


def events(engine: sa.Engine, identity: str, after: int) -> list[Event]:
    """Events with a number above `after`, in order."""
    query = sa.select(EVENTS).where(EVENTS.c.search_id == identity, EVENTS.c.number > after).order_by(EVENTS.c.number)
    with engine.connect() as connection:
        return [Event(number=row.number, kind=row.kind, data=row.data) for row in connection.execute(query)]


def _move(connection: sa.Connection, identity: str, state: str, before: tuple[str, ...], **values: Any) -> bool:
    update = SEARCHES.update().where(SEARCHES.c.id == identity, SEARCHES.c.state.in_(before)).values(state=state, **values)
    moved: bool = connection.execute(update).rowcount == 1
    if moved:
        _add_event(connection, identity, "state", {"state": state})
    return moved


def _add_event(connection: sa.Connection, identity: str, kind: str, data: dict[str, Any]) -> None:
    """The next event. The search's row is locked: two that read the same last number would write the same one (SQLite has one
    writer at a time and no such lock)."""
    connection.execute(sa.select(SEARCHES.c.number).where(SEARCHES.c.id == identity).with_for_update())
    last = sa.select(sa.func.coalesce(sa.func.max(EVENTS.c.number), 0) + 1).where(EVENTS.c.search_id == identity)
    connection.execute(
        EVENTS.insert().values(
            search_id=identity, number=last.scalar_subquery(), time=now(), kind=kind, data=json.dumps(data, sort_keys=True)
        )
    )


def _search(row: Any) -> StoredSearch:
    return StoredSearch(
        id=row.id,
        number=row.number,
        owner=row.owner,
        body=json.loads(row.body),
        state=row.state,
        created=utc(row.created),
        started=utc(row.started),
        ended=utc(row.ended),
        problem=None if row.problem is None else json.loads(row.problem),
        spent_seconds=row.spent_seconds or 0.0,
    )


class LeavingError(Exception):
    """The process is to end: the search is neither ended nor failed, the next worker begins it again."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A search that a worker has taken up."""

    id: str
    body: dict[str, Any]
    spent_seconds: float = 0.0
    spend: Callable[[float], None]
    """Keeps the seconds while workers had it, these and those before, for a worker that follows."""
    calibration: Callable[[], str | None]
    """The one of the caller's own measurements, as JSON."""
    say: Callable[[str, dict[str, Any]], None]
    """(kind, data) of an event."""
    cancelled: Callable[[], bool]
    stopping: Callable[[], bool]

    def check(self) -> None:
        """Raises LeavingError where there is no reason to go on."""
        if self.stopping() or self.cancelled():
            raise LeavingError


Answering = Callable[[Task], tuple[int, bytes]]
