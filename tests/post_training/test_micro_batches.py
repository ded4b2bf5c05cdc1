"""Tokens of the micro-batches that come, and whether a run gets through them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import Recompute, TrainPlan
from autoconfig.specs.serve_plan import EnginePlan

from autoconfig.formats.post_training.verdict import filled_up, turning_mean, verdict
from autoconfig.post_training.frameworks import load_algorithm, load_framework
from autoconfig.post_training.job import Placement, PostTrainingJob
from autoconfig.post_training.lengths import ResponseLengths
from autoconfig.post_training.memory import phase_memory
from autoconfig.post_training.micro_batches import DRAWN, LARGEST_DRAWN, SampleLengths, first_beyond

JOB = PostTrainingJob(
    policy=load_model("qwen2.5-7b"),
    algorithm=load_algorithm("dapo"),
    framework=load_framework("verl"),
    gpu=load_gpu("h100"),
    prompts=256,
    group=8,
    prompt_tokens=300.0,
    longest_prompt=1024,
    responses=ResponseLengths(mean=2450.0, cap=8192),
    minibatch=512,
)
PLACED = Placement(
    train=TrainPlan(tp=1, pp=1, dp=8, mbs=1, fsdp=3, dist_opt=False, recompute=Recompute.parse("full")),
    engine=EnginePlan(tp=1, replicas=8),
    tokens_per_gpu=round(8 * 2750 / 0.9),
    samples=8,
)
LENGTHS = SampleLengths.of(300.0, 1024, ResponseLengths(mean=2450.0, cap=8192))


def test_drawn_micro_batches_have_the_mean_of_their_samples_and_lie_between_the_shortest_and_the_caps():
    for size in (1, 3, 8, LARGEST_DRAWN, 1000):
        tokens = LENGTHS.packed(DRAWN, size)
        assert len(tokens) == DRAWN
        assert tokens.mean() == pytest.approx(size * 2750.0, rel=0.01)
        assert size * 2 <= tokens.min() < tokens.max() <= size * (1024 + 8192)


def test_the_largest_is_what_independent_draws_find():
    """Of eight lognormal samples cut at their caps; the spread of the largest of 512 over many tries."""
    rng, laws = np.random.default_rng(37), (LENGTHS.prompts, LENGTHS.responses)
    tries = [sum(law.quantiles(rng.random(DRAWN * 8)).reshape(DRAWN, 8).sum(axis=1) for law in laws).max() for _ in range(40)]
    assert min(tries) <= LENGTHS.packed(DRAWN, 8).max() <= max(tries)


def test_padded_samples_are_as_long_as_the_longest_of_their_micro_batch():
    alone = LENGTHS.packed(DRAWN, 1)
    assert LENGTHS.padded(DRAWN, 1) == pytest.approx(alone)
    assert LENGTHS.padded(DRAWN, 8).max() == pytest.approx(1024 + 8192, rel=0.05)
    assert LENGTHS.padded(DRAWN, 8).mean() > 1.5 * alone.mean()


def test_prompts_are_alike_where_no_cap_is_known_and_their_order_is_not_that_of_responses():
    alike = SampleLengths.of(300.0, 0, ResponseLengths(mean=100.0, cap=100))
    assert set(alike.packed(DRAWN, 4)) == {1600.0}
    prompts, responses = (law.sample(512, seed) for law, seed in ((LENGTHS.prompts, 11), (LENGTHS.responses, 7)))
    assert abs(np.corrcoef(prompts, responses)[0, 1]) < 0.2


def test_the_first_that_does_not_fit_is_expected_at_one_over_their_share():
    tokens = np.arange(1.0, 513.0)
    assert first_beyond(tokens, 512.0) is None
    assert first_beyond(tokens, 511.5) == 512
    assert first_beyond(tokens, 384.0) == 4
    assert first_beyond(tokens, 0.0) == 1


def with_memory(share: float) -> PostTrainingJob:
    """The job on GPUs of which the largest micro-batch of training takes this share."""
    taken = phase_memory(JOB, PLACED, None).training_bytes
    device = replace(JOB.gpu, memory_bytes=taken / share)
    for _ in range(20):  # what is no tensor grows a little with the GPU
        device = replace(device, memory_bytes=phase_memory(replace(JOB, gpu=device), PLACED, None).training_bytes / share)
    return replace(JOB, gpu=device)


def test_the_chance_is_one_in_ten_where_the_largest_is_just_within_the_gpu():
    """Of micro-batches that are filled up it is one half there, as of a plan of training."""
    at_limit, free = (phase_memory(with_memory(share), PLACED, None) for share in (1.0, 0.85))
    assert at_limit.training_fit == pytest.approx(0.1, abs=0.001)
    assert free.training_fit > 0.95
    filled = replace(PLACED, samples=0)
    assert phase_memory(JOB, filled, None).varied is False


def test_training_ends_at_the_first_micro_batch_above_the_limit():
    job = with_memory(1.02)
    found = verdict(job, PLACED)
    tokens = LENGTHS.packed(DRAWN, 8)
    assert found.limit_tokens < tokens.max() and found.first == first_beyond(tokens, found.limit_tokens)
    assert verdict(with_memory(0.9), PLACED).first is None
    shorter = replace(job, responses=replace(job.responses, mean=float(turning_mean(job, PLACED, found.limit_tokens))))
    assert verdict(shorter, PLACED).first is None and turning_mean(JOB, replace(PLACED, samples=0), 1) is None


def test_what_is_filled_up_holds_the_longest_sample_and_fits():
    job = with_memory(1.3)
    found = filled_up(job, PLACED)
    assert found.memory.fits and found.placement.samples == 0
    assert job.longest <= found.placement.tokens_per_gpu < LENGTHS.packed(DRAWN, 8).max()
    assert filled_up(replace(job, framework=load_framework("trl")), PLACED) is None
