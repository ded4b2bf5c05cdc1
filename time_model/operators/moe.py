"""The mixture-of-experts part of a layer: router, permutation, expert all-to-all, grouped GEMMs, shared experts."""

from __future__ import annotations

import numpy as np
from autoconfig.specs.models.parameters import Number
from autoconfig.time_model.job import Shapes, TrainingJob, collective_seconds
from autoconfig.time_model.operators.kernels import activation_bytes
from autoconfig.time_model.operators.layer import BlockCollectives, block_communication, mlp_gemm_shapes, mlp_pointwise
from autoconfig.time_model.operators.operator import GemmShape, Operator, memory_bound

MOE = ("moe",)


def expert_rows(tokens: Number, topk: int, experts: int, *, ep: Number, etp: Number, imbalance: float) -> tuple[Number, Number]:
    """(rows that one rank computes, rows of one local expert) of a micro-batch.

    `tokens` local tokens each go to `topk` experts; the ep x etp ranks of an expert group pool theirs, and expert tensor
    parallelism shows every row to etp ranks: rows = tokens k etp, spread over E / ep experts. `imbalance`: busiest rank
    over the mean. Source: counting, as Megatron-Core's all-to-all token dispatcher does it; no measurement.
    """
    rows = tokens * topk * etp * imbalance
    return rows, rows / np.maximum(experts / ep, 1.0)


def expert_gemm_shapes(job: TrainingJob, x: Shapes) -> list[GemmShape]:
    """fc1 and fc2 of the local experts as grouped GEMMs."""
    model = job.model
    experts = float(model.num_moe_experts or 0)
    _, m = expert_rows(
        x.sharded_tokens, model.moe_router_topk, int(experts), ep=x.ep, etp=x.etp, imbalance=job.software.moe_imbalance
    )
    width, h, local = model.moe_ffn_hidden_size / x.etp, model.hidden_size + 0.0 * x.tokens, local_experts(job, x)
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


def router_gemm_shape(job: TrainingJob, x: Shapes) -> GemmShape:
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
    """Copies of a token that leave when each of D places gets it once, over one per expert: (1 - (1 - 1/D)^k) D / k.

    D link domains (over the network) or ranks (over links), k experts drawn evenly; 1 for one place. Source: counting; what
    DeepEP and HybridEP send (deepseek-ai/DeepEP, Megatron-Core's flex dispatcher).
    """
    return np.where(domains > 1, (1.0 - (1.0 - 1.0 / domains) ** topk) * domains / topk, 1.0)


def permute_factor(dispatcher: str, local_experts: Number, *, padded: bool) -> Number:
    """Traffic of permutation one way, over 8 bytes x top-k x hidden x tokens at 16 bits.

    alltoall: copies are made before sending and joined after (1); with several local experts arrivals are sorted by expert and
    back (1 more). deepep: arrivals are copied to their experts and joined (1). hybridep: in the same kernel that
    receives (0.5). Under fp8 without token drop each expert's rows are padded for the GEMM and back (1 more), but hybridep
    pads as it writes. Source: counting, Megatron-Core's token_dispatcher.py.
    """
    if dispatcher == "hybridep":
        return 0.5 + 0.0 * local_experts
    sorted_again = np.where(local_experts > 1.0, 1.0, 0.0) if dispatcher == "alltoall" else 0.0 * local_experts
    return 1.0 + sorted_again + (1.0 if padded else 0.0)


def expert_all_to_all_seconds(job: TrainingJob, x: Shapes) -> tuple[Number, Number]:
    """Time of dispatch and combine, one way (forward; backward takes as long), and the bytes one rank sends in each.

    Every local token goes to k experts: tokens k h activations all-to-all over ep, twice; deepep and hybridep send one copy
    to each rank inside a link domain and one to each further domain. With expert tensor parallelism the rows are gathered
    over etp behind it and reduce-scattered before the way back. The busiest rank decides (imbalance).
    """
    model, links, stack, group = job.model, job.links, job.software, x.expert_group
    sent = x.sharded_tokens * model.moe_router_topk * model.hidden_size * job.activation_bytes * stack.moe_imbalance
    inside = outside = 1.0 + 0.0 * group.size
    if job.dispatcher != "alltoall":
        inside, outside = (domain_copies(model.moe_router_topk, places) for places in (group.size, group.domains))
    way = 2.0 * collective_seconds("all_to_all", sent, group, links, inside_share=inside, outside_share=outside)
    spread = sent * x.etp
    way = way + collective_seconds("all_gather", spread, x.expert_tensor_group, links)
    way = way + collective_seconds("reduce_scatter", spread, x.expert_tensor_group, links)
    return way, 2.0 * sent


def local_experts(job: TrainingJob, x: Shapes) -> Number:
    """Experts of one rank."""
    return np.maximum((job.model.num_moe_experts or 1) / x.ep, 1.0)


def expert_operators(job: TrainingJob, x: Shapes) -> list[Operator]:
    """Operators of the routed experts beside their GEMMs.

    Where linear layers have biases, fc2's are added outside of the grouped GEMM, expert by expert: bias x probability in fp32
    (write 4), sum (6 + 4), concatenation (8), cast (4 + 2) bytes a row and channel; backward 44. Source: counting,
    Megatron-Core's moe/experts.py (_apply_bias).
    """
    model, stack = job.model, job.software
    rows, _ = expert_rows(
        x.sharded_tokens, model.moe_router_topk, model.num_moe_experts or 1, ep=x.ep, etp=x.etp, imbalance=stack.moe_imbalance
    )
    factor = permute_factor(job.dispatcher, local_experts(job, x), padded=job.quantised and not job.drops_tokens)
    permuted = 8.0 * model.moe_router_topk * model.hidden_size * x.sharded_tokens * factor * job.factors.moe
    way, sent = expert_all_to_all_seconds(job, x)
    channels = rows * model.moe_ffn_hidden_size / x.etp
    biased = rows * model.hidden_size * (1.0 if model.add_bias_linear or model.moe_expert_bias else 0.0)
    return [
        memory_bound(job, "experts.bias", (28.0 * biased, 44.0 * biased), layer="moe", modules=MOE),
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


def shared_expert_shapes(job: TrainingJob, x: Shapes) -> list[GemmShape]:
    """fc1 and fc2 of the shared experts, divided over tp like a dense MLP; empty where there are none."""
    width = job.model.moe_shared_expert_intermediate_size
    return mlp_gemm_shapes(job, x, width, "shared_experts.", "moe", ("moe", "shared_experts")) if width else []


def shared_expert_operators(job: TrainingJob, x: Shapes, hidden: BlockCollectives, column: list[Operator]) -> list[Operator]:
    """Activation and tensor-parallel communication of the shared experts (their own gather and scatter)."""
    width = job.model.moe_shared_expert_intermediate_size
    if not width:
        return []
    modules = ("moe", "shared_experts")
    return [
        mlp_pointwise(job, x, width, "shared_experts.", "moe", modules),
        block_communication(job, x, "shared experts communication", hidden, hidden, column, layer="moe", modules=modules),
    ]
