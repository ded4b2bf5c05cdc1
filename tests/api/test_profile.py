"""Searches that measure: workers that join, die and are upgraded while jobs run; no trial lost, none run twice.

The jobs are the stand-in of tests/profiler: real processes that answer from a record.
"""

import importlib.util
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from autoconfig.api import searches
from autoconfig.api.searches import Task
from autoconfig.api.store import WORKERS, engine_of
from autoconfig.api.wire.bodies import read_search
from autoconfig.api.work import profile
from autoconfig.profiler.folder import take
from autoconfig.profiler.runner import RunnerError
from background import left_over
from jsonschema import Draft202012Validator
from optuna.trial import TrialState
from study_help import fake_python

from autoconfig.study.session import Options
from autoconfig.study.storage import opened, sqlite_url
from tests.api.conftest import ROOT, Running, begin_worker, copied, ended, start, take_up, wait_for

pytestmark = [pytest.mark.service, pytest.mark.xdist_group("service-postgresql")]
QUESTION = {
    "model": "gpt3-1.7b", "gpus": 8, "gpu": "a100-80gb", "seq_length": 1024, "global_batch_size": 8,
    "software": "megatron-local", "num_layers": 4, "fix": ["recompute=none"], "max": ["pp=2"],
    "profile": True, "budget": "5trials",
}  # fmt: skip
"""A question with a few dozen candidates."""
SECONDS = "2"
"""Of every job."""


class Place:
    """A service, its profiling workers, and their jobs."""

    def __init__(self, folder: Path, service: Running) -> None:
        self.folder, self.database = folder, service.database
        self.python = fake_python(folder)
        self.client = service.client()
        self.engine = engine_of(service.database)
        self.workers: list[subprocess.Popen[bytes]] = []

    def worker(self, **more: object) -> subprocess.Popen[bytes]:
        """One more."""
        options = ("--profile-folder", str(self.folder / "work"), "--python", str(self.python))
        self.workers.append(begin_worker(self.database, *options, **{"STAND_IN_EVERY_SECONDS": SECONDS, **more}))
        return self.workers[-1]

    def search(self, **changes: object) -> str:
        """A new one's id."""
        accepted = self.client.post("/v1/searches", json={**QUESTION, **changes})
        assert accepted.status_code == 202, accepted.text
        return accepted.json()["id"]

    def events(self, identity: str) -> list[str]:
        """Their data, in order, so far."""
        return [event.data for event in searches.events(self.engine, identity, 0)]

    def beating(self) -> list[str]:
        """Workers that have joined and looked around."""
        with self.engine.connect() as connection:
            return [*connection.execute(sa.select(WORKERS.c.id).where(WORKERS.c.beat > 0)).scalars()]

    def runs(self) -> dict[str, int]:
        """Job folder -> how often it was started."""
        jobs = self.folder / "work" / "jobs"
        return {path.parent.name: len(path.read_text().split()) for path in jobs.glob("*/runs.txt")}

    def trials(self, identity: str) -> list:
        """Of the search's study."""
        url = self.database if self.database.startswith("postgres") else sqlite_url(self.folder / "work")
        with opened(url) as storage:
            return storage.get_all_trials(storage.get_study_id_from_name(identity))

    def stop(self) -> None:
        """End everything."""
        for worker in self.workers:
            if worker.poll() is None:
                worker.terminate()
        for worker in self.workers:
            worker.wait(60)
        self.client.close()
        self.engine.dispose()

    def check(self, identity: str, trials: int) -> dict:
        """The search is done: as many trials as the budget allows, each told, each job started once, one end."""
        assert wait_for(lambda: ended(self.client, identity), 240)["state"] == "done"
        found = self.client.get(f"/v1/searches/{identity}/plans").json()
        assert {t.user_attrs["owner"] for t in self.trials(identity)} == {f"search:{identity}"}, "another machine may go on"
        outcomes = [(t.number, t.state, t.user_attrs["outcome"], t.user_attrs["job"]) for t in self.trials(identity)]
        assert [number for number, *_ in outcomes] == [*range(trials)], outcomes
        assert {(state, outcome) for _, state, outcome, _ in outcomes} == {(TrialState.COMPLETE, "measured")}
        jobs = [job for *_, job in outcomes]
        assert len(set(jobs)) == trials and {self.runs()[job] for job in jobs} == {1}, self.runs()
        assert len(found["lines"]) == trials and found["name"] == identity
        states = [json.loads(data).get("state") for data in self.events(identity)]
        assert states.count("done") == 1 and states.count("running") == 1
        return found


@pytest.fixture(scope="module")
def listening(database) -> Iterator[Running]:
    found = start(database, "--workers", "1", "--search-workers", "0")
    yield found
    found.stop()


@pytest.fixture
def place(tmp_path, listening) -> Iterator[Place]:
    found = Place(tmp_path, listening)
    yield found
    found.stop()


@pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="needs megatron-core: make test installs it")
def test_a_model_in_the_body_is_measured_on_the_cpu_of_a_worker(place, tmp_path):
    small = tmp_path / "python-with-a-small-table"
    small.write_text(
        f'#!/bin/bash\ncase "$*" in *kernels.benchmark*) set -- "$@" --set tiny --ranks 1;; esac\nexec {sys.executable} "$@"\n'
    )
    small.chmod(0o755)
    place.python = small
    model = json.loads((ROOT / "docs/examples/tiny_model.json").read_text())
    short = {"seq_length": 64, "global_batch_size": 1, "steps": 1, "warmup_steps": 1, "budget": "1trials"}
    accepted = place.client.post("/v1/searches", json={"model": model, "gpus": 1, "profile": True, "device": "cpu", **short})
    place.worker()
    found = wait_for(lambda: ended(place.client, accepted.json()["id"]), 120)
    assert found["state"] == "done", found["problem"]
    best = place.client.get(f"/v1/searches/{found['id']}/plans").json()["best"]
    assert best["outcome"] == "measured" and best["measured_s"] > 0


UPGRADE = ("return self._answer(identity)", "identity = str(identity)\n            return self._answer(identity)")
"""Other code of the workflow's step, in the same workflow version."""
NEXT = ('WORKFLOW_VERSION = "autoconfig-searches-1"', 'WORKFLOW_VERSION = "autoconfig-searches-2"')


@pytest.mark.soak
def test_workers_that_join_die_leave_and_are_upgraded(place, tmp_path):
    identity = place.search()
    first = place.worker()
    wait_for(lambda: any("trial 0" in text for text in place.events(identity)))
    second = place.worker()
    wait_for(lambda: len(place.beating()) == 2)
    so_far = len(place.events(identity))
    wait_for(lambda: len(place.events(identity)) > so_far + 1)
    begun = [text for text in place.events(identity) if "predicted" in text]
    assert len(begun) == len({*begun}) and "found again" not in str(begun), "the one that joined has begun it again"
    first.kill()
    second.terminate()
    assert second.wait(60) == 0
    place.worker(root=copied(tmp_path / "next", searches=NEXT))
    place.worker(root=copied(tmp_path / "new", workflow=UPGRADE))
    found = place.check(identity, 5)
    schemas = place.client.get("/openapi.json").json()["components"]["schemas"]
    Draft202012Validator({"$ref": "#/components/schemas/Study", "components": {"schemas": schemas}}).validate(found)
    assert found["best"]["measured_s"] == min(line["measured_s"] for line in found["lines"])
    files = place.client.get(f"/v1/searches/{identity}/export").json()["files"]
    assert found["best"]["plan"] in files["plan.json"]


def test_a_cancelled_search_ends_its_jobs(place):
    identity = place.search(budget="9trials")
    place.worker()
    wait_for(lambda: any("trial 1" in text for text in place.events(identity)))
    assert place.client.delete(f"/v1/searches/{identity}").json()["state"] == "cancelled"
    wait_for(lambda: not left_over(place.folder) and all(t.state.is_finished() for t in place.trials(identity)))
    assert len(place.trials(identity)) < 9


def a_task(**changes: object) -> Task:
    """A search that a worker has taken up, without a service."""
    plain = {
        "id": "7b0f7a5e-6b6e-4c0e-9f0c-0d6f7f6f7f6f", "body": read_search(json.dumps(QUESTION).encode()),
        "spend": lambda _: None,
        "calibration": lambda: None, "say": lambda kind, data: None, "cancelled": lambda: False, "stopping": lambda: False,
    }  # fmt: skip
    return Task(**{**plain, **changes})


@pytest.mark.parametrize("how", ["a bug", "the runner"])
def test_a_search_that_fails_leaves_no_job(tmp_path, monkeypatch, how):
    monkeypatch.setenv("STAND_IN_EVERY_SECONDS", "900")
    monkeypatch.setattr(profile, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(profile, "AGAIN_SECONDS", 0.01)
    seen: list[int] = []

    def look(*_: object) -> bool:
        if left_over(tmp_path):
            seen.append(1)
            raise ValueError("a bug") if how == "a bug" else RunnerError("squeue does not answer")
        return False

    options = Options(folder=tmp_path / "work", python=str(fake_python(tmp_path)))
    if how == "a bug":
        with pytest.raises(ValueError, match="a bug"):
            profile.measure(a_task(cancelled=look), options)
    else:
        monkeypatch.setattr(profile._Follower, "tick", look)
        assert profile.measure(a_task(), options)[0] == 500 and len(seen) == profile.ATTEMPTS
    assert seen
    wait_for(lambda: not left_over(tmp_path), 20)


def test_a_budget_counts_what_was_spent_while_a_worker_had_the_search(tmp_path, monkeypatch):
    monkeypatch.setenv("STAND_IN_EVERY_SECONDS", "0.3")
    monkeypatch.setattr(profile, "KEEP_SECONDS", 0.1)
    options, kept = Options(folder=tmp_path / "work", python=str(fake_python(tmp_path))), []
    body = read_search(json.dumps({**QUESTION, "budget": "1h,2trials"}).encode())

    def measured(spent: float) -> list[dict]:
        status, text = profile.measure(a_task(body=body, spent_seconds=spent, spend=kept.append), options)
        assert status == 200
        return json.loads(text)["lines"]

    assert measured(3600.0) == [] and not kept, "nothing is left of the hour"
    assert len(measured(60.0)) == 2 and kept == sorted(kept) and 60.0 < kept[0] < kept[-1] < 120.0
    assert len(measured(kept[-1])) == 2, "and nothing of the two trials"


def test_hours_of_gpus_are_the_searchs_too(tmp_path, monkeypatch):
    monkeypatch.setenv("STAND_IN_EVERY_SECONDS", "0.5")
    options, body = (
        Options(folder=tmp_path / "work", python=str(fake_python(tmp_path))),
        {**QUESTION, "budget": "0.002gpu-hours", "price": "a100-80gb=1.5,h100=3", "objective": "cost"},
    )
    task = a_task(body=read_search(json.dumps(body).encode()))
    first = json.loads(profile.measure(task, options)[1])
    assert first["lines"] and first["stopped"] == "the budget is spent"
    assert first["tokens_per_money"] == pytest.approx(1024 * 8 / (first["best"]["measured_s"] / 3600 * 8 * 1.5))
    assert len(json.loads(profile.measure(task, options)[1])["lines"]) == len(first["lines"]), "8 GPUs for 0.9 s, once"


def test_one_process_of_a_machine_works_on_a_study(tmp_path, monkeypatch):
    monkeypatch.setattr(profile, "LOOK_SECONDS", 0.05)
    options, task = Options(folder=tmp_path / "work", python=str(fake_python(tmp_path))), a_task()
    options.folder.mkdir()
    with ThreadPoolExecutor(1) as pool:
        with take(options.folder / f"{task.id}.lock"):
            waiting = pool.submit(profile.measure, task, options)
            with pytest.raises(TimeoutError):
                waiting.result(1.0)
            assert not (options.folder / "jobs").exists()
        assert len(json.loads(waiting.result(60)[1])["lines"]) == 5


def test_a_question_that_cannot_be_measured(place):
    row = f"/v1/searches/{place.search(model='1t', num_layers=None)}"
    assert place.client.get(row).json()["note"] == searches.NOBODY_MEASURES
    nothing = place.search()
    take_up(place.engine, nothing)
    searches.end(place.engine, nothing, result=b'{"best": null, "lines": [], "stopped": "the budget is spent"}')
    refused = place.client.get(f"/v1/searches/{nothing}/export")
    assert refused.status_code == 409 and "no plan was measured (the budget is spent)" in refused.json()["detail"]
    place.worker()
    wait_for(lambda: place.client.get(row).json()["note"] is None)
    found = wait_for(lambda: ended(place.client, row.rsplit("/", 1)[1]))
    assert found["state"] == "failed" and "fit" in found["problem"]["detail"], found


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_ten_kills_while_jobs_run(tmp_path, kind, request):
    url = f"sqlite:///{tmp_path}/service.db" if kind == "sqlite" else request.getfixturevalue("database")
    chance = random.Random(int(os.environ.get("AUTOCONFIG_SOAK_SEED", "1")))
    service = start(url, "--workers", "1", "--search-workers", "0")
    place = Place(tmp_path, service)
    try:
        identities = [place.search(budget="12trials", seed=seed) for seed in range(2)]
        for _ in range(2):
            place.worker()
        for _ in range(10):
            wait_for(lambda: any(place.events(identity)[2:] for identity in identities))
            chance_seconds = chance.uniform(1.0, 12.0)
            subprocess.run(["sleep", str(chance_seconds)], check=True)
            living = [worker for worker in place.workers if worker.poll() is None]
            chance.choice(living).kill()
            place.worker()
        for identity in identities:
            place.check(identity, 12)
    finally:
        place.stop()
        service.stop()
