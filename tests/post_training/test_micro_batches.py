"""Tokens of the micro-batches that come, and whether a run gets through them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import Recompute, TrainPlan
from autoconfig.specs.serve_plan import EnginePlan

from autoconfig.formats.post_training.verdict import filled_up, hanging_on, surely, turning_mean, verdict
from autoconfig.post_training.frameworks import load_algorithm, load_framework
from autoconfig.post_training.job import Placement, PostTrainingJob
from autoconfig.post_training.memory import phase_memory
from autoconfig.post_training.micro_batches import (
    DRAWN,
    LARGEST_DRAWN,
    SampleLengths,
    first_beyond,
    largest_of,
    padded_drawn,
)
from autoconfig.post_training.passes import shared_tokens
from autoconfig.post_training.samples.lengths import ResponseLengths

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
    """Of micro-batches that are filled up too: theirs differ in the lengths of their samples."""
    at_limit, free = (phase_memory(with_memory(share), PLACED, None) for share in (1.0, 0.85))
    assert at_limit.training_fit == pytest.approx(0.1, abs=0.001)
    assert free.training_fit > 0.95
    filled = phase_memory(JOB, replace(PLACED, samples=0), None)
    just = replace(filled, device_bytes=filled.training_bytes)
    assert just.training_fit == pytest.approx(0.1, abs=0.001)
    given = replace(JOB, algorithm=load_algorithm("sft"))
    assert not phase_memory(given, PLACED, None).varied


def test_training_ends_at_the_first_micro_batch_above_the_limit():
    job = with_memory(1.02)
    found = verdict(job, PLACED)
    tokens = LENGTHS.packed(DRAWN, 8)
    assert found.limit_tokens < tokens.max() and found.first == first_beyond(tokens, found.limit_tokens)
    assert verdict(with_memory(0.9), PLACED).first is None


@pytest.mark.parametrize(
    ("name", "release", "back_end", "beside"),
    [
        ("verl", "0.5.0", "fsdp", 0),
        ("verl", "0.7.0", "fsdp", 0),
        ("verl", "0.7.0", "megatron", 4),
        ("verl", "0.8.0", "fsdp", 4),
        ("verl", "0.9.1", "megatron", 64),
        ("trl", "0.16.1", "fsdp", 4),
        ("trl", "1.16.0", "fsdp", 256),
        ("openrlhf", "0.5.9", "fsdp", 4),
        ("nemo-rl", "0.7.0", "fsdp", 256),
    ],
)
def test_padded_samples_are_as_long_as_the_longest_of_what_the_release_pads_together(name, release, back_end, beside):
    """`beside`: of its 2,048 samples in 4 updates on 8 ranks those of a micro-batch, a mini-batch or a step; 0: the caps."""
    framework = load_framework(name)
    job = replace(JOB, framework=replace(framework, pads_to=framework.padded_to(release, back_end)))
    plan = replace(PLACED.train, mbs=4)
    padded = replace(PLACED, train=plan, samples=0, tokens_per_gpu=0)
    caps = 1024 + 8192
    expected = np.full(DRAWN, caps) if not beside else LENGTHS.padded(DRAWN, beside)
    assert padded_drawn(job, plan, 512) == pytest.approx(expected)
    largest = largest_of(job, plan, 512, 0, 0)
    assert (largest.whole, largest.seq_length) == (4, shared_tokens(round(expected.max()), plan))
    found = verdict(job, padded)
    assert found.padded and found.samples == 4 and found.largest_tokens == largest.seq_length
    assert beside or found.mean_tokens == caps


def test_a_limit_that_was_not_looked_beyond_is_said_to_be_the_least():
    roomy = verdict(with_memory(0.3), replace(PLACED, samples=0))
    assert roomy.at_least and roomy.limit_tokens == roomy.largest_tokens and "holds at least" in roomy.said
    assert not verdict(with_memory(1.02), PLACED).at_least


def test_the_mean_at_which_the_verdict_turns_has_the_chance_and_a_longer_one_has_not():
    job = with_memory(1.02)
    mean = turning_mean(job, PLACED, 0.9)
    at, beyond = (replace(job, responses=replace(job.responses, mean=float(mean + more))) for more in (0, 200))
    assert surely(at, PLACED, 0.9) and not surely(beyond, PLACED, 0.9)
    assert turning_mean(with_memory(0.2), PLACED, 0.9) is None
    assert hanging_on(job, replace(PLACED, samples=0), 0.9).endswith("micro-batches are filled up")


def test_what_is_filled_up_holds_the_longest_sample_and_fits():
    job = with_memory(1.3)
    found = filled_up(job, PLACED, 0.9)
    assert found.memory.fits and found.placement.samples == 0
    tokens = found.placement.tokens_per_gpu
    assert job.longest <= tokens < LENGTHS.packed(DRAWN, 8).max()
    if found.memory.training_fit >= 0.9:
        assert tokens % 1024 == 0 and not surely(job, replace(found.placement, tokens_per_gpu=tokens + 1024), 0.9)
    assert filled_up(replace(job, framework=load_framework("trl")), PLACED, 0.9) is None
    short = replace(job, responses=ResponseLengths(mean=100.0, cap=256), longest_prompt=256)
    assert filled_up(short, PLACED, 0.9).placement.tokens_per_gpu > 8 * short.longest
