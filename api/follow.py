"""Event streams of one process (server-sent events): the database is asked once for all of them, not by each."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from autoconfig.api import searches
from autoconfig.api.problems import RefusedError
from autoconfig.api.searches import Event
from autoconfig.api.store import ENDED, EVENTS, KEYS, SEARCHES
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

LOG = logging.getLogger("autoconfig.training.answer")
POLL_SECONDS = 0.3
SILENCE_SECONDS = 15.0
"""A comment is sent after so long without an event, so that proxies keep the connection."""
AGAIN_SECONDS = 10
"""After which a key that follows as much as it may is to try again."""
CHUNK = 500
MEDIA_TYPE = "text/event-stream"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


@dataclass(eq=False, kw_only=True)
class Follower:
    """One stream of a search that is not over."""

    search: str
    owner: str
    """The key that listens, which may be revoked; empty without keys."""
    last: int
    """The number of the last event that was sent on."""
    news: asyncio.Queue[list[Event] | None] = field(default_factory=asyncio.Queue)
    """None: nothing more comes."""


class Followers:
    """The streams of this process, and the one task that asks the database for them while there are any."""

    def __init__(self, engine: sa.Engine, most: int) -> None:
        self._engine, self._most = engine, most
        self._all: set[Follower] = set()
        self._asking: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._all)

    def join(self, follower: Follower) -> None:
        """Tell it what happens from now on, until it leaves. Raises RefusedError where its key has too many streams."""
        if Counter(one.owner for one in self._all)[follower.owner] >= self._most:
            text = f"{self._most} of your event streams are open, as many as may: end some, or GET /v1/searches/ID now and then"
            raise RefusedError(429, text, {"Retry-After": str(AGAIN_SECONDS)})
        self._all.add(follower)
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())

    def leave(self, follower: Follower) -> None:
        """It listens no more."""
        self._all.discard(follower)

    def end(self) -> None:
        """End every stream: the service does, or the database is away."""
        for follower in [*self._all]:
            self._end(follower)

    def _end(self, follower: Follower) -> None:
        self._all.discard(follower)
        follower.news.put_nowait(None)

    async def _ask(self) -> None:
        """Until nobody listens. A stream ends with its search, or where its key may no longer listen or the database is away:
        who comes again goes on."""
        try:
            while self._all:
                asked = [*self._all]
                found = await run_in_threadpool(_look, self._engine, asked)
                for follower in asked:
                    if follower.owner not in found.listeners:
                        self._end(follower)
                        continue
                    if news := [event for event in found.news.get(follower.search, ()) if event.number > follower.last]:
                        follower.last = news[-1].number
                        follower.news.put_nowait(news)
                    if follower.search not in found.open:
                        self._end(follower)
                await asyncio.sleep(POLL_SECONDS)
        except sa.exc.SQLAlchemyError:
            LOG.warning("the database does not answer: %d event streams end", len(self._all))
        finally:
            self.end()


@dataclass(frozen=True, kw_only=True)
class _Found:
    """What the database says, for all followers."""

    news: dict[str, list[Event]]
    """Search -> its events that some follower does not have."""
    open: set[str]
    """Searches that are not over."""
    listeners: set[str]
    """Keys that are not revoked."""


def _look(engine: sa.Engine, asked: list[Follower]) -> _Found:
    """Two queries for all, and one for each search of which something is new."""
    after: dict[str, int] = {}
    for follower in asked:
        after[follower.search] = min(follower.last, after.get(follower.search, follower.last))
    newest = sa.select(sa.func.max(EVENTS.c.number)).where(EVENTS.c.search_id == SEARCHES.c.id).scalar_subquery()
    rows = sa.select(SEARCHES.c.id, SEARCHES.c.state, newest.label("newest"))
    keys = sa.select(KEYS.c.id).where(KEYS.c.revoked.is_(None))
    found: list[Any] = []
    listeners = {""}
    with engine.connect() as connection:
        for ids in _chunks(after):
            found += connection.execute(rows.where(SEARCHES.c.id.in_(ids))).all()
        for ids in _chunks({follower.owner for follower in asked} - {""}):
            listeners.update(connection.execute(keys.where(KEYS.c.id.in_(ids))).scalars())
    grown = [row.id for row in found if (row.newest or 0) > after[row.id]]
    return _Found(
        news={identity: searches.events(engine, identity, after[identity]) for identity in grown},
        open={row.id for row in found if row.state not in ENDED},
        listeners=listeners,
    )


def _chunks(values: Iterable[str]) -> Iterable[list[str]]:
    found = sorted(values)
    return (found[start : start + CHUNK] for start in range(0, len(found), CHUNK))


class EventStream(StreamingResponse):
    """What a follower hears, as it goes out, after `backlog`; the follower leaves with its listener."""

    def __init__(self, followers: Followers, follower: Follower, backlog: list[Event]) -> None:
        self._followers, self._follower = followers, follower
        super().__init__(_lines(follower, backlog), media_type=MEDIA_TYPE, headers=HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._followers.leave(self._follower)


async def _lines(follower: Follower, backlog: list[Event]) -> AsyncIterator[bytes]:
    if backlog:
        yield sent(backlog)
    while True:
        try:
            news = await asyncio.wait_for(follower.news.get(), SILENCE_SECONDS)
        except TimeoutError:
            yield b": still here\n\n"
            continue
        if news is None:
            return
        yield sent(news)


def sent(events: list[Event]) -> bytes:
    """Events as they are sent."""
    return "".join(f"id: {event.number}\nevent: {event.kind}\ndata: {event.data}\n\n" for event in events).encode()
