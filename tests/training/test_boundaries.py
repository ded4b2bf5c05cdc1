"""Rules of legality and words of the training lane at their boundaries: the columns on both sides, by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from autoconfig.specs.errors import GIB, InputError
from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import NONE, Recompute, TrainPlan, parse_plan
from autoconfig.specs.run_settings import GivenSettings
from autoconfig.specs.scenario import Numerics, OwnRuns, Scenario, Workload
from autoconfig.specs.software.software import load_stack
from small_models import MODELS

from autoconfig.training import remedies
from autoconfig.training.answer import part_words, reason_for, signed_seconds
from autoconfig.training.nearest import changed_keys
from autoconfig.training.order import in_order, pareto_positions, plainest_first, safe_position, tie_groups
from autoconfig.training.plan_rules import broken_rules, layout_chunks
from autoconfig.training.price import (
    Band,
    PlanReport,
    StageMemory,
    band_of,
    confidence_class,
    first_plan_kind,
    narrowed,
    record_for,
)
from autoconfig.training.remedies import OtherBatch, Remedy, _saves, _savings, memory_binds
from autoconfig.training.rules import RULES, recompute_fits_layers, recompute_rule
from autoconfig.training.space import Constraints, recompute_options
from autoconfig.training.workload import read_workload, trains_adapters

CHECKS = {rule.id: rule.legal for rule in RULES}
ASKED = {"seq_length": None, "decoder_seq_length": None, "packed_length": None, "global_batch_size": None}


def scenario(name="gpt", change=None, batch=32, seq=64, gpus=16, given=None, stack=None, **numerics):
    """A small model of 4 layers, 24 heads, 8 groups on 16 GPUs; `change`: of the model, `stack`: of the software."""
    model = ModelSpec(**MODELS[name]).replace(**(change or {}))
    return Scenario(
        model=model, cluster=cluster_of(load_gpu("h100"), gpus), numerics=Numerics(**numerics),
        given=GivenSettings(**given or {}),
        software=replace(load_stack("transformer-engine"), **(stack or {})),
        workload=Workload(seq_length=seq, global_batch_size=batch),
    )  # fmt: skip


MAMBA = {"hybrid_layer_pattern": "M*M*", "num_moe_experts": None}
"""12 heads and 4 groups of Mamba-2."""
DELTA = {"hybrid_layer_pattern": "G*G*", "num_moe_experts": None}
"""4 heads of keys and 8 of values."""
SINKS = {"attention_sinks": True}
DEEPSPEED, TORCH = {"sharding": "deepspeed"}, {"sharding": "torch"}
FSDP = {"pp": 1, "ep": 1, "dist_opt": False}
OWN = {"change": {"untie_embeddings_and_output_weights": True}}
OVERLAP = {"given": {"ep_overlap": True}, "name": "moe"}

ROWS = [
    ("NV001", {}, {"tp": 2, "pp": 4, "cp": 2}, True), ("NV001", {}, {"tp": 4, "pp": 4, "cp": 2}, False),
    ("NV001", {"gpus": 24}, {"tp": 3, "pp": 2, "cp": 4}, True), ("NV001", {"gpus": 24}, {"tp": 3, "pp": 3, "cp": 1}, False),
    ("NV002", {"gpus": 24}, {"etp": 3, "ep": 4, "pp": 2}, True), ("NV002", {"gpus": 24}, {"etp": 3, "ep": 3, "pp": 1}, False),
    ("NV002", {"gpus": 24}, {"etp": 3, "ep": 1, "pp": 3}, False), ("NV002", {"gpus": 24}, {"etp": 1, "ep": 3, "pp": 3}, False),
    ("NV013", {}, {"tp": 24}, True), ("NV013", {}, {"tp": 16}, False), ("NV013", {}, {"tp": 48}, False),
    ("NV014", {}, {"tp": 8}, True), ("NV014", {}, {"tp": 24}, True), ("NV014", {}, {"tp": 12}, False),
    ("NV014", {}, {"tp": 3}, False), ("NV014", {"name": "mla"}, {"tp": 3}, True),
    ("NV018", {}, {"tp": 8, "etp": 7}, True), ("NV018", {}, {"tp": 16, "etp": 1}, False),  # ffn 200
    ("NV018", {"name": "moe"}, {"tp": 11, "etp": 7}, True), ("NV018", {"name": "moe"}, {"tp": 1, "etp": 3}, False),  # 56, 88
    ("NV018", {"name": "moe"}, {"tp": 3, "etp": 1}, False),
    ("NV018", {"name": "moe", "change": {"moe_layer_freq": 2}}, {"tp": 11, "etp": 7}, False),
    ("NV026", {}, {"pp": 4}, True), ("NV026", {}, {"pp": 5}, False),
    ("NV053", {}, {"cp": 32}, True), ("NV053", {}, {"cp": 64}, False), ("NV053", {"seq": 63}, {"cp": 1}, True),
    ("NV053", {"seq": 63}, {"cp": 3}, False), ("NV053", {"stack": DEEPSPEED}, {"cp": 64}, True),
    ("NV054", {"stack": {"supports_context_parallel": False}}, {"cp": 2}, False),
    ("NV054", {"stack": {"supports_context_parallel": False}}, {"cp": 1}, True),
    ("NV046", {}, {"sp": True, "tp": 2}, True), ("NV046", {}, {"sp": True, "tp": 1}, False),
    ("NV046", {}, {"sp": False, "tp": 1}, True),
    ("AC001", {}, {"sp": True, "tp": 8, "cp": 8}, True), ("AC001", {}, {"sp": True, "tp": 8, "cp": 16}, False),
    ("AC001", {}, {"sp": False, "tp": 8, "cp": 16}, True), ("AC001", {"seq": 48}, {"sp": True, "tp": 2, "cp": 32}, False),
    ("AC013", {"name": "hybrid", "change": MAMBA}, {"tp": 4}, True),
    ("AC013", {"name": "hybrid", "change": MAMBA}, {"tp": 3}, False),
    ("AC013", {"name": "hybrid", "change": MAMBA}, {"tp": 8}, False), ("AC013", {}, {"tp": 7}, True),
    # in_proj: 2 x 240 + 2 x 4 x 26 + 12 = 700 columns, no multiple of 16; with 16 heads 864 = 54 x 16
    ("AC013", {"name": "hybrid", "change": MAMBA, "precision": "fp8"}, {"tp": 1}, False),
    ("AC013", {"name": "hybrid", "change": {**MAMBA, "mamba_num_heads": 16}, "precision": "fp8"}, {"tp": 1}, True),
    ("AC014", {"name": "hybrid", "change": MAMBA}, {"tp": 2, "cp": 2}, True),
    ("AC014", {"name": "hybrid", "change": MAMBA}, {"tp": 4, "cp": 3}, True),  # 3 heads, 1 group
    ("AC014", {"name": "hybrid", "change": MAMBA}, {"tp": 2, "cp": 4}, False),  # 6 heads over 4
    ("AC014", {"name": "hybrid", "change": MAMBA}, {"tp": 2, "cp": 3}, False),  # 2 groups and 3 ranks
    ("AC014", {"name": "hybrid", "change": MAMBA}, {"tp": 1, "cp": 4}, True), ("AC014", {}, {"tp": 1, "cp": 5}, True),
    ("AC015", {"name": "hybrid", "change": DELTA}, {"tp": 2, "cp": 2}, True),
    ("AC015", {"name": "hybrid", "change": DELTA}, {"tp": 2, "cp": 4}, False), ("AC015", {}, {"tp": 5, "cp": 1}, True),
    # in_proj: 2 x 88 + 2 x 240 + 2 x 8 = 672 = 42 x 16 = 21 x 32; with a key head of 23 channels 680
    ("AC015", {"name": "hybrid", "change": DELTA, "precision": "fp8"}, {"tp": 1, "cp": 1}, True),
    ("AC015", {"name": "hybrid", "change": {**DELTA, "linear_key_head_dim": 23}, "precision": "fp8"},
     {"tp": 1, "cp": 1}, False),
    ("AC021", {"name": "t5"}, {"pp": 2, "vpp": 1}, False),
    *(("AC021", {"name": "t5", "stack": {"supports_encoder_decoder_pipeline": True}}, {"pp": pp, "vpp": vpp}, legal)
      for pp, vpp, legal in ((2, 1, True), (4, 1, True), (2, 2, False), (3, 1, False), (1, 1, True))),
    ("AC021", {"name": "t5", "change": {"encoder_num_layers": 1}, "stack": {"supports_encoder_decoder_pipeline": True}},
     {"pp": 2, "vpp": 1}, False),
    ("AC021", {}, {"pp": 3, "vpp": 2}, True),
    ("AC022", {"name": "bert"}, {"cp": 2}, False), ("AC022", {"name": "bert"}, {"cp": 1}, True), ("AC022", {}, {"cp": 2}, True),
    ("AC024", {"change": SINKS}, {"tp": 4, "cp": 2}, True), ("AC024", {"change": SINKS}, {"tp": 4, "cp": 4}, False),
    ("AC024", {"change": SINKS}, {"tp": 3, "cp": 1}, True), ("AC024", {"change": SINKS}, {"tp": 3, "cp": 2}, False),
    ("AC024", {}, {"tp": 5, "cp": 5}, True),
    ("AC024", {"name": "mla", "change": {"window_size": 8}}, {"tp": 1, "cp": 2}, False),
    ("AC024", {"change": {"window_size": 8}}, {"tp": 1, "cp": 2}, True),
    ("NV061", {"name": "moe"}, {"ep": 16}, True), ("NV061", {"name": "moe"}, {"ep": 3}, False),
    ("NV061", {"name": "moe"}, {"ep": 32}, False), ("NV061", {}, {"ep": 2}, False), ("NV061", {}, {"ep": 1}, True),
    ("AC003", {}, {"etp": 2}, False), ("AC003", {}, {"etp": 1}, True), ("AC003", {"name": "moe"}, {"etp": 2}, True),
    ("NV062", {"name": "moe"}, {"etp": 2}, False), ("NV062", {"name": "moe"}, {"etp": 1}, True),
    ("NV062", {"name": "moe", "change": {"add_bias_linear": False}}, {"etp": 2}, True),
    ("NV062", {"name": "moe", "change": {"add_bias_linear": False, "moe_expert_bias": True}}, {"etp": 2}, False),
    ("NV048", {"name": "moe"}, {"sp": False, "tp": 2}, False), ("NV048", {"name": "moe"}, {"sp": False, "tp": 1}, True),
    ("NV048", {"name": "moe"}, {"sp": True, "tp": 2}, True), ("NV048", {}, {"sp": False, "tp": 2}, True),
    *(("NV024", {}, {"pp": pp, "first": first, "last": last}, legal) for pp, first, last, legal in (
        (4, 1, 1, True), (3, 1, 1, True), (3, 2, 1, True), (3, 3, 1, False), (3, 4, 0, False), (2, 3, 1, True),
        (2, 3, 2, False), (2, 4, 0, False), (2, 0, 4, False), (1, 4, 4, True), (1, 3, 3, False), (4, 2, 1, False),
    )),
    ("NV024", {"change": {"num_layers": 12}}, {"pp": 4, "first": 2, "last": 4}, True),
    ("NV024", {"change": {"num_layers": 12}}, {"pp": 4, "first": 2, "last": 3}, False),
    ("NV040", {}, {"vpp": 2, "pp": 1}, False), ("NV040", {}, {"vpp": 2, "pp": 2}, True),
    ("NV040", {}, {"vpp": 1, "pp": 1}, True),
    ("NV007", {}, {"mbs": 2, "dp": 16}, True), ("NV007", {}, {"mbs": 4, "dp": 16}, False),
    ("NV007", {}, {"mbs": 3, "dp": 1}, False),
    ("NV041", {}, {"vpp": 2, "pp": 4, "mbs": 1, "dp": 8}, True), ("NV041", {}, {"vpp": 2, "pp": 5, "mbs": 1, "dp": 8}, False),
    ("NV041", {}, {"vpp": 1, "pp": 5, "mbs": 1, "dp": 8}, True), ("NV041", {}, {"vpp": 2, "pp": 3, "mbs": 2, "dp": 8}, False),
    ("NV042", {}, {"vpp": 2, "pp": 4, "mbs": 1, "dp": 4}, True), ("NV042", {}, {"vpp": 2, "pp": 3, "mbs": 1, "dp": 4}, False),
    ("NV042", {}, {"vpp": 1, "pp": 3, "mbs": 1, "dp": 4}, True), ("NV042", {}, {"vpp": 2, "pp": 4, "mbs": 2, "dp": 8}, False),
    ("NV100", OWN, {**FSDP, "fsdp": 3}, True), ("NV100", OWN, {**FSDP, "fsdp": 2, "pp": 2}, False),
    ("NV100", OWN, {**FSDP, "fsdp": 2, "ep": 2}, False), ("NV100", OWN, {**FSDP, "fsdp": 2, "dist_opt": True}, False),
    ("NV100", OWN | {"precision": "fp16"}, {**FSDP, "fsdp": 3}, False), ("NV100", {}, {**FSDP, "fsdp": 3}, False),
    ("NV100", {"stack": {"supports_fsdp_with_tied_embeddings": True}}, {**FSDP, "fsdp": 3}, True),
    ("NV100", {}, {"pp": 4, "ep": 2, "dist_opt": True, "fsdp": 0}, True),
    ("NV100", {"stack": TORCH}, {"pp": 4, "ep": 2, "dist_opt": False, "fsdp": 3}, True),
    ("NV100", {"stack": TORCH}, {"pp": 1, "ep": 1, "dist_opt": True, "fsdp": 3}, False),
    ("AC016", {"stack": DEEPSPEED}, {"fsdp": 3, "pp": 1, "ep": 1}, True),
    ("AC016", {"stack": DEEPSPEED}, {"fsdp": 2, "pp": 2, "ep": 1}, False),
    ("AC016", {"stack": DEEPSPEED, "name": "moe"}, {"fsdp": 2, "pp": 1, "ep": 2}, True),
    ("AC016", {"stack": DEEPSPEED, "name": "moe"}, {"fsdp": 3, "pp": 1, "ep": 1}, False),
    ("AC016", {"stack": DEEPSPEED}, {"fsdp": 0, "pp": 2, "ep": 1}, True), ("AC016", {}, {"fsdp": 3, "pp": 2, "ep": 1}, True),
    ("AC017", {"stack": DEEPSPEED}, {"tp": 3, "cp": 8}, True), ("AC017", {"stack": DEEPSPEED}, {"tp": 2, "cp": 16}, False),
    ("AC017", {"stack": DEEPSPEED, "seq": 60}, {"tp": 1, "cp": 8}, False), ("AC017", {}, {"tp": 2, "cp": 16}, True),
    ("AC017", {"stack": DEEPSPEED}, {"tp": 5, "cp": 1}, True),
    *(("AC018", {"stack": {"supports_model_parallel": False}}, {"tp": tp, "pp": pp}, legal)
      for tp, pp, legal in ((1, 1, True), (2, 1, False), (1, 2, False))),
    ("AC018", {}, {"tp": 2, "pp": 2}, True),
    ("AC009", {"stack": {"supports_fsdp": False}}, {"fsdp": 2}, False),
    ("AC009", {"stack": {"supports_fsdp": False}}, {"fsdp": 0}, True),
    *(("NV130", {"precision": "fp8", "fp8_param_gather": True}, {"fsdp": fsdp, "dist_opt": sharded}, legal)
      for fsdp, sharded, legal in ((2, False, True), (0, True, True), (0, False, False))),
    ("NV130", {}, {"fsdp": 0, "dist_opt": False}, True),
    ("NV094", {}, {"offload": 1.0, "dist_opt": True, "fsdp": 0}, True),
    ("NV094", {}, {"offload": 0.5, "dist_opt": False, "fsdp": 3}, False),
    ("NV094", {}, {"offload": 0.0, "dist_opt": False, "fsdp": 0}, True),
    ("NV094", {"stack": DEEPSPEED}, {"offload": 0.5, "dist_opt": False, "fsdp": 2}, True),
    ("NV094", {"stack": DEEPSPEED}, {"offload": 0.5, "dist_opt": False, "fsdp": 0}, False),
    ("NV094", {"precision": "fp8", "fp8_param_gather": True}, {"offload": 0.5, "dist_opt": True, "fsdp": 0}, True),
    ("NV094", {"precision": "fp8", "fp8_recipe": "tensorwise", "fp8_param_gather": True},
     {"offload": 0.5, "dist_opt": True, "fsdp": 0}, False),
    ("AC008", {"stack": {"supports_distributed_optimizer": False}}, {"dist_opt": True}, False),
    ("NV092", {"exp_avg_dtype": "bf16"}, {"fsdp": 0, "dist_opt": False}, False),
    ("NV092", {"exp_avg_dtype": "bf16"}, {"fsdp": 0, "dist_opt": True}, True),
    ("NV092", {"store_param_remainders": True}, {"fsdp": 0, "dist_opt": False}, False),
    ("NV092", {}, {"fsdp": 0, "dist_opt": False}, True),
    *(("NV080", OVERLAP, {"ep": ep, "pp": pp, "vpp": vpp}, legal)
      for ep, pp, vpp, legal in ((2, 1, 1, True), (1, 1, 1, False), (2, 2, 1, False), (2, 2, 2, True))),
    ("NV080", OVERLAP | {"precision": "fp32"}, {"ep": 2, "pp": 1, "vpp": 1}, False),
    ("NV080", OVERLAP | {"given": {"ep_overlap": True, "of_a_run": True}}, {"ep": 1, "pp": 2, "vpp": 1}, True),
    ("NV080", OVERLAP | {"given": {"ep_overlap": True, "dispatcher": "allgather"}}, {"ep": 2, "pp": 1, "vpp": 1}, False),
    ("NV080", {"name": "moe"}, {"ep": 1, "pp": 2, "vpp": 1}, True),
    *(("NV071", {"name": "moe", "given": {"dispatcher": name}}, {"tp": tp, "ep": ep}, legal) for name, tp, ep, legal in (
        ("deepep", 1, 1, False), ("hybridep", 1, 1, False), ("alltoall", 1, 1, True), ("deepep", 2, 1, True),
        ("hybridep", 1, 2, True))),
    ("NV071", {"name": "moe", "given": {"dispatcher": "deepep", "of_a_run": True}}, {"tp": 1, "ep": 1}, True),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "asked", "columns", "legal"), ROWS)
def test_a_rule_on_both_sides_of_its_boundary(rule, asked, columns, legal):
    s = scenario(**asked)
    sizes = {"num_gpus": s.cluster.num_gpus, "global_batch_size": s.workload.global_batch_size}
    found = CHECKS[rule](s, {name: np.array([value]) for name, value in {**sizes, **columns}.items()})
    assert np.broadcast_to(found, 1).tolist() == [legal]


@pytest.mark.parametrize(("asked", "recompute", "rule"), [
    (OVERLAP, "full", "NV081"), (OVERLAP, "selective:moe", "NV081"), (OVERLAP, "selective:moe_act", None),
    ({"given": {"cuda_graphs": frozenset({"attn"})}}, "full", "NV146"),
    ({"given": {"cuda_graphs": frozenset({"full_iteration"})}}, "full", None),
    ({"given": {"cuda_graphs": frozenset({"attn"}), "of_a_run": True}}, "full", None),
    ({"name": "moe", "given": {"cuda_graphs": frozenset({"moe_router"})}}, "selective:moe", "NV152"),
    ({"name": "moe", "given": {"cuda_graphs": frozenset({"attn"})}}, "selective:moe", None),
    ({}, "selective:op", "AC012"), ({"stack": {"recomputes_by_operator": True}}, "selective:op", None),
    ({"stack": {"recomputes_by_operator": True}}, "selective:core_attn", "AC012"),
    ({"stack": {"recomputes_by_operator": True}}, "selective:core_attn+op", "AC012"),
    ({"stack": {"recomputes_by_operator": True}}, "full", None),
    ({}, "selective:mla_up_proj", "NV115"), ({"name": "mla"}, "selective:mla_up_proj", None),
    ({}, "selective:moe_act", "NV114"), ({"name": "moe"}, "selective:moe_act", None),
    ({"precision": "fp8"}, "selective:layernorm", "NV118"), ({"precision": "bf16"}, "selective:layernorm", None),
    ({"precision": "fp8", "fp8_recipe": "tensorwise"}, "selective:layernorm", None),
    ({"precision": "fp8"}, "selective:core_attn", None), ({}, "selective:moe", "AC006"),
    ({}, "selective:shared_experts", "AC006"), ({"name": "moe"}, "selective:shared_experts", None),
    ({"name": "moe", "change": {"moe_shared_expert_intermediate_size": 0}}, "selective:shared_experts", "AC006"),
    ({"name": "moe"}, "selective:mlp", "AC004"), ({}, "selective:mlp", None),
    ({"stack": {"supports_mlp_recompute_with_biases": False}}, "selective:mlp", "AC011"),
    ({"stack": {"supports_mlp_recompute_with_biases": False}, "change": {"add_bias_linear": False}}, "selective:mlp", None),
    ({"change": {"mtp_num_layers": 1}}, "full:uniform:2", "NV121"), ({"change": {"mtp_num_layers": 1}}, "full:uniform:1", None),
    ({"change": {"mtp_num_layers": 1}}, "full:block:2", None),
    ({"stack": {"supports_selective_recompute": False}}, "selective:core_attn", "AC010"),
    ({"stack": {"supports_selective_recompute": False}}, "full", None),
])  # fmt: skip
def test_recomputations_that_a_model_does_not_run(asked, recompute, rule):
    assert recompute_rule(scenario(**asked), Recompute.parse(recompute)) == rule


@pytest.mark.parametrize(("recompute", "legal"), [
    ("full:uniform:4", True), ("full:uniform:5", False), ("full:block:2", True), ("full:block:3", False),
    ("selective:core_attn", True), ("none", True),
])  # fmt: skip
def test_a_group_fits_a_stage_and_a_block_a_chunk(recompute, legal):
    parsed = Recompute.parse(recompute)
    assert np.all(recompute_fits_layers(parsed, np.array([2]), np.array([4]))) == legal
    plan = TrainPlan(tp=1, pp=2, vpp=2, dp=8, mbs=1, recompute=parsed)
    s = scenario(change={"num_layers": 8})
    assert (broken_rules(s, [plan])[0] == []) == legal


def test_plans_of_other_sizes_are_judged_with_their_own():
    plan = TrainPlan(tp=1, pp=1, dp=8, mbs=1)
    assert broken_rules(scenario(), [plan]) == [["AC005"]] and broken_rules(scenario(), [plan], [8]) == [[]]
    assert broken_rules(scenario(), [plan], [8], [12]) == [["NV007"]]
    both = TrainPlan(tp=1, pp=1, dp=16, mbs=1, first=3, last=3)
    assert "AC007" in broken_rules(scenario(), [both])[0]
    assert "NV024" in broken_rules(scenario(), [TrainPlan(tp=1, pp=3, dp=1, mbs=1)], [3])[0]


@pytest.mark.parametrize(("text", "chunks"), [
    ("Ett|(tt|)*2tL", ["Ett", "tt", "tt", "tL"]), ("Et*3|tL", ["Ettt", "tL"]), ("Et, t | tL", ["Ett", "tL"]),
    ("[['embedding', 'decoder'], ['decoder', 'mtp', 'loss']]", ["Et", "tmL"]), ("Etx|L", None), ("", None), ("[[3]]", None),
    ("(t)*100000", ["t" * 100_000]), ("(t)*100001", None), ("t*100000", ["t" * 100_000]), ("t*100001", None),
])  # fmt: skip
def test_letters_of_a_layout(text, chunks):
    if chunks is None:
        with pytest.raises(InputError, match="pipeline layout"):
            layout_chunks(text)
    else:
        assert layout_chunks(text) == chunks


@pytest.mark.parametrize(("model", "adapters", "given", "seq", "batch"), [
    ("gpt", False, {}, 4096, 1024), ("gpt", True, {}, 2048, 128), ("gpt", True, {"seq_length": 64}, 64, 128),
    ("gpt", False, {"seq_length": 2**22}, 2**22, 1), ("gpt", False, {"seq_length": 3}, 3, 1398101),
    ("llama3-8b", True, {"global_batch_size": 3}, 2048, 3),
])  # fmt: skip
def test_a_workload_that_is_not_said(model, adapters, given, seq, batch):
    """Four Mi tokens a step; adapters are trained on 128 samples of 2,048."""
    spec = ModelSpec(**MODELS[model]) if model in MODELS else load_model(model)
    found = read_workload(SimpleNamespace(**ASKED | given), spec, [], adapters=adapters)
    assert (found.seq_length, found.global_batch_size) == (seq, batch)


@pytest.mark.parametrize(("numerics", "trains"), [
    ({}, False), ({"peft": "none"}, False), ({"peft": "lora"}, True), ({"lora_rank": 4}, True), ({"lora_rank": None}, False),
])  # fmt: skip
def test_adapters_are_asked_for_by_any_of_their_fields(numerics, trains):
    assert trains_adapters(numerics) == trains
    with pytest.raises(InputError, match="for adapters"):
        trains_adapters({"peft": "none", "lora_rank": 4})


def ranked(steps, plans, chances=None, options=(NONE,), option=None, num_layers=8, peaks=None, met=True):
    """A ranking of one plan a layout, with what order.py reads of it."""
    count = len(steps)
    rows = [parse_plan(text, 16) for text in plans]
    s = scenario(change={"num_layers": num_layers})
    return SimpleNamespace(
        step_seconds=np.array(steps), best=np.arange(count), row=np.arange(count), options=options, scenario=s,
        option=np.zeros(count, int) if option is None else np.array(option), fit_chances=lambda: np.array(chances),
        space=SimpleNamespace(layouts=s.layouts(rows), layout_id=np.arange(count)), fit_chance_met=met,
        peak_bytes=np.array(peaks or [1.0] * count), limit_bytes=np.array([80.0] * count),
    )  # fmt: skip


@pytest.mark.parametrize("odd", [
    "tp=2,pp=2,vpp=4", "tp=2,pp=2,first=3,last=5", "tp=2,cp=2", "tp=1,fsdp=3", "block", "two modules",
])  # fmt: skip
@pytest.mark.parametrize(("behind", "first"), [(1.03, 1), (1.0301, 0)])
def test_a_plain_plan_comes_before_an_unusual_one_that_is_3_percent_faster(odd, behind, first, monkeypatch):
    lists = {"block": Recompute.parse("full:block:2"), "two modules": Recompute.parse("selective:mlp+layernorm")}
    options = (Recompute(), lists.get(odd, Recompute()))
    ranking = ranked([1.0, behind], ["tp=2" if odd in lists else odd, "tp=2,pp=2"], options=options, option=[1, 0])
    monkeypatch.setattr("autoconfig.training.order.replace", lambda kept, best: best)
    assert int(plainest_first(ranking)[0]) == first


@pytest.mark.parametrize("plain", ["tp=2,pp=2,vpp=2", "tp=2,pp=4", "tp=8"])
def test_even_stages_of_several_layers_are_plain(plain, monkeypatch):
    monkeypatch.setattr("autoconfig.training.order.replace", lambda kept, best: best)
    options = (Recompute.parse("full"), Recompute.parse("selective:core_attn"))
    assert plainest_first(ranked([1.0, 1.01], [plain, "tp=4"], options=options, option=[1, 0]))[0] == 0


def test_groups_of_plans_that_no_model_tells_apart():
    """Each group reaches 6 % behind its first."""
    assert tie_groups(np.array([1.0, 1.06, 1.07, 1.13, 1.2])).tolist() == [1, 1, 2, 2, 3] and len(tie_groups(np.zeros(0))) == 0


def test_the_safe_plan_is_the_first_that_fits_with_95_percent():
    texts = ["tp=2", "tp=4", "tp=8"]
    assert safe_position(ranked([1, 2, 3], texts, chances=[0.5, 0.949, 0.95])) == 2
    assert safe_position(ranked([1, 2, 3], texts, chances=[0.5, 0.6, 0.7])) is None


def test_orders_of_an_answer():
    texts = ["tp=2", "tp=4", "tp=8"]
    found = ranked([1.0, 2.0, 3.0], texts, peaks=[70.0, 30.0, 50.0])
    assert in_order(found, "step").tolist() == [0, 1, 2] and in_order(found, "memory").tolist() == [1, 2, 0]
    unlikely = ranked([1.0, 2.0, 3.0], texts, peaks=[79.0, 70.0, 75.0], met=False)
    unlikely.limit_bytes = np.array([80.0, 70.5, 77.0])
    assert in_order(unlikely, "step").tolist() == [2, 0, 1]
    assert pareto_positions(ranked([1.0, 1.1, 1.2], texts, peaks=[50.0, 60.0, 40.0])) == [0, 2]
    assert pareto_positions(ranked([], [])) == []


@pytest.mark.parametrize(("seconds", "text"), [(1.0, "+1.00 s"), (-1.0, "-1.00 s"), (0.9994, "+999 ms"), (-0.0123, "-12.3 ms")])
def test_differences_have_their_unit(seconds, text):
    assert signed_seconds(seconds) == text


def test_parts_have_words():
    found = {name: part_words(name) for name in ("gemm_seconds", "softmax_seconds", "pipeline_bubble_seconds")}
    assert found == {"gemm_seconds": "GEMMs", "softmax_seconds": "softmax", "pipeline_bubble_seconds": "pipeline bubble"}


def report(step, peak=30.0, limit=70.0, fits=True):
    parts = {"gemm_seconds": 0.8 * step}
    return SimpleNamespace(
        step_seconds=step, time_parts=parts, peak_bytes=peak * GIB, limit_bytes=limit * GIB, fits=fits,
        worst_stage=SimpleNamespace(stage=0),
    )  # fmt: skip


@pytest.mark.parametrize(("position", "step", "said"), [
    (0, 1.0, "fastest of 1,234 plans that fit (GEMMs 80 % of the step), 40.0 GiB below the limit on stage 0"),
    (0, 1.02, "2.0% behind the fastest, which no model tells apart, and plainer, of 1,234"),
    (1, 1.5, "50.0% slower than the first"),
    (1, 0.9, "10.0% faster than the first"), (1, 1.0004, "as fast as the first"), (1, 1.0006, "0.1% slower than the first"),
    (0, 1.0004, "fastest of"), (0, 1.0006, "0.1% behind the fastest"),
])  # fmt: skip
def test_why_a_plan_has_its_place(position, step, said):
    ranking = SimpleNamespace(best=np.array([0]), step_seconds=np.array([1.0]), funnel=SimpleNamespace(priced=1234))
    assert reason_for(report(step), report(1.0), ranking, position).startswith(said)


def test_what_a_plan_lacks_is_said_in_gib():
    assert memory_binds(report(1.0), []) == ""
    short = memory_binds(report(1.0, peak=72.5, fits=False), [])
    assert "needs 2.5 GiB more per GPU" in short and "nothing else would buy" in short
    assert "that does not run" in memory_binds(report(1.0, peak=72.5, fits=False), [SimpleNamespace()])
    assert str(Remedy(change="x", fits=False, still_short_gib=3.25)) == "x: still 3.2 GiB too much"
    other = OtherBatch(global_batch_size=1024, tokens_per_second_per_gpu=2000.4, gain=0.081, cause="")
    assert str(other) == "batch 1,024: 2,000 tokens/s/GPU, 8% more"


@pytest.mark.parametrize(("moe", "precision", "kind"), [
    (True, "bf16", "mixtures of experts"), (False, "bf16", "dense, 16 bits"), (False, "fp16", "dense, 16 bits"),
    (False, "fp8", "dense, FP8 and FP4"), (False, "nvfp4", "dense, FP8 and FP4"), (True, "fp8", "mixtures of experts"),
])  # fmt: skip
def test_kinds_of_first_plans(moe, precision, kind):
    assert first_plan_kind(moe=moe, precision=precision) == kind


@pytest.mark.parametrize(("level", "seq", "there"), [
    ("calibrated", 32_768, True), ("calibrated", 32_769, False), ("formula only", 4096, False),
])  # fmt: skip
def test_first_plans_that_have_a_record(level, seq, there):
    said = SimpleNamespace(confidence=SimpleNamespace(level=level))
    assert (record_for(scenario(seq=seq), said) is not None) == there and record_for(scenario(), None) is None


@pytest.mark.parametrize(("runs", "freedom", "scatter", "factor"), [
    (0, 0, 0.0, 1.0), (2, 3, 0.0, 0.5**0.5), (2, 3, math.log(1.25) / 1.645, 1.0), (4, 0, 0.0, (2 / 3 + 1 / 9) ** 0.5),
    (10**9, 10**9, 0.0, 0.0),
])  # fmt: skip
def test_own_runs_narrow_a_band_as_a_source_that_is_no_longer_new(runs, freedom, scatter, factor):
    """With r = 2 two thirds of the variance T are within a source and a third between. n = 2 runs halve the third; without
    scatter and with f = q = 3 the two thirds halve too: T / 3 + T / 6. A scatter of T itself: (3 x 2/3 + 3) / 6 + 1/6 = 1."""
    found = narrowed(Band(p5=0.8, p95=1.25, rows=9, sources=()), OwnRuns(runs=runs, log_sd=scatter, degrees_of_freedom=freedom))
    assert (found.p5, found.p95) == pytest.approx((0.8**factor, 1.25**factor), rel=1e-4)


@pytest.mark.parametrize(("model", "gpus", "cp", "entry", "level"), [
    ("moe", 16, 8, ("te", 1), "mixture of experts"), ("moe", 16, 8, None, "formula only"),
    ("moe", 8, 1, ("te", 0), "formula only"), ("llama3-8b", 16, 1, None, "formula only"),
    ("llama3-8b", 16, 1, ("", 0), "formula only"), ("gpt", 16, 8, ("te", 9), "small model"),
    ("llama3-8b", 16, 4, ("te", 9), "long context"), ("llama3-8b", 16, 3, ("te", 9), "calibrated generation"),
    ("llama3-8b", 16, 1, ("*", 5), "unfamiliar software"), ("llama3-8b", 16, 1, ("*", 6), "related generation"),
    ("llama3-8b", 8, 1, ("te", 1), "one node"), ("llama3-8b", 16, 1, ("te", 1), "calibrated generation"),
    ("llama3-8b", 16, 1, ("other", 1), "related generation"), ("llama3.2-1b", 16, 1, ("te", 1), "calibrated generation"),
    ("qwen3-0.6b", 16, 1, ("te", 1), "small model"),
])  # fmt: skip
def test_classes_of_questions(model, gpus, cp, entry, level, monkeypatch):
    """`entry`: its generation (te: that of the software) and how many sources it has."""
    asked = replace(scenario(gpus=gpus), model=ModelSpec(**MODELS[model]) if model in MODELS else load_model(model))
    found = entry and SimpleNamespace(
        generation=asked.software.generation if entry[0] == "te" else entry[0], sources=("x",) * entry[1]
    )
    monkeypatch.setattr("autoconfig.training.price.entry_for", lambda *_, **__: found)
    assert confidence_class(asked, cp) == level


def test_without_a_run_behind_the_gpu_a_band_reaches_as_far_as_any_other():
    bands = {"pooled": Band(p5=0.8, p95=1.1, rows=9, sources=("a",)), "one node": Band(p5=0.9, p95=1.3, rows=5, sources=("a",))}
    assert band_of("formula only", bands) == Band(p5=0.8, p95=1.3, rows=0, sources=())
    assert band_of("long context", bands) is bands["pooled"]


def test_the_worst_stage_decides_whether_a_plan_fits():
    stages = tuple(StageMemory(stage=i, peak_bytes=peak, moment="", parts={}) for i, peak in enumerate((3.0, 5.0, 4.0)))
    shown = SimpleNamespace(stages=stages, limit_bytes=5.0)
    shown.worst_stage = PlanReport.worst_stage.fget(shown)
    shown.peak_bytes = PlanReport.peak_bytes.fget(shown)
    assert shown.worst_stage.stage == 1 and PlanReport.fits.fget(shown)
    shown.limit_bytes = 4.999
    assert not PlanReport.fits.fget(shown)


def test_keys_in_which_two_plans_differ():
    one = TrainPlan(tp=2, pp=1, dp=8, mbs=1)
    assert changed_keys(one, one.replace(dp=4)) == [] and changed_keys(one.replace(sp=True, fsdp=2), one) == ["sp", "fsdp"]
    assert changed_keys(one.replace(first=2, offload=0.5, ep=2), one) == ["ep", "first", "offload"]


@pytest.mark.parametrize(("lacks", "today", "saves"), [
    (1.0, (2.0,), True), (2.0, (2.0,), False), (1.0, (2.0, 0.5), False), (None, (0.5, 2.0), True), (1.0, (), True),
])  # fmt: skip
def test_a_saving_lacks_less_than_all_that_is_tried_today(lacks, today, saves):
    tried = [Remedy(change="today", fits=False, still_short_gib=each) for each in today]
    assert _saves(Remedy(change="x", fits=False, still_short_gib=lacks), tried) == saves


HALF, MOMENTS = {"grad_reduce_dtype": "bf16"}, {"exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}


@pytest.mark.parametrize(("fixed", "numerics", "said"), [
    ({}, {}, ["offload", "gradients", "moments"]), ({"offload": {0.0}}, {}, ["gradients", "moments"]),
    ({"dist_opt": {False}}, {}, ["gradients", "moments"]),
    ({"dist_opt": {True}, "offload": {0.5}}, {}, ["gradients", "moments"]),
    ({"dist_opt": {True, False}}, {}, ["offload", "gradients", "moments"]), ({}, HALF, ["offload", "moments"]),
    ({}, MOMENTS, ["offload", "gradients"]), ({}, {"precision": "fp32"}, ["offload", "gradients"]), ({}, {"peft": "lora"}, []),
])  # fmt: skip
def test_savings_that_are_not_in_use(fixed, numerics, said):
    """Moments that stay whole on every rank cannot wait on the CPU; fp32 has no narrower ones."""
    asked = SimpleNamespace(scenario=scenario(**numerics), constraints=Constraints(fixed=fixed))
    found = list(_savings(asked))
    assert [next(word for word in ("offload", "gradients", "moments") if word in words) for words, _, _ in found] == said
    for words, changed, constraints in found:
        assert (constraints.fixed == {**fixed, "offload": {1.0}}) is ("offload" in words)
        assert (changed.numerics == asked.scenario.numerics) is ("offload" in words)


def test_recomputation_that_is_fixed_is_all_that_is_tried_but_for_what_is_excluded():
    selective, uniform = Recompute.parse("selective:core_attn"), Recompute.parse("full:uniform:1")
    for excluded, left in ((frozenset(), [uniform, selective]), (frozenset({uniform}), [selective])):
        constraints = Constraints(fixed={"recompute": frozenset({selective, uniform})}, excluded={"recompute": excluded})
        assert recompute_options(scenario(), constraints, 4) == left


@pytest.mark.parametrize(("best", "met", "closest", "outcome"), [
    ([1], True, None, "fits"), ([1], False, None, 5.0 - 3.0), ([], True, None, None), ([], True, 7.0, 7.0),
    ([1], False, 7.0, 7.0),
])  # fmt: skip
def test_what_came_of_a_change(best, met, closest, outcome, monkeypatch):
    """Of plans that fit, but with too small a chance, the one with the most room (3 GiB) lacks the least of 5 GiB asked."""
    ranking = SimpleNamespace(
        best=np.array(best, int), fit_chance_met=met, plan=lambda row: f"plan {row}", step_seconds=np.array([9.0, 2.0]),
        closest=None if closest is None else SimpleNamespace(excess_bytes=closest * GIB),
        limit_bytes=np.array([10.0, 8.0]) * GIB, peak_bytes=np.array([[9.0, 7.5], [5.0, 7.0]]) * GIB,
    )  # fmt: skip
    ranking.limit_bytes = ranking.limit_bytes[:, None]
    monkeypatch.setattr(remedies, "rank_plans", lambda *asked: ranking)
    monkeypatch.setattr(remedies, "plainest_first", lambda found: found)
    monkeypatch.setattr(remedies, "headroom_bytes", lambda chance, memory: 5.0 * GIB)
    asked = SimpleNamespace(request=SimpleNamespace(memory_margin=None, fit_chance=0.9))
    found = remedies._tried("x", scenario(), Constraints(), asked)
    if outcome is None:
        assert found == []
    elif outcome == "fits":
        assert found == [Remedy(change="x", fits=True, plan="plan 1", step_seconds=2.0)]
    else:
        assert found == [Remedy(change="x", fits=False, still_short_gib=outcome)]
