"""What a run switches on beside its plan: given in a question, assumed and said, and what others would buy."""

import re
from dataclasses import replace

import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.json_record import to_json
from autoconfig.specs.plan import parse_plan
from autoconfig.specs.remarks import sentences
from autoconfig.specs.run_settings import GivenSettings, read_graphs
from autoconfig.specs.software.software import DISPATCHERS
from jsonschema import Draft202012Validator
from tables import tabled

from autoconfig.planning.schemas import schema
from autoconfig.render.training_json import search_json
from autoconfig.training.answer import answer as search
from autoconfig.training.price import report_plan, violations
from autoconfig.training.question import Request, request_of, understand
from autoconfig.training.rank import rank
from autoconfig.training.switches import assumed_switches
from autoconfig.training.vary import OtherSwitches

QWEN = {"model": "qwen3-30b-a3b", "gpus": 16, "gpu": "b200"}
WORDS = ["--model", "qwen3-30b-a3b", "--gpus", "16", "--gpu", "b200", "--software", "nemo-26.05", "--precision", "mxfp8"]
PLAN = "tp=1,ep=8,mbs=1"


def test_switches_are_read_from_every_edge():
    given = {"dispatcher": "hybridep", "cuda_graphs": "attn, moe_router", "ep_overlap": False, "fused_experts": None}
    expected = GivenSettings(dispatcher="hybridep", cuda_graphs=read_graphs("attn moe_router"), ep_overlap=False)
    scenario = understand(request_of({**QWEN, **given})).scenario
    assert scenario.given == expected and scenario.settings().dispatcher == "hybridep"
    assert understand(request_of(QWEN)).scenario.given == GivenSettings()
    none = understand(Request(**QWEN, switches={"cuda_graphs": "none"})).scenario
    assert none.given.cuda_graphs == frozenset()


@pytest.mark.parametrize(("hidden", "width"), [(2500, 100), (2400, 0), (2450, 98)])
def test_heads_of_a_width_that_no_kernel_likes_are_said_first(hidden, width):
    wide = request_of({"model": "gpt3-1.7b", "hidden_size": hidden, "num_attention_heads": 25, "gpus": 8, "gpu": "a100-80gb"})
    first = sentences(understand(wide).assumed)[0]
    assert first.startswith(f"kv_channels {width}: no multiple of 8") == bool(width)


@tabled
def test_what_megatron_has_not_is_refused(model, switches, says):
    with pytest.raises(InputError, match=says):
        understand(Request(model=model, gpus=16, gpu="b200", switches=switches))


@tabled
def test_a_precision_may_be_called_by_its_recipe(words, precision, recipe, said):
    question = understand(request_of({**QWEN, "model": "llama3-8b", **words}))
    assert (question.scenario.numerics.precision, question.scenario.numerics.fp8_recipe) == (precision, recipe)
    assert any("fp8_recipe" in text for text in sentences(question.assumed)) == said


def test_two_recipes_and_a_gpu_without_the_format_are_refused():
    with pytest.raises(InputError, match="drop --fp8-recipe delayed"):
        understand(request_of({**QWEN, "precision": "mxfp8", "fp8_recipe": "delayed"}))
    with pytest.raises(InputError, match=r"(mxfp8|nvfp4) recipe needs|no fp4"):
        understand(request_of({**QWEN, "gpu": "h100", "precision": "mxfp8"}))


def test_the_answer_names_what_it_assumed_and_the_release_it_is_priced_as(autoconfig):
    text = " ".join(autoconfig.run("explain", *WORDS, "--no-ep-overlap", "--no-binds", "--verbose", PLAN).stdout.split())
    for said in ("nemo-26.05, of which nothing is known here, priced as nemo-26.04", "(--dispatcher)", "(--cuda-graphs)"):
        assert said in text
    assert "(--ep-overlap)" not in text and "What switches would buy" not in text
    answer = autoconfig.json("explain", *WORDS, "--no-ep-overlap", "--cuda-graphs", "attn", PLAN)
    Draft202012Validator(schema("explain")).validate(answer)
    settings = answer["run_settings"]
    assert settings["given"] == ["cuda_graphs", "ep_overlap"] and settings["priced_as"] == "nemo-26.04"
    assert settings["cuda_graphs"] == ["attn"] and settings["dispatcher"] in text and not settings["ep_overlap"]
    dense = autoconfig.json("search", "--model", "llama3-8b", "--gpus", "8")["run_settings"]
    assert dense["dispatcher"] is None and dense["priced_as"] == ""


def test_what_a_switch_buys_is_the_step_of_the_question_that_gives_it(autoconfig):
    scenario = understand(Request(**QWEN, switches={"dispatcher": "alltoall"})).scenario
    plan = parse_plan(PLAN, 16)
    gains = {gain.change: gain for gain in OtherSwitches(scenario, plan).gains()}
    hybrid = understand(Request(**QWEN, switches={"dispatcher": "hybridep"})).scenario
    gain, today = gains["hybridep instead of alltoall"], report_plan(scenario, plan).step_seconds
    assert gain.step_seconds == pytest.approx(report_plan(hybrid, plan).step_seconds)
    assert gain.ratio == pytest.approx(gain.step_seconds / today) and gain.ratio < 1
    assert "with EP overlap" in gains and not any("full-iteration" in text for text in gains), "shapes are not known"
    assert "with EP overlap" not in {g.change for g in OtherSwitches(scenario, parse_plan("tp=1,pp=2,ep=8,mbs=1", 16)).gains()}
    assert OtherSwitches(understand(Request(model="llama3-8b", gpus=8)).scenario, parse_plan("tp=1,mbs=4", 8)).gains() == []
    small = OtherSwitches(
        understand(Request(model="llama3.2-1b", gpus=8, gpu="b200")).scenario, parse_plan("tp=4,mbs=1", 8)
    ).gains()
    assert [gain.change for gain in small] == ["full-iteration CUDA graphs instead of none"] and small[0].ratio < 0.95
    text = autoconfig.run("explain", *WORDS, "--dispatcher", "alltoall", PLAN).stdout
    assert "What switches would buy" in text and "hybridep instead of alltoall: -" in text
    buys = autoconfig.json("explain", *WORDS, "--dispatcher", "alltoall", PLAN)["what_switches_buy"]
    assert "hybridep instead of alltoall" in [one["change"] for one in buys]


def test_no_rule_judges_the_switches_of_a_run_that_ran():
    scenario = understand(Request(**QWEN, switches={"ep_overlap": True, "dispatcher": "deepep"})).scenario
    plan = parse_plan("tp=1,ep=1,mbs=1,recompute=full:uniform:1", 16)
    assert {v.rule for v in violations(scenario, plan)} == {"NV080", "NV081", "NV071"}
    assert violations(replace(scenario, given=replace(scenario.given, of_a_run=True)), plan) == []


def test_only_plans_that_overlap_are_searched_when_it_is_asked():
    scenario = understand(request_of({**QWEN, "ep_overlap": True})).scenario
    ranking = rank(scenario)
    rows = ranking.space.layouts
    assert ((rows.ep > 1) & ((rows.pp == 1) | (rows.vpp > 1))).all() and len(ranking.row)
    assert all(option.granularity != "full" and "moe" not in option.modules for option in ranking.options)


def test_nvidias_own_switches_are_refused_on_other_gpus_and_mixtures_there_are_formula_only():
    amd = {**QWEN, "gpu": "mi355x"}
    with pytest.raises(InputError, match=r"hybridep runs on NVIDIA's GPUs only, not on mi355x.*--dispatcher alltoall"):
        understand(Request(**amd, switches={"dispatcher": "hybridep"})).scenario.settings()
    with pytest.raises(InputError, match=r"fused experts run on NVIDIA's GPUs only"):
        understand(request_of({**amd, "precision": "mxfp8", "fused_experts": True})).scenario.settings()
    asked = understand(Request(**amd))
    assert asked.scenario.settings().dispatcher == "alltoall"
    assert any("formula only" in said for said in sentences(assumed_switches(asked.scenario)))
    assert not any("formula only" in said for said in sentences(assumed_switches(understand(Request(**QWEN)).scenario)))


def test_a_search_varies_the_switches_that_it_is_asked_to(autoconfig):
    request = Request(**QWEN, vary=("dispatcher,ep-overlap",), top=3)
    found, plain = search(request), search(Request(**QWEN, top=3))
    switches = found.question.request.switches
    assert found.ranking.step_seconds[0] < plain.ranking.step_seconds[0] and switches
    given = search(Request(**QWEN, top=3, switches=switches))
    assert [p.report.step_seconds for p in given.plans] == [p.report.step_seconds for p in found.plans]
    others = ({"dispatcher": name, "ep_overlap": on} for name in DISPATCHERS[1:] for on in (True, False))
    least = min(float(search(Request(**QWEN, top=1, switches=other)).ranking.step_seconds[0]) for other in others)
    assert found.ranking.step_seconds[0] == pytest.approx(least), "no pair of values is faster"
    assert found.question.varied[0].step_seconds == pytest.approx(least)
    said = next(text for text in to_json(search_json(found))["assumed"] if text.startswith("switches varied, "))
    assert "alltoall" in said
    text = autoconfig.run("search", "--model", "llama3-8b", "--gpus", "8", "--vary", "cuda-graphs", "--top", "1").stdout
    assert "--cuda-graphs full_iteration" in text, "the command for every number says them"
    assert re.search(r"Switches tried \(--vary\).*\n +[0-9.]+ s  cuda-graphs full_iteration  <- fastest\n", text)


def test_a_setting_of_switches_without_a_plan_says_the_rule(autoconfig, monkeypatch):
    small = ("--model", "mixtral-8x7b", "--gpus", "64", "--fix", "pp=2", "--fix", "vpp=1", "--cuda-graphs", "attn")
    asked = ("search", *small, "--vary", "ep-overlap", "--top", "1")
    monkeypatch.setattr("sys.argv", ["autoconfig", *asked])
    text = " ".join(autoconfig.run(*asked).stdout.split())
    assert "ep-overlap on: no legal plan (NV080: EP overlap needs" in text
    assert text.count("--cuda-graphs attn") == 1, "what was given is not said twice"
    text = " ".join(autoconfig.run("search", *small[:4], "--gpu", "h100,a100", "--vary", "dispatcher").stdout.split())
    assert "64 x h100-sxm-80gb, bf16: fastest with dispatcher" in text and "64 x a100-80gb, bf16: fastest with" in text


@tabled
def test_what_cannot_be_varied_is_refused(asked, says):
    with pytest.raises(InputError, match=says):
        search(Request(**{**QWEN, **asked}))


def test_switches_of_another_vendor_are_no_alternatives():
    """HybridEP runs on NVIDIA's GPUs only: a mixture on AMD is ranked, and one that says HybridEP is offered no AMD GPU."""
    answer = search(Request(model="mixtral-8x7b", gpus=64, gpu="mi300x-192gb"))
    assert answer.plans and not any("hybridep" in gain.change for gain in answer.switches)
    large = search(Request(model="kimi-k2", gpus=8, gpu="h100", switches={"dispatcher": "hybridep"}))
    assert not large.plans and not any("mi3" in remedy.change for remedy in large.remedies)


def test_another_gpu_is_offered_with_what_a_question_on_it_takes():
    """Another GPU runs another software, with gradients of its own: the remedy is that question's first plan."""
    remedies = search(Request(model="llama3-70b", gpus=8)).remedies
    [(remedy, gpu)] = [(r, match[1]) for r in remedies if (match := re.search(r"--gpu (mi\S+)\)", r.change))]
    other = search(Request(model="llama3-70b", gpus=8, gpu=gpu))
    assert remedy.step_seconds == pytest.approx(other.plans[0].report.step_seconds)
