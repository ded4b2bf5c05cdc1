"""Single rules of the training lane by hand, where a slip would hide in an answer."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import NONE, Recompute, parse_plan
from autoconfig.specs.scenario import Numerics
from autoconfig.time_model.hardware.efficiency import entry_for
from tables import listed, tabled

from autoconfig.training.answer import _trade, largest_parts
from autoconfig.training.nearest import (
    _from_space,
    _one_change,
    _recomputes,
    distance,
    nearest_legal,
    nothing_legal,
    odd_factor,
)
from autoconfig.training.order import pareto_positions
from autoconfig.training.plan_rules import PipelineSplit, split_by_accounting, split_of_layout
from autoconfig.training.price import _evidence, flops_per_step
from autoconfig.training.question import Request, odd_graphs, understand
from autoconfig.training.remedies import useful_batches
from autoconfig.training.rules import RULE_TEXT, chunk_layers


@tabled
def test_ends_of_the_plan_that_stands_for_a_split(layers, total, ends):
    assert PipelineSplit(vpp=1, layers=layers).ends(total) == tuple(ends)


@tabled
def test_embedding_and_loss_count_as_a_layer(layers, vpp, embedding, loss, stages, broken):
    found = split_by_accounting(layers, 4, vpp, embedding=embedding, loss=loss)
    assert listed(found.broken) == broken and stages in (None, listed(found.layers))


@tabled
def test_a_layout_of_four_layers_starts_with_the_embedding_and_ends_with_the_loss(text, mtp, layers, vpp, broken):
    """Chunks go round the two stages; depths of multi-token prediction are all there or not named."""
    found = split_of_layout(text, 2, 4, mtp)
    assert listed((found.layers, found.vpp, found.broken)) == [layers, vpp, broken]


@tabled
def test_stages_of_whole_chunks_or_short_ends(first, last, vpp, legal):
    """Four stages, two of 8 layers between the ends: an end is of whole chunks, or lacks at most one chunk's layers."""
    software = SimpleNamespace(supports_pipeline_layout=True)
    asked = SimpleNamespace(model=SimpleNamespace(num_layers=16 + first + last, is_hybrid=False), software=software)
    columns = {name: np.array([value]) for name, value in (("pp", 4), ("first", first), ("last", last), ("vpp", vpp))}
    assert chunk_layers(asked, columns).tolist() == [legal]


@tabled
def test_batches_that_an_odd_number_of_gpus_divides(gpus, batch, found):
    scenario = understand(Request(model="llama3-8b", gpus=gpus, global_batch_size=batch)).scenario
    assert useful_batches(scenario) == found


def test_the_odd_factor_is_what_batch_heads_and_sequence_leave_over():
    """72 = 8 x 9; 96 = 32 x 3 sequences take one 3, 32 heads and 8,192 tokens none."""
    scenario = understand(Request(model="llama3-8b", gpus=72, global_batch_size=96, seq_length=8192)).scenario
    assert odd_factor(scenario).startswith("72 GPUs have the factor 9, ") and "leave 3 of it" in odd_factor(scenario)
    assert odd_factor(scenario.with_batch(288)) == "" and "leave 9 of it" in odd_factor(scenario.with_batch(64))


def test_recomputations_to_try_and_how_far_they_are():
    scenario = understand(Request(model="llama3-8b", gpus=8)).scenario
    plan = parse_plan("tp=2,pp=4,mbs=1,recompute=full:block:3", 8)
    tried = [str(one) for one in _recomputes(scenario, plan)]
    assert tried == ["full:block:3", "full:block:2", "full:block:1", "none"]
    most = [str(one) for one in _recomputes(scenario, plan.replace(recompute=Recompute.parse("full:uniform:99")))]
    assert most == ["full:uniform:99", *(f"full:uniform:{n}" for n in range(8, 0, -1)), "none"]
    for text, far in (("full:block:1", 0.02), ("full:uniform:3", 1.0), ("selective:mlp", 3.0)):
        assert distance(plan.replace(recompute=Recompute.parse(text)), plan) == (1, pytest.approx(far))
    assert distance(plan.replace(tp=8, recompute=NONE), plan) == (2, pytest.approx(2 + 3))
    ends = plan.replace(first=7, last=9)
    assert distance(ends, plan) == (1, pytest.approx(1.0)) and distance(ends.replace(first=9), ends) == (1, pytest.approx(0.5))


@pytest.mark.parametrize(("software", "asked", "instead"), [
    ("torchtitan", "selective:core_attn", "selective:op"), ("transformer-engine", "selective:op", "selective:core_attn"),
])  # fmt: skip
def test_selective_recomputation_is_tried_as_the_software_has_it(software, asked, instead):
    scenario = understand(Request(model="llama3-8b", gpus=8, software=software)).scenario
    plan = parse_plan(f"tp=1,mbs=1,recompute={asked}", 8)
    assert [str(one) for one in _recomputes(scenario, plan)] == [asked, instead, "none"]


def test_plans_of_one_change_keep_all_gpus_at_work():
    """tp=2, pp=2 on 8 GPUs: each degree changed alone, to what divides 8 with the others; dp follows."""
    scenario = understand(Request(model="llama3-8b", gpus=8)).scenario
    found = list(_one_change(scenario, parse_plan("tp=2,pp=2,mbs=1", 8)))
    degrees = {(one.tp, one.pp, one.cp, one.dp) for one in found}
    assert degrees == {(2, 2, 1, 2), (1, 2, 1, 4), (4, 2, 1, 1), (2, 1, 1, 4), (2, 4, 1, 1), (2, 2, 2, 1)}


@pytest.mark.parametrize(("asked", "ends"), [("pp=16", (3, 2)), ("pp=8", (7, 6)), ("pp=2", (31, 30))])
def test_layers_that_do_not_divide_keep_the_stages_that_were_asked_for(asked, ends):
    scenario = understand(Request(model="deepseek-v3", gpus=1024)).scenario
    plan = parse_plan(f"tp=1,{asked},ep=64,mbs=1", 1024)
    assert nearest_legal(scenario, plan) == plan.replace(first=ends[0], last=ends[1])
    assert nearest_legal(scenario, plan, even_only=True) == plan.replace(pp=1, dp=1024)


@tabled
def test_stages_stay_even_where_the_nearest_plan_of_the_whole_space_has_even_ones(text, even_only, found):
    scenario = understand(Request(model="llama3-8b", gpus=8)).scenario
    assert _from_space(scenario, parse_plan(text, 8), even_only) == parse_plan(found, 8)


def test_uneven_stages_stay_uneven_where_they_may():
    scenario = understand(Request(model="llama3-8b", gpus=8)).scenario
    found = _from_space(scenario, parse_plan("tp=2,pp=4,mbs=1,first=7,last=9", 8), False)
    assert found.pp == 4 and found.first and found.last


def test_an_empty_space_names_its_first_two_reasons():
    question = understand(Request(model="llama3-8b", gpus=8))
    first, second, third = list(RULE_TEXT)[1:4]
    said = str(nothing_legal(question, SimpleNamespace(rejected_by_rule=dict.fromkeys((first, second, third), 1))))
    assert RULE_TEXT[first] in said and RULE_TEXT[second] in said and RULE_TEXT[third] not in said


def test_the_three_largest_parts_of_a_step_are_named():
    parts = {"p2p_seconds": 1.0, "optimizer_seconds": 0.5, "gemm_seconds": 6.0, "fsdp_seconds": 2.5}
    said = largest_parts(SimpleNamespace(time_parts=parts, step_seconds=10.0))
    assert said == "GEMMs 60 %, FSDP gathers 25 %, pipeline sends 10 %"


@pytest.mark.parametrize(("gpu", "said"), [
    ("h100", "with megatron-core on hopper"), ("v100-32gb", "no measured runs on volta"),
])  # fmt: skip
def test_runs_behind_the_constants_are_named_where_there_are_any(gpu, said):
    assert said in _evidence(understand(Request(model="llama3-8b", gpus=8, gpu=gpu)).scenario)


def test_constants_that_no_run_determines_are_named_and_those_of_experts_only_for_mixtures():
    for model in ("llama3-8b", "mixtral-8x7b"):
        scenario = understand(Request(model=model, gpus=8, gpu="h100")).scenario
        entry = entry_for(scenario, moe=scenario.model.is_moe)
        kept = [name for name in entry.log_sd if name not in entry.determined and (name != "moe" or scenario.model.is_moe)]
        said = _evidence(scenario)
        assert said.startswith(f"calibration {scenario.calibration.version}, software {scenario.software.name}: ")
        assert said.partition("kept near the default: ")[2] == ", ".join(kept)


@pytest.mark.parametrize(("model", "scope", "capacity", "rule"), [
    ("mixtral-8x7b", {"moe", "moe_router"}, 1.0, "NV147"), ("mixtral-8x7b", {"moe"}, 1.0, ""),
    ("mixtral-8x7b", {"moe"}, None, "NV149"),
    ("mixtral-8x7b", {"moe_preprocess"}, None, "NV148"), ("mixtral-8x7b", {"moe_router", "moe_preprocess"}, None, ""),
    ("mixtral-8x7b", {"mlp"}, None, "NV150"), ("deepseek-v3", {"mlp"}, None, ""), ("llama3-8b", {"moe_router"}, None, "NV150"),
    ("llama3-8b", {"attn", "mlp"}, None, ""), ("llama3-8b", {"full"}, None, ""), ("llama3-8b", {"full", "attn"}, None, "alone"),
    ("mixtral-8x7b", {"attn", "moe", "moe_router"}, 1.0, "NV147"),
])  # fmt: skip
def test_graphs_that_megatron_has_not(model, scope, capacity, rule):
    said = odd_graphs(frozenset(scope), load_model(model), Numerics(moe_capacity_factor=capacity))
    assert rule in said and bool(rule) == bool(said)


def test_at_most_twelve_points_of_the_front_from_the_fastest_to_the_smallest():
    count = 40
    ranking = SimpleNamespace(
        row=np.arange(count), step_seconds=np.geomspace(10.0, 15.0, count), limit_bytes=np.full(count, 80.0),
        peak_bytes=np.linspace(79.0, 20.0, count),
    )  # fmt: skip
    found = pareto_positions(ranking)
    assert len(found) == 12 and found[0] == 0 and found[-1] == count - 1 and np.ptp(np.diff(found)) <= 1


@pytest.mark.parametrize(("model", "given", "seq", "batch"), [
    ("gpt3-175b", {}, 2048, 1536), ("deepseek-v3", {}, 4096, 15360),
    ("gpt3-175b", {"seq_length": 4096}, 4096, 1024), ("llama3.2-1b", {}, 8192, 512),
    ("qwen2.5-0.5b", {"seq_length": 2**23}, 2**23, 1), ("gpt3-175b", {"global_batch_size": 7}, 2048, 7),
])  # fmt: skip
def test_sequence_and_batch_that_are_not_given(model, given, seq, batch):
    """The model's own; else what it allows, at most 8,192 tokens, and about 4 million tokens a step."""
    workload = understand(Request(model=model, gpus=1024, **given)).scenario.workload
    assert (workload.seq_length, workload.global_batch_size) == (seq, batch)


@tabled
def test_flops_of_a_step_are_equation_3_of_narayanan(convention, recompute, passes, per_sequence, per_vocabulary):
    """96 B s l h^2 (1 + s / 6h + V / 16lh) with recomputation; 72 and V / 12lh without; half the scores under a causal mask."""
    scenario = understand(Request(model="gpt3-175b", gpus=1024)).scenario
    b, s, layers, h, v = scenario.workload.global_batch_size, 2048, 96, 12288, scenario.model.vocab_size
    expected = passes * b * s * layers * h**2 * (1 + s / (per_sequence * h) + v / (per_vocabulary * layers * h))
    assert flops_per_step(scenario, convention, Recompute.parse(recompute)) == pytest.approx(expected)


def test_two_losses_two_gains_and_the_memory_of_a_trade_are_named():
    names = ("gemm_seconds", "p2p_seconds", "fsdp_seconds", "optimizer_seconds", "straggler_seconds", "head_seconds")
    reports = [
        SimpleNamespace(time_parts=dict(zip(names, parts, strict=True)), step_seconds=15.0, peak_bytes=peak * 2**30)
        for parts, peak in (((8.0, 1.5, 1.2, 0.4, 0.7, 4.9), 42), ((6.0, 1.0, 1.0, 1.0, 1.0, 5.0), 40))
    ]
    assert _trade(*reports) == ": GEMMs +2.00 s; pipeline sends +500 ms; optimizer -600 ms; stragglers -300 ms; +2.0 GiB"
