"""What is asked of a serving search, and what it may be; traces of requests, as files that are published or rows of a question.

    Azure LLM inference traces   CSV  TIMESTAMP,ContextTokens,GeneratedTokens            (date and time, or seconds)
    BurstGPT                     CSV  Timestamp,...,Request tokens,Response tokens,...   (seconds)
    Mooncake                     JSON lines {"timestamp": ms, "input_length": n, "output_length": n, ...}

Sources: github.com/Azure/AzurePublicDataset, github.com/HPMLL/BurstGPT, github.com/kvcache-ai/Mooncake (FAST25-release/traces).
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from autoconfig.planning.request_fields import GOALS, SERVED_MODEL, SERVING, SERVING_GPUS
from autoconfig.planning.resolve import check_bounds, field_values
from autoconfig.specs.errors import InputError, option, refuse
from autoconfig.specs.files import read_text
from autoconfig.time_model.serving.workload import Trace

MAX_FILE_BYTES = 64 * 2**20
MAX_REQUESTS = 100_000
MAX_TOKENS = 2_000_000
"""Of a prompt, and of an answer."""
MAX_SECONDS = 1e9
SHOWN = 40
CSV_COLUMNS = (("TIMESTAMP", "ContextTokens", "GeneratedTokens"), ("Timestamp", "Request tokens", "Response tokens"))
JSON_KEYS = ("timestamp", "input_length", "output_length")
FORMATS = (
    f"CSV with the columns {' or '.join(','.join(names) for names in CSV_COLUMNS)}, or JSON lines such as "
    '{"timestamp": 0, "input_length": 1000, "output_length": 500} (milliseconds)'
)
Raw = tuple[str, float, int, int]
"""(where it stands, seconds, input tokens, output tokens)."""


def read_trace(path: Path) -> Trace:
    """The trace of a file. Raises FileError where it cannot be read, InputError where it is no trace."""
    text = read_text(path, f"{FORMATS} ({option('trace')})", MAX_FILE_BYTES)
    start = text.lstrip()[:1]
    return _checked(_json_lines(text, str(path)) if start == "{" else _csv(text, str(path)), str(path))


def trace_of(rows: Iterable[Mapping[str, Any]]) -> Trace:
    """The trace of rows with the keys of JSON lines. Raises InputError."""
    return _checked((_entry(row, f"trace row {number}") for number, row in enumerate(rows, 1)), "trace")


def _json_lines(text: str, source: str) -> Iterator[Raw]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{source} line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where} is not valid JSON ({str(error)[:SHOWN]}): one object a line") from error
        yield _entry(row, where)


def _entry(row: object, where: str) -> Raw:
    if not isinstance(row, Mapping):
        raise InputError(f"{where} is no object: write " + FORMATS.split("such as ")[1])
    if missing := [key for key in JSON_KEYS if key not in row]:
        raise InputError(f"{where} lacks {', '.join(missing)}: write " + FORMATS.split("such as ")[1])
    time, *lengths = (row[key] for key in JSON_KEYS)
    if isinstance(time, bool) or not isinstance(time, int | float) or not abs(time) <= MAX_SECONDS * 1e3:
        raise InputError(f"{where}: timestamp {str(time)[:SHOWN]!r}: a number of milliseconds")
    counts = [_tokens(value, key, where) for key, value in zip(JSON_KEYS[1:], lengths, strict=True)]
    return where, time * 1e-3, counts[0], counts[1]


def _csv(text: str, source: str) -> Iterator[Raw]:
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        header = [name.strip() for name in next(reader)]
        names = next((names for names in CSV_COLUMNS if set(names) <= set(header)), None)
        if names is None:
            found = ",".join(header)[: 2 * SHOWN]
            raise InputError(f"{option('trace')} {source} line 1: the columns {found!r} are of no known trace; give {FORMATS}")
        places = [header.index(name) for name in names]
        for cells in reader:
            if not cells:
                continue
            where = f"{source} line {reader.line_num}"
            if len(cells) <= max(places):
                raise InputError(f"{where} has {len(cells)} cells, the header {len(header)}")
            time, *lengths = (cells[place].strip() for place in places)
            counts = [_tokens(value, name, where) for name, value in zip(names[1:], lengths, strict=True)]
            yield where, _moment(time, names[0], where), counts[0], counts[1]
    except csv.Error as error:
        raise InputError(f"{option('trace')} {source} line {reader.line_num} is no CSV: {error}") from error


def _tokens(value: object, name: str, where: str) -> int:
    text = str(value)
    if not isinstance(value, bool) and text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= MAX_TOKENS:
        return int(text)
    raise InputError(f"{where}: {name} {text[:SHOWN]!r}: a whole number of tokens from 1 to {MAX_TOKENS:,}")


def _moment(text: str, name: str, where: str) -> float:
    """Seconds from a number or a date and time (UTC where no zone is given)."""
    try:
        seconds = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
            seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            seconds = math.nan
    if math.isfinite(seconds):
        return seconds
    raise InputError(f"{where}: {name} {text[:SHOWN]!r}: a date and time such as 2023-11-16 18:15:46.680, or seconds")


def _checked(rows: Iterable[Raw], source: str) -> Trace:
    kept: list[Raw] = []
    for row in rows:
        if kept and row[1] < kept[-1][1]:
            raise InputError(f"{row[0]} arrives before the one above it: sort the requests by their time")
        if len(kept) == MAX_REQUESTS:
            raise InputError(f"{row[0]}: a trace has at most {MAX_REQUESTS:,} requests; cut a part of it")
        kept.append(row)
    if len(kept) < 2 or not 1e-6 <= kept[-1][1] - kept[0][1] <= MAX_SECONDS:
        what = f"{len(kept):,} request{'s' * (len(kept) != 1)}" if len(kept) < 2 else "no usable span of time"
        raise InputError(
            f"{source} holds {what}; a trace needs at least 2 requests, the last some time after the first "
            f"(for requests that all wait, use {option('isl')} and {option('osl')})"
        )
    _, *columns = zip(*kept, strict=True)
    arrival, inputs, outputs = (np.asarray(column, dtype=np.float64) for column in columns)
    return Trace(arrival_s=arrival - arrival[0], input_tokens=inputs, output_tokens=outputs)


DEFAULT_TOKENS = 1000
"""Input and output tokens of a request where none are given: a row of TensorRT-LLM's performance tables."""
MIN_CV, MAX_CV = 1e-3, 10.0
"""Standard deviation over mean: what is told from equal lengths, and the most that a gamma distribution is drawn with."""
BESIDE_TRACE = ("isl", "osl", "isl_stddev", "osl_stddev")
MAX_DIGITS = 20
MIN_RATE = 1e-6
"""Requests per second (one in twelve days) below which a rate is not told from none."""


@dataclass(frozen=True, kw_only=True)
class ServeRequest:
    """What the person or program asked, unread. None means not given."""

    model: str | Mapping[str, Any]
    """A name or, over the network, what a config.json would hold."""
    gpus: int
    like: str | None = None
    """Family of Hugging Face as which a config.json is read."""
    download: bool = False
    """Whether the config.json of a hub's model may be fetched."""
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
    ttft_p95_s: float | None = None
    ttft_p99_s: float | None = None
    tpot_p95_s: float | None = None
    tpot_p99_s: float | None = None
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
    release: str = ""
    """Of vLLM or SGLang; empty: the newest that is known."""
    max_num_seqs: int | None = None
    max_model_len: int | None = None
    enforce_eager: bool = False
    max_loras: int = 0
    max_lora_rank: int | None = None
    draft_method: str | None = None
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


TAILS = ("ttft_p95", "ttft_p99", "tpot_p95", "tpot_p99")
"""Limits of percentiles, which only the simulation knows."""


def tail_limits(request: ServeRequest) -> dict[str, float]:
    """Those of TAILS that were asked, in seconds."""
    return {name: seconds for name in TAILS if (seconds := getattr(request, f"{name}_s")) is not None}


def check_request(request: ServeRequest) -> None:
    """Raises InputError naming what cannot be used and what is allowed."""
    check_bounds(SERVING, request)
    _check_lengths(request)
    tails, draft, acceptance = [*tail_limits(request)], request.draft_tokens, request.acceptance
    refuse(
        (0 < request.rate < MIN_RATE, f"{option('rate')} {request.rate:g}: use 0 or at least {MIN_RATE:g}"),
        (
            draft and acceptance is None,
            f"{option('draft_tokens')} {draft} needs {option('acceptance')}, the chance from 0 to 1 that a draft token is "
            "accepted; engines report it as their acceptance rate",
        ),
        (
            acceptance and not draft,
            f"{option('acceptance')} {acceptance or 0:g} needs {option('draft_tokens')}, the drafts that a step checks, like 3",
        ),
        (
            tails and not request.simulate,
            f"{option(''.join(tails[:1]))} is judged by the simulation: drop {option('simulate')} 0",
        ),
        (request.goal not in GOALS, f"{option('goal')} {request.goal!r}: use {', '.join(GOALS)}"),
        (
            request.goal == "cost" and request.price is None,
            f"{option('goal')} cost needs {option('price')}, the money that a GPU takes per hour",
        ),
        (
            request.goal == "gpus" and not request.rate and request.trace is None,
            f"{option('goal')} gpus needs {option('rate')}, the requests per second that the GPUs must carry "
            f"(or a {option('trace')})",
        ),
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
