"""Seconds of what every row of an iteration passes: linear layers, experts, communication, norms; all layers, by part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from autoconfig.specs.hardware.cluster import GpuSpec, cluster_of
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.parameters import Number, attention_gemms, kv_heads_per_rank
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.specs.software.checkpoint import Checkpoint
from autoconfig.specs.software.engine import EngineSpec, ModuleFormats, module_formats
from autoconfig.time_model.collectives import Group, collective_seconds, links_of
from autoconfig.time_model.hardware.efficiency import GridTable, efficiency_of
from autoconfig.time_model.serving import ideal, recurrent
from autoconfig.time_model.serving.tables import ARITHMETIC, EngineConstants, ServingTables, serving_tables_of

HBM_POINTWISE = 0.8
"""Share of the bandwidth that norms, residuals and activations reach (docs/time_model.md, pointwise)."""
KERNEL_S = 2.5e-6
"""A memory-bound kernel of few rows takes as long as an empty one."""
POINTWISE_KERNELS = 3
"""Two norms with their residuals, one activation, per layer."""
TILE_ROWS = 64.0
"""Rows of each touched expert that grouped GEMMs compute beside its own, to fill their tiles of 64 or 128."""
PARTS = ("linear", "communication", "pointwise", "experts", ARITHMETIC)
"""Of token_parts. ARITHMETIC: those of the experts' seconds that the matrix units set and not the memory; they are in `experts`
and count again as EngineConstants.experts_arithmetic says."""
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
    synchronous: bool = False
    """Iterations are put together one after another (specs/engines/releases.py, schedules_synchronously)."""
    checkpoint: Checkpoint | None = None
    """How the weights are stored, where the model's files say it; else as `plan.weights` says."""

    @cached_property
    def formats(self) -> ModuleFormats:
        if self.checkpoint is not None:
            return self.checkpoint.formats(self.model).on(self.gpu)
        return module_formats(self.model, self.plan.weights, self.gpu)

    @cached_property
    def tables(self) -> ServingTables:
        return self.measured or serving_tables_of(self.gpu)

    @property
    def layers(self) -> float:
        """Decoder layers whose launches count: of a hybrid two sublayers are one."""
        return self.model.num_layers / (2.0 if self.model.is_hybrid else 1.0)

    @property
    def launches_s(self) -> float:
        """Of an iteration: launches of all layers by kind, and of it as a whole."""
        c, model = self.constants, self.model
        total = c.host_s + c.layer_s * self.layers
        if c.terms is None:
            return total
        mixtures = sum(model.moe_pattern)
        each = c.terms.moe_layer_s.get(self.formats.experts, 0.0) + c.terms.gathered_layer_s * (self.plan.adp > 1)
        recurrent_layers = sum(model.layer_kinds.count(kind) for kind in recurrent.PROJECTED)
        sparse = model.num_layers if model.is_sparse else 0
        total += c.terms.synchronous_step_s * self.synchronous
        return total + mixtures * each + recurrent_layers * c.terms.delta_layer_s + sparse * c.terms.sparse_layer_s

    @property
    def prompts_s(self) -> float:
        """What an iteration that carries prompts takes beside where its operators are launched one by one (`eager`)."""
        terms = self.constants.terms
        return 0.0 if terms is None else terms.eager_step_s + terms.eager_layer_s * self.layers

    def eager(self, prompts: Number, rows: Number) -> Number:
        """Whether an iteration with `prompts` prompts, `rows` tokens in all, is outside of the captured graphs."""
        return (np.asarray(prompts) > 0) & (np.asarray(rows) > self.engine.graph_tokens + 0.5)

    @property
    def group(self) -> int:
        """Ranks of a stage."""
        return self.plan.tp * self.plan.adp


def stand_in(tables: Mapping[str, GridTable], wanted: str) -> str:
    """The format itself where it was measured, else the nearest that was."""
    return next(name for name in (wanted, *STAND_INS.get(wanted, ()), "bf16") if name in tables)


def _table(tables: dict[str, GridTable], wanted: str) -> GridTable:
    return tables[stand_in(tables, wanted)]


def beyond_roofline(best: Number, share: Number, factor: float) -> Number:
    """Seconds of an operator whose measured rows reach `share` of its roofline (`best` seconds): `factor` of what they take
    beyond it. No engine is faster than the roofline, however near to it a chip's measured rows are."""
    return best * (1.0 + factor * (1.0 / share - 1.0))


def linear_seconds(job: ServingJob, m: Number, n: float, k: float, weights: str) -> Number:
    """C[m, n] = A[m, k] B[k, n]: roofline over the measured share (nearest edge outside of the table)."""
    rows, terms = np.maximum(m, 1.0), job.constants.terms
    share = _table(job.tables.gemm, weights).at(rows, n + 0.0 * rows, k + 0.0 * rows)
    return beyond_roofline(ideal.gemm_seconds(rows, n, k, weights, job.gpu), share, 1.0 if terms is None else terms.linear)


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
        "indexer.linear_wq_b": float(model.q_lora_rank or 0),
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
            + np.maximum(flops / (0.5 * job.gpu.sixteen_bit_flops_per_s), traffic / (HBM_POINTWISE * job.gpu.hbm_bytes_per_s))
        )
    return total


def mlp_seconds(job: ServingJob, tokens: Number, ffn: int) -> Number:
    """Both matrices of a dense MLP (or shared experts), divided over tp."""
    model, width = job.model, ffn / job.plan.tp
    up = linear_seconds(job, tokens, model.gate_factor * width, float(model.hidden_size), job.formats.mlp)
    return up + linear_seconds(job, tokens, float(model.hidden_size), width, job.formats.mlp)


def experts_seconds(job: ServingJob, tokens: Number) -> tuple[Number, Number]:
    """Routed experts of one rank: the tokens of all attention ranks meet E/ep local experts, each cut over (tp adp)/ep ranks.

    Rows an expert r = T adp k / E; touched experts (E/ep)(1 - e^-r), tokens choosing evenly and independently. (Seconds, those
    of them that the matrix units set); under StepTerms the bounds of memory and of the matrix units, which its factors add.
    """
    model, plan = job.model, job.plan
    count, width = float(model.num_moe_experts or 1), model.moe_ffn_hidden_size * plan.ep / job.group
    rows = np.maximum(tokens * plan.adp * model.moe_router_topk / count, 1e-4)
    local = count / plan.ep
    terms, form = job.constants.terms, job.formats.experts
    active = np.maximum(local * -np.expm1(-rows), min(1.0, local))
    busiest = rows * (job.imbalance if plan.ep > 1 and job.imbalance is not None else 1.0)
    matrix, memory = ideal.experts_bounds(busiest, local, active, model.expert_width, width, job.formats.experts, job.gpu)
    if terms is not None:
        padded = 1.0 + TILE_ROWS * active / (rows * local)
        arithmetic = terms.experts_arithmetic.get(form, 1.0) * matrix * padded
        passed = ideal.expert_rows_seconds(busiest, local, model.expert_width, width, job.gpu)
        return terms.experts.get(form, 1.0) * (memory - passed) + terms.experts_rows * passed, arithmetic
    best = np.maximum(matrix, memory)
    near = stand_in(job.tables.experts, job.formats.experts)
    even = best / job.tables.experts_share(near, busiest, float(model.expert_width), width, local)
    balance, where = "bias" if model.moe_router_enable_expert_bias else "loss", "many" if plan.ep > 1 else "one"
    skew = job.tables.skew.get(f"{near}:{balance}:{where}") if job.imbalance is None else None
    found = even if skew is None else even * skew.at(rows, local + 0.0 * rows)
    return found, found * matrix**2 / (matrix**2 + memory**2)


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
    the experts' format and scatters the results in 16 bits: 16 bits both ways are one all-reduce (2 (n-1)/n bytes). Inputs of
    block-scaled fp8 are gathered in 16 bits (TensorRT-LLM, fused_moe_cutlass.py: quantised behind the gather)."""
    model, plan, experts = job.model, job.plan, job.formats.experts
    size = 2.0 * model.hidden_size * tokens
    total = (1.0 if moe and plan.adp > 1 else 2.0) * reduce_seconds(job, plan.tp, size)
    if not moe or plan.adp == 1:
        return total
    gathered = 1.0 if experts == "fp8_block" else ideal.INPUT_BYTES[experts] / 2.0
    return total + reduce_seconds(job, job.group, size * plan.adp * (1.0 + gathered) / 2.0)


def pointwise_seconds(job: ServingJob, tokens: Number, moe: bool) -> Number:
    """Two norms with residuals, 16 h bytes a token, and 2 (G + 1) f/t of the activation (the experts' is in their table)."""
    model = job.model
    traffic = 16.0 * model.hidden_size * tokens
    if not moe:
        traffic = traffic + 2.0 * (model.gate_factor + 1.0) * model.ffn_hidden_size / job.plan.tp * tokens
    return moved_seconds(job, traffic) + POINTWISE_KERNELS * KERNEL_S


def moved_seconds(job: ServingJob, traffic: Number) -> Number:
    """Norms, residuals and activations: bytes at their share of the bandwidth; engines pass over them more often where kernels
    are not fused."""
    terms = job.constants.terms
    return (1.0 if terms is None else terms.pointwise) * traffic / (HBM_POINTWISE * job.gpu.hbm_bytes_per_s)


def token_parts(job: ServingJob, tokens: Number) -> dict[str, Number]:
    """Everything that depends on the rows of an iteration alone, all layers, by part."""
    model = job.model
    if model.is_hybrid:
        return _hybrid_token_parts(job, tokens)
    parts: dict[str, Number] = {name: 0.0 * tokens for name in PARTS}
    attention = attention_linear_seconds(job, tokens)
    for moe in (0, 1):
        layers = model.moe_pattern.count(moe)
        if not layers:
            continue
        if moe:
            linear = _beside_experts_seconds(job, tokens)
            _add_experts(job, tokens, layers, parts)
        else:
            linear = mlp_seconds(job, tokens, model.ffn_hidden_size)
        parts["linear"] = parts["linear"] + layers * (attention + linear)
        parts["communication"] = parts["communication"] + layers * block_communication_seconds(job, tokens, bool(moe))
        parts["pointwise"] = parts["pointwise"] + layers * pointwise_seconds(job, tokens, bool(moe))
    return _with_sends(job, tokens, parts)


def _hybrid_token_parts(job: ServingJob, tokens: Number) -> dict[str, Number]:
    """Of a hybrid, whose layers are single sublayers: one all-reduce, one norm and one residual each."""
    model, parts = job.model, {name: 0.0 * tokens for name in PARTS}
    reduce = reduce_seconds(job, job.plan.tp, 2.0 * model.hidden_size * tokens)
    for kind, layers in Counter(model.layer_kinds).items():
        linear: Number = 0.0 * tokens
        if kind == "attention":
            linear = attention_linear_seconds(job, tokens)
        elif kind in recurrent.PROJECTED:
            columns, inner = recurrent.widths(model, kind, job.plan.tp)
            linear = linear_seconds(job, tokens, columns, float(model.hidden_size), job.formats.attention)
            linear = linear + linear_seconds(job, tokens, float(model.hidden_size), inner, job.formats.attention)
        elif kind == "mlp":
            linear = mlp_seconds(job, tokens, model.ffn_hidden_size)
        else:
            linear = linear + _beside_experts_seconds(job, tokens)
            _add_experts(job, tokens, layers, parts)
        communication = block_communication_seconds(job, tokens, kind == "moe") - reduce
        parts["linear"] = parts["linear"] + layers * linear
        parts["communication"] = parts["communication"] + layers * communication
        pointwise = moved_seconds(job, recurrent.pointwise_bytes(model, kind, job.plan.tp) * tokens)
        parts["pointwise"] = parts["pointwise"] + layers * (pointwise + POINTWISE_KERNELS / 2 * KERNEL_S)
    return _with_sends(job, tokens, parts)


def _add_experts(job: ServingJob, tokens: Number, layers: float, parts: dict[str, Number]) -> None:
    """What routed experts of `layers` layers take, to both parts that hold it."""
    for part, seconds in zip(("experts", ARITHMETIC), experts_seconds(job, tokens), strict=True):
        parts[part] = parts[part] + layers * seconds


def _beside_experts_seconds(job: ServingJob, tokens: Number) -> Number:
    """Router, shared experts, and the projections to the experts' latent width and back."""
    model = job.model
    h = float(model.hidden_size)
    total = linear_seconds(job, tokens, float(model.num_moe_experts or 1), h, "bf16")
    if model.moe_shared_expert_intermediate_size:
        total = total + mlp_seconds(job, tokens, model.moe_shared_expert_intermediate_size)
    if model.moe_latent_size:
        latent = float(model.moe_latent_size)
        total = total + linear_seconds(job, tokens, latent, h, job.formats.mlp)
        total = total + linear_seconds(job, tokens, h, latent, job.formats.mlp)
    return total


def _with_sends(job: ServingJob, tokens: Number, parts: dict[str, Number]) -> dict[str, Number]:
    if job.plan.pp > 1:
        parts["communication"] = parts["communication"] + (job.plan.pp - 1) * _send_seconds(job, tokens)
    return parts


def _send_seconds(job: ServingJob, tokens: Number) -> Number:
    """Hidden states to the next stage, over the link."""
    return 2 * KERNEL_S * 2 + 2.0 * job.model.hidden_size * tokens / job.plan.tp / (0.7 * job.gpu.link_bytes_per_s)
