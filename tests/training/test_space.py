"""The legal space against an independent brute force, and every rule both ways."""

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import NONE, Recompute, TrainPlan, parse_keys, parse_plan
from small_models import scenario
from tables import listed, table, tabled

from autoconfig.training.nearest import NothingLegal, _recomputes, distance
from autoconfig.training.plan_rules import PipelineSplit, broken_rules, layout_chunks, split_by_accounting, split_of_layout
from autoconfig.training.price import violations
from autoconfig.training.question import Request, understand
from autoconfig.training.recompute_rules import ENFORCED_IN, recompute_fits_layers, recompute_rule
from autoconfig.training.rules import ALL_RULES, JUDGED_RULES, RULE_TEXT, RULES, chunk_layers
from autoconfig.training.space import (
    Constraints,
    _sizes,
    enumerate_space,
    layout_splits,
    legal_mask,
    recompute_options,
    stage_splits,
)

KEYS = ("tp", "pp", "cp", "sp", "ep", "etp", "vpp", "first", "last", "mbs", "dp")


def dividing(number):
    return [d for d in range(1, number + 1) if number % d == 0]


def splits_by_hand(layers, pp):
    """(vpp, first, last): written from the docstring of `stage_splits`, one candidate at a time."""
    found = []
    for first, last in itertools.product(range(1, layers + 1), repeat=2):
        if pp == 1:
            stages = [layers] if first == last == layers else None
        elif pp == 2:
            even = first == last == layers / 2
            stages = [first, last] if first + last == layers and (even or abs(first - layers / 2) <= 2) else None
        else:
            middle, rest = divmod(layers - first - last, pp - 2)
            even = first == last == middle
            wanted = layers // pp + 1
            stages = [first, *[middle] * (pp - 2), last]
            if rest or middle < 1 or not (even or (middle == wanted and max(first, last) <= middle)):
                stages = None
        if stages:
            found += [(v, first, last) for v in range(1, layers + 1) if pp > 1 or v == 1 if all(n % v == 0 for n in stages)]
    return found


def is_legal_by_hand(s, tp, pp, cp, sp, ep, etp, vpp, first, last, mbs):
    """Megatron's conditions, one plan at a time, written from the constraint table and not from rules.py."""
    m, gpus, batch, seq = s.model, s.cluster.num_gpus, s.workload.global_batch_size, s.workload.seq_length
    if gpus % (tp * pp * cp) or gpus % (etp * ep * pp) or pp > m.num_layers:
        return False
    dp = gpus // (tp * pp * cp)
    if m.num_attention_heads % tp:
        return False
    if not m.multi_latent_attention and m.num_query_groups % tp and tp % m.num_query_groups:
        return False
    if 0 in m.moe_pattern and m.ffn_hidden_size % tp:
        return False
    if m.is_moe:
        biases = m.add_bias_linear or m.moe_expert_bias
        if m.moe_ffn_hidden_size % etp or m.moe_shared_expert_intermediate_size % tp or (etp > 1 and biases):
            return False
        if m.num_moe_experts % ep or (tp > 1 and not sp):
            return False
    elif ep > 1 or etp > 1:
        return False
    if cp > 1 and (seq % (2 * cp) or not s.software.supports_context_parallel):
        return False
    if sp and (tp == 1 or seq % (tp * cp) or not s.software.supports_sequence_parallel):
        return False
    if batch % (mbs * dp):
        return False
    return vpp == 1 or (pp > 1 and (batch // (mbs * dp)) % pp == 0)


def within_bounds_by_hand(s, tp, cp, etp):
    inside = max(8, s.cluster.gpus_per_node, s.cluster.link_domain_size)
    tiles = max(1, s.model.moe_ffn_hidden_size // 256)
    return tp <= inside and etp <= min(inside, tiles) and cp <= max(1, s.workload.seq_length // 256)


def grid_by_hand(s):
    """Every combination of the axes."""
    m, all_gpus = s.model, dividing(s.cluster.num_gpus)
    experts = dividing(m.num_moe_experts) if m.is_moe else [1]
    for tp, pp, cp, sp in itertools.product(all_gpus, all_gpus, all_gpus, (False, True)):
        splits = splits_by_hand(m.num_layers, pp) if pp <= m.num_layers else [(1, 1, 1)]
        for ep, etp, (vpp, first, last), mbs in itertools.product(
            experts, all_gpus if m.is_moe else [1], splits, dividing(s.workload.global_batch_size)
        ):
            yield tp, pp, cp, sp, ep, etp, vpp, first, last, mbs


def rows_of(space):
    columns = [getattr(space.layouts, key).tolist() for key in KEYS]
    return list(zip(*columns, strict=True))


CASES = table(__file__, "spaces")


@pytest.mark.parametrize(("name", "changes"), CASES)
def test_the_space_is_what_brute_force_finds(scenario_of, name, changes):
    s = scenario_of(name, **changes)
    space = enumerate_space(s)
    grid = list(grid_by_hand(s))
    legal = [x for x in grid if is_legal_by_hand(s, *x) and within_bounds_by_hand(s, x[0], x[2], x[5])]
    wanted = {(*x, s.cluster.num_gpus // (x[0] * x[1] * x[2])) for x in legal}
    rows = rows_of(space)
    assert set(rows) == wanted
    assert space.legal == len(legal) == len(np.unique(space.layout_id))
    assert space.enumerated == len(grid) == space.legal + sum(space.rejected_by_rule.values())
    layers = s.model.num_layers
    assert space.legal_even == sum(1 for x in legal if x[7] * x[1] == layers and x[8] == x[7])
    assert set(space.rejected_by_rule) <= {*RULE_TEXT, "wish", "tp beyond search bounds", "cp beyond search bounds",
                                           "etp beyond search bounds"}  # fmt: skip


@pytest.mark.parametrize(("name", "changes"), CASES)
def test_violations_agree_with_the_space_on_every_row(scenario_of, name, changes):
    s = scenario_of(name, **changes)
    layouts = enumerate_space(s).layouts
    assert len(layouts)
    for row in range(0, len(layouts), 1 + len(layouts) // 400):
        plan = layouts.plan(row, NONE, s.model)
        assert violations(s, plan) == [], str(plan)


@pytest.mark.parametrize(("name", "changes"), CASES[::2])
def test_violations_agree_with_brute_force_on_the_whole_grid(scenario_of, name, changes):
    s = scenario_of(name, **changes)
    grid = [x for x in grid_by_hand(s) if s.cluster.num_gpus % (x[0] * x[1] * x[2]) == 0]
    for values in grid[:: 1 + len(grid) // 500]:
        tp, pp, cp, sp, ep, etp, vpp, first, last, mbs = values
        plan = TrainPlan(tp=tp, pp=pp, cp=cp, sp=sp, ep=ep, etp=etp, vpp=vpp, mbs=mbs,
                         dist_opt=s.software.supports_distributed_optimizer, dp=s.cluster.num_gpus // (tp * pp * cp),
                         first=None if pp == 1 else first, last=None if pp == 1 else last)  # fmt: skip
        assert (not violations(s, plan)) == is_legal_by_hand(s, *values), str(plan)


@pytest.mark.parametrize("layers", [1, 2, 3, 5, 7, 8, 12, 13])
def test_stage_splits_are_what_their_docstring_says(layers):
    for pp in range(1, layers + 1):
        splits = stage_splits(layers, pp)
        assert len(splits) == len(set(splits))
        assert set(splits) == set(splits_by_hand(layers, pp)), pp


@pytest.mark.parametrize(
    ("model", "published"),
    [
        ("deepseek-v3", {(4, 4, 16, 13), (8, 2, 8, 5), (8, 4, 7, 6), (16, 2, 3, 2)}),
        ("llama3.1-405b", {(8, 4, 15, 15)}),
    ],
)
def test_published_pipeline_layouts_are_searched_where_vpp_is_fixed(model, published):
    """Megatron-Bridge's Et*4|(t*4|)*14tmL and Et|(tt|)*30mL, and 405B with a layer less at each end: (pp, vpp, first, last)."""
    fixed = Constraints(fixed={"vpp": frozenset({2, 4})})
    for software, constraints, there in (
        ("nemo-25.09", fixed, True),
        ("nemo-25.02", fixed, False),
        ("nemo-25.09", None, False),
    ):
        request = Request(model=model, gpus=1024, gpu="h100", global_batch_size=1024, software=software)
        found = enumerate_space(understand(request).scenario, constraints).layouts
        rows = {tuple(map(int, row)) for row in zip(found.pp, found.vpp, found.first, found.last, strict=True)}
        assert published <= rows if there else not published & rows


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
        result = rule.legal(s, columns)
        assert np.broadcast_to(result, 1).tolist() == [wanted], f"{rule.id} {text}"


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


def column(space, key):
    return set(getattr(space.layouts, key).tolist())


def test_wishes_leave_exactly_the_rows_that_they_allow(scenario_of):
    s = scenario_of("dense", gpus=16)
    every = set(rows_of(enumerate_space(s)))
    cases = [
        (Constraints(fixed={"tp": frozenset({4})}), lambda c: c["tp"] == 4),
        (Constraints(fixed={"tp": frozenset({1, 4}), "sp": frozenset({False})}), lambda c: c["tp"] in (1, 4) and not c["sp"]),
        (Constraints(at_most={"pp": 2, "mbs": 4}), lambda c: c["pp"] <= 2 and c["mbs"] <= 4),
        (Constraints(excluded={"pp": {2, 3}, "vpp": {2}}), lambda c: c["pp"] not in (2, 3) and c["vpp"] != 2),
        (Constraints(fixed={"dp": frozenset({2})}, excluded={"cp": frozenset({1})}), lambda c: c["dp"] == 2 and c["cp"] != 1),
        (Constraints(fixed={"first": frozenset({2})}), lambda c: c["first"] == 2),
    ]
    for constraints, allowed in cases:
        space = enumerate_space(s, constraints)
        assert set(rows_of(space)) == {x for x in every if allowed(dict(zip(KEYS, x, strict=True)))}
        assert space.enumerated == space.legal + sum(space.rejected_by_rule.values())
        assert 0 < space.legal < len(every) and space.rejected_by_rule["wish"] > 0


def test_a_fixed_or_capped_size_is_searched_beyond_the_usual_bounds(scenario_of):
    s = scenario_of("dense", gpus=16, gpus_per_node=4, seq_length=256, gpu="a100-80gb",
                   architecture={"num_layers": 4, "hidden_size": 1024, "num_attention_heads": 16})  # fmt: skip
    assert max(column(enumerate_space(s), "tp")) == 8 and column(enumerate_space(s), "cp") == {1}
    assert column(enumerate_space(s, Constraints(fixed={"tp": frozenset({16})})), "tp") == {16}
    assert max(column(enumerate_space(s, Constraints(at_most={"tp": 16})), "tp")) == 16
    assert column(enumerate_space(s, Constraints(fixed={"cp": frozenset({2})})), "cp") == {2}


def sharding(space):
    layouts = space.layouts
    return set(zip(layouts.dist_opt.tolist(), layouts.fsdp.tolist(), layouts.offload.tolist(), strict=True))


def test_sharding_choices(scenario_of):
    s = scenario_of("dense", architecture={"untie_embeddings_and_output_weights": True})
    assert sharding(enumerate_space(s)) == {(True, 0, 0.0), (False, 3, 0.0)}
    assert sharding(enumerate_space(scenario_of("dense"))) == {(True, 0, 0.0)}, "FSDP needs untied embeddings"
    adapters = {"architecture": {"untie_embeddings_and_output_weights": True}, "numerics": {"peft": "lora"}}
    bridge, torch = scenario_of("dense", **adapters), scenario_of("dense", software="torch-eager", **adapters)
    assert sharding(enumerate_space(bridge)) == {(True, 0, 0.0)}, "Megatron-Bridge's recipes of adapters have no FSDP"
    assert sharding(enumerate_space(bridge, Constraints(fixed={"fsdp": frozenset({3})}))) == {(False, 3, 0.0)}
    assert 3 in column(enumerate_space(torch), "fsdp")
    packed = {"architecture": adapters["architecture"], "packed_length": 100}
    assert sharding(enumerate_space(scenario_of("dense", **packed))) == {(True, 0, 0.0)}, "nor those of packed samples"
    assert 3 in column(enumerate_space(scenario_of("dense", software="torch-eager", **packed)), "fsdp")
    old = scenario_of("dense", software="megatron-lm-2021")
    assert sharding(enumerate_space(old)) == {(False, 0, 0.0)}, "no distributed optimizer and no FSDP in 2021"
    for fixed, excluded, wanted in (
        ({"dist_opt": {False}}, {}, {(False, 0, 0.0), (False, 3, 0.0)}),
        ({"dist_opt": {True}}, {}, {(True, 0, 0.0)}),
        ({"fsdp": {2, 3}}, {}, {(False, 2, 0.0), (False, 3, 0.0)}),
        ({"offload": {0.5}}, {}, {(True, 0, 0.5)}),
        ({}, {"fsdp": {3}}, {(True, 0, 0.0)}),
        ({}, {"dist_opt": {True}}, {(False, 0, 0.0), (False, 3, 0.0)}),
        ({}, {"dist_opt": {False}}, {(True, 0, 0.0)}),
        ({"offload": {0.0, 1.0}}, {"offload": {0.0}}, {(True, 0, 1.0)}),
    ):
        sets = [{k: frozenset(v) for k, v in given.items()} for given in (fixed, excluded)]
        constraints = Constraints(fixed=sets[0], excluded=sets[1])
        assert sharding(enumerate_space(s, constraints)) == wanted, (fixed, excluded)


def test_layout_ids_name_the_layout_whatever_its_sharding(scenario_of):
    space = enumerate_space(scenario_of("dense"))
    seen = {}
    for layout, row in zip(space.layout_id.tolist(), rows_of(space), strict=True):
        assert seen.setdefault(layout, row) == row
    assert len(seen) == len(set(seen.values())) == space.legal


def test_a_grid_too_large_to_hold_is_refused(scenario_of, monkeypatch):
    monkeypatch.setattr("autoconfig.training.space.MAX_ROWS", 100)
    with pytest.raises(InputError, match="more than 100; narrow it with --fix"):
        enumerate_space(scenario_of("dense"))


@tabled
def test_norms_are_recomputed_where_that_frees_any(model, software, offered):
    question = understand(Request(model=model, gpus=64, gpu="h100", software=software))
    found = recompute_options(question.scenario, question.constraints, 4)
    assert any("layernorm" in option.modules for option in found) is offered


@pytest.mark.parametrize("name", [DENSE, MOE, MLA])
def test_recompute_options_are_legal_and_come_from_the_model(scenario_of, name):
    s = scenario_of(name)
    options = recompute_options(s, Constraints(), s.model.num_layers)
    assert len(options) == len(set(options)) and NONE in options
    assert all(recompute_rule(s, option) is None for option in options)
    names = {module for option in options for module in option.modules}
    assert ("moe" in names, "mla_up_proj" in names, "mlp" in names) == (name != DENSE, name == MLA, name != MOE)
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


@pytest.mark.parametrize(("fixed", "rule"), [({"pp": {2}}, "AC021"), ({"cp": {2}}, "AC022"), ({"pp": {2}, "cp": {1}}, "AC021")])
def test_the_rule_that_stops_what_was_fixed_is_named(fixed, rule):
    question = understand(Request(model="t5-11b", gpus=64, gpu="h100"))
    wish = Constraints(fixed={key: frozenset(values) for key, values in fixed.items()})
    space = enumerate_space(question.scenario, wish)
    assert f"most are stopped by {rule}, " in str(NothingLegal.of(dataclasses.replace(question, constraints=wish), space))


def test_the_last_stage_is_short_by_what_the_output_layer_takes():
    """A layer of Llama 3 8B has 218 M matmul parameters, an output layer of 140,000 words 573 M: 2.63 layers, so 3. 41 layers
    on 4 stages of 2 chunks are chunks of 6, and the ends share 5: 2 with the embedding, 6 - 3 with the output layer."""
    model = load_model("llama3-8b").replace(vocab_size=140_000, num_layers=41)
    assert (2, 6 + 2, 6 + 3) in layout_splits(model, 4)


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


def test_an_empty_space_names_its_first_two_reasons():
    question = understand(Request(model="llama3-8b", gpus=8))
    first, second, third = list(RULE_TEXT)[1:4]
    said = str(NothingLegal.of(question, SimpleNamespace(rejected_by_rule=dict.fromkeys((first, second, third), 1))))
    assert RULE_TEXT[first] in said and RULE_TEXT[second] in said and RULE_TEXT[third] not in said
