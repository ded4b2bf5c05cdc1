"""Whether training and passes get through the micro-batches that come, at which memory ends, and on which mean that hangs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, exp
from statistics import NormalDist

import numpy as np

from autoconfig.post_training.frameworks import section
from autoconfig.post_training.job import PassBatch, Placement, PostTrainingJob
from autoconfig.post_training.memory import (
    OVERRUN_CHANCE,
    own_passes,
    pass_bytes,
    training_bytes,
    training_chance,
    training_memory,
)
from autoconfig.post_training.micro_batches import (
    DRAWN,
    first_beyond,
    largest_of,
    own_samples,
    padded_drawn,
    tokens_drawn,
)
from autoconfig.post_training.passes import Microbatches, microbatches, pass_plan, shared_tokens
from autoconfig.post_training.price import PricedPlacement, price
from autoconfig.specs.errors import chance_text
from autoconfig.specs.layouts import divisors
from autoconfig.specs.plan import TrainPlan

FINE = 64
"""Tokens to which a limit is found."""
ROUND = 1024
"""Of which proposed tokens are a multiple."""
MOST = 32_768
"""Tokens of a GPU up to which filled micro-batches are proposed, where a sample is not longer: of larger ones no step is
quicker."""


@dataclass(frozen=True, kw_only=True)
class MicroBatchVerdict:
    """Micro-batches of training or of a pass against what fits; padded: tokens of each sample."""

    phase: str
    """`training` or `a pass of log-probabilities`."""
    samples: int
    """Of a micro-batch; 0: filled up to tokens."""
    padded: bool
    mean_tokens: float
    largest_tokens: int
    """Of `drawn`."""
    limit_tokens: int
    """Most that fit, as far as was looked; 0: none do."""
    at_least: bool
    """More than `limit_tokens` may fit: it was not looked further."""
    first: int | None
    """Micro-batch of `drawn` at which memory is likely to end; None: at none."""
    drawn: int = DRAWN

    @property
    def said(self) -> str:
        """Return the verdict as a sentence."""
        each, count = " a sample" if self.padded else "", f"{self.drawn} drawn"
        samples = f"{self.samples:,} {'sample' if self.samples == 1 else 'samples'}"
        what = f"of {samples}{', padded' if self.padded else ''}: " if self.samples else "filled up: "
        tokens = f"{self.mean_tokens:,.0f} tokens{each} on average, {self.largest_tokens:,} in the largest of {count}"
        ends = "" if self.first is None else f": out of memory likely at micro-batch {self.first} of {self.drawn}"
        of = "" if self.phase == "training" else f"of {self.phase} "
        least = "at least " * self.at_least
        return f"Micro-batches {of}{what}{tokens}; {self.phase} holds {least}{self.limit_tokens:,}{ends}"


def verdict(job: PostTrainingJob, placement: Placement) -> MicroBatchVerdict:
    """Judge the micro-batches of training: what comes and what fits."""
    samples = job.trained / job.updates
    return _judged(
        job, placement.train, samples, placement.tokens_per_gpu, placement.samples, "training", _trains(job, placement)
    )


def pass_verdicts(job: PostTrainingJob, placement: Placement) -> tuple[MicroBatchVerdict, ...]:
    """Judge those of every pass that has micro-batches of its own."""
    trained, verdicts = training_memory(job, placement), []
    for batch in own_passes(job, placement):
        plan, tokens = pass_plan(placement, batch)

        def holds(cut: Microbatches, plan: TrainPlan = plan) -> bool:
            return pass_bytes(job, placement, trained, plan, cut) <= job.gpu.memory_bytes

        verdicts.append(_judged(job, plan, job.trained, tokens, batch.samples, "a pass of log-probabilities", holds))
    return tuple(verdicts)


def _trains(job: PostTrainingJob, placement: Placement) -> Callable[[Microbatches], bool]:
    """Return whether training with a micro-batch is within the GPU."""
    return lambda cut: training_bytes(job, placement, training_memory(job, placement, cut)) <= job.gpu.memory_bytes


def _judged(
    job: PostTrainingJob,
    plan: TrainPlan,
    samples: float,
    tokens_per_gpu: int,
    size: int,
    phase: str,
    holds: Callable[[Microbatches], bool],
) -> MicroBatchVerdict:
    """Return the micro-batches into which these samples are cut, as `largest_of` has them."""
    cut = largest_of(job, plan, samples, tokens_per_gpu, size)
    own = own_samples(job, plan, samples)
    if not tokens_per_gpu:
        size, drawn, cap = min(plan.mbs, own), padded_drawn(job, plan, samples), job.longest
    elif size:
        size = min(size, own)
        drawn, cap = tokens_drawn(job, size, packed=True), job.longest * size
    else:
        drawn, cap = np.full(DRAWN, cut.tokens), max(job.longest, ceil(cut.tokens))
    cap = max(cap, cut.seq_length)
    limit = _most(lambda tokens: holds(_with_tokens(cut, tokens, plan)), cap)
    mean = float(np.mean(drawn)) if size else microbatches(job, plan, samples, tokens_per_gpu).sequences * job.tokens
    return MicroBatchVerdict(
        phase=phase,
        samples=size,
        padded=not tokens_per_gpu,
        mean_tokens=mean,
        largest_tokens=cut.seq_length,
        limit_tokens=limit,
        at_least=limit == cap,
        first=first_beyond(drawn, limit),
    )


def _with_tokens(cut: Microbatches, tokens: int, plan: TrainPlan) -> Microbatches:
    return replace(cut, seq_length=shared_tokens(tokens, plan), tokens=float(tokens))


def _most(holds: Callable[[int], bool], cap: int) -> int:
    """Return the largest number up to `cap` that holds, to FINE; 0 where none does."""
    if holds(cap):
        return cap
    low, high = 0, cap
    while high - low > FINE:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def all_filled(job: PostTrainingJob, placement: Placement) -> bool:
    """Return whether micro-batches of training and of passes are filled up."""
    own = all(batch.tokens_per_gpu and not batch.samples for batch in own_passes(job, placement))
    return own and placement.tokens_per_gpu > 0 and not placement.samples


def surely(job: PostTrainingJob, placement: Placement, chance: float) -> bool:
    """Return whether training and passes have this chance to fit."""
    return training_chance(job, placement, training_memory(job, placement)) >= chance


MEANS = 9
"""Means over which a chance is taken where a file says none."""


def chance_over_means(job: PostTrainingJob, priced: PricedPlacement) -> float:
    """Return the chance to fit over mean responses as published runs with such caps have them: lognormal around what is
    assumed (data/post_training.toml, `[unknowns]`), at most the cap."""
    memory, placement = priced.memory, priced.placement
    if all_filled(job, placement):
        return memory.chance
    spread, lengths = section("unknowns")["response_length"], job.responses
    chances = []
    for share in (np.arange(MEANS) + 0.5) / MEANS:
        mean = lengths.mean * exp(spread * NormalDist().inv_cdf(float(share)))
        other = replace(job, responses=replace(lengths, mean=min(max(mean, 1.0), float(lengths.cap))))
        chances.append(training_chance(other, placement, training_memory(other, placement)))
    return min(memory.generation_fit, sum(chances) / MEANS, memory.host_fit)


def turning_mean(job: PostTrainingJob, placement: Placement, chance: float) -> int | None:
    """Return the largest mean response with which training and passes have this chance to fit; 0: none has; None: every mean
    up to the cap has."""

    def holds(mean: int) -> bool:
        return surely(replace(job, responses=replace(job.responses, mean=float(max(mean, 1)))), placement, chance)

    return None if holds(job.responses.cap) else _most(holds, job.responses.cap)


def hanging_on(job: PostTrainingJob, placement: Placement, chance: float) -> str:
    """Return how the verdict hangs on a mean response that was assumed, where training and passes are to fit with this
    chance."""
    what = "training and its passes fit" if own_passes(job, placement) else "training fits"
    if all_filled(job, placement):
        return f"whether {what} does not hang on it: micro-batches are filled up"
    mean, sure = turning_mean(job, placement, chance), f"with a chance of {chance_text(chance)}"
    if mean is None:
        return f"{what} {sure} at every mean up to the cap"
    return f"{what} {sure} up to {mean:,} on average" if mean else f"at no mean {what} {sure}"


def with_fewer(job: PostTrainingJob, placement: Placement, chance: float) -> tuple[int, PricedPlacement] | None:
    """Return (samples, the placement with micro-batches of so many): the most of which training and passes have this chance
    to fit, else one; None where there is one already, or micro-batches are filled up."""
    size = placement.samples or placement.train.mbs
    if size == 1 or (placement.tokens_per_gpu and not placement.samples):
        return None
    tried = [(count, _of_samples(placement, count)) for count in reversed(divisors(size)[:-1])]
    count, placed = next((one for one in tried if surely(job, one[1], chance)), tried[-1])
    return count, price(job, placed)


def _of_samples(placement: Placement, count: int) -> Placement:
    """Return the placement with at most so many samples in micro-batches of training and of passes."""
    size = placement.samples or placement.train.mbs
    fewer = replace(placement, forward=_pass_of(placement.forward, count))
    if placement.reference_forward:
        fewer = replace(fewer, reference_forward=_pass_of(placement.reference_forward, count))
    if placement.samples:
        return replace(fewer, samples=count, tokens_per_gpu=max(1, placement.tokens_per_gpu * count // size))
    return replace(fewer, train=replace(placement.train, mbs=count))


def _pass_of(batch: PassBatch, count: int) -> PassBatch:
    size = batch.samples or batch.mbs
    if size <= count:
        return batch
    tokens = batch.tokens_per_gpu * count // size
    return replace(batch, mbs=min(batch.mbs, count), samples=min(batch.samples, count), tokens_per_gpu=tokens)


def filled_up(job: PostTrainingJob, placement: Placement, chance: float) -> PricedPlacement | None:
    """Return the placement with micro-batches of training and of passes that are filled up to a number of tokens: the most
    of which training has this chance to fit, else as many as are within the GPU, and at least the longest sample. None where
    that does not fit, or the framework pads."""
    plan = placement.train
    if not job.framework.packs:
        return None
    least = -(-job.longest // plan.cp)
    packed = replace(placement, train=replace(plan, mbs=1), samples=0, tokens_per_gpu=least, forward=PassBatch())
    packed = replace(packed, reference_forward=None)
    own = ceil(own_samples(job, plan, job.trained / job.updates) * job.tokens / plan.cp)

    def sure(tokens: int) -> bool:
        return surely(job, replace(packed, tokens_per_gpu=tokens), max(chance, OVERRUN_CHANCE))

    tokens_held = _most(sure, max(least, min(MOST, own))) or verdict(job, packed).limit_tokens // plan.cp
    one = price(job, replace(packed, tokens_per_gpu=max(least, tokens_held // ROUND * ROUND)))
    return one if one.memory.fits else None
