"""Whether training gets through the micro-batches that come, at which it ends, and on which mean length that hangs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from autoconfig.post_training.job import PassBatch, Placement, PostTrainingJob
from autoconfig.post_training.memory import TrainingMemory, training_bytes, training_memory
from autoconfig.post_training.micro_batches import DRAWN, first_beyond, fullest, tokens_drawn
from autoconfig.post_training.passes import microbatches, shared_tokens
from autoconfig.post_training.ranking import PricedPlacement, price

FINE = 64
"""Tokens to which a limit is found."""
ROUND = 1024
"""Of which proposed tokens are a multiple."""
FREE = 0.9
"""Share of the tokens that fit that is proposed."""


@dataclass(frozen=True, kw_only=True)
class MicroBatchVerdict:
    """Training's micro-batches against what fits; padded: tokens of each sample."""

    samples: int
    """Of a micro-batch; 0: filled up to tokens."""
    padded: bool
    mean_tokens: float
    largest_tokens: int
    """Of `drawn`."""
    limit_tokens: int
    """Most for which training fits, as far as caps allow; 0: none does."""
    first: int | None
    """Micro-batch of `drawn` at which memory is likely to end; None: at none."""
    drawn: int = DRAWN

    @property
    def said(self) -> str:
        """As a sentence."""
        each, count = " a sample" if self.padded else "", f"{self.drawn} drawn"
        samples = f"{self.samples:,} {'sample' if self.samples == 1 else 'samples'}"
        what = f"of {samples}{', padded' if self.padded else ''}: " if self.samples else "filled up: "
        tokens = f"{self.mean_tokens:,.0f} tokens{each} on average, {self.largest_tokens:,} in the largest of {count}"
        ends = "" if self.first is None else f": out of memory likely at micro-batch {self.first} of {self.drawn}"
        return f"Micro-batches {what}{tokens}; training holds {self.limit_tokens:,}{ends}"


def verdict(job: PostTrainingJob, placement: Placement, *, most: int = 0) -> MicroBatchVerdict:
    """What comes and what fits; `most`: tokens up to which the limit is looked for (0: what the caps allow)."""
    plan, cut = placement.train, fullest(job, placement)
    padded, size = not placement.tokens_per_gpu, placement.samples or placement.train.mbs
    if padded or placement.samples:
        own = max(1, round(job.trained / job.updates * job.algorithm.sequences_per_sample / plan.dp))
        size = min(size, own)
        drawn, cap = tokens_drawn(job, size, packed=not padded), job.longest * (1 if padded else size)
    else:
        size, drawn, cap = 0, np.full(DRAWN, cut.tokens), max(job.longest, ceil(cut.tokens))
    limit = _most(lambda tokens: _fits(job, placement, tokens), most or max(cap, cut.seq_length))
    whole = microbatches(job, plan, job.trained / job.updates, placement.tokens_per_gpu)
    mean = float(np.mean(drawn)) if size else whole.sequences * job.tokens
    return MicroBatchVerdict(
        samples=size,
        padded=padded,
        mean_tokens=mean,
        largest_tokens=cut.seq_length,
        limit_tokens=limit,
        first=first_beyond(drawn, limit),
    )


def _fits(job: PostTrainingJob, placement: Placement, tokens: int) -> bool:
    """Training of a micro-batch of so many tokens is within the GPU."""
    cut = replace(fullest(job, placement), seq_length=shared_tokens(tokens, placement.train), tokens=float(tokens))
    return _within(job, placement, training_memory(job, placement, cut))


def _within(job: PostTrainingJob, placement: Placement, trained: TrainingMemory) -> bool:
    return training_bytes(job, placement, trained) <= job.gpu.memory_bytes


def _most(holds: Callable[[int], bool], cap: int) -> int:
    """The largest number up to `cap` that holds, to FINE; 0 where none does."""
    if holds(cap):
        return cap
    low, high = 0, cap
    while high - low > FINE:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def turning_mean(job: PostTrainingJob, placement: Placement, limit_tokens: int) -> int | None:
    """The largest mean response with which the largest micro-batch is within `limit_tokens`; 0: none is; None: every mean up to
    the cap is, or filled micro-batches are alike."""

    def holds(mean: int) -> bool:
        other = replace(job, responses=replace(job.responses, mean=float(max(mean, 1))))
        return fullest(other, placement).seq_length <= limit_tokens

    cap = job.responses.cap
    if (placement.tokens_per_gpu and not placement.samples) or holds(cap):
        return None
    return _most(holds, cap)


def filled_up(job: PostTrainingJob, placement: Placement) -> PricedPlacement | None:
    """The placement with micro-batches that are filled up to a number of tokens, which holds the longest sample and fits; None
    where none does, or the framework pads."""
    plan = placement.train
    if not job.framework.packs:
        return None
    least = -(-job.longest // plan.cp)
    packed = replace(placement, train=replace(plan, mbs=1), samples=0, tokens_per_gpu=least, forward=PassBatch())
    packed = replace(packed, reference_forward=None)
    found = verdict(job, packed, most=4 * job.longest).limit_tokens
    usual = int(FREE * found / plan.cp) // ROUND * ROUND
    one = price(job, replace(packed, tokens_per_gpu=max(least, usual)))
    return one if one.memory.fits else None


def hanging_on(found: MicroBatchVerdict, mean: int | None) -> str:
    """How the verdict hangs on a mean response that was assumed; `mean`: that at which it turns (`turning_mean`)."""
    if not found.samples:
        return "whether training fits does not hang on it: micro-batches are filled up"
    if mean is None:
        return "training fits with every mean up to the cap"
    return f"training fits up to {mean:,} on average" if mean else "training does not fit with any mean"
