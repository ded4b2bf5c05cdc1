"""Recomputation that a model and its software run, and what is searched of it."""

import numpy as np
import pytest
from autoconfig.specs.plan import NONE, Recompute, TrainPlan
from small_models import scenario
from tables import tabled

from autoconfig.training.plan_rules import broken_rules
from autoconfig.training.price import violations
from autoconfig.training.question import Request, understand
from autoconfig.training.recompute_rules import recompute_fits_layers, recompute_rule
from autoconfig.training.space import (
    Constraints,
    enumerate_space,
    legal_mask,
    recompute_options,
)

OVERLAP = {"given": {"ep_overlap": True}, "name": "moe"}


@tabled
def test_norms_are_recomputed_where_that_frees_any(model, software, offered):
    question = understand(Request(model=model, gpus=64, gpu="h100", software=software))
    found = recompute_options(question.scenario, question.constraints, 4)
    assert any("layernorm" in option.modules for option in found) is offered


@pytest.mark.parametrize("name", ["dense", "moe", "mla"])
def test_recompute_options_are_legal_and_come_from_the_model(scenario_of, name):
    s = scenario_of(name)
    options = recompute_options(s, Constraints(), s.model.num_layers)
    assert len(options) == len(set(options)) and NONE in options
    assert all(recompute_rule(s, option) is None for option in options)
    names = {module for option in options for module in option.modules}
    assert ("moe" in names, "mla_up_proj" in names, "mlp" in names) == (name != "dense", name == "mla", name != "moe")
    assert Recompute("full", (), "uniform", 1) in options
    space = enumerate_space(s)
    mask = legal_mask(options, space.layouts, s)
    assert mask.shape == (len(space.layouts), len(options)) and mask.any(axis=1).all()
    for row in range(0, len(space.layouts), 1 + len(space.layouts) // 60):
        for number, option in enumerate(options):
            plan = space.layouts.plan(row, option, s.model)
            broken = [v.rule for v in violations(s, plan)]
            assert broken == [] if mask[row, number] else broken in ([], ["NV111"]), str(plan)


def test_recompute_wishes(scenario_of):
    s = scenario_of("dense")
    full, selective = Recompute.parse("full:uniform:1"), Recompute.parse("selective:core_attn")
    assert recompute_options(s, Constraints(fixed={"recompute": frozenset({full, selective})}), 6) == [full, selective]
    left = recompute_options(s, Constraints(excluded={"recompute": frozenset({full})}), 6)
    assert full not in left and selective in left
    assert recompute_options(s, Constraints(fixed={"recompute": frozenset({Recompute.parse("selective:moe")})}), 6) == []


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
    assert (broken_rules(scenario(change={"num_layers": 8}), [plan])[0] == []) == legal
