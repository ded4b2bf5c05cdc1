"""Searches that no living worker has: dead workers, workers that wake late, rows that somebody deleted or did not restore; and
searches that ended long ago."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import httpx
import pytest
import sqlalchemy as sa
from autoconfig.api import retention, searches
from autoconfig.api.store import SEARCHES, WORKERS, dbos_url, engine_of, now
from autoconfig.api.wire.bodies import read_search
from autoconfig.api.work import recovery
from autoconfig.api.work.recovery import Watcher
from dbos import DBOSClient
from optuna.study import StudyDirection

from autoconfig.study.storage import opened
from tests.api.conftest import QUESTION, begin_worker, start, take_up, wait_for

pytestmark = [pytest.mark.service, pytest.mark.xdist_group("api")]


class Place:
    """A database with searches in its queue, and no service."""

    def __init__(self, folder) -> None:
        self.url = f"sqlite:///{folder}/service.db"
        self.engine = engine_of(self.url)
        self.client = DBOSClient(system_database_url=dbos_url(self.url), system_database_engine=self.engine)

    def submit(self) -> str:
        return searches.submit(self.engine, self.client, "", read_search(json.dumps(QUESTION).encode()))[0].id

    def state(self, identity: str) -> str:
        return searches.get(self.engine, identity).state

    def run(self, statement: str, **values: object) -> None:
        """On the database, as a person with a shell does."""
        with self.engine.begin() as connection:
            connection.execute(sa.text(statement), values)

    def workers(self) -> list[str]:
        with self.engine.connect() as connection:
            return [*connection.execute(sa.select(WORKERS.c.id)).scalars()]

    def done(self, *identities: str) -> bool:
        return {self.state(identity) for identity in identities} == {"done"}


@pytest.fixture
def place(tmp_path) -> Iterator[Place]:
    found = Place(tmp_path)
    yield found
    found.client.destroy()
    found.engine.dispose()


def workflow(identity: str, values: str) -> str:
    return f"UPDATE workflow_status SET {values} WHERE workflow_uuid = '{identity}'"


def test_whatever_is_in_no_living_hand_is_taken_up(place):
    claimed, unknown, ended, nobody, given_up, whole = (place.submit() for _ in range(6))
    place.run(workflow(claimed, "status = 'PENDING', executor_id = 'a worker without a row'"))
    place.run(f"DELETE FROM workflow_status WHERE workflow_uuid = '{unknown}'")
    place.run(workflow(ended, "status = 'SUCCESS'"))
    place.run(workflow(nobody, "status = 'PENDING', executor_id = NULL"))
    place.run(workflow(given_up, "status = 'MAX_RECOVERY_ATTEMPTS_EXCEEDED', recovery_attempts = 101"))
    worker = begin_worker(place.url)
    try:
        wait_for(lambda: place.done(claimed, unknown, ended, nobody, whole), 60)
        failed = wait_for(lambda: place.state(given_up) == "failed" and searches.get(place.engine, given_up))
        assert "101 workers ended" in failed.problem["detail"]
        for identity in (claimed, unknown, ended, nobody, whole):
            text = [event.data for event in searches.events(place.engine, identity, 0)]
            assert [json.loads(data)["state"] for data in text if "state" in data] == ["queued", "running", "done"]
    finally:
        worker.terminate()
        assert worker.wait(30) == 0
    assert place.workers() == [], "who leaves in order leaves no row that another would take for a dead worker's"


def test_a_worker_that_wakes_late_hands_back_what_it_claims(place):
    late = begin_worker(place.url, "--concurrency", "4")
    other = None
    try:
        wait_for(place.workers)
        time.sleep(1.0)  # its queues are listened to
        late.send_signal(signal.SIGSTOP)
        identities = [place.submit() for _ in range(4)]
        place.run("DELETE FROM autoconfig_workers")
        late.send_signal(signal.SIGCONT)
        assert late.wait(60) == 1, "it was taken for dead"
        assert {place.state(identity) for identity in identities} == {"queued"}, "none was begun"
        assert {one.status for one in place.client.list_workflows(workflow_ids=identities)} == {"ENQUEUED"}
        other = begin_worker(place.url)
        wait_for(lambda: place.done(*identities), 60)
    finally:
        for process in (late, other):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()


def test_a_claim_without_a_row_is_not_begun(place):
    identity = place.submit()
    with pytest.raises(searches.TakenForDeadError):
        searches.begin(place.engine, identity, "nobody")
    assert place.state(identity) == "queued"


def test_only_time_in_which_one_looks_makes_a_worker_dead(place, monkeypatch):
    moment = [100.0]
    monkeypatch.setattr(recovery.time, "monotonic", lambda: moment[0])
    row = {"version": searches.WORKFLOW_VERSION, "profiles": 0, "beaten": None}
    with place.engine.begin() as connection:
        connection.execute(WORKERS.insert().values([{"id": name, "beat": 7, **row} for name in ("own", "still", "beating")]))
        connection.execute(WORKERS.insert().values({**row, "id": "other version", "beat": 7, "version": "another"}))
    watcher = Watcher(place.engine, "own")

    def look(after: float, beat: bool = True) -> list[str]:
        moment[0] += after
        if beat:
            place.run("UPDATE autoconfig_workers SET beat = beat + 1 WHERE id = 'beating'")
        return watcher.dead()

    assert look(2.0) == []
    assert look(60.0, beat=False) == [], "the watcher was paused itself, and they may have been with it"
    assert [look(2.0) for _ in range(4)] == [[]] * 4
    assert look(2.0) == ["still"]


def kept_of(engine: sa.Engine, identity: str) -> dict[str, int]:
    """Table -> its rows in which the search's id stands, of all tables of the database."""
    found = {}
    with engine.connect() as connection:
        for schema in {None, *(name for name in sa.inspect(engine).get_schema_names() if name == "dbos")}:
            for table in sa.inspect(engine).get_table_names(schema=schema):
                rows = connection.execute(sa.text(f"SELECT * FROM {schema + '.' if schema else ''}{table}")).all()
                if count := sum(identity in str(row) for row in rows):
                    found[table] = count
    return found


def aged(engine: sa.Engine, client: DBOSClient, end: Callable[[str], object], days: float, **changes: object) -> str:
    """A search that ended so long ago."""
    identity = searches.submit(engine, client, "key", read_search(json.dumps({**QUESTION, **changes}).encode()))[0].id
    end(identity)
    with engine.begin() as connection:
        row = SEARCHES.update().where(SEARCHES.c.id == identity, SEARCHES.c.ended.is_not(None))
        connection.execute(row.values(ended=now() - timedelta(days=days)))
    return identity


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_search_is_deleted_with_all_that_is_kept_of_it_after_its_days(tmp_path, kind, request):
    url = f"sqlite:///{tmp_path}/service.db" if kind == "sqlite" else request.getfixturevalue("database")
    engine = engine_of(url)
    client = DBOSClient(system_database_url=dbos_url(url), system_database_engine=engine)

    def done(identity: str) -> None:
        take_up(engine, identity)
        searches.end(engine, identity, result=b"{}")
        if kind == "postgresql" and searches.get(engine, identity).body.get("profile"):
            with opened(url) as storage:
                storage.create_new_study([StudyDirection.MINIMIZE], identity)

    def cancelled_with_jobs(identity: str) -> None:
        take_up(engine, identity)
        searches.cancel(engine, identity)

    try:
        old = [aged(engine, client, done, 91) for _ in range(3)] + [aged(engine, client, done, 91, profile=True)]
        stay = [
            aged(engine, client, done, 89),
            aged(engine, client, lambda _: None, 0),
            aged(engine, client, cancelled_with_jobs, 91, profile=True),
        ]
        assert all(
            {"autoconfig_searches", "autoconfig_search_events", "workflow_status"} <= {*kept_of(engine, one)} for one in old
        )
        if kind == "postgresql":
            assert "studies" in kept_of(engine, old[-1])
        before = {identity: kept_of(engine, identity) for identity in stay}
        assert retention.purge(engine, client, url, timedelta(days=90)) == 4
        assert {str(kept_of(engine, identity)) for identity in old} == {"{}"}
        assert {identity: kept_of(engine, identity) for identity in stay} == before
        assert retention.purge(engine, client, url, timedelta(days=90)) == 0
    finally:
        client.destroy()
        engine.dispose()


def test_the_service_deletes_what_is_old(place):
    old = aged(place.engine, place.client, lambda identity: searches.cancel(place.engine, identity), 31)
    with kept_service(place.url, "0") as http:
        assert http.get(f"/v1/searches/{old}").status_code == 200
    with kept_service(place.url, "30") as http:
        wait_for(lambda: http.get(f"/v1/searches/{old}").status_code == 404)


@contextmanager
def kept_service(database: str, days: str) -> Iterator[httpx.Client]:
    service = start(database, "--workers", "1", "--search-workers", "0", "--keep-days", days)
    try:
        with service.client() as http:
            yield http
    finally:
        service.stop()
