"""Published measured runs: from a row of a table to the question that our models can answer.

A row says what was run and what was measured. `read_case` uses the first half only, as the row says it: `notes`, `status` and
every measured column are never read for a prediction. What the row leaves open is what a question takes, and the case says it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache

from autoconfig.planning.request_fields import VARIANT
from autoconfig.planning.resolve import check_runs
from autoconfig.runs.spellings import in_our_words
from autoconfig.runs.table import NO, YES, CellError, Row, cell, count_of, degree, flag, number, odd_words, whole
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
from autoconfig.training.question import graphs_text, real_routing, without_depths
from autoconfig.training.space import Constraints

_FULL_RECOMPUTE = re.compile(r"full\((uniform|block),(\d+)\)")
_SELECTIVE = re.compile(r"selective\(\[?([a-z_,+ ]*)\]?\)")
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
    workload = micro_batches(run.row, run.workload, plan.dp, run.assumed, broken)
    try:
        scenario = run.scenario(plan.world_size, workload)
    except InputError:
        if "NV001" not in broken:
            raise
        others = plan.tp * plan.pp * plan.cp  # what it leaves is no cluster
        gpus = cell(run.row, "gpus")
        raise CellError(f"tp x pp x cp is {others}, which does not divide the {gpus} GPUs (NV001)") from None
    scenario = replace(scenario, given=replace(scenario.given, of_a_run=True))
    run.assumed.extend(_switches_assumed(scenario, plan))
    return Case(
        id=cell(row, "id"),
        source=cell(row, "source"),
        scenario=scenario,
        plan=plan,
        assumed=tuple(run.assumed),
        broken=tuple(broken),
    )


@dataclass(frozen=True, kw_only=True)
class _Run:
    """What a row says beside its plan."""

    row: Row
    """In our words."""
    model: ModelSpec
    gpu: GpuSpec
    stack: SoftwareStack
    numerics: Numerics
    workload: Workload
    calibration: Calibration
    assumed: list[Remark]

    @classmethod
    def of(cls, row: Row, calibration: Calibration) -> _Run:
        """Read everything but the plan. Raises InputError."""
        assumed: list[Remark] = []
        if unreadable := cell(row, "unreadable"):
            raise CellError(unreadable)
        row = in_our_words(row)
        gpu, known = _gpu(cell(row, "gpu"), _memory_gb(row))
        if not known:
            assumed.append(note(f"{gpu.name} (gpu_mem_gb {cell(row, 'gpu_mem_gb')} is no size of it)"))
        model = read_model(row, assumed)
        stack = read_stack(row, gpu, assumed, calibration)
        workload = read_row_workload(row, model, assumed)
        assumed += odd_words(row)
        convention = cell(row, "flops_convention")
        if convention and convention.lower() not in CONVENTIONS:
            assumed.append(note(f"flops_convention causal ({convention[:40]!r} is none of {', '.join(CONVENTIONS)})"))
        numerics = read_numerics(row, model, stack, gpu, assumed)
        model = without_depths(model, numerics, assumed)
        check_runs(gpu, numerics, stack, model)
        return cls(
            row=row,
            model=model,
            gpu=gpu,
            stack=stack,
            numerics=numerics,
            workload=workload,
            calibration=calibration,
            assumed=assumed,
        )

    def scenario(self, gpus: int, workload: Workload) -> Scenario:
        """Return the scenario on so many GPUs. Raises InputError."""
        return Scenario(
            model=self.model,
            cluster=_cluster(self.row, self.gpu, gpus, self.assumed),
            numerics=self.numerics,
            software=self.stack,
            workload=workload,
            calibration=self.calibration,
            given=read_settings(self.row, self.model),
        )


def _switches_assumed(scenario: Scenario, plan: TrainPlan) -> list[Remark]:
    """Say the switches of a mixture that the row leaves open, and what becomes of a dispatcher or offload that it asks for."""
    settings, given, said = scenario.settings(plan), scenario.given, []
    if scenario.model.is_moe:
        kernels = ("fused_experts", "fp8_attention") if scenario.numerics.format.recipe == FUSED else ()
        values = {name: getattr(settings, name) for name in ("dispatcher", "cuda_graphs", "ep_overlap", *kernels)}
        values["cuda_graphs"] = graphs_text(settings)
        said = [Remark(name, value, "") for name, value in values.items() if getattr(given, name) is None]
        said += given_way(given.dispatcher, settings) + formula_only(scenario.model, scenario.cluster) + real_routing(scenario)
    if settings.offload_layers and plan.pp > 1:
        said.append(note("activations stay on the GPU: only one pipeline stage can offload them (NV036)"))
    elif settings.offload_layers:
        why = "what copies of offloaded activations take beyond the computation is an estimate (host link assumed)"
        said.append(note(why, Effect.TIME))
    return said


def read_partial(row: Row, calibration: Calibration = DOCUMENTED_DEFAULTS) -> PartialCase:
    """Return the question behind a row that lacks a part of the plan. Raises InputError where its GPUs are missing, too."""
    run = _Run.of(row, calibration)
    row = run.row
    scenario = run.scenario(degree(row, "gpus", None), run.workload)
    fixed: dict[str, frozenset[object]] = {}
    for key in ("tp", "pp", "vpp", "cp", "ep", "etp", "mbs", "dp"):
        if cell(row, key):
            fixed[key] = frozenset({degree(row, key)})
    if (parallel := flag(row, "sp")) is not None:
        fixed["sp"] = frozenset({parallel})
    if cell(row, "recompute"):
        fixed["recompute"] = frozenset({read_recompute(cell(row, "recompute"), run.stack)})
    if cell(row, "fsdp") or cell(row, "optimizer_shard"):
        stage, dist_opt = _sharding(row, run.stack, run.assumed)
        fixed["fsdp"] = frozenset({stage if stage > 1 else 0})
        fixed["dist_opt"] = frozenset({dist_opt})
    return PartialCase(id=cell(row, "id"), scenario=scenario, constraints=Constraints(fixed=fixed), assumed=tuple(run.assumed))


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


def read_recompute(text: str, stack: SoftwareStack) -> Recompute:
    """A cell of the column `recompute`: none, full, full(uniform,1), selective(core_attn), selective([a b]), selective(a+b),
    or as plans say it (selective:a+b, full:block:2); `selective` alone is what the stack means by it."""
    text = text.strip()
    if text in ("", "none"):
        return NONE
    if text == "selective" and stack.recomputes_by_operator:
        return Recompute("selective", (OP,))
    if text in ("full", "selective") or ":" in text:
        return Recompute.parse(text)
    if match := _FULL_RECOMPUTE.fullmatch(text):
        return Recompute("full", (), match[1], int(match[2]))
    if match := _SELECTIVE.fullmatch(text):
        return Recompute("selective", tuple(re.split(r"[,+ ]+", match[1].strip(" ,+"))))
    raise CellError(f"cell recompute={text[:40]!r} cannot be read")


def _plan(run: _Run, broken: list[str]) -> TrainPlan:
    """Return the plan. What the row leaves out goes to `assumed`; rules that only the row breaks go to `broken`."""
    row, model, stack, assumed = run.row, run.model, run.stack, run.assumed
    tp, pp, cp = (degree(row, key) for key in ("tp", "pp", "cp"))
    parallel = flag(row, "sp")
    if parallel and tp == 1:
        assumed.append(note("sp off (tp is 1)"))
        broken.append("NV046")
    elif parallel is None and tp > 1:
        parallel = stack.supports_sequence_parallel
        assumed.append(note(f"sp {'on' if parallel else 'off'} (tp is above 1)"))
    dp = _data_parallel(row, tp * pp * cp, assumed, broken)
    stage, dist_opt = _sharding(row, stack, assumed)
    vpp, (first, last) = _stages(row, model, pp, assumed)
    _say_defaults(row, model, assumed)
    return TrainPlan(
        tp=tp,
        pp=pp,
        dp=dp,
        mbs=degree(row, "mbs", None),
        vpp=vpp,
        cp=cp,
        ep=degree(row, "ep"),
        etp=degree(row, "etp"),
        sp=bool(parallel) and tp > 1,
        recompute=read_recompute(cell(row, "recompute"), stack),
        first=first,
        last=last,
        dist_opt=dist_opt,
        fsdp=stage if stage in (2, 3) else 0,
        offload=1.0 if "optimizer" in cell(row, "offload") else 0.0,
    )


def _data_parallel(row: Row, others: int, assumed: list[Remark], broken: list[str]) -> int:
    gpus, given = count_of(row, "gpus"), count_of(row, "dp")
    if given is None and gpus is None:
        raise InputError("neither dp nor gpus is given")
    if given is None and (gpus or 0) < others:
        raise CellError(f"tp x pp x cp is {others}, more than the {gpus} GPUs of the row (NV001)")
    dp = given or (gpus or 0) // others
    if gpus is not None and gpus != others * dp:
        assumed.append(note(f"{others * dp} GPUs (tp x pp x cp x dp; the row says {gpus})"))
        broken.append("AC005" if given else "NV001")
    return dp


def _say_defaults(row: Row, model: ModelSpec, assumed: list[Remark]) -> None:
    defaults = {"tp": "1", "pp": "1", "vpp": "1", "cp": "1", "recompute": "none"}
    if model.is_moe:
        defaults |= {"ep": "1", "etp": "1"}
    if cell(row, "pipeline_layout"):
        del defaults["vpp"]
    assumed += [Remark(key, value, "") for key, value in defaults.items() if not cell(row, key)]


def _stages(row: Row, model: ModelSpec, pp: int, assumed: list[Remark]) -> tuple[int, tuple[int | None, int | None]]:
    """(vpp, layers of the first and the last stage) of a pipeline layout, or of even stages where the row gives none."""
    vpp, layout = degree(row, "vpp"), cell(row, "pipeline_layout")
    if not layout:
        return vpp, even_ends(model, pp, assumed)
    split = split_of_layout(layout, pp, model.num_layers, model.mtp_num_layers)
    if not cell(row, "vpp") and split.vpp > 1:
        assumed.append(note(f"vpp {split.vpp}, as pipeline_layout has it"))
    if cell(row, "vpp") and split.vpp != vpp:
        raise CellError(f"cell pipeline_layout has {split.vpp * pp} stages, and pp x vpp is {pp} x {vpp}")
    if split.broken:
        needed = f"one E, {model.num_layers} t, {model.mtp_num_layers} m and one L"
        raise CellError(f"cell pipeline_layout={layout[:40]!r} does not hold {needed} ({', '.join(split.broken)})")
    if not split.even_inside:
        assumed.append(note(f"stages of {', '.join(map(str, split.layers))} layers are priced by the nearest uneven plan"))
    return split.vpp, split.ends(model.num_layers)


def even_ends(model: ModelSpec, pp: int, assumed: list[Remark]) -> tuple[int | None, int | None]:
    """Layers of first and last stage where the layers do not divide: one less each where embedding and loss counted as layers
    make the split even (Megatron's account_for_... flags); else full stages and the rest in the last, which has the head
    (Megatron-Bridge's layouts of DeepSeek-V3)."""
    if model.num_layers % pp == 0 or pp == 1:
        return None, None
    middle = model.num_layers // pp + 1
    rest = model.num_layers - middle * (pp - 2)
    if not 2 <= rest <= 2 * middle:
        raise InputError(f"{model.num_layers} layers do not divide over pp={pp}")
    first = rest // 2 if (model.num_layers + 2) % pp == 0 else min(middle, rest - 1)
    assumed.append(note(f"first={first}, last={rest - first}"))
    return first, rest - first


def _sharding(row: Row, stack: SoftwareStack, assumed: list[Remark]) -> tuple[int, bool]:
    """(sharding stage 0 to 3, optimizer state sharded): columns fsdp and optimizer_shard, else the software's default."""
    shard, text = cell(row, "optimizer_shard"), cell(row, "fsdp")
    if not shard and not text:
        assumed.append(Remark("optimizer_shard", stack.supports_distributed_optimizer, ""))
        return 0, stack.supports_distributed_optimizer
    stage = 3 if text == "hsdp" else whole(row, "fsdp", 0)
    if not 0 <= stage <= 3:
        raise CellError(f"cell fsdp={text[:40]!r} is no sharding stage (0 to 3, hsdp)")
    off = (*NO, "none")
    sharded = shard.lower() not in off if shard else stage == 1
    if shard and shard.lower() not in (*off, *YES, "dp") and not shard.isdigit():
        assumed.append(Remark("optimizer_shard", "on", f"{shard[:40]!r} is none of dp, none, or a number of ranks"))
    return stage, stage < 2 and sharded


def _cluster(row: Row, gpu: GpuSpec, num_gpus: int, assumed: list[Remark]) -> ClusterSpec:
    given = degree(row, "gpus_per_node", 1) if cell(row, "gpus_per_node") else 0
    per_node = min(given, num_gpus) or None
    if per_node and num_gpus % per_node:
        assumed.append(note(f"nodes of {gpu.gpus_per_node} (gpus_per_node {given} does not divide {num_gpus} GPUs)"))
        per_node = None
    network = number(row, "node_network_gbps")
    if network is not None and network <= 0:
        raise CellError(f"cell node_network_gbps={network:g} must be above 0")
    nic = network * 1e9 / 8 / gpu.gpus_per_node if network else None
    variant = {field.name: number(row, field.name) for field in VARIANT}
    for field in VARIANT:
        if (value := variant[field.name]) is not None and field.bounds is not None and value not in field.bounds:
            raise CellError(f"cell {field.name}={value:g}: {field.bounds}")
    bandwidth = variant["memory_bandwidth"]
    return cluster_of(
        gpu,
        num_gpus,
        gpus_per_node=per_node,
        nic_bytes_per_s=nic,
        hbm_bytes_per_s=None if bandwidth is None else bandwidth * 1e12,
        power_limit_watts=variant["power_limit"],
    )


def _memory_gb(row: Row) -> float | None:
    memory = number(row, "gpu_mem_gb")
    if memory is not None and memory <= 0:
        raise CellError(f"cell gpu_mem_gb={memory:g} must be above 0")
    return memory


@cache
def _gpu(name: str, memory_gb: float | None) -> tuple[GpuSpec, bool]:
    """`A100` and `40` name a100-40gb; a name alone the usual one. False where there is no such size."""
    if not name:
        raise InputError("cell gpu is empty")
    if memory_gb is None:
        return load_gpu(name), True
    try:
        return load_gpu(f"{name}-{int(memory_gb)}gb"), True
    except InputError:
        gpu = load_gpu(name)
        return gpu, abs(gpu.memory_bytes / 1e9 - memory_gb) < 0.1 * memory_gb
