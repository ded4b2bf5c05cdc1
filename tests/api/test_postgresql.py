"""Two replicas and two workers on a real PostgreSQL: the same as on SQLite, whatever is killed."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.api.cluster import run_with_kills
from tests.profiler.postgres_help import postgres_server

pytestmark = pytest.mark.xdist_group("service-postgresql")


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with postgres_server() as url:
        yield url


def test_one_kill(database):
    run_with_kills(database, 1, 3, seed=3)


@pytest.mark.soak
def test_ten_kills(database):
    run_with_kills(database, 10, 3, int(os.environ.get("AUTOCONFIG_SOAK_SEED", "1")))
