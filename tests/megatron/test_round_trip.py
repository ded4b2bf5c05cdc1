"""Plans and scripts there and back: plan JSON, exports read again."""

import dataclasses
import itertools
import json
import os
import random
from dataclasses import replace

import numpy as np
import pytest
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.models.model_catalogue import model_names
from autoconfig.specs.plan import parse_plan
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from tables import table, tabled

from autoconfig.megatron.argument_list import megatron_program, split_arguments
from autoconfig.megatron.batch.scripts import sbatch_script, torchrun_script
from autoconfig.megatron.check import check
from autoconfig.megatron.check_input import CheckRequest, check_request, read_check
from autoconfig.megatron.edit import edited_text
from autoconfig.megatron.export import plan_text, read_plan_text
from autoconfig.megatron.shell.script import read_script
from autoconfig.planning.calibration_file import shipped
from autoconfig.planning.request_fields import SWITCHES as SWITCH_FIELDS
from autoconfig.planning.resolve import field_names
from autoconfig.planning.schemas import schema
from autoconfig.training.answer import answer as search
from autoconfig.training.price import report_plan, violations
from autoconfig.training.question import Request, request_of, understand
from autoconfig.training.space import Constraints, enumerate_space, recompute_options

FEW_OR_MANY = [(3, 20), pytest.param(int(os.environ.get("AUTOCONFIG_SOAK_SEED", "2")), 1000, marks=pytest.mark.soak)]
NUMERICS = table(__file__, "numerics")
SOFTWARE = (None, None, None, "megatron-local")
SWITCHES = ({}, {"dispatcher": "hybridep", "cuda_graphs": "attn moe_router"}, {"ep_overlap": True}, {"dispatcher": "allgather"})
"""Given for mixtures of experts."""
UNSAID = ("name", "sources", "default_seq_length", "default_global_batch_size", "published_parameters")


UNSAID += ("norm_epsilon", "router", "default_decoder_seq_length")


"""Fields of a model that no plan depends on: no argument of Megatron-LM says them, or `check` lists it as without effect."""


def random_plans(scenario, generator, count):
    """Legal plans of a setting, uneven stages, recomputation and sharding included."""
    sharding = generator.choice(
        [Constraints(), Constraints(fixed={"dist_opt": frozenset({False})}), Constraints(fixed={"offload": frozenset({0.5})})]
    )
    layouts = enumerate_space(scenario, sharding).layouts
    options = recompute_options(scenario, Constraints(), scenario.model.num_layers)
    for row in np.array([generator.randrange(len(layouts)) for _ in range(count if len(layouts) else 0)]):
        plan = layouts.plan(int(row), generator.choice(options), scenario.model)
        if not violations(scenario, plan):
            yield plan


def said(model):
    return {f.name: getattr(model, f.name) for f in dataclasses.fields(model) if f.name not in UNSAID}


def said_gather(scenario, plan):
    """Under torch FSDP2 Megatron-LM switches fp8_param_gather off: it is not written there."""
    return scenario.numerics.fp8_param_gather and not plan.fsdp


def assert_reads_back(scenario, plan, write):
    found = read_check(write(scenario, plan, None), CheckRequest(gpu=scenario.cluster.gpu.id))
    again = found.question.scenario
    assert found.plan == plan and found.unknown == found.notes == () and found.split is None
    assert again.cluster == scenario.cluster and again.workload == scenario.workload
    assert again.numerics == dataclasses.replace(scenario.numerics, fp8_param_gather=said_gather(scenario, plan))
    assert said(again.model) == said(scenario.model)
    assert again.software == scenario.software, str(plan)
    assert again.settings(plan) == scenario.settings(plan)


@pytest.mark.parametrize(("seed", "count"), FEW_OR_MANY)
def test_whole_scripts_read_back(scenario_of, seed, count):
    generator = random.Random(seed)
    seen = 0
    while seen < count:
        name, numerics = generator.choice(("dense", "odd", "moe", "mla")), generator.choice(NUMERICS)
        quantised = {"fp8": "h100", "nvfp4": "b200"}
        switches = generator.choice(SWITCHES) if name in ("moe", "mla") and numerics.get("precision") != "fp32" else {}
        gpu = quantised.get(numerics.get("precision")) or generator.choice(("a100-80gb", "h100", "b200"))
        software, gpus = generator.choice(SOFTWARE), generator.choice((8, 16, 48, 64))
        if software and numerics.get("precision") in quantised:
            continue
        scenario = scenario_of(name, gpus=gpus, gpu=gpu, numerics=numerics, software=software, switches=switches)
        for plan in random_plans(scenario, generator, 20):
            for write in (torchrun_script, sbatch_script):
                assert_reads_back(scenario, plan, write)
            seen += 1


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("deepseek-v3", "tp=1,pp=16,vpp=2,ep=4,mbs=1,first=3,last=2"),
        ("llama3.1-405b", "tp=8,pp=8,vpp=4,mbs=1,first=15,last=15"),
    ],
)
def test_pipeline_layouts_read_back(model, text):
    scenario = understand(Request(model=model, gpus=64, gpu="b200", global_batch_size=64)).scenario
    plan = parse_plan(text, 64)
    for write in (torchrun_script, sbatch_script):
        assert "--pipeline-model-parallel-layout" in write(scenario, plan, None)
        assert_reads_back(scenario, plan, write)


@pytest.mark.parametrize(("seed", "count"), FEW_OR_MANY)
def test_edited_exports_start_what_fresh_ones_start(scenario_of, seed, count):
    """Scripts of one plan, edited to another: what they start is what a fresh export of the other starts."""
    generator = random.Random(seed)
    seen = 0
    while seen < count:
        scenario = scenario_of(generator.choice(("dense", "odd", "moe", "mla")), gpus=16, gpu="h100")
        plans = list(random_plans(scenario, generator, 8))
        asked = CheckRequest(gpu="h100")
        for old, new in itertools.pairwise(plans):
            write = generator.choice((torchrun_script, sbatch_script))
            before, fresh = write(scenario, old, None), write(scenario, new, None)
            text = edited_text(read_check(before, asked), new, None, asked)
            edited, written = (read_script(one, megatron_program()).words() for one in (text, fresh))
            given = [{name: one.values for name, one in split_arguments(words).given.items()} for words in (edited, written)]
            assert given[0] == given[1] and "" not in edited
            assert set(comments(text)) == set(comments(fresh))
            seen += 1


def comments(text):
    """All but the titles of sections: a section that was not there is not made."""
    found = (line.partition("  # ")[2] or line for line in text.splitlines() if "# " in line)
    return [line for line in found if not line.startswith("# ---")]


FIRST = table(__file__, "first_exports")


@pytest.mark.parametrize("write", [torchrun_script, sbatch_script])
@pytest.mark.parametrize("name", FIRST)
def test_check_has_nothing_to_add_to_a_fresh_export(name, write):
    found = search(Request(gpu="h100", **FIRST[name]))
    scenario, first = found.question.scenario, found.plans[0].report
    plan = first.plan
    answer = check(read_check(write(scenario, plan, None), CheckRequest(gpu="h100")))
    assert answer.violations == () and answer.report.fits and answer.better is None and answer.changes == ()
    assert answer.report.step_seconds == pytest.approx(first.step_seconds, rel=1e-12)
    if name == "dense-tp1":
        assert plan.tp == 1


NOT_WRITTEN = ("bloom", "falcon", "gpt-j", "gpt-neox", "minimax", "olmo", "opt")
"""Families that Megatron-LM has no arguments for."""


@pytest.mark.parametrize("name", [name for name in model_names() if not name.startswith(NOT_WRITTEN)])
def test_every_model_reads_back_whole(name):
    scenario = understand(Request(model=name, gpus=8, gpu="h100", seq_length=1024, global_batch_size=8)).scenario
    scaling = scenario.model.rope_scaling
    if scaling is not None and scaling.type == "other":  # Megatron-LM has no argument for it; the script says so
        assert "NOT WRITTEN" in torchrun_script(scenario, parse_plan("tp=1,mbs=1", 8), None)
        scenario = dataclasses.replace(scenario, model=scenario.model.replace(rope_scaling=None))
    if scenario.model.num_layernorms_per_layer == 4:  # Gemma 2 and 3
        text = torchrun_script(scenario, parse_plan("tp=1,mbs=1", 8), None)
        assert "argument for it: norms behind" in text and "--softmax-scale (query_pre_attn_scalar" in text
        assert f"--mup-embedding-mult '{scenario.model.hidden_size**0.5:.6g}'" in text and "--apply-layernorm-1p" in text
        scenario = dataclasses.replace(scenario, model=scenario.model.replace(num_layernorms_per_layer=2))
    assert_reads_back(scenario, parse_plan("tp=1,mbs=1", 8), torchrun_script)


@pytest.mark.parametrize("name", [name for name in model_names() if name.startswith(NOT_WRITTEN)])
def test_models_without_arguments_are_refused(name):
    scenario = understand(Request(model=name, gpus=8, gpu="h100", seq_length=1024, global_batch_size=8)).scenario
    with pytest.raises(UnsupportedError, match="no argument for it"):
        torchrun_script(scenario, parse_plan("tp=1,mbs=1", 8), None)


@pytest.mark.parametrize(("argument", "text"), [
    ("--decoder-num-layers '24'", "as many of both"), ("--decoder-seq-length '128'", "decoder-seq-length is not in the file"),
])  # fmt: skip
def test_scripts_of_t5_that_cannot_be_read_say_why(argument, text):
    scenario = understand(Request(model="t5-3b", gpus=8, gpu="h100")).scenario
    script = torchrun_script(scenario, parse_plan("tp=1,mbs=1", 8), None)
    assert argument in script
    with pytest.raises(InputError, match=text):
        read_check(script.replace(argument, "--decoder-num-layers 12" if "num" in argument else ""), CheckRequest(gpu="h100"))


def test_windows_said_layer_by_layer_read_back():
    scenario = understand(Request(model="gpt-oss-20b", gpus=8, gpu="h100", seq_length=1024, global_batch_size=8)).scenario
    slides = (0,) * 10 + (1, 0, 1, 1) * 3 + (1, 0)
    scenario = dataclasses.replace(scenario, model=scenario.model.replace(window_attn_skip_freq=slides))
    assert_reads_back(scenario, parse_plan("tp=1,mbs=1", 8), torchrun_script)


PLANS = table(__file__, "exported_plans")


SWITCH_FLAGS = ("--overlap-moe-expert-parallel-comm", "--delay-wgrad-compute", "--use-transformer-engine-op-fuser")


def test_the_switches_of_a_release_are_written_and_read():
    asked = {"model": "qwen3-30b-a3b", "gpus": 8, "gpu": "gb300", "software": "nemo-26.06", "precision": "mxfp8"}
    scenario = understand(request_of(asked)).scenario
    text = torchrun_script(scenario, parse_plan("tp=1,ep=8,mbs=1", 8), None)
    for words in (*SWITCH_FLAGS, "--moe-flex-dispatcher-backend 'hybridep'", "--cuda-graph-impl 'full_iteration'"):
        assert words in text
    assert "--moe-shared-expert-overlap" not in text and "export NVTE_CUTEDSL_FUSED_GROUPED_MLP='1'" in text
    found = read_check(text, check_request({"gpu": "gb300"})).question.scenario.settings()
    for name in {*field_names(SWITCH_FIELDS)} & {field.name for field in dataclasses.fields(found)}:
        assert getattr(found, name) == getattr(scenario.settings(), name)
    other = read_check(text, check_request({"gpu": "gb300", "dispatcher": "alltoall", "ep_overlap": False})).question.scenario
    assert (other.settings().dispatcher, other.settings().ep_overlap) == ("alltoall", False) and other.settings().fused_experts
    staged = torchrun_script(scenario, parse_plan("tp=1,pp=2,ep=4,mbs=1", 8), None)
    assert SWITCH_FLAGS[0] not in staged, "no interleaving: Megatron refuses it"


@pytest.fixture(params=PLANS)
def exported(request, scenario_of):
    text, numerics = PLANS[request.param]
    switches = {"dispatcher": "deepep", "cuda_graphs": "none", "ep_overlap": False} if request.param == "mla" else {}
    return scenario_of(request.param, numerics=numerics, switches=switches), parse_plan(text, 8)


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
    bad += [json.dumps({key: value for key, value in body.items() if key != gone}) for gone in body if gone != "given"]
    bad += [json.dumps({**body, "short": text}) for text in ("", "tp=x", "zz=1")] + [json.dumps({**body, "cluster": "x"})]
    bad += [good.replace('"num_gpus": 8', '"num_gpus": NaN'), good.replace('"num_gpus": 8', '"num_gpus": 1e999')]
    for text in bad:
        with pytest.raises(InputError):
            read_plan_text(text)


@tabled
def test_a_field_of_the_wrong_kind_is_named(autoconfig, good, tmp_path, path, value):
    body = json.loads(good)
    part, name = path.split(".") if "." in path else (None, path)
    (body[part] if part else body)[name] = value
    (tmp_path / "plan.json").write_text(json.dumps(body))
    result = autoconfig.run("check", str(tmp_path / "plan.json"))
    assert result.exit_code == 2 and f"plan file: {path}" in result.stderr and "Traceback" not in result.stderr


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


@pytest.mark.parametrize("examples", [20, pytest.param(3000, marks=pytest.mark.soak)])
def test_no_field_ends_in_a_traceback(autoconfig, good, tmp_path, examples):
    same = "AUTOCONFIG_SOAK" not in os.environ

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), derandomize=same)
    @given(path=st.sampled_from(paths(good)), value=VALUES)
    def one(path, value):
        fuzz(autoconfig.run, good, path, value, tmp_path / "plan.json")

    one()


def test_what_export_could_not_write_of_gemma_3_is_said_by_check(tmp_path):
    """Norms behind attention and MLP have no Megatron argument: the script is priced as it runs, unless the model is named."""
    question = understand(Request(model="gemma3-4b", gpus=8, seq_length=4096, global_batch_size=64))
    text = torchrun_script(question.scenario, question.scenario.read_plan("tp=2,mbs=1,sp=1"), None)
    found = read_check(text, CheckRequest())
    assert any("norms behind attention and MLP" in note and "priced as it runs" in note for note in found.notes)
    assert not any("norms behind" in note for note in read_check(text, CheckRequest(model="gemma3-4b")).notes)
