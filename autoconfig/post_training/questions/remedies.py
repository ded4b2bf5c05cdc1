"""Changes of a question that make a job fit, each tried before it is said, and what one more node buys."""

from __future__ import annotations

import math
from dataclasses import replace

from autoconfig.planning.request_fields import MAX_RL_GPUS
from autoconfig.post_training.job import spread_prompts
from autoconfig.post_training.price import PricedPlacement
from autoconfig.post_training.rank import Prices
from autoconfig.specs.errors import GIB
from autoconfig.specs.layouts import divisors

GROWTH = (2, 4, 8, 16)
"""Multiples of the GPUs that are tried where nothing fits."""
Fit = tuple[str, PricedPlacement | None]
"""A change in words, and the first placement with it; None where none fits."""


def one_more_node(prices: Prices, gpus: int) -> float | None:
    """Return the seconds of the quickest step with one more node, None where GPUs are no whole nodes or nothing fits. Where the
    samples do not divide over those GPUs a few more are taken, and their seconds scaled to as many samples."""
    job, node = prices.job, prices.job.gpu.gpus_per_node
    if gpus % node:
        return None
    even = job.with_prompts(spread_prompts(job.prompts, gpus + node))
    if even.prompts != job.prompts:
        prices = prices.changed(even)
    first = prices.first(gpus + node)
    return first.seconds * job.samples / even.samples if first and first.memory.fits else None


def remedy(prices: Prices, gpus: int, chance: float = 0.0) -> Fit:
    """Return one change that makes the job fit with this chance, tried before it is said."""
    trial, job = prices.changed(chance=chance), prices.job
    even = spread_prompts(job.prompts, gpus)
    if even != job.prompts and (one := trial.changed(job.with_prompts(even)).first_likely(gpus)):
        return f"{job.samples:,} samples do not divide over {gpus} GPUs; {even} prompts fit (--prompts {even})", one
    if not prices.placements(gpus):
        return _divided(trial, gpus)
    shorter = max(1024, prices.tokens // 2, round(job.tokens))
    if job.framework.packs and shorter < prices.tokens and (one := trial.changed(tokens=shorter).first_likely(gpus)):
        return f"{shorter:,} tokens of a packed micro-batch fit (--tokens-per-gpu {shorter})", one
    (host, on_host), (more, on_more) = _host_memory(trial, gpus), _more_gpus(trial, gpus)
    if more:
        return f"{more}, or {host}" if host else more, on_host or on_more
    if host:
        return host, on_host
    tried = f"half of the tokens of a packed micro-batch, up to {GROWTH[-1]} times the GPUs, more host memory"
    return f"nothing that was tried fits: {tried}", None


def _more_gpus(prices: Prices, gpus: int) -> Fit:
    """Return the least multiple of the GPUs with which the job fits; empty where none of GROWTH is enough."""
    for more in (gpus * times for times in GROWTH):
        if more <= MAX_RL_GPUS and (one := prices.first_likely(more)):
            return f"{more:,} GPUs fit (--gpus {more})", one
    return "", None


def _host_memory(prices: Prices, gpus: int) -> Fit:
    """Return the least memory of a node's host, a power of two of GiB, with which the job fits, and the quickest placement
    with it; empty where hosts are not what lacks."""
    roomy = prices.changed(replace(prices.job, host_memory_bytes=math.inf))
    needs = [one.memory.host_bytes for one in roomy.bounds(gpus) if roomy.likely(one)]
    if not needs:
        return "", None
    gib = 1 << math.ceil(math.log2(max(min(needs) / GIB, 1.0)))
    size = f"{gib >> 10}TiB" if gib >= 1024 else f"{gib}GiB"
    one = prices.changed(replace(prices.job, host_memory_bytes=gib * GIB)).first_likely(gpus)
    return (f"{size} of host memory a node (--host-memory {size})", one) if one else ("", None)


def _divided(prices: Prices, gpus: int) -> Fit:
    """Of a job without any placement: a minibatch that divides over the GPUs, the nearest first, or the largest number of GPUs
    below these, of powers of two, that fits."""
    job = prices.job
    uneven = f"{job.minibatch:,} samples of a minibatch do not divide over {gpus} GPUs"
    cause = uneven if job.minibatch % gpus else f"no legal plan of training has {gpus} GPUs"
    prices = prices.changed(chance=0.0)
    unit = job.group if job.framework.minibatch_in_prompts else 1
    sizes = [size for size in divisors(job.samples) if size % gpus == 0 and size % unit == 0]
    for size in sorted(sizes, key=lambda size: abs(size - job.minibatch))[:2]:
        if one := prices.changed(replace(job, minibatch=size)).first_likely(gpus):
            return f"{cause}; a minibatch of {size:,} fits (--minibatch {size})", one
    for fewer in [1 << n for n in range(gpus.bit_length() - 1, -1, -1) if 1 << n < gpus]:
        if one := prices.first_likely(fewer):
            return f"{cause}; {fewer:,} GPUs fit (--gpus {fewer})", one
    return f"{cause}; nothing that was tried fits: other minibatches, fewer GPUs", None
