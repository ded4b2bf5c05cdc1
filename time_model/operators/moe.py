"""The mixture-of-experts part of a layer: router, permutation, expert all-to-all, grouped GEMMs, shared experts."""

from __future__ import annotations

from functools import partial

import numpy as np
from autoconfig.specs.models.parameters import Number
from autoconfig.time_model.collectives import collective_seconds
from autoconfig.time_model.job import Shapes, TrainingJob
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
    _, m = expert_rows(x.sharded_tokens, model.moe_router_topk, int(experts), ep=x.ep, etp=x.etp, imbalance=job.expert_load)
    width, h, local = model.moe_ffn_hidden_size / x.etp, model.expert_width + 0.0 * x.tokens, local_experts(job, x)
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


def latent_gemm_shapes(job: TrainingJob, x: Shapes) -> list[GemmShape]:
    """Projections of the local tokens to the experts' latent width and back, whole on every rank; empty without one."""
    width, h = job.model.moe_latent_size, job.model.hidden_size + 0.0 * x.tokens
    if not width:
        return []
    low, quantised = width + 0.0 * x.tokens, job.quantises_attention
    return [
        GemmShape(name=name, m=x.sharded_tokens, n=n, k=k, layer="moe", modules=MOE, layer_precision=quantised)
        for name, n, k in (("fc1_latent_proj", low, h), ("fc2_latent_proj", h, low))
    ]


PERMUTE_BYTES = {"allgather": 8.0, "alltoall": 8.0, "deepep": 6.0, "hybridep": 6.0}
"""Traffic of permutation one way, per routed row and channel: copies made before sending and joined after. Counted in
Megatron-Core's token_dispatcher.py; without all of it the errors of the published mixtures change by 0.2 points."""
PAD_BYTES = 4.0
"""More where each expert's rows are padded for a quantised GEMM and back; HybridEP pads as it writes."""


def permute_bytes(dispatcher: str, local_experts: Number, *, padded: bool) -> Number:
    """Per routed row and channel, one way: with several local experts all-to-all's arrivals are sorted once more."""
    again = np.where(local_experts > 1.0, 2.0, 1.0) if dispatcher == "alltoall" else 1.0 + 0.0 * local_experts
    return PERMUTE_BYTES[dispatcher] * again + (PAD_BYTES if padded and dispatcher != "hybridep" else 0.0)


START_UP_S = {"alltoall": 60e-6, "deepep": 60e-6, "hybridep": 50e-6}
"""Start-up of one dispatch or combine, its metadata included."""
DEEPEP_LINKS = (450e9, 900e9)
DEEPEP_LINK_SHARE, DEEPEP_S_PER_COPY = (0.87, 0.61), (2.7e-9, 13e-9)
"""Share of the links' rate, and seconds beside it for each copied token, by that rate: 20 SMs (DeepEP tables of
aiconfigurator-core 0.12.0, GB/s of combine at widths 2048 and 7168, two equations each: H100 over 8 ranks 312 and 365, 0.87 and
2.7 ns; B200 over 8 ranks 241 and 416, 0.65 and 10 ns; GB200 over 4 ranks 170 and 326, 0.57 and 16 ns)."""
NIC_SHARE = {"hybridep": (0.67, 0.86, 0.87), "deepep": (0.88, 0.88, 0.88)}
"""Share of the card's rate that copies to other link domains reach over 2, 4, and 8 or more of them: GB/s (1 - 1/D) over the
card's 50, for the tables count copies of the own domain too (deepseek-ai/DeepEP, tests/test_internode.py, on branch hybrid-ep
tests/utils.py; README of V2: "logical bandwidth"). HybridEP: H100, 16 SMs, kernels alone as below: dispatch 71.7 / 57.7 / 50.0,
combine 63.0 / 57.5 / 49.8. DeepEP, H800: 58 / 57 at 4, 51 / 50 at 8; its 43 at 2 are the links' (139 of the 153 GB/s that an
H800's reach; V2, with 90, takes 0.9 of the card)."""
HYBRIDEP_S_PER_COPY, HYBRIDEP_LINK_LOSS = 3e-9, 0.05
"""Seconds for each copied token beside the links, and what their rate loses with each doubling of a domain's ranks above
HYBRIDEP_RANKS. Kernels alone, GB200, 32 SMs, width 7168, mean of dispatch and combine: 0.41, 0.55, 0.62, 0.68 and 0.69 ms at 8,
16, 24, 32 and 36 ranks (deepseek-ai/DeepEP, branch hybrid-ep, docs/README_Hybrid-EP.md). Less 3 ns a copy, what goes to other
ranks moves at 0.87, 0.83, 0.80, 0.77 and 0.76 of the link's rate. One width cannot tell bytes from copies: of 2 to 4 ns, 3 is
what published mixtures 1,024 to 2,688 wide need and still leaves a rate that links reach (4 ns: 0.92)."""
HYBRIDEP_RANKS = 8.0

PROBABILITY_BYTES = 4.0
"""fp32 routing weight of one expert (deepseek-ai/DeepEP, branch hybrid-ep of July 2026, csrc/hybrid_ep/backend/
hybrid_ep_backend.cuh: FORWARD_DISPATCH and BACKWARD_COMBINE copy experts per rank x ranks per node of them with each token)."""


def places_reached(places: Number, topk: int) -> Number:
    """Of D places, how many a token is sent to when its k experts are drawn evenly: D (1 - (1 - 1/D)^k). Counting."""
    return places * (1.0 - (1.0 - 1.0 / places) ** topk)


def places_in_turn(places: Number, topk: int, experts: int) -> Number:
    """The same, on average over the tokens, where token i goes to experts i k, i k + 1, ... i k + k - 1 (modulo E), of which
    each place holds b = E / D next to each other: 1 + (k - gcd(k, b)) / b. Counting: a row of k experts begins at a multiple of
    gcd(k, E), and of the D borders between places it passes each as often as such a beginning lies in the k - 1 before it.
    """
    held = np.maximum(np.rint(experts / np.asarray(places)), 1.0)
    return np.minimum(1.0 + (topk - np.gcd(topk, held.astype(np.int64))) / held, places)


def expert_exchange_seconds(job: TrainingJob, x: Shapes) -> tuple[Number, Number, Number]:
    """Time of dispatch and combine together, (forward, backward), and the bytes that one rank sends in both.

    With expert tensor parallelism rows are gathered over etp behind dispatch and reduce-scattered before combine. HybridEP's
    forward also gathers the routing map of ep T E bytes over the links and through HBM twice. The busiest rank decides.
    """
    model, group = job.model, x.expert_group
    rows = x.sharded_tokens * job.expert_load
    once = rows * model.expert_width * job.activation_bytes
    both = np.where(group.size > 1.0, _dispatch_and_combine(job, x, rows, once), 0.0)
    spread = once * model.moe_router_topk * x.etp
    for kind in ("all_gather", "reduce_scatter"):
        both = both + collective_seconds(kind, spread, x.expert_tensor_group, job.links)
    routing = 0.0 * both
    if job.settings.dispatcher == "hybridep":
        per_byte = 1.0 / (_link_rate(job) * job.software.hybridep_link_share) + 2.0 / job.hbm_bytes_per_s
        routing = np.where(group.size > 1.0, group.size * x.sharded_tokens * (model.num_moe_experts or 0) * per_byte, 0.0)
    return both + routing, both, 2.0 * once * model.moe_router_topk


def _link_rate(job: TrainingJob) -> float:
    return job.cluster.link_bytes_per_s / job.factors.communication


def _dispatch_and_combine(job: TrainingJob, x: Shapes, rows: Number, once: Number) -> Number:
    """Both ways of `rows` tokens, `once` bytes where each is sent to one place.

    alltoall: a copy for each of the k experts. deepep, hybridep: a copy to each rank inside the link domain over the links,
    beside one to each further domain over the network; the slower decides. HybridEP's copies to oneself do not cross the links
    (DeepEP's share counts them). One of HybridEP's two ways (forward's dispatch, backward's combine) also carries, with each
    copy, the routing weights of all experts of the link domain. allgather: every token to every rank, and a reduce-scatter
    back.
    """
    kind, k, group, links = job.settings.dispatcher, job.model.moe_router_topk, x.expert_group, job.links
    if kind == "allgather":
        pooled = once * group.size
        return collective_seconds("all_gather", pooled, group, links) + collective_seconds(
            "reduce_scatter", pooled, group, links
        )
    if kind == "alltoall":
        return 2.0 * (collective_seconds("all_to_all", once * k, group, links) + START_UP_S[kind])
    reached = partial(places_in_turn, experts=job.model.num_moe_experts or 1) if job.routes_in_turn else places_reached
    copies = reached(group.size, k)
    remote = reached(group.domains, k) * (1.0 - 1.0 / group.domains)
    if kind == "hybridep":
        inside = np.maximum(group.size / group.domains, 1.0)
        kept = 1.0 - HYBRIDEP_LINK_LOSS * np.log2(np.maximum(inside / HYBRIDEP_RANKS, 1.0))
        link, crossing = _link_rate(job) * job.software.hybridep_link_share * kept, copies * (1.0 - 1.0 / inside)
        per_copy = HYBRIDEP_S_PER_COPY
        with_weights = once + PROBABILITY_BYTES * rows * (job.model.num_moe_experts or 0) / group.domains
    else:
        rate = job.cluster.link_bytes_per_s
        link, crossing = _link_rate(job) * float(np.interp(rate, DEEPEP_LINKS, DEEPEP_LINK_SHARE)), copies
        per_copy, with_weights = float(np.interp(rate, DEEPEP_LINKS, DEEPEP_S_PER_COPY)), once
    share = np.interp(np.log2(group.domains), (1.0, 2.0, 3.0), NIC_SHARE[kind])

    def one_way(sent: Number) -> Number:
        over_links = sent * crossing / link + per_copy * rows * copies
        outside = sent * remote * job.factors.communication / (share * job.cluster.nic_bytes_per_s)
        return np.maximum(over_links, outside) + START_UP_S[kind]

    return one_way(with_weights) + one_way(once)


def local_experts(job: TrainingJob, x: Shapes) -> Number:
    """Experts of one rank."""
    return np.maximum((job.model.num_moe_experts or 1) / x.ep, 1.0)


def exposed_exchange(job: TrainingJob, overlapped: Number) -> Number:
    """Share of dispatch and combine that is exposed: all of it, or under the combined 1F1B schedule what it does not hide and
    what the hidden part takes from the kernels beside it."""
    return np.where(overlapped, 1.0 - job.software.ep_overlap_hides * (1.0 - job.software.overlap_interference), 1.0)


def expert_operators(job: TrainingJob, x: Shapes) -> list[Operator]:
    """Operators of the routed experts beside their GEMMs; fused experts have activation and biases inside of these.

    Where linear layers have biases, fc2's are added outside of the grouped GEMM, expert by expert: bias x probability in fp32
    (write 4), sum (6 + 4), concatenation (8), cast (4 + 2) bytes a row and channel; backward 44. Source: counting,
    Megatron-Core's moe/experts.py (_apply_bias).
    """
    model, settings = job.model, job.settings
    rows, _ = expert_rows(
        x.sharded_tokens, model.moe_router_topk, model.num_moe_experts or 1, ep=x.ep, etp=x.etp, imbalance=job.expert_load
    )
    per_row = permute_bytes(settings.dispatcher, local_experts(job, x), padded=job.quantised and not job.drops_tokens)
    permuted = per_row * rows * model.expert_width * job.factors.moe
    forward, backward, sent = expert_exchange_seconds(job, x)
    exposed = exposed_exchange(job, x.overlapped)
    result = [
        memory_bound(job, "permute", (permuted, permuted), layer="moe", modules=MOE),
        Operator(
            name="expert exchange",
            formula="expert_exchange_seconds",
            layer="moe",
            modules=MOE,
            forward=exposed * forward,
            dgrad=exposed * backward,
            traffic=sent,
        ),
    ]
    if settings.fused_experts:
        return result
    biased = rows * model.expert_width * (1.0 if model.add_bias_linear or model.moe_expert_bias else 0.0)
    activation = activation_bytes(rows * model.moe_ffn_hidden_size / x.etp, model.gated_linear_unit, job.software)
    return [
        memory_bound(job, "experts.bias", (28.0 * biased, 44.0 * biased), layer="moe", modules=MOE),
        memory_bound(job, "experts.activation", activation, layer="moe", modules=("moe", "moe_act")),
        *result,
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
