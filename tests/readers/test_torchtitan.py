"""torchtitan: what its files say beyond a plan's degrees, and what it refuses."""

import re

import pytest
from autoconfig.memory_model.predict import estimate_memory
from autoconfig.specs.errors import InputError
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import parse_plan
from autoconfig.specs.software.software import load_stack

from autoconfig.formats.check import read_any
from autoconfig.formats.convert import write_plan
from autoconfig.formats.hooks.torchtitan import SAME, TORCHTITAN
from autoconfig.megatron.check_input import CheckRequest
from autoconfig.training.answer import answer as search
from autoconfig.training.plan_rules import broken_rules
from autoconfig.training.price import report_plan
from autoconfig.training.question import Request

FILE = """
[model]
name = "{name}"
flavor = "{flavour}"
converters = {converters}
[optimizer]
name = "{optimizer}"
[training]
local_batch_size = {local}
global_batch_size = {whole}
seq_len = 4096
[parallelism]
data_parallel_shard_degree = {shard}
data_parallel_replicate_degree = {copies}
tensor_parallel_degree = {tp}
pipeline_parallel_degree = {pp}
expert_parallel_degree = {ep}
"""
USUAL = {"name": "llama3", "flavour": "8B", "converters": "[]", "optimizer": "AdamW", "local": 8, "whole": 16, "shard": 2,
         "copies": 1, "tp": 1, "pp": 4, "ep": 1}  # fmt: skip
H100 = CheckRequest(gpu="h100-sxm-80gb")


def read(**more):
    return read_any(FILE.format(**USUAL | more), H100)


def test_a_larger_batch_runs_the_pipelines_schedule_again():
    """train.py: gradient_accumulation_steps calls of the schedule, each with a bubble and with buffers for its own 8."""
    once, four = read(), read(whole=64)
    assert [found.question.scenario.workload.schedule_calls for found in (once, four)] == [1, 4]
    parts = [report_plan(found.question.scenario, found.plan).time_parts for found in (once, four)]
    assert parts[1]["pipeline_bubble_seconds"] == pytest.approx(4 * parts[0]["pipeline_bubble_seconds"])
    assert parts[1]["gemm_seconds"] == pytest.approx(4 * parts[0]["gemm_seconds"])
    buffers = []
    for found in (once, four, read(local=32, whole=64)):
        s = found.question.scenario
        memory = estimate_memory(s, s.layouts([found.plan]), [found.plan.recompute], detail=True)
        buffers.append(float(memory.parts["stage_buffers"].max()))
    assert buffers[0] == buffers[1] < buffers[2]
    text = write_plan(four.question.scenario, four.plan, "torchtitan").text
    assert "local_batch_size = 8\n" in text and "global_batch_size = 64\n" in text
    again = read_any(text, H100)
    assert (again.plan, again.question.scenario.workload) == (four.plan, four.question.scenario.workload)


@pytest.mark.parametrize(("name", "flavour", "load"), [("qwen3", "30B-A3B", 1.0), ("llama3", "8B", None)])
def test_forced_balance_of_experts(name, flavour, load):
    found = read_any(
        FILE.format(**USUAL | {"name": name, "flavour": flavour, "pp": 1}) + "[debug]\nmoe_force_load_balance = true\n", H100
    )
    assert found.question.scenario.numerics.moe_imbalance == load


def test_batches_that_the_schedule_cannot_run():
    with pytest.raises(InputError, match="no multiple of the pipeline's local batch 8"):
        read(whole=24)
    few = read(local=2, whole=64)  # 32 micro-batches a step, two in each run of four stages
    assert broken_rules(few.question.scenario, [few.plan]) == [["AC028"]]


@pytest.mark.parametrize(("more", "broken"), [
    ({"tp": 2, "pp": 1}, ["AC031"]), ({"pp": 4}, ["AC031"]), ({"pp": 1}, []),
    ({"tp": 2, "pp": 1, "shard": 8, "copies": 1}, []),
])  # fmt: skip
def test_unsharded_copies_stand_alone(more, broken):
    """models/llama3/infra/parallelize.py: DDP has not supported > 1D parallelism."""
    found = read(**{"shard": 1, "copies": 8, "whole": 64} | more)
    assert broken_rules(found.question.scenario, [found.plan]) == [broken]
    words = TORCHTITAN.refused(found.question.scenario, found.plan)
    assert any("DDP" in word for word in words) == bool(broken)


@pytest.mark.parametrize("asked", [{"model": "llama3-8b", "gpus": 16}, {"model": "qwen3-30b-a3b", "gpus": 16}])
def test_a_search_ranks_plans_that_files_can_say(asked):
    answer = search(Request(gpu="h100-sxm-80gb", global_batch_size=64, seq_length=4096, software="torchtitan", top=40, **asked))
    plans = [shown.report.plan for shown in answer.plans]
    refused = [words for plan in plans for words in TORCHTITAN.refused(answer.question.scenario, plan)]
    assert len(plans) >= 10 and not [words for words in refused if re.match(r"sp=|recompute=|fsdp=0|stages of", words)]


WRITTEN = {name: word for word, name in TORCHTITAN.table.entry("model").values.items() if "*" not in word}


@pytest.mark.parametrize("model", [*WRITTEN, *SAME])
def test_flavours_that_are_written_are_read_as_the_same_model(model):
    flavour = WRITTEN[SAME.get(model, model)].split(" ")
    shape = ("num_layers", "hidden_size", "num_moe_experts", "moe_router_topk", "vocab_size")
    found = read(name=flavour[0], flavour=flavour[1], pp=1).question.scenario.model
    assert [getattr(found, name) for name in shape] == [getattr(load_model(model), name) for name in shape]


@pytest.mark.parametrize(("converters", "precision", "named"), [
    (["quantize.grouped_mm.float8"], "bf16", "GEMMs of routed experts in 8 bits"),
    (["quantize.linear.float8"], "fp8", "leaves routed experts in 16 bits"),
    (["quantize.linear.float8", "quantize.grouped_mm.float8"], "fp8", None),
    ([], "bf16", None),
])  # fmt: skip
def test_converters_name_whose_products_are_quantised(converters, precision, named):
    found = read(name="qwen3", flavour="30B-A3B", pp=1, ep=2, converters=converters)
    said = [remark.why for remark in found.not_modelled if remark.field == "model.converters"]
    assert found.question.scenario.numerics.precision == precision
    assert [named in why for why in said] == ([True] if named else [])


def test_muon_keeps_one_momentum():
    assert read(optimizer="Muon").question.scenario.numerics.optimizer == "muon"
    assert [r.field for r in read(optimizer="Lion").not_modelled] == ["optimizer.name"]


@pytest.mark.parametrize(("ends", "says"), [
    ("pp=2,dp=4,first=17,last=15", "first_stage_less_layers = 0\npipeline_parallel_last_stage_less_layers = 2"),
    ("pp=4,dp=2,first=6,last=8", "first_stage_less_layers = 3\npipeline_parallel_last_stage_less_layers = 1"),
    ("pp=2,vpp=2,dp=4,first=18,last=14", "first_stage_less_layers = 0\npipeline_parallel_last_stage_less_layers = 4"),
    ("pp=2,vpp=2,dp=4,first=24,last=8", None), ("pp=4,dp=2,first=10,last=8", None),
])  # fmt: skip
def test_stages_with_fewer_layers_at_an_end_are_written_and_read(ends, says):
    """generate_llm_fqn_per_model_part: equal stages, the ends less what is named; one layer at least."""
    scenario = read(pp=2, shard=4, whole=32).question.scenario
    plan = parse_plan(f"{ends},mbs=1,fsdp=2", 8)
    refused = TORCHTITAN.refused(scenario, plan)
    if says is None:
        assert [words[:9] for words in refused] == ["stages of"]
        return
    text = write_plan(scenario, plan, "torchtitan").text
    again = read_any(text, H100).plan
    assert not refused and says in text and (again.first, again.last, again.vpp) == (plan.first, plan.last, plan.vpp)


def test_the_rules_are_of_torchtitan_alone():
    assert load_stack("torchtitan").ddp_stands_alone and not load_stack("torch-eager").ddp_stands_alone
