"""A serving question: names and numbers as given, checked, with defaults said aloud."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from autoconfig.serving.calibration_file import serving_calibration
from memory_model.serving import ServingMemory, serving_memory
from specs.engine import DEFAULT_ENGINE, EngineSpec, load_engine
from specs.errors import InputError
from specs.gpu import GpuSpec
from specs.gpu_catalogue import load_gpu
from specs.huggingface import model_from_mapping
from specs.model import ModelSpec
from specs.model_catalogue import resolve_model
from specs.parameters import Number
from specs.serve_plan import EnginePlan, parse_engine_keys
from specs.serving_formats import supports
from time_model.serving_calibration import ServingCalibration
from time_model.serving_costs import ServingJob
from time_model.serving_steady import Lengths, tokens_per_step

GOALS = ("throughput", "ttft", "tpot", "gpus", "cost")
MOST_GPUS = 4096
MOST_TOKENS = 2_000_000
NIC_EFFICIENCY = 0.8
"""Share of a network card's rate that a cache transfer reaches (docs/time_model.md, network)."""


@dataclass(frozen=True, kw_only=True)
class ServeRequest:
    """What the person or program asked, unread."""

    model: str | Mapping[str, Any]
    """A name or, over the network, what a config.json would hold."""
    gpus: int
    gpu: str = "h100-sxm-80gb"
    gpus_per_node: int | None = None
    engine: str = DEFAULT_ENGINE
    isl: int = 1000
    osl: int = 1000
    ttft_s: float | None = None
    tpot_s: float | None = None
    rate: float = 0.0
    goal: str = "throughput"
    fix: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    prefix_hit: float = 0.0
    draft_tokens: int = 0
    acceptance: float = 0.0
    length_cv: float = 0.0
    imbalance: float = 1.4
    disaggregated: bool = True
    chunked: bool | None = None
    kv_memory_ratio: float | None = None
    price: float | None = None
    top: int = 10
    simulate: int = 3
    calibration: str | None = None
    """File of constants that a study learned; None: the shipped ones."""
    local_files: bool = True
    """Whether the model may be a file of this machine."""


@dataclass(frozen=True, kw_only=True)
class ServeQuestion:
    """A request understood."""

    model: ModelSpec
    gpu: GpuSpec
    engine: EngineSpec
    num_gpus: int
    gpus_per_node: int
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
    length_cv: float
    assumed: tuple[str, ...] = field(default=())

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

    def memory(self, job: ServingJob, batch: Number, tokens: Number) -> ServingMemory:
        """Memory of one GPU of `job` for whole sequences of this question, at batch sizes and token budgets of one shape."""
        return serving_memory(
            self.model,
            job.plan,
            job.formats,
            self.gpu,
            self.engine,
            length=self.lengths.isl + self.lengths.osl,
            batch=batch,
            tokens=tokens,
            kv_memory_ratio=self.kv_memory_ratio,
        )

    def limited(self, *, ttft: float = 1.0, tpot: float = 1.0) -> ServeQuestion:
        """The same with limits scaled."""
        return replace(
            self, ttft_s=self.ttft_s * ttft if self.ttft_s else None, tpot_s=self.tpot_s * tpot if self.tpot_s else None
        )


def understand(request: ServeRequest) -> ServeQuestion:
    """Raises InputError naming what cannot be used and what is allowed."""
    _check(request)
    model, notes = _model(request)
    gpu, engine = load_gpu(request.gpu), load_engine(request.engine)
    per_node = request.gpus_per_node or min(gpu.link_domain_size, max(request.gpus, 1))
    if not 1 <= per_node <= MOST_GPUS:
        raise InputError(f"--gpus-per-node {per_node}: use 1 to {MOST_GPUS}")
    assumed = list(notes)
    chunked = engine.chunked_prefill if request.chunked is None else request.chunked
    calibration = serving_calibration(request.calibration if request.local_files else None)
    assumed.append(
        f"engine {engine.name}: {'chunked' if chunked else 'whole-prompt'} prefill, "
        f"{calibration.constants(engine, gpu).origin}"
    )
    wish = _wish(request.fix)
    for form in wish.get("weights", frozenset()):
        if not supports(gpu, str(form)):
            raise InputError(f"--fix weights={form}: {gpu.id} does not multiply in it; use bf16, int8, int4 or leave it open")
    lengths = Lengths(
        isl=float(request.isl),
        osl=float(request.osl),
        cached=request.prefix_hit,
        drafted=float(request.draft_tokens),
        tokens_per_step=tokens_per_step(request.draft_tokens, request.acceptance),
    )
    return ServeQuestion(
        model=model,
        gpu=gpu,
        engine=engine,
        num_gpus=request.gpus,
        gpus_per_node=per_node,
        lengths=lengths,
        ttft_s=request.ttft_s,
        tpot_s=request.tpot_s,
        rate=request.rate,
        goal=request.goal,
        chunked=chunked,
        disaggregated=request.disaggregated and request.gpus > 1,
        wish=wish,
        calibration=calibration,
        imbalance=request.imbalance,
        kv_memory_ratio=request.kv_memory_ratio,
        price=request.price,
        length_cv=request.length_cv,
        assumed=tuple(assumed),
    )


def _model(request: ServeRequest) -> tuple[ModelSpec, list[str]]:
    if isinstance(request.model, str):
        return resolve_model(request.model, paths=request.local_files)
    return model_from_mapping(request.model, "model", "inline"), []


LEAST_ODD_TPOT_S = 5.0
"""Seconds per token from which a number without a unit was meant in milliseconds."""
MOST_DIGITS = 20
"""Of a number that a message repeats."""
LEAST_RATE, LEAST_LENGTH_CV = 1e-6, 1e-3
"""Requests per second (one in twelve days), and spread of lengths over their mean, below which neither is told from none."""


def _check(request: ServeRequest) -> None:
    bounds = (
        ("--gpus", request.gpus, 1, MOST_GPUS),
        ("--isl", request.isl, 1, MOST_TOKENS),
        ("--osl", request.osl, 1, MOST_TOKENS),
        ("--rate", request.rate, 0, 1e9),
        ("--prefix-hit", request.prefix_hit, 0, 1),
        ("--draft-tokens", request.draft_tokens, 0, 64),
        ("--acceptance", request.acceptance, 0, 1),
        ("--length-cv", request.length_cv, 0, 10),
        ("--imbalance", request.imbalance, 1, 100),
        ("--top", request.top, 1, 1000),
        ("--simulate", request.simulate, 0, 100),
    )
    for name, value, low, high in bounds:
        if not low <= value <= high:  # also not-a-number; whole numbers may be too large for a float
            raise InputError(f"{name} {str(value)[:MOST_DIGITS]}: use {low:g} to {high:g}")
    for name, value, least in (("--rate", request.rate, LEAST_RATE), ("--length-cv", request.length_cv, LEAST_LENGTH_CV)):
        if 0 < value < least:
            raise InputError(f"{name} {value:g}: use 0 or at least {least:g}")
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
    if request.goal == "gpus" and not request.rate:
        raise InputError("--goal gpus needs --rate, the requests per second that the GPUs must carry")


def _wish(texts: Iterable[str]) -> dict[str, frozenset[object]]:
    values: dict[str, set[object]] = {}
    for text in texts:
        for key, value in parse_engine_keys(text).items():
            values.setdefault(key, set()).add(value)
    return {key: frozenset(found) for key, found in values.items()}


def seconds(text: str) -> float:
    """A duration like 50ms, 2s or 0.05 (seconds). Raises ValueError with what is allowed."""
    wanted = text.strip().lower()
    for suffix, factor in (("ms", 1e-3), ("us", 1e-6), ("s", 1.0), ("", 1.0)):
        if wanted.endswith(suffix):
            try:
                value = float(wanted.removesuffix(suffix)) * factor
            except ValueError:
                break
            if math.isfinite(value) and value > 0:
                return value
            break
    raise ValueError(f"{text[:40]!r} is no duration; write 50ms, 2s or 0.05")
