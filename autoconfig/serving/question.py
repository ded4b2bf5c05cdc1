"""A serving question: names, numbers and load resolved, with what was taken for granted said aloud."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from autoconfig.memory_model.engines.plan import BY_START, ServedPlan, StartOptions, check_options
from autoconfig.memory_model.serving import ServingMemory, checkpoint_bytes, kv_token_bytes, state_sequence_bytes
from autoconfig.planning.prices import price_for
from autoconfig.planning.request_fields import MAX_SERVING_GPUS
from autoconfig.planning.resolve import read_checkpoint, read_model
from autoconfig.planning.serving_calibration import serving_calibration
from autoconfig.serving.request import DEFAULT_TOKENS, ServeRequest
from autoconfig.serving.space import cache_formats, enumerate_space, weight_formats
from autoconfig.serving.traces import Recorded
from autoconfig.specs.engines.releases import later_release, newest_release, schedules_synchronously, settings
from autoconfig.specs.errors import InputError, UnsupportedError, option
from autoconfig.specs.hardware.cluster import DEFAULT_GPU, GpuSpec, load_gpu
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import published_checkpoint
from autoconfig.specs.models.parameters import Number
from autoconfig.specs.remarks import Effect, Remark, note
from autoconfig.specs.serve_plan import EnginePlan, parse_engine_keys
from autoconfig.specs.software.checkpoint import Checkpoint
from autoconfig.specs.software.engine import (
    DEFAULT_ENGINE,
    WEIGHT_BYTES,
    EngineSpec,
    cache_kernels,
    engine_names,
    load_engine,
    loads_checkpoint,
    published_format,
    require_sparse_kernels,
    supports,
)
from autoconfig.time_model.serving.borrowed import borrowed_shares
from autoconfig.time_model.serving.rows import ServingJob
from autoconfig.time_model.serving.steady import Lengths, tokens_per_step
from autoconfig.time_model.serving.tables import ServingCalibration, has_tables, serving_tables_of
from autoconfig.time_model.serving.workload import Drawn, Trace, Workload


def read_workload(request: ServeRequest) -> tuple[Workload, float, Recorded | None, float]:
    """(what is asked, requests per second; 0: a queue that is never empty, the trace of which the first is a part, how many
    times as often as in it requests come: --rate is the mean of the whole). Raises InputError."""
    if request.trace is None:
        isl, osl = (float(DEFAULT_TOKENS if value is None else value) for value in (request.isl, request.osl))
        return Drawn(isl, osl, request.isl_stddev or 0.0, request.osl_stddev or 0.0), request.rate, None, 1.0
    whole = Recorded.of(request.trace, local_files=request.local_files)
    trace = whole.trace
    if not request.rate:
        return trace, trace.rate, whole, 1.0
    times = request.rate / whole.rate
    rate = times * trace.rate if whole.window else request.rate
    return trace.at_rate(rate), rate, whole, times


NIC_EFFICIENCY = 0.8
"""Share of a network card's rate that a cache transfer reaches (docs/time_model.md, network)."""
MIN_TOKENS = 512.0
"""Tokens of an iteration that an instance is started with at least."""


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
    tails: Mapping[str, float]
    """Limits of percentiles in the simulation, seconds: request.TAILS."""
    rate: float
    goal: str
    chunked: bool
    disaggregated: bool
    """Whether separate prefill and decode instances are searched."""
    constraints: Mapping[str, frozenset[object]]
    calibration: ServingCalibration
    imbalance: float | None
    kv_memory_ratio: float | None
    asked_price: float | str | None
    """As ServeRequest.price."""
    options: StartOptions = field(default_factory=StartOptions)
    assumed: tuple[Remark, ...] = field(default=())
    checkpoint: Checkpoint | None = None
    """How the model's files store its weights, where they are quantised."""
    day: Recorded | None = None
    """The trace of whose busiest part `workload` has the requests."""
    times: float = 1.0
    """How many times as often as recorded they come."""
    usual_limit: bool = False
    """`tpot_s` is reasons.READABLE_TPOT_S, as nobody asked for a limit."""
    aggregated: bool = True
    """Whether instances that prefill and decode are searched."""
    sized_for: float = 1.0
    """Times the mean load that a deployment must carry, where bursts ask for more than the mean."""

    @property
    def price(self) -> float | None:
        """Money for one GPU and hour; None where none was given. Raises InputError where only other types have a price."""
        return price_for(self.asked_price, self.gpu.id)

    def sent_bytes_per_s(self, gpus: int) -> float:
        """Per GPU between the instances of a deployment of so many GPUs: within a node the link, else the network card."""
        return self.gpu.link_bytes_per_s if gpus <= self.gpus_per_node else self.gpu.nic_bytes_per_s

    def job(self, plan: EnginePlan) -> ServingJob:
        return ServingJob(
            model=self.model,
            gpu=self.gpu,
            plan=plan,
            engine=self.engine,
            constants=self.calibration.constants(self.engine, self.gpu),
            gpus_per_node=self.gpus_per_node,
            imbalance=self.imbalance,
            synchronous=schedules_synchronously(self.engine.framework, self.options.release),
            checkpoint=self.checkpoint,
        )

    def layouts(
        self, fixed: Mapping[str, frozenset[object]] | None = None, gpus: int = 0, *, fill: bool = True
    ) -> Iterator[EnginePlan]:
        """Every layout that fills the GPUs, or so many, within the constraints, or `fixed` (space.enumerate_space)."""
        asked = self.constraints if fixed is None else fixed
        size = gpus or self.num_gpus
        return enumerate_space(self.model, self.gpu, self.engine, size, self.gpus_per_node, asked, self.checkpoint, fill=fill)

    def memory(self, job: ServingJob, batch: Number, tokens: Number, length: float | None = None) -> ServingMemory:
        """Memory of one GPU of `job` for sequences of `length` tokens (what this question's hold on average), at batch sizes
        and token budgets of one shape."""
        held = self.workload.held_tokens if length is None else length
        return self.served(job).memory(length=held, batch=batch, tokens=tokens)

    def served(self, job: ServingJob) -> ServedPlan:
        """The plan of a job with what the question says of its start."""
        return ServedPlan(
            model=self.model,
            plan=job.plan,
            formats=job.formats,
            gpu=self.gpu,
            engine=self.engine,
            kv_memory_ratio=self.kv_memory_ratio,
            options=self.options,
        )

    def sequence_bytes(self, plan: EnginePlan, length: float) -> float:
        """Cache of one sequence of `length` tokens on one rank."""
        return self.served(self.job(plan)).sequence_bytes(length, float(plan.tokens))

    def longest_bytes(self, plan: EnginePlan, memory: ServingMemory) -> float:
        """Cache of the longest request on one rank, or of the longest sequence that the engine is told to take; a deployment
        whose pool is smaller can never serve it."""
        longest = max(self.workload.longest_tokens, float(self.options.max_model_len or 0))
        if longest == self.workload.held_tokens and np.ndim(memory.kv_bytes_per_sequence) == 0:
            return float(memory.kv_bytes_per_sequence)
        return self.sequence_bytes(plan, longest)

    @property
    def prefill_tokens(self) -> float:
        """Tokens of an iteration of a prefill instance: the longest prompt, whole."""
        return max(self.longest_prompt, MIN_TOKENS)

    def prefill_plan(self, plan: EnginePlan, replicas: int) -> EnginePlan:
        """The layout as the prefill side of a plan: batch 1, which engines read as one prompt a rank and stage."""
        return plan.replace(batch=1, tokens=int(self.prefill_tokens), replicas=replicas)

    def prefill_memory(self, plan: EnginePlan) -> ServingMemory:
        """Of one GPU of a prefill instance with a prompt on every rank and stage; a sequence is then a mean prompt."""
        return self.memory(self.job(plan), float(plan.adp * plan.pp), self.prefill_tokens, length=self.workload.isl)

    def prefill_lacks_bytes(self, plan: EnginePlan) -> float:
        """What a GPU of the prefill instance lacks to hold the longest prompt's activations, and the cache of as many such
        prompts as it has stages; at most 0 where they fit."""
        longest = self.sequence_bytes(plan, self.workload.longest_input)
        return plan.pp * longest - float(self.prefill_memory(plan).kv_pool_bytes)

    def transfer_seconds(self, plan: EnginePlan, gpus: int) -> float:
        """KV cache of one prompt from prefill to decode GPUs of a deployment of so many: each rank sends its share through its
        own network card."""
        moved = self.lengths.isl * kv_token_bytes(self.model, plan) + state_sequence_bytes(self.model, plan)
        return moved / (self.sent_bytes_per_s(gpus) * NIC_EFFICIENCY)

    def decode_memory(self, plan: EnginePlan) -> ServingMemory:
        """Of one GPU of an instance at its own limits of sequences and tokens."""
        return self.memory(self.job(plan), float(plan.batch), float(plan.tokens))

    @property
    def longest_prompt(self) -> float:
        """Most input tokens that a prefill computes."""
        return max(self.workload.longest_input * (1.0 - self.lengths.cached), 1.0)

    def in_means(self, slack: float = 1.0) -> ServeQuestion:
        """The same with limits of percentiles, times `slack`, as limits of means too, which are what the closed form knows:
        below them."""
        tails = [(name, slack * limit) for name, limit in self.tails.items()]
        ttft, tpot = (
            min([*filter(None, [mean]), *(limit for name, limit in tails if name.startswith(kind))], default=None)
            for kind, mean in (("ttft", self.ttft_s), ("tpot", self.tpot_s))
        )
        return replace(self, ttft_s=ttft, tpot_s=tpot)

    def limited(self, *, ttft: float = 1.0, tpot: float = 1.0) -> ServeQuestion:
        return replace(
            self, ttft_s=self.ttft_s * ttft if self.ttft_s else None, tpot_s=self.tpot_s * tpot if self.tpot_s else None
        )


def start_options(request: ServeRequest, model: ModelSpec, engine: EngineSpec, workload: Workload) -> StartOptions:
    """What the request says of the engines' starts. Raises InputError where they could not take the longest request."""
    longest = request.max_model_len
    if longest is not None and longest < workload.longest_tokens:
        raise InputError(
            f"{option('max_model_len')} {longest:,}: the longest request has {workload.longest_tokens:,.0f} tokens, prompt and "
            "answer; say at least so many"
        )
    own = request.draft_tokens and model.mtp_num_layers and engine.framework in BY_START
    method = request.draft_method or ("mtp" if own else "")
    return StartOptions(
        release=request.release,
        max_num_seqs=request.max_num_seqs,
        max_model_len=longest,
        eager=request.enforce_eager,
        lora_slots=request.max_loras,
        lora_rank=request.max_lora_rank,
        draft_method=method,
        draft_tokens=request.draft_tokens,
    )


def _check_served(model: ModelSpec, gpu: GpuSpec, engine: EngineSpec) -> None:
    """Raises UnsupportedError for models that serving does not price, or that the engine or its kernels for the GPU lack."""
    if model.is_sparse and engine.framework == "megatron":
        raise UnsupportedError(f"{model.name}: megatron inference has no sparse attention (DSA); {option('engine')} vllm")
    if model.is_sparse:
        require_sparse_kernels(model, gpu)
    if model.encoder_num_layers:
        raise UnsupportedError(
            f"{model.name} has an encoder: serving prices decoders that generate (vLLM's and SGLang's own T5 are gone, BERT "
            "embeds); use search"
        )


def understand(request: ServeRequest) -> ServeQuestion:
    """Raises InputError naming what cannot be used and what is allowed."""
    request.check()
    model, notes = read_model(request.model, local_files=request.local_files, like=request.like, download=request.download)
    gpu, engine = load_gpu(request.gpu or DEFAULT_GPU), load_engine(request.engine or DEFAULT_ENGINE)
    _check_served(model, gpu, engine)
    per_node = request.gpus_per_node or min(gpu.link_domain_size, max(request.gpus, 1))
    if not 1 <= per_node <= MAX_SERVING_GPUS:
        raise InputError(f"{option('gpus_per_node')} {per_node}: use 1 to {MAX_SERVING_GPUS}")
    workload, rate, whole, times = read_workload(request)
    chunked = engine.chunked_prefill if request.chunked is None else request.chunked
    single = workload.osl <= 1.0
    limits = _limits(request, single=single)
    options = start_options(request, model, engine, workload)
    check_options(engine, options)
    engine = replace(engine, eager_iterations="all") if options.eager else engine
    calibration = serving_calibration(request.calibration if request.local_files else None)
    checkpoint = read_checkpoint(request.model, local_files=request.local_files)
    constraints = _decided(request, checkpoint, engine, gpu, options)
    question = ServeQuestion(
        model=model,
        gpu=gpu,
        engine=engine,
        num_gpus=request.gpus,
        gpus_per_node=per_node,
        workload=workload,
        lengths=_lengths(request, workload),
        rate=rate,
        day=whole if whole is not None and whole.window else None,
        times=times,
        goal=request.goal,
        chunked=chunked,
        disaggregated=request.disaggregated and request.gpus > 1 and not single,
        constraints=constraints,
        calibration=calibration,
        imbalance=request.imbalance,
        kv_memory_ratio=request.kv_memory_ratio,
        asked_price=request.price,
        checkpoint=checkpoint,
        options=options,
        **limits,
    )
    return replace(question, assumed=(*notes, *_assumptions(request, question)))


def _limits(request: ServeRequest, *, single: bool) -> dict[str, Any]:
    """Limits of means and percentiles; a `single` token has no time per output token. Raises InputError where that is the
    goal."""
    if not single:
        return {"ttft_s": request.ttft_s, "tpot_s": request.tpot_s, "tails": request.tail_limits}
    if request.goal == "tpot":
        raise InputError(
            f"{option('goal')} tpot with {option('osl')} 1: answers of one token have no time per output token; "
            f"use {option('goal')} ttft"
        )
    tails = {name: value for name, value in request.tail_limits.items() if name.startswith("ttft")}
    return {"ttft_s": request.ttft_s, "tpot_s": None, "tails": tails}


def _lengths(request: ServeRequest, workload: Workload) -> Lengths:
    return Lengths(
        isl=workload.isl,
        osl=workload.osl,
        cached=request.prefix_hit,
        drafted=float(request.draft_tokens),
        tokens_per_step=tokens_per_step(request.draft_tokens, request.acceptance or 0.0),
        context=workload.context_tokens,
        prompt_rms=math.hypot(workload.isl, workload.isl_stddev),
        alike=not (workload.isl_stddev or workload.osl_stddev),
    )


def _decided(
    request: ServeRequest, checkpoint: Checkpoint | None, engine: EngineSpec, gpu: GpuSpec, options: StartOptions
) -> dict[str, frozenset[object]]:
    """--fix by key, with what a quantised checkpoint and drafts decide. Raises InputError for what cannot run."""
    constraints = _constraints(request.fix)
    if options.draft_method == "mtp":
        constraints = _one_stage(constraints, engine)
    if checkpoint is not None:
        constraints = _of_checkpoint(checkpoint, engine, gpu, constraints)
    for form in () if checkpoint else constraints.get("weights", frozenset()):
        if not supports(gpu, str(form)):
            able = ", ".join(name for name in WEIGHT_BYTES if supports(gpu, name))
            raise InputError(f"{option('fix')} weights={form}: {gpu.id} does not multiply in it; use {able} or leave it open")
    for form in constraints.get("kv", frozenset()):
        if cache_kernels(engine.framework, gpu, str(form)):
            raise InputError(
                f"{option('fix')} kv={form}: no attention kernel of {gpu.id} reads a cache in {form}; use kv=bf16 or leave it "
                "open"
            )
    return constraints


def _of_checkpoint(
    checkpoint: Checkpoint, engine: EngineSpec, gpu: GpuSpec, constraints: Mapping[str, frozenset[object]]
) -> dict[str, frozenset[object]]:
    """--fix with what a quantised checkpoint decides: the weights, and the cache whose scales it holds. Raises
    UnsupportedError where the engine does not load it, InputError where --fix says otherwise."""
    if why := loads_checkpoint(engine.framework, checkpoint.kind, gpu):
        able = [name for name in engine_names() if not loads_checkpoint(load_engine(name).framework, checkpoint.kind, gpu)]
        others = f"{option('engine')} {' or '.join(able)}"
        others = others if able else f"another {option('gpu')}: no engine loads it on {gpu.id}"
        raise UnsupportedError(f"the checkpoint is quantised ({checkpoint}): {why}; try {others}")
    decided = {"weights": checkpoint.main.form, **({"kv": checkpoint.kv} if checkpoint.kv else {})}
    for key, form in decided.items():
        if other := constraints.get(key, frozenset({form})) - {form}:
            raise InputError(
                f"{option('fix')} {key}={next(iter(other))}: the checkpoint is quantised ({checkpoint}"
                f"{', cache in ' + checkpoint.kv if checkpoint.kv else ''}); leave {key} out, or name a checkpoint in 16 bits"
            )
    return {**constraints, **{key: frozenset({form}) for key, form in decided.items()}}


def _one_stage(constraints: Mapping[str, frozenset[object]], engine: EngineSpec) -> dict[str, frozenset[object]]:
    """Without pipeline stages, over which a layer of the checkpoint cannot draft. Raises InputError where --fix asks for them.

    vLLM 0.26 to 0.29: config/speculative.py asks SupportsPP of the draft model, which has it not, and the next stage takes one
    token a sequence (vllm-project/vllm issues 52069, 57755); SGLang: server_args.py, PP with speculative decoding on prefill
    instances alone.
    """
    if more := constraints.get("pp", frozenset({1})) - {1}:
        raise InputError(
            f"{option('fix')} pp={min(map(str, more))}: {engine.framework} does not draft with MTP over pipeline stages; "
            f"use pp=1 or drop {option('draft_tokens')}"
        )
    return {**constraints, "pp": frozenset({1})}


def _constraints(texts: Iterable[str]) -> dict[str, frozenset[object]]:
    values: dict[str, set[object]] = {}
    for text in texts:
        try:
            found = parse_engine_keys(text)
        except InputError as error:
            raise InputError(f"{option('fix')} {text}: {error.message}") from error
        for key, value in found.items():
            values.setdefault(key, set()).add(value)
    return {key: frozenset(either) for key, either in values.items()}


def _checkpoint_said(question: ServeQuestion, checkpoint: Checkpoint, named: object) -> Iterator[Remark]:
    formats = checkpoint.formats(question.model)
    size = checkpoint_bytes(question.model, formats)
    kept = [name for name in ("attention", "mlp", "experts") if getattr(formats, name) == "bf16"]
    yield note(
        f"quantised checkpoint ({checkpoint}), {size / 1e9:.4g} GB of files; in 16 bits: "
        f"{', '.join([*kept, 'embedding, routers, norms and what it names'])}",
        Effect.EVERYTHING,
    )
    if isinstance(named, str) and (published := published_checkpoint(named)) and published.recipe:
        yield note(f"which modules of {named.strip()[:80]} are quantised how: {published.source}", Effect.NOTHING)
    form = checkpoint.main.form
    if not supports(question.gpu, form):
        yield note(f"{question.gpu.id} does not multiply in {form}: weights only, products in 16 bits", Effect.TIME)
    if checkpoint.method == "bitsandbytes" or form == "int8":
        yield note(f"{checkpoint.method} priced with the kernels of {form}", Effect.TIME)


def _assumptions(request: ServeRequest, question: ServeQuestion) -> Iterator[Remark]:
    model, gpu, engine, workload = question.model, question.gpu, question.engine, question.workload
    if question.checkpoint is not None:
        yield from _checkpoint_said(question, question.checkpoint, request.model)
    else:
        yield from _searched_formats(question)
    if request.gpu is None:
        yield Remark("gpu", gpu.id, "", Effect.EVERYTHING)
    if request.gpus_per_node is None and request.gpus > 1:
        yield Remark("gpus_per_node", min(gpu.link_domain_size, request.gpus), f"over {gpu.link}", Effect.EVERYTHING)
    if request.engine is None:
        yield Remark("engine", engine.name, "", Effect.EVERYTHING)
    origin = question.calibration.constants(engine, gpu).origin
    yield note(f"{engine.name} priced with {origin}", Effect.TIME)
    if has_tables(gpu):  # where there are none, a search refuses the GPU and a study measures it
        weights, caches = ([str(one) for one in question.constraints.get(key, ())] for key in ("weights", "kv"))
        forms = weight_formats(model, gpu, weights)
        yield from borrowed_shares(serving_tables_of(gpu), model, gpu, forms, cache_formats(gpu, caches))
    if request.chunked is None:
        yield Remark("chunked_prefill", engine.chunked_prefill, "the engine's default", Effect.TIME)
    yield from _assumed_load(request, workload)
    if workload.osl <= 1.0:
        limit = ", --tpot is not looked at" if request.tpot_s is not None else ""
        yield note(f"answers of one token: no TPOT{limit}, no separate decode instances")
    most = workload.longest_tokens
    if most > model.max_position_embeddings:
        beyond = f"beyond the {model.max_position_embeddings:,} positions of {model.name}"
        yield note(f"{most:,.0f} tokens in a sequence, {beyond}", Effect.NOTHING)
    yield from _assumed_steps(request, model)
    yield from _assumed_memory(request, question)


def _assumed_steps(request: ServeRequest, model: ModelSpec) -> Iterator[Remark]:
    """Of what an iteration takes."""
    if model.is_moe and request.imbalance is None:
        yield Remark("imbalance", None, "experts: routing as skewed as in the measured rows", Effect.TIME)
    if model.is_hybrid:
        why = "recurrent layers: states in fp32, read and written for every token at 0.8 of HBM; they were not measured"
        yield note(why)
    if model.is_sparse:
        why = "sparse attention: at the share of peak that training's module reaches; no run of it was measured"
        yield note(why, Effect.TIME)
    if not request.prefix_hit:
        yield Remark("prefix_hit", None, "no prefix hits", Effect.TIME)
    if not request.draft_tokens:
        yield Remark("draft_tokens", None, "no speculation", Effect.TIME)


def _assumed_memory(request: ServeRequest, question: ServeQuestion) -> Iterator[Remark]:
    engine, options = question.engine, question.options
    if engine.framework not in BY_START:
        if request.kv_memory_ratio is None:
            yield Remark("kv_memory_ratio", None, f"{engine.kv_memory_ratio:g} of the free memory for the cache")
        yield note(f"{engine.runtime_bytes / 1e9:g} GB of a GPU for context, libraries and workspaces")
        return
    release = options.release or newest_release(engine.framework)
    if why := later_release(engine.framework, options.release or ""):
        yield Remark("release", release, why, Effect.EVERYTHING)
    if not options.release:
        yield Remark("release", release, f"memory of {engine.name} by its newest known release")
    if request.kv_memory_ratio is None:
        if engine.framework == "vllm":
            share = settings("vllm", release)["fraction"].value
            why = f"{share:g} of the memory, weights and the rest within it, for the cache"
        else:
            why = "SGLang's own share of the memory by card, GPUs and tokens of a step"
        yield Remark("kv_memory_ratio", None, why)
    if options.max_num_seqs is None and engine.framework == "vllm":
        yield Remark("max_num_seqs", None, "as many sequences as run at once, which the profile run samples")


def _searched_formats(question: ServeQuestion) -> Iterator[Remark]:
    """Formats that nobody asked for and that the search may take."""
    asked = {key: [str(one) for one in question.constraints.get(key, ())] for key in ("weights", "kv")}
    model, gpu = question.model, question.gpu
    tried = {"weights": weight_formats(model, gpu, asked["weights"]), "kv": cache_formats(gpu, asked["kv"])}
    published = published_format(model)
    if published and not asked["weights"] and tried["weights"][0] == published:
        yield note(f"weights in {published}, as published (--fix weights=bf16: in 16 bits)", Effect.EVERYTHING)
    named = {published: f"{published} (as published)"}
    fewer = {
        key: " or ".join(named.get(form, form) if key == "weights" else form for form in tried[key][1:])
        for key in tried
        if not asked[key] and len(tried[key]) > 1
    }
    if fewer:
        held = " ".join(f"--fix {key}={tried[key][0]}" for key in fewer)
        said = " and ".join(f"{'cache' if key == 'kv' else key} in {forms}" for key, forms in fewer.items())
        yield note(f"{said} where that serves more, whatever it costs in quality ({held})", Effect.EVERYTHING)


def _assumed_load(request: ServeRequest, workload: Workload) -> Iterator[Remark]:
    if isinstance(workload, Trace):
        yield note("requests go to replicas and ranks in turn", Effect.TIME)
        return
    for name, given in (("isl", request.isl), ("osl", request.osl)):
        if given is None:
            yield Remark(name, DEFAULT_TOKENS, "")
    if not request.isl_stddev and not request.osl_stddev:
        yield Remark("isl_stddev", None, "requests of one length", Effect.TIME)
    else:
        most = f"at most {workload.longest_tokens:,.0f} tokens together"
        yield note(f"lengths gamma distributed, {most} (mean + 6 stddev each)", Effect.TIME)
    yield Remark("" if request.rate else "rate", None, "Poisson arrivals" if request.rate else "a queue that is never empty")
