"""Instances that prefill and decode beside separate ones: each kind as a question of its own has it."""

import re
from dataclasses import replace

import pytest

from autoconfig.serving.answer import answer
from autoconfig.serving.beside import difference
from autoconfig.serving.deployment_json import serve_json
from autoconfig.serving.finalists import finalists
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
        alone = finalists(apart, request, None)[1][0]
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
