"""What is asked of a serving search: names and numbers as given, and what they may be."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoconfig.serving.request_trace import MAX_TOKENS
from autoconfig.specs.errors import InputError

GOALS = ("throughput", "ttft", "tpot", "gpus", "cost")
MAX_GPUS = 4096
DEFAULT_TOKENS = 1000
"""Input and output tokens of a request where none are given: a row of TensorRT-LLM's performance tables."""
DEFAULT_IMBALANCE = 1.4
"""Rows of the busiest expert rank over the mean: between the even and the power-law rows of the operator tables."""
MIN_CV, MAX_CV = 1e-3, 10.0
"""Standard deviation over mean: what is told from equal lengths, and the most that a gamma distribution is drawn with."""
BESIDE_TRACE = ("isl", "osl", "isl_stddev", "osl_stddev")
"""What a trace says itself."""
MIN_ODD_TPOT_S = 5.0
"""Seconds per token from which a number without a unit was meant in milliseconds."""
MIN_ODD_SECONDS = 100.0
"""The same for any duration without a unit: no one waits so long for a first token."""
MAX_DIGITS = 20
"""Of a number that a message repeats."""
MIN_RATE = 1e-6
"""Requests per second (one in twelve days) below which a rate is not told from none."""


@dataclass(frozen=True, kw_only=True)
class ServeRequest:
    """What the person or program asked, unread. None means not given."""

    model: str | Mapping[str, Any]
    """A name or, over the network, what a config.json would hold."""
    gpus: int
    gpu: str | None = None
    gpus_per_node: int | None = None
    engine: str | None = None
    isl: int | None = None
    osl: int | None = None
    isl_stddev: float | None = None
    osl_stddev: float | None = None
    trace: str | Sequence[Mapping[str, Any]] | None = None
    """A file, or rows with the keys of trace.JSON_KEYS: lengths, arrivals and their rate."""
    ttft_s: float | None = None
    tpot_s: float | None = None
    rate: float = 0.0
    goal: str = "throughput"
    fix: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    prefix_hit: float = 0.0
    draft_tokens: int = 0
    acceptance: float | None = None
    """Chance that a draft token is accepted; goes with draft_tokens."""
    imbalance: float | None = None
    disaggregated: bool = True
    chunked: bool | None = None
    kv_memory_ratio: float | None = None
    price: float | None = None
    top: int = 10
    simulate: int = 3
    calibration: str | None = None
    """File of constants that a study learned; None: the shipped ones."""
    local_files: bool = True
    """Whether model and trace may be files of this machine."""


def check_request(request: ServeRequest) -> None:
    """Raises InputError naming what cannot be used and what is allowed."""
    bounds = (
        ("--gpus", request.gpus, 1, MAX_GPUS),
        ("--rate", request.rate, 0, 1e9),
        ("--prefix-hit", request.prefix_hit, 0, 1),
        ("--draft-tokens", request.draft_tokens, 0, 64),
        ("--acceptance", request.acceptance or 0.0, 0, 1),
        ("--imbalance", DEFAULT_IMBALANCE if request.imbalance is None else request.imbalance, 1, 100),
        ("--top", request.top, 1, 1000),
        ("--simulate", request.simulate, 0, 100),
    )
    for name, value, low, high in bounds:
        if not low <= value <= high:  # also not-a-number; whole numbers may be too large for a float
            raise InputError(f"{name} {str(value)[:MAX_DIGITS]}: use {low:g} to {high:g}")
    if 0 < request.rate < MIN_RATE:
        raise InputError(f"--rate {request.rate:g}: use 0 or at least {MIN_RATE:g}")
    if request.draft_tokens and request.acceptance is None:
        raise InputError(
            f"--draft-tokens {request.draft_tokens} needs --acceptance, the chance from 0 to 1 that a draft token is accepted; "
            "engines report it as their acceptance rate"
        )
    if request.acceptance and not request.draft_tokens:
        raise InputError(f"--acceptance {request.acceptance:g} needs --draft-tokens, the drafts that a step checks, like 3")
    _check_lengths(request)
    for name, limit in (("--ttft", request.ttft_s), ("--tpot", request.tpot_s), ("--price", request.price)):
        if limit is not None and not (math.isfinite(limit) and 0 < limit <= 1e9):
            raise InputError(f"{name} {limit:g}: use a positive number")
    if request.tpot_s is not None and request.tpot_s >= MIN_ODD_TPOT_S:
        raise InputError(f"--tpot {request.tpot_s:g} is {request.tpot_s:g} seconds a token: say --tpot {request.tpot_s:g}ms?")
    ratio = request.kv_memory_ratio
    if ratio is not None and not 0 < ratio <= 1:
        raise InputError(f"--kv-memory-ratio {ratio:g}: use a share above 0, at most 1")
    if request.goal not in GOALS:
        raise InputError(f"--goal {request.goal!r}: use {', '.join(GOALS)}")
    if request.goal == "cost" and request.price is None:
        raise InputError("--goal cost needs --price, the money that a GPU takes per hour")
    if request.goal == "gpus" and not request.rate and request.trace is None:
        raise InputError("--goal gpus needs --rate, the requests per second that the GPUs must carry (or a --trace)")


def _check_lengths(request: ServeRequest) -> None:
    if request.trace is not None:
        if given := [f"--{name.replace('_', '-')}" for name in BESIDE_TRACE if getattr(request, name) is not None]:
            raise InputError(f"{' and '.join(given)} beside --trace: the trace has the lengths; leave one of them out")
        return
    for name, mean, spread in (("isl", request.isl, request.isl_stddev), ("osl", request.osl, request.osl_stddev)):
        if mean is not None and not 1 <= mean <= MAX_TOKENS:
            raise InputError(f"--{name} {str(mean)[:MAX_DIGITS]}: use 1 to {MAX_TOKENS:,}")
        most = MAX_CV * (DEFAULT_TOKENS if mean is None else mean)
        if spread is not None and not (spread == 0 or most * MIN_CV / MAX_CV <= spread <= most):
            raise InputError(
                f"--{name}-stddev {str(spread)[:MAX_DIGITS]}: use 0, or {most * MIN_CV / MAX_CV:g} to {most:g} tokens "
                f"({MIN_CV:g} to {MAX_CV:g} times the mean)"
            )


def seconds(text: str) -> float:
    """A duration like 50ms, 2s or 0.05 (seconds). Raises ValueError with what is allowed."""
    wanted = text.strip().lower()
    for suffix, factor in (("ms", 1e-3), ("us", 1e-6), ("s", 1.0), ("", 1.0)):
        if wanted.endswith(suffix):
            try:
                value = float(wanted.removesuffix(suffix)) * factor
            except ValueError:
                break
            if not suffix and MIN_ODD_SECONDS <= value < math.inf:
                raise ValueError(f"{text[:40]!r} without a unit is {value:,.6g} seconds; write {wanted}ms or {wanted}s")
            if math.isfinite(value) and value > 0:
                return value
            break
    raise ValueError(f"{text[:40]!r} is no duration; write 50ms, 2s or 0.05")
