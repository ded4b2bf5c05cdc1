"""Changes of a question that make a job fit, each tried before it is said, and what one more node buys."""

from __future__ import annotations

import math
from dataclasses import replace

from autoconfig.post_training.job import PostTrainingJob
from autoconfig.post_training.placements import placements
from autoconfig.post_training.ranking import PricedPlacement, Prices
from autoconfig.specs.errors import GIB
from autoconfig.specs.layouts import divisors

MAX_GPUS = 16_384
GROWTH = (2, 4, 8, 16)
"""Multiples of the GPUs that are tried where nothing fits."""


def one_more_node(prices: Prices, gpus: int) -> float | None:
    """Seconds of the quickest step with one more node, None where GPUs are no whole nodes or nothing fits. Where the samples do
    not divide over those GPUs a few more are taken, and their seconds scaled to as many samples."""
    job, node = prices.job, prices.job.gpu.gpus_per_node
    if gpus % node:
        return None
    even = with_prompts(job, spread_prompts(job.prompts, gpus + node))
    if even.prompts != job.prompts:
        prices = Prices(even, prices.tokens, prices.staleness, prices.known, prices.chance)
    first = prices.first(gpus + node)
    return first.seconds * job.samples / even.samples if first and first.memory.fits else None


def with_prompts(job: PostTrainingJob, prompts: int) -> PostTrainingJob:
    """The job with so many prompts; one optimizer step stays one."""
    return replace(job, prompts=prompts, minibatch=prompts * job.group if job.minibatch == job.samples else job.minibatch)


Fit = tuple[str, PricedPlacement | None]
"""A change in words, and the first placement with it; None where none fits."""


def remedy(job: PostTrainingJob, gpus: int, tokens: int, staleness: int, chance: float = 0.0) -> Fit:
    """One change that makes the job fit with this chance, tried before it is said."""
    even = spread_prompts(job.prompts, gpus)
    if even != job.prompts and (one := _first_fit(with_prompts(job, even), gpus, tokens, staleness, chance)):
        return f"{job.samples:,} samples do not divide over {gpus} GPUs; {even} prompts fit (--prompts {even})", one
    if next(placements(job, gpus, tokens, staleness), None) is None:
        uneven = f"{job.minibatch:,} samples of a minibatch do not divide over {gpus} GPUs"
        cause = uneven if job.minibatch % gpus else f"no legal plan of training has {gpus} GPUs"
        words, changed = _divided(job, gpus, tokens, staleness)
        return f"{cause}; {words}", changed
    shorter = max(1024, tokens // 2, round(job.tokens))
    if job.framework.packs and shorter < tokens and (one := _first_fit(job, gpus, shorter, staleness, chance)):
        return f"{shorter:,} tokens of a packed micro-batch fit (--tokens-per-gpu {shorter})", one
    host, on_host = _host_memory(job, gpus, tokens, staleness, chance)
    for times in GROWTH:
        if gpus * times <= MAX_GPUS and (one := _first_fit(job, gpus * times, tokens, staleness, chance)):
            more = f"{gpus * times:,} GPUs fit (--gpus {gpus * times})"
            return f"{more}, or {host}" if host else more, on_host or one
    if host:
        return host, on_host
    tried = f"half of the tokens of a packed micro-batch, up to {GROWTH[-1]} times the GPUs, more host memory"
    return f"nothing that was tried fits: {tried}", None


def _host_memory(job: PostTrainingJob, gpus: int, tokens: int, staleness: int, chance: float) -> Fit:
    """The least memory of a node's host, a power of two of GiB, with which the job fits, and the quickest placement with it;
    empty where hosts are not what lacks."""
    roomy = Prices(replace(job, host_memory_bytes=math.inf), tokens, staleness, None, chance)
    needs = [one.memory.host_bytes for one in roomy.bounds(gpus) if roomy.likely(one)]
    if not needs:
        return "", None
    gib = 1 << math.ceil(math.log2(max(min(needs) / GIB, 1.0)))
    size = f"{gib >> 10}TiB" if gib >= 1024 else f"{gib}GiB"
    one = _first_fit(replace(job, host_memory_bytes=gib * GIB), gpus, tokens, staleness, chance)
    return (f"{size} of host memory a node (--host-memory {size})", one) if one else ("", None)


def _divided(job: PostTrainingJob, gpus: int, tokens: int, staleness: int) -> Fit:
    """Of a job without any placement: a minibatch that divides over the GPUs, the nearest first, or the largest number of GPUs
    below these, of powers of two, that fits."""
    unit = job.group if job.framework.minibatch_in_prompts else 1
    sizes = [size for size in divisors(job.samples) if size % gpus == 0 and size % unit == 0]
    for size in sorted(sizes, key=lambda size: abs(size - job.minibatch))[:2]:
        if one := _first_fit(replace(job, minibatch=size), gpus, tokens, staleness, 0.0):
            return f"a minibatch of {size:,} fits (--minibatch {size})", one
    for fewer in [1 << n for n in range(gpus.bit_length() - 1, -1, -1) if 1 << n < gpus]:
        if one := _first_fit(job, fewer, tokens, staleness, 0.0):
            return f"{fewer:,} GPUs fit (--gpus {fewer})", one
    return "nothing that was tried fits: other minibatches, fewer GPUs", None


def _first_fit(job: PostTrainingJob, gpus: int, tokens: int, staleness: int, chance: float) -> PricedPlacement | None:
    prices = Prices(job, tokens, staleness, None, chance)
    return prices.first(gpus, prices.likely)


def spread_prompts(prompts: int, gpus: int) -> int:
    """So many prompts or a few more, so that their samples divide over the GPUs."""
    odd = gpus
    while odd % 2 == 0:
        odd //= 2
    return -(-prompts // odd) * odd
