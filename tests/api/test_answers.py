"""The endpoints that answer at once: as the command line, deterministic, with clear refusals."""

import json
import re

import pytest
from autoconfig.api.routes.answers import CHECK_EXAMPLE, DIAGNOSE_EXAMPLE, RUN_EXAMPLE
from autoconfig.api.wire.bodies import DeploymentsBody
from autoconfig.api.wire.schemas import components
from autoconfig.specs.scenario import PRECISION_WORDS
from autoconfig.time_model.hardware.efficiency import factors_for
from command_line import run_in_process
from jsonschema import Draft202012Validator
from tables import tabled

from autoconfig.client import Client
from autoconfig.core.timeline import timeline
from autoconfig.planning.schemas import schema
from autoconfig.render.html import media_type, page_text, served_names
from autoconfig.training.answer import explain
from autoconfig.training.question import Request
from tests.api.conftest import answer_of, wait_for

pytestmark = [pytest.mark.service, pytest.mark.xdist_group("api")]
QUESTION = {"model": "175b", "gpus": 64, "gpu": "h100-sxm-80gb", "fix": ["tp=8"], "top": 3}
OPTIONS = ["--model", "175b", "--gpus", "64", "--gpu", "h100-sxm-80gb"]
POLICY = "content-security-policy"


def _without_seconds(answer):
    return {**answer, "funnel": {k: v for k, v in answer["funnel"].items() if not k.startswith("seconds")}}


def test_plans_are_those_of_the_command_line(http):
    answer = http.post("/v1/plans", json=QUESTION)
    assert answer.status_code == 200
    said = run_in_process("search", *OPTIONS, "--fix", "tp=8", "--top", "3", "--json")
    assert answer.json() == _without_seconds(json.loads(said.stdout))
    assert answer.json()["calibration"]


def test_texts_are_read_and_left_out_as_on_the_command_line(http):
    """8k, 1,024, FP8 and no GPU: the command line's own reader and default."""
    body = {"model": "1.7b", "gpus": "64", "seq_length": "8k", "global_batch_size": "1,024", "precision": "FP8", "top": "1"}
    answer = http.post("/v1/plans", json=body)
    assert answer.status_code == 200, answer.text
    options = [part for name, text in body.items() for part in (f"--{name.replace('_', '-')}", text)]
    said = run_in_process("search", *options, "--json")
    assert answer.json() == _without_seconds(json.loads(said.stdout))
    question = answer.json()
    assert question["cluster"]["gpu"] == "h100-sxm-80gb" and question["numerics"]["precision"] == "fp8"
    assert question["workload"]["seq_length"] == 8192 and question["workload"]["global_batch_size"] == 1024
    served = http.post("/v1/deployments", json={"model": "llama3-8b", "gpus": "8", "isl": "1k", "osl": "1,000"})
    assert served.status_code == 200 and served.json()["question"]["gpu"] == "h100-sxm-80gb", served.text
    counted = http.post("/v1/scaling", json={"model": "1.7b", "gpus": 8})
    assert counted.status_code == 200 and [point["num_gpus"] for point in counted.json()["points"]] == [8]


def test_the_same_question_gives_the_same_bytes(http):
    """In two processes: that of the service and this one."""
    turned = dict(reversed(QUESTION.items()))
    first, second = (http.post("/v1/plans", json=body) for body in (QUESTION, turned))
    assert first.content == answer_of(turned) and first.headers["etag"] == second.headers["etag"]
    assert http.post("/v1/plans", json={**QUESTION, "top": 2}).headers["etag"] != first.headers["etag"]


@pytest.mark.parametrize(("path", "body", "name"), [
    ("explain", {**QUESTION, "plan": "tp=8,pp=8,mbs=1,sp=1"}, "explain"),
    ("explain", {**QUESTION, "plan": "tp=3,pp=8,mbs=1"}, "explain"),
    ("timeline", {**QUESTION, "plan": "tp=8,pp=8,vpp=2,mbs=1,sp=1"}, "timeline"),
    ("scaling", {"model": "1.7b", "gpus": "8:32", "gpu": ["a100-80gb"], "tokens": "300B", "keep": ["pp"]}, "scaling"),
    ("scaling", {"model": "1.7b", "gpus": [8, 16], "gpu": "a100-80gb,h100", "tokens": 3e11, "days": 30.0}, "scaling"),
    ("budget", {"money": "$2k", "days": 3, "model": "llama3-8b", "gpu": {"h100": 2.2}, "tokens": "100B", "gpus": 32}, "budget"),
    ("check", CHECK_EXAMPLE, "check"),
    ("convert", {**CHECK_EXAMPLE, "format": "megatron-yaml"}, "convert"),
    ("diagnose", DIAGNOSE_EXAMPLE, "diagnose"),
    ("diagnose", {"files": {"run.log": "nothing that is known"}}, "diagnose"),
])  # fmt: skip
def test_answers_follow_the_published_schemas(http, path, body, name):
    body = {key: value for key, value in body.items() if path not in ("explain", "timeline") or key not in ("fix", "top")}
    answer = http.post(f"/v1/{path}", json=body)
    assert answer.status_code == 200, answer.text
    Draft202012Validator(schema(name)).validate(answer.json())


def test_a_log_is_diagnosed_over_http_as_by_the_command_line(http, tmp_path, monkeypatch):
    line = " iteration {0:8d}/     900 | elapsed time per iteration (ms): 5600.0 | global batch size:    64 |\n"
    sample = "{0}, {1} MHz, 1980 MHz, 600 W, 700 W, 100 %, 60, 0x0000000000000020\n"
    files = {
        "run.log": "node1:77:99 [0] NCCL INFO Using network IB\n" + "".join(line.format(n) for n in range(1, 30)),
        "smi.csv": "index, clocks.sm [MHz], clocks.max.sm [MHz], power.draw [W], power.limit [W], utilization.gpu [%], "
        "temperature.gpu, clocks_event_reasons.active\n" + "".join(sample.format(gpu, 900) for gpu in range(4)),
    }
    question = {"model": "llama3-8b", "gpus": 16, "gpu": "h100", "seq_length": 8192, "global_batch_size": 64}
    plan = "tp=2,mbs=1,sp=1"
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    for asked, words in (({**question, "plan": plan}, _options(question, plan)), ({}, [])):
        answer = http.post("/v1/diagnose", json={**asked, "files": files})
        assert answer.status_code == 200, answer.text
        done = run_in_process("diagnose", *files, *words, "--json")
        assert answer.json() == json.loads(done.stdout) and answer.json()["causes"][0]["rule"] == "R10"


def _options(question, plan):
    return [word for name, value in question.items() for word in ("--" + name.replace("_", "-"), str(value))] + [plan]


def test_the_timeline_is_that_of_the_application(http):
    """Every micro-batch goes through every chunk once each way, and communication is a part of what it is in."""
    plan = "tp=8,pp=8,vpp=2,mbs=1,sp=1"
    body = {key: value for key, value in QUESTION.items() if key not in ("fix", "top")}
    found = http.post("/v1/timeline", json={**body, "plan": plan}).json()
    explanation = explain(Request(**body), plan, binds=False)
    scenario, operators = explanation.question.scenario, explanation.operators
    drawn = timeline(scenario, explanation.included.plan, operators)
    assert found["bubble_share"] == drawn.bubble_share and found["short"] == str(explanation.included.plan)
    for stage in found["stages"]:
        assert len({tuple(piece[:3]) for piece in stage["work"]}) == 2 * 2 * found["shown_microbatches"] == len(stage["work"])
        for chunk in stage["chunks"]:
            assert 0 < chunk["forward_communication_seconds"] < chunk["forward_seconds"] < chunk["backward_seconds"]
    first = found["stages"][3]["chunks"][0]
    per_layer = sum(
        row.forward_seconds for row in operators if row.formula == "tp_communication_seconds" and row.layer != "head"
    )
    embedding = sum(row.forward_seconds for row in operators if row.layer == "embedding" and "communication" in row.operator)
    layers = scenario.model.num_layers // 16
    factor = factors_for(scenario).step
    assert first["forward_communication_seconds"] == pytest.approx(factor * layers * (per_layer - embedding))
    refused = http.post("/v1/timeline", json={**body, "plan": "tp=8,pp=7"})
    assert refused.status_code == 422 and "nearest legal" in refused.json()["detail"]


def test_an_export_is_that_of_the_command_line(http, tmp_path):
    body = {key: value for key, value in QUESTION.items() if key not in ("fix", "top")}
    plan = "tp=8,pp=8,mbs=1,sp=1"
    assert run_in_process("export", *OPTIONS, "--output", str(tmp_path / "x"), plan).exit_code == 0
    files = http.post("/v1/export", json={**body, "plan": plan}).json()["files"]
    assert files == {path.name: path.read_text() for path in (tmp_path / "x").glob("[!.]*")}
    assert set(http.post("/v1/export", json={**body, "plan": plan, "format": "plan"}).json()["files"]) == {"plan.json"}
    assert http.post("/v1/export", json={**body, "plan": plan, "format": "deepspeed"}).status_code == 400


def test_the_page_is_served_whole_and_nothing_else_is(http):
    index = http.get("/")
    assert index.headers["content-type"].startswith("text/html") and "default-src 'none'" in index.headers[POLICY]
    assert http.get("/", headers={"If-None-Match": index.headers["etag"]}).status_code == 304
    known = json.loads(re.search(r'id="fields">(.*?)</script>', index.text, re.DOTALL)[1])
    assert "@@" not in index.text and known["plans"]["precision"]["choices"] == list(PRECISION_WORDS)
    for name in served_names():
        file = http.get(f"/page/{name}")
        assert file.text == page_text(name) and file.headers["content-type"].startswith(media_type(name))
        for imported in re.findall(r'from "\./([a-z]+\.js)"', file.text):
            assert imported in served_names()
    for name in ("../../pyproject.toml", "%2e%2e%2fcli.py", "report.js", "index.html", "nothing.js"):
        assert http.get(f"/page/{name}").status_code == 404, name


def test_predictions_are_those_of_the_command_line(http, tmp_path):
    row = {**RUN_EXAMPLE, "tp": 2, "sp": True}
    odd = {"id": "b", "layers": 0, "hidden": None, "heads": 32, "seq": 4096, "gpu": "h100-sxm-80gb"}
    answer = http.post("/v1/predict", json={"rows": [row, odd]}).json()
    table = tmp_path / "in.csv"
    cells = {**row, "sp": 1}
    table.write_text(",".join(cells) + "\n" + ",".join(map(str, cells.values())) + "\n")
    assert run_in_process("predict", str(table), "--output", str(tmp_path / "out.csv")).exit_code == 0
    head, values = (tmp_path / "out.csv").read_text().splitlines()[:2]
    said = dict(zip(head.split(","), values.split(","), strict=False))
    assert answer["rows"][0]["pred_step_s"] == float(said["pred_step_s"])
    assert answer["rows"][1]["pred_step_s"] is None and answer["rows"][1]["pred_note"]
    for name in ("tp", "layers"):  # a truth value is no number
        (odd,) = http.post("/v1/predict", json={"rows": [{**row, name: True}]}).json()["rows"]
        assert odd["pred_step_s"] is None and f"cell {name}='true' is not a" in odd["pred_note"], name


@tabled
def test_refusals_are_problem_documents(http, body, status, field, nearest):
    answer = http.post("/v1/plans", json=body)
    assert answer.status_code == status, answer.text
    if status == 200:
        return
    assert answer.headers["content-type"] == "application/problem+json"
    found = answer.json()
    assert found["status"] == status and found["detail"] and "--" not in found["detail"]
    assert field is None or found["field"] == field
    assert nearest is None or found["nearest"] == nearest


@pytest.mark.parametrize(("raw", "status"), [
    (b"", 400),
    (b"{", 400),
    (b"[" * 100_000, 400),
    (b'{"model": NaN}', 400),
    (b'{"gpus": 1, "gpus": 2}', 400),
    (b"\xff\xfe", 400),
    (b'{"model": "175b", "gpus": ' + b"9" * 5000 + b"}", 400),
    (b'{"model": "\\ud800", "gpus": 8, "gpu": "h100"}', 400),
    (b'{"gpus": 8, "gpu": "h100-sxm-80gb", "model": ' + b'{"a":' * 32 + b"1" + b"}" * 33, 400),
    (b'{"gpus": 8, "gpu": "h100-sxm-80gb", "model": ' + b'{"a":' * 900 + b"1" + b"}" * 901, 400),
    (b" " * (3 * 2**20), 413),
])  # fmt: skip
def test_bodies_that_are_no_question(http, raw, status):
    answer = http.post("/v1/plans", content=raw, headers={"content-type": "application/json"})
    assert answer.status_code == status and answer.json()["status"] == status


def test_a_body_without_a_length_is_limited_too(http):
    answer = http.post("/v1/plans", content=(b" " * 65536 for _ in range(64)), headers={"content-type": "application/json"})
    assert answer.status_code == 413


def test_catalogues_come_in_pages(http):
    names, cursor = [], "0"
    while cursor is not None:
        page = http.get("/v1/models", params={"limit": 7, "cursor": cursor}).json()
        names += [row["name"] for row in page["models"]]
        cursor = page["next"]
    assert names == sorted(set(names)) and len(names) > 20
    whole = http.get("/v1/models")
    assert [row["name"] for row in whole.json()["models"]] == names[:100]
    assert http.get("/v1/models", headers={"If-None-Match": whole.headers["etag"]}).status_code == 304
    for bad in ({"limit": 0}, {"limit": "x"}, {"cursor": "-1"}, {"limit": 501}):
        assert http.get("/v1/models", params=bad).status_code == 422


def test_other_methods_are_refused_with_those_allowed(http):
    for method, path, allowed in (
        ("PUT", "/v1/plans", "POST"),
        ("PATCH", "/v1/searches", "GET, POST"),
        ("POST", "/v1/searches/x", "DELETE, GET"),
        ("DELETE", "/", "GET"),
    ):
        answer = http.request(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


def test_health_and_metrics(http):
    assert http.get("/healthz").json() == {"status": "ok"} and http.get("/readyz").json() == {"status": "ready"}
    http.post("/v1/plans", json=QUESTION)
    assert 'autoconfig_request_seconds_bucket{le="0.001",route="/v1/plans",status="200"}' in http.get("/metrics").text
    assert http.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).status_code == 404  # without --mcp


def test_every_answer_has_the_security_headers(http):
    for answer in (http.get("/healthz"), http.get("/nothing"), http.post("/v1/plans", content=b"x")):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_too_long_a_question_is_refused_and_the_service_goes_on(services):
    slow = services("--workers", "1", "--search-workers", "0", "--answer-seconds", "0.1")
    with slow.client() as client:
        body = {"model": "deepseek-v3", "gpus": 4096, "gpu": "h100-sxm-80gb"}
        refused = client.post("/v1/plans", json=body)
        assert refused.status_code == 422 and "within 0.1 s" in refused.json()["detail"]
        # 503 while the process begins anew
        answer = wait_for(lambda: (one := client.post("/v1/post-training", json=body)).status_code != 503 and one)
        other = answer.json()["detail"]
        assert "within 0.1 s" in other and "staleness" in other and "searches" not in other
        assert client.get("/healthz").status_code == 200


DEPLOYMENT = {"model": "llama3-8b", "gpus": 2, "gpu": "h100-sxm-80gb", "isl": 500, "osl": 200, "simulate": 1, "top": 3}
TRACE = [{"timestamp": 40.0 * k, "input_length": 100 + k, "output_length": 50, "hash_ids": [k]} for k in range(50)]
DEPLOYMENT_OPTIONS = [word for key, value in DEPLOYMENT.items() for word in (f"--{key}", str(value))]


def test_deployments_are_those_of_the_command_line(http):
    answer = http.post("/v1/deployments", json={**DEPLOYMENT, "tpot": "20ms", "ttft": 0.5})
    assert answer.status_code == 200, answer.text
    said = json.loads(
        run_in_process("search", "--inference", *DEPLOYMENT_OPTIONS, "--tpot", "20ms", "--ttft", "500ms", "--json").stdout
    )
    Draft202012Validator(schema("serve")).validate(said)
    del said["funnel"]["seconds"]
    assert answer.json() == said
    again = http.post("/v1/deployments", json={**DEPLOYMENT, "tpot": "20ms", "ttft": 0.5})
    assert again.headers["etag"] == answer.headers["etag"]


def test_a_trace_in_the_body_is_the_file_of_the_command_line(http, tmp_path):
    asked = {key: value for key, value in DEPLOYMENT.items() if key not in ("isl", "osl")}
    answer = http.post("/v1/deployments", json={**asked, "trace": TRACE, "tpot": "20ms"})
    assert answer.status_code == 200, answer.text
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, TRACE)), encoding="utf-8")
    options = [word for key, value in asked.items() for word in (f"--{key}", str(value))]
    options += ["--trace", str(path), "--tpot", "20ms", "--json"]
    said = json.loads(run_in_process("search", "--inference", *options).stdout)
    del said["funnel"]["seconds"]
    assert answer.json() == said
    assert said["question"]["trace"]["requests"] == 50 and said["deployments"][0]["simulated"]["requests"] == 50
    refused = http.post("/v1/deployments", json={**asked, "trace": [TRACE[1], TRACE[0]]})
    assert refused.status_code == 422 and "trace row 2 arrives before" in refused.json()["detail"]
    most = http.post("/v1/deployments", json={**asked, "trace": [{k: 1 for k in TRACE[0] if k != "hash_ids"}] * 10_001})
    assert most.status_code == 400 and "trace" in most.json()["detail"]


@tabled
def test_what_cannot_be_answered_is_refused(http, change, status, word, nearest):
    """The problem names the field of the change, and the nearest valid value where there is one."""
    answer = http.post("/v1/deployments", json={**DEPLOYMENT, **change})
    assert answer.status_code == status, answer.text
    found = answer.json()
    assert word in found["detail"] and found["field"] in change
    assert nearest is None or found["nearest"] == nearest


def test_every_option_of_the_command_is_a_field_or_left_out():
    fields = set(DeploymentsBody.model_fields)
    assert {"isl", "osl", "ttft", "tpot", "rate", "goal", "chunked_prefill", "disaggregated", "fix", "include"} <= fields
    assert not {"inference", "export", "report", "json", "force"} & fields
    assert "seconds" not in components()["ServeFunnel"]["properties"]


STEP = {"model": "qwen2.5-7b", "gpus": 8, "prompts": 64, "group_size": 8, "response_length": 500, "max_response_length": 2048}
STEP_OPTIONS = [word for key, value in STEP.items() for word in (f"--{key.replace('_', '-')}", str(value))]


def test_placements_are_those_of_the_command_line(http):
    answer = http.post("/v1/post-training", json=STEP)
    assert answer.status_code == 200, answer.text
    said = json.loads(run_in_process("rl", *STEP_OPTIONS, "--json").stdout)
    Draft202012Validator(schema("rl")).validate(said)
    assert answer.json() == said
    assert Client(str(http.base_url)).post_training(**STEP)["placements"] == said["placements"] != []
    sizes = [http.post("/v1/post-training", json={**STEP, "host_memory": size}) for size in ("1TiB", 2**40, float(2**40))]
    assert sizes[0].status_code == 200 and len({one.content for one in sizes}) == 1
