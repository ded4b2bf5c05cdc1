"""Published measured runs: from a row of a table to the question that our models can answer.

A row says what was run and what was measured. `read_case` uses the first half only, as the row says it: `notes`, `status` and
every measured column are never read for a prediction. What the row leaves open is what a question takes, and the case says it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autoconfig.planning.request_fields import VARIANT
from autoconfig.planning.resolve import check_runs
from autoconfig.runs.cells import RunRow
from autoconfig.runs.table import NO, YES, CellError, Row, cell, number
from autoconfig.runs.training_model import read_model
from autoconfig.runs.training_switches import micro_batches, read_numerics, read_row_workload, read_settings, read_stack
from autoconfig.specs.errors import InputError
from autoconfig.specs.hardware.cluster import ClusterSpec, GpuSpec, cluster_of, load_gpu
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.plan import NONE, OP, Recompute, TrainPlan
from autoconfig.specs.remarks import Effect, Remark, note
from autoconfig.specs.run_settings import FUSED, formula_only, given_way
from autoconfig.specs.scenario import DOCUMENTED_DEFAULTS, Calibration, Numerics, Scenario, Workload
from autoconfig.specs.software.software import SoftwareStack
from autoconfig.training.plan_rules import split_of_layout
from autoconfig.training.price import CONVENTIONS
from autoconfig.training.question import without_depths
from autoconfig.training.space import Constraints
from autoconfig.training.switches import graphs_text, real_routing

AGREEING = 0.10
"""Step time and tokens/s of a row may differ by this share: they are rounded, or means over different steps."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One published run as a question."""

    id: str
    source: str
    scenario: Scenario
    plan: TrainPlan
    assumed: tuple[Remark, ...]
    broken: tuple[str, ...] = ()
    """Rules that the row breaks and the plan does not, because a legal reading took its place (`assumed` says which)."""


@dataclass(frozen=True, kw_only=True)
class PartialCase:
    """A run whose plan is not whole: what it says is a constraints."""

    id: str
    scenario: Scenario
    constraints: Constraints
    assumed: tuple[Remark, ...]


def read_case(row: Row, calibration: Calibration = DOCUMENTED_DEFAULTS) -> Case:
    """Return the question behind a row. Raises InputError saying which cell is missing or odd."""
    run = _Run.of(row, calibration)
    broken: list[str] = []
    plan = _plan(run, broken)
    workload = micro_batches(run.row, run.workload, plan.dp, broken)
    try:
        scenario = run.scenario(plan.world_size, workload)
    except InputError:
        if "NV001" not in broken:
            raise
        others = plan.tp * plan.pp * plan.cp  # what it leaves is no cluster
        gpus = run.row.text("gpus")
        raise CellError(f"tp x pp x cp is {others}, which does not divide the {gpus} GPUs (NV001)") from None
    scenario = replace(scenario, given=replace(scenario.given, of_a_run=True))
    assumed = (*run.row.assumed, *_switches_assumed(scenario, plan))
    return Case(
        id=cell(row, "id"), source=cell(row, "source"), scenario=scenario, plan=plan, assumed=assumed, broken=tuple(broken)
    )


@dataclass(frozen=True, kw_only=True)
class _Run:
    """What a row says beside its plan."""

    row: RunRow
    model: ModelSpec
    gpu: GpuSpec
    stack: SoftwareStack
    numerics: Numerics
    workload: Workload
    calibration: Calibration

    @classmethod
    def of(cls, row: Row, calibration: Calibration) -> _Run:
        """Read everything but the plan. Raises InputError."""
        cells = RunRow("training", row)
        if unreadable := cells.text("unreadable"):
            raise CellError(unreadable)
        gpu = _gpu(cells)
        model = read_model(cells)
        stack = read_stack(cells, gpu, calibration)
        workload = read_row_workload(cells, model)
        cells.assume_known_words()
        convention = cells.text("flops_convention")
        if convention and convention.lower() not in CONVENTIONS:
            cells.assume(f"flops_convention causal ({convention[:40]!r} is none of {', '.join(CONVENTIONS)})")
        numerics = read_numerics(cells, model, stack, gpu)
        model = without_depths(model, numerics, cells.assumed)
        check_runs(gpu, numerics, stack, model)
        return cls(row=cells, model=model, gpu=gpu, stack=stack, numerics=numerics, workload=workload, calibration=calibration)

    def scenario(self, gpus: int, workload: Workload) -> Scenario:
        """Return the scenario on so many GPUs. Raises InputError."""
        return Scenario(
            model=self.model,
            cluster=_cluster(self.row, self.gpu, gpus),
            numerics=self.numerics,
            software=self.stack,
            workload=workload,
            calibration=self.calibration,
            given=read_settings(self.row, self.model),
        )


def _switches_assumed(scenario: Scenario, plan: TrainPlan) -> list[Remark]:
    """Say the switches of a mixture that the row leaves open, and what becomes of a dispatcher or offload that it asks for."""
    settings, row, remarks = scenario.settings(plan), scenario.given, []
    if scenario.model.is_moe:
        kernels = ("fused_experts", "fp8_attention") if scenario.numerics.format.recipe == FUSED else ()
        values = {name: getattr(settings, name) for name in ("dispatcher", "cuda_graphs", "ep_overlap", *kernels)}
        values["cuda_graphs"] = graphs_text(settings)
        remarks = [Remark(name, value, "") for name, value in values.items() if getattr(row, name) is None]
        remarks += given_way(row.dispatcher, settings) + formula_only(scenario.model, scenario.cluster) + real_routing(scenario)
    if settings.offload_layers and plan.pp > 1:
        remarks.append(note("activations stay on the GPU: only one pipeline stage can offload them (NV036)"))
    elif settings.offload_layers:
        why = "what copies of offloaded activations take beyond the computation is an estimate (host link assumed)"
        remarks.append(note(why, Effect.TIME))
    return remarks


def read_partial(row: Row, calibration: Calibration = DOCUMENTED_DEFAULTS) -> PartialCase:
    """Return the question behind a row that lacks a part of the plan. Raises InputError where its GPUs are missing, too."""
    run = _Run.of(row, calibration)
    cells = run.row
    scenario = run.scenario(cells.degree("gpus"), run.workload)
    fixed = cells.fields("plan")
    if cells.text("recompute"):
        fixed["recompute"] = read_recompute(cells.text("recompute"), run.stack)
    if cells.text("fsdp") or cells.text("optimizer_shard"):
        stage, fixed["dist_opt"] = _sharding(cells, run.stack)
        fixed["fsdp"] = stage if stage > 1 else 0
    constraints = Constraints(fixed={name: frozenset({value}) for name, value in fixed.items()})
    return PartialCase(id=cell(row, "id"), scenario=scenario, constraints=constraints, assumed=tuple(cells.assumed))


def measured_step_seconds(row: Row, scenario: Scenario) -> float | None:
    """The measured step time, from seconds, tokens/s/GPU, TFLOPS or MFU in the row's convention; None where none is given."""
    from autoconfig.training.price import flops_per_step

    tokens, gpus = scenario.workload.tokens_per_step, scenario.cluster.num_gpus
    if (step := number(row, "metric_step_s")) is not None and step > 0:
        return step
    if (rate := number(row, "metric_tokens_per_s_per_gpu")) is not None and rate > 0:
        return tokens / rate / gpus
    flops = (
        flops_per_step(scenario, cell(row, "flops_convention"), read_recompute(cell(row, "recompute"), scenario.software))
        / gpus
    )
    if (tflops := number(row, "metric_tflops_per_gpu")) is not None and tflops > 0:
        return flops / (tflops * 1e12)
    if (mfu := number(row, "metric_mfu")) is not None and mfu > 0:
        return flops / (mfu * scenario.cluster.gpu.peak_flops_per_s(scenario.numerics.gemm_precision))
    return None


def contradiction(row: Row, case: Case) -> str:
    """What a measured row says twice and differently, with both numbers: its GPUs, or its step time and its tokens/s; empty
    where it agrees with itself."""
    if {"AC005", "NV001"} & set(case.broken):
        return f"{case.plan.world_size} GPUs (tp x pp x cp x dp; the row says {cell(row, 'gpus')})"
    step, rate = number(row, "metric_step_s"), number(row, "metric_tokens_per_s_per_gpu")
    if not step or not rate or min(step, rate) <= 0:
        return ""
    tokens, gpus = case.scenario.workload.tokens_per_step, case.scenario.cluster.num_gpus
    follows = tokens / step / gpus
    if 1 / (1 + AGREEING) <= follows / rate <= 1 + AGREEING:
        return ""
    return (
        f"metric_step_s {step:g} of {tokens:,} tokens on {gpus:,} GPUs is {follows:.4g} tokens/s/GPU, but "
        f"metric_tokens_per_s_per_gpu is {rate:g}"
    )


_MARKS = str.maketrans(dict.fromkeys("()[],+:", " "))
"""Between the words of a recomputation."""


def read_recompute(text: str, stack: SoftwareStack) -> Recompute:
    """Return what a cell of the column `recompute` says: none, full, full(uniform,1), selective(core_attn), selective([a b]),
    selective(a+b), or as plans say it (selective:a+b, full:block:2); `selective` alone is what the stack means by it."""
    kind, *words = text.translate(_MARKS).split() or ["none"]
    if kind.lower() in ("none", *NO):
        return NONE
    if kind not in ("full", "selective"):
        plans = "none, full:uniform:N, full:block:N or selective:MODULE+MODULE"
        raise CellError(f"cell recompute={text[:40]!r} cannot be read: write {plans}")
    if kind == "selective" and not words and stack.recomputes_by_operator:
        return Recompute("selective", (OP,))
    return Recompute.parse(":".join((kind, *(words if kind == "full" else ["+".join(words)] if words else []))))


def _plan(run: _Run, broken: list[str]) -> TrainPlan:
    """Return the plan. What the row leaves out is assumed; rules that only the row breaks go to `broken`."""
    row, model, stack = run.row, run.model, run.stack
    tp, pp, cp = (row.degree(name) for name in ("tp", "pp", "cp"))
    parallel = row.flag("sp")
    if parallel and tp == 1:
        row.assume("sp off (tp is 1)")
        broken.append("NV046")
    elif parallel is None and tp > 1:
        parallel = stack.supports_sequence_parallel
        row.assume(f"sp {'on' if parallel else 'off'} (tp is above 1)")
    dp = _data_parallel(row, tp * pp * cp, broken)
    stage, dist_opt = _sharding(row, stack)
    vpp, (first, last) = _stages(row, model, pp)
    row.assume_defaults("tp", "pp", *([] if row.text("pipeline_layout") else ["vpp"]), "cp", "recompute")
    row.assume_defaults(*(("ep", "etp") if model.is_moe else ()))
    return TrainPlan(
        tp=tp,
        pp=pp,
        dp=dp,
        mbs=row.degree("mbs"),
        vpp=vpp,
        cp=cp,
        ep=row.degree("ep"),
        etp=row.degree("etp"),
        sp=bool(parallel) and tp > 1,
        recompute=read_recompute(row.text("recompute"), stack),
        first=first,
        last=last,
        dist_opt=dist_opt,
        fsdp=stage if stage in (2, 3) else 0,
        offload=1.0 if "optimizer" in row.words("offload") else 0.0,
    )


def _data_parallel(row: RunRow, others: int, broken: list[str]) -> int:
    gpus, dp = row.count("gpus"), row.count("dp")
    if dp is None:
        if gpus is None:
            raise InputError("neither dp nor gpus is given")
        if gpus < others:
            raise CellError(f"tp x pp x cp is {others}, more than the {gpus} GPUs of the row (NV001)")
    ranks = dp or (gpus or 0) // others
    if gpus is not None and gpus != others * ranks:
        row.assume(f"{others * ranks} GPUs (tp x pp x cp x dp; the row says {gpus})")
        broken.append("AC005" if dp else "NV001")
    return ranks


def _stages(row: RunRow, model: ModelSpec, pp: int) -> tuple[int, tuple[int | None, int | None]]:
    """Return (vpp, layers of the first and the last stage) of a pipeline layout, or of even stages where the row gives none."""
    vpp, layout = row.degree("vpp"), row.text("pipeline_layout")
    if not layout:
        return vpp, even_ends(model, pp, row.assumed)
    split = split_of_layout(layout, pp, model.num_layers, model.mtp_num_layers)
    if not row.text("vpp") and split.vpp > 1:
        row.assume(f"vpp {split.vpp}, as pipeline_layout has it")
    if row.text("vpp") and split.vpp != vpp:
        raise CellError(f"cell pipeline_layout has {split.vpp * pp} stages, and pp x vpp is {pp} x {vpp}")
    if split.broken:
        needed = f"one E, {model.num_layers} t, {model.mtp_num_layers} m and one L"
        raise CellError(f"cell pipeline_layout={layout[:40]!r} does not hold {needed} ({', '.join(split.broken)})")
    if not split.even_inside:
        row.assume(f"stages of {', '.join(map(str, split.layers))} layers are priced by the nearest uneven plan")
    return split.vpp, split.ends(model.num_layers)


def even_ends(model: ModelSpec, pp: int, assumed: list[Remark]) -> tuple[int | None, int | None]:
    """Return the layers of first and last stage where the layers do not divide: one less each where embedding and loss counted
    as layers make the split even (Megatron's account_for_... flags); else full stages and the rest in the last, which has the
    head (Megatron-Bridge's layouts of DeepSeek-V3)."""
    if model.num_layers % pp == 0 or pp == 1:
        return None, None
    middle = model.num_layers // pp + 1
    rest = model.num_layers - middle * (pp - 2)
    if not 2 <= rest <= 2 * middle:
        raise InputError(f"{model.num_layers} layers do not divide over pp={pp}")
    first = rest // 2 if (model.num_layers + 2) % pp == 0 else min(middle, rest - 1)
    assumed.append(note(f"first={first}, last={rest - first}"))
    return first, rest - first


def _sharding(row: RunRow, stack: SoftwareStack) -> tuple[int, bool]:
    """Return (sharding stage 0 to 3, optimizer state sharded): columns fsdp and optimizer_shard, else the software's."""
    shard, stage = row.text("optimizer_shard").lower(), row.count("fsdp")
    if not shard and stage is None:
        row.assumed.append(Remark("optimizer_shard", stack.supports_distributed_optimizer, ""))
        return 0, stack.supports_distributed_optimizer
    stage = stage or 0
    sharded = shard not in (*NO, "none") if shard else stage == 1
    if shard and shard not in (*NO, "none", *YES, "dp") and not shard.isdigit():
        why = f"{row.text('optimizer_shard')[:40]!r} is none of dp, none, or a number of ranks"
        row.assumed.append(Remark("optimizer_shard", "on", why))
    return stage, stage < 2 and sharded


def _cluster(row: RunRow, gpu: GpuSpec, num_gpus: int) -> ClusterSpec:
    per_node = min(row.count("gpus_per_node") or 0, num_gpus) or None
    if per_node and num_gpus % per_node:
        row.assume(f"nodes of {gpu.gpus_per_node} (gpus_per_node {row.count('gpus_per_node')} does not divide {num_gpus} GPUs)")
        per_node = None
    network = row.number("node_network_gbps")
    variant = {field.name: row.number(field.name) for field in VARIANT}
    for field in VARIANT:
        if (value := variant[field.name]) is not None and field.bounds is not None and value not in field.bounds:
            raise CellError(f"cell {field.name}={value:g}: {field.bounds}")
    bandwidth = variant["memory_bandwidth"]
    return cluster_of(
        gpu,
        num_gpus,
        gpus_per_node=per_node,
        nic_bytes_per_s=network * 1e9 / 8 / gpu.gpus_per_node if network else None,
        hbm_bytes_per_s=None if bandwidth is None else bandwidth * 1e12,
        power_limit_watts=variant["power_limit"],
    )


def _gpu(row: RunRow) -> GpuSpec:
    """Return the GPU: `A100` and `40` name a100-40gb; a name alone the usual one. Raises InputError."""
    name, memory_gb = row.text("gpu"), row.number("gpu_mem_gb")
    if not name:
        raise InputError("cell gpu is empty")
    if memory_gb is None:
        return load_gpu(name)
    try:
        return load_gpu(f"{name}-{int(memory_gb)}gb")
    except InputError:
        gpu = load_gpu(name)
    if abs(gpu.memory_bytes / 1e9 - memory_gb) >= 0.1 * memory_gb:
        row.assume(f"{gpu.name} (gpu_mem_gb {row.text('gpu_mem_gb')} is no size of it)")
    return gpu
