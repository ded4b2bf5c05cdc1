"""The load of a serving question: lengths drawn around means, or a trace; how many requests arrive in a second."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from autoconfig.serving.request_trace import MOST_TOKENS, read_trace, trace_of
from autoconfig.specs.errors import InputError
from autoconfig.time_model.serving.workload import Drawn, Workload

if TYPE_CHECKING:
    from autoconfig.serving.question import ServeRequest

DEFAULT_TOKENS = 1000
"""Input and output tokens of a request where none are given: a row of TensorRT-LLM's performance tables."""
DEFAULT_IMBALANCE = 1.4
"""Rows of the busiest expert rank over the mean: between the even and the power-law rows of the operator tables."""
LEAST_CV, MOST_CV = 1e-3, 10.0
"""Standard deviation over mean: what is told from equal lengths, and the most that a gamma distribution is drawn with."""
BESIDE_TRACE = ("isl", "osl", "isl_stddev", "osl_stddev")
"""What a trace says itself."""
MOST_DIGITS = 20


def check_workload(request: ServeRequest) -> None:
    """Raises InputError naming what cannot be used and what is allowed."""
    if request.trace is not None:
        if given := [f"--{name.replace('_', '-')}" for name in BESIDE_TRACE if getattr(request, name) is not None]:
            raise InputError(f"{' and '.join(given)} beside --trace: the trace has the lengths; leave one of them out")
        return
    for name, mean, spread in (("isl", request.isl, request.isl_stddev), ("osl", request.osl, request.osl_stddev)):
        if mean is not None and not 1 <= mean <= MOST_TOKENS:
            raise InputError(f"--{name} {str(mean)[:MOST_DIGITS]}: use 1 to {MOST_TOKENS:,}")
        most = MOST_CV * (DEFAULT_TOKENS if mean is None else mean)
        if spread is not None and not (spread == 0 or most * LEAST_CV / MOST_CV <= spread <= most):
            raise InputError(
                f"--{name}-stddev {str(spread)[:MOST_DIGITS]}: use 0, or {most * LEAST_CV / MOST_CV:g} to {most:g} tokens "
                f"({LEAST_CV:g} to {MOST_CV:g} times the mean)"
            )


def read_workload(request: ServeRequest) -> tuple[Workload, float]:
    """(what is asked, requests per second; 0: a queue that is never empty). --rate stretches a trace's times. Raises
    InputError."""
    if request.trace is None:
        isl, osl = (float(DEFAULT_TOKENS if value is None else value) for value in (request.isl, request.osl))
        return Drawn.of(isl, osl, request.isl_stddev or 0.0, request.osl_stddev or 0.0), request.rate
    if not isinstance(request.trace, str):
        trace = trace_of(request.trace)
    elif request.local_files:
        trace = read_trace(Path(request.trace))
    else:
        raise InputError("trace: give the requests as a list, not the name of a file")
    return (trace.at_rate(request.rate), request.rate) if request.rate else (trace, trace.rate)
