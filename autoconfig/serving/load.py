"""The load of a serving question: lengths drawn around means, or a trace; how many requests arrive in a second."""

from __future__ import annotations

from pathlib import Path

from autoconfig.serving.request import DEFAULT_TOKENS, ServeRequest
from autoconfig.serving.request_trace import read_trace, trace_of
from autoconfig.specs.errors import InputError
from autoconfig.time_model.serving.workload import Drawn, Workload


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
