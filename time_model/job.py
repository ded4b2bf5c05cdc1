"""What one estimate is about, resolved once: the scenario, its calibration, and the GPU's reached rates."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
from autoconfig.time_model.collectives import (
    Group,
    Links,
    context_group,
    expert_group,
    expert_tensor_group,
    links_of,
    tensor_group,
)
from autoconfig.time_model.hardware.efficiency import (
    GpuEfficiency,
    GridTable,
    QuantisedEfficiency,
    efficiency_of,
    factors_for,
)

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
