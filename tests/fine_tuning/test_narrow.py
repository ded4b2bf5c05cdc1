"""`search --format`: plans that a format cannot say are left out before the answer is cut to its length."""

import numpy as np
import pytest

from autoconfig.formats.narrow import search_sayable
from autoconfig.formats.writers.table import WRITERS
from autoconfig.training.rank import likely_only, pareto_positions, plainest_first, rank_plans, safe_position

GIVEN = dict.fromkeys(("fix", "exclude", "max", "include"), ()) | dict.fromkeys(("software", "peft", "packed_length", "export"))
QUESTIONS = (
    ("torchtitan", "llama3-8b", "h100-sxm-80gb", 16),
    ("torchtitan", "llama3-70b", "h100-sxm-80gb", 64),
    ("nanotron", "llama3-70b", "h100-sxm-80gb", 64),
    ("nanotron", "llama3-8b", "a100-40gb", 8),
    ("bridge", "llama3-70b", "h100-sxm-80gb", 32),
    ("trl", "qwen2.5-7b", "h100-sxm-80gb", 8),
    ("deepspeed", "qwen2.5-7b", "a100-80gb", 16),
    ("axolotl", "llama3-8b", "h200", 4),
)


def exhaustive(question, form):
    """Every plan that fits, each asked of the format, then the chance to fit."""
    ranking = rank_plans(question.scenario, question.constraints)
    says = [not WRITERS[form].refused(question.scenario, ranking.plan(at)) for at in range(len(ranking.row))]
    return plainest_first(likely_only(ranking.take(np.array(says, bool)), question.request.fit_chance))


@pytest.mark.parametrize(("form", "model", "gpu", "gpus"), QUESTIONS)
def test_the_best_plans_that_can_be_said_are_those_of_all_plans(form, model, gpu, gpus):
    answer, _ = search_sayable({**GIVEN, "model": model, "gpu": gpu, "gpus": gpus}, form)
    whole = exhaustive(answer.question, form)
    top = answer.question.request.top
    assert [one.report.plan for one in answer.plans] == [whole.plan(int(at)) for at in whole.best[:top]]
    assert answer.ranking.fit_chance_met == whole.fit_chance_met
    safe = safe_position(whole)
    assert (answer.safe and answer.safe.plan) == (None if safe is None else whole.plan(safe))
    assert [one.plan for one in answer.pareto] == [whole.plan(at) for at in pareto_positions(whole)]
    assert not any(WRITERS[form].refused(answer.question.scenario, one.report.plan) for one in answer.plans)


def test_a_search_has_as_many_plans_as_it_shows_where_most_cannot_be_said():
    """Four of five plans of nanotron have uneven stages, which it has no words for."""
    answer, lines = search_sayable({**GIVEN, "model": "llama3-70b", "gpu": "h100-sxm-80gb", "gpus": 64}, "nanotron")
    assert len(answer.plans) == answer.question.request.top
    assert any(line.startswith("left out: ") and "first=" in line for line in lines)
    one, _ = search_sayable({**GIVEN, "model": "llama3-70b", "gpu": "h100-sxm-80gb", "gpus": 64, "top": 1}, "nanotron")
    assert [plan.report.plan for plan in one.plans] == [answer.plans[0].report.plan]


def test_all_plans_of_a_whole_answer_can_be_said():
    given = {**GIVEN, "model": "llama3-8b", "gpu": "h100-sxm-80gb", "gpus": 16}
    answer, _ = search_sayable(given, "torchtitan", whole=True)
    ranking = answer.ranking
    plans = [ranking.plan(at) for at in range(len(ranking.row))]
    assert plans and not any(WRITERS["torchtitan"].refused(answer.question.scenario, plan) for plan in plans)
