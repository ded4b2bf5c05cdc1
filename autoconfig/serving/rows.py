"""One row of a table of serving runs as a Case: what ran, on what, under which load. Measured columns and notes are never
read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from autoconfig.row_cells import Row, cell, count_of, degree, number
from specs.engine import EngineSpec, load_engine
from specs.errors import InputError, UnknownNameError, UnsupportedError
from specs.gpu import GpuSpec
from specs.gpu_catalogue import load_gpu
from specs.model import ModelSpec
from specs.model_catalogue import resolve_model
from specs.serve_plan import EnginePlan
from specs.serving_formats import kv_format, supports, weight_format
from time_model.serving_benchmark import DataSet, data_set, data_set_of_lengths, offline_requests

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
    if cell(row, "isl"):
        lengths = data_set_of_lengths(_length(row, "isl"), _length(row, "osl"))
    else:
        lengths = replace(data_set(f"mlperf-{model.name}"), osl=_length(row, "osl"))
        assumed.append(f"input lengths of {lengths.name}")
    gpus = degree(row, "n_gpus", None)
    load = _load(row)
    rate = _rate(row) if load == "open" else 0.0
    requests = _requests(row, load, lengths)
    batch = count_of(row, "max_batch") or (1 if load == "single" else None)
    plans = _plans(row, model, gpu, gpus, assumed)
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
        limits=_limits(row) if load == "open" else None,
        assumed=(*notes, *assumed),
    )


def _gpt_size(name: str) -> str:
    return name[4:] if name.upper().startswith("GPT-") and name[4:5].isdigit() else name


def _length(row: Row, key: str) -> float:
    value = number(row, key)
    if value is None or not 1 <= value <= 10_000_000:
        raise InputError(f"cell {key}={cell(row, key)[:40]!r}: tokens are from 1 to 10,000,000")
    return value


def read_engine(backend: str, version: str, assumed: list[str]) -> EngineSpec:
    """The engine of `backend` and `backend_version`; the nearest generation where the version is not known."""
    for name in (f"{backend} {version}".strip(), backend):
        try:
            return load_engine(name)
        except UnknownNameError:
            continue
    engine = load_engine("trtllm-0.14" if backend == "FasterTransformer" else "trtllm-1.2")
    assumed.append(f"engine {backend or '(none)'} priced as {engine.name}")
    return engine


def _load(row: Row) -> str:
    kind, scenario = cell(row, "kind"), cell(row, "scenario").lower()
    if kind == "latency_bs1" or scenario == "batch 1":
        return "single"
    if scenario.startswith("offline") or kind == "max_throughput" or not cell(row, "offered_qps"):
        return "offline"
    return "open"


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
    if first.isdigit():
        return int(first)
    return offline_requests(lengths.isl, lengths.osl) if load == "offline" and cell(row, "kind") != "mlperf" else 0


def _plans(row: Row, model: ModelSpec, gpu: GpuSpec, gpus: int, assumed: list[str]) -> tuple[EnginePlan, ...]:
    weights, kv = _formats(row, gpu, assumed)
    pp, adp, ep = (degree(row, key) for key in ("pp", "attn_dp", "ep"))
    given = count_of(row, "tp")
    degrees: Sequence[int] = [given or 1]
    if given is None:
        degrees = [tp for tp in (1, 2, 4, 8) if gpus % (tp * pp * adp) == 0 and model.num_attention_heads % tp == 0]
        if not degrees:
            raise InputError(f"cell tp is empty, and none of 1, 2, 4, 8 with pp {pp} x attn_dp {adp} divides n_gpus {gpus}")
        assumed.append("tp: the best of " + ", ".join(map(str, degrees)))
    plans = []
    for tp in degrees:
        replicas, rest = divmod(gpus, tp * pp * adp)
        if rest or not replicas:
            raise InputError(f"tp {tp} x pp {pp} x attn_dp {adp} does not divide n_gpus {gpus}")
        plans.append(EnginePlan(tp=tp, pp=pp, ep=ep, adp=adp, weights=weights, kv=kv, replicas=replicas))
    return tuple(plans)


def _formats(row: Row, gpu: GpuSpec, assumed: list[str]) -> tuple[str, str]:
    text, cache = cell(row, "weights"), cell(row, "kv")
    if not text:
        text = "fp8" if supports(gpu, "fp8") else "bf16"
        assumed.append(f"weights {text}")
    weights = weight_format(text)
    if not cache:
        cache = "bf16" if weights == "bf16" else "fp8"
        assumed.append(f"KV cache {cache}")
    return weights, kv_format(cache)
