"""Searches that ended long ago are deleted, with all that is kept of them: answers, events, the engine's workflows, studies."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from autoconfig.api.store import ENDED, EVENTS, SEARCHES, now
from autoconfig.specs.errors import InputError
from dbos import DBOSClient
from starlette.concurrency import run_in_threadpool

LOG = logging.getLogger("autoconfig.training.answer")
EVERY_SECONDS = 3600.0
BATCH = 200


async def keep(engine: sa.Engine, client: DBOSClient, database: str, days: int) -> None:
    """Delete now and once an hour what ended more than so many days ago; 0: nothing is deleted. Replicas may do it at once."""
    while days:
        try:
            count = await run_in_threadpool(purge, engine, client, database, timedelta(days=days))
        except (sa.exc.SQLAlchemyError, InputError):
            LOG.warning("old searches are not deleted; the next attempt is in an hour", exc_info=True)
        else:
            if count:
                LOG.warning("%d searches are deleted, which ended more than %d days ago (--keep-days)", count, days)
        await asyncio.sleep(EVERY_SECONDS)


def purge(engine: sa.Engine, client: DBOSClient, database: str, age: timedelta) -> int:
    """Delete the searches that ended longer ago than `age`; how many those were. `database`: the URL, where studies may be. One
    whose jobs a worker has yet to end stays. Raises sqlalchemy.exc.SQLAlchemyError, InputError."""
    over = sa.select(SEARCHES.c.id, SEARCHES.c.number, SEARCHES.c.body, SEARCHES.c.state, SEARCHES.c.started)
    over = over.where(SEARCHES.c.state.in_(ENDED), SEARCHES.c.ended < now() - age).order_by(SEARCHES.c.number).limit(BATCH)
    count = last = 0
    while True:
        with engine.connect() as connection:
            rows = connection.execute(over.where(SEARCHES.c.number > last)).all()
        if not rows:
            return count
        last = rows[-1].number
        held = [row.id for row in rows if row.state == "cancelled" and row.started is not None]
        unended = client.list_workflows(workflow_ids=held, status=["ENQUEUED", "PENDING"], load_input=False) if held else []
        stay = {workflow.workflow_id for workflow in unended}
        _delete(engine, client, database, [row for row in rows if row.id not in stay])
        count += len(rows) - len(stay)


def _delete(engine: sa.Engine, client: DBOSClient, database: str, rows: Sequence[Any]) -> None:
    """The searches' own rows go last: what an interruption leaves is found again."""
    ids = [row.id for row in rows]
    if measured := [row.id for row in rows if json.loads(row.body).get("profile")]:
        _delete_studies(database, measured)
    client.delete_workflows(ids)
    with engine.begin() as connection:
        connection.execute(EVENTS.delete().where(EVENTS.c.search_id.in_(ids)))
        connection.execute(SEARCHES.delete().where(SEARCHES.c.id.in_(ids)))


def _delete_studies(database: str, names: list[str]) -> None:
    """Those of PostgreSQL; with SQLite they are in the folders of workers, as the jobs are."""
    if not database.startswith("postgres"):
        return
    from autoconfig.study.storage import opened

    with opened(database) as storage:
        for name in names:
            with suppress(KeyError):  # it was cancelled before a worker made one
                storage.delete_study(storage.get_study_id_from_name(name))
