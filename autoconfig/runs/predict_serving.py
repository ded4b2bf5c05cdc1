"""`autoconfig predict --inference IN.csv --output OUT.csv`: memory, throughput of a full queue in closed form, latency under
arrivals by simulation, of every row of a table of serving runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from autoconfig.memory_model.engines.plan import ServedPlan
from autoconfig.memory_model.serving import ServingMemory
from autoconfig.planning.progress import Progress
from autoconfig.runs.predicted import answer_rows, cells_of
from autoconfig.runs.roots import root
from autoconfig.runs.serving_row import NEEDED, ServingCase, read_case
from autoconfig.runs.table import Row, TableKind, columns_of
from autoconfig.serving.closed_loop import (
    Benchmark,
    EdgeRange,
    LiveServer,
    OpenLoop,
    bands_text,
    edge_text,
    rate_text,
)
from autoconfig.specs.engines.releases import schedules_synchronously
from autoconfig.specs.errors import GIB
from autoconfig.specs.remarks import sentences
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.time_model.serving.borrowed import borrowed_shares
from autoconfig.time_model.serving.iteration import constant_vector
from autoconfig.time_model.serving.rows import ServingJob
from autoconfig.time_model.serving.simulation import PromptBalance, SimulatedStream
from autoconfig.time_model.serving.steady import Lengths, SteadyGeneration, generation, tokens_per_step
from autoconfig.time_model.serving.tables import ServingCalibration, shipped_calibration
from autoconfig.time_model.serving.workload import trtllm_bench_limits, trtllm_bench_table, tuned_batch

LARGEST_FRACTION = 0.95
"""Of memory for a benchmark that was run and does not fit at the engine's own share: the most that published starts give."""
RATED_SECONDS, RATED_REQUESTS = 2400.0, 60_000
"""Length of the simulated run of an MLPerf Server row, whose rate is the largest within its limits, and requests per rank at
most: min_duration of NVIDIA's code, which most submitters run (mlcommons/inference_results_v4.1,
closed/NVIDIA/configs/llama2-70b/Server and mixtral-8x7b/Server: 2,400,000 ms; LoadGen's own least is 600 s). Near saturation a
queue takes longer than 600 s to fill, and more than fits would pass."""
RATED_STEP, RATED_STEPS, RATED_PRECISION = 1.25, 7, 5e-3
"""Of the search for the speed at which a rate is the largest within limits: factor of a step, steps, relative precision."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A plan of a case with its memory and limits; `running` whole sequences per attention rank and pipeline micro-batch."""

    job: ServingJob
    memory: ServingMemory
    batch: int
    tokens: int
    chunked: bool
    running: float

    @property
    def fits(self) -> bool:
        return float(self.memory.max_concurrency) >= 1

    @property
    def max_concurrency(self) -> int:
        """Sequences that memory holds in all replicas."""
        return int(self.memory.max_concurrency) * self.job.plan.adp * self.job.plan.replicas


def set_up(case: ServingCase, plan: EnginePlan, calibration: ServingCalibration) -> Setup:
    """Limits as the engine chooses them, or as the row gives them; memory with them."""
    lengths, engine = case.lengths, case.engine
    benchmark = case.load == "offline" and case.requests > 0
    job = ServingJob(
        model=case.model,
        gpu=case.gpu,
        plan=plan,
        engine=engine,
        constants=calibration.constants(engine, case.gpu),
        graph_sizes=engine.offline_graph_sizes if benchmark else (),
        synchronous=schedules_synchronously(engine.framework, case.start.release),
        checkpoint=case.checkpoint,
    )
    served = ServedPlan(
        model=case.model,
        plan=plan,
        formats=job.formats,
        gpu=case.gpu,
        engine=engine,
        kv_memory_ratio=case.kv_fraction,
        options=replace(case.start, max_num_seqs=ceil(case.start.max_num_seqs / plan.adp) if case.start.max_num_seqs else None),
    )
    batch, tokens = _limits(case, job) if benchmark else served.limits()
    tokens = case.tokens or tokens
    batch, chunked = _most_at_once(case, plan, batch), engine.chunked_prefill or (benchmark and engine.offline_chunked)
    tokens = tokens if chunked else max(tokens, int(lengths.isl))
    ranks = plan.adp * plan.pp
    held = min(batch * ranks, case.requests) if case.requests and not engine.reserves_slots else batch * ranks
    memory = served.memory(length=lengths.isl + lengths.osl, batch=held, tokens=tokens)
    room = float(np.maximum(memory.kv_pool_bytes, 0.0) / memory.kv_bytes_per_sequence)
    spread = (lengths.isl + lengths.osl) / lengths.held_tokens(engine.scheduler_policy)
    if benchmark and engine.offline_batch_tuning:
        batch = min(batch, tuned_batch(int(room)))
    running = min(batch, float(np.floor(room * spread)) // plan.pp)
    if case.requests:
        running = min(running, case.requests / (ranks * plan.replicas))
    return Setup(job=job, memory=memory, batch=batch, tokens=tokens, chunked=chunked, running=max(running, 1.0))


def _most_at_once(case: ServingCase, plan: EnginePlan, usual: int) -> int:
    """Sequences of an attention rank and micro-batch: as the row says, which counts an instance, else as the engine does
    (`usual`); no more than the deployment's users."""
    lanes = plan.adp * plan.pp
    most = ceil(case.max_batch / lanes) if case.max_batch else usual
    return min(most, ceil(ceil(case.concurrency / plan.replicas) / lanes)) if case.concurrency else most


def _limits(case: ServingCase, job: ServingJob) -> tuple[int, int]:
    """(max_batch_size, max_num_tokens) of a published offline run of the engine."""
    lengths, way, limits = case.lengths, case.engine.offline_limits, None
    if way == "trtllm-bench":
        limits = trtllm_bench_limits(case.model, job.plan, case.gpu, job.formats, lengths.isl, lengths.osl)
    elif way == "trtllm-bench table":
        limits = trtllm_bench_table(case.model, job.plan, lengths.isl, lengths.osl)
    return limits or (case.engine.max_batch_size, case.engine.max_num_tokens)


def offline_generations(case: ServingCase, setup: Setup) -> tuple[list[tuple[float, SteadyGeneration]], float]:
    """([(how many, generation)], output tokens per GPU). Whole generations, and the last, partial one of a finite run."""
    lengths = Lengths(isl=case.lengths.isl, osl=case.lengths.osl)
    bursts = case.lengths.output_cv == 0.0
    plan = setup.job.plan
    ranks = plan.adp * plan.pp * plan.replicas

    def of(running: float) -> SteadyGeneration:
        return generation(setup.job, lengths, running, setup.tokens, chunked=setup.chunked, bursts=bursts)

    if not case.requests:
        return [(1.0, of(setup.running))], setup.running * lengths.osl * ranks / plan.gpus
    whole, rest = divmod(case.requests / (setup.running * ranks), 1.0)
    generations = [(whole, of(setup.running))] if whole else []
    if rest > 1e-3:
        generations.append((1.0, of(max(rest * setup.running, 1.0))))
    return generations, case.requests * lengths.osl / plan.gpus


def offline_throughput(case: ServingCase, setup: Setup) -> float:
    """Output tokens per second and GPU of a queue that never empties (or of all requests at once)."""
    generations, tokens = offline_generations(case, setup)
    constants = constant_vector(setup.job.constants)
    return tokens / sum(count * float(one.seconds(constants)) for count, one in generations)


def best_setup(case: ServingCase, calibration: ServingCalibration) -> Setup:
    """Of the plans that the row leaves open, the one with the most throughput; where none fits, with the most room."""
    setups = [set_up(case, plan, calibration) for plan in case.plans]
    return max(setups, key=lambda s: (s.fits, offline_throughput(case, s) if s.fits else float(s.memory.kv_pool_bytes)))


def server_of(case: ServingCase, setup: Setup) -> LiveServer:
    """The deployment under live load."""
    data = case.lengths
    return LiveServer(
        job=setup.job,
        memory=setup.memory,
        lengths=data,
        held_tokens=data.isl + data.osl,
        batch=setup.batch,
        running=setup.running,
        tokens=setup.tokens,
        chunked=setup.chunked,
        steps_per_token=1.0 / tokens_per_step(case.drafted, case.acceptance),
        drafted=float(case.drafted),
        receive_every=case.receive_every,
        balance=None if case.adp_timeout_iters is None else PromptBalance(case.adp_timeout_iters, case.adp_batching_iters),
    )


def open_loop(case: ServingCase, setup: Setup, slowdown: float = 1.0) -> OpenLoop:
    """Poisson arrivals at the row's rate, as many as it counts; every iteration `slowdown` times as long as priced."""
    server = server_of(case, setup)
    return server.at_rate(case.rate, _counted(case, server.lanes), slowdown)


def _counted(case: ServingCase, lanes: int) -> float:
    """Requests of a run at a rate; 0 where the row leaves it open."""
    rated = min(RATED_SECONDS * case.rate, RATED_REQUESTS * lanes) if case.limits else 0.0
    return float(case.requests or rated)


def near_capacity(case: ServingCase, setup: Setup, found: OpenLoop) -> tuple[EdgeRange | None, str]:
    """(range of the means, what is said) where a rate is about or above the most that the deployment takes."""
    if np.isinf(case.rate):
        return None, ""
    server = server_of(case, setup)
    most = server.most_requests_per_s()
    edge = server.near_capacity(case.rate, most, found, _counted(case, server.lanes))
    return edge, rate_text(case.rate, most, edge)


def together(case: ServingCase, setup: Setup) -> OpenLoop:
    """As many requests as run at once, all there from the start: the latency of a batch of a given size."""
    return server_of(case, setup).at_once(max(round(setup.running), 1))


def rated_loop(case: ServingCase, setup: Setup, limits: tuple[float, float], offered: OpenLoop) -> OpenLoop:
    """The open loop of a deployment that keeps the limits at this rate and at no higher one; `offered`: at the priced speed.

    How fast the system is beside the priced one is what the rate tells (power caps, cooling, tuning): every iteration is
    stretched or shortened alike until the 99th percentile of TTFT or TPOT is at its limit. At the priced speed where no
    factor up to RATED_STEP^RATED_STEPS does that.
    """

    @cache
    def loop(log_factor: float) -> OpenLoop:
        return open_loop(case, setup, float(np.exp(log_factor))) if log_factor else offered

    def excess(log_factor: float) -> float:
        served = loop(log_factor).served
        worst = [np.nanpercentile(x, 99) / limit for x, limit in zip((served.ttft_s, served.tpot_s), limits, strict=True)]
        return float(np.log(max(worst)))

    step = -np.sign(excess(0.0)) * np.log(RATED_STEP)
    for i in range(RATED_STEPS):
        if excess(i * step) * excess((i + 1) * step) <= 0:
            return loop(root(excess, i * step, (i + 1) * step, RATED_PRECISION))
    return loop(0.0)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What users see of a case: seconds in the mean, tokens a second of the whole deployment."""

    ttft_s: float
    tpot_s: float
    e2e_s: float = 0.0
    tokens_per_s: float
    edge: EdgeRange | None = None
    near: str = ""
    """What a load about the capacity, or above it, does; else empty."""
    stream: SimulatedStream | None = None
    requests_per_s: float | None = None
    """Of arrivals at a rate, which the next ones are of, too."""
    offered_tpot_s: float | None = None
    slowdown: float = 1.0


def figures_of(case: ServingCase, setup: Setup) -> Figures:
    """Of one user alone, of a benchmark's users, or of arrivals at a rate."""
    server, osl = server_of(case, setup), case.lengths.osl
    if case.load == "single":
        first, each = server.alone(case.lengths.isl, osl)
        total = first + (osl - 1.0) * each
        return Figures(ttft_s=first, tpot_s=each, e2e_s=total, tokens_per_s=osl / total)
    if case.load == "closed":
        loop = server.benchmark(benchmark_of(case))
        means = {"ttft_s": loop.ttft_s, "tpot_s": loop.tpot_s, "e2e_s": loop.e2e_s, "tokens_per_s": loop.tokens_per_s}
        return Figures(**means, edge=loop.edge, near=edge_text(loop.load, loop.edge), stream=loop.stream)
    offered = open_loop(case, setup)
    found = rated_loop(case, setup, case.limits, offered) if case.limits else offered
    edge, near = (None, "") if case.limits else near_capacity(case, setup, found)
    return Figures(
        ttft_s=found.ttft_s,
        tpot_s=found.itl_s if case.requests else found.tpot_s,
        e2e_s=found.e2e_s,
        tokens_per_s=found.requests_per_s * osl,
        edge=edge,
        near=near,
        stream=found.served,
        requests_per_s=found.requests_per_s,
        offered_tpot_s=offered.tpot_s,
        slowdown=found.slowdown,
    )


@dataclass(frozen=True, kw_only=True)
class ServingPrediction:
    """What one row gets; None where it does not apply or could not be predicted. `note` says why, or what was assumed."""

    row: int
    out_tok_s_gpu: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    latency_ms: float | None = None
    fits: bool | None = None
    max_concurrency: int | None = None
    note: str = ""
    ttft_range_ms: tuple[float, float] | None = None
    """Where the load is about the capacity; so for the next."""
    tpot_range_ms: tuple[float, float] | None = None
    requests_per_s: float | None = None
    """Open loop only; not a column."""
    offered_tpot_ms: float | None = None
    """At the priced speed, limits unread; open loop only, not a column."""

    failed: bool = False
    """It could not be predicted; not a column."""

    def cells(self) -> dict[str, str]:
        return cells_of(self, "serving")


COLUMNS = tuple(ServingPrediction(row=0).cells())
SERVING_RUNS = TableKind(
    needed=lambda columns: NEEDED,
    known=lambda: columns_of("serving"),
    said="the columns are those of autoconfig/data/run_tables.toml (columns.serving)",
)


def predict_file(source: Path, target: Path, progress: Progress | None = None) -> tuple[list[ServingPrediction], str, str]:
    """`TableKind.predict` of a table of serving runs; returns the version of the constants too."""
    constants = shipped_calibration()
    predictions, remark = SERVING_RUNS.predict(source, target, lambda rows: predict_rows(rows, constants, progress))
    return predictions, version_of(constants), remark


def version_of(calibration: ServingCalibration) -> str:
    """Names the constants behind predictions: a hash of their numbers."""
    numbers = json.dumps([calibration.engines, calibration.gpus], sort_keys=True, default=dict)
    return f"serving-{hashlib.sha256(numbers.encode()).hexdigest()[:8]}"


def read_table(source: Path) -> list[dict[str, str]]:
    """Rows of a table of serving runs. Raises FileError where it cannot be read, InputError where it is no such table."""
    return SERVING_RUNS.read(source)[1]


def predict_rows(
    rows: Sequence[Row], calibration: ServingCalibration | None = None, progress: Progress | None = None
) -> list[ServingPrediction]:
    """Return a prediction per row, in order. Rows that ask the same are answered once."""
    constants = calibration or shipped_calibration()
    answers = answer_rows(rows, "serving", lambda row: _predicted(row, constants), _failed, progress)
    return [replace(answer, row=number) for number, answer in enumerate(answers)]


def predict_row(row: Row, calibration: ServingCalibration) -> ServingPrediction:
    """Return the prediction of one row; a row that cannot be predicted keeps the reason."""
    return predict_rows([row], calibration)[0]


def _failed(reason: str) -> ServingPrediction:
    return ServingPrediction(row=0, failed=True, note=reason)


def _predicted(row: Row, calibration: ServingCalibration) -> ServingPrediction:
    case = read_case(row)
    setup = best_setup(case, calibration)
    if case.load == "closed" and case.kv_fraction is None and not setup.fits:
        wider = replace(case, kv_fraction=LARGEST_FRACTION)
        larger = best_setup(wider, calibration)
        if larger.fits:  # whoever measured it gave the engine more
            why = f"does not fit at the engine's own share of memory; priced at {LARGEST_FRACTION:g} (kv_fraction)"
            answer = _answer(wider, larger)
            return replace(answer, fits=False, note=f"{why}; {answer.note}")
    return _answer(case, setup)


def _answer(case: ServingCase, setup: Setup) -> ServingPrediction:
    job = setup.job
    notes = [text] if (text := bands_text(job.constants)) else []
    if case.assumed:
        notes.append(f"assumed: {'; '.join(sentences(case.assumed))}")
    if len(case.plans) > 1:
        notes.append(f"plan {job.plan}")
    notes.append(job.constants.origin)
    notes.extend(sentences(borrowed_shares(job.tables, job.model, job.gpu, [job.plan.weights], [job.plan.kv])))
    figures: dict[str, Any] = {}
    if not setup.fits:
        free, each = (float(x) / GIB for x in (setup.memory.kv_pool_bytes, setup.memory.kv_bytes_per_sequence))
        notes.insert(0, f"does not fit: {free:.1f} GiB for the cache, a sequence takes {each:.2f}")
    elif case.load != "offline":
        found = figures_of(case, setup)
        if found.near:
            notes.insert(0, found.near)
        if case.limits:
            notes.append(f"rate read as the largest within the limits: iterations {found.slowdown:.2f} times as long as priced")
        figures = {
            **ranges_ms(found.edge),
            "out_tok_s_gpu": found.tokens_per_s / case.num_gpus,
            **_latency(found.ttft_s, found.tpot_s, found.e2e_s),
            "requests_per_s": found.requests_per_s,
            "offered_tpot_ms": None if found.offered_tpot_s is None else found.offered_tpot_s * 1e3,
        }
    else:
        figures = {"out_tok_s_gpu": offline_throughput(case, setup)}
        if case.max_batch or case.concurrency:  # a batch of a given size: the latency of its requests, all there from the start
            batch = together(case, setup)
            figures |= _latency(batch.ttft_s, batch.tpot_s, batch.e2e_s)
    return ServingPrediction(
        row=0,
        fits=setup.fits,
        max_concurrency=setup.max_concurrency,
        note="; ".join(notes),
        failed=False,
        **figures,
    )


def _latency(first_s: float, between_s: float, total_s: float) -> dict[str, float]:
    return {"ttft_ms": first_s * 1e3, "tpot_ms": between_s * 1e3, "latency_ms": total_s * 1e3}


def benchmark_of(case: ServingCase) -> Benchmark:
    """The benchmark of a row with a concurrency."""
    lengths, users = case.lengths, case.concurrency or 1
    return Benchmark(users=users, requests=case.requests, isl=lengths.isl, osl=lengths.osl, range_ratio=case.range_ratio)


def ranges_ms(edge: EdgeRange | None) -> dict[str, tuple[float, float]]:
    """ttft_range_ms and tpot_range_ms where there is a range."""
    ranges = {} if edge is None else {"ttft_range_ms": edge.ttft_s, "tpot_range_ms": edge.tpot_s}
    return {name: (1e3 * low, 1e3 * high) for name, (low, high) in ranges.items()}
