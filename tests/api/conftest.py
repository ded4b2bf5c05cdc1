"""Real services as processes, asked over HTTP."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psycopg
import pytest

ROOT = Path(__file__).parents[2]
PATIENCE = 300.0


@dataclass
class Running:
    """A service that listens."""

    process: subprocess.Popen[str]
    url: str
    database: str

    def client(self, key: str | None = None) -> httpx.Client:
        """A client, with a key where given."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE)

    def stop(self) -> None:
        """End it as a supervisor does."""
        self.process.terminate()
        self.process.wait(PATIENCE)
        if self.process.stderr is not None:
            self.process.stderr.close()


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def start(database: str, *arguments: str) -> Running:
    """Start a service and wait until it listens."""
    process = subprocess.Popen(
        [sys.executable, "-m", "autoconfig", "serve", "--port", "0", "--database", database, *arguments],
        cwd=ROOT,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    assert line.startswith("listening on "), line + process.stderr.read()
    return Running(process, line.split()[-1], database)


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Running]]:
    """Starts services that end with the tests of the file: each is several processes that hold memory and ask a database."""
    running: list[Running] = []

    def begin(*arguments: str) -> Running:
        folder = tmp_path_factory.mktemp("service")
        running.append(start(f"sqlite:///{folder}/service.db", *arguments))
        return running[-1]

    yield begin
    for one in running:
        one.stop()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """A PostgreSQL server: the URL of a database of it."""
    from postgres_help import postgres_server

    with postgres_server() as url:
        yield url


@pytest.fixture(scope="module")
def database(postgres: str, request: pytest.FixtureRequest) -> str:
    """A new database for the module."""
    name = request.module.__name__.rsplit(".", 1)[-1]
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return postgres.rsplit("/", 1)[0] + f"/{name}"


@pytest.fixture(scope="module")
def service(services: Callable[..., Running]) -> Running:
    """One service without keys."""
    return services("--workers", "1")


@pytest.fixture(scope="module")
def http(service: Running) -> Iterator[httpx.Client]:
    """A client of it."""
    with service.client() as client:
        yield client
