"""Deployments that a study of serving may measure: tensor-parallel sizes by batches, priced before the first job.

One instance of a deployment is measured; replicas do the same beside it, so that what counts is per GPU of the instance. What
is measured (specs.job, mode generate) is a round: `batch` prompts together, then one token each an iteration until all are
answered. The static engine prefills all prompts in one iteration; a server takes as many as its token budget makes of them.
Every figure is linear in the constants, so that measured rounds give them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from autoconfig.serving.question import ServeQuestion
from autoconfig.serving.space import enumerate_space, loads
from autoconfig.specs.errors import InputError, option
from autoconfig.specs.hardware.cluster import CPU_ARCHITECTURE, GpuSpec, cluster_of
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.study.session import NothingFitsError
from autoconfig.study.trials import Choices, Floats
from autoconfig.time_model.collectives import Group, collective_seconds, links_of
from autoconfig.time_model.hardware.efficiency import efficiency_of
from autoconfig.time_model.serving.iteration import constant_vector, floor_seconds, iteration_features
from autoconfig.time_model.serving.rows import ServingJob
from autoconfig.time_model.serving.tables import AllReduceTable, EngineConstants, ServingTables, even_tables

Vector = npt.NDArray[np.float64]
OPERATORS, EXPERTS, COMMUNICATION, HOST = 0, 1, 2, 5
"""Columns of `iteration_features` that rounds can tell apart."""
MESSAGES = np.exp2(np.arange(8.0, 31.0))


@dataclass(frozen=True, kw_only=True)
class Round:
    """What is asked: prompts and answers in tokens; `tokens` that one iteration takes (None: all prompts at once)."""

    batch: int
    prompt: int
    new: int
    tokens: int | None = None

    @property
    def chunks(self) -> float:
        """Iterations that the prompts take."""
        return 1.0 if self.tokens is None else max(1.0, self.batch * self.prompt / self.tokens)


@dataclass(frozen=True, kw_only=True)
class RoundFigures:
    """What one instance gives: seconds; output tokens per second of the round as a whole."""

    ttft_s: float
    tpot_s: float
    tokens_per_s: float


def features(job: ServingJob, asked: Round) -> tuple[Vector, Vector]:
    """[7] of an iteration of the prompts, and of a later one at the mean length of the cache."""
    share = asked.batch / asked.chunks
    first = iteration_features(job, 0.0, 1.0, share, asked.prompt)
    return first, iteration_features(job, asked.batch, asked.prompt + asked.new / 2.0, 0.0, 1.0)


def predicted(job: ServingJob, asked: Round) -> RoundFigures:
    """Under the job's constants. Requests wait for their own part of the prompts: half of them on average; what then passes
    until all prompts are in belongs to their later tokens."""
    first, later = features(job, asked)
    constants = constant_vector(job.constants)
    share = asked.batch / asked.chunks
    prompt_s = float(np.maximum(first @ constants, floor_seconds(job, share, share)))
    step_s = float(np.maximum(later @ constants, floor_seconds(job, 0.0, float(asked.batch))))
    ttft = prompt_s * (asked.chunks + 1.0) / 2.0 + job.constants.request_s
    whole = prompt_s * asked.chunks + (asked.new - 1) * step_s
    return RoundFigures(
        ttft_s=ttft,
        tpot_s=(whole - prompt_s * (asked.chunks + 1.0) / 2.0) / (asked.new - 1),
        tokens_per_s=asked.batch * asked.new / (whole + job.constants.request_s),
    )


def refined(job: ServingJob, seen: Sequence[tuple[ServingJob, Round, RoundFigures]]) -> EngineConstants:
    """Constants that measured rounds give: the factor of the operators, that of communication where some round had any, the
    host's seconds an iteration and, for a server, those before a request's first one. Least squares of relative errors, none
    negative (Lawson and Hanson 1974). `seen`: the layout as a job, what was asked, what was measured; without any, the job's
    own constants."""
    rows, waits = [], []
    for one, asked, measured in seen:
        first, later = features(one, asked)
        rows.append(first * (asked.chunks + 1.0) / 2.0 / measured.ttft_s)
        rest = asked.chunks - (asked.chunks + 1.0) / 2.0
        rows.append((rest * first / (asked.new - 1) + later) / measured.tpot_s)
        waits += [0.0 if asked.tokens is None else 1.0 / measured.ttft_s, 0.0]
    if not rows:
        return job.constants
    table = np.array(rows)
    columns = np.stack(
        [table[:, OPERATORS] + table[:, EXPERTS], table[:, COMMUNICATION], table[:, HOST], np.array(waits)], axis=1
    )
    from scipy.optimize import nnls  # half a second of every worker's start

    (factor, communication, host, request), _ = nnls(columns, np.ones(len(rows)))
    talks = bool(columns[:, 1].any())
    return EngineConstants(
        factor=float(factor),
        experts_factor=float(factor),
        communication_factor=float(communication) if talks else job.constants.communication_factor,
        host_s=float(host),
        request_s=float(request),
        sampler_bytes=0.0,
        origin=f"{len(seen)} measured points",
    )


def link_tables(gpu: GpuSpec) -> ServingTables:
    """For a device that nobody measured under a serving engine: operators at their rooflines, all-reduces as the ring over its
    link (time_model.collectives). What that misses, measured rounds tell (`refined`)."""
    ranks = np.array([2.0, 4.0, 8.0])
    constants = efficiency_of(gpu)
    seconds = [
        collective_seconds("all_reduce", MESSAGES, Group(size=n, local=n), links_of(cluster_of(gpu, int(n)), constants))
        for n in ranks
    ]
    logs = np.log(np.maximum(np.stack(seconds), 1e-12))
    return replace(even_tables(), all_reduce=AllReduceTable(ranks=ranks, log_bytes=np.log(MESSAGES), log_seconds=logs))


MAX_BATCH_ON_CPU = 64
"""Jobs of seconds."""
FORM = "bf16"
"""Of weights and cache: what both engines run from random weights. On a CPU both run in fp32."""


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """A row: an instance's plan, what is asked of it, and the plan as something that can be priced."""

    plan: EnginePlan
    asked: Round
    job: ServingJob


@dataclass(frozen=True, kw_only=True)
class DeploymentChoices(Choices):
    """n deployments by tp and batch, with the prediction before any measurement."""

    rows: tuple[Deployment, ...]
    forecast: tuple[RoundFigures, ...]

    def values(self, figures: Sequence[RoundFigures]) -> Floats:
        """[n, 2]: output tokens/s/GPU, TPOT in seconds."""
        return np.array(
            [[f.tokens_per_s / row.plan.tp, f.tpot_s] for f, row in zip(figures, self.rows, strict=True)], dtype=np.float64
        )

    def learned(self, measured: dict[int, RoundFigures]) -> EngineConstants:
        seen = [(self.rows[row].job, self.rows[row].asked, figures) for row, figures in sorted(measured.items())]
        return refined(self.rows[0].job, seen)

    def again(self, constants: EngineConstants) -> tuple[RoundFigures, ...]:
        return tuple(predicted(replace(row.job, constants=constants), row.asked) for row in self.rows)


def candidates_of(question: ServeQuestion) -> DeploymentChoices:
    """Every layout that one instance of the engine runs here, by batches that memory holds, each twice the one before (those
    of --fix where given). Raises InputError where nothing is left."""
    on_cpu = question.gpu.architecture == CPU_ARCHITECTURE
    server = question.engine.framework == "vllm"
    asked = replace(question, checkpoint=None)
    tables, constants = None, question.calibration.constants(question.engine, question.gpu)
    if on_cpu:
        engine = replace(question.engine, runtime_bytes=0)
        asked = replace(asked, gpu=fp32_device(question.gpu), engine=engine)
        tables, constants = link_tables(asked.gpu), EngineConstants(sampler_bytes=0.0)
    elsewhere = ("weights", "kv", "batch", "tokens", "replicas")
    fixed = {key: values for key, values in question.constraints.items() if key not in elsewhere}
    rows: list[Deployment] = []
    for layout in enumerate_space(
        question.model, asked.gpu, asked.engine, question.num_gpus, question.gpus_per_node, {**fixed, **_form(question)}
    ):
        if layout.pp * layout.adp * layout.ep > 1 or (server and on_cpu and layout.tp > 1):
            continue
        job = replace(asked.job(layout), constants=constants, measured=tables)
        if loads(job):
            rows += _rows_of(asked, layout, job, _batches(question, on_cpu=on_cpu), server=server)
    if not rows:
        raise NothingFitsError(
            "no deployment that the engine can run here holds a single request (pp, adp and ep are 1, weights and kv bf16): "
            "more GPUs, shorter requests, or see what autoconfig deployments says"
        )
    return DeploymentChoices(
        params=tuple({"tp": row.plan.tp, "batch": row.plan.batch} for row in rows),
        rows=tuple(rows),
        forecast=tuple(predicted(row.job, row.asked) for row in rows),
    )


def _rows_of(
    question: ServeQuestion, layout: EnginePlan, job: ServingJob, batches: Iterable[int], *, server: bool
) -> Iterator[Deployment]:
    """A layout by the batches that memory holds."""
    prompt, new = int(question.lengths.isl), int(question.lengths.osl)
    for batch in batches:
        tokens = max(question.engine.max_num_tokens, prompt) if server else batch * prompt
        if float(question.memory(job, float(batch), float(tokens)).max_concurrency) < batch:
            break
        plan = layout.replace(batch=batch, tokens=tokens, replicas=1)
        each = Round(batch=batch, prompt=prompt, new=new, tokens=tokens if server else None)
        yield Deployment(plan=plan, asked=each, job=job)


def fp32_device(gpu: GpuSpec) -> GpuSpec:
    """A CPU that computes in fp32, as a device of 16-bit elements: its fp32 rate, half of the bytes."""
    rate = gpu.flops_per_s["fp32"]
    return replace(
        gpu,
        flops_per_s={**gpu.flops_per_s, "bf16": rate, "fp16": rate},
        hbm_bytes_per_s=gpu.hbm_bytes_per_s / 2,
        link_bytes_per_s=gpu.link_bytes_per_s / 2,
        nic_bytes_per_s=gpu.nic_bytes_per_s / 2,
        memory_bytes=gpu.memory_bytes // 2,
    )


def _form(question: ServeQuestion) -> dict[str, frozenset[object]]:
    for key in ("weights", "kv"):
        if other := question.constraints.get(key, frozenset()) - {FORM}:
            raise InputError(f"{option('fix')} {key}={sorted(map(str, other))[0]}: {option('profile')} measures {key}={FORM}")
    return {"weights": frozenset({FORM}), "kv": frozenset({FORM})}


def _batches(question: ServeQuestion, *, on_cpu: bool) -> list[int]:
    if "batch" in question.constraints:
        return sorted(int(str(batch)) for batch in question.constraints["batch"])
    most = min(question.engine.max_batch_size, MAX_BATCH_ON_CPU) if on_cpu else question.engine.max_batch_size
    return [2**power for power in range(most.bit_length()) if 2**power <= most]
