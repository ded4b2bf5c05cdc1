"""Seconds and parameters of one layer for every distinct shape: what `predict` gathers from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import numpy.typing as npt
from autoconfig.specs.models.model import DENSE_KINDS
from autoconfig.specs.models.parameters import (
    Number,
    embedding_parameters,
    final_norm_parameters,
    layer_parameters,
    mtp_depths_held,
    mtp_layer_parameters,
    output_bias_parameters,
    output_layer_parameters,
)
from autoconfig.specs.plan import Recompute
from autoconfig.specs.run_settings import RunSettings
from autoconfig.specs.scenario import Numerics
from autoconfig.time_model.job import Shapes, TrainingJob
from autoconfig.time_model.operators.cross import cross_attention_operators, shapes_of_stack
from autoconfig.time_model.operators.ends import (
    embedding_operators,
    head_operators,
    logits_gemm_shape,
    masked_lm_gemm_shapes,
    mtp_operators,
    mtp_projection_shape,
)
from autoconfig.time_model.operators.kernels import (
    CHECKPOINT_SHARE,
    CHECKPOINTED_PARTS,
    clock_ratio,
    host_floor_seconds,
    layer_launch_seconds,
    recompute_host_seconds,
)
from autoconfig.time_model.operators.layer import (
    BlockCollectives,
    attention_gemm_shapes,
    attention_pointwise,
    block_communication,
    core_attention,
    cp_communication_seconds,
    mlp_gemm_shapes,
    mlp_pointwise,
    second_norm_and_residual,
)
from autoconfig.time_model.operators.moe import (
    expert_gemm_shapes,
    expert_operators,
    latent_gemm_shapes,
    local_experts,
    router_gemm_shape,
    shared_expert_operators,
    shared_expert_shapes,
)
from autoconfig.time_model.operators.operator import (
    GemmShape,
    Operator,
    dequantisation,
    fp8_casts,
    gradient_accumulation,
    price_gemms,
    with_adapters,
)
from autoconfig.time_model.operators.recurrent import RECURRENT, recurrent_gemm_shapes, recurrent_operators
from autoconfig.time_model.operators.sparse import indexer_gemm_shapes, sparse_attention_operators

CROSS_ATTENTION_LAUNCHES = 1.5
"""Launches of a decoder's layer over those of an encoder's: three blocks, not two (megatron-core models/T5/t5_spec.py)."""


@dataclass(frozen=True, kw_only=True)
class RankParameters:
    """Parameters of one rank per layer kind, of both ends, and those of the output layer that a rank with both ends holds as
    its embedding (tied)."""

    dense: list[Number]
    expert: list[Number]
    embedding: Number
    head: Number
    tied: Number

    def layers(self, index: npt.NDArray[np.int64]) -> list[tuple[Number, Number]]:
        """(dense, of experts) of one layer of each kind, by row."""
        return [(dense[index], expert[index]) for dense, expert in zip(self.dense, self.expert, strict=True)]

    def ends(self, index: npt.NDArray[np.int64], pp: Number) -> Number:
        """Of embedding and head, by row; a tied output layer counts once where one stage has both."""
        return (self.embedding + self.head)[index] - np.where(np.equal(pp, 1), self.tied[index], 0.0)


@dataclass(frozen=True, kw_only=True)
class LayerTable:
    """One row per distinct shape; lists are by layer kind (`kinds`). Seconds per layer and micro-batch."""

    kinds: tuple[str, ...]
    """ModelSpec.kinds."""
    operators: list[Operator]
    forward: list[Number]
    backward: list[Number]
    """With host floor, without recomputation."""
    recompute: list[Number]
    """[shapes, recomputes]: forward time run again in backward; no layer runs again in full:block columns, which depend on the
    stage."""
    again: list[Number]
    """What a whole layer that runs again adds."""
    floor: list[tuple[Number, Number]]
    """What the host floor added to forward and backward."""
    embedding: tuple[Number, Number]
    head: tuple[Number, Number]
    """(forward, backward) of the first and the last stage's extra work; MTP depths without their layer included in head."""
    hidden_gather: Number
    """All-gather of one [T, h] activation over tensor-parallel ranks: behind scatter-gather sends without SP."""
    held: RankParameters
    """All of them, adapters included: what FSDP gathers."""
    trained: RankParameters
    """Those with gradients: `held`, under LoRA the adapters alone."""


FULL_LAYER = Recompute(granularity="full", method="uniform", num_layers=1)


def layer_table(job: TrainingJob, x: Shapes, recomputes: Sequence[Recompute]) -> LayerTable:
    """Price every operator once per shape and add them up by layer kind."""
    hidden = BlockCollectives(job, x, float(job.model.hidden_size))
    operators = at_the_clock(job, x, price_operators(job, x, hidden))
    forward, backward, floor, recompute, again = [], [], [], [], []
    for kind in job.model.kinds:
        mine = [op for op in operators if op.layer in ("all", kind)]
        fore, back, extra = _with_host(job, x, kind, mine, job.settings)
        forward.append(fore)
        backward.append(back)
        floor.append(extra)
        checkpoint_s = CHECKPOINT_SHARE * job.software.host_floor_seconds
        recompute.append(recompute_seconds(mine, (fore, back), extra, recomputes, checkpoint_s))
        again.append(recompute_seconds(mine, (fore, back), extra, [FULL_LAYER], checkpoint_s)[..., 0])
    outside = {layer: [op for op in operators if op.layer == layer] for layer in ("embedding", "head", "mtp")}
    depths = job.model.mtp_num_layers
    head = tuple((1 + depths) * a + depths * b for a, b in zip(_pair(outside["head"]), _pair(outside["mtp"]), strict=True))
    held = held_parameters(job, x)
    return LayerTable(
        kinds=job.model.kinds,
        operators=operators,
        forward=forward,
        backward=backward,
        recompute=recompute,
        again=again,
        floor=floor,
        embedding=_pair(outside["embedding"]),
        head=(head[0], head[1]),
        hidden_gather=hidden.gather,
        held=held,
        trained=adapter_parameters(job, x) if job.numerics.peft == "lora" else held,
    )


TENSOR_WORK = (
    *("gemm_seconds", "table_gemm_seconds", "grouped_gemm_seconds", "flash_attention_seconds", "sparse_attention_seconds"),
)
"""Formulas of operators that matrix units do."""


def at_the_clock(job: TrainingJob, x: Shapes, operators: list[Operator]) -> list[Operator]:
    """The operators with matrix work at the clock that the power limit leaves, by the share of a layer's time that it takes
    (mean over the model's layers). As they are where the GPU's power is not known. Operator tables of this very machine were
    measured on one product after the other, at the clock that its own limit leaves (an H100 at 690 of 700 W): only another
    limit moves them."""
    gpu = job.cluster.gpu
    if job.gpu.tensor_watts is None or gpu.power_watts is None:
        return operators
    busy, every = 0.0 * x.tokens, 0.0 * x.tokens
    for kind in job.model.kinds:
        mine = [op for op in operators if op.layer in ("all", kind)]
        fore, back, _ = _with_host(job, x, kind, mine, job.settings)
        count = job.model.layer_kinds.count(kind)
        every = every + count * (fore + back)
        busy = busy + count * sum((op.forward + op.dgrad + op.wgrad for op in mine if op.formula in TENSOR_WORK), 0.0)
    limit = job.cluster.power_limit_watts or gpu.power_watts
    own = clock_ratio(busy / every, gpu.power_watts, gpu.power_watts, job.gpu.tensor_watts) if gpu.operator_tables else 1.0
    slower = own / clock_ratio(busy / every, limit, gpu.power_watts, job.gpu.tensor_watts)
    return [
        replace(op, forward=slower * op.forward, dgrad=slower * op.dgrad, wgrad=slower * op.wgrad)
        if op.formula in TENSOR_WORK
        else op
        for op in operators
    ]


def _with_host(
    job: TrainingJob, x: Shapes, kind: str, operators: Sequence[Operator], settings: RunSettings
) -> tuple[Number, Number, tuple[Number, Number]]:
    """Forward and backward of one layer under these switches, and what the host's launches add to both."""
    fore, back = _sum(operators, "forward"), _sum(operators, "dgrad") + _sum(operators, "wgrad")
    experts = local_experts(job, x) if kind == "moe" else 0.0
    launches = layer_launch_seconds(
        job.software,
        settings,
        experts,
        overlapped=x.overlapped if settings.ep_overlap else 0.0,
        quantised=job.quantised,
        sublayer=kind if job.model.is_hybrid else "",
        latent=job.model.multi_latent_attention,
        shared=job.model.moe_shared_expert_intermediate_size > 0,
        dropless=not job.drops_tokens,
    )
    if kind == "decoder" and job.model.is_encoder_decoder:
        launches = CROSS_ATTENTION_LAUNCHES * launches
    extra = host_floor_seconds(fore, back, x.tp, launches)
    return fore + extra[0], back + extra[1], extra


def price_operators(job: TrainingJob, x: Shapes, hidden: BlockCollectives) -> list[Operator]:
    """Every operator of a layer of each kind, of the embedding, the head and an MTP depth."""
    model = job.model
    if model.is_encoder_decoder:
        return _operators_of_stacks(job, x)
    groups = _gemm_groups(job, x)
    flat = [g for group in groups.values() for g in group]
    priced = {(op.layer, op.name): op for op in price_gemms(job, x, flat)}
    result = list(priced.values())

    def first(group: str, names: int = 1) -> list[Operator]:
        plain = [g for g in groups[group] if ".lora_" not in g.name]
        return [priced[g.layer, g.name] for g in plain[:names]]

    if "attention" in groups:
        result += _attention_operators(job, x, hidden, first("attention"))
    if model.is_hybrid:
        result += _norms_of_halves(job, x)
    for kind in (kind for kind in RECURRENT if kind in groups):
        result += recurrent_operators(job, x, kind, hidden, first(kind))
    if "mlp" in groups:
        layer = groups["mlp"][0].layer
        result += [
            mlp_pointwise(job, x, model.ffn_hidden_size, "", layer, ("mlp",)),
            block_communication(job, x, "mlp communication", hidden, hidden, first("mlp"), layer=layer, modules=("mlp",)),
        ]
    if "experts" in groups:
        column = first("shared") if "shared" in groups else []
        result += [*expert_operators(job, x), *shared_expert_operators(job, x, hidden, column)]
    for name, group in groups.items():
        result += _passes_over_weights(job, name, group)
    result += head_operators(job, x, hidden) + embedding_operators(job, x, hidden)
    return result + (mtp_operators(job, x) if model.mtp_num_layers else [])


def _norms_of_halves(job: TrainingJob, x: Shapes) -> list[Operator]:
    halves = (kind for kind in ("mlp", "moe") if kind in job.model.kinds)
    return [replace(op, layer=half) for half in halves for op in second_norm_and_residual(job, x, half)]


def _passes_over_weights(job: TrainingJob, name: str, group: Sequence[GemmShape]) -> list[Operator]:
    """Casts, dequantisation and accumulation of gradients of a group of linear layers."""
    layer, modules = group[0].layer, tuple(sorted(set.intersection(*(set(g.modules) for g in group))))
    fused = name == "experts" and job.settings.fused_experts
    result = list(fp8_casts(job, f"{name} casts", group, layer, modules, fused=fused))
    if name in ("attention", "mlp"):
        result += dequantisation(job, f"{name} dequantisation", group, layer, modules)
    return [*result, gradient_accumulation(job, f"{name} gradient accumulation", group, layer)]


def _operators_of_stacks(job: TrainingJob, x: Shapes) -> list[Operator]:
    """Both stacks as models of their own, cross-attention, and outside of the layers what each has: one output layer."""
    jobs = {kind: TrainingJob(job.scenario.stack(kind), job.settings) for kind in job.model.kinds}
    shapes = {kind: shapes_of_stack(own, x) for kind, own in jobs.items()}
    result = []
    for kind, own in jobs.items():
        hidden = BlockCollectives(own, shapes[kind], float(own.model.hidden_size))
        for op in price_operators(own, shapes[kind], hidden):
            if op.layer != "head" or kind == "decoder" or op.name == "final norm":
                result.append(replace(op, layer=kind) if op.layer in ("all", "dense") else op)
    return result + cross_attention_operators(jobs["decoder"], shapes["decoder"], shapes["encoder"])


def _attention_operators(job: TrainingJob, x: Shapes, hidden: BlockCollectives, column: list[Operator]) -> list[Operator]:
    """The attention block beside its linear layers, `column` the first of these; but in hybrids also the second half's norm and
    residual."""
    model, latent = job.model, hidden
    if model.multi_latent_attention:
        width = (model.q_lora_rank or model.hidden_size) + model.kv_lora_rank + model.qk_pos_emb_head_dim
        latent = BlockCollectives(job, x, float(width))
    core, *further = sparse_attention_operators(job, x) if model.is_sparse else [core_attention(job, x)]
    ring = cp_communication_seconds(job, x, core)
    exchange = Operator(
        name="context-parallel exchange",
        formula="cp_communication_seconds",
        modules=("core_attn",),
        forward=ring[0],
        dgrad=ring[1],
    )
    communication = block_communication(job, x, "attention communication", latent, hidden, column)
    result = [core, *further, exchange, *attention_pointwise(job, x)]
    if model.is_hybrid:
        return [replace(op, layer="attention") for op in (*result, communication)]
    return [*result, *second_norm_and_residual(job, x, model.kinds[-1]), communication]


def _gemm_groups(job: TrainingJob, x: Shapes) -> dict[str, list[GemmShape]]:
    """Linear layers by block; blocks that the model lacks are missing."""
    model, groups = job.model, {}
    if not model.is_hybrid:
        groups["attention"] = attention_gemm_shapes(job, x) + (indexer_gemm_shapes(job, x) if model.is_sparse else [])
    elif "attention" in model.kinds:
        groups["attention"] = [
            replace(g, layer="attention", layer_precision=job.quantises_attention) for g in attention_gemm_shapes(job, x)
        ]
    groups |= {kind: recurrent_gemm_shapes(job, x, kind) for kind in RECURRENT if kind in model.kinds}
    if model.has_dense_mlp:
        layer = "mlp" if model.is_hybrid else "dense"
        groups["mlp"] = mlp_gemm_shapes(job, x, model.ffn_hidden_size, "", layer, ("mlp",))
    if model.is_moe:
        groups["experts"] = expert_gemm_shapes(job, x)
        groups["router"] = [router_gemm_shape(job, x)]
        further = {"shared": shared_expert_shapes(job, x), "latent": latent_gemm_shapes(job, x)}
        groups |= {name: group for name, group in further.items() if group}
    groups = {name: with_adapters(job, group) for name, group in groups.items()}
    groups["head"] = [logits_gemm_shape(job, x), *masked_lm_gemm_shapes(job, x)]
    if model.mtp_num_layers:
        groups["mtp"] = [mtp_projection_shape(job, x)]
    return groups


def _sum(operators: Sequence[Operator], field: str) -> Number:
    return sum((getattr(op, field) for op in operators), 0.0)


def _pair(operators: Sequence[Operator]) -> tuple[Number, Number]:
    return _sum(operators, "forward"), _sum(operators, "dgrad") + _sum(operators, "wgrad")


def recompute_seconds(
    operators: Sequence[Operator],
    layer: tuple[Number, Number],
    waiting: tuple[Number, Number],
    recomputes: Sequence[Recompute],
    checkpoint_s: float = 0.0,
) -> Number:
    """[shapes, recomputes] of one layer: what running a part again adds to its backward. full:block columns are 0 here.

    `layer`, `waiting`: forward and backward seconds, and what the host's launches are of them. Selective: the forward of every
    operator that belongs to a chosen module, once, and the host's `checkpoint_s` for each checkpointed part; by operator, of
    each operator its `again`. full:uniform: the whole forward, its communication and launches included. Where graphs replay
    everything the host needs nothing. Source: Korthikanti et al. 2022, section 5; Megatron's --recompute-modules.
    """
    by_modules: dict[tuple[str, ...], Number] = {}
    for op in operators:
        if op.modules:
            by_modules[op.modules] = by_modules.get(op.modules, 0.0) + op.forward
    forward, backward = (np.asarray(seconds, dtype=np.float64) for seconds in layer)
    gpu = forward - waiting[0], backward - waiting[1]
    host = [np.sqrt(np.maximum(whole**2 - own**2, 0.0)) for whole, own in zip((forward, backward), gpu, strict=True)]
    table = np.zeros((*np.shape(forward), len(recomputes)))
    for r, recompute in enumerate(recomputes):
        again, launches = 0.0 * forward, 0.0 * forward
        if recompute.granularity == "full" and recompute.method == "uniform":
            again, launches = gpu[0], host[0] + np.where(host[0] > 0.0, checkpoint_s, 0.0)
        elif recompute.by_operator:
            again = sum((op.again * op.forward for op in operators), again)
        elif recompute.granularity == "selective":
            chosen = [modules for modules in by_modules if not set(modules).isdisjoint(recompute.modules)]
            again = sum((by_modules[modules] for modules in chosen), again)
            parts = {*recompute.modules}.intersection(chain.from_iterable(chosen))
            launches = np.where(host[1] > 0.0, checkpoint_s * sum(CHECKPOINTED_PARTS.get(name, 1.0) for name in parts), 0.0)
        table[..., r] = recompute_host_seconds(gpu[1], host[1], again, launches)
    return table


def lora_parameters(gemms: Sequence[GemmShape], numerics: Numerics) -> Number:
    """r (n + k) per target module and group, on one rank (Hu et al. 2021)."""
    return sum((numerics.lora_rank * (g.n + g.k) * g.groups for g in gemms if g.name in numerics.lora_target_modules), 0.0)


def adapter_parameters(job: TrainingJob, x: Shapes) -> RankParameters:
    """Of LoRA's adapters on one rank; none on experts, embedding and head."""
    model, kinds = job.model, job.model.kinds
    attention = attention_gemm_shapes(job, x)
    mlp = mlp_gemm_shapes(job, x, model.ffn_hidden_size, "", "dense", ())
    adapted = {**{kind: [*attention, *mlp] for kind in DENSE_KINDS}, "mlp": mlp, "attention": attention}
    adapted["moe"] = [] if model.is_hybrid else attention
    zero = 0.0 * x.tokens
    dense = [lora_parameters(adapted.get(kind, []), job.numerics) + zero for kind in kinds]
    return RankParameters(dense=dense, expert=[zero for _ in kinds], embedding=zero, head=zero, tied=zero)


def held_parameters(job: TrainingJob, x: Shapes) -> RankParameters:
    """Of one rank, trained or frozen, LoRA's adapters included."""
    model = job.model
    layers = [layer_parameters(model, kind, x.tp, x.etp, x.ep) for kind in model.kinds]
    dense = [p.dense + 0.0 * x.tp for p in layers]
    if job.numerics.peft == "lora":
        dense = [frozen + added for frozen, added in zip(dense, adapter_parameters(job, x).dense, strict=True)]
    output = output_layer_parameters(model, x.tp)
    head = final_norm_parameters(model) + output + output_bias_parameters(model, x.tp)
    if model.mtp_num_layers:
        depth = mtp_layer_parameters(model, x.tp, x.etp, x.ep).dense + 0.0 * x.tp
        if model.is_hybrid:  # the layers of a depth are counted among the stage's
            depth = depth - sum(layer_parameters(model, kind, x.tp).dense for kind in model.mtp_kinds)
        head = head + mtp_depths_held(model) * depth
    return RankParameters(
        dense=dense,
        expert=[p.experts + 0.0 * x.tp for p in layers],
        embedding=embedding_parameters(model, x.tp),
        head=head,
        tied=0.0 * output if model.untie_embeddings_and_output_weights else output,
    )
