"""What is asked of a serving search: names and numbers as given, and what they may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoconfig.planning.fields import check_bounds, field_values
from autoconfig.planning.request_fields import GOALS, SERVED_MODEL, SERVING, SERVING_GPUS
from autoconfig.serving.request_trace import MAX_TOKENS
from autoconfig.specs.errors import InputError, option

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


def request_of(given: Mapping[str, Any]) -> ServeRequest:
    """A ServeRequest from what any edge was given, by the names of the fields; what is no field of it is not read. Raises
    InputError."""
    missing = [option(field.name) for field in (SERVED_MODEL, SERVING_GPUS) if given.get(field.name) is None]
    if missing:
        raise InputError(f"Missing option {' and '.join(missing)}.")
    return ServeRequest(**field_values(SERVING, given))


def check_request(request: ServeRequest) -> None:
    """Raises InputError naming what cannot be used and what is allowed."""
    check_bounds(SERVING, request)
    if 0 < request.rate < MIN_RATE:
        raise InputError(f"{option('rate')} {request.rate:g}: use 0 or at least {MIN_RATE:g}")
    if request.draft_tokens and request.acceptance is None:
        raise InputError(
            f"{option('draft_tokens')} {request.draft_tokens} needs {option('acceptance')}, the chance from 0 to 1 that a "
            "draft token is accepted; engines report it as their acceptance rate"
        )
    if request.acceptance and not request.draft_tokens:
        raise InputError(
            f"{option('acceptance')} {request.acceptance:g} needs {option('draft_tokens')}, the drafts that a step checks, "
            "like 3"
        )
    _check_lengths(request)
    tpot = request.tpot_s
    if tpot is not None and tpot >= MIN_ODD_TPOT_S:
        raise InputError(f"{option('tpot')} {tpot:g} is {tpot:g} seconds a token: say {option('tpot')} {tpot:g}ms?")
    if request.goal not in GOALS:
        raise InputError(f"{option('goal')} {request.goal!r}: use {', '.join(GOALS)}")
    if request.goal == "cost" and request.price is None:
        raise InputError(f"{option('goal')} cost needs {option('price')}, the money that a GPU takes per hour")
    if request.goal == "gpus" and not request.rate and request.trace is None:
        raise InputError(
            f"{option('goal')} gpus needs {option('rate')}, the requests per second that the GPUs must carry "
            f"(or a {option('trace')})"
        )


def _check_lengths(request: ServeRequest) -> None:
    if request.trace is not None:
        if given := [option(name) for name in BESIDE_TRACE if getattr(request, name) is not None]:
            raise InputError(
                f"{' and '.join(given)} beside {option('trace')}: the trace has the lengths; leave one of them out"
            )
        return
    for name, mean, spread in (("isl", request.isl, request.isl_stddev), ("osl", request.osl, request.osl_stddev)):
        if mean is not None and not 1 <= mean <= MAX_TOKENS:
            raise InputError(f"{option(name)} {str(mean)[:MAX_DIGITS]}: use 1 to {MAX_TOKENS:,}")
        most = MAX_CV * (DEFAULT_TOKENS if mean is None else mean)
        if spread is not None and not (spread == 0 or most * MIN_CV / MAX_CV <= spread <= most):
            raise InputError(
                f"{option(name + '_stddev')} {str(spread)[:MAX_DIGITS]}: use 0, or {most * MIN_CV / MAX_CV:g} to {most:g} "
                f"tokens ({MIN_CV:g} to {MAX_CV:g} times the mean)"
            )
