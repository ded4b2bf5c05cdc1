"""Plans that run come first: the chance to fit that is asked for, and plain plans within a tie."""

import numpy as np
import pytest

from autoconfig.training.answer import answer as search
from autoconfig.training.question import Request, understand
from autoconfig.training.rank import PLAINER, plainest_first, rank

DENSE = [
    ("llama3-8b", 8), ("llama3-8b", 24), ("llama3-70b", 64), ("llama3-70b", 512), ("llama3.1-405b", 1024), ("gpt3-175b", 1024),
    ("gpt3-175b", 96), ("13b", 7), ("13b", 40), ("gpt3-1.7b", 7), ("1t", 3072), ("qwen2.5-0.5b", 4),
]  # fmt: skip
MIXTURES = [
    ("mixtral-8x7b", 64), ("mixtral-8x7b", 48), ("deepseek-v3", 1024), ("deepseek-v2-lite", 8), ("qwen3-30b-a3b", 16),
    ("qwen3-235b-a22b", 256), ("gpt-oss-120b", 64), ("gpt-oss-20b", 8),
]  # fmt: skip
QUESTIONS = [
    *({"model": model, "gpus": gpus} for model, gpus in DENSE + MIXTURES),
    *({"model": model, "gpus": gpus, "numerics": {"precision": "fp8"}} for model, gpus in (DENSE[2], DENSE[4], *MIXTURES[2:4])),
    *({"model": "llama3-8b", "gpus": 32, "seq_length": tokens, "global_batch_size": 32} for tokens in (32_768, 131_072)),
    {"model": "llama3-70b", "gpus": 256, "seq_length": 131_072, "global_batch_size": 64},
    *({"model": model, "gpus": 8, "numerics": {"peft": "lora"}} for model in ("llama3-8b", "llama3-70b")),
    {"model": "llama3-8b", "gpus": 2, "numerics": {"peft": "lora"}},
    *({"model": "llama3-70b", "gpus": 64, "gpu": gpu} for gpu in ("a100-80gb", "h200", "b200", "gb200", "b300")),
    *({"model": "llama3-8b", "gpus": 16, "gpu": gpu} for gpu in ("a100-40gb", "l40s-48gb", "h100-pcie")),
    {"model": "nemotron-3-nano-30b-a3b", "gpus": 16},
    {"model": "qwen3-next-80b-a3b", "gpus": 64},
]


@pytest.mark.parametrize("question", [
    pytest.param(question, marks=[pytest.mark.soak] * (number % 3 > 0), id=" ".join(map(str, question.values())))
    for number, question in enumerate(QUESTIONS)
])  # fmt: skip
def test_the_first_plan_runs(question):
    found = search(Request(**question, top=3))
    assert found.plans and found.ranking.fit_chance_met
    assert all(plan.report.confidence.fit_probability >= 0.9 for plan in found.plans)
    if found.riskier is not None:
        assert 0.5 <= found.riskier.confidence.fit_probability < 0.9
        assert found.riskier.step_seconds <= found.ranking.step_seconds[0]


@pytest.mark.parametrize("chance", [0.6, 0.9, 0.99])
def test_the_ranking_is_the_whole_one_without_what_may_not_fit(scenario_of, chance):
    whole = rank(scenario_of("dense", gpu="v100-32gb", seq_length=8192))
    found = rank(whole.scenario, fit_chance=chance)
    likely = whole.fit_chances() >= chance
    assert 0 < likely.sum() < len(likely) and found.fit_chance_met
    for name in ("row", "option", "step_seconds", "peak_bytes"):
        assert np.array_equal(getattr(found, name), getattr(whole, name)[likely]), name
    assert found.funnel.fit == whole.funnel.fit and found.funnel.priced == whole.funnel.priced
    assert (found.riskier is None) == bool(likely[0])
    if found.riskier is not None:
        assert (found.riskier.row, found.riskier.option) == (whole.row[0], whole.option[0])


def test_where_no_plan_is_likely_enough_the_likeliest_comes_first_with_what_would_help():
    found = search(Request(model="llama3-70b", gpus=16, software="transformer-engine"))
    assert not found.ranking.fit_chance_met and found.plans and found.riskier is None
    chances = [plan.report.confidence.fit_probability for plan in found.plans]
    assert chances == sorted(chances, reverse=True) and 0.5 <= chances[0] < 0.9
    helpful = [remedy for remedy in found.remedies if remedy.fits]
    assert helpful and all(remedy.still_short_gib is None or remedy.still_short_gib > 0 for remedy in found.remedies)
    asked = search(Request(model="llama3-70b", gpus=16, software="transformer-engine", fit_chance=0.5))
    assert asked.ranking.fit_chance_met and not asked.remedies


def test_the_plainest_of_the_fastest_plans_comes_first():
    question = understand(Request(model="llama3-70b", gpus=64))
    ranking = rank(question.scenario, fit_chance=0.9)
    found = plainest_first(ranking)
    tied = int((ranking.step_seconds[ranking.best] <= ranking.step_seconds[0] * (1 + PLAINER)).sum())
    assert sorted(found.best[:tied]) == sorted(ranking.best[:tied]) and np.array_equal(found.best[tied:], ranking.best[tied:])
    first, fastest = found.plan(int(found.best[0])), ranking.plan(int(ranking.best[0]))
    assert fastest.first is not None and first.first is None and first.cp == 1 and not first.fsdp
    assert len(first.recompute.modules) < 2
    assert first.pp * first.vpp < question.scenario.model.num_layers
