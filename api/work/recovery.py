"""What no living worker has is given back to the queue: searches that a dead worker had, that one claimed which was taken for
dead, and those that the engine knows nothing of.

Three rows tell of a search: the search, the engine's workflow (queued, or pending with the worker that claimed it) and the
worker. They agree while processes only die. They disagree after a pause (a worker claims before it hears that it was taken for
dead), in a database of which only a part was restored, and where somebody deleted a row: so they are compared, whatever the
cause.
"""

from __future__ import annotations

import logging
import time

import sqlalchemy as sa
from autoconfig.api import searches
from autoconfig.api.problems import problem_bytes
from autoconfig.api.searches import BEAT_SECONDS, DEAD_AFTER_SECONDS, WORKFLOW, WORKFLOW_VERSION
from autoconfig.api.store import WORKERS
from dbos import DBOS, DBOSClient

LOG = logging.getLogger("autoconfig.worker")
LOST_SECONDS = 15.0
"""How often searches are compared with the engine's workflows."""
CHUNK = 500
WAITING = ("ENQUEUED", "DELAYED")
GIVEN_UP = "MAX_RECOVERY_ATTEMPTS_EXCEEDED"


class Watcher:
    """Sees by its own clock whose beats stand still, so that no clocks need agree. Time in which the watcher itself did not
    look (it was paused, its machine slept) counts as two beats at most: others may have been paused with it. Workers of another
    workflow version are left to their own: what they had begun cannot be gone on with here."""

    def __init__(self, engine: sa.Engine, own: str) -> None:
        self._engine, self._own = engine, own
        self._seen: dict[str, tuple[int, float]] = {}
        """Worker -> its beat, and the seconds for which it was seen to stand still."""
        self._looked = time.monotonic()

    def dead(self) -> list[str]:
        """Workers that have not beaten for too long."""
        with self._engine.connect() as connection:
            query = sa.select(WORKERS.c.id, WORKERS.c.beat).where(WORKERS.c.id != self._own)
            rows = connection.execute(query.where(WORKERS.c.version == WORKFLOW_VERSION)).all()
        moment = time.monotonic()
        passed, self._looked = min(moment - self._looked, 2 * BEAT_SECONDS), moment
        seen, self._seen = self._seen, {}
        for identity, beat in rows:
            before, still = seen.get(identity, (beat, 0.0))
            known = identity in seen and before == beat
            self._seen[identity] = (beat, still + passed if known else 0.0)
        return [identity for identity, (_, still) in self._seen.items() if still > DEAD_AFTER_SECONDS]


class Recovery:
    """Looks after the searches of others. `look` now and then, by every worker: doing it twice changes nothing."""

    def __init__(self, engine: sa.Engine, client: DBOSClient, own: str) -> None:
        self._engine, self._client = engine, client
        self._watcher = Watcher(engine, own)
        self._compared = float("-inf")

    def look(self) -> None:
        """Forget the dead, give back what nobody has. Raises sqlalchemy.exc.SQLAlchemyError."""
        for dead in self._watcher.dead():
            LOG.warning("worker %s is dead; its searches are taken up", dead)
            with self._engine.begin() as connection:
                connection.execute(WORKERS.delete().where(WORKERS.c.id == dead))
        if orphans := orphaned(self._engine):
            LOG.warning("searches of workers that are not there are taken up: %s", ", ".join(orphans))
            give_back(orphans)
        if time.monotonic() - self._compared >= LOST_SECONDS:
            requeue_lost(self._engine, self._client)
            self._compared = time.monotonic()


def orphaned(engine: sa.Engine) -> list[str]:
    """Names under which workflows of this version are claimed, and which no row of a worker has. Claims are read first: a
    worker has its row before it claims anything."""
    claimed = DBOS.list_workflows(
        status="PENDING", name=WORKFLOW, app_version=WORKFLOW_VERSION, load_input=False, load_output=False
    )
    names = {workflow.executor_id for workflow in claimed if workflow.executor_id}
    if not names:
        return []
    with engine.connect() as connection:
        return sorted(names - set(connection.execute(sa.select(WORKERS.c.id)).scalars()))


def give_back(workers: list[str]) -> None:
    """What these workers have claimed goes back to the queue, from which one worker takes each (DBOS, reenqueue_for_recovery).
    DBOS logs what it cannot recover, and goes on: it is still pending when one looks again."""
    DBOS._recover_pending_workflows(workers)


def requeue_lost(engine: sa.Engine, client: DBOSClient) -> None:
    """Searches that are neither over nor waiting nor claimed get a new workflow. One that the engine gave up, as each of many
    workers ended in it, fails."""
    unended = searches.unended(engine)
    for start in range(0, len(unended), CHUNK):
        chunk = unended[start : start + CHUNK]
        found = client.list_workflows(workflow_ids=chunk, load_input=False, load_output=False)
        known = {workflow.workflow_id: workflow for workflow in found}
        for identity in chunk:
            workflow = known.get(identity)
            status = "unknown" if workflow is None else workflow.status
            if status in WAITING or (workflow is not None and status == "PENDING" and workflow.executor_id):
                continue
            if workflow is not None and status == GIVEN_UP:
                why = f"{workflow.recovery_attempts} workers ended while they worked on it; ask for fewer GPUs or fix some keys"
                searches.end(engine, identity, problem=problem_bytes(500, why))
                continue
            LOG.warning("search %s is not in the queue (%s); it is queued again", identity, status)
            searches.requeue(engine, client, identity, stale=workflow is not None)
