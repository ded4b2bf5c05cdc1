"""What one estimate is about, resolved once: the scenario, its calibration, and the GPU's reached rates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from autoconfig.specs.calibration import Factors
from autoconfig.specs.hardware.cluster import ClusterSpec
from autoconfig.specs.layouts import Layouts
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.parameters import Number
from autoconfig.specs.numerics import TYPE_BYTES, Numerics
from autoconfig.specs.scenario import Scenario
from autoconfig.specs.software.megatron_build import gathers_fp8
from autoconfig.specs.software.software import StackTime
from autoconfig.time_model.calibration import factors_for
from autoconfig.time_model.hardware.efficiency import GpuEfficiency, GridTable, QuantisedEfficiency, efficiency_of
from autoconfig.time_model.network.collectives import (
    Group,
    Links,
    context_group,
    expert_group,
    expert_tensor_group,
    links_of,
    tensor_group,
)


@dataclass(frozen=True)
class TrainingJob:
    """The scenario of one estimate and what follows from it alone."""

    scenario: Scenario

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
        return self.cluster.gpu.hbm_bytes_per_s

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

    @cached_property
    def flops_per_s(self) -> float:
        """Peak of everything that is not a quantised GEMM."""
        return self.cluster.gpu.peak_flops_per_s("bf16" if self.quantised else self.numerics.gemm_precision)

    @property
    def reached(self) -> QuantisedEfficiency:
        """What the GPU reaches in the layers' quantised format."""
        return self.gpu.quantised[self.numerics.format.peak]

    def gemm_rate(self, low: bool, table: GridTable | None) -> float:
        """Peak of a GEMM before shape, times the software's derate: what the table's shares count from, or the closed form's.

        `low`: in the layers' format where that is quantised. Closed form: a ratio over bf16. Recipe factors apply to both.
        """
        ratio = 1.0
        if low:
            peak, reached = self.cluster.gpu.peak_flops_per_s(self.numerics.format.peak), self.reached
            over = peak / self.flops_per_s if table is not None and not table.over_formula else reached.over_bf16
            ratio = over * reached.recipe[self.numerics.format.recipe]
        return self.flops_per_s * ratio * self.software.gemm_derate

    def table_precision(self, low: bool) -> str:
        """Which operator tables hold a GEMM: the quantised format's; bf16, for fp16 too; tf32 or fp32."""
        if low or self.activation_bytes == 2:
            return self.numerics.format.peak if low else "bf16"
        return "tf32" if "tf32" in self.cluster.gpu.flops_per_s else "fp32"

    @property
    def gradient_bytes(self) -> int:
        """Bytes of one element of the gradient buffer and of its reduction."""
        return TYPE_BYTES[self.numerics.grad_reduce_dtype]

    def gathered_bytes(self, fsdp: Number) -> Number:
        """Bytes of one weight when it is gathered, by FSDP stage."""
        narrow = gathers_fp8(self.numerics, self.scenario.software, fsdp)
        return np.where(narrow, self.numerics.format.operand_bytes, self.numerics.activation_bytes)

    @property
    def wide_domain(self) -> bool:
        """Links join more than one 8-GPU board (NVL72)."""
        return self.cluster.link_domain_size > 8

    @property
    def drops_tokens(self) -> bool:
        """Experts take a fixed number of rows: shapes are known before routing."""
        return self.numerics.moe_capacity_factor is not None

    @property
    def dispatcher(self) -> str:
        """How tokens reach their experts in this run: alltoall, deepep or hybridep."""
        stack = self.software
        if not self.drops_tokens and stack.moe_dispatcher_dropless:
            return stack.moe_dispatcher_dropless
        return stack.moe_dispatcher_wide if self.wide_domain and stack.moe_dispatcher_wide else stack.moe_dispatcher

    @property
    def graphs_without_pipeline(self) -> bool:
        """Plans with one stage replay whole layers as CUDA graphs: fixed shapes, one micro-batch's buffers at a time."""
        least, mine = self.software.moe_graphs_least_capability, self.cluster.gpu.compute_capability
        return self.drops_tokens and least is not None and mine is not None and mine >= least

    @property
    def expert_overlap_share(self) -> float:
        """Share of the expert all-to-all that interleaved stages hide."""
        hides = self.model.is_moe and not self.wide_domain and not self.drops_tokens
        return self.software.moe_overlap_interleaved_share if hides else 0.0

    @property
    def unfused_attention(self) -> bool:
        return self.scenario.software.memory.attention_kernel == "unfused"


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """Rows that decide what one layer costs: unique (tp, sp, cp, mbs, fsdp), and (ep, etp) where the model has experts.
    float64."""

    tp: Number
    sp: Number
    cp: Number
    ep: Number
    etp: Number
    mbs: Number
    fsdp: Number
    tokens: Number
    """T = mbs s / cp: tokens of one micro-batch on one rank."""
    sharded_tokens: Number
    """T / tp with sequence parallelism, else T."""
    tensor_group: Group
    context_group: Group
    expert_group: Group
    expert_tensor_group: Group


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
        ep=layouts.ep.astype(np.float64),
        etp=layouts.etp.astype(np.float64),
        tokens=tokens,
        sharded_tokens=np.where(layouts.sp, tokens / tp, tokens),
        tensor_group=tensor_group(layouts, job.cluster),
        context_group=context_group(layouts, job.cluster),
        expert_group=expert_group(layouts, job.cluster),
        expert_tensor_group=expert_tensor_group(layouts, job.cluster),
    )
