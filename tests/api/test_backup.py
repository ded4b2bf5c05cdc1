"""The commands of docs/service.md, section Back up, as they stand there: a copy while the service runs, and the way back."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import psycopg
import pytest
from autoconfig.api.store import create_key, engine_of

from tests.api.cluster import QUESTION, begin_worker, ended, wait_for
from tests.api.conftest import ROOT, start

pytestmark = pytest.mark.xdist_group("service-postgresql")
SECTION = (ROOT / "docs" / "service.md").read_text().split("### Back up\n")[1].split("\n### ")[0]


def documented(program: str) -> list[str]:
    """The command of this program in the section."""
    assert shutil.which(program), f"{program} is missing: run tools/install_services.sh"
    found = re.search(rf"(?:^ {{4}}|# |`)({program} [^`#\n]*)", SECTION, re.MULTILINE)
    assert found, program
    return shlex.split(found[1])


def run(command: list[str], folder: Path, url: str) -> None:
    done = subprocess.run(
        [word.replace("URL", url) for word in command], cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
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
