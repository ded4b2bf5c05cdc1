"""One row of a table of serving runs as a Case: what ran, on what, under which load. Measured columns and notes are never
read."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from autoconfig.runs.cells import Row, cell, count_of, degree, number
from autoconfig.runs.serving_plans import read_plans
from autoconfig.specs.errors import InputError, UnknownNameError, UnsupportedError
from autoconfig.specs.hardware.gpu import GpuSpec, load_gpu
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import resolve_model
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.specs.software.engine import EngineSpec, load_engine, nearest_release
from autoconfig.time_model.serving.benchmark import DataSet, data_set, data_set_of_lengths, offline_requests

MEASURED = frozenset(
    {
        "achieved_req_s",
        "out_tok_s",
        "out_tok_s_gpu",
        "ttft_mean_ms",
        "ttft_p99_ms",
        "tpot_mean_ms",
        "tpot_p99_ms",
        "latency_ms",
        "notes",
        "source",
        "locator",
    }
)
"""Never read by a prediction (source and locator say where a row is from, nothing more)."""
NEEDED = ("model", "gpu", "n_gpus", "osl")
ENCODER_DECODERS = ("t5", "mt5")
GPU_WORDS = {"h100_nvl": "h100-nvl-94gb", "gh200": "gh200-144gb", "rtx-pro-6000-blackwell-server": "rtx-pro-6000-96gb"}
"""Spellings of published tables that the catalogue's aliases do not hold; MLPerf's GH200 systems are GH200-144GB (v4.1)."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run to predict."""

    model: ModelSpec
    gpu: GpuSpec
    engine: EngineSpec
    num_gpus: int
    plans: tuple[EnginePlan, ...]
    """The plan, or every plan that the open cells allow; the best one is meant."""
    load: str
    """offline: a queue that never empties; open: Poisson arrivals at `rate`; single: one request at a time."""
    lengths: DataSet
    rate: float = 0.0
    """Requests per second of the whole deployment."""
    requests: int = 0
    """Requests of the run; 0: as many as a steady state takes."""
    max_batch: int | None = None
    """Sequences that one instance runs at once, all its attention ranks and pipeline stages together (EnginePlan.batch)."""
    concurrency: int | None = None
    """Requests under way in the whole deployment, each followed by the next."""
    limits: tuple[float, float] | None = None
    """99th percentiles of TTFT and TPOT in seconds that a published MLPerf Server rate is the largest within."""
    assumed: tuple[str, ...] = field(default=())


def read_case(row: Row) -> Case:
    """The case of a row. Raises InputError naming the cell that cannot be used."""
    for name in NEEDED:
        if not cell(row, name):
            raise InputError(f"cell {name} is empty")
    name = cell(row, "model")
    if name.lower().startswith(ENCODER_DECODERS):
        raise UnsupportedError(f"{name} is an encoder-decoder model; only decoders can be predicted")
    assumed: list[str] = []
    model, notes = resolve_model(_gpt_size(name))
    gpu = load_gpu(GPU_WORDS.get(cell(row, "gpu").lower(), cell(row, "gpu")))
    engine = read_engine(cell(row, "backend"), cell(row, "backend_version"), assumed)
    lengths = _lengths(row, model, assumed)
    gpus = degree(row, "n_gpus", None)
    load, at_once = _load(row, assumed), _at_once(row)
    rate = _rate(row) if load == "open" else 0.0
    requests = _requests(row, load, lengths)
    batch, users = count_of(row, "max_batch"), None
    if at_once and load != "open":
        word, count = at_once
        batch, users = (batch, count) if word == "concurrency" else (min(count, batch or count), None)
    if load == "single":
        batch, users = 1, None
    plans = read_plans(row, model, gpu, engine, gpus, assumed)
    if users is not None:
        plans = _busy(plans, users)
    return Case(
        model=model,
        gpu=gpu,
        engine=engine,
        num_gpus=gpus,
        plans=plans,
        load=load,
        lengths=lengths,
        rate=rate,
        requests=requests,
        max_batch=batch,
        concurrency=users,
        limits=_limits(row) if load == "open" else None,
        assumed=(*notes, *assumed),
    )


def _gpt_size(name: str) -> str:
    """`GPT-20B` of published tables as the size 20B of the GPT-3 family; other names as they are."""
    found = re.fullmatch(r"GPT-([0-9.]+[BMT])", name, re.IGNORECASE)
    return found[1] if found else name


def _lengths(row: Row, model: ModelSpec, assumed: list[str]) -> DataSet:
    if cell(row, "isl"):
        return data_set_of_lengths(_length(row, "isl"), _length(row, "osl"))
    try:
        lengths = replace(data_set(f"mlperf-{model.name}"), osl=_length(row, "osl"))
    except UnknownNameError as error:
        if cell(row, "kind") != "mlperf":
            raise InputError("cell isl is empty: how many input tokens does a request have on average?") from None
        known = ", ".join(name.removeprefix("mlperf-") for name in error.known if name.startswith("mlperf-"))
        raise InputError(f"cell isl is empty, and MLPerf's input lengths are known for {known} only") from None
    assumed.append(f"input lengths of {lengths.name}")
    return lengths


def _length(row: Row, key: str) -> float:
    value = number(row, key)
    if value is None or not 1 <= value <= 10_000_000:
        raise InputError(f"cell {key}={cell(row, key)[:40]!r}: tokens are from 1 to 10,000,000")
    return value


def read_engine(backend: str, version: str, assumed: list[str]) -> EngineSpec:
    """The engine of `backend` and `backend_version`; the nearest generation, said in `assumed`, where there is none."""
    try:
        return load_engine(f"{backend} {version}".strip())
    except UnknownNameError:
        pass
    engine = nearest_release(backend, version)
    if engine is None:
        engine = load_engine("trtllm-0.14" if backend.lower() == "fastertransformer" else "trtllm-1.2")
        assumed.append(f"engine {f'{backend} {version}'.strip() or '(none)'} priced as {engine.name}")
    elif not engine.is_release(version):
        assumed.append(f"backend_version {version} priced as {engine.name} ({engine.description})")
    return engine


AT_ONCE = re.compile(r"(?<![a-z])(batch(?:[ _-]?size)?|bs|concurrency)[ =:_-]*([0-9]{1,7})(?![0-9])")
"""`batch 8`, `batch size 32`, `concurrency 16`, `latency_bs1`: how many requests are under way."""
ONE_AT_A_TIME = ("singlestream", "single stream", "single_stream", "single-stream")
"""MLPerf's scenario: the next query is sent when the last is answered (mlcommons/inference_policies, inference_rules.adoc)."""


def _at_once(row: Row) -> tuple[str, int] | None:
    """(`batch` or `concurrency`, its number) where scenario or kind says so."""
    for key in ("scenario", "kind"):
        found = AT_ONCE.search(cell(row, key).lower())
        if found:
            if not int(found[2]):
                raise InputError(f"cell {key}={cell(row, key)[:40]!r}: at least 1 request at once")
            return "concurrency" if found[1] == "concurrency" else "batch", int(found[2])
    return None


def _load(row: Row, assumed: list[str]) -> str:
    kind, scenario = cell(row, "kind"), cell(row, "scenario").lower()
    at_once = _at_once(row)
    if (at_once and at_once[1] == 1) or scenario.startswith(ONE_AT_A_TIME):
        return "single"
    if scenario.startswith("offline") or kind == "max_throughput" or at_once:
        return "offline"
    if not cell(row, "offered_qps"):
        assumed.append("offered_qps is empty: a queue that never empties")
        return "offline"
    return "open"


def _busy(plans: tuple[EnginePlan, ...], users: int) -> tuple[EnginePlan, ...]:
    """Those of which no instance idles with so many requests under way."""
    busy = tuple(plan for plan in plans if plan.replicas <= users)
    if not busy:
        raise InputError(f"concurrency {users} leaves instances idle: there are {plans[0].replicas}; give one's n_gpus")
    return busy


def _rate(row: Row) -> float:
    text = cell(row, "offered_qps").lower()
    if text in ("inf", "infinity"):
        return float("inf")
    value = number(row, "offered_qps")
    if value is None or value <= 0:
        raise InputError(f"cell offered_qps={text[:40]!r}: a positive number of requests per second, or inf")
    return value


def _limits(row: Row) -> tuple[float, float] | None:
    """Limits of an MLPerf Server run, whose metric is the "maximum Poisson throughput parameter supported" while the 99th
    percentiles of TTFT and TPOT keep them.

    Source: mlcommons/inference_policies, inference_rules.adoc (scenarios); mlcommons/inference, loadgen/results.cc.
    """
    first, between = number(row, "ttft_limit_ms"), number(row, "tpot_limit_ms")
    if cell(row, "kind") != "mlperf" or not first or not between or min(first, between) <= 0:
        return None
    return first / 1e3, between / 1e3


def _requests(row: Row, load: str, lengths: DataSet) -> int:
    first = cell(row, "scenario").split(" ")[0]
    if re.fullmatch(r"[0-9]{1,7}", first):
        return max(int(first), 1)
    return offline_requests(lengths.isl, lengths.osl) if load == "offline" and cell(row, "kind") != "mlperf" else 0
