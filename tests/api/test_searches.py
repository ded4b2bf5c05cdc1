"""Searches that outlive processes; the client and the pool of processes that compute."""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import sqlalchemy as sa
from autoconfig.api import searches
from autoconfig.api.answers import answer
from autoconfig.api.app import create_app
from autoconfig.api.compute import Compute
from autoconfig.api.store import SEARCHES, WORKERS, ServiceSettings, dbos_url, engine_of
from autoconfig.api.wire.bodies import ExportBody, PlansBody, read_search
from command_line import run_in_process
from dbos import DBOSClient
from tables import tabled

from autoconfig.client import Client, ServiceError
from autoconfig.planning.request_fields import SEARCH
from autoconfig.planning.resolve import field_names
from tests.api.conftest import QUESTION, SOAK, begin_worker, ended, run_with_kills, wait_for

pytestmark = [pytest.mark.service, pytest.mark.xdist_group("api")]


@pytest.fixture(scope="module")
def with_worker(services) -> Iterator[httpx.Client]:
    with services("--workers", "1", "--search-workers", "1").client() as client:
        yield client


def test_a_search_ends_with_the_answer_of_plans(with_worker):
    accepted = with_worker.post("/v1/searches", json=QUESTION)
    assert accepted.status_code == 202 and accepted.json()["state"] == "queued"
    identity = accepted.json()["id"]
    assert accepted.headers["location"] == f"/v1/searches/{identity}"
    assert wait_for(lambda: ended(with_worker, identity))["state"] == "done"
    plans = with_worker.get(f"/v1/searches/{identity}/plans")
    assert plans.content == with_worker.post("/v1/plans", json=QUESTION).content
    held = {"If-None-Match": plans.headers["etag"]}
    assert with_worker.get(f"/v1/searches/{identity}/plans", headers=held).status_code == 304
    files = with_worker.get(f"/v1/searches/{identity}/export").json()["files"]
    assert {"plan.json"} < set(files) and plans.json()["plans"][0]["short"] in files["plan.json"]
    only = with_worker.get(f"/v1/searches/{identity}/export", params={"format": "plan"}).json()["files"]
    assert set(only) == {"plan.json"}
    assert with_worker.get(f"/v1/searches/{identity}/export", params={"format": "deepspeed"}).status_code == 422


def test_events_follow_a_search_to_its_end_and_go_on_after_an_interruption(with_worker):
    identity = with_worker.post("/v1/searches", json={**QUESTION, "gpus": 16}).json()["id"]
    with with_worker.stream("GET", f"/v1/searches/{identity}/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        text = stream.read().decode()
    numbers = [int(line[4:]) for line in text.splitlines() if line.startswith("id: ")]
    states = [json.loads(line[6:]).get("state") for line in text.splitlines() if line.startswith("data: ")]
    assert numbers == list(range(1, len(numbers) + 1))
    assert [state for state in states if state] == ["queued", "running", "done"]
    rest = with_worker.get(f"/v1/searches/{identity}/events", headers={"Last-Event-ID": str(numbers[-2])}).text
    assert [line for line in rest.splitlines() if line.startswith("id: ")] == [f"id: {numbers[-1]}"]


def test_an_idempotency_key_makes_one_search(with_worker):
    answers = [with_worker.post("/v1/searches", json=QUESTION, headers={"Idempotency-Key": "job-17"}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [202, 200, 200]
    assert len({answer.json()["id"] for answer in answers}) == 1
    other = with_worker.post("/v1/searches", json={**QUESTION, "gpus": 32}, headers={"Idempotency-Key": "job-17"})
    assert other.status_code == 409
    fresh = with_worker.post("/v1/searches", json=QUESTION, headers={"Idempotency-Key": "job-18"})
    assert fresh.status_code == 202


def test_an_idempotency_key_holds_across_an_upgrade(tmp_path):
    engine = engine_of(f"sqlite:///{tmp_path}/service.db")
    queue = DBOSClient(system_database_url=dbos_url(f"sqlite:///{tmp_path}/service.db"), system_database_engine=engine)
    body = read_search(json.dumps(QUESTION).encode())
    older = {name: value for name, value in body.items() if name not in ("price", "memory_margin", "fix")}
    first, _ = searches.submit(engine, queue, "", older, "job-17")
    assert searches.submit(engine, queue, "", body, "job-17") == (first, False)
    for changes in ({"fix": ["tp=2"]}, {"memory_margin": 0.1}, {"top": 20}):
        with pytest.raises(searches.ConflictError):
            searches.submit(engine, queue, "", {**body, **changes}, "job-17")
    queue.destroy()
    engine.dispose()


def test_a_search_without_a_legal_plan_is_done_with_the_reason(with_worker):
    identity = with_worker.post("/v1/searches", json={**QUESTION, "fix": ["tp=3"]}).json()["id"]
    found = wait_for(lambda: ended(with_worker, identity))
    assert found["state"] == "done" and found["problem"] is None
    answer = with_worker.get(f"/v1/searches/{identity}/plans").json()
    assert answer["plans"] == [] and "tp=3 is not among" in answer["nothing_legal"]["why"]


def test_a_search_that_cannot_be_answered_fails_with_its_problem(with_worker):
    many = {"model": "deepseek-v3", "gpu": "h100", "gpus": 30240, "global_batch_size": 14_414_400}
    many |= {"num_layers": 720, "num_moe_experts": 720}
    identity = with_worker.post("/v1/searches", json=many).json()["id"]
    found = wait_for(lambda: ended(with_worker, identity))
    assert found["state"] == "failed" and "layouts to look at, more than" in found["problem"]["detail"]
    assert with_worker.get(f"/v1/searches/{identity}/plans").status_code == 409


@tabled
def test_what_no_search_can_answer_is_refused_at_once(with_worker, changes, field, word):
    refused = with_worker.post("/v1/searches", json={**QUESTION, **changes})
    assert refused.status_code == 422 and word in refused.json()["detail"], refused.text
    assert refused.json().get("field") == field


def test_cancelled_before_a_worker_comes(services):
    service = services("--workers", "1", "--search-workers", "0")
    with service.client() as client:
        identity = client.post("/v1/searches", json=QUESTION).json()["id"]
        other = client.post("/v1/searches", json=QUESTION).json()["id"]
        assert client.delete(f"/v1/searches/{identity}").json()["state"] == "cancelled"
        worker = begin_worker(service.database)
        try:
            assert wait_for(lambda: ended(client, other))["state"] == "done"
            assert client.get(f"/v1/searches/{identity}").json()["state"] == "cancelled"
            assert client.delete(f"/v1/searches/{other}").json()["state"] == "done"
        finally:
            worker.terminate()
            assert worker.wait(30) == 0


def test_metrics_count_searches_trials_and_bugs(tmp_path, monkeypatch):
    app = create_app(ServiceSettings(database=f"sqlite:///{tmp_path}/service.db"))
    engine = app.state.service.engine
    app.state.service.compute._running = {"a", "b"}
    monkeypatch.setattr(searches, "listed", lambda *_, **__: 1 / 0)

    async def ask() -> list[str]:
        inside = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=inside, base_url="http://localhost") as client:
            found = [(await client.post("/v1/searches", json=QUESTION)).json()["id"] for _ in range(2)]
            for outcome in ("measured", "measured", "failed"):
                searches.say(engine, found[0], searches.TRIAL, {"outcome": outcome, "text": "trial"})
            searches.cancel(engine, found[0])
            assert (await client.get("/v1/searches")).status_code == 500
            return (await client.get("/metrics")).text.splitlines()

    lines = asyncio.run(ask())
    for name, value in {
        'searches{state="queued"}': 1, 'searches{state="cancelled"}': 1, 'searches{state="done"}': 0,
        'trials{outcome="measured"}': 2, 'trials{outcome="failed"}': 1, "answers_waiting": 2,
        'request_seconds_count{route="/v1/searches",status="500"}': 1,
    }.items():  # fmt: skip
        assert f"autoconfig_{name} {value:.1f}" in lines
    engine.dispose()


OLDER = (
    "CREATE TABLE autoconfig_workers (id VARCHAR(64) PRIMARY KEY, beat INTEGER NOT NULL)",
    "INSERT INTO autoconfig_workers VALUES ('a', 3)",
    "CREATE TABLE autoconfig_searches (number INTEGER NOT NULL PRIMARY KEY, id VARCHAR(36) NOT NULL UNIQUE, owner VARCHAR(32) "
    "NOT NULL, idempotency_key VARCHAR(200), body TEXT NOT NULL, state VARCHAR(16) NOT NULL, created DATETIME NOT NULL, "
    "started DATETIME, ended DATETIME, result BLOB, problem BLOB, UNIQUE (owner, idempotency_key))",
    "INSERT INTO autoconfig_searches (number, id, owner, body, state, created) VALUES (1, "
    "'7b0f7a5e-6b6e-4c0e-9f0c-0d6f7f6f7f6f', 'key', '{}', 'queued', '2026-11-20 10:00:00')",
)
"""Tables as earlier releases made them, with a row each."""


def test_a_database_of_an_older_version_gets_what_came_later(tmp_path):
    url = f"sqlite:///{tmp_path}/old.db"
    old = sa.create_engine(url)
    with old.begin() as connection:
        for statement in OLDER:
            connection.execute(sa.text(statement))
    old.dispose()
    for _ in range(2):
        engine = engine_of(url)
        with engine.connect() as connection:
            assert connection.execute(sa.select(WORKERS)).all() == [("a", 3, None, None, None)]
        assert "autoconfig_searches_by_state" in {index["name"] for index in sa.inspect(engine).get_indexes(SEARCHES.name)}
        engine.dispose()
    queue = DBOSClient(system_database_url=dbos_url(url), system_database_engine=engine)
    [before] = searches.listed(engine, after=0, limit=9, owner="key")
    assert searches.submit(engine, queue, "key", read_search(json.dumps(QUESTION).encode()), quota=2)[0].number == 2
    searches.requeue(engine, queue, before.id, stale=False)
    assert [one.status for one in queue.list_workflows(workflow_ids=[before.id])] == ["ENQUEUED"]
    queue.destroy()
    engine.dispose()


@pytest.mark.soak
def test_kills_and_pauses_on_sqlite(tmp_path):
    run_with_kills(f"sqlite:///{tmp_path}/service.db", **SOAK)


@pytest.fixture(scope="module")
def client(service) -> Client:
    return Client(service.url)


def test_plans_and_their_scripts(client, tmp_path):
    asked = {**QUESTION, "fix": ["tp=2"], "top": 2}
    found = client.plans(**asked)
    first = found.plans[0]
    assert len(found.plans) == 2 and first.rank == 1 and "tp=2" in first.short and found.calibration.startswith("published-")
    assert first.step_seconds_p5 < first.step_seconds < first.step_seconds_p95 and 0 < first.peak_gib < first.limit_gib
    assert first.tokens_per_second_per_gpu == first.body["tokens_per_second_per_gpu"] and 0 < first.fit_probability <= 1
    files = client.export(first.short, **asked)
    options = ("--model", "1.7b", "--gpus", "8", "--gpu", "a100-80gb", "--output", str(tmp_path / "x"))
    assert run_in_process("export", *options, first.short).exit_code == 0
    assert files == {path.name: path.read_text() for path in (tmp_path / "x").glob("[!.]*")}


def test_what_chooses_a_plan_is_what_an_export_does_not_ask():
    assert {*PlansBody.model_fields} - {*ExportBody.model_fields} == {*field_names(SEARCH)}


def test_a_submission_is_safe_to_repeat(client):
    first, again = (client.submit(**QUESTION, idempotency_key="job-1") for _ in range(2))
    assert first.id == again.id and client.submit(**QUESTION).id != first.id
    with pytest.raises(TimeoutError, match="it goes on in the service"):
        client.wait(client.submit(**QUESTION).id, seconds=0, every=0)
    assert client.cancel(first.id).over


def test_refusals_say_what_to_change(client):
    with pytest.raises(ServiceError, match="422: ") as refused:
        client.plans(model="lama3-70b", gpus=8, gpu="h100")
    assert (refused.value.status, refused.value.field, refused.value.nearest) == (422, "model", "llama3-70b")
    with pytest.raises(ServiceError, match="404"):
        client.search("../../../etc")


def test_nobody_there(monkeypatch):
    waits: list[float] = []
    monkeypatch.setattr("autoconfig.client.time.sleep", waits.append)
    with pytest.raises(ServiceError, match="does not answer") as error:
        Client("http://127.0.0.1:1").plans(**QUESTION)
    assert error.value.status == 0 and waits == [0.5, 1.0, 2.0]


COMPUTED = {"model": "1.7b", "gpus": 8, "gpu": "h100-sxm-80gb", "memory_margin": 0.0, "top": 1, "sort_by": "step"}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # pebble's, which is the point
def test_a_pool_that_has_failed_is_started_again():
    """What cannot be handed to another process ends pebble's thread that hands out work, and with it the pool."""
    compute = Compute(1, 60.0, 1_000)
    compute.start()

    async def ask() -> None:
        assert (await compute.run("plans", COMPUTED)).status == 200
        deep: dict[str, object] = {}
        for _ in range(2_000):
            deep = {"a": deep}
        [pool] = compute._pools
        pool.schedule(answer, args=("plans", deep))
        while pool.active:
            await asyncio.sleep(0.01)
        found = await compute.run("plans", COMPUTED)
        assert (found.status, found.body) == answer("plans", COMPUTED)

    with ThreadPoolExecutor(1) as thread:  # the browser of other tests leaves a loop running in this one
        thread.submit(lambda: asyncio.run(asyncio.wait_for(ask(), 120))).result()
    compute.stop()
