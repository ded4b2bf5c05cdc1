"""Keys: who may ask what, on every route; at once when revoked; rate limits; addresses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from autoconfig.api.app import create_app, every_route
from autoconfig.api.store import SCOPES, RateLimit, ServiceSettings
from command_line import run_in_process, run_process
from study_help import fake_python

from tests.api.conftest import ROOT, Running, environment

pytestmark = pytest.mark.xdist_group("api")

OPEN = {"/", "/page/{name}"}
"""Static files of the page: a person needs them to type the key in."""


@pytest.fixture(scope="module")
def locked(services) -> Running:
    return services("--workers", "1", "--keys")


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
    yield "GET", "/openapi.json"


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
    with locked.client() as client:
        for method, path in found:
            for key in (None, "ac_0_0", keys["read"][:-1], keys["read"] + "x", "nonsense", "ä", revoked):
                headers = {"Authorization": f"Bearer {key}".encode()} if key else {}
                answer = client.request(method, path, headers=headers)
                assert answer.status_code == 401, (method, path, key)
                assert answer.headers["www-authenticate"].startswith("Bearer")


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


def test_a_revoked_key_follows_no_search_on(locked, keys):
    with locked.client(keys["admin"]) as client:
        body = {"model": "1.7b", "gpus": 8, "gpu": "a100-80gb", "profile": True}
        search = client.post("/v1/searches", json=body).json()["id"]  # stays queued: nobody measures here
    key = make_key(locked, "read")
    with locked.client(key) as client, client.stream("GET", f"/v1/searches/{search}/events") as stream:
        lines = stream.iter_lines()
        assert next(lines) == "id: 1"
        assert run_in_process("keys", "revoke", key.split("_")[1], "--database", locked.database).exit_code == 0
        for line in lines:
            assert line != ": still here", "the stream goes on"


def test_secrets_are_not_stored(locked, keys):
    data = Path(locked.database.removeprefix("sqlite:///")).read_bytes()
    assert not any(key.split("_", 2)[2].encode() in data for key in keys.values())


def test_rate_limit(services):
    slow = services("--workers", "1", "--keys", "--requests-per-second", "1")
    with slow.client(make_key(slow, "read")) as client:
        answers = [client.get("/healthz") for _ in range(6)]
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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "0.0.0.0", "--no-keys"], "--without-keys"),
        (["--host", "256.1.1.1", "--without-keys"], "cannot listen"),
        (["--database", "mysql://x"], "sqlite"),
        (["--database", "nonsense"], "URL"),
        (["--database", "sqlite:////no/such/folder/x.db"], "cannot be used"),
    ],
)
def test_services_that_cannot_start(arguments, words):
    done = run_process("serve", "--port", "0", *arguments, text=True)
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--profile-folder", "/proc/x"], "--profile-folder '/proc/x' cannot be used"),
        (["--profile-folder", "{place}", "--python", "/no/python"], "--python /no/python cannot be started"),
        (["--runner", "slurm"], "--runner is for a worker that measures: say --profile-folder"),
    ],
)
def test_workers_that_cannot_start(arguments, words, tmp_path):
    given = [word.format(place=tmp_path) for word in arguments]
    done = run_process("worker", "--database", f"sqlite:///{tmp_path}/s.db", *given, text=True)
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr


def test_a_worker_says_what_it_does(tmp_path):
    options = ("--profile-folder", str(tmp_path / "work"), "--python", str(fake_python(tmp_path)))
    for given, words in (((), "measures none (no --profile-folder)"), (options, f"local jobs in {tmp_path}/work")):
        command = [sys.executable, "-m", "autoconfig", "worker", "--database", f"sqlite:///{tmp_path}/s.db", *given]
        worker = subprocess.Popen(command, cwd=ROOT, env=environment(), text=True, stderr=subprocess.PIPE)
        assert worker.stderr is not None
        line = worker.stderr.readline()
        assert line.startswith("worker ") and words in line and "2 at a time" in line
        worker.terminate()
        worker.communicate(timeout=60)


def test_another_address_asks_for_keys(services):
    everywhere = services("--workers", "1", "--host", "0.0.0.0")
    port = everywhere.url.rsplit(":", 1)[1]
    assert httpx.get(f"http://127.0.0.1:{port}/v1/gpus").status_code == 401


@pytest.mark.parametrize("arguments", [["--name", "", "--scope", "read"], ["--name", "x", "--scope", "reed"], ["--name", "x"]])
def test_keys_that_cannot_be_made(arguments, tmp_path):
    done = run_in_process("keys", "create", *arguments, "--database", f"sqlite:///{tmp_path}/k.db")
    assert done.exit_code == 2 and "Traceback" not in done.stderr
