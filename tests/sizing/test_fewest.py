"""`scaling --days`: the fewest GPUs equal an exhaustive search over whole nodes; better batches for odd numbers of GPUs."""

import random

import pytest

import autoconfig as api
from autoconfig.sizing.sizing import ScalingRequest, scale
from autoconfig.training.answer import answer as search
from autoconfig.training.question import Request, understand
from autoconfig.training.space import enumerate_space

MODELS = ("1.7b", "llama3-8b", "gpt3-13b", "qwen2.5-7b", "qwen3-30b-a3b", "llama3-70b")


def random_question(seed):
    """A question whose deadline lies among its counts."""
    draw = random.Random(seed)
    batch = draw.choice((None, 256, 480, 512, 720, 1000))
    base = Request(model=draw.choice(MODELS), gpu=draw.choice(("h100", "a100-80gb", "h200")), tokens=100e9,
                   global_batch_size=batch, seq_length=draw.choice((2048, 4096)))  # fmt: skip
    most = draw.choice((64, 96, 120, 160))
    counts = draw.choice(((most,), (8, most), (16, 32, 64, most)))
    slowest = next((p.days for p in scale(ScalingRequest(base=base, gpu_counts=(8, 16, 32, 64))).points if p.days), 10.0)
    return ScalingRequest(base=base, gpu_counts=counts, days=slowest * draw.uniform(0.1, 1.2))


def exhaustive(request):
    """The fewest GPUs of all whole nodes and of all parts of one within what was asked, each asked by itself."""
    most = max(request.gpu_counts)
    least = min(request.gpu_counts) if len(request.gpu_counts) > 1 else 1
    counts = [count for count in (*range(1, 8), *range(8, most + 1, 8)) if count >= least]
    every = ScalingRequest(base=request.base, gpu_counts=tuple(counts))
    return next((p.num_gpus for p in scale(every).points if p.days is not None and p.days <= request.days), None)


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.soak] if seed >= 1 else []) for seed in range(33)])
def test_the_fewest_gpus_are_those_of_an_exhaustive_search(seed):
    request = random_question(seed)
    found = scale(request)
    assert found.every_count
    assert (found.fewest and found.fewest.num_gpus) == exhaustive(request)


def test_a_count_without_a_legal_plan_is_no_miss():
    """1,000 GPUs have no legal plan with batch 512, and 64 are too few: the answer lies between."""
    base = Request(model="llama3-8b", gpu="h100", tokens=300e9, global_batch_size=512)
    found = scale(ScalingRequest(base=base, gpu_counts=(8, 1000), days=6.0))
    assert found.points[-1].report is None and "factor 125" in found.points[-1].why_not
    assert 8 < found.fewest.num_gpus < 1000 and found.fewest.days <= 6.0


WHOLE_NODES = [pytest.param(range(8, 1025, 8), marks=pytest.mark.soak), (24, 104, 360, 488, 680, 1016)]


@pytest.mark.parametrize("counts", WHOLE_NODES, ids=["all", "some"])
@pytest.mark.parametrize("model", ["llama3-8b", "llama3-70b", "175b", "qwen3-30b-a3b", "deepseek-v3"])
def test_a_batch_that_is_not_given_suits_the_count(model, counts):
    """With the models' own batches 93 of 128 counts had no legal plan for llama3-8b, 77 for llama3-70b."""
    for count in counts:
        question = understand(Request(model=model, gpu="h100", gpus=count))
        assert enumerate_space(question.scenario, question.constraints).legal, count


def test_the_batch_that_suits_is_near_the_usual_one_and_said():
    batches = {}
    for count in (64, 96, 104, 960, 1000, 1016):
        question = understand(Request(model="llama3-8b", gpu="h100", gpus=count))
        batches[count] = question.scenario.workload.global_batch_size
        said = next(remark.why for remark in question.assumed if remark.field == "global_batch_size")
        assert ("suits" in said) == (batches[count] != 512)
    assert batches == {64: 512, 96: 480, 104: 520, 960: 480, 1000: 500, 1016: 508}  # 5 x 96, 5 x 104, 480, 500, 4 x 127
    assert understand(Request(model="llama3-8b", gpu="h100", gpus_at_most=104)).scenario.workload.global_batch_size == 512
    found = scale(ScalingRequest(base=Request(model="llama3-8b", gpu="h100"), gpu_counts=(64, 104)))
    assert [point.why_not for point in found.points] == [None, None]
    assert "520 on 104 GPUs" in repr(api.scaling(model="llama3-8b", gpu="h100", gpus="64,104"))


def test_an_answer_that_left_counts_out_says_so(autoconfig, monkeypatch):
    monkeypatch.setattr("autoconfig.sizing.sizing.MAX_TRIED", 0)
    run = autoconfig.run("scaling", "--model", "1.7b", "--gpus", "256", "--tokens", "1t", "--days", "80")
    assert run.exit_code == 0 and "of the counts tried" in " ".join(run.stdout.split())
    monkeypatch.setattr("autoconfig.sizing.sizing.MAX_TRIED", 128)
    run = autoconfig.run("scaling", "--model", "1.7b", "--gpus", "256", "--tokens", "1t", "--days", "80")
    assert run.exit_code == 0 and "of the counts tried" not in " ".join(run.stdout.split())


def test_a_better_batch_is_named_with_what_it_gains(autoconfig):
    asked = Request(model="llama3-8b", gpus=24, gpu="h100", global_batch_size=512)
    other = search(asked).other_batch
    assert other.global_batch_size % 3 == 0 and abs(other.global_batch_size - 512) <= 128
    again = search(Request(model="llama3-8b", gpus=24, gpu="h100", global_batch_size=other.global_batch_size))
    rate = float(other.global_batch_size / again.ranking.step_seconds[0])
    assert other.tokens_per_second_per_gpu == pytest.approx(rate * 8192 / 24)
    assert other.gain == pytest.approx(rate / (512 / float(search(asked).ranking.step_seconds[0])) - 1.0) and other.gain >= 0.03
    run = autoconfig.run("search", "--model", "llama3-8b", "--gpus", "24", "--global-batch-size", "512")
    assert f"batch {other.global_batch_size:,}: " in run.stdout and f"{other.gain:.0%} more" in " ".join(run.stdout.split())
    assert search(Request(model="llama3-8b", gpus=32, gpu="h100")).other_batch is None


def test_the_cause_of_no_plan_is_the_factor_of_the_gpus():
    said = str(search(Request(model="llama3-8b", gpus=1000, global_batch_size=512)).nothing_legal)
    assert "1,000 GPUs have the factor 125, and global batch 512 (dp), 32 heads" in said
    assert "NV013" not in said and "--global-batch-size 500" in said
