"""Every rule both ways: on columns, on whole plans, on both sides of its boundary."""

import dataclasses

import numpy as np
import pytest
from autoconfig.specs.plan import parse_keys, parse_plan
from small_models import scenario
from tables import table

from autoconfig.training.price import violations
from autoconfig.training.recompute_rules import ENFORCED_IN
from autoconfig.training.rules import ALL_RULES, JUDGED_RULES, RULE_TEXT, RULES
from autoconfig.training.space import (
    _sizes,
)

# Per rule: model and changes of the question, a legal plan and one that breaks this rule (columns that the rule reads).
DENSE, MOE, MLA, ODD = "dense", "moe", "mla", "odd"

EXAMPLES = table(__file__, "rule_examples")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_every_rule_passes_one_plan_and_stops_another(scenario_of, rule):
    assert rule.id in EXAMPLES, f"rule {rule.id} needs a legal and an illegal example in this test"
    name, changes, legal, illegal = EXAMPLES[rule.id]
    s = scenario_of(name, **{field: value for field, value in changes.items() if field != "workload"})
    s = dataclasses.replace(s, workload=dataclasses.replace(s.workload, **changes.get("workload", {})))
    for text, wanted in ((legal, True), (illegal, False)):
        values = parse_keys(text)
        assert set(rule.needs) <= set(values), f"{rule.id} reads {rule.needs}"
        columns = {key: np.array([values[key]]) for key in rule.needs} | _sizes(s)
        assert np.broadcast_to(rule.legal(s, columns), 1).tolist() == [wanted], f"{rule.id} {text}"


PLANS_AND_RULES = table(__file__, "plans_and_rules")


@pytest.mark.parametrize(("name", "changes", "plan"), [
    (DENSE, {}, "dist_opt=0,fsdp=3"),  # tied embeddings
    (ODD, {"numerics": {"precision": "fp16"}}, "dist_opt=0,fsdp=2"),
    (ODD, {"gpu": "h100", "numerics": {"precision": "fp8", "fp8_recipe": "tensorwise", "fp8_param_gather": True}},
     "offload=0.5"),
])  # fmt: skip
def test_rules_that_depend_on_model_and_numerics(scenario_of, name, changes, plan):
    assert [v.rule for v in violations(scenario_of(name, **changes), parse_plan(plan, 8))] == [
        "NV094" if "offload" in plan else "NV100"
    ]


def test_every_rule_says_where_it_is_enforced():
    for rule in ALL_RULES:
        assert rule.enforced_in in ENFORCED_IN, rule.id
        assert (rule.id in JUDGED_RULES) or rule.reason, f"{rule.id} needs a reason: the judge accepts what it forbids"


@pytest.mark.parametrize(("name", "changes", "legal", "illegal", "rule"), PLANS_AND_RULES)
def test_rules_on_whole_plans(scenario_of, name, changes, legal, illegal, rule):
    s = scenario_of(name, **changes)
    assert violations(s, parse_plan(legal, 8)) == []
    if illegal is not None:
        found = violations(s, parse_plan(illegal, 8))
        assert [v.rule for v in found] == [rule]
        assert found[0].text == RULE_TEXT[rule]


def test_every_rule_that_is_not_a_column_rule_is_on_a_plan_above():
    assert set(RULE_TEXT) == {rule.id for rule in RULES} | {rule for *_, rule in PLANS_AND_RULES}


CHECKS = {rule.id: rule.legal for rule in RULES}

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
    ("NV054", {"stack": {"supports_context_parallel": False, **TORCH}}, {"cp": 2}, True),
    *(("AC026", {"stack": {"supports_context_parallel": known, **TORCH}}, {"cp": cp}, legal)
      for known, cp, legal in ((False, 1, True), (False, 2, False), (True, 2, True))),
    ("AC026", {"stack": {"supports_context_parallel": False}}, {"cp": 2}, True),
    *(("AC027", {"stack": {"context_parallel_needs_fsdp": needs}}, {"cp": cp, "fsdp": fsdp}, legal)
      for needs, cp, fsdp, legal in ((True, 2, 0, False), (True, 2, 2, True), (True, 1, 0, True), (False, 2, 0, True))),
    *(("AC025", {"stack": stack}, {"tp": tp}, legal)
      for stack, tp, legal in ((TORCH, 4, True), (TORCH, 8, True), (TORCH, 24, False), (TORCH, 3, False), ({}, 24, True))),
    ("AC025", {"name": "mla", "stack": TORCH}, {"tp": 24}, True),
    *(("AC028", {"stack": {"stages_beyond_micro_batches": beyond}}, {"vpp": vpp, "pp": pp, "mbs": 1, "dp": 8}, legal)
      for beyond, vpp, pp, legal in ((0, 1, 4, True), (0, 1, 5, False), (1, 1, 5, True), (1, 1, 6, False), (0, 2, 5, True),
                                     (1e9, 1, 9, True))),
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
    *(("NV100", {**OWN, "given": {"of_a_run": ran}, "stack": {"supports_fp8_param_gather_with_fsdp": own}},
       {**FSDP, "fsdp": 3, "ep": 4}, legal)
      for ran, own, legal in ((True, True, True), (False, True, False), (True, False, False))),
    ("NV100", {}, {"pp": 4, "ep": 2, "dist_opt": True, "fsdp": 0}, True),
    ("NV100", {"stack": TORCH}, {"pp": 4, "ep": 2, "dist_opt": False, "fsdp": 3}, True),
    ("NV100", {"stack": TORCH}, {"pp": 1, "ep": 1, "dist_opt": True, "fsdp": 3}, False),
    ("AC016", {"stack": DEEPSPEED}, {"fsdp": 3, "pp": 1, "ep": 1}, True),
    ("AC016", {"stack": DEEPSPEED}, {"fsdp": 2, "pp": 2, "ep": 1}, False),
    ("AC016", {"stack": DEEPSPEED, "name": "moe"}, {"fsdp": 2, "pp": 1, "ep": 2}, True),
    ("AC016", {"stack": DEEPSPEED, "name": "moe"}, {"fsdp": 3, "pp": 1, "ep": 1}, False),
    *(("AC016", {"stack": {**DEEPSPEED, "supports_zero3_with_experts": True}, "name": "moe"},
       {"fsdp": 3, "pp": 1, "ep": ep}, legal) for ep, legal in ((1, True), (2, False))),
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
    *(("NV094", {"stack": {"sharding": "torch"}}, {"offload": 1.0, "dist_opt": False, "fsdp": fsdp}, legal)
      for fsdp, legal in ((3, True), (0, False))),
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
