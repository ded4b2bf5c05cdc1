"""plan.json: reads back whole, is held to its schema, says its plan twice the same; every wrong field is named, none ends in a
traceback."""

import json
import os
from dataclasses import replace

import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.plan import parse_plan
from autoconfig.time_model.job import shipped
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from autoconfig.megatron.export import plan_text, read_plan_text
from autoconfig.planning.schemas import schema
from autoconfig.training.price import report_plan

PLANS = {
    "dense": ("tp=2,pp=2,vpp=3,mbs=1,sp=1,recompute=selective:core_attn+layernorm", {}),
    "odd": ("tp=1,pp=1,mbs=1,dist_opt=0,fsdp=2", {}),
    "moe": ("tp=2,pp=2,ep=4,mbs=1,sp=1,recompute=full:block:1", {"moe_capacity_factor": 1.5}),
    "mla": ("tp=1,pp=2,ep=2,mbs=1,first=5,last=4,offload=0.5", {"deterministic": True}),
}


@pytest.fixture(params=PLANS)
def exported(request, scenario_of):
    text, numerics = PLANS[request.param]
    return scenario_of(request.param, numerics=numerics), parse_plan(text, 8)


@pytest.fixture(scope="module")
def good(scenario_of):
    text, numerics = PLANS["moe"]
    scenario, plan = scenario_of("moe", numerics=numerics), parse_plan(text, 8)
    return plan_text(scenario, plan, report_plan(scenario, plan))


def test_plan_file_reads_back(exported):
    scenario, plan = exported
    text = plan_text(scenario, plan, report_plan(scenario, plan))
    Draft202012Validator(schema("plan")).validate(json.loads(text))
    found, again = read_plan_text(text)
    found = replace(found, calibration=shipped())
    assert (found, again) == (scenario, plan), "the file names the stack; its calibration is ours"
    Draft202012Validator(schema("plan")).validate(json.loads(plan_text(scenario, plan, None)))


def test_plan_files_that_cannot_be_used(good):
    body = json.loads(good)
    bad = ["", "{", "[]", "{}", "[" * 5000, json.dumps({**body, "schema_version": 9}), json.dumps({**body, "model": {}})]
    bad += [json.dumps({key: value for key, value in body.items() if key != gone}) for gone in body]
    bad += [json.dumps({**body, "short": text}) for text in ("", "tp=x", "zz=1")] + [json.dumps({**body, "cluster": "x"})]
    bad += [good.replace('"num_gpus": 8', '"num_gpus": NaN'), good.replace('"num_gpus": 8', '"num_gpus": 1e999')]
    for text in bad:
        with pytest.raises(InputError):
            read_plan_text(text)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model.name", 1.5),
        ("model.name", None),
        ("model.untie_embeddings_and_output_weights", "x"),
        ("model.num_layers", 4.0),
        ("model.moe_layer_freq", [2]),
        ("model.rope_scaling", {"type": "llama3"}),
        ("cluster.num_gpus", 1.5),
        ("cluster.num_gpus", True),
        ("cluster.memory_bytes", "80 GB"),
        ("numerics.precision", 16),
        ("numerics.lora_target_modules", "all"),
        ("workload.seq_length", "long"),
        ("software", None),
        ("plan.fsdp", 1),
        ("predicted.fits", "yes"),
    ],
)
def test_a_field_of_the_wrong_kind_is_named(autoconfig, good, tmp_path, path, value):
    body = json.loads(good)
    part, name = path.split(".") if "." in path else (None, path)
    (body[part] if part else body)[name] = value
    (tmp_path / "plan.json").write_text(json.dumps(body))
    result = autoconfig.run("check", str(tmp_path / "plan.json"))
    assert result.exit_code == 2 and f"plan file: {path}" in result.stderr and "Traceback" not in result.stderr


def test_the_plan_stands_there_twice_and_must_be_the_same(autoconfig, good, tmp_path):
    body = json.loads(good)
    body["plan"]["tensor_model_parallel_size"] = 4
    (tmp_path / "plan.json").write_text(json.dumps(body))
    result = autoconfig.run("check", str(tmp_path / "plan.json"))
    assert result.exit_code == 2 and "plan.tensor_model_parallel_size is 4" in result.stderr and "says 2" in result.stderr
    with pytest.raises(InputError, match=r"plan\.pipeline_model_parallel_size is 2"):
        read_plan_text(good.replace('"short": "tp=2,pp=2', '"short": "tp=2,pp=1'))


def test_the_file_is_read_before_options_are_judged(autoconfig, good, tmp_path):
    """A file that is no plan is said to be none, whatever options stand beside it."""
    file = tmp_path / "plan.json"
    for text in ("{}", good[:300], '{"kind": "else"}'):
        file.write_text(text)
        result = autoconfig.run("check", str(file), "--gpu", "h100")
        assert result.exit_code == 2 and "JSON" in result.stderr and "--gpu" not in result.stderr
    file.write_text(good)
    result = autoconfig.run("check", str(file), "--gpu", "h100")
    assert result.exit_code == 2 and "drop --gpu" in result.stderr


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.lists(st.integers(), max_size=3),
    st.sampled_from([0, 1, 2, 3, 4, 7, 64, 10**12, -1, 1.5, "bf16", "fp8", "tp=1", "h100-sxm-80gb", "rope", {}, {"a": 1}]),
)  # fmt: skip


def fuzz(run, good, path, value, file):
    body = json.loads(good)
    part, name = path
    (body[part] if part else body)[name] = value
    file.write_text(json.dumps(body))
    result = run("check", str(file))
    assert result.exit_code in (0, 2, 3), result.output
    assert result.exit_code != 2 or result.stderr.startswith("error: ") or "Not legal" in result.stdout


def paths(good):
    body = json.loads(good)
    found = [(None, name) for name in body]
    return found + [(part, name) for part in ("plan", "model", "cluster", "numerics", "workload") for name in body[part]]


@pytest.mark.parametrize("examples", [40, pytest.param(3000, marks=pytest.mark.soak)])
def test_no_field_ends_in_a_traceback(autoconfig, good, tmp_path, examples):
    same = "AUTOCONFIG_SOAK" not in os.environ

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), derandomize=same)
    @given(path=st.sampled_from(paths(good)), value=VALUES)
    def one(path, value):
        fuzz(autoconfig.run, good, path, value, tmp_path / "plan.json")

    one()
