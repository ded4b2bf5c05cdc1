"""Rules of legality, layouts and workloads of the training lane at their boundaries: the columns on both sides, by hand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import Recompute, TrainPlan
from small_models import MODELS, scenario
from tables import tabled

from autoconfig.training.plan_rules import broken_rules, layout_chunks
from autoconfig.training.rules import RULES, recompute_fits_layers, recompute_rule
from autoconfig.training.workload import read_workload, trains_adapters

CHECKS = {rule.id: rule.legal for rule in RULES}
ASKED = {"seq_length": None, "decoder_seq_length": None, "packed_length": None, "global_batch_size": None}


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


@tabled
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


@tabled
def test_adapters_are_asked_for_by_any_of_their_fields(numerics, trains):
    assert trains_adapters(numerics) == trains
    with pytest.raises(InputError, match="for adapters"):
        trains_adapters({"peft": "none", "lora_rank": 4})
