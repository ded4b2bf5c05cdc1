"""One transformer layer without its experts, operator by operator: attention block and dense MLP."""

from __future__ import annotations

import numpy as np
from autoconfig.specs.models.parameters import Number, kv_heads_per_rank, norms_apart, query_columns
from autoconfig.specs.scenario import BLACKWELL, userbuffers_run
from autoconfig.time_model.collectives import Group, collective_seconds, exposed_seconds, send_seconds
from autoconfig.time_model.job import Shapes, TrainingJob
from autoconfig.time_model.operators.kernels import (
    WINDOW_TILES,
    activation_bytes,
    attended_pairs,
    flash_attention_flops,
    flash_attention_seconds,
    flash_efficiency,
    flash_tail_seconds,
    norm_bytes,
    packed_pairs,
    pointwise_seconds,
    residual_bytes,
    ring_correction_bytes,
    softmax_bytes,
    table_flash_efficiency,
    unfused_attention_seconds,
)
from autoconfig.time_model.operators.operator import GemmShape, Operator, memory_bound


def attention_gemm_shapes(job: TrainingJob, x: Shapes) -> list[GemmShape]:
    """The attention block's linear layers by Megatron's names. MLA's down projections run on the sharded tokens of
    every rank. Recomputation by operator runs k (half of MLA's projections) and the output projection again."""
    model, t = job.model, x.tokens
    h, q = float(model.hidden_size), model.query_size
    queries = query_columns(model)
    zero = 0.0 * t
    if not model.multi_latent_attention:
        kv = kv_heads_per_rank(model, x.tp) * model.kv_channels
        return [
            GemmShape(name="linear_qkv", m=t, n=queries / x.tp + 2 * kv, k=h + zero, again=kv / (queries / x.tp + 2 * kv)),
            GemmShape(name="linear_proj", m=t, n=h + zero, k=q / x.tp),
        ]
    up, a, rank = ("mla_up_proj",), model.num_attention_heads, model.q_lora_rank
    gemms = []
    if rank:
        gemms = [
            GemmShape(name="linear_q_down_proj", m=x.sharded_tokens, n=rank + zero, k=h + zero),
            GemmShape(name="linear_q_up_proj", m=t, n=q / x.tp, k=rank + zero, modules=up),
        ]
    else:
        gemms = [GemmShape(name="linear_q_proj", m=t, n=q / x.tp, k=h + zero)]
    return [
        *gemms,
        GemmShape(
            name="linear_kv_down_proj", m=x.sharded_tokens, n=model.kv_lora_rank + model.qk_pos_emb_head_dim + zero, k=h + zero
        ),
        GemmShape(
            name="linear_kv_up_proj",
            m=t,
            n=a * (model.qk_head_dim + model.v_head_dim) / x.tp,
            k=model.kv_lora_rank + zero,
            modules=up,
            again=0.5,
        ),
        GemmShape(name="linear_proj", m=t, n=h + zero, k=a * model.v_head_dim / x.tp),
    ]


def mlp_gemm_shapes(
    job: TrainingJob, x: Shapes, width: int, name: str, layer: str, modules: tuple[str, ...]
) -> list[GemmShape]:
    """fc1 (G f / tp columns) and fc2 of one MLP of `width`. Recomputation by operator keeps the first of gate, up and down, or
    of fc1 and fc2, and every second one after it; of experts none."""
    h = job.model.hidden_size + 0.0 * x.tokens
    gated, dense = job.model.gated_linear_unit, layer == "dense"
    first, second = ((0.5, 0.0) if gated else (0.0, 1.0)) if dense else (1.0, 1.0)
    return [
        GemmShape(
            name=f"{name}linear_fc1",
            m=x.tokens,
            n=job.model.gate_factor * width / x.tp,
            k=h,
            layer=layer,
            modules=modules,
            again=first,
        ),
        GemmShape(name=f"{name}linear_fc2", m=x.tokens, n=h, k=width / x.tp, layer=layer, modules=modules, again=second),
    ]


MLA_COPIES = 0.5
"""Of the copies of q, k, v and output, those that remain where RoPE and the layout of MLA are one kernel (megatron-core,
fused_mla_yarn_rope_apply.py)."""
FP8_ATTENTION = 0.85
"""Time of fp8 attention over 16 bits (attention tables of aiconfigurator-core 0.12.0: 0.79 to 0.87)."""


def norm_modules(job: TrainingJob, kind: str) -> tuple[tuple[str, ...], ...]:
    """Of the norms before a layer's attention (or mixer) and before its MLP or experts: `layernorm` where recomputing that runs
    them again."""
    apart = norms_apart(job.model, kind, job.scenario.software.memory.norms_fused)
    return tuple(("layernorm",) if share else () for share in apart)


def attention_pointwise(job: TrainingJob, x: Shapes) -> list[Operator]:
    """Memory-bound operators around attention: norm, copies, RoPE, query/key norms, residual, kernel launches of the layer."""
    model, stack = job.model, job.software
    q = model.num_attention_heads * model.query_head_dim / x.tp
    v = model.num_attention_heads * model.value_head_dim / x.tp
    heads = model.num_attention_heads / x.tp if model.multi_latent_attention else kv_heads_per_rank(model, x.tp)
    k, copied = heads * model.query_head_dim, q + heads * (model.query_head_dim + model.value_head_dim) + v
    copied = copied * (MLA_COPIES if model.multi_latent_attention else 1.0)
    if model.is_sparse:  # queries and output as wide as the latents, one key
        copied = heads * (2 * model.kv_lora_rank + model.qk_pos_emb_head_dim) + model.kv_lora_rank + model.qk_pos_emb_head_dim
    hidden, kind = x.sharded_tokens * model.hidden_size, "attention" if model.is_hybrid else model.kinds[-1]
    result = [
        memory_bound(job, "input norm", norm_bytes(hidden, stack), modules=norm_modules(job, kind)[0]),
        memory_bound(
            job,
            "qkv copies",
            (stack.qkv_copy_forward_bytes * x.tokens * copied, stack.qkv_copy_backward_bytes * x.tokens * copied),
        ),
        memory_bound(
            job,
            "attention residual",
            residual_bytes(hidden, stack, job.numerics),
            launches=(stack.forward_launches, stack.backward_launches),
        ),
    ]
    if model.position_embedding_type in ("rope", "yarn"):
        share = model.qk_pos_emb_head_dim / model.query_head_dim if model.multi_latent_attention else 1.0
        rotated = stack.rope_bytes * x.tokens * (q + k) * share
        result.append(memory_bound(job, "rope", (rotated, rotated), modules=("mla_up_proj",)))
    if model.multi_latent_attention:
        latent = x.sharded_tokens * ((model.q_lora_rank or 0) + model.kv_lora_rank)
        result.append(memory_bound(job, "latent norms", norm_bytes(latent, stack), modules=("mla_up_proj",)))
    elif model.qk_layernorm:
        result.append(memory_bound(job, "query and key norms", norm_bytes(x.tokens * (q + k), stack)))
    if model.attention_output_gate:  # forward: output and gate read, product written; backward: three read, two written
        result.append(memory_bound(job, "attention gate", (6.0 * x.tokens * q, 10.0 * x.tokens * q)))
    return result


SINK_LENGTH = 4096.0
"""Tokens of the runs with sinks that their slowdown was fitted on (gpt-oss-120b, NVIDIA's tables of 2026)."""


def core_attention(job: TrainingJob, x: Shapes) -> Operator:
    """Core attention of the average layer: sliding-window and full layers weighted by how many there are."""
    share = float(np.mean(job.model.sliding_pattern)) if job.model.window_size is not None else 0.0
    work, ways = job.scenario.workload, 2.0 if job.model.is_encoder_only else 1.0
    s, length = float(work.seq_length), float(work.attended_length)
    parts = []
    for weight, window in ((1.0 - share, None), (share, job.model.window_size)):
        if weight:
            limit = None if window is None else window + WINDOW_TILES
            pairs = ways * (attended_pairs(s, limit) if length == s else packed_pairs(s, length, limit))
            parts.append([weight * value for value in _attention(job, x, pairs, s * s, length)])
    return _core_operator(job, *(sum(values) for values in zip(*parts, strict=True)))


def attention_over(job: TrainingJob, x: Shapes, pairs: Number, length: float) -> Operator:
    """Core attention of `pairs` of queries and keys, all seen, over keys of this length."""
    return _core_operator(job, *_attention(job, x, pairs, pairs, length))


def _attention(job: TrainingJob, x: Shapes, seen: Number, all_pairs: float, s: float) -> tuple[Number, Number, Number]:
    """(forward, backward, FLOPs): flash attention computes the pairs that are seen, unfused attention all."""
    return _unfused_attention(job, x, all_pairs) if job.unfused_attention else _flash_attention(job, x, seen, s)


def sink_slowdown(slowdown: float, length: float) -> float:
    """Time of attention with learned sinks over plain attention of this length, `slowdown` at SINK_LENGTH.

    A sink is one score more in each row, and its gradient a sum over rows (gpt-oss model card, arXiv:2508.10925, section 2):
    what it costs counts rows, whose pairs grow with the length, 1 + (k - 1) SINK_LENGTH / s.
    """
    return 1.0 + (slowdown - 1.0) * SINK_LENGTH / length


def _core_operator(job: TrainingJob, forward: Number, backward: Number, flops: Number) -> Operator:
    length = float(job.scenario.workload.seq_length)
    sinks = sink_slowdown(job.software.sink_attention_slowdown, length) if job.model.attention_sinks else 1.0
    factor = job.factors.attention * sinks
    if job.settings.fp8_attention and job.quantised:
        factor *= FP8_ATTENTION
    return Operator(
        name="core attention",
        formula="unfused_attention_seconds" if job.unfused_attention else "flash_attention_seconds",
        modules=("core_attn",),
        again=0.0,
        forward=factor * forward,
        dgrad=factor * backward,
        flops=flops,
        traffic=0.0 * flops,
        peak_flops_per_s=job.flops_per_s,
    )


def _flash_attention(job: TrainingJob, x: Shapes, pairs: Number, s: float) -> tuple[Number, Number, Number]:
    """(forward, backward, FLOPs). Ring attention sees s / cp tokens per call; the all-to-all and all-gather forms see s."""
    model, c = job.model, job.gpu.attention
    ring = job.scenario.software.memory.cp_comm_type == "p2p"
    length = s / x.cp if ring else s + 0.0 * x.cp
    steps = x.cp if ring else 1.0
    rate, tail = _flash_rate(job, length)
    flops = flash_attention_flops(
        pairs,
        model.num_attention_heads / x.tp / x.cp,
        x.mbs,
        model.query_head_dim,
        model.value_head_dim,
    )
    start = steps * (job.gpu.launch_s + tail)
    forward = flash_attention_seconds(flops, rate, flops_per_s=job.flops_per_s, start_s=start)
    backward = flash_attention_seconds(2.5 * flops, rate * c.backward, flops_per_s=job.flops_per_s, start_s=2.0 * start)
    return forward, backward, flops


def _flash_rate(job: TrainingJob, length: Number) -> tuple[Number, Number]:
    """(share of peak, idle tail per call) of the forward pass: by table, scaled where the software runs other kernels than
    were measured; else by the closed form."""
    c, dim, table = job.gpu.attention, job.model.query_head_dim, job.gpu.tables.attention
    if job.activation_bytes == 4:
        table = job.gpu.tables.attention_fp32 or table
    blackwell = (job.cluster.gpu.compute_capability or 0.0) >= BLACKWELL
    generation = (blackwell and job.software.attention_generation_blackwell) or job.software.attention_generation
    if table is None:
        e, s0 = c.flash(generation)
        return flash_efficiency(length, dim, e=e, s0=s0, head_dim_half=c.head_dim_half), 0.0 * length
    share = c.share(generation) / (c.share(table.generation) if table.generation else 1.0)
    return share * table_flash_efficiency(length, dim, table), flash_tail_seconds(length, dim, table) / share


def _unfused_attention(job: TrainingJob, x: Shapes, pairs: Number) -> tuple[Number, Number, Number]:
    """(forward, backward, FLOPs) over all scores; a window or a causal mask saves nothing."""
    model, c = job.model, job.gpu.attention
    scores = model.num_attention_heads / x.tp * pairs * x.mbs / x.cp
    forward, backward = (
        unfused_attention_seconds(
            scores,
            model.query_head_dim,
            model.value_head_dim,
            flops_per_s=job.flops_per_s,
            rate=c.unfused_gemm,
            dim_half=c.unfused_head_dim_half,
            hbm_bytes_per_s=job.hbm_bytes_per_s,
            pointwise=job.gpu.hbm_pointwise,
            softmax_bytes=traffic * job.width_factor,
            gemms_per_pass=passes,
        )
        for passes, traffic in zip((1, 2), softmax_bytes(job.software, job.numerics), strict=True)
    )
    return forward, backward, 2.0 * (model.query_head_dim + model.value_head_dim) * scores


def cp_communication_seconds(job: TrainingJob, x: Shapes, core: Operator) -> tuple[Number, Number]:
    """(forward, backward) exposed time of context parallelism, by the stack's cp_comm_type.

    p2p (ring): cp - 1 sends of one key/value block, hidden under a share of the attention step beside them, backward twice the
    bytes (blocks and their gradients), plus the merging of partial results. a2a: q, k, v to head shards and the output
    back, exposed
    fully. allgather: keys and values gathered forward, gathered and their gradients reduce-scattered backward, exposed fully.
    Source: Liu et al. 2023 (Ring Attention); Jacobs et al. 2023 (DeepSpeed-Ulysses); Transformer Engine context_parallel.py.
    """
    if float(np.max(x.cp)) == 1.0:
        return 0.0 * x.cp, 0.0 * x.cp
    model, stack, size = job.model, job.software, float(job.activation_bytes)
    heads = model.num_attention_heads / x.tp if model.multi_latent_attention else kv_heads_per_rank(model, x.tp)
    block = x.tokens * heads * (model.query_head_dim + model.value_head_dim) * size
    queries = x.tokens * model.num_attention_heads / x.tp * (model.query_head_dim + model.value_head_dim) * size
    kind, group = job.scenario.software.memory.cp_comm_type, x.context_group
    if kind == "a2a":
        once = collective_seconds("all_to_all", block, group, job.links) + collective_seconds(
            "all_to_all", queries, group, job.links
        )
        return once, once
    if kind == "allgather":
        gather = collective_seconds("all_gather", block * x.cp, group, job.links)
        return gather, gather + collective_seconds("reduce_scatter", block * x.cp, group, job.links)
    merge = pointwise_seconds(
        ring_correction_bytes(x.tokens, model.num_attention_heads / x.tp * model.value_head_dim, x.cp),
        hbm_bytes_per_s=job.hbm_bytes_per_s,
        efficiency=job.gpu.hbm_pointwise,
        launch_s=job.gpu.launch_s,
    )
    crosses, exposed = group.size > group.local, []
    for factor, compute in ((1.0, core.forward), (2.0, core.dgrad)):
        step = send_seconds(factor * block, crosses, job.links)
        hidden = exposed_seconds(step, stack.cp_overlap_share * compute / x.cp, stack.overlap_interference)
        exposed.append(np.where(x.cp > 1.0, (x.cp - 1.0) * hidden + merge, 0.0))
    return exposed[0], exposed[1]


def tp_communication_seconds(
    *,
    all_reduce: tuple[Number, Number],
    gather: tuple[Number, Number],
    scatter: tuple[Number, Number],
    sp: Number,
    dgrad: Number,
    wgrad: Number,
    asynchronous: bool,
    interference: float,
    hidden: Number,
) -> tuple[Number, Number]:
    """(forward, backward) exposed time of the tensor-parallel communication of one block (attention or MLP).

    Each pair is (at the block's input, at its output). Without SP: all-reduce of the output forward and of the input's gradient
    backward. With SP: all-gather in, reduce-scatter out; backward the output's gradient is gathered (exposed), the input
    is gathered
    again beside the input gradient, and the input's gradient is reduce-scattered beside the weight gradient. `hidden`: share
    that userbuffers hide under the GEMMs. Source: Shoeybi et al. 2019, section 3; Korthikanti et al. 2022, section 4.2.2.
    """
    share = interference if asynchronous else 1.0
    plain = exposed_seconds(all_reduce[0], wgrad, share)
    sharded = gather[1] + exposed_seconds(gather[0], dgrad, share) + exposed_seconds(scatter[0], wgrad, share)
    forward = np.where(sp, gather[0] + scatter[1], all_reduce[1])
    return forward * (1.0 - hidden), np.where(sp, sharded, plain) * (1.0 - hidden)


def hidden_share(job: TrainingJob, x: Shapes) -> Number:
    """Share of TP communication that the stack hides, where userbuffers run (specs/scenario.py)."""
    runs = userbuffers_run(job.model, job.numerics, job.scenario.software, job.cluster, tp=x.tp, sp=x.sp, fsdp=x.fsdp)
    return np.where(runs, job.software.tp_overlap_share, 0.0)


class BlockCollectives:
    """All-reduce, all-gather and reduce-scatter of a [T, h] activation over the tensor-parallel ranks, priced once per
    shape."""

    def __init__(self, job: TrainingJob, x: Shapes, width: float) -> None:
        total = x.tokens * width * job.activation_bytes
        group: Group = x.tensor_group
        self.total_bytes = total
        self.all_reduce = collective_seconds("all_reduce", total, group, job.links)
        self.gather = collective_seconds("all_gather", total, group, job.links)
        self.scatter = collective_seconds("reduce_scatter", total, group, job.links)


def block_communication(
    job: TrainingJob,
    x: Shapes,
    name: str,
    inside: BlockCollectives,
    outside: BlockCollectives,
    column: list[Operator],
    *,
    layer: str = "all",
    modules: tuple[str, ...] = (),
) -> Operator:
    """The TP communication of one block as an Operator; `column` are its first linear layers, which backward hides it
    behind."""
    forward, backward = tp_communication_seconds(
        all_reduce=(inside.all_reduce, outside.all_reduce),
        gather=(inside.gather, outside.gather),
        scatter=(inside.scatter, outside.scatter),
        sp=x.sp,
        dgrad=sum(op.dgrad for op in column),
        wgrad=sum(op.wgrad for op in column),
        asynchronous=job.software.tp_async_backward,
        interference=job.software.overlap_interference,
        hidden=hidden_share(job, x),
    )
    return Operator(
        name=name,
        formula="tp_communication_seconds",
        layer=layer,
        modules=modules,
        again=0.5,  # the gather of the input; the reduce-scattered output is kept
        forward=forward,
        dgrad=backward,
        traffic=np.where(x.tp > 1.0, outside.total_bytes, 0.0),
    )


def mlp_pointwise(job: TrainingJob, x: Shapes, width: int, name: str, layer: str, modules: tuple[str, ...]) -> Operator:
    """The activation function of one MLP of `width`."""
    traffic = activation_bytes(x.tokens * width / x.tp, job.model.gated_linear_unit, job.software)
    return memory_bound(job, f"{name}activation", traffic, layer=layer, modules=modules)


def second_norm_and_residual(job: TrainingJob, x: Shapes, kind: str) -> list[Operator]:
    """The norm before the MLP and the residual after it, of a layer of this kind; a parallel block (Falcon) has one residual,
    and as many norms as it says."""
    hidden = x.sharded_tokens * job.model.hidden_size
    result = []
    if job.model.num_layernorms_per_layer > 1:
        traffic = norm_bytes(hidden * (job.model.num_layernorms_per_layer - 1), job.software)
        result.append(memory_bound(job, "pre-mlp norm", traffic, modules=norm_modules(job, kind)[1]))
    if not job.model.parallel_attention:
        result.append(memory_bound(job, "mlp residual", residual_bytes(hidden, job.software, job.numerics)))
    return result
