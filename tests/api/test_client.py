"""`autoconfig.client` against a real service, and where there is none."""

from __future__ import annotations

import pytest
from autoconfig.api.routes.answers import CHECK_EXAMPLE
from autoconfig.api.wire.bodies import ExportBody, PlansBody
from command_line import run_in_process

from autoconfig.client import Client, ServiceError
from autoconfig.planning.fields import field_names
from autoconfig.planning.request_fields import SEARCH

QUESTION = {"model": "1.7b", "gpus": 8, "gpu": "a100-80gb"}


@pytest.fixture(scope="module")
def client(service) -> Client:
    return Client(service.url)


def test_plans_and_their_scripts(client, tmp_path):
    found = client.plans(**QUESTION, fix=["tp=2"], top=2)
    first = found.plans[0]
    assert len(found.plans) == 2 and first.rank == 1 and "tp=2" in first.short and found.calibration.startswith("published-")
    assert first.step_seconds_p5 < first.step_seconds < first.step_seconds_p95 and 0 < first.peak_gib < first.limit_gib
    assert first.tokens_per_second_per_gpu == first.body["tokens_per_second_per_gpu"] and 0 < first.fit_probability <= 1
    files = client.export(first.short, **QUESTION, fix=["tp=2"], top=2)
    options = ("--model", "1.7b", "--gpus", "8", "--gpu", "a100-80gb", "--output", str(tmp_path / "x"))
    assert run_in_process("export", *options, first.short).exit_code == 0
    assert files == {path.name: path.read_text() for path in (tmp_path / "x").iterdir()}


def test_what_chooses_a_plan_is_what_an_export_does_not_ask():
    assert {*PlansBody.model_fields} - {*ExportBody.model_fields} == {*field_names(SEARCH)}


def test_other_questions(client):
    assert client.scaling(model="1.7b", gpus=[8, 16], gpu="a100-80gb")["points"]
    assert client.check(**CHECK_EXAMPLE)["legal"]


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


@pytest.mark.parametrize("url", ["file:///etc/passwd", "planner:8000", "http://"])
def test_addresses_that_are_none(url):
    with pytest.raises(ValueError, match="http://HOST:PORT"):
        Client(url)


def test_nobody_there(monkeypatch):
    waits: list[float] = []
    monkeypatch.setattr("autoconfig.client.time.sleep", waits.append)
    with pytest.raises(ServiceError, match="does not answer") as error:
        Client("http://127.0.0.1:1").plans(**QUESTION)
    assert error.value.status == 0 and waits == [0.5, 1.0, 2.0]
