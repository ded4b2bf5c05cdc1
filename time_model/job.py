"""What one estimate is about, resolved once: the scenario, its calibration, and the GPU's reached rates."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from autoconfig.specs.errors import InputError, option
from autoconfig.specs.hardware.cluster import ClusterSpec
from autoconfig.specs.layouts import Layouts
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.parameters import Number
from autoconfig.specs.run_settings import RunSettings, overlap_can_run
from autoconfig.specs.scenario import TYPE_BYTES, Factors, Numerics, Scenario, gathers_fp8
from autoconfig.specs.software.bitsandbytes import FROZEN_BYTES
from autoconfig.specs.software.software import StackTime
from autoconfig.time_model.hardware.efficiency import (
    CollectiveEfficiency,
    CollectiveTerms,
    GpuEfficiency,
    GridTable,
    QuantisedEfficiency,
    efficiency_of,
    factors_for,
)


@dataclass(frozen=True, kw_only=True)
class Links:
    """Rates of one cluster: published link and network rates, and what share collectives reach."""

    link_bytes_per_s: float
    nic_bytes_per_s: float
    """Per GPU, after the network's efficiency."""
    nic_hop_s: float
    collectives: dict[str, CollectiveEfficiency]
    size_ranks: tuple[float, ...]
    size_alpha: tuple[float, ...]
    size_bandwidth: tuple[float, ...]
    tables: dict[str, CollectiveTerms] = field(default_factory=dict)
    """Measured terms by kind; the closed form's constants price the others."""


def links_of(cluster: ClusterSpec, gpu: GpuEfficiency, factor: float = 1.0) -> Links:
    """The links of a cluster under the efficiencies of its GPU; everything takes `factor` times as long (calibration)."""
    collectives = {
        kind: dataclasses.replace(c, alpha_s=c.alpha_s * factor, sqrt_s=c.sqrt_s * factor)
        for kind, c in gpu.collectives.items()
    }
    return Links(
        link_bytes_per_s=cluster.link_bytes_per_s / factor,
        nic_bytes_per_s=cluster.nic_bytes_per_s * gpu.nic_efficiency / factor,
        nic_hop_s=gpu.nic_hop_s * factor,
        collectives=collectives,
        size_ranks=gpu.size_ranks,
        size_alpha=gpu.size_alpha,
        size_bandwidth=gpu.size_bandwidth,
        tables={kind: terms.slower(factor) for kind, terms in gpu.tables.collectives.items()},
    )


def ring_factor(kind: str, size: Number) -> Number:
    """Bytes that each rank sends per byte of the whole buffer: (n-1)/n, twice that for all-reduce (Thakur et al. 2005)."""
    return (2.0 if kind == "all_reduce" else 1.0) * (size - 1.0) / size


def small_group_factor(size: Number, ranks: tuple[float, ...], values: tuple[float, ...]) -> Number:
    """A constant measured at 2, 4 and 8 ranks, linear in log2 between and constant outside."""
    return np.interp(np.log2(size), np.log2(ranks), values)


def collective_seconds(
    kind: str,
    total_bytes: Number,
    group: Group,
    links: Links,
    *,
    inside_share: Number = 1.0,
    outside_share: Number = 1.0,
) -> Number:
    """all_reduce, all_gather, reduce_scatter (total_bytes: the whole buffer) or all_to_all (what one rank holds).

    t = alpha(n) + ring factor x bytes / bandwidth + c sqrt(bytes) inside a link domain (NCCL tables of aiconfigurator-core
    0.12.0; findings on public measurements, section 5: median 3-4 %). Over D domains the ring's bandwidth is what the
    group's members in one domain have of network cards together, at most the link's; plus a hop of latency per further domain.
    All-to-all sends (n - local)/n of its bytes through the rank's own card while the rest uses the links;
    `inside_share` and `outside_share` of them where duplicates are sent once. 0 for one rank.
    """
    alpha, share, sqrt = collective_terms(kind, group, links)
    bandwidth = share * links.link_bytes_per_s
    if kind == "all_to_all":
        inside = inside_share * (group.local - 1.0) / group.size * total_bytes / bandwidth
        outside = outside_share * (group.size - group.local) / group.size * total_bytes / links.nic_bytes_per_s
        transfer = np.maximum(inside, outside)
    else:
        network = np.where(group.local > 1.0, np.minimum(group.local * links.nic_bytes_per_s, bandwidth), links.nic_bytes_per_s)
        transfer = ring_factor(kind, group.size) * total_bytes / np.where(group.size > group.local, network, bandwidth)
    hops = (group.domains - 1.0) * (2.0 if kind == "all_reduce" else 1.0) * links.nic_hop_s
    return np.where(group.size > 1.0, alpha + hops + transfer + sqrt * np.sqrt(total_bytes), 0.0)


def rate_share(kind: str, group: Group, links: Links) -> Number:
    """Rate at which a ring moves through each GPU, over that inside a link domain: 1 inside, local members x card over the
    link's outside. A slow wire leaves the kernels beside it more of the GPU."""
    bandwidth = collective_terms(kind, group, links)[1] * links.link_bytes_per_s
    return np.where(group.size > group.local, np.minimum(group.local * links.nic_bytes_per_s / bandwidth, 1.0), 1.0)


def collective_terms(kind: str, group: Group, links: Links) -> tuple[Number, Number, Number]:
    """(alpha s, share of the link rate, s per sqrt byte) of a collective: measured by number of ranks, else the closed form's.

    Linear in log2 of the ranks between the measured ones (2, 4 and 8), constant outside.
    """
    if kind in links.tables:
        t = links.tables[kind]
        return (
            small_group_factor(group.size, t.ranks, t.alpha_s),
            small_group_factor(group.local, t.ranks, t.link_share),
            small_group_factor(group.size, t.ranks, t.sqrt_s),
        )
    c = links.collectives[kind]
    alpha = c.alpha_s * small_group_factor(group.size, links.size_ranks, links.size_alpha)
    return alpha, c.link_share * small_group_factor(group.local, links.size_ranks, links.size_bandwidth), c.sqrt_s


def send_seconds(message_bytes: Number, crosses: Number, links: Links) -> Number:
    """One point-to-point message: start-up + bytes / rate, over the network where the pair `crosses` link domains."""
    c = links.collectives["p2p"]
    rate = np.where(
        crosses, np.minimum(links.nic_bytes_per_s, c.link_share * links.link_bytes_per_s), c.link_share * links.link_bytes_per_s
    )
    return c.alpha_s + np.where(crosses, links.nic_hop_s, 0.0) + message_bytes / rate


def exposed_seconds(communication: Number, compute: Number, interference: Number) -> Number:
    """What is exposed of communication beside compute: the part that outlasts it, and a share of the hidden part.

    max(c - w, 0) + i min(c, w). i = 1 is no overlap at all. Source: findings on public measurements, section 2 (25 %
    of a hidden all-reduce is exposed); Rashidi et al. 2021 on why (SMs and HBM are
    shared).
    """
    return communication - (1.0 - interference) * np.minimum(communication, compute)


@dataclass(frozen=True, kw_only=True)
class Group:
    """A communication group as the links see it."""

    size: Number
    local: Number
    """Members in one link domain."""

    @property
    def domains(self) -> Number:
        """Link domains that the group touches."""
        return np.ceil(self.size / self.local)


def group_of(size: Number, stride: Number, link_domain: int) -> Group:
    """Members `stride` ranks apart: floor(domain / stride) of them share a link domain, at least one.

    Assumes that domains are filled in rank order.
    """
    size = np.asarray(size, dtype=np.float64)
    return Group(size=size, local=np.minimum(size, np.maximum(link_domain // np.asarray(stride, dtype=np.float64), 1.0)))


def tensor_group(layouts: Layouts, cluster: ClusterSpec) -> Group:
    """Tensor parallelism: stride 1."""
    return group_of(layouts.tp, 1, cluster.link_domain_size)


def context_group(layouts: Layouts, cluster: ClusterSpec) -> Group:
    """Context parallelism: stride tp."""
    return group_of(layouts.cp, layouts.tp, cluster.link_domain_size)


def data_group(layouts: Layouts, cluster: ClusterSpec) -> Group:
    """Gradients of dense weights are reduced over dp x cp ranks: stride tp (cp and dp are neighbours in the order)."""
    return group_of(layouts.dp * layouts.cp, layouts.tp, cluster.link_domain_size)


def expert_tensor_group(layouts: Layouts, cluster: ClusterSpec) -> Group:
    """Expert tensor parallelism: stride 1."""
    return group_of(layouts.etp, 1, cluster.link_domain_size)


def expert_group(layouts: Layouts, cluster: ClusterSpec) -> Group:
    """Expert parallelism: stride etp."""
    return group_of(layouts.ep, layouts.etp, cluster.link_domain_size)


def expert_data_group(layouts: Layouts, cluster: ClusterSpec) -> Group:
    """Gradients of expert weights: edp = tp cp dp / (etp ep) ranks, stride etp ep."""
    size = np.maximum(layouts.tp * layouts.cp * layouts.dp // (layouts.etp * layouts.ep), 1)
    return group_of(size, layouts.etp * layouts.ep, cluster.link_domain_size)


def pipeline_crosses(layouts: Layouts, cluster: ClusterSpec) -> Number:
    """True where some pair of neighbouring pipeline stages lies in two link domains: pp x stride > domain, stride tp cp dp."""
    return layouts.tp * layouts.cp * layouts.dp * layouts.pp > cluster.link_domain_size


NVFP4_CAST_BYTES = 5.1
"""Of one element: maximum 2, read 2, two orientations of 1/2 + 1/16 each."""


@dataclass(frozen=True)
class TrainingJob:
    """The scenario of one estimate, what its runs switch on, and what follows from both alone."""

    scenario: Scenario
    settings: RunSettings

    @classmethod
    def of(cls, scenario: Scenario) -> TrainingJob:
        """With the switches of a plan that every switch can run in."""
        return cls(scenario, scenario.settings())

    @property
    def model(self) -> ModelSpec:
        return self.scenario.model

    @property
    def cluster(self) -> ClusterSpec:
        return self.scenario.cluster

    @property
    def numerics(self) -> Numerics:
        return self.scenario.numerics

    @cached_property
    def factors(self) -> Factors:
        """Calibration."""
        return factors_for(self.scenario)

    @cached_property
    def software(self) -> StackTime:
        """The stack's constants, calibrated. The factor `step` is about what the GPU does: the host's own seconds stay."""
        time, host = self.scenario.software.time, self.factors.host / self.factors.step
        return replace(
            time,
            pointwise_slowdown=time.pointwise_slowdown * self.factors.memory,
            host_floor_seconds=time.host_floor_seconds * host,
            step_host_seconds=time.step_host_seconds * host,
            moe_host_seconds=time.moe_host_seconds * host,
            expert_host_seconds=time.expert_host_seconds * host,
        )

    @cached_property
    def gpu(self) -> GpuEfficiency:
        return efficiency_of(self.cluster.gpu)

    @cached_property
    def links(self) -> Links:
        return links_of(self.cluster, self.gpu, self.factors.communication)

    @property
    def hbm_bytes_per_s(self) -> float:
        return self.cluster.hbm_bytes_per_s

    @property
    def activation_bytes(self) -> int:
        return self.numerics.activation_bytes

    @property
    def width_factor(self) -> float:
        """Activations over 16 bits: scales traffic that is given at 16 bits."""
        return self.numerics.activation_bytes / 2.0

    @property
    def quantised(self) -> bool:
        return self.numerics.format.quantised

    @property
    def quantises_attention(self) -> bool:
        """Attention's and latent projections are in the layers' format; hybrids under NVFP4 keep them in 16 bits (te_quant.cfg
        of Megatron-Bridge's Nemotron-3 recipes)."""
        return not (self.model.is_hybrid and self.numerics.format.peak == "fp4")

    @cached_property
    def flops_per_s(self) -> float:
        """Peak of everything that is not a quantised GEMM."""
        return self.cluster.gpu.peak_flops_per_s("bf16" if self.quantised else self.numerics.gemm_precision)

    @property
    def reached(self) -> QuantisedEfficiency:
        """What the GPU reaches in the layers' quantised format."""
        if self.numerics.format.peak == "fp4" and "fp4" not in self.gpu.quantised:
            fp8 = self._quantised("fp8", "mxfp8")
            rate = {"nvfp4": fp8.recipe["mxfp8"]}
            return replace(
                fp8, over_bf16=fp8.over_bf16 * self.fp4_over_fp8, recipe=rate, cast_bytes={"nvfp4": NVFP4_CAST_BYTES}
            )
        return self._quantised(self.numerics.format.peak, self.numerics.format.recipe)

    def _quantised(self, peak: str, recipe: str) -> QuantisedEfficiency:
        """What the GPU reaches in a format. Raises InputError where data/gpu_efficiency.json has no rate of it."""
        known = self.gpu.quantised.get(peak)
        if known is None or recipe not in known.recipe or recipe not in known.cast_bytes:
            raise InputError(f"what {self.cluster.gpu.id} reaches in {recipe} is not known; say {option('precision')} bf16")
        return known

    @property
    def fp4_over_fp8(self) -> float:
        """Rate of NVFP4 GEMMs over MXFP8: 1 + 0.48 (peak over peak - 1), 1.5 on GB200 and 1.9 on GB300.

        Source: NVIDIA's dense NVFP4 runs of 2026 on both (nine rows, -5 to +4 %); nvfp4 over fp8 block GEMMs of
        aiconfigurator-core 0.12.0: 1.23 to 1.5.
        """
        peaks = self.cluster.gpu.peak_flops_per_s
        return 1.0 + 0.48 * (peaks("fp4") / peaks("fp8") - 1.0)

    def gemm_rate(self, low: bool, table: GridTable | None) -> float:
        """Peak of a GEMM before shape, times the software's derate: what the table's shares count from, or the closed form's.

        `low`: in the layers' format where that is quantised. Closed form: a ratio over bf16. Recipe factors apply to both.
        """
        ratio = 1.0
        if low:
            form, peaks = self.numerics.format, self.cluster.gpu.peak_flops_per_s
            peak, reached = peaks(form.peak), self.reached
            over = reached.over_bf16
            if table is not None and not table.over_formula:
                borrowed = form.peak == "fp4" and "fp4" not in self.gpu.tables.gemm
                over = (peaks("fp8") * self.fp4_over_fp8 if borrowed else peak) / self.flops_per_s
            ratio = over * reached.recipe[form.recipe]
        return self.flops_per_s * ratio * self.software.gemm_derate

    def table_precision(self, low: bool) -> str:
        """Which operator tables hold a GEMM: the quantised format's; bf16, for fp16 too; tf32 or fp32."""
        if low or self.activation_bytes == 2:
            peak = self.numerics.format.peak
            return ("fp8" if peak == "fp4" and peak not in self.gpu.tables.gemm else peak) if low else "bf16"
        return "tf32" if "tf32" in self.cluster.gpu.flops_per_s else "fp32"

    @property
    def gradient_bytes(self) -> int:
        """Bytes of one element of the gradient buffer and of its reduction."""
        return TYPE_BYTES[self.numerics.grad_reduce_dtype]

    def gathered_bytes(self, fsdp: Number) -> Number:
        """Bytes of one weight when it is gathered, by FSDP stage."""
        narrow = gathers_fp8(self.numerics, self.scenario.software, fsdp)
        wide = FROZEN_BYTES.get(self.numerics.frozen_dtype, self.numerics.activation_bytes)
        return np.where(narrow, self.numerics.format.gathered_bytes, wide)

    @property
    def drops_tokens(self) -> bool:
        """Experts take a fixed number of rows: shapes are known before routing."""
        return self.numerics.moe_capacity_factor is not None

    @property
    def expert_load(self) -> float:
        """Rows of the busiest expert rank over a balanced load: the capacity factor, or the imbalance given or usual."""
        numerics = self.numerics
        if numerics.moe_capacity_factor is not None:
            return numerics.moe_capacity_factor
        return self.software.moe_imbalance if numerics.moe_imbalance is None else numerics.moe_imbalance

    @property
    def routes_in_turn(self) -> bool:
        """Balance is forced (an imbalance of 1 is given), by a stack that sends tokens to experts in turn."""
        return self.numerics.moe_imbalance == 1.0 and self.software.forced_routing_in_turn

    @property
    def unfused_attention(self) -> bool:
        return self.scenario.software.memory.attention_kernel == "unfused"


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """Rows that decide what one layer costs: unique (tp, sp, cp, mbs, fsdp), and (ep, etp, overlapped) where the model has
    experts. float64."""

    tp: Number
    sp: Number
    cp: Number
    ep: Number
    etp: Number
    mbs: Number
    fsdp: Number
    overlapped: Number
    """1 where dispatch and combine run beside another micro-batch's compute, else 0."""
    tokens: Number
    """T = mbs s / cp: tokens of one micro-batch on one rank."""
    sharded_tokens: Number
    """T / tp with sequence parallelism, else T."""
    tensor_group: Group
    context_group: Group
    expert_group: Group
    expert_tensor_group: Group


def overlapped(layouts: Layouts, job: TrainingJob) -> Number:
    """Where experts' communication runs beside compute."""
    return job.settings.ep_overlap & job.model.is_moe & overlap_can_run(layouts.pp, layouts.vpp, layouts.ep)


def shapes_of(layouts: Layouts, job: TrainingJob) -> Shapes:
    """The columns of `layouts` as floats, with what follows from them."""
    tp, cp, mbs = (getattr(layouts, name).astype(np.float64) for name in ("tp", "cp", "mbs"))
    tokens = mbs * job.scenario.workload.seq_length / cp
    return Shapes(
        tp=tp,
        sp=layouts.sp,
        cp=cp,
        mbs=mbs,
        fsdp=layouts.fsdp,
        overlapped=overlapped(layouts, job).astype(np.float64),
        ep=layouts.ep.astype(np.float64),
        etp=layouts.etp.astype(np.float64),
        tokens=tokens,
        sharded_tokens=np.where(layouts.sp, tokens / tp, tokens),
        tensor_group=tensor_group(layouts, job.cluster),
        context_group=context_group(layouts, job.cluster),
        expert_group=expert_group(layouts, job.cluster),
        expert_tensor_group=expert_tensor_group(layouts, job.cluster),
    )
