"""The mixture-of-experts part of a layer: router, permutation, expert all-to-all, grouped GEMMs, shared experts."""

from __future__ import annotations

import numpy as np

from specs.parameters import Number
from time_model.collectives import collective_seconds
from time_model.job import Job, Shapes
from time_model.layer import BlockCollectives, block_communication, mlp_gemm_shapes, mlp_pointwise
from time_model.operators import GemmShape, Operator, memory_bound
from time_model.pointwise import activation_bytes

MOE = ("moe",)


def expert_rows(tokens: Number, topk: int, experts: int, *, ep: Number, etp: Number, imbalance: float) -> tuple[Number, Number]:
    """(rows that one rank computes, rows of one local expert) of a micro-batch.

    `tokens` local tokens each go to `topk` experts; the ep x etp ranks of an expert group pool theirs, and expert tensor
    parallelism shows every row to etp ranks: rows = tokens k etp, spread over E / ep experts. `imbalance`: busiest rank
    over the mean. Source: counting, as Megatron-Core's all-to-all token dispatcher does it; no measurement.
    """
    rows = tokens * topk * etp * imbalance
    return rows, rows / np.maximum(experts / ep, 1.0)


def expert_gemm_shapes(job: Job, x: Shapes) -> list[GemmShape]:
    """fc1 and fc2 of the local experts as grouped GEMMs."""
    model = job.model
    experts = float(model.num_moe_experts or 0)
    _, m = expert_rows(
        x.sharded_tokens, model.moe_router_topk, int(experts), ep=x.ep, etp=x.etp, imbalance=job.software.moe_imbalance
    )
    width, h, local = model.moe_ffn_hidden_size / x.etp, model.hidden_size + 0.0 * x.tokens, np.maximum(experts / x.ep, 1.0)
    return [
        GemmShape(
            name="experts.linear_fc1",
            m=m,
            n=model.gate_factor * width,
            k=h,
            groups=local,
            layer="moe",
            modules=MOE,
            grouped=True,
        ),
        GemmShape(name="experts.linear_fc2", m=m, n=h, k=width, groups=local, layer="moe", modules=MOE, grouped=True),
    ]


def router_gemm_shape(job: Job, x: Shapes) -> GemmShape:
    """The router's linear layer on the local tokens, 16 bits."""
    return GemmShape(
        name="router",
        m=x.sharded_tokens,
        n=(job.model.num_moe_experts or 0) + 0.0 * x.tokens,
        k=job.model.hidden_size + 0.0 * x.tokens,
        layer="moe",
        modules=MOE,
        layer_precision=False,
    )


def domain_copies(topk: int, domains: Number) -> Number:
    """Copies of a token that cross the network when each link domain gets it once, over one per expert: (1 - (1 -
    1/D)^k) D / k.

    D domains, k experts drawn evenly; 1 for one domain (nothing crosses). Source: counting; DeepEP, HybridEP (flex dispatcher).
    """
    return np.where(domains > 1, (1.0 - (1.0 - 1.0 / domains) ** topk) * domains / topk, 1.0)


def expert_all_to_all_seconds(job: Job, x: Shapes) -> tuple[Number, Number]:
    """Felt time of dispatch and combine, one way (forward; backward takes as long), and the bytes one rank sends in each.

    Every local token goes to k experts: tokens k h activations all-to-all over ep, twice; with expert tensor parallelism the
    rows are gathered over etp behind it and reduce-scattered before the way back. The busiest rank decides (imbalance).
    """
    model, links, stack = job.model, job.links, job.software
    sent = x.sharded_tokens * model.moe_router_topk * model.hidden_size * job.activation_bytes * stack.moe_imbalance
    once = domain_copies(model.moe_router_topk, x.expert_group.domains) if stack.moe_send_once_per_domain else 1.0
    way = 2.0 * collective_seconds("all_to_all", sent, x.expert_group, links, outside_share=once)
    spread = sent * x.etp
    way = way + collective_seconds("all_gather", spread, x.expert_tensor_group, links)
    way = way + collective_seconds("reduce_scatter", spread, x.expert_tensor_group, links)
    return way * (1.0 - stack.moe_overlap_share), 2.0 * sent


def expert_operators(job: Job, x: Shapes) -> list[Operator]:
    """Operators of the routed experts beside their GEMMs."""
    model, stack = job.model, job.software
    rows, _ = expert_rows(
        x.sharded_tokens, model.moe_router_topk, model.num_moe_experts or 1, ep=x.ep, etp=x.etp, imbalance=stack.moe_imbalance
    )
    permuted = 8.0 * model.moe_router_topk * model.hidden_size * x.sharded_tokens * stack.moe_permute_factor * stack.moe_factor
    way, sent = expert_all_to_all_seconds(job, x)
    channels = rows * model.moe_ffn_hidden_size / x.etp
    return [
        memory_bound(
            job,
            "permute",
            (permuted, permuted),
            layer="moe",
            modules=MOE,
            launches=(stack.forward_launches, stack.backward_launches),
        ),
        memory_bound(
            job,
            "experts.activation",
            activation_bytes(channels, model.gated_linear_unit, stack),
            layer="moe",
            modules=("moe", "moe_act"),
        ),
        Operator(
            name="expert all-to-all",
            formula="expert_all_to_all_seconds",
            layer="moe",
            modules=MOE,
            forward=way,
            dgrad=way,
            traffic=sent,
        ),
    ]


def shared_expert_shapes(job: Job, x: Shapes) -> list[GemmShape]:
    """fc1 and fc2 of the shared experts, divided over tp like a dense MLP; empty where there are none."""
    width = job.model.moe_shared_expert_intermediate_size
    return mlp_gemm_shapes(job, x, width, "shared_experts.", "moe", ("moe", "shared_experts")) if width else []


def shared_expert_operators(job: Job, x: Shapes, hidden: BlockCollectives, column: list[Operator]) -> list[Operator]:
    """Activation and tensor-parallel communication of the shared experts (their own gather and scatter)."""
    width = job.model.moe_shared_expert_intermediate_size
    if not width:
        return []
    modules = ("moe", "shared_experts")
    return [
        mlp_pointwise(job, x, width, "shared_experts.", "moe", modules),
        block_communication(job, x, "shared experts communication", hidden, hidden, column, layer="moe", modules=modules),
    ]
