"""Real services and workers as processes, asked over HTTP; any of them may be killed and started again."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psycopg
import pytest
import sqlalchemy as sa
from autoconfig.api import searches
from autoconfig.api.answers import answer
from autoconfig.api.store import WORKERS
from autoconfig.api.wire.bodies import PlansBody, read_body
from autoconfig.specs.import_path import import_path

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
        [sys.executable, "-m", "autoconfig", "serve", "--port", "0", *arguments],
        cwd=ROOT,
        env={**environment(), "AUTOCONFIG_DATABASE": database},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    if not line.startswith("listening on "):
        process.terminate()
        raise AssertionError(line + process.stderr.read())
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


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One service without keys, and without a worker for searches: they stay queued. Tests leave no measured runs in it. It
    lives to the end, which costs nothing; a worker for searches asks its queue all the time."""
    database = f"sqlite:///{tmp_path_factory.mktemp('service')}/service.db"
    found = start(database, "--workers", "1", "--search-workers", "0", "--queued-searches", "10000")
    yield found
    found.stop()


@pytest.fixture(scope="module")
def http(service: Running) -> Iterator[httpx.Client]:
    """A client of it."""
    with service.client() as client:
        yield client


QUESTION = {"model": "1.7b", "gpus": 8, "gpu": "a100-80gb", "top": 3}
SLOW = {"model": "deepseek-v3", "gpus": 256, "gpu": "h100-sxm-80gb", "top": 3}
"""Some seconds of work."""


def wait_for(condition: Callable[[], object], seconds: float = 240.0) -> object:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = condition()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"it did not come about within {seconds:g} s")


STILL_SECONDS = 180.0
"""No search has moved for so long: they hang. How long they all take together says nothing where the machine is shared."""


def wait_for_all(client: httpx.Client, identities: list[str], meanwhile: Callable[[], object]) -> None:
    """Until all are over, as long as something moves."""
    before: list[str] = []
    until = time.monotonic() + STILL_SECONDS
    while time.monotonic() < until:
        meanwhile()
        states = [client.get(f"/v1/searches/{identity}").json()["state"] for identity in identities]
        if not {"queued", "running"} & set(states):
            return
        if states != before:
            before, until = states, time.monotonic() + STILL_SECONDS
        time.sleep(0.5)
    raise AssertionError(f"no search has moved for {STILL_SECONDS:.0f} s: {dict(zip(identities, before, strict=True))}")


def ended(client: httpx.Client, identity: str) -> dict | None:
    found = client.get(f"/v1/searches/{identity}").json()
    return found if found["state"] in ("done", "failed", "cancelled") else None


def begin_worker(database: str, *arguments: str, root: Path = ROOT, **variables: str) -> subprocess.Popen[bytes]:
    """A worker of the packages under `root`."""
    command = [sys.executable, "-m", "autoconfig", "worker", *arguments]
    variables = {**environment(), "AUTOCONFIG_DATABASE": database, "PYTHONPATH": str(root), **variables}
    return subprocess.Popen(command, cwd=root, env=variables)


def take_up(engine: sa.Engine, identity: str) -> None:
    """Begin a search as a worker does that goes at once."""
    beat = {"beat": 0, "version": searches.WORKFLOW_VERSION, "profiles": 0, "beaten": None}
    with engine.begin() as connection:
        connection.execute(WORKERS.insert().values(id="passing", **beat))
    searches.begin(engine, identity, "passing")
    with engine.begin() as connection:
        connection.execute(WORKERS.delete().where(WORKERS.c.id == "passing"))


def answer_of(body: dict) -> bytes:
    """What the search must end with."""
    status, text = answer("plans", read_body(json.dumps(body).encode(), PlansBody))
    assert status == 200
    return text


PAUSE_SECONDS = (15.0, 18.0)
"""Longer than a worker may stand still before it is taken for dead: 12 s, and the beats and looks between."""


class Cluster:
    """Two replicas and two workers on one database, any of which may be killed, paused and started again."""

    def __init__(self, database: str) -> None:
        self.database = database
        self.services: list[Running] = [self._service() for _ in range(2)]
        self.workers = [begin_worker(database) for _ in range(2)]
        self.paused: dict[int, float] = {}
        """Process id of a paused worker -> when it is woken."""
        self.taken_for_dead = 0

    def _service(self) -> Running:
        return start(self.database, "--workers", "1", "--search-workers", "0")

    def kill(self, chance: random.Random) -> None:
        """kill -9 of one process; another one takes its place."""
        which = chance.randrange(4)
        if which < 2:
            self.services[which].process.kill()
            self.services[which].process.wait()
            assert self.services[which].process.stderr is not None
            self.services[which].process.stderr.close()
            self.services[which] = self._service()
            return
        self.workers[which - 2].kill()
        self.workers[which - 2].wait()
        self.paused.pop(self.workers[which - 2].pid, None)
        self.workers[which - 2] = begin_worker(self.database)

    def pause(self, chance: random.Random) -> float:
        """SIGSTOP of a worker, as a machine's suspension is to it, for so many seconds; both may be paused at once."""
        worker, seconds = chance.choice(self.workers), chance.uniform(*PAUSE_SECONDS)
        worker.send_signal(signal.SIGSTOP)
        self.paused[worker.pid] = time.monotonic() + seconds
        return seconds

    def supervise(self) -> None:
        """Wake who was paused for long enough; start again who found out that it was taken for dead."""
        for number, worker in enumerate(self.workers):
            if time.monotonic() >= self.paused.get(worker.pid, float("inf")):
                worker.send_signal(signal.SIGCONT)
                del self.paused[worker.pid]
            if worker.poll() is not None:
                self.taken_for_dead += 1
                self.workers[number] = begin_worker(self.database)

    def wait(self, seconds: float) -> None:
        """As long as that, under supervision."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.supervise()
            time.sleep(0.1)

    def submit(self, body: dict, key: str, chance: random.Random) -> str:
        """As a scheduler does: the same key again until an answer comes."""

        def attempt() -> str | None:
            self.supervise()
            try:
                with self.services[chance.randrange(2)].client() as client:
                    answer = client.post("/v1/searches", json=body, headers={"Idempotency-Key": key})
            except httpx.HTTPError:
                return None
            return answer.json()["id"] if answer.status_code in (200, 202) else None

        return str(wait_for(attempt))

    def stop(self) -> None:
        for worker in self.workers:
            worker.send_signal(signal.SIGCONT)
            worker.send_signal(signal.SIGTERM)
        for service in self.services:
            service.stop()
        for worker in self.workers:
            worker.wait(60)


def run_with_kills(database: str, kills: int, pauses: int, count: int, seed: int) -> None:
    """Every accepted search ends, exactly once, with its result, whatever is killed and paused. Every second pause passes
    without a kill, so that the other worker takes the paused one for dead, and most searches are submitted just before it ends:
    who wakes finds work in the queue."""
    chance, begun = random.Random(seed), time.monotonic()
    actions = [*["kill"] * kills, *["pause"] * pauses]
    chance.shuffle(actions)
    weights = [8 if action == "pause" else 1 for action in actions]
    before = chance.choices(range(len(actions)), weights, k=count)
    cluster, accepted = Cluster(database), {}
    try:
        paused = 0
        for at, action in enumerate(actions):
            cluster.wait(chance.uniform(0.0, 2.5))
            if action == "pause":
                seconds = cluster.pause(chance)
                paused += 1
                cluster.wait(seconds - 0.5 if paused % 2 else 0.0)
            for _ in range(before.count(at)):
                number = len(accepted)
                body = {**(SLOW if number % 3 == 0 else QUESTION), "memory_margin": (number + 1) / 10_000}
                accepted[cluster.submit(body, str(number), chance)] = body
            if action == "kill":
                cluster.kill(chance)
        while cluster.paused:
            cluster.wait(1.0)
        with cluster.services[0].client() as client:
            wait_for_all(client, list(accepted), cluster.supervise)
            rows = {search["id"]: search for search in client.get("/v1/searches", params={"limit": 500}).json()["searches"]}
            lost = [identity for identity in accepted if rows[identity]["state"] != "done"]
            ends = [client.get(f"/v1/searches/{one}/events").text.count('"state": "done"') for one in accepted]
            wrong = [
                one for one, body in accepted.items() if client.get(f"/v1/searches/{one}/plans").content != answer_of(body)
            ]
    finally:
        cluster.stop()
    print(
        f"\n{database.split(':')[0]}, seed {seed}: {kills} kills, {pauses} pauses of 15 to 18 s, {count} searches: "
        f"{len(lost)} lost, {sum(end > 1 for end in ends)} doubled, {len(rows) - count} twice accepted, {len(wrong)} wrong; "
        f"{cluster.taken_for_dead} workers found out that they were taken for dead; {time.monotonic() - begun:.0f} s"
    )
    assert not lost and not wrong and set(ends) == {1} and set(rows) == set(accepted)


SOAK = {
    "kills": int(os.environ.get("AUTOCONFIG_SOAK_KILLS", "80")),
    "pauses": int(os.environ.get("AUTOCONFIG_SOAK_PAUSES", "20")),
    "count": 72,
    "seed": int(os.environ.get("AUTOCONFIG_SOAK_SEED", "1")),
}
"""Of each database. Prints its figures (pytest -s)."""


def copied(folder: Path, **replaced: tuple[str, str]) -> Path:
    """The packages as another version has them: `api` is a copy, in whose modules a text is replaced by another."""
    (folder / "autoconfig").mkdir(parents=True)
    for part in (import_path() / "autoconfig").iterdir():
        if part.name != "api":
            (folder / "autoconfig" / part.name).symlink_to(part.resolve())
    copy = shutil.copytree(ROOT / "api", folder / "autoconfig" / "api", ignore=shutil.ignore_patterns("__pycache__"))
    for module, (before, after) in replaced.items():
        [file] = [path for path in copy.rglob(f"{module}.py") if before in path.read_text()]
        file.write_text(file.read_text().replace(before, after))
    return folder
