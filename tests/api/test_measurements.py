"""Measured runs that jobs bring back: they calibrate the answers to the key that brought them, and no others."""

from __future__ import annotations

import pytest
from autoconfig.api.routes.measurements import MEASUREMENT_EXAMPLE
from command_line import run_in_process

from autoconfig.calibration.calibrate import calibrate_file
from autoconfig.client import Client, ServiceError
from tests.api.test_access import make_key

RUN = MEASUREMENT_EXAMPLE["rows"][0]
QUESTION = {"model": "llama2-7b", "gpus": 8, "gpu": "h100-sxm-80gb", "top": 1}


@pytest.fixture(scope="module")
def locked(services):
    return services("--workers", "1", "--keys", "--search-workers", "1")


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


def test_the_same_id_replaces_a_run_and_the_same_runs_make_the_same_version(locked):
    mine, other = client_of(locked, "read", "profile"), client_of(locked, "profile")
    first = mine.measurements([RUN])
    slower = mine.measurements([{**RUN, "metric_step_s": RUN["metric_step_s"] * 1.2}])
    assert slower.measurements == 1 and slower.calibration != first.calibration
    assert mine.measurements([RUN]).calibration == other.measurements([RUN]).calibration == first.calibration
    with locked.client(make_key(locked, "read")) as http:
        assert http.get("/v1/measurements").json()["measurements"] == []


@pytest.mark.parametrize(
    ("rows", "status", "said"),
    [
        ([{**RUN, "metric_step_s": 9600}], 422, "check the units"),
        ([{**RUN, "gpu": "h1000"}], 422, "h100"),
        ([{**RUN, "status": "oom"}], 422, "job-4711: it ran out of memory"),
        ([RUN, RUN], 422, "same id"),
        ([{key: value for key, value in RUN.items() if key != "id"}], 400, "rows.0.id"),
        ([{**RUN, "id": "\0"}], 400, "rows.0.id"),
        ([{**RUN, "tp": [1]}], 400, "rows.0.tp"),
        ([], 400, "rows"),
    ],
)
def test_runs_that_cannot_calibrate(http, rows, status, said):
    answer = http.post("/v1/measurements", json={"rows": rows})
    assert answer.status_code == status and said in answer.text, answer.text
    assert http.get("/v1/measurements").json()["measurements"] == []


def test_a_calibration_file_of_the_server_cannot_be_named(http):
    with pytest.raises(ServiceError, match="leave it out"):
        Client(str(http.base_url)).plans(**QUESTION, calibration="runs-1-00000000")
    assert run_in_process("search", "--model", "175b", "--gpus", "64", "--calibration", "none", "--top", "1").exit_code == 0
