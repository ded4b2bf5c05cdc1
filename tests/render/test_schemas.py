"""The published schemas: written by `python -m tools.schemas`, valid, strict, and what answers follow."""

import copy
import json

import pytest
from autoconfig.specs.json_record import json_text
from jsonschema import Draft202012Validator

from autoconfig.planning.schemas import schema
from autoconfig.render.training_json import explain_json, search_json
from autoconfig.training.answer import explain, search
from tools import schemas

MOST_LINES = 600


@pytest.fixture(scope="module")
def answers(request_of):
    request = request_of("moe", gpus=8, tokens=1e9, price=2.0, gpus_at_most=None, include=("tp=1,ep=8,mbs=1", "tp=3"))
    small = request_of("dense", gpus=None, gpus_at_most=4, memory_margin=0.99)
    found = [("search", search_json(search(request))), ("search", search_json(search(small)))]
    found += [
        ("explain", explain_json(explain(request, text))) for text in ("tp=1,ep=8,mbs=1,recompute=full:uniform:2", "tp=3")
    ]
    return [(name, json.loads(json_text(body))) for name, body in found]


def each_schema(node):
    """Every schema inside a schema, itself first."""
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from each_schema(value)
    elif isinstance(node, list):
        for value in node:
            yield from each_schema(value)


def test_files_are_what_the_tool_writes_in_few_lines():
    texts = schemas.schemas()
    stale = [path.name for path, text in texts.items() if path.read_text() != text]
    assert not stale, "run python -m tools.schemas"
    assert {path for folder in {path.parent for path in texts} for path in folder.iterdir()} == set(texts)
    assert sum(text.count("\n") for text in texts.values()) <= MOST_LINES


@pytest.mark.parametrize("path", schemas.schemas(), ids=lambda path: path.name)
def test_schemas_are_valid_named_as_their_files_and_closed(path):
    whole = json.loads(path.read_text())
    Draft202012Validator.check_schema(whole)
    assert whole["$id"].endswith(f"/{path.name}")
    for node in each_schema(whole):
        if isinstance(node.get("properties"), dict) and node.get("type") == "object":
            assert node["additionalProperties"] is False, node.get("description")


def test_answers_are_valid(answers):
    for name, body in answers:
        Draft202012Validator(schema(name)).validate(body)
    assert [body.get("nearest_miss") is None for _, body in answers[:2]] == [True, False]
    assert answers[1][1]["gpus_tried"] and answers[0][1]["pareto"]


def test_the_names_of_the_issue_are_there(answers):
    body = answers[0][1]
    assert set(body) >= {"schema_version", "model", "cluster", "workload", "numerics", "software", "assumed", "funnel",
                         "pareto", "included", "plans"}  # fmt: skip
    assert set(body["funnel"]) >= {
        "enumerated",
        "legal",
        "legal_even",
        "fit",
        "fit_even",
        "priced",
        "rejected_by_rule",
        "seconds",
    }
    legal, illegal = body["included"]
    for included in (legal, illegal):
        assert set(included) >= {"plan", "legal", "fits", "rejected_by", "shortfall_gib", "layout_rank", "layout_percentile",
                                 "step_ratio_to_first"}  # fmt: skip
    plan = body["plans"][0]
    assert set(plan) >= {"rank", "tie_group", "plan", "short", "step_seconds", "tokens_per_second_per_gpu",
                         "model_tflops_per_gpu", "mfu", "memory", "time", "days_to_train", "cost", "origin",
                         "confidence", "why"}  # fmt: skip
    assert set(plan["plan"]) >= {
        "tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size",
        "context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size", "data_parallel_size",
        "sequence_parallel", "micro_batch_size", "global_batch_size", "recompute_granularity", "recompute_method",
        "recompute_num_layers", "recompute_modules", "use_distributed_optimizer",
    }  # fmt: skip
    assert set(plan["memory"]) >= {"peak_gib", "limit_gib", "per_stage_gib", "breakdown_gib"}
    assert set(plan["confidence"]) >= {"step_seconds_p5", "step_seconds_p95", "fit_probability", "calibrated_on", "level"}
    assert plan["origin"] == "formula"


def wrong_ways(body):
    """(what, a copy of the answer with one thing wrong)."""

    def changed(path, value):
        copied = copy.deepcopy(body)
        *head, key = path
        node = copied
        for part in head:
            node = node[part]
        if value is KeyError:
            del node[key]
        else:
            node[key] = value
        return copied

    yield "an unknown key", changed(["surprise"], 1)
    yield "an unknown key of a plan", changed(["plans", 0, "plan", "tp"], 1)
    yield "an unknown key of a ranked plan", changed(["plans", 0, "surprise"], 1)
    yield "an unknown key of an included plan", changed(["included", 0, "surprise"], 1)
    yield "a key that is missing", changed(["plans", 0, "why"], KeyError)
    yield "a number that is missing", changed(["plans", 0, "step_seconds"], KeyError)
    yield "a number as text", changed(["plans", 0, "step_seconds"], "5 s")
    yield "no time at all", changed(["plans", 0, "step_seconds"], 0)
    yield "half a rank", changed(["plans", 0, "rank"], 1.5)
    yield "degree zero", changed(["plans", 0, "plan", "tensor_model_parallel_size"], 0)
    yield "unknown recomputation", changed(["plans", 0, "plan", "recompute_granularity"], "some")
    yield "unknown module", changed(["plans", 0, "plan", "recompute_modules"], ["attention"])
    yield "unknown origin", changed(["plans", 0, "origin"], "guess")
    yield "chance above one", changed(["plans", 0, "confidence", "fit_probability"], 1.1)
    yield "a legal plan that broke a rule", changed(["included", 0, "rejected_by"], [{"rule": "NV001", "text": "x"}])
    yield "an illegal plan without a rule", changed(["included", 1, "rejected_by"], [])
    yield "an illegal plan with numbers", changed(["included", 1, "step_seconds"], 1.0)
    yield "an illegal plan that fits", changed(["included", 1, "fits"], True)
    yield "another version", changed(["schema_version"], 2)
    yield "negative count", changed(["funnel", "fit"], -1)


def test_wrong_answers_are_noticed(answers):
    validator = Draft202012Validator(schema("search"))
    for what, body in wrong_ways(answers[0][1]):
        assert not validator.is_valid(body), what
