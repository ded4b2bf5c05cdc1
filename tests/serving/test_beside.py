"""Instances that prefill and decode beside separate ones: each kind as a question of its own has it."""

import re
from dataclasses import replace

import pytest
from autoconfig.specs.errors import InputError

from autoconfig.serving.answer import answer
from autoconfig.serving.beside import acceptance_of, difference, drafts, published_drafts
from autoconfig.serving.deployment_json import serve_json
from autoconfig.serving.finalists import Contest
from autoconfig.serving.question import understand
from autoconfig.serving.request import ServeRequest

LOADS = [
    {"gpus": 24, "isl": 3000, "osl": 100, "rate": 30.0, "ttft_s": 2.0, "tpot_s": 0.05, "goal": "gpus"},
    {"gpus": 12, "isl": 500, "osl": 400, "rate": 20.0, "ttft_s": 2.0, "tpot_s": 0.1, "goal": "gpus"},
    {"gpus": 8, "isl": 2000, "osl": 200, "ttft_s": 2.0, "tpot_s": 0.03},
]
ASKED = ServeRequest(model="llama3-70b", gpu="h200", gpus=8, fix=("weights=fp8", "kv=fp8"), simulate=1, top=2, price=3.0)


@pytest.mark.parametrize("load", LOADS)
def test_the_simpler_kind_is_what_its_own_question_recommends(load):
    request = replace(ASKED, **load)
    found = answer(request)
    best, other = found.reports[0], found.alternative
    assert (best.plan.prefill is None) != (other.plan.prefill is None)
    if best.plan.prefill is not None:
        alone = answer(replace(request, disaggregated=False)).reports[0]
        assert (other.plan, other.gpus, other.ttft_s) == (alone.plan, alone.gpus, alone.ttft_s)
        assert found.alternative_text.startswith("simpler, without separate prefill instances: tp=")
    else:
        apart = replace(understand(request), aggregated=False)
        alone = Contest(apart, request).best().reports[0]
        assert other.gpus == alone.gpus if request.rate else other.tokens_per_s_per_gpu <= best.tokens_per_s_per_gpu
    record = serve_json(found)
    assert record.alternative.gpus == other.gpus and record.alternative_text == found.alternative_text


def test_both_kinds_are_recommended_somewhere():
    kinds = {answer(replace(ASKED, **load, simulate=0)).reports[0].plan.prefill is None for load in LOADS}
    assert kinds == {True, False}


def test_the_difference_is_in_gpus_and_money():
    found = answer(replace(ASKED, **LOADS[0]))
    best, other = found.reports[0], found.alternative
    more, share = re.search(r"GPUs, ([+-]\d+) \(([+-]\d+)%\)", found.alternative_text).groups()
    assert int(more) == other.gpus - best.gpus > 0 and int(share) == round(100 * (other.gpus / best.gpus - 1))
    old, new = map(float, re.search(r"([\d.]+) -> ([\d.]+) per million tokens", found.alternative_text).groups())
    assert new / old == pytest.approx(other.gpus / best.gpus, rel=0.01)
    assert "as many" in difference(found.question, best, best)


def test_nothing_is_said_where_separate_instances_were_not_asked_for():
    found = answer(replace(ASKED, **LOADS[2], disaggregated=False, simulate=0))
    assert found.alternative is None and found.alternative_text == ""


def test_cost_is_price_over_tokens():
    """3.0 an hour a GPU: a million tokens take a million over tokens/s/GPU seconds of one."""
    for one in answer(replace(ASKED, **LOADS[2], simulate=0)).reports:
        assert one.cost_per_million_tokens == pytest.approx(3.0 * 1e6 / one.tokens_per_s_per_gpu / 3600.0)


MTP = {"model": "deepseek-v3", "gpus": 64, "isl": 3000, "osl": 400, "rate": 20.0, "ttft_s": 2.0, "tpot_s": 0.05, "goal": "gpus"}


@pytest.mark.long
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm-1.2"])
def test_a_layer_that_drafts_is_offered_with_its_published_acceptance(engine):
    """What the offer names, asked as a question of its own, is the deployment of the offer."""
    request = replace(ASKED, **MTP, engine=engine, simulate=0, disaggregated=False, fix=())
    found = answer(request)
    offer = found.drafts
    assert (offer.draft_tokens, offer.acceptance) == (1, 0.85) and offer.tokens_per_step == pytest.approx(1.85)
    assert "arXiv:2412.19437" in offer.source
    plan = offer.report.plan.decode
    keys = ("tp", "pp", "ep", "adp", "weights", "kv")
    pins = tuple(f"{key}={getattr(plan, key)}" for key in keys)
    own = answer(replace(request, draft_tokens=1, acceptance=0.85, fix=pins))
    assert own.drafts is None, "they were asked for"
    assert (own.reports[0].plan, own.reports[0].tpot_s) == (offer.report.plan, offer.report.tpot_s)
    assert offer.report.gpus < found.reports[0].gpus, "the goal"
    assert "--draft-tokens 1 --acceptance 0.85" in offer.text and "without the time of drafting" in offer.text
    assert serve_json(found).drafts.deployment.gpus == offer.report.gpus


def test_no_drafts_are_offered_where_no_layer_drafts():
    assert answer(replace(ASKED, **LOADS[2], simulate=0)).drafts is None


def test_other_models_take_the_lowest_that_was_measured():
    curve, source = published_drafts("glm-4.5")
    assert curve == {1: 1.79} and source.startswith("none is public for this model")
    named = [published_drafts(name)[0][1] for name in ("deepseek-v3.2", "qwen3.5-27b", "glm-5")]
    assert min(named) > 1.79


@pytest.mark.parametrize("drafted", [1, 2, 5])
def test_an_acceptance_gives_its_tokens_back(drafted):
    """1 + a + a^2 + ... of equation 1 of arXiv:2211.17192."""
    for chance in (0.3, 0.79, 0.95):
        tokens = sum(chance**i for i in range(drafted + 1))
        assert acceptance_of(drafted, tokens) == pytest.approx(chance, abs=1e-4)


def test_no_layer_drafts_over_pipeline_stages():
    """Of a recommended deployment with stages the offer has none; a question with drafts and stages is refused."""
    asked = {"model": "qwen3.5-27b", "gpu": "h100", "gpus": 4, "engine": "vllm", "disaggregated": False, "fix": ("pp=2",)}
    request = replace(ASKED, **asked, simulate=0)
    found = answer(request)
    assert found.reports[0].plan.decode.pp == 2 and found.drafts is None
    with pytest.raises(InputError, match="pp=2: vllm does not draft with MTP over pipeline stages; use pp=1"):
        answer(replace(request, draft_tokens=1, acceptance=0.8))
    free = replace(request, fix=())
    assert all(one.plan.decode.pp == 1 for one in answer(replace(free, draft_tokens=1, acceptance=0.8)).reports)
    staged = replace(found, question=understand(free))
    assert drafts(staged.question, free, staged.reports[0]).report.plan.decode.pp == 1
