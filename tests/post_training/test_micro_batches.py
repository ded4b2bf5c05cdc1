"""Tokens of the micro-batches that come, and whether a run gets through them."""

from __future__ import annotations

import numpy as np
import pytest

from autoconfig.post_training.lengths import ResponseLengths
from autoconfig.post_training.micro_batches import DRAWN, LARGEST_DRAWN, SampleLengths, first_beyond

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
