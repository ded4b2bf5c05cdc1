"""Search and ranking: sorted, complete, equal to pricing plan by plan; and the questions that the first job must answer."""

import json
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from autoconfig.specs.errors import GIB, InputError
from autoconfig.specs.json_record import json_text, to_json
from autoconfig.specs.layouts import stage_layers
from autoconfig.specs.plan import Recompute, parse_plan
from jsonschema import Draft202012Validator
from tables import tabled

from autoconfig.planning.schemas import schema
from autoconfig.render.training_json import explain_json, search_json
from autoconfig.training.answer import answer as search
from autoconfig.training.answer import explain
from autoconfig.training.price import SLOWEST, report_plan, violations
from autoconfig.training.question import Request
from autoconfig.training.rank import PARETO_POINTS, PLAINER, RESOLUTION, pareto_positions, tie_groups
from autoconfig.training.rank import rank as rank_plans
from autoconfig.training.space import Constraints

LAYOUT = ("tp", "sp", "pp", "vpp", "cp", "ep", "etp", "dp", "mbs")
QUESTIONS = {
    "dense": {"gpus": 16},
    "odd": {"gpus": 12, "gpus_per_node": 4},
    "moe": {"gpus": 16, "gpu": "h100"},
    "mla": {"gpus": 8, "gpu": "h100", "numerics": {"precision": "fp8"}},
}


def layout_of(scenario, plan):
    stages = stage_layers(scenario.model, plan)
    return (*(getattr(plan, key) for key in LAYOUT), stages[0], stages[-1])


@pytest.fixture(scope="module")
def rankings(scenario_of):
    return {name: rank_plans(scenario_of(name, **changes)) for name, changes in QUESTIONS.items()}


@pytest.fixture(params=list(QUESTIONS))
def ranking(request, rankings):
    return rankings[request.param]


def test_the_ranking_is_sorted_and_everything_in_it_fits(ranking):
    assert len(ranking.step_seconds) > 500
    excess = ranking.peak_bytes - ranking.limit_bytes
    assert np.all(np.lexsort((excess, ranking.step_seconds)) == np.arange(len(excess)))
    _, first = np.unique(ranking.space.layout_id[ranking.row], return_index=True)
    assert np.array_equal(ranking.best, np.sort(first))
    assert np.all(ranking.peak_bytes <= ranking.limit_bytes) and np.all(ranking.peak_bytes > 0)
    assert np.all(np.isfinite(ranking.step_seconds)) and np.all(ranking.step_seconds > 0)
    assert ranking.closest is None


def test_no_plan_is_ranked_twice(ranking):
    pairs = list(zip(ranking.row.tolist(), ranking.option.tolist(), strict=True))
    assert len(pairs) == len(set(pairs)) == ranking.funnel.priced


def test_best_is_the_first_plan_of_every_layout(ranking):
    first = {}
    for position in range(len(ranking.row)):
        first.setdefault(layout_of(ranking.scenario, ranking.plan(position)), position)
    assert ranking.best.tolist() == sorted(first.values())
    assert ranking.funnel.fit == len(first)


def test_the_funnel_narrows(ranking):
    f, space = ranking.funnel, ranking.space
    assert f.enumerated >= f.legal >= f.fit >= f.fit_even > 0 and f.legal >= f.legal_even >= f.fit_even
    assert (f.enumerated, f.legal, f.legal_even) == (space.enumerated, space.legal, space.legal_even)
    even = {layout for layout in (layout_of(ranking.scenario, ranking.plan(p)) for p in ranking.best.tolist())
            if layout[-2] == layout[-1] and layout[-1] * layout[2] == ranking.scenario.model.num_layers}  # fmt: skip
    assert f.fit_even == len(even)
    assert set(f.seconds_by_phase) == {"enumeration", "memory", "time", "ranking"}
    assert f.seconds > 0


def test_ranked_plans_cost_what_each_costs_alone(ranking):
    chosen = np.random.default_rng(7).choice(len(ranking.row), 60, replace=False)
    for position in [0, *chosen.tolist(), len(ranking.row) - 1]:
        plan = ranking.plan(position)
        assert violations(ranking.scenario, plan) == []
        report = report_plan(ranking.scenario, plan)
        assert report.step_seconds == pytest.approx(ranking.step_seconds[position], rel=1e-9), str(plan)
        assert report.peak_bytes == pytest.approx(ranking.peak_bytes[position], rel=1e-9), str(plan)
        assert report.limit_bytes == pytest.approx(ranking.limit_bytes[position], rel=1e-9), str(plan)
        assert report.fits


def test_what_is_not_ranked_does_not_fit(ranking):
    """Legal plans that the ranking lacks are too large, one by one."""
    layouts, rng = ranking.space.layouts, np.random.default_rng(3)
    ranked = set(zip(ranking.row.tolist(), ranking.option.tolist(), strict=True))
    for row in rng.choice(len(layouts), 60).tolist():
        option = int(rng.integers(len(ranking.options)))
        plan = layouts.plan(row, ranking.options[option], ranking.scenario.model)
        if (row, option) not in ranked and not violations(ranking.scenario, plan):
            chunk = max(stage_layers(ranking.scenario.model, plan)) // plan.vpp
            most = {"block": chunk - 1, "uniform": chunk, "": 0}[plan.recompute.method]
            same_as_another = plan.recompute.num_layers > most  # the whole chunk, once
            assert same_as_another or not report_plan(ranking.scenario, plan).fits, str(plan)


def test_a_margin_takes_memory_away(scenario_of, rankings):
    scenario, full = scenario_of("dense", gpus=16), rankings["dense"]
    tight = rank_plans(scenario, margin=0.97)
    assert 0 < len(tight.row) < len(full.row)
    plan = full.plan(0)
    lost = report_plan(scenario, plan).limit_bytes - report_plan(scenario, plan, margin=0.97).limit_bytes
    assert 0.9 * scenario.cluster.memory_bytes < lost <= 0.97 * scenario.cluster.memory_bytes
    kept = {str(tight.plan(p)) for p in range(len(tight.row))}
    fits = full.peak_bytes <= full.limit_bytes - lost
    assert kept == {str(full.plan(p)) for p in np.flatnonzero(fits).tolist()}
    report = report_plan(scenario, tight.plan(0), margin=0.97)
    assert report.limit_bytes == pytest.approx(tight.limit_bytes[0]) and report.fits


def test_runs_six_percent_apart_are_a_tie():
    assert tie_groups(np.array([1.0, 1.059, 1.061, 1.12, 1.13])).tolist() == [1, 1, 2, 2, 3]


@pytest.mark.parametrize(
    "steps", [[1.0], [1, 1.05, 1.0599, 1.0601, 1.1, 1.13, 2, 2.2], [1.0] * 5, list(np.linspace(1, 2, 200))]
)
def test_tie_groups_are_within_the_resolution_of_their_first(steps):
    groups = tie_groups(np.array(steps, float))
    by_group = defaultdict(list)
    for step, group in zip(steps, groups.tolist(), strict=True):
        by_group[group].append(step)
    assert sorted(by_group) == list(range(1, len(by_group) + 1)) and np.all(np.diff(groups) >= 0)
    for group, members in by_group.items():
        assert max(members) <= members[0] * (1 + RESOLUTION)
        if group > 1:
            assert members[0] > by_group[group - 1][0] * (1 + RESOLUTION)


def test_the_pareto_set_is_not_dominated(ranking):
    step, peak = ranking.step_seconds, ranking.peak_bytes - ranking.limit_bytes
    positions = pareto_positions(ranking)
    assert 1 < len(positions) <= PARETO_POINTS and positions == sorted(positions)
    assert positions[0] == np.flatnonzero(step == step[0])[np.argmin(peak[step == step[0]])]
    assert peak[positions[-1]] == peak[step <= SLOWEST * step[0]].min()
    for position in positions:
        better = (step <= step[position]) & (peak <= peak[position]) & ((step < step[position]) | (peak < peak[position]))
        assert not better.any()


def test_wishes_reach_the_ranking(scenario_of):
    scenario = scenario_of("dense", gpus=16)
    fixed = {"recompute": frozenset({Recompute.parse("full:uniform:1")}), "tp": frozenset({2})}
    constraints = Constraints(fixed=fixed, at_most={"pp": 4})
    ranking = rank_plans(scenario, constraints)
    for position in range(0, len(ranking.row), 7):
        plan = ranking.plan(position)
        assert plan.tp == 2 and plan.pp <= 4 and str(plan.recompute) == "full:uniform:1"


# The answer of `search`


def test_answer_is_ranked_and_every_row_says_why(request_of):
    answer = search(request_of("dense", gpus=16, top=50, tokens=1e9, price=2.0))
    assert [p.rank for p in answer.plans] == list(range(1, 51))
    steps = [p.report.step_seconds for p in answer.plans]
    plainer = sum(step <= (1 + PLAINER) * min(steps) for step in steps)
    assert max(steps[:plainer]) <= (1 + PLAINER) * min(steps) and steps[plainer:] == sorted(steps[plainer:])
    assert len({p.why for p in answer.plans}) > 45
    assert "of 5,268 plans that fit" in answer.plans[0].why and "slower than the first" in answer.plans[-1].why
    first, scenario = answer.plans[0].report, answer.question.scenario
    tokens = scenario.workload.tokens_per_step
    assert first.tokens_per_second_per_gpu == pytest.approx(tokens / first.step_seconds / 16)
    assert first.days_to_train == pytest.approx(1e9 / tokens * first.step_seconds / 86400)
    assert first.cost == pytest.approx(first.days_to_train * 24 * 16 * 2)
    assert first.mfu == pytest.approx(first.model_flops_per_second_per_gpu / 312e12)
    assert first.confidence.step_seconds_p5 < first.step_seconds < first.confidence.step_seconds_p95
    assert len({layout_of(scenario, p.report.plan) for p in answer.plans}) == 50


def test_sorting_by_memory_keeps_the_ranks_by_time(request_of):
    answer = search(request_of("dense", gpus=16, sort_by="memory", top=1000))
    peaks = [p.report.peak_bytes for p in answer.plans]
    assert peaks == sorted(peaks)
    ranking = answer.ranking
    layouts = ranking.space.layout_id[ranking.row]
    for ranked in answer.plans[:: max(1, len(answer.plans) // 50)]:
        same = layouts == layouts[ranking.best[ranked.rank - 1]]
        assert ranked.report.peak_bytes == pytest.approx(ranking.peak_bytes[same].min(), rel=1e-9)
    assert answer.plans[0].report.peak_bytes == pytest.approx(ranking.peak_bytes.min(), rel=1e-9)
    assert search(request_of("dense", gpus=16, sort_by="cost")).plans[0].rank == 1


def test_included_plans_stand_where_the_ranking_has_them(request_of):
    base = search(request_of("dense", gpus=16, top=10_000))
    fastest = min(plan.report.step_seconds for plan in base.plans)
    asked = [base.plans[i] for i in (0, 1, 7, len(base.plans) // 2, len(base.plans) - 1)]
    answer = search(request_of("dense", gpus=16, include=tuple(str(p.report.plan) for p in asked)))
    for plan, included in zip(asked, answer.included, strict=True):
        assert included.legal and included.report.fits and included.plan == plan.report.plan
        assert included.layout_rank == plan.rank
        assert included.layout_percentile == pytest.approx(100 * plan.rank / len(base.plans))
        assert included.step_ratio_to_first == pytest.approx(plan.report.step_seconds / fastest)


def test_some_keys_are_completed_as_a_search_with_them_fixed_would(request_of):
    """The best completion is the first plan of a search that fixes these keys; what the text alone says stands beside it."""
    answer = search(request_of("dense", gpus=16, include=("tp=4,pp=2", "tp=2")))
    for included, keys in zip(answer.included, (("tp=4", "pp=2"), ("tp=2",)), strict=True):
        best = search(request_of("dense", gpus=16, fix=keys)).plans[0].report
        assert included.plan == best.plan and included.asked == ",".join(keys)
        assert included.report.step_seconds == pytest.approx(best.step_seconds)
        alone = explain(request_of("dense", gpus=16), included.asked, binds=False).included
        assert included.given == alone.plan != included.plan and included.given.mbs == 1
        assert included.given_report.step_seconds == pytest.approx(alone.report.step_seconds)
        assert included.report.step_seconds < included.given_report.step_seconds
    body = to_json(search_json(answer))["included"][0]
    assert body["as_given"]["short"] == str(answer.included[0].given) and body["short"] == str(answer.included[0].plan)
    assert body["as_given"]["fits"] is True and body["as_given"]["step_seconds"] > body["step_seconds"]


def test_a_whole_plan_is_priced_as_explain_does_and_what_nothing_completes_stays(request_of):
    text = "tp=4,pp=1,mbs=1,sp=1,recompute=full:uniform:1"
    (whole,) = search(request_of("dense", gpus=16, include=(text,))).included
    explained = explain(request_of("dense", gpus=16), text, binds=False).included
    assert whole.given is None and whole.plan == explained.plan
    assert whole.report.step_seconds == pytest.approx(explained.report.step_seconds)
    (illegal,) = search(request_of("dense", gpus=16, include=("tp=3",))).included
    assert not illegal.legal and illegal.given is None and illegal.violations


def test_a_plan_outside_the_searched_space_takes_the_rank_it_would_have(request_of):
    text = "tp=1,pp=2,dp=8,mbs=1,first=1,last=5"
    answer = search(request_of("dense", gpus=16, include=(text,), top=100_000))
    (included,) = answer.included
    faster = sum(p.report.step_seconds < included.report.step_seconds for p in answer.plans)
    assert included.layout_rank == faster + 1 and 0 < included.layout_percentile <= 100


def test_nothing_fits_gives_the_nearest_miss_and_what_to_try(request_of):
    answer = search(request_of("dense", gpus=4, memory_margin=0.985, include=("tp=4,recompute=full:uniform:1",)))
    assert answer.plans == () and answer.pareto == () and answer.ranking.funnel.fit == 0
    miss = answer.nearest_miss
    short = miss.peak_bytes - miss.limit_bytes
    assert short > 0
    scenario = answer.question.scenario
    layouts = answer.ranking.space.layouts
    for row in range(0, len(layouts), 7):
        for option in answer.ranking.options[row % 2 :: 2]:
            plan = layouts.plan(row, option, scenario.model)
            if not violations(scenario, plan):
                report = report_plan(scenario, plan, margin=0.985)
                assert report.peak_bytes - report.limit_bytes >= short * (1 - 1e-9), str(plan)
    body = to_json(search_json(answer))
    assert body["nearest_miss"]["shortfall_gib"] == pytest.approx(short / GIB)
    assert body["nearest_miss"]["try"]
    Draft202012Validator(schema("search")).validate(body)


def test_the_gpus_that_are_said_to_be_enough_are_enough():
    """A remedy that is said to fit does, with the plan and the step time that it names."""
    answer = search(Request(model="175b", gpus=8, gpu="a100-80gb"))
    remedy = next(r for r in answer.remedies if "GPUs of the same kind" in r.change)
    wanted = int(remedy.change.split()[0])
    again = search(Request(model="175b", gpus=wanted, gpu="a100-80gb"))
    assert wanted > 8 and remedy.fits and again.plans[0].report.plan == remedy.plan
    assert again.plans[0].report.step_seconds == pytest.approx(remedy.step_seconds)
    for other in answer.remedies:
        assert other.fits == (other.still_short_gib is None)


def test_remedies_that_save_fit_as_they_say():
    answer = search(Request(model="llama3-70b", gpus=8, gpu="a100-80gb"))
    offload = next(r for r in answer.remedies if "offload" in r.change)
    again = search(Request(model="llama3-70b", gpus=8, gpu="a100-80gb", fix=("offload=1",)))
    assert offload.fits and again.plans[0].report.plan == offload.plan
    assert not any(
        "offload" in r.change for r in search(Request(model="175b", gpus=8, gpu="a100-80gb", fix=("offload=1",))).remedies
    ), "what is given already is not repeated"


def test_where_adapters_do_not_fit_weights_in_four_bits_are_offered():
    """With the plan and step of the question that asks for them; not of mixtures, whose experts are not priced so."""
    question = Request(model="qwen2.5-32b", gpus=1, gpu="a100-40gb", numerics={"peft": "lora"})
    (remedy,) = [one for one in search(question).remedies if one.options == "--frozen-dtype nf4"]
    first = search(replace(question, numerics={"peft": "lora", "frozen_dtype": "nf4"})).plans[0].report
    assert remedy.fits and remedy.plan == first.plan and remedy.step_seconds == pytest.approx(first.step_seconds)
    assert all("nf4" not in one.options for one in search(replace(question, model="mixtral-8x7b")).remedies)


def test_where_all_weights_do_not_fit_adapters_are_offered():
    """With the plan and step of the question that has --peft lora; of adapters, the longest of ever halved samples."""
    question = Request(model="llama3-8b", gpus=1, gpu="rtx-4090")
    remedy = search(question).remedies[-1]
    assert remedy.fits and remedy.change == "fine-tuning of adapters, sequence 2,048, batch 128 (--peft lora)"
    first = search(replace(question, numerics={"peft": "lora"})).plans[0].report
    assert remedy.plan == first.plan and remedy.step_seconds == pytest.approx(first.step_seconds)
    asked = replace(question, numerics={"peft": "lora"}, seq_length=32768)
    assert search(asked).remedies[-1].change == "samples of 4,096 tokens (--seq-length 4096)"
    assert [search(replace(asked, seq_length=length)).ranking.fit_chance_met for length in (4096, 8192)] == [True, False]
    kept = search(replace(asked, packed_length=5000))
    assert not any("samples" in one.change for one in kept.remedies), "no shorter than the sequences packed into one"
    encoders = search(Request(model="t5-11b", gpus=1, gpu="rtx-4090"))
    assert encoders.remedies and not any("adapters" in one.change for one in encoders.remedies)


def test_all_savings_together_are_named_only_where_they_save_more_than_one():
    """With moments on the CPU, gradients in bf16 are copied to fp32 for the step: all together would lack more than offload."""
    answer = search(Request(model="175b", gpus=8, numerics={"grad_reduce_dtype": "fp32"}))
    offload = next(r for r in answer.remedies if "offload" in r.change)
    assert not offload.fits and not any("together" in r.change for r in answer.remedies)
    assert any("together" in r.change for r in search(Request(model="70b", gpus=8)).remedies)


def test_gpus_at_most_takes_the_fastest_of_all_whole_nodes(request_of, scenario_of):
    changes = {"gpus_per_node": 4, "global_batch_size": 48, "numerics": {"grad_reduce_dtype": "fp32"}}
    answer = search(request_of("odd", gpus=None, gpus_at_most=31, **changes))
    best = {}
    for gpus in range(4, 32, 4):
        alone = rank_plans(scenario_of("odd", gpus=gpus, **changes))
        if len(alone.best):
            best[gpus] = alone.step_seconds[0]
    tried = dict(answer.gpus_tried)
    assert len(best) > 3
    assert min(best.values()) <= answer.plans[0].report.step_seconds <= (1 + PLAINER) * min(best.values())
    assert answer.question.scenario.cluster.num_gpus == min(best, key=lambda n: best[n])
    assert set(tried) <= set(range(4, 32, 4))
    for gpus, step in tried.items():
        assert step == (pytest.approx(best[gpus]) if gpus in best else None)
    assert all(plan.report.plan.world_size == answer.question.scenario.cluster.num_gpus for plan in answer.plans)


@tabled
def test_bad_questions_are_refused_with_what_is_allowed(request_of, changes, says):
    with pytest.raises(InputError) as caught:
        search(request_of("dense", **changes))
    for words in says:
        assert words in str(caught.value)


@tabled
def test_a_question_without_a_legal_plan_says_why(request_of, changes, says):
    answer = search(request_of("dense", **changes))
    assert answer.plans == () and answer.ranking.funnel.legal == 0
    for words in says:
        assert words in str(answer.nothing_legal)


@pytest.mark.parametrize(("gpus", "batch"), [(7, 1), (1024, 7), (1000, 3), (512, 1)])
def test_what_is_suggested_instead_has_a_plan(request_of, gpus, batch):
    asked = {"gpus": gpus, "global_batch_size": batch, "gpus_per_node": 8 if gpus % 8 == 0 else gpus}
    none = search(request_of("dense", **asked)).nothing_legal
    if none is None:
        return
    for field, values in (("global_batch_size", none.global_batch_sizes), ("gpus", none.num_gpus)):
        for value in values:
            changed = {**asked, field: value}
            if gpus % 8:
                changed["gpus_per_node"] = changed["gpus"]
            assert search(request_of("dense", **changed)).nothing_legal is None, value
    assert none.global_batch_sizes or none.num_gpus


def test_explain_is_what_search_says_of_the_plan(request_of):
    answer = search(request_of("moe", gpus=16, gpu="h100"))
    plan = answer.plans[3].report
    explanation = explain(request_of("moe", gpus=16, gpu="h100"), str(plan.plan))
    explained = explanation.included
    assert explained.report.step_seconds == pytest.approx(plan.step_seconds)
    assert explained.report.time_parts == plan.time_parts and explained.report.stages == plan.stages
    body = to_json(explain_json(explanation))
    assert body["operators"] and {gain["change"] for gain in body["what_binds"]} >= {"+1 GiB of memory"}
    Draft202012Validator(schema("explain")).validate(body)
    assert [stage["stage"] for stage in body["stages"]] == list(range(plan.plan.pp))
    assert [stage["peak_gib"] for stage in body["stages"]] == body["memory"]["per_stage_gib"]


# "Done when" of the first job: Korthikanti et al.'s layout for 175B, and NVIDIA's published one

A100 = {"model": "175b", "gpus": 1024, "gpu": "a100-80gb", "seq_length": 2048, "global_batch_size": 1536}
KORTHIKANTI = "tp=8,pp=8,vpp=3,mbs=1,sp=1,recompute=selective:core_attn"
H100 = {"model": "175b", "gpus": 512, "gpu": "h100-sxm-80gb", "seq_length": 2048, "global_batch_size": 2048,
        "numerics": {"precision": "fp8", "fp8_param_gather": True, "grad_reduce_dtype": "bf16",
                     "attention_dropout": 0.0, "hidden_dropout": 0.0}}  # fmt: skip


@pytest.fixture(scope="module")
def a100():
    return search(Request(**A100, include=(KORTHIKANTI,)))


def test_175b_on_1024_a100_is_valid_json(a100):
    body = json.loads(json_text(search_json(a100)))
    Draft202012Validator(schema("search")).validate(body)
    assert body["included"][0]["short"] == str(parse_plan(KORTHIKANTI, 1024))
    assert body["plans"][0]["plan"]["global_batch_size"] == 1536


def test_korthikantis_plan_fits_and_is_near_the_first(a100):
    (included,) = a100.included
    print(f"Korthikanti: {included.step_ratio_to_first:.4f} x the first, layout {included.layout_rank}")
    assert included.legal and included.report.fits
    assert included.layout_percentile <= 2.0


def test_nvidias_plan_is_among_the_first_on_512_h100():
    (included,) = search(Request(**H100, include=("tp=4,pp=8,vpp=6,mbs=2,sp=1",))).included
    print(f"NVIDIA: {included.step_ratio_to_first:.4f} x the first, layout {included.layout_rank}")
    assert included.report.fits and included.step_ratio_to_first <= 1.05 and included.layout_rank <= 20
