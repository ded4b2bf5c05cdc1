"""Keys, rates and sizes: who may ask what, on every route, how often and how much; measured runs are of their key."""

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
import sqlalchemy as sa
import uvicorn
from autoconfig.api import http as protocol
from autoconfig.api import searches
from autoconfig.api.app import create_app, every_route
from autoconfig.api.http import Limits
from autoconfig.api.limits import WRONG_KEYS, Logins
from autoconfig.api.problems import RefusedError
from autoconfig.api.routes.answers import MEASUREMENT_EXAMPLE
from autoconfig.api.store import SCOPES, RateLimit, ServiceSettings, create_key, dbos_url, engine_of
from autoconfig.api.wire.bodies import read_search
from command_line import run_in_process
from dbos import DBOSClient
from job_help import wait_until
from starlette.requests import Request
from starlette.responses import Response
from tables import tabled

from autoconfig.calibration.calibrate import calibrate_file
from autoconfig.client import Client, ServiceError
from tests.api.conftest import ROOT, Running, environment, wait_for

pytestmark = [pytest.mark.service, pytest.mark.xdist_group("api")]
OPEN = {"/", "/page/{name}", "/docs", "/openapi.json", "/healthz", "/readyz"}
"""Static files of the page, which a person needs to type the key in; the list of endpoints; probes, which hold no key."""


@pytest.fixture(scope="module")
def locked(services) -> Running:
    return services("--workers", "1", "--keys", "--search-workers", "1")


def make_key(service: Running, *scopes: str) -> str:
    arguments = [word for scope in scopes for word in ("--scope", scope)]
    done = run_in_process("keys", "create", "--name", "test", *arguments, "--database", service.database)
    assert done.exit_code == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def keys(locked) -> dict[str, str]:
    return {scope: make_key(locked, scope) for scope in SCOPES}


def routes(service: Running, key: str) -> Iterator[tuple[str, str]]:
    """(method, path) of every operation."""
    with service.client(key) as client:
        document = client.get("/openapi.json").json()
    for path, operations in document["paths"].items():
        if path in OPEN:
            assert [*operations] == ["get"] and operations["get"]["security"] == []
            continue
        for method in operations:
            yield method.upper(), re.sub(r"\{[^}]*\}", "0", path)


@pytest.fixture(scope="module")
def revoked(locked) -> str:
    """A key of every scope that was good, and used, until it was revoked."""
    key = make_key(locked, *SCOPES)
    with locked.client(key) as client:
        assert client.get("/v1/gpus").status_code == 200
    assert run_in_process("keys", "revoke", key.split("_")[1], "--database", locked.database).exit_code == 0
    return key


def test_the_document_has_every_route(locked, keys, tmp_path):
    """What is walked over below is what the application answers, and nothing more."""
    app = create_app(ServiceSettings(database=f"sqlite:///{tmp_path}/s.db"))
    answered = {(method, route.path) for route in every_route(app.routes) for method in route.methods - {"HEAD"}}
    with locked.client(keys["admin"]) as client:
        document = client.get("/openapi.json").json()
    told = {(method.upper(), path) for path, operations in document["paths"].items() for method in operations}
    assert answered == told | {("GET", "/openapi.json")}
    assert {("POST", "/v1/deployments"), ("POST", "/v1/measurements"), ("GET", "/v1/searches/{search_id}/export")} <= told


def test_every_route_needs_a_key(locked, keys, revoked):
    found = [*routes(locked, keys["admin"])]
    assert len(found) >= 11
    statuses: list[int] = []
    with locked.client() as client:
        for method, path in found:
            for key in (None, "ac_0_0", keys["read"][:-1], keys["read"] + "x", "nonsense", "ä", revoked):
                headers = {"Authorization": f"Bearer {key}".encode()} if key else {}
                headers["X-Forwarded-For"] = f"198.51.100.{len(statuses) % 250}".encode()  # believed of no proxy but those said
                answer = client.request(method, path, headers=headers)
                refused = (401, 429) if key else (401,)  # an address that tries many wrong keys has to wait
                assert answer.status_code in refused, (method, path, key)
                if answer.status_code == 401:
                    assert answer.headers["www-authenticate"].startswith("Bearer")
                statuses.append(answer.status_code)
    assert statuses.count(429) > statuses.count(401) / 2 and 429 not in statuses[: WRONG_KEYS - 5]
    with locked.client(make_key(locked, "read")) as client:
        wait_for(lambda: client.get("/v1/gpus").status_code == 200, 10)


def test_every_route_needs_its_scope(locked, keys):
    """One scope passes, and admin's."""
    clients = {scope: locked.client(key) for scope, key in keys.items()}
    for method, path in routes(locked, keys["admin"]):
        found = {scope: client.request(method, path).status_code for scope, client in clients.items()}
        assert found.pop("admin") not in (401, 403), (method, path)
        assert sorted(status == 403 for status in found.values()) == [False, True, True], (method, path, found)
        assert 401 not in found.values()
    for client in clients.values():
        client.close()


def test_a_revoked_key_is_refused_at_once(locked):
    key = make_key(locked, "read")
    with locked.client(key) as client:
        assert client.get("/v1/gpus").status_code == 200
        assert run_in_process("keys", "revoke", key.split("_")[1], "--database", locked.database).exit_code == 0
        assert client.get("/v1/gpus").status_code == 401
    assert run_in_process("keys", "revoke", key.split("_")[1], "--database", locked.database).exit_code == 2
    listed = json.loads(run_in_process("keys", "list", "--json", "--database", locked.database).stdout)["keys"]
    assert [row["revoked"] is not None for row in listed if row["id"] == key.split("_")[1]] == [True]
    assert key.split("_", 2)[2] not in json.dumps(listed)


UNBEGUN = {"model": "1.7b", "gpus": 8, "gpu": "a100-80gb", "profile": True}
"""A search that stays queued: nobody measures here."""


def test_a_search_belongs_to_the_key_that_made_it(locked, keys):
    team, admin = make_key(locked, "profile", "read"), keys["admin"]
    with locked.client(team) as client:
        search = client.post("/v1/searches", json=UNBEGUN).json()["id"]
    engine = engine_of(locked.database)
    queue = DBOSClient(system_database_url=dbos_url(locked.database), system_database_engine=engine)
    before = searches.submit(engine, queue, "", read_search(json.dumps(UNBEGUN).encode()))[0].id
    queue.destroy()
    engine.dispose()

    def listed(key: str) -> set[str]:
        with locked.client(key) as client:
            return {row["id"] for row in client.get("/v1/searches", params={"limit": 500}).json()["searches"]}

    assert listed(team) == {search} and {search, before} <= listed(admin)
    looks = ("", "/events", "/plans", "/export")
    for key in (keys["read"], make_key(locked, "profile", "read", "plan")):
        assert not listed(key) & {search, before}
        with locked.client(key) as client:
            for path in (f"/v1/searches/{search}{look}" for look in looks):
                assert client.get(path).status_code == 404, path
    for key in (keys["profile"], make_key(locked, "profile")):
        with locked.client(key) as client:
            assert client.delete(f"/v1/searches/{search}").status_code == 404
    with locked.client(team) as client:
        assert client.get(f"/v1/searches/{search}").json()["state"] == "queued", "no other key has cancelled it"
        assert client.get(f"/v1/searches/{before}").status_code == 404
        assert client.delete(f"/v1/searches/{search}").json()["state"] == "cancelled"
    with locked.client(admin) as client:
        assert client.get(f"/v1/searches/{search}").json()["state"] == "cancelled"
        assert client.delete(f"/v1/searches/{before}").json()["state"] == "cancelled"


def test_a_key_has_its_share_of_the_queue_and_keys_take_turns(tmp_path):
    app = create_app(ServiceSettings(database=f"sqlite:///{tmp_path}/service.db", keys_required=True, queued_searches=3))
    engine = app.state.service.engine
    first, second = (create_key(engine, name, ("profile",)) for name in ("first", "second"))

    async def ask() -> list[httpx.Response]:
        found = []
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client:
            for number, key in enumerate([*[first] * 3, second, first]):
                headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": f"{number}"}
                found.append(await client.post("/v1/searches", json=UNBEGUN, headers=headers))
            repeated = {"Authorization": f"Bearer {first}", "Idempotency-Key": "0"}
            found.append(await client.post("/v1/searches", json=UNBEGUN, headers=repeated))
        return found

    answers = asyncio.run(ask())
    assert [answer.status_code for answer in answers] == [202, 202, 202, 202, 429, 200]
    assert int(answers[4].headers["retry-after"]) >= 1 and "3 of your searches wait" in answers[4].json()["detail"]
    ids = [answer.json()["id"] for answer in answers[:4]]
    assert searches.counts(engine)["queued"] == 4, "a refused one leaves nothing"
    with engine.connect() as connection:
        query = "SELECT workflow_uuid FROM workflow_status ORDER BY priority, created_at"
        order = [ids.index(identity) for identity in connection.execute(sa.text(query)).scalars()]
    assert order == [0, 3, 1, 2]
    engine.dispose()


def test_a_revoked_key_follows_no_search_on(locked):
    key = make_key(locked, "read", "profile")
    with locked.client(key) as client:
        search = client.post("/v1/searches", json=UNBEGUN).json()["id"]
    with locked.client(key) as client, client.stream("GET", f"/v1/searches/{search}/events") as stream:
        lines = stream.iter_lines()
        assert next(lines) == "id: 1"
        assert run_in_process("keys", "revoke", key.split("_")[1], "--database", locked.database).exit_code == 0
        for line in lines:
            assert line != ": still here", "the stream goes on"


def test_files_of_the_database_are_closed_to_other_users(tmp_path):
    file = tmp_path / "service.db"
    for earlier in (None, 0o644, 0o660):
        if earlier is not None:
            file.chmod(earlier)
        engine = engine_of(f"sqlite:///{file}")
        with engine.begin() as connection:  # a file for the log of what is written stands beside it
            connection.execute(sa.text("CREATE TABLE IF NOT EXISTS x (y INTEGER)"))
            modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
        assert set(modes) == {"service.db", "service.db-wal", "service.db-shm"}
        assert set(modes.values()) == {0o660 if earlier == 0o660 else 0o600}, "a group that was let in on purpose stays"
        engine.dispose()


def test_a_full_disk_is_said_as_such(tmp_path):
    """A real failure of SQLite: the file may not grow (https://sqlite.org/pragma.html#pragma_max_page_count)."""
    app = create_app(ServiceSettings(database=f"sqlite:///{tmp_path}/service.db"))
    engine = app.state.service.engine

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.post("/v1/searches", json=UNBEGUN)

    assert asyncio.run(ask()).status_code == 202
    engine.dispose()
    sa.event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA max_page_count=1").close())
    statuses = [asyncio.run(ask()) for _ in range(40)]
    assert statuses[-1].status_code == 503 and "disk of the database is full" in statuses[-1].json()["detail"]
    assert statuses[-1].headers["retry-after"]
    engine.dispose()


def test_secrets_are_not_stored(locked, keys):
    data = Path(locked.database.removeprefix("sqlite:///")).read_bytes()
    assert not any(key.split("_", 2)[2].encode() in data for key in keys.values())


@pytest.fixture(scope="module")
def slow(services) -> Running:
    return services("--workers", "1", "--search-workers", "0", "--host", "0.0.0.0", "--requests-per-second", "1")


def test_another_address_asks_for_keys_and_rates_are_limited(slow):
    port = slow.url.rsplit(":", 1)[1]
    assert httpx.get(f"http://127.0.0.1:{port}/v1/gpus").status_code == 401
    headers = {"Authorization": f"Bearer {make_key(slow, 'read')}"}
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers) as client:
        answers = [client.get("/v1/gpus") for _ in range(6)]
    limited = [answer for answer in answers if answer.status_code == 429]
    assert limited and int(limited[0].headers["retry-after"]) >= 1
    assert answers[0].status_code == answers[1].status_code == 200


def test_the_bucket_fills_again(monkeypatch):
    moment = [0.0]
    monkeypatch.setattr("autoconfig.api.store.time.monotonic", lambda: moment[0])
    limit = RateLimit(2.0)
    assert [limit.wait("a") for _ in range(4)] == [0.0] * 4
    assert limit.wait("a") == pytest.approx(0.5) and limit.wait("b") == 0.0
    moment[0] = 0.5
    assert limit.wait("a") == 0.0 and limit.wait("a") > 0.0


def test_wrong_keys_are_counted_by_address(monkeypatch):
    moment = [100.0]
    monkeypatch.setattr("autoconfig.api.limits.time.monotonic", lambda: moment[0])
    logins = Logins()

    def refused(address: str, key: str) -> bool:
        try:
            logins.refuse(address, key)
        except RefusedError as error:
            return error.status == 429 and int(error.headers["Retry-After"]) >= 1
        return False

    logins.tell("a", "good", True)
    for number in range(WRONG_KEYS):
        assert not refused("a", f"wrong {number}")
        logins.tell("a", f"wrong {number}", False)
    assert refused("a", "another") and not refused("b", "another") and not refused("a", "good")
    logins.tell("a", "good", False)  # revoked
    assert refused("a", "good")
    moment[0] += 0.4  # five a second come back, and one was owed
    assert not refused("a", "another")
    moment[0] += 3600
    for number in range(WRONG_KEYS):
        assert not refused("a", f"later {number}")
        logins.tell("a", f"later {number}", False)
    assert refused("a", "another")


def test_a_line_and_a_count_of_each_request(tmp_path):
    database = f"sqlite:///{tmp_path}/s.db"
    command = [sys.executable, "-m", "autoconfig", "serve", "--port", "0", "--database", database, "--keys"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(
        [*command, "--workers", "1", "--search-workers", "0"], cwd=ROOT, env=environment(), text=True, **pipes
    )
    service = Running(process, process.stderr.readline().split()[-1], database)
    made = run_in_process("keys", "create", "--name", 'team "a"\nb', "--scope", "read", "--database", database)
    with service.client(made.stdout.strip()) as client:
        codes = [client.get(path).status_code for path in ("/v1/models/175b?secret=1", "/healthz", "/v1/nothing", "/v1/plans")]
        metrics = client.get("/metrics").text
        client.post("/v1/plans", json={"model": "secret"})
    service.process.terminate()
    out, _ = service.process.communicate(timeout=60)
    assert codes == [200, 200, 404, 405] and "secret" not in out
    shape = r'time=[-:.+T\d]+ release=\S+ key=("(?:[^"\\]|\\.)*") method=([A-Z]+) route=(\S*) status=(\d+) seconds=\d+\.\d{4}'
    found = [re.fullmatch(shape, line).groups() for line in out.splitlines()]
    team = json.dumps('team "a"\nb')
    assert found == [
        (team, "GET", "/v1/models/{name}", "200"),
        ('""', "GET", "/healthz", "200"),
        ('""', "GET", "", "404"),
        ('""', "GET", "", "405"),
        (team, "GET", "/metrics", "200"),
        (team, "POST", "/v1/plans", "403"),
    ]
    name = team[1:-1]
    assert f'autoconfig_requests_total{{key="{name}",route="/v1/models/{{name}}",status="200"}} 1.0' in metrics


@tabled
def test_services_that_cannot_start(arguments, words):
    done = run_in_process("serve", "--port", "0", *arguments)
    assert done.exit_code == 2 and words in done.stderr and "Traceback" not in done.stderr
    assert "geheim" not in done.stderr


@tabled
def test_workers_that_cannot_start(arguments, words, tmp_path):
    given = [word.format(place=tmp_path) for word in arguments]
    done = run_in_process("worker", "--database", f"sqlite:///{tmp_path}/s.db", *given)
    assert done.exit_code == 2 and words in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [["--name", "", "--scope", "read"], ["--name", "x", "--scope", "reed"], ["--name", "x"]])
def test_keys_that_cannot_be_made(arguments, tmp_path):
    done = run_in_process("keys", "create", *arguments, "--database", f"sqlite:///{tmp_path}/k.db")
    assert done.exit_code == 2 and "Traceback" not in done.stderr


HEAD = b"POST /v1/plans HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def connected(url: str) -> socket.socket:
    address = urlsplit(url)
    return socket.create_connection((address.hostname, address.port), timeout=20)


def test_a_head_without_an_end_is_refused(service, http):
    answer = b""
    with connected(service.url) as line, suppress(ConnectionError):  # where it ends while more is sent, the answer is lost
        line.sendall(HEAD + b"X: ")
        for _ in range(64):
            line.sendall(b"a" * 2**14)
        answer = line.recv(100)
    assert not answer or answer.startswith(b"HTTP/1.1 431")
    assert http.get("/healthz").status_code == 200


def test_a_head_that_does_not_arrive_ends_the_connection(monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.05)

    async def ask(sent: bytes) -> bytes:
        async def app(scope, receive, send):
            await Response(b"yes")(scope, receive, send)

        config = uvicorn.Config(app, http=protocol.LimitedHead, ws="none", lifespan="off", log_level="error")
        config.load()
        state = uvicorn.Server(config).server_state
        listening = await asyncio.get_running_loop().create_server(
            lambda: protocol.LimitedHead(config=config, server_state=state, app_state={}), "127.0.0.1", 0
        )
        async with listening:
            reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
            writer.write(sent)
            found = await asyncio.wait_for(reader.read(), 20)
            writer.close()
        return found

    assert asyncio.run(ask(b"")) == b"" and asyncio.run(ask(HEAD)) == b""
    assert asyncio.run(ask(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")).startswith(b"HTTP/1.1 200")


def test_the_connection_that_is_idle_longest_makes_room(monkeypatch):
    """Those that are answered go on; probes are answered beyond uvicorn's limit of concurrency."""
    monkeypatch.setattr(protocol, "MOST_IDLE_OF_ONE", 3)
    monkeypatch.setattr(protocol.LimitedHead, "open", {})
    going_on = threading.Event()

    async def app(scope, receive, send):
        while scope["path"] == "/slow" and not going_on.is_set():
            await asyncio.sleep(0.01)
        await Response(b"yes")(scope, receive, send)

    config = uvicorn.Config(app, http=protocol.LimitedHead, ws="none", lifespan="off", log_level="error", port=0)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    with ExitStack() as held:
        held.callback(thread.join)
        held.callback(setattr, server, "should_exit", True)
        held.callback(going_on.set)
        wait_for(lambda: server.started)
        address = server.servers[0].sockets[0].getsockname()

        def begin(path: str) -> socket.socket:
            line = held.enter_context(socket.create_connection(address, timeout=20))
            line.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode() if path else b"GET")
            return line

        slow, used = begin("/slow"), begin("/quick")
        assert used.recv(12) == b"HTTP/1.1 200"
        waiting = [begin("") for _ in range(3)]
        wait_for(lambda: len(protocol.LimitedHead.open) == 5)
        used.sendall(b"GET /quick HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_for(lambda: [*protocol.LimitedHead.open][-1].cycle is not None)  # used last, so idle for the shortest time
        begin("")
        assert waiting[0].recv(10) == b""
        going_on.set()
        assert slow.recv(12) == b"HTTP/1.1 200" and len(protocol.LimitedHead.open) == 5
        config.limit_concurrency = 1
        assert [begin(path).recv(12)[-3:] for path in ("/quick", "/healthz", "/readyz?x")] == [b"503", b"200", b"200"]


def test_a_body_that_does_not_arrive_is_refused():
    async def app(scope, receive, send):
        await Request(scope, receive).body()

    async def ask() -> list[dict]:
        parts = [{"type": "http.request", "body": b"{", "more_body": True}]
        sent: list[dict] = []

        async def receive() -> dict:
            if parts:
                return parts.pop()
            await asyncio.sleep(20)
            raise AssertionError("it is waited for")

        async def send(message: dict) -> None:
            sent.append(message)

        await Limits(app, 1_000, body_seconds=0.05)({"type": "http", "headers": []}, receive, send)
        return sent

    assert [message.get("status") for message in asyncio.run(ask())] == [408, None]


RUN = MEASUREMENT_EXAMPLE["rows"][0]
QUESTION = {"model": "llama2-7b", "gpus": 8, "gpu": "h100-sxm-80gb", "top": 1}


def client_of(service, *scopes: str) -> Client:
    return Client(service.url, make_key(service, *scopes))


def test_runs_calibrate_the_answers_to_their_key(locked, tmp_path):
    mine, other = (client_of(locked, "read", "plan", "profile") for _ in range(2))
    question = {"model": "llama3-8b", "gpus": 8, "gpu": "h100-sxm-80gb", "top": 1}
    before = mine.plans(**question)
    predicted = mine.predict([RUN])["rows"][0]["pred_step_s"]
    runs = [
        {**RUN, "id": f"job-{number}", "metric_step_s": predicted * 1.3, "mbs": mbs} for number, mbs in ((1, 1), (2, 2), (3, 4))
    ]
    found = mine.measurements([*runs, {**RUN, "id": "job-4", "metric_step_s": None}, {**RUN, "id": "job-5", "status": "oom"}])
    assert (found.accepted, found.measurements) == (3, 3)
    assert {row["id"]: row["reason"] for row in found.left_out} == {
        "job-4": "no measured time",
        "job-5": "it ran out of memory",
    }
    after = mine.plans(**question)
    assert after.calibration == found.calibration != before.calibration
    assert after.plans[0].step_seconds > 1.1 * before.plans[0].step_seconds
    assert other.plans(**question).body == before.body
    assert mine.predict([RUN])["calibration"] == found.calibration
    assert mine.plans(**question, calibration="none").calibration == "documented-defaults"
    table = tmp_path / "runs.csv"
    columns = sorted({key for run in runs for key in run})
    table.write_text("\n".join([",".join(columns), *(",".join(str(run.get(key, "")) for key in columns) for run in runs)]))
    assert calibrate_file(table)[0].version == found.calibration
    search = mine.wait(mine.submit(**question).id, seconds=90)
    assert mine.search_plans(search.id).body == after.body


def test_runs_are_taken_back(locked):
    mine, other = (client_of(locked, "read", "plan", "profile") for _ in range(2))
    before = mine.plans(**QUESTION).calibration
    predicted = mine.predict([RUN])["rows"][0]["pred_step_s"]
    runs = [{**RUN, "id": name, "metric_step_s": predicted * 1.2, "mbs": mbs} for name, mbs in (("a/b ?", 1), ("b", 2))]
    both = mine.measurements(runs)
    assert [row["id"] for row in mine.measured()] == ["a/b ?", "b"] and [*other.measured()] == []
    with pytest.raises(ServiceError, match="404"):
        other.remove_measurements("b")
    assert mine.remove_measurements("a/b ?", "unknown") == 1
    alone = other.measurements(runs[1:])
    assert mine.plans(**QUESTION).calibration == alone.calibration != both.calibration
    assert other.remove_measurements("b") == 1 and other.plans(**QUESTION).calibration == before
    assert mine.remove_measurements(every=True) == 1 and [*mine.measured()] == []
    assert mine.plans(**QUESTION).calibration == before and mine.remove_measurements(every=True) == 0
    for query in ("", "?all=false", "?all=true&id=b", "?all=yes"):
        with locked.client(make_key(locked, "profile")) as client:
            assert client.delete(f"/v1/measurements{query}").status_code == 422, query


@tabled
def test_runs_that_cannot_calibrate(http, rows, status, said):
    answer = http.post("/v1/measurements", json={"rows": rows})
    assert answer.status_code == status and said in answer.text, answer.text
    assert http.get("/v1/measurements").json()["measurements"] == []


def test_a_calibration_file_of_the_server_cannot_be_named(http):
    with pytest.raises(ServiceError, match="leave it out"):
        Client(str(http.base_url)).plans(**QUESTION, calibration="runs-1-00000000")
    assert run_in_process("search", "--model", "175b", "--gpus", "64", "--calibration", "none", "--top", "1").exit_code == 0


URL = "postgresql://user:secret@127.0.0.1:1/none"


@pytest.mark.service
def test_no_process_of_a_service_has_its_database_among_its_arguments(tmp_path):
    """Neither the service nor a worker that it starts, nor is it inherited further than to the workers."""
    database = f"sqlite:///{tmp_path}/secret.db"
    process = subprocess.Popen(
        [sys.executable, "-m", "autoconfig", "serve", "--port", "0", "--workers", "1", "--search-workers", "1"],
        env={**os.environ, "AUTOCONFIG_DATABASE": database}, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
    )  # fmt: skip
    try:
        assert re.search("listening on", process.stderr.readline())
        wait_until(lambda: [one for one in commands(process) if "worker" in one], "no worker was started")
        said = commands(process)
    finally:
        process.terminate()
        process.stderr.close()
        process.wait(60)
    assert (tmp_path / "secret.db").exists() and not [words for words in said if "secret.db" in " ".join(words)]


def commands(process: subprocess.Popen[str]) -> list[list[str]]:
    return [one.cmdline() for one in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]]


@pytest.mark.parametrize(("words", "variable"), [
    (("keys", "list"), "AUTOCONFIG_DATABASE"), (("studies", "list"), "AUTOCONFIG_STORAGE"),
])  # fmt: skip
def test_a_url_with_a_password_belongs_into_the_environment(words, variable, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    name = "--" + variable.partition("_")[2].lower()
    warned = f"sees the password of {name}: give the URL as {variable}"
    given = run_in_process(*words, name, URL)
    assert given.exit_code == 2 and warned in given.stderr and "secret" not in given.stderr
    assert warned not in run_in_process(*words, name, URL.replace(":secret", "")).stderr
    monkeypatch.setenv(variable, URL)
    taken = run_in_process(*words)
    assert taken.exit_code == 2 and "127.0.0.1" in taken.stderr and warned not in taken.stderr and "secret" not in taken.stderr
    assert variable not in os.environ  # what a command starts does not inherit it
