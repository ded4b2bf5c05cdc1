"""A serving question: names and numbers as given, checked, with defaults said aloud."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autoconfig.memory_model.serving import ServingMemory, kv_sequence_bytes, serving_memory
from autoconfig.planning.resolve import DEFAULT_GPU, read_model
from autoconfig.serving.assumptions import assumptions
from autoconfig.serving.calibration_file import serving_calibration
from autoconfig.serving.load import DEFAULT_IMBALANCE, check_workload, read_workload
from autoconfig.specs.errors import InputError
from autoconfig.specs.hardware.gpu import GpuSpec
from autoconfig.specs.hardware.gpu_catalogue import load_gpu
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.parameters import Number
from autoconfig.specs.serve_plan import EnginePlan, parse_engine_keys
from autoconfig.specs.software.engine import DEFAULT_ENGINE, EngineSpec, load_engine
from autoconfig.specs.software.serving_formats import supports
from autoconfig.time_model.serving.calibration import ServingCalibration
from autoconfig.time_model.serving.costs import ServingJob
from autoconfig.time_model.serving.steady import Lengths, tokens_per_step
from autoconfig.time_model.serving.workload import Workload

GOALS = ("throughput", "ttft", "tpot", "gpus", "cost")
MOST_GPUS = 4096
NIC_EFFICIENCY = 0.8
"""Share of a network card's rate that a cache transfer reaches (docs/time_model.md, network)."""


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


@dataclass(frozen=True, kw_only=True)
class ServeQuestion:
    """A request understood."""

    model: ModelSpec
    gpu: GpuSpec
    engine: EngineSpec
    num_gpus: int
    gpus_per_node: int
    workload: Workload
    lengths: Lengths
    ttft_s: float | None
    tpot_s: float | None
    rate: float
    goal: str
    chunked: bool
    disaggregated: bool
    wish: Mapping[str, frozenset[object]]
    calibration: ServingCalibration
    imbalance: float
    kv_memory_ratio: float | None
    price: float | None
    assumed: tuple[str, ...] = field(default=())
    sized_for: float = 1.0
    """Times the mean load that a deployment must carry, where bursts ask for more than the mean."""

    @property
    def nic_bytes_per_s(self) -> float:
        """Per GPU; within a node the link."""
        return self.gpu.link_bytes_per_s if self.num_gpus <= self.gpus_per_node else self.gpu.nic_bytes_per_s

    @property
    def nic_efficiency(self) -> float:
        return NIC_EFFICIENCY

    def job(self, plan: EnginePlan) -> ServingJob:
        """A plan as something that can be priced."""
        return ServingJob(
            model=self.model,
            gpu=self.gpu,
            plan=plan,
            engine=self.engine,
            constants=self.calibration.constants(self.engine, self.gpu),
            gpus_per_node=self.gpus_per_node,
            imbalance=self.imbalance,
        )

    def memory(self, job: ServingJob, batch: Number, tokens: Number, length: float | None = None) -> ServingMemory:
        """Memory of one GPU of `job` for sequences of `length` tokens (what this question's hold on average), at batch sizes
        and token budgets of one shape."""
        return serving_memory(
            self.model,
            job.plan,
            job.formats,
            self.gpu,
            self.engine,
            length=self.workload.held_tokens if length is None else length,
            batch=batch,
            tokens=tokens,
            kv_memory_ratio=self.kv_memory_ratio,
        )

    def longest_bytes(self, plan: EnginePlan, memory: ServingMemory) -> float:
        """Cache of the longest request on one rank; a deployment whose pool is smaller can never serve it."""
        if self.workload.longest_tokens == self.workload.held_tokens:
            return float(memory.kv_bytes_per_sequence)
        return float(kv_sequence_bytes(self.model, plan, self.engine, self.workload.longest_tokens))

    @property
    def longest_prompt(self) -> float:
        """Most input tokens that a prefill computes."""
        return max(self.workload.longest_input * (1.0 - self.lengths.cached), 1.0)

    def limited(self, *, ttft: float = 1.0, tpot: float = 1.0) -> ServeQuestion:
        """The same with limits scaled."""
        return replace(
            self, ttft_s=self.ttft_s * ttft if self.ttft_s else None, tpot_s=self.tpot_s * tpot if self.tpot_s else None
        )


def understand(request: ServeRequest) -> ServeQuestion:
    """Raises InputError naming what cannot be used and what is allowed."""
    _check(request)
    model, notes = read_model(request.model, local_files=request.local_files)
    gpu, engine = load_gpu(request.gpu or DEFAULT_GPU), load_engine(request.engine or DEFAULT_ENGINE)
    per_node = request.gpus_per_node or min(gpu.link_domain_size, max(request.gpus, 1))
    if not 1 <= per_node <= MOST_GPUS:
        raise InputError(f"--gpus-per-node {per_node}: use 1 to {MOST_GPUS}")
    workload, rate = read_workload(request)
    chunked = engine.chunked_prefill if request.chunked is None else request.chunked
    imbalance = DEFAULT_IMBALANCE if request.imbalance is None else request.imbalance
    single = workload.osl <= 1.0
    if single and request.goal == "tpot":
        raise InputError("--goal tpot with --osl 1: answers of one token have no time per output token; use --goal ttft")
    calibration = serving_calibration(request.calibration if request.local_files else None)
    wish = _wish(request.fix)
    for form in wish.get("weights", frozenset()):
        if not supports(gpu, str(form)):
            raise InputError(f"--fix weights={form}: {gpu.id} does not multiply in it; use bf16, int8, int4 or leave it open")
    lengths = Lengths(
        isl=workload.isl,
        osl=workload.osl,
        cached=request.prefix_hit,
        drafted=float(request.draft_tokens),
        tokens_per_step=tokens_per_step(request.draft_tokens, request.acceptance or 0.0),
        context=workload.context_tokens,
        prompt_rms=math.hypot(workload.isl, workload.isl_stddev),
    )
    return ServeQuestion(
        model=model,
        gpu=gpu,
        engine=engine,
        num_gpus=request.gpus,
        gpus_per_node=per_node,
        workload=workload,
        lengths=lengths,
        ttft_s=request.ttft_s,
        tpot_s=None if single else request.tpot_s,
        rate=rate,
        goal=request.goal,
        chunked=chunked,
        disaggregated=request.disaggregated and request.gpus > 1 and not single,
        wish=wish,
        calibration=calibration,
        imbalance=imbalance,
        kv_memory_ratio=request.kv_memory_ratio,
        price=request.price,
        assumed=tuple(
            assumptions(request, notes, model, gpu, engine, workload, calibration.constants(engine, gpu).origin, wish)
        ),
    )


LEAST_ODD_TPOT_S = 5.0
"""Seconds per token from which a number without a unit was meant in milliseconds."""
LEAST_ODD_SECONDS = 100.0
"""The same for any duration without a unit: no one waits so long for a first token."""
MOST_DIGITS = 20
"""Of a number that a message repeats."""
LEAST_RATE = 1e-6
"""Requests per second (one in twelve days) below which a rate is not told from none."""


def _check(request: ServeRequest) -> None:
    bounds = (
        ("--gpus", request.gpus, 1, MOST_GPUS),
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
            raise InputError(f"{name} {str(value)[:MOST_DIGITS]}: use {low:g} to {high:g}")
    if 0 < request.rate < LEAST_RATE:
        raise InputError(f"--rate {request.rate:g}: use 0 or at least {LEAST_RATE:g}")
    if request.draft_tokens and request.acceptance is None:
        raise InputError(
            f"--draft-tokens {request.draft_tokens} needs --acceptance, the chance from 0 to 1 that a draft token is accepted; "
            "engines report it as their acceptance rate"
        )
    if request.acceptance and not request.draft_tokens:
        raise InputError(f"--acceptance {request.acceptance:g} needs --draft-tokens, the drafts that a step checks, like 3")
    check_workload(request)
    for name, limit in (("--ttft", request.ttft_s), ("--tpot", request.tpot_s), ("--price", request.price)):
        if limit is not None and not (math.isfinite(limit) and 0 < limit <= 1e9):
            raise InputError(f"{name} {limit:g}: use a positive number")
    if request.tpot_s is not None and request.tpot_s >= LEAST_ODD_TPOT_S:
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


def _wish(texts: Iterable[str]) -> dict[str, frozenset[object]]:
    values: dict[str, set[object]] = {}
    for text in texts:
        try:
            found = parse_engine_keys(text)
        except InputError as error:
            raise InputError(f"--fix {text}: {error}") from error
        for key, value in found.items():
            values.setdefault(key, set()).add(value)
    return {key: frozenset(either) for key, either in values.items()}


def seconds(text: str) -> float:
    """A duration like 50ms, 2s or 0.05 (seconds). Raises ValueError with what is allowed."""
    wanted = text.strip().lower()
    for suffix, factor in (("ms", 1e-3), ("us", 1e-6), ("s", 1.0), ("", 1.0)):
        if wanted.endswith(suffix):
            try:
                value = float(wanted.removesuffix(suffix)) * factor
            except ValueError:
                break
            if not suffix and LEAST_ODD_SECONDS <= value < math.inf:
                raise ValueError(f"{text[:40]!r} without a unit is {value:,.6g} seconds; write {wanted}ms or {wanted}s")
            if math.isfinite(value) and value > 0:
                return value
            break
    raise ValueError(f"{text[:40]!r} is no duration; write 50ms, 2s or 0.05")
