"""What a start does at a load: TTFT, TPOT and throughput by `predict --inference` of its row, percentiles of the same
simulation."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from autoconfig.runs.predict_serving import Figures, best_setup, figures_of, ranges_ms
from autoconfig.runs.serving_row import ServingCase, read_case
from autoconfig.runs.table import Row
from autoconfig.serving.closed_loop import bands_text
from autoconfig.serving.request import MIN_RATE
from autoconfig.serving.traces import MAX_TOKENS, Recorded
from autoconfig.specs.engines.start import EngineMemory, EngineStart
from autoconfig.specs.errors import InputError, option
from autoconfig.specs.models.model_catalogue import load_model, model_names
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.specs.software.checkpoint import checkpoint_named
from autoconfig.time_model.serving.simulation import SimulatedStream
from autoconfig.time_model.serving.tables import shipped_calibration

PERCENTILES = (50, 90, 95, 99)
MOST_USERS = 100_000
BACKENDS = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm"}


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is asked of a server: users who each ask again when they have an answer, or requests at a rate."""

    isl: int | None = None
    osl: int | None = None
    rate: float = 0.0
    concurrency: int = 0
    trace: Any = None
    local_files: bool = True

    @property
    def asked(self) -> bool:
        """Whether there is one."""
        return bool(self.isl or self.osl or self.rate or self.concurrency or self.trace is not None)


@dataclass(frozen=True, kw_only=True)
class BetterStart:
    """Another start on the same GPUs that does more at the same load."""

    start: EngineStart
    changes: tuple[tuple[str, str, str], ...]
    """Flag, its value here, and there; empty where a flag is not given."""
    ttft_ms: float
    tpot_ms: float
    tokens_per_s: float
    kv_tokens: int
    diff: tuple[str, ...] = ()
    """Lines of the file that go (`-`) and come (`+`); empty where the file has no place for the changes. What is written is
    read again, and is this start."""
    text: str = ""
    """The file with them."""


@dataclass(frozen=True, kw_only=True)
class StartHint:
    """A change beyond the better start (else this one) that does more and is not for nothing."""

    change: str
    """Flags, or the checkpoint."""
    why: str
    """What it costs or rests on."""
    ttft_ms: float
    tpot_ms: float
    tokens_per_s: float


@dataclass(frozen=True, kw_only=True)
class LoadAnswer:
    """Of the whole deployment; means over requests."""

    isl: float
    osl: float
    rate: float
    concurrency: int
    row: Row
    """The row of `predict --inference` that was asked."""
    ttft_ms: float | None
    tpot_ms: float | None
    tokens_per_s: float | None
    """Output tokens."""
    percentiles: dict[str, dict[str, float]] = field(default_factory=dict)
    """ttft_ms and tpot_ms: p50 to p99."""
    note: str = ""
    ttft_range_ms: tuple[float, float] | None = None
    """Where the load is about the capacity; so for the next."""
    tpot_range_ms: tuple[float, float] | None = None
    better: BetterStart | None = None
    hints: tuple[StartHint, ...] = ()


def check_load(load: Load) -> None:
    """Raises InputError for half of a load, or one out of its bounds."""
    if not load.asked:
        return
    if load.trace is not None:
        if load.concurrency:
            raise InputError(f"{option('trace')} has arrivals of its own: leave {option('concurrency')} out", field="trace")
        return
    for name, value in (("isl", load.isl), ("osl", load.osl)):
        if value is None:
            raise InputError(f"a load needs {option('isl')} and {option('osl')}: say {option(name)}", field=name)
        if not 1 <= value <= MAX_TOKENS:
            raise InputError(f"{option(name)} {value}: use 1 to {MAX_TOKENS:,} tokens", field=name)
    if bool(load.rate) == bool(load.concurrency):
        raise InputError(f"a load has {option('concurrency')} or {option('rate')}: say one of both", field="concurrency")
    if load.rate and load.rate < MIN_RATE:
        raise InputError(f"{option('rate')} {load.rate:g}: use at least {MIN_RATE:g}", field="rate")
    if load.concurrency and not 1 <= load.concurrency <= MOST_USERS:
        raise InputError(f"{option('concurrency')} {load.concurrency}: use 1 to {MOST_USERS:,}", field="concurrency")


def running_plan(start: EngineStart, memory: EngineMemory) -> EnginePlan:
    """The plan with the limits that the engine runs with, of all its attention ranks."""
    tokens = max(memory.max_num_batched_tokens, 1)  # none where no cache is left
    return start.plan.replace(batch=max(seats(start, memory), 1), tokens=tokens)


def seats(start: EngineStart, memory: EngineMemory) -> int:
    """Sequences of an instance: TensorRT-LLM's --max_batch_size is of a micro-batch, the others' limits of all stages."""
    stages = start.plan.pp if start.engine == "tensorrt-llm" else 1
    return memory.max_num_seqs * start.plan.adp * stages


def row_of(start: EngineStart, memory: EngineMemory, load: Load, receive_every: int = 1, named: str = "") -> Row:
    """The row of `predict --inference` for a start at a load; `named`: the model as the command names it."""
    plan, own = start.plan, start.checkpoint
    published = checkpoint_named(named) if named and own is not None else None
    same = published is not None and own is not None and published.formats(start.model) == own.formats(start.model)
    drafts = f"{start.draft_method} {start.draft_tokens}" if start.draft_tokens else ""
    row = {
        "model": named if _by_id(start, named) else start.model.name,
        "gpu": start.gpu.id,
        "n_gpus": start.gpus,
        "backend": BACKENDS[start.engine],
        "backend_version": memory.release,
        "tp": plan.tp,
        "pp": plan.pp,
        "ep": plan.ep,
        "attn_dp": plan.adp,
        "weights": plan.weights,
        "kv": plan.kv,
        "isl": load.isl,
        "osl": load.osl,
        "scenario": f"concurrency {load.concurrency}" if load.concurrency else "",
        "offered_qps": f"{load.rate:g}" if load.rate else "",
        "max_num_seqs": seats(start, memory),
        "max_num_batched_tokens": memory.max_num_batched_tokens,
        "adp_timeout_iters": start.balance_timeout,
        "adp_batching_iters": start.balance_batching,
        "recv_interval": receive_every if receive_every > 1 else "",
        "kv_fraction": f"{memory.memory_fraction:g}" if memory.memory_fraction else "",
        "enforce_eager": "yes" if start.eager else "",
        "speculative": drafts,
        "checkpoint": named if same else "",
    }
    return {name: str(value) for name, value in row.items() if value not in (None, "")}


def _by_id(start: EngineStart, named: str) -> bool:
    """Whether the model is another than the catalogue's of its name, and the published checkpoint's of this id."""
    if start.model.name not in model_names() or start.model == load_model(start.model.name):
        return False
    try:
        return bool(named) and load_model(named) == start.model
    except InputError:
        return False


def case_of(start: EngineStart, row: Row) -> ServingCase:
    """The case of a row; a model or a checkpoint of a config.json is the start's own."""
    if start.model.name in model_names():
        return replace(read_case(row), model=start.model, checkpoint=start.checkpoint)
    case = read_case({**row, "model": _ALIKE})
    return replace(case, model=start.model, checkpoint=start.checkpoint)


_ALIKE = "llama3-8b"
"""Stands in a row for a model of a config.json, which a table cannot hold; its own spec goes in its place."""


def simulated(case: ServingCase) -> Figures | str:
    """Figures of a case, or why there are none."""
    setup = best_setup(case, shipped_calibration())
    return figures_of(case, setup) if setup.fits else "the cache holds no whole request of these lengths"


def _said(case: ServingCase, found: Figures) -> list[str]:
    """What is said of the figures of a load."""
    run = f"a benchmark of {case.requests:,} requests, lengths drawn from {case.range_ratio:g} of the longest to the longest"
    bands = bands_text(shipped_calibration().constants(case.engine, case.gpu))
    return [found.near, bands * (case.load != "single"), run * (case.load == "closed")]


def _percentiles(stream: SimulatedStream | None) -> dict[str, dict[str, float]]:
    return {} if stream is None else {"ttft_ms": _tails(stream.ttft_s), "tpot_ms": _tails(stream.tpot_s)}


def _tails(seconds: Any) -> dict[str, float]:
    kept = seconds[np.isfinite(seconds)]
    return {f"p{point}": float(np.percentile(kept, point)) * 1e3 for point in PERCENTILES} if len(kept) else {}


def by_means(load: Load) -> tuple[Load, str]:
    """A trace by its mean lengths and rate, and what is said of it."""
    if load.trace is None:
        return load, ""
    whole = Recorded.of(load.trace, local_files=load.local_files)
    trace = whole.trace
    rate = trace.rate * load.rate / whole.rate if load.rate else trace.rate
    part = f"the busiest part of the trace, {whole.window.clock}," if whole.window else "the trace"
    said = f"{part} by its mean lengths ({trace.isl:,.0f} and {trace.osl:,.0f} tokens) and its rate ({rate:.3g} requests/s)"
    return Load(isl=round(trace.isl), osl=round(trace.osl), rate=rate, local_files=load.local_files), said


def answer_load(start: EngineStart, memory: EngineMemory, load: Load, receive_every: int = 1, named: str = "") -> LoadAnswer:
    """What the start does at a load, a trace by its means (`by_means`). Raises InputError where the load cannot be asked of
    it."""
    load, said = by_means(load)
    row = row_of(start, memory, load, receive_every, named)
    answer = LoadAnswer(
        isl=float(load.isl or 0),
        osl=float(load.osl or 0),
        rate=load.rate,
        concurrency=load.concurrency,
        row=row,
        ttft_ms=None,
        tpot_ms=None,
        tokens_per_s=None,
        note=said,
    )
    longest = (load.isl or 0) + (load.osl or 0)
    if longest > memory.max_model_len:
        says = f"requests of {longest:,} tokens are longer than the {memory.max_model_len:,} that the server takes"
        return replace(answer, note="; ".join(filter(None, (says, said))))
    if memory.starts == "no":
        says = "the server does not start: no figures of a load"
        return replace(answer, note="; ".join(filter(None, (says, said))))
    case = case_of(start, row)
    found = simulated(case)
    if isinstance(found, str):
        return replace(answer, note="; ".join(filter(None, (found, said))))
    ranges = ranges_ms(found.edge)
    return replace(
        answer,
        ttft_ms=found.ttft_s * 1e3,
        tpot_ms=found.tpot_s * 1e3,
        tokens_per_s=found.tokens_per_s,
        percentiles=_percentiles(found.stream),
        note="; ".join(filter(None, (*_said(case, found), said))),
        ttft_range_ms=ranges.get("ttft_range_ms"),
        tpot_range_ms=ranges.get("tpot_range_ms"),
    )
