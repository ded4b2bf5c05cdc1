"""Seconds of one iteration of a serving engine: operators from the serving tables, host and launches from the calibration.

An iteration of one attention rank runs D decode tokens (one per sequence, L tokens cached each) and prefill tokens of P
prompts of length s: T = D + P s rows go through every linear layer, each attention sees its own part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
from autoconfig.specs.hardware.cluster import GpuSpec, cluster_of
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.parameters import Number, attention_gemms, kv_heads_per_rank, padded_vocab_size
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.specs.software.engine import EngineSpec, ModuleFormats, module_formats
from autoconfig.time_model.hardware.efficiency import GridTable, efficiency_of
from autoconfig.time_model.job import Group, collective_seconds, links_of
from autoconfig.time_model.serving import ideal
from autoconfig.time_model.serving.tables import EngineConstants, ServingTables, host_slowness, serving_tables_of

Vector = npt.NDArray[np.float64]
HBM_POINTWISE = 0.8
"""Share of the bandwidth that norms, residuals and activations reach (docs/time_model.md, pointwise)."""
KERNEL_S = 2.5e-6
"""A memory-bound kernel of few rows takes as long as an empty one."""
POINTWISE_KERNELS = 3
"""Two norms with their residuals, one activation, per layer."""
STAND_INS = {
    "nvfp4": ("fp8", "bf16"),
    "mxfp4": ("nvfp4", "fp8", "bf16"),
    "mxfp4_weight_only": ("mxfp4", "bf16"),
    "fp8_block": ("fp8", "bf16"),
    "fp8": ("bf16",),
    "int8": ("bf16",),
    "int4": ("int8", "bf16"),
}
"""Whose share of the roofline is taken where a format was not measured on a chip (linear layers in int8 and int4:
serving_tables.WEIGHT_ONLY)."""
PARTS = (
    "linear",
    "output layer",
    "decode attention",
    "prefill attention",
    "communication",
    "pointwise",
    "experts",
    "sampling",
    "launches",
    "host",
)


@dataclass(frozen=True, kw_only=True)
class ServingJob:
    """One model on one layout of one engine: everything that prices an iteration."""

    model: ModelSpec
    gpu: GpuSpec
    plan: EnginePlan
    engine: EngineSpec
    constants: EngineConstants = field(default_factory=EngineConstants)
    gpus_per_node: int | None = None
    imbalance: float | None = None
    """Rows of the busiest expert rank over the mean; None: routing skewed as in the measured rows (ServingTables.skew)."""
    measured: ServingTables | None = None
    """Operators of the GPU; None: the shipped ones."""
    graph_sizes: tuple[int, ...] = ()
    """Sequences of the CUDA graphs of iterations that only decode; such an iteration is padded to the next of them."""

    @cached_property
    def formats(self) -> ModuleFormats:
        return module_formats(self.model, self.plan.weights, self.gpu)

    @cached_property
    def tables(self) -> ServingTables:
        return self.measured or serving_tables_of(self.gpu)

    @property
    def group(self) -> int:
        """Ranks of a stage."""
        return self.plan.tp * self.plan.adp


def stand_in(tables: Mapping[str, GridTable], wanted: str) -> str:
    """The format itself where it was measured, else the nearest that was."""
    return next(name for name in (wanted, *STAND_INS.get(wanted, ()), "bf16") if name in tables)


def _table(tables: dict[str, GridTable], wanted: str) -> GridTable:
    return tables[stand_in(tables, wanted)]


def cache_table(tables: Mapping[str, GridTable], kv: str, dim: int) -> str:
    """Which decode attention prices a cache of this format: its own, else the nearest that was measured."""
    return next(key for key in (f"{kv}:{dim}", f"fp8:{dim}", f"bf16:{dim}", "fp8:128", "bf16:128") if key in tables)


def linear_seconds(job: ServingJob, m: Number, n: float, k: float, weights: str) -> Number:
    """C[m, n] = A[m, k] B[k, n]: roofline over the measured share (nearest edge outside of the table)."""
    rows = np.maximum(m, 1.0)
    share = _table(job.tables.gemm, weights).at(rows, n + 0.0 * rows, k + 0.0 * rows)
    return ideal.gemm_seconds(rows, n, k, weights, job.gpu) / share


def attention_linear_seconds(job: ServingJob, tokens: Number) -> Number:
    """Projections of one attention block; multi-latent attention with its absorbed products (2 a d 512 a token)."""
    model, tp, weights = job.model, job.plan.tp, job.formats.attention
    h = float(model.hidden_size)
    if not model.multi_latent_attention:
        q, kv = model.query_size / tp, float(kv_heads_per_rank(model, tp)) * model.kv_channels
        return linear_seconds(job, tokens, q + 2.0 * kv, h, weights) + linear_seconds(job, tokens, h, q, weights)
    total: Number = 0.0
    inner = {
        "linear_q_up_proj": float(model.q_lora_rank or 0),
        "linear_proj": model.num_attention_heads * model.v_head_dim / tp,
    }
    for name, elements in attention_gemms(model, tp).items():
        if name != "linear_kv_up_proj":
            k = inner.get(name, h)
            total = total + linear_seconds(job, tokens, float(elements) / k, k, weights)
    heads, width = model.num_attention_heads / tp, model.kv_lora_rank
    for size in (model.qk_head_dim, model.v_head_dim):
        flops, traffic = 2.0 * heads * size * width * tokens, 2.0 * heads * (size * width + tokens * (size + width))
        total = (
            total
            + KERNEL_S
            + np.maximum(flops / (0.5 * job.gpu.flops_per_s["bf16"]), traffic / (HBM_POINTWISE * job.gpu.hbm_bytes_per_s))
        )
    return total


def mlp_seconds(job: ServingJob, tokens: Number, ffn: int) -> Number:
    """Both matrices of a dense MLP (or shared experts), divided over tp."""
    model, width = job.model, ffn / job.plan.tp
    up = linear_seconds(job, tokens, model.gate_factor * width, float(model.hidden_size), job.formats.mlp)
    return up + linear_seconds(job, tokens, float(model.hidden_size), width, job.formats.mlp)


def experts_seconds(job: ServingJob, tokens: Number) -> Number:
    """Routed experts of one rank: the tokens of all attention ranks meet E/ep local experts, each cut over (tp adp)/ep ranks.

    Rows an expert r = T adp k / E; touched experts (E/ep)(1 - e^-r), tokens choosing evenly and independently.
    """
    model, plan = job.model, job.plan
    count, width = float(model.num_moe_experts or 1), model.moe_ffn_hidden_size * plan.ep / job.group
    rows = np.maximum(tokens * plan.adp * model.moe_router_topk / count, 1e-4)
    local = count / plan.ep
    active = np.maximum(local * -np.expm1(-rows), min(1.0, local))
    busiest = rows * (job.imbalance if plan.ep > 1 and job.imbalance is not None else 1.0)
    best = ideal.experts_seconds(busiest, local, active, model.hidden_size, width, job.formats.experts, job.gpu)
    sizes = (model.hidden_size + 0.0 * rows, width + 0.0 * rows, local + 0.0 * rows)
    near = stand_in(job.tables.experts, job.formats.experts)
    even = best / job.tables.experts[near].at(busiest, *sizes)
    skew = job.tables.skew.get(f"{near}:{'many' if plan.ep > 1 else 'one'}") if job.imbalance is None else None
    return even if skew is None else even * skew.at(rows, sizes[2])


def reduce_seconds(job: ServingJob, ranks: int, total_bytes: Number) -> Number:
    """All-reduce among `ranks` GPUs: the engine's measured table within a link domain, NCCL's closed form over the network."""
    if ranks == 1:
        return 0.0 * total_bytes
    node = job.gpus_per_node or job.gpu.link_domain_size
    if ranks <= node:
        return job.tables.all_reduce.seconds(ranks, total_bytes, job.gpu.link_bytes_per_s)
    return _network_seconds(job, "all_reduce", ranks, total_bytes)


def _network_seconds(job: ServingJob, kind: str, ranks: int, total_bytes: Number) -> Number:
    constants = efficiency_of(job.gpu)
    links = links_of(cluster_of(job.gpu, ranks), constants)
    local = float(min(ranks, job.gpus_per_node or job.gpu.link_domain_size))
    return collective_seconds(kind, total_bytes, Group(size=float(ranks), local=local), links)


def block_communication_seconds(job: ServingJob, tokens: Number, moe: bool) -> Number:
    """Of one layer: two all-reduces of T h over tp; with attention data parallelism a MoE layer gathers all ranks' tokens in
    the experts' format and scatters the results in 16 bits: 16 bits both ways are one all-reduce (2 (n-1)/n bytes)."""
    model, plan = job.model, job.plan
    size = 2.0 * model.hidden_size * tokens
    total = (1.0 if moe and plan.adp > 1 else 2.0) * reduce_seconds(job, plan.tp, size)
    if not moe or plan.adp == 1:
        return total
    gathered = ideal.INPUT_BYTES[job.formats.experts] / 2.0
    return total + reduce_seconds(job, job.group, size * plan.adp * (1.0 + gathered) / 2.0)


def pointwise_seconds(job: ServingJob, tokens: Number, moe: bool) -> Number:
    """Two norms with residuals, 16 h bytes a token, and 2 (G + 1) f/t of the activation (the experts' is in their table)."""
    model = job.model
    traffic = 16.0 * model.hidden_size * tokens
    if not moe:
        traffic = traffic + 2.0 * (model.gate_factor + 1.0) * model.ffn_hidden_size / job.plan.tp * tokens
    return traffic / (HBM_POINTWISE * job.gpu.hbm_bytes_per_s) + POINTWISE_KERNELS * KERNEL_S


def token_parts(job: ServingJob, tokens: Number) -> dict[str, Number]:
    """Everything that depends on the rows of an iteration alone, all layers, by part."""
    model = job.model
    parts: dict[str, Number] = {name: 0.0 * tokens for name in ("linear", "communication", "pointwise", "experts")}
    attention = attention_linear_seconds(job, tokens)
    for moe in (0, 1):
        layers = model.moe_pattern.count(moe)
        if not layers:
            continue
        if moe:
            linear = linear_seconds(job, tokens, float(model.num_moe_experts or 1), float(model.hidden_size), "bf16")
            if model.moe_shared_expert_intermediate_size:
                linear = linear + mlp_seconds(job, tokens, model.moe_shared_expert_intermediate_size)
            parts["experts"] = parts["experts"] + layers * experts_seconds(job, tokens)
        else:
            linear = mlp_seconds(job, tokens, model.ffn_hidden_size)
        parts["linear"] = parts["linear"] + layers * (attention + linear)
        parts["communication"] = parts["communication"] + layers * block_communication_seconds(job, tokens, bool(moe))
        parts["pointwise"] = parts["pointwise"] + layers * pointwise_seconds(job, tokens, bool(moe))
    if job.plan.pp > 1:
        parts["communication"] = parts["communication"] + (job.plan.pp - 1) * _send_seconds(job, tokens)
    return parts


def _send_seconds(job: ServingJob, tokens: Number) -> Number:
    """Hidden states to the next stage, over the link."""
    return 2 * KERNEL_S * 2 + 2.0 * job.model.hidden_size * tokens / job.plan.tp / (0.7 * job.gpu.link_bytes_per_s)


def head_dim(model: ModelSpec) -> int:
    """The measured head size that stands for the model's."""
    return 64 if model.kv_channels <= 64 else 128


def _layer_kinds(job: ServingJob) -> tuple[int, int]:
    """(layers with full attention, layers that slide)."""
    slides = sum(job.model.sliding_pattern) if job.engine.reads_window_only else 0
    return job.model.num_layers - slides, slides


def decode_attention_seconds(job: ServingJob, sequences: Number, length: Number) -> Number:
    """All layers: one token of each sequence against its cache; sliding layers read their window."""
    model, tp, kv = job.model, job.plan.tp, job.plan.kv
    d = np.asarray(sequences, dtype=np.float64)
    heads, many = model.num_attention_heads / tp, np.maximum(d, 1.0)
    if model.multi_latent_attention:
        size = np.maximum(length, 1.0) + 0.0 * d
        table = job.tables.latent_attention.get(f"decode:{kv}") or job.tables.latent_attention["decode:bf16"]
        return np.where(
            d > 0,
            model.num_layers * ideal.latent_decode_seconds(d, heads, size, kv, job.gpu) / table.at(many, heads + 0.0 * d, size),
            0.0,
        )
    groups, total = float(kv_heads_per_rank(model, tp)), 0.0 * d
    tables = job.tables.decode_attention
    table = tables[cache_table(tables, kv, head_dim(job.model))]
    for layers, window in zip(_layer_kinds(job), (None, model.window_size), strict=True):
        if layers:
            size = np.maximum(length if window is None else np.minimum(length, window), 1.0) + 0.0 * d
            best = ideal.decode_attention_seconds(d, heads, groups, model.kv_channels, size, kv, job.gpu)
            total = total + layers * best / table.at(many * groups, heads / groups + 0.0 * d, size)
    return np.where(d > 0, total, 0.0)


def prefill_attention_seconds(job: ServingJob, prompts: Number, length: Number) -> Number:
    """All layers: causal attention of whole prompts; sliding layers see at most window of each token's past."""
    model, tp = job.model, job.plan.tp
    p = np.asarray(prompts, dtype=np.float64)
    heads, many, size = model.num_attention_heads / tp, np.maximum(p, 1.0), np.maximum(length, 1.0) + 0.0 * p
    if model.multi_latent_attention:
        table = job.tables.latent_attention.get(f"context:{job.plan.kv}") or job.tables.latent_attention["context:bf16"]
        best = ideal.latent_context_seconds(p, heads, size, job.plan.kv, job.gpu)
        return np.where(p > 0, model.num_layers * best / table.at(many, heads + 0.0 * p, size), 0.0)
    low = job.formats.attention in ("fp8", "nvfp4")
    kind = "bf16" if job.plan.kv == "bf16" else "fp8" if low else "bf16_fp8_cache"
    tables, dim = job.tables.context_attention, head_dim(job.model)
    kind, table = next(
        (name.split(":")[0], tables[name])
        for name in (f"{kind}:{dim}", f"bf16:{dim}", f"{kind}:128", "bf16:128")
        if name in tables
    )
    best = ideal.context_attention_seconds(
        p, heads, float(kv_heads_per_rank(model, tp)), model.kv_channels, size, kind, job.gpu
    )
    whole = best / table.at(many * heads, size)
    full, sliding = _layer_kinds(job)
    seen = np.minimum(1.0, 2.0 * (model.window_size or 1) / size) if sliding else 1.0
    return np.where(p > 0, whole * (full + sliding * seen), 0.0)


def output_seconds(job: ServingJob, sequences: Number) -> tuple[Number, Number]:
    """(output layer with the gathering of its logits, sampling's traffic per byte of logit) of the sequences of an
    iteration."""
    model, tp = job.model, job.plan.tp
    vocabulary, rows = float(padded_vocab_size(model, tp)), np.maximum(sequences, 1.0)
    gather = 0.5 * reduce_seconds(job, tp, 2.0 * sequences * vocabulary)
    return linear_seconds(
        job, rows, vocabulary / tp, float(model.hidden_size), "bf16"
    ) + gather, sequences * vocabulary / job.gpu.hbm_bytes_per_s


def graph_rows(sizes: tuple[int, ...], decode: Number) -> Number:
    """Sequences that the CUDA graph of an iteration computes: the next larger captured size, dummies filling it (TensorRT-LLM,
    cuda_graph_config.enable_padding); as many as there are beyond the largest, where the iteration runs without a graph."""
    if not sizes:
        return decode
    captured = np.append(np.array(sizes, dtype=np.float64), np.inf)
    found = captured[np.searchsorted(captured, np.asarray(decode, dtype=np.float64))]
    return np.where(np.isfinite(found), found, decode)


def operator_parts(
    job: ServingJob, decode: Number, length: Number, prompts: Number, prompt_length: Number, checked: float = 1.0
) -> dict[str, Number]:
    """Seconds of the operators of one iteration by part, all stages: D sequences of `length` tokens decode beside `prompts`
    prompts.

    `checked`: tokens that a decoding sequence computes, its drafts and the one that is due. Linear layers and logits take all
    of them; attention reads the cache of a sequence once for them together (speculative decoding, arXiv:2211.17192).
    """
    decode, length, prompts, prompt_length = np.broadcast_arrays(
        *(np.asarray(x, dtype=np.float64) for x in (decode, length, prompts, prompt_length))
    )
    rows: Number = np.where(np.asarray(prompts) > 0, decode, graph_rows(job.graph_sizes, decode))
    rows = rows * checked
    parts = token_parts(job, rows + prompts * prompt_length)
    parts["output layer"], _ = output_seconds(job, rows + prompts)
    parts["decode attention"] = decode_attention_seconds(job, decode, length)
    parts["prefill attention"] = prefill_attention_seconds(job, prompts, prompt_length)
    return parts


def iteration_features(
    job: ServingJob, decode: Number, length: Number, prompts: Number, prompt_length: Number, checked: float = 1.0
) -> Vector:
    """[..., 7]: seconds of operators without the next two, of routed experts, of communication, of reading one byte of each
    logit; layers; 1; sequences of all attention ranks.

    Their product with `constant_vector` is the time of the iteration; nothing else enters it.
    """
    decode, prompts = np.broadcast_arrays(np.asarray(decode, dtype=np.float64), np.asarray(prompts, dtype=np.float64))
    sequences = decode * checked + prompts
    parts = operator_parts(job, decode, length, prompts, prompt_length, checked)
    experts, communication = parts.pop("experts"), parts.pop("communication")
    _, sampled = output_seconds(job, sequences)
    columns = (sum(parts.values()), experts, communication, sampled, float(job.model.num_layers), 1.0, sequences * job.plan.adp)
    return np.stack(np.broadcast_arrays(*columns), axis=-1)


def constant_vector(constants: EngineConstants) -> Vector:
    """What each feature costs."""
    c = constants
    return np.array([c.factor, c.experts_factor, c.communication_factor, c.sampler_bytes, c.layer_s, c.host_s, c.sequence_s])


def floor_parts(job: ServingJob, prompts: Number, sequences: Number) -> tuple[Number, Number]:
    """(layers that the host launches one by one, sequences that a Python runtime walks through) of an iteration.

    `eager_iterations` of the engine: all, mixed (those that carry prompts; graphs are captured for decoding alone) or none (the
    runtime is compiled as well: TensorRT-LLM's C++ executor). A rank's own sequences: attention ranks schedule side by side.
    Both counted in an x86 host's: a slower host (data/serving/chips.json) has more.
    """
    prompts, sequences = np.broadcast_arrays(np.asarray(prompts, dtype=np.float64), np.asarray(sequences, dtype=np.float64))
    kind = job.engine.eager_iterations
    eager = np.full(prompts.shape, kind == "all") if kind != "mixed" else prompts > 0
    slow = host_slowness(job.gpu.id)
    return np.where(eager, slow * job.model.num_layers, 0.0), slow * sequences * (kind != "none")


def floor_seconds(job: ServingJob, prompts: Number, sequences: Number) -> Number:
    """Least time of an iteration: the host's work for it runs beside the GPU's work on the one before (overlap scheduler), so
    that the longer of both counts."""
    layers, own = floor_parts(job, prompts, sequences)
    return job.constants.eager_layer_s * layers + job.constants.eager_sequence_s * own


def iteration_seconds(
    job: ServingJob, decode: Number, length: Number, prompts: Number, prompt_length: Number, checked: float = 1.0
) -> Number:
    """Time of one iteration: pipeline stages run after one another; at least the host's floor."""
    found = iteration_features(job, decode, length, prompts, prompt_length, checked) @ constant_vector(job.constants)
    return np.maximum(found, floor_seconds(job, prompts, decode + prompts))


def iteration_parts(
    job: ServingJob, decode: Number, length: Number, prompts: Number, prompt_length: Number, checked: float = 1.0
) -> dict[str, Number]:
    """The same by part (PARTS), for tables and plots; `host` holds what the floor adds."""
    c = job.constants
    factors = {"experts": c.experts_factor, "communication": c.communication_factor}
    operators = operator_parts(job, decode, length, prompts, prompt_length, checked)
    parts = {name: factors.get(name, c.factor) * s for name, s in operators.items()}
    features = iteration_features(job, decode, length, prompts, prompt_length, checked)
    parts["sampling"], parts["launches"] = c.sampler_bytes * features[..., 3], c.layer_s * features[..., 4]
    parts["host"] = c.host_s * features[..., 5] + c.sequence_s * features[..., 6]
    parts["host"] = parts["host"] + np.maximum(floor_seconds(job, prompts, decode + prompts) - sum(parts.values()), 0.0)
    return {name: parts[name] for name in PARTS if name in parts}
