"""Which links a group of ranks uses. Megatron numbers ranks tp-cp-ep-dp-pp, tp fastest (parallel_state.py, RankGenerator)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from autoconfig.specs.hardware.cluster import ClusterSpec
from autoconfig.specs.layouts import Layouts
from autoconfig.specs.models.parameters import Number


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
