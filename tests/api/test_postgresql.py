"""Two replicas and two workers on a real PostgreSQL: the same as on SQLite, whatever is killed; docs/service.md's backup."""

import json
import re
import shlex
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from autoconfig.api import measurements, searches
from autoconfig.api.store import create_key, engine_of

from tests.api.conftest import QUESTION, ROOT, SOAK, begin_worker, ended, run_with_kills, start, wait_for

pytestmark = [pytest.mark.service, pytest.mark.xdist_group("service-postgresql")]


@pytest.mark.bounds
def test_one_kill(database):
    """And many, with pauses: `make soak`."""
    run_with_kills(database, kills=1, pauses=0, count=2, seed=3)


def test_runs_that_come_at_once_are_all_kept_and_the_latest_calibration_stays(database):
    engine = engine_of(database)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: measurements.add(engine, "key", [{"id": f"job-{number}"}]), range(16)))
    revision, runs = measurements.runs_of(engine, "key")
    assert revision == 16 and {run["id"] for run in runs} == {f"job-{number}" for number in range(16)}
    assert measurements.current(engine, "key") is None
    for fitted in (revision, revision - 1):
        measurements.store(engine, "key", fitted, json.dumps({"version": f"of {fitted}"}))
    assert measurements.current(engine, "key").version == "of 16"
    assert measurements.runs_of(engine, "other") == (0, [])
    with pytest.raises(measurements.TooManyError):
        measurements.add(engine, "key", [{"id": f"many-{number}"} for number in range(measurements.MAX_RUNS)])
    assert measurements.runs_of(engine, "key") == (revision, runs), "a refusal changes nothing"
    engine.dispose()


def test_without_the_database_the_service_says_to_try_again(database):
    service = start(database, "--workers", "1", "--search-workers", "0")
    server, name = database.rsplit("/", 1)
    try:
        with psycopg.connect(f"{server}/postgres", autocommit=True) as other, service.client() as client:
            search = client.post("/v1/searches", json=QUESTION).json()["id"]
            engine = engine_of(database)
            for outcome in ("measured", "measured", "out_of_memory"):
                searches.say(engine, search, searches.TRIAL, {"text": "trial", "outcome": outcome})
            engine.dispose()
            other.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false".encode())
            try:
                other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
                asked = [client.post(path, json=QUESTION) for path in ("/v1/plans", "/v1/searches")]
                asked += [client.get(path) for path in ("/metrics", f"/v1/searches/{search}", f"/v1/searches/{search}/events")]
                assert {(one.status_code, one.headers.get("retry-after")) for one in asked} == {(503, "2")}
                assert all("database" in one.json()["detail"] for one in asked)
            finally:
                other.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true".encode())
            assert client.post("/v1/plans", json=QUESTION).status_code == 200
            metrics = client.get("/metrics").text
            assert 'autoconfig_request_seconds_count{route="/v1/searches",status="503"} 1.0' in metrics
            assert 'autoconfig_trials{outcome="measured"} 2.0' in metrics
            assert 'autoconfig_trials{outcome="out_of_memory"} 1.0' in metrics
    finally:
        service.stop()


@pytest.mark.soak
def test_kills_and_pauses(database):
    run_with_kills(database, **SOAK)


SECTION = (ROOT / "docs" / "service.md").read_text().split("### Back up\n")[1].split("\n### ")[0]


def documented(program: str) -> list[str]:
    """The command of this program in the section."""
    assert shutil.which(program), f"{program} is missing: run tools/install_services.sh"
    found = re.search(rf"(?:^ {{4}}|# |`)({program} [^`#\n]*)", SECTION, re.MULTILINE)
    assert found, program
    return shlex.split(found[1])


def run(command: list[str], folder: Path, url: str) -> None:
    done = subprocess.run(
        [word.replace("URL", url) for word in command], cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.soak
@pytest.mark.parametrize("kind", [pytest.param("sqlite", marks=pytest.mark.soak), "postgresql"])
def test_a_copy_made_while_the_service_runs_brings_it_back(kind, postgres, tmp_path):
    url = f"sqlite:///{tmp_path}/service.db"
    if kind == "postgresql":
        url = postgres.rsplit("/", 1)[0] + "/backup"
        with psycopg.connect(postgres, autocommit=True) as connection:
            connection.execute(b"CREATE DATABASE backup")
    engine = engine_of(url)
    key = create_key(engine, "team", ("admin",))
    engine.dispose()
    service, worker = start(url, "--workers", "1", "--search-workers", "0", "--keys"), begin_worker(url)
    with service.client(key) as client:
        done = client.post("/v1/searches", json=QUESTION).json()["id"]
        assert wait_for(lambda: ended(client, done))["state"] == "done"
        answer = client.get(f"/v1/searches/{done}/plans").content
        worker.terminate()
        worker.wait(60)
        queued = client.post("/v1/searches", json={**QUESTION, "gpus": 16}).json()["id"]
        run(documented("pg_dump" if kind == "postgresql" else "sqlite3"), tmp_path, url)
        after = client.post("/v1/searches", json=QUESTION).json()["id"]
    service.stop()
    if kind == "postgresql":
        run(documented("pg_restore"), tmp_path, url)
    else:
        for file in tmp_path.glob("service.db*"):
            file.unlink()
        (tmp_path / "copy.db").rename(tmp_path / "service.db")
    service, worker = start(url, "--workers", "1", "--search-workers", "0", "--keys"), begin_worker(url)
    try:
        with service.client(key) as client:
            assert client.get(f"/v1/searches/{done}/plans").content == answer
            assert client.get(f"/v1/searches/{after}").status_code == 404
            assert wait_for(lambda: ended(client, queued))["state"] == "done"
    finally:
        worker.terminate()
        worker.wait(60)
        service.stop()
