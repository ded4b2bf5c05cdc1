"""The legal space against an independent brute force, and what wishes leave of it."""

import itertools

import numpy as np
import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import NONE, TrainPlan
from tables import table

from autoconfig.training.price import violations
from autoconfig.training.question import Request, understand
from autoconfig.training.rules import RULE_TEXT
from autoconfig.training.space import (
    Constraints,
    enumerate_space,
    layout_splits,
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
    assert set(rows_of(space)) == wanted
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


def test_the_last_stage_is_short_by_what_the_output_layer_takes():
    """A layer of Llama 3 8B has 218 M matmul parameters, an output layer of 140,000 words 573 M: 2.63 layers, so 3. 41 layers
    on 4 stages of 2 chunks are chunks of 6, and the ends share 5: 2 with the embedding, 6 - 3 with the output layer."""
    model = load_model("llama3-8b").replace(vocab_size=140_000, num_layers=41)
    assert (2, 6 + 2, 6 + 3) in layout_splits(model, 4)
