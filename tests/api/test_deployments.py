"""`POST /v1/deployments`: the command line's answer, its schema, its refusals."""

from __future__ import annotations

import json

import pytest
from autoconfig.api.wire.bodies import DeploymentsBody
from autoconfig.api.wire.schemas import components
from command_line import run_in_process
from jsonschema import Draft202012Validator

from autoconfig.planning.schemas import schema

QUESTION = {"model": "llama3-8b", "gpus": 2, "gpu": "h100-sxm-80gb", "isl": 500, "osl": 200, "simulate": 1, "top": 3}
TRACE = [{"timestamp": 40.0 * k, "input_length": 100 + k, "output_length": 50, "hash_ids": [k]} for k in range(50)]
OPTIONS = [word for key, value in QUESTION.items() for word in (f"--{key}", str(value))]


def test_deployments_are_those_of_the_command_line(http):
    answer = http.post("/v1/deployments", json={**QUESTION, "tpot": "20ms", "ttft": 0.5})
    assert answer.status_code == 200, answer.text
    said = json.loads(run_in_process("search", "--inference", *OPTIONS, "--tpot", "20ms", "--ttft", "500ms", "--json").stdout)
    Draft202012Validator(schema("serve")).validate(said)
    del said["funnel"]["seconds"]
    assert answer.json() == said
    again = http.post("/v1/deployments", json={**QUESTION, "tpot": "20ms", "ttft": 0.5})
    assert again.headers["etag"] == answer.headers["etag"]


def test_a_trace_in_the_body_is_the_file_of_the_command_line(http, tmp_path):
    asked = {key: value for key, value in QUESTION.items() if key not in ("isl", "osl")}
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
    late = [TRACE[1], TRACE[0]]
    refused = http.post("/v1/deployments", json={**asked, "trace": late})
    assert refused.status_code == 422 and "trace row 2 arrives before" in refused.json()["detail"]
    most = http.post("/v1/deployments", json={**asked, "trace": [{k: 1 for k in TRACE[0] if k != "hash_ids"}] * 10_001})
    assert most.status_code == 400 and "trace" in most.json()["detail"]


def test_a_pasted_model_is_served(http):
    tiny = {
        "model_type": "llama",
        "num_hidden_layers": 4,
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_attention_heads": 8,
        "vocab_size": 32000,
    }
    answer = http.post("/v1/deployments", json={**QUESTION, "model": tiny, "gpus": 1})
    assert answer.status_code == 200 and answer.json()["deployments"][0]["tokens_per_second_per_gpu"] > 0


@pytest.mark.parametrize(
    ("change", "status", "word", "nearest"),
    [
        ({"tpot": "soon"}, 422, "no duration", None),
        ({"ttft": -1.0}, 422, "no duration", None),
        ({"gpus": 0}, 422, "gpus 0", None),
        ({"gpus": None}, 400, "gpus", None),
        ({"calibration": "x.json"}, 400, "unknown field", None),
        ({"model": "/etc/passwd"}, 422, "unknown model", None),
        ({"model": "lama3-8b"}, 422, "unknown model", "llama3-8b"),
        ({"gpu": "h1000-sxm-80gb"}, 422, "unknown GPU", "h100-sxm-80gb"),
        ({"engine": "vlm"}, 422, "unknown engine", "vllm"),
        ({"goal": "thruput"}, 400, "goal", "throughput"),
        ({"fix": ["tp=2", "kv=fb8"]}, 422, "KV cache format", "kv=fp8"),
        ({"fix": ["tpp=2"]}, 422, "unknown plan key", "tp=2"),
        ({"include": ["tp=2,weights=fp9"]}, 422, "weight format", "tp=2,weights=fp8"),
        ({"export": "x"}, 400, "export", None),
        ({"simulat": 1}, 400, "unknown field", "simulate"),
        ({"isl": "many"}, 400, "isl", None),
        ({"isl_stddev": -1.0}, 422, "isl_stddev -1.0", None),
        ({"trace": "/etc/passwd"}, 400, "trace", None),
        ({"trace": [{"timestamp": 0, "input_length": 5, "output_length": 5}]}, 400, "trace", None),
        ({"trace": [{"timestamp": 0, "input_length": 5, "output_length": 1.5}] * 2}, 400, "output_length", None),
        ({"isl": 1000, "trace": TRACE}, 422, "beside trace", None),
    ],
)
def test_what_cannot_be_answered_is_refused(http, change, status, word, nearest):
    """The problem names the field of the change, and the nearest valid value where there is one."""
    answer = http.post("/v1/deployments", json={**QUESTION, **change})
    assert answer.status_code == status, answer.text
    found = answer.json()
    assert word in found["detail"] and found["field"] in change
    assert nearest is None or found["nearest"] == nearest


def test_limits_that_nothing_meets_name_the_nearest(http):
    found = http.post("/v1/deployments", json={**QUESTION, "tpot": "1us"}).json()
    assert found["deployments"] == [] and "misses by" in found["miss"] and found["nearest"]["plan"]


def test_every_option_of_the_command_is_a_field_or_left_out():
    fields = set(DeploymentsBody.model_fields)
    assert {"isl", "osl", "ttft", "tpot", "rate", "goal", "chunked_prefill", "disaggregated", "fix", "include"} <= fields
    assert not {"inference", "export", "report", "json", "force"} & fields
    assert "seconds" not in components()["ServeFunnel"]["properties"]
