"""Tokens of the micro-batches that come: prompts and responses drawn as generation draws them, packed or padded; the largest,
which memory must hold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from autoconfig.post_training.job import Placement, PostTrainingJob
from autoconfig.post_training.passes import Microbatches, microbatches, shared_tokens
from autoconfig.post_training.samples.lengths import ResponseLengths, Vector
from autoconfig.specs.plan import TrainPlan

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
    draws = np.stack(both).reshape(2, count, size)
    draws.setflags(write=False)
    return draws


def first_beyond(tokens: Vector, limit: float) -> int | None:
    """The micro-batch at which the first is expected that holds more than `limit` tokens: 1 over their share, rounded; None
    where none of these does."""
    share = float(np.mean(tokens > limit))
    return max(1, round(1.0 / share)) if share else None


def fullest(job: PostTrainingJob, placement: Placement) -> Microbatches:
    """The micro-batch of training that memory must hold: the largest of DRAWN."""
    return largest_of(job, placement.train, job.trained / job.updates, placement.tokens_per_gpu, placement.samples)


def tokens_drawn(job: PostTrainingJob, size: int, *, packed: bool) -> Vector:
    """[DRAWN]: tokens of micro-batches of `size` samples, or of each of them where they are padded."""
    lengths = SampleLengths.of(job.prompt_tokens, job.longest_prompt, job.responses)
    return lengths.packed(DRAWN, size) if packed else lengths.padded(DRAWN, size)


def own_samples(job: PostTrainingJob, plan: TrainPlan, samples: float) -> int:
    """Sequences of one data-parallel rank of these samples."""
    return max(1, round(samples * job.algorithm.sequences_per_sample / plan.dp))


def padded_drawn(job: PostTrainingJob, plan: TrainPlan, samples: float) -> Vector:
    """[DRAWN]: tokens to which each sample of a padded micro-batch is padded, of those into which `samples` are cut.

    The longest of what the framework's row says (`pads_to`: of a micro-batch, of these samples or a step of one rank), or the
    caps, which are those too where nothing is generated.
    """
    own, whole = own_samples(job, plan, samples), own_samples(job, plan, job.trained)
    beside = {"micro-batch": min(plan.mbs, own), "mini-batch": own, "step": whole}.get(job.framework.pads_to, 0)
    if not beside or not job.algorithm.generates:
        return np.full(DRAWN, float(job.longest))
    return tokens_drawn(job, beside, packed=False)


def largest_of(job: PostTrainingJob, plan: TrainPlan, samples: float, tokens_per_gpu: int, size: int) -> Microbatches:
    """The largest of DRAWN micro-batches into which `samples` are cut. Filled up: one full bin, or the longest sample where it
    is more; of `size` samples that hold their tokens alone: the largest sum, as one sequence; padded: plan.mbs samples of the
    largest length of `padded_drawn`."""
    cut = microbatches(job, plan, samples, tokens_per_gpu)
    own = max(1, round(cut.sequences * cut.count))
    if not tokens_per_gpu:
        longest = float(np.max(padded_drawn(job, plan, samples)))
        return replace(cut, seq_length=shared_tokens(round(longest), plan), tokens=longest)
    if size:
        tokens = float(np.max(tokens_drawn(job, min(size, own), packed=True)))
    else:
        longest = float(np.max(tokens_drawn(job, 1, packed=True)))
        tokens = max(min(float(tokens_per_gpu * plan.cp), own * job.tokens), longest)
    return replace(cut, sequences=1.0, seq_length=shared_tokens(round(tokens), plan), tokens=tokens)
