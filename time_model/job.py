"""What one estimate is about, resolved once: the scenario, its calibration, and the GPU's reached rates."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from importlib import resources
from typing import Any

import numpy as np
from autoconfig.specs.errors import InputError
from autoconfig.specs.hardware.cluster import ClusterSpec
from autoconfig.specs.layouts import Layouts
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.parameters import Number
from autoconfig.specs.scenario import (
    MOST,
    NAMES,
    POOL,
    TYPE_BYTES,
    Calibration,
    Entry,
    Factors,
    Numerics,
    OwnRuns,
    Scenario,
    gathers_fp8,
)
from autoconfig.specs.software.software import StackTime
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

SCHEMA_VERSION = 1


def entry_of(calibration: Calibration, architecture: str, generation: str, *, moe: bool = False) -> Entry | None:
    """The entry of the generation on this architecture (for a mixture of experts its own, else the dense one), else of its
    nearest ancestor, else the architecture's pool; None for the documented defaults."""
    here = {(entry.generation, entry.kind): entry for entry in calibration.entries if entry.architecture == architecture}
    wanted: str | None = generation
    while wanted is not None:
        for kind in ("moe", "dense") if moe else ("dense",):
            if (wanted, kind) in here:
                return here[wanted, kind]
        wanted = parents().get(wanted)
    return here.get((POOL, "dense"))


def entry_for(scenario: Scenario, *, moe: bool) -> Entry | None:
    """`entry_of` for a scenario's GPU and software."""
    return entry_of(scenario.calibration, scenario.cluster.gpu.architecture, scenario.software.generation, moe=moe)


def factors_for(scenario: Scenario) -> Factors:
    """What the scenario's calibration says of its GPU, software and kind of model; 1 where nothing was fitted."""
    entry = entry_for(scenario, moe=scenario.model.is_moe)
    return Factors() if entry is None else entry.factors


@cache
def parents() -> Mapping[str, str | None]:
    """Generation -> the generation that stands in for it."""
    text = (resources.files("autoconfig.time_model") / "data" / "generations.json").read_text(encoding="utf-8")
    table: dict[str, str | None] = json.loads(text)["parents"]
    return table


@cache
def shipped() -> Calibration:
    """The calibration that ships with the project."""
    text = (resources.files("autoconfig.time_model") / "data" / "calibration.json").read_text(encoding="utf-8")
    return parse(json.loads(text), "the shipped calibration")


def parse(data: Any, name: str) -> Calibration:
    """A calibration from JSON. Raises InputError naming what is wrong."""
    if not isinstance(data, dict) or data.get("schema_version") != SCHEMA_VERSION or not isinstance(data.get("entries"), list):
        raise InputError(f"{name} is not a calibration of schema version {SCHEMA_VERSION}; write one with autoconfig calibrate")
    try:
        return Calibration(version=str(data["version"]), entries=tuple(_entry(item, name) for item in data["entries"]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{name}: an entry is malformed ({type(error).__name__}: {error})") from error


def _entry(item: dict[str, Any], name: str) -> Entry:
    factors = {key: float(value) for key, value in item["factors"].items()}
    unknown = set(factors) - set(NAMES)
    if unknown:
        raise InputError(f"{name}: unknown factors {', '.join(sorted(unknown))}; known are {', '.join(NAMES)}")
    for key, value in factors.items():
        if not 1 / MOST <= value <= MOST:
            raise InputError(f"{name}: factor {key}={value:g} of {item['generation']} must be from {1 / MOST:g} to {MOST:g}")
    return Entry(
        architecture=str(item["architecture"]),
        generation=str(item["generation"]),
        kind=str(item.get("kind", "dense")),
        factors=Factors(**factors),
        log_sd={key: float(value) for key, value in item.get("log_sd", {}).items()},
        determined=tuple(item.get("determined", ())),
        rows=tuple(item.get("rows", ())),
        sources=tuple(item.get("sources", ())),
        own=_own(item["own"], name) if "own" in item else None,
    )


def _own(item: dict[str, Any], name: str) -> OwnRuns:
    found = OwnRuns(runs=int(item["runs"]), log_sd=float(item["log_sd"]), degrees_of_freedom=float(item["degrees_of_freedom"]))
    if not (found.runs >= 1 and 0 <= found.log_sd <= math.log(MOST) and 0 <= found.degrees_of_freedom <= found.runs):
        raise InputError(
            f"{name}: own runs {item}: use runs of at least 1, log_sd from 0 to {math.log(MOST):.2f}, degrees_of_freedom "
            "from 0 to runs"
        )
    return found


def to_json(calibration: Calibration) -> dict[str, Any]:
    """What `parse` reads."""
    return {
        "schema_version": SCHEMA_VERSION,
        "version": calibration.version,
        "entries": [
            {
                "architecture": e.architecture,
                "generation": e.generation,
                "kind": e.kind,
                "factors": {name: round(getattr(e.factors, name), 4) for name in NAMES},
                "log_sd": {name: round(value, 4) for name, value in e.log_sd.items()},
                "determined": list(e.determined),
                "sources": list(e.sources),
                "rows": list(e.rows),
                **({} if e.own is None else {"own": asdict(e.own)}),
            }
            for e in calibration.entries
        ],
    }


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
