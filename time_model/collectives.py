"""Collectives and sends between GPUs: rates of links, groups of ranks, seconds of each, and what of them is exposed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import numpy as np
from autoconfig.specs.hardware.cluster import ClusterSpec
from autoconfig.specs.layouts import Layouts
from autoconfig.specs.models.parameters import Number
from autoconfig.time_model.hardware.efficiency import CollectiveEfficiency, CollectiveTerms, GpuEfficiency


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
