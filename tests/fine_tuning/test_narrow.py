"""`search --format`: plans that a format cannot say are left out before the answer is cut to its length."""

import json

import numpy as np
import pytest
from autoconfig.specs.errors import InputError

from autoconfig.formats.check import read_any
from autoconfig.formats.export import export_texts
from autoconfig.formats.narrow import search_sayable
from autoconfig.formats.writers.table import WRITERS
from autoconfig.megatron.check import check
from autoconfig.megatron.check_input import CheckRequest
from autoconfig.training.rank import likely_only, pareto_positions, plainest_first, rank, safe_position

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
    ranking = rank(question.scenario, question.constraints)
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


def test_weights_frozen_in_fp8_are_priced_and_said_by_no_trainer():
    asked = {**GIVEN, "model": "llama3-8b", "gpu": "h100-sxm-80gb", "gpus": 8, "peft": "lora", "frozen_dtype": "fp8"}
    for form in ("trl", "llama-factory", "axolotl"):
        answer, lines = search_sayable(asked, form)
        assert not answer.plans and any("frozen_dtype=fp8, which bitsandbytes does not keep" in line for line in lines)


def test_all_plans_of_a_whole_answer_can_be_said():
    given = {**GIVEN, "model": "llama3-8b", "gpu": "h100-sxm-80gb", "gpus": 16}
    answer, _ = search_sayable(given, "torchtitan", whole=True)
    ranking = answer.ranking
    plans = [ranking.plan(at) for at in range(len(ranking.row))]
    assert plans and not any(WRITERS["torchtitan"].refused(answer.question.scenario, plan) for plan in plans)


@pytest.mark.parametrize(("form", "fix"), [("deepspeed", "fsdp=2"), ("deepspeed", "fsdp=3"), ("llama-factory", "dist_opt=1")])
def test_what_a_search_prices_of_deepspeeds_buckets_is_what_its_file_says(form, fix):
    """4.5 buckets of each kind in 16 bits beside overlap_comm, of the hidden size squared; stage 3 gathers weights in none."""
    given = {**GIVEN, "model": "llama3-8b", "gpu": "h100-sxm-80gb", "gpus": 8, "fix": (fix,)}
    answer, _ = search_sayable(given, form)
    scenario, report = answer.question.scenario, answer.plans[0].report
    stage = report.plan.fsdp or int(report.plan.dist_opt)
    text = export_texts(scenario, report.plan, report, form) if form == "llama-factory" else None
    name = f"ds_z{stage}_config.json"
    zero = json.loads(text[name] if text else WRITERS[form].write(scenario, report.plan).text)["zero_optimization"]
    assert zero["reduce_bucket_size"] == zero["allgather_bucket_size"] == 4096**2 and zero["overlap_comm"] is True
    assert report.stages[0].parts["workspace_bytes"] == 2 * 4.5 * 4096**2 * (1 if stage == 3 else 2)


OF_ACCELERATE = "distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_processes: 8\ndeepspeed_config: {{zero_stage: {}}}\n"


@pytest.mark.parametrize(("stage", "held"), [(1, 1e9), (2, 1e9), (3, 4.5e9)])
def test_deepspeeds_own_buckets_are_priced_and_said_where_no_file_says_any(stage, held):
    """5e8 elements of 16 bits (runtime/zero/config.py); overlap_comm is on at stage 3 alone where it is not said."""
    asked = CheckRequest(model="llama3-8b", gpu="h100-sxm-80gb", seq_length=2048, settings={"micro_batch_size": "1"})
    found = read_any(OF_ACCELERATE.format(stage), asked)
    assert check(found).report.stages[0].parts["workspace_bytes"] == held
    assert any(one.field == "reduce_bucket_size" and one.value == 5e8 for one in found.question.assumed)


def test_a_search_for_trl_prices_the_buckets_that_accelerate_leaves_deepspeed():
    given = {**GIVEN, "model": "llama3-8b", "gpu": "h100-sxm-80gb", "gpus": 8}
    answer, _ = search_sayable({**given, "fix": ("offload=1", "fsdp=3")}, "trl")
    assert answer.plans[0].report.stages[0].parts["workspace_bytes"] == 4.5e9
    with pytest.raises(InputError):
        search_sayable({**given, "fix": ("offload=1",), "zero_bucket": 0}, "trl")
    other, lines = search_sayable({**given, "fix": ("offload=1", "fsdp=3"), "zero_bucket": 10**6}, "trl")
    assert not other.plans and any("cannot say zero_bucket=1000000" in line for line in lines)
