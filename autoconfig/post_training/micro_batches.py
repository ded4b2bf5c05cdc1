"""Tokens of the micro-batches that come: prompts and responses drawn as generation draws them, packed or padded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from autoconfig.post_training.lengths import ResponseLengths, Vector

DRAWN = 512
"""Micro-batches that are drawn: those of 512 samples one by one, or of 64 to a few steps of usual runs."""
PROMPTS = 11
"""Seed of the order of prompts, another than that of responses: long prompts do not have long responses."""
LARGEST_DRAWN = 128
"""Samples of a micro-batch that are drawn one by one; larger ones are as many times these, which spread a little more."""


@dataclass(frozen=True, kw_only=True)
class SampleLengths:
    """The laws of prompts and of responses."""

    prompts: ResponseLengths
    responses: ResponseLengths

    @classmethod
    def of(cls, prompt_tokens: float, longest_prompt: int, responses: ResponseLengths) -> SampleLengths:
        """Prompts by the law of responses, with their own mean and cap; all alike where no cap above the mean is known."""
        cap = max(longest_prompt, round(prompt_tokens), 1)
        return cls(prompts=ResponseLengths(mean=min(max(prompt_tokens, 1.0), cap), cap=cap), responses=responses)

    def packed(self, count: int, size: int) -> Vector:
        """[count]: tokens of micro-batches of `size` samples that hold their tokens alone, sum of prompts and responses."""
        drawn = min(size, LARGEST_DRAWN)
        return np.asarray(np.sum(_draws(self, count, drawn), axis=(0, 2)) * (size / drawn))

    def padded(self, count: int, size: int) -> Vector:
        """[count]: tokens to which each of the `size` samples of a micro-batch is padded: longest prompt + longest response."""
        return np.asarray(np.sum(np.max(_draws(self, count, min(size, LARGEST_DRAWN)), axis=2), axis=0))


@lru_cache(maxsize=32)
def _draws(lengths: SampleLengths, count: int, size: int) -> Vector:
    """[2, count, size]: prompts and responses."""
    both = lengths.prompts.sample(count * size, PROMPTS), lengths.responses.sample(count * size)
    found = np.stack(both).reshape(2, count, size)
    found.setflags(write=False)
    return found


def first_beyond(tokens: Vector, limit: float) -> int | None:
    """The micro-batch at which the first is expected that holds more than `limit` tokens: 1 over their share, rounded; None
    where none of these does."""
    share = float(np.mean(tokens > limit))
    return max(1, round(1.0 / share)) if share else None
