"""What a question or a file does not say, and how much each of it widens the band of a step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import exp, hypot, log, sqrt

from autoconfig.post_training.frameworks import STANDARD_90, section
from autoconfig.post_training.job import Placement, PostTrainingJob
from autoconfig.post_training.price import PricedPlacement
from autoconfig.post_training.rank import Prices

LEAST = 1e-3
"""Of ln(step), below which nothing is said."""


@dataclass(frozen=True, kw_only=True)
class Unknown:
    """Something that was assumed; `field`: the option that says it."""

    field: str
    spread: float
    """Standard deviation of ln(step) that it brings."""


def unknowns(prices: Prices, first: PricedPlacement, unsaid: Iterable[str]) -> list[Unknown]:
    """Of `unsaid` fields those that move the step of this placement, the one that moves it most first.

    Each is priced one standard deviation of published runs below and above what was assumed (data/post_training.toml,
    `[unknowns]`), a framework's release with eager engines and with CUDA graphs; half of the difference of ln(step) is what it
    brings.
    """
    moving = []
    for name in unsaid:
        sides = _sides(prices.job, first.placement, name)
        low, high = (prices.changed(job).price(placed).seconds for job, placed in sides)
        spread = abs(log(high / low)) / 2.0
        if spread > LEAST:
            moving.append(Unknown(field=name, spread=spread))
    return sorted(moving, key=lambda one: -one.spread)


def _sides(job: PostTrainingJob, placed: Placement, name: str) -> list[tuple[PostTrainingJob, Placement]]:
    """Return the job and placement below and above what was assumed of a field."""
    if name == "version":
        return [(job, replace(placed, cuda_graphs=graphs)) for graphs in (False, True)]
    spread, lengths = section("unknowns")[name], job.responses
    if name == "response_length":
        means = [min(max(lengths.mean * exp(sign * spread), 1.0), float(lengths.cap)) for sign in (-1.0, 1.0)]
        return [(replace(job, responses=replace(lengths, mean=mean)), placed) for mean in means]
    if name == "max_response_length":
        caps = [max(round(lengths.cap * exp(sign * spread)), round(lengths.mean) + 1) for sign in (-1.0, 1.0)]
        return [(replace(job, responses=replace(lengths, cap=cap)), placed) for cap in caps]
    return [(replace(job, agents=replace(job.agents, tool_seconds=seconds)), placed) for seconds in spread]


def widened(one: PricedPlacement, unsaid: Iterable[Unknown]) -> PricedPlacement:
    """Return the placement with the band of its constants and of what is not known, which are independent."""
    own = log(one.band[1] / one.seconds)
    width = exp(hypot(own, *(STANDARD_90 * unknown.spread for unknown in unsaid)))
    return replace(one, band=(one.seconds / width, one.seconds * width))


def band_where_said(one: PricedPlacement, unknown: Unknown) -> tuple[float, float]:
    """Return the band of a widened placement were this one of its unknowns said with the value that is assumed."""
    width = exp(sqrt(max(log(one.band[1] / one.seconds) ** 2 - (STANDARD_90 * unknown.spread) ** 2, 0.0)))
    return one.seconds / width, one.seconds * width
