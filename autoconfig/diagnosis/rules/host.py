"""R01, R04, R13: the host does not launch in time, kernels fall back to slower ones, the optimizer takes too long."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from autoconfig.diagnosis import profiler_table, timers
from autoconfig.diagnosis.expectation import HOST, OPTIMIZER, expected_seconds
from autoconfig.diagnosis.finding import (
    CERTAIN,
    CONSISTENT,
    LIKELY,
    Cause,
    Cleared,
    Finding,
    RunCase,
    caused,
    first_finding,
    threshold,
)
from autoconfig.diagnosis.gain import cure_by, with_switches
from autoconfig.evidence.records import Origin, Variable
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.run_settings import FULL_ITERATION
from autoconfig.specs.scenario import Scenario
from autoconfig.specs.software.software import StackOptions, load_stack, with_options

SYNCHRONISES, LATE = "the host synchronises with the GPU", "the GPU waits for the host's launches"
NO_ITEM = "no .item(), .cpu() or printing inside a step, batches from pinned memory"
LAUNCH_REMEDY = "CUDA graphs (--cuda-graph-impl), a larger micro-batch, OMP_NUM_THREADS=1 and pinned processes"


BLOCKING = {
    "CUDA_LAUNCH_BLOCKING": ("the host waits for every kernel that it launches", CERTAIN),
    "HIP_LAUNCH_BLOCKING": ("the host waits for every kernel that it launches", CERTAIN),
    "AMD_SERIALIZE_KERNEL": ("kernels run one by one, and the host waits for each", CERTAIN),
    "TORCH_NCCL_BLOCKING_WAIT": ("the host waits for every collective", CONSISTENT),
    "NCCL_BLOCKING_WAIT": ("the host waits for every collective", CONSISTENT),
}
"""Variable that is not 0 -> (what it does to the run, certainty): CUDA C++ Programming Guide (CUDA environment variables),
HIP's documentation (Debugging with HIP), torch.distributed (environment variables)."""


def set_variable(case: RunCase, names: Collection[str]) -> Variable | None:
    """The first of these variables that the run sets to anything but 0; None where it sets none."""
    variables = (one for one in case.evidence.variables if one.name in names)
    return next((one for one in variables if one.value.strip() not in ("", "0")), None)


def late_launches(case: RunCase) -> Cause | Cleared | None:
    """R01: a variable makes the host wait for what it launches; the GPU idles because the host launches late or synchronises
    (trace); or the plan's own price is bound by the host and the step is longer still."""
    if (blocking := _blocking(case, CERTAIN)) is not None:
        return blocking
    traces = case.evidence.traces
    for trace in traces:
        steps = max(1, trace.steps)
        step = trace.span_s / steps
        late = trace.idle.get("late_launch", 0.0) / steps
        waits = trace.idle.get("synchronization", 0.0) / steps
        price = case.expectation.phases.get(HOST, 0.0) if case.expectation else 0.0
        lost = late + waits - price
        if lost < threshold("R01", "late_launch_share") * step:
            continue
        if price and late + waits < threshold("R01", "host_growth") * price:
            continue
        why = SYNCHRONISES if waits > late else LATE
        text = f"idle {late:.3g} s before late launches, {waits:.3g} s behind synchronisations, of {step:.3g} s"
        remedy = NO_ITEM if waits > late else LAUNCH_REMEDY
        origin = Origin(file=trace.origin.file, text=text)
        return caused(case, "R01", why, CERTAIN, evidence=(origin,), figures=text, remedy=remedy, seconds=lost)
    if traces:
        return Cleared("the host keeps up")
    return _host_of_table(case) or _blocking(case, CONSISTENT) or _host_bound(case)


def _blocking(case: RunCase, certainty: str) -> Cause | None:
    """A variable of BLOCKING of this certainty that the run sets."""
    variable = set_variable(case, [name for name in BLOCKING if BLOCKING[name][1] == certainty])
    if variable is None:
        return None
    words = f"{BLOCKING[variable.name][0]} ({variable.name}={variable.value.strip()})"
    remedy = f"unset {variable.name}: it is for debugging"
    return caused(case, "R01", words, certainty, evidence=(variable.origin,), remedy=remedy, seconds=case.gap_seconds or None)


def _host_of_table(case: RunCase) -> Cause | None:
    """A profiler's table: a GPU that works for little of the time that the host works or waits for it, beyond what the data
    loader and the allocator take of it."""
    both, idle = profiler_table.totals(case.evidence), profiler_table.idle_share(case.evidence)
    if both is None or idle is None:
        return None
    data, allocation = profiler_table.data_rows(case.evidence), profiler_table.allocation_rows(case.evidence)
    others = (data[0].host_total_share if data else 0.0) + profiler_table.self_share(allocation)
    if idle - others <= 1.0 - threshold("R01", "busy_share"):
        return None
    waits, launches = profiler_table.waiting_rows(case.evidence), profiler_table.launch_rows(case.evidence)
    synchronises = profiler_table.self_share(waits) > max(0.5 * (idle - others), profiler_table.self_share(launches))
    text = f"the GPU works {both[1].seconds:.3g} s of {both[0].seconds:.3g} s"
    if synchronises:
        text += f"; {profiler_table.self_share(waits):.0%} of the host's time in {waits[0].name}, {waits[0].calls} calls"
    return caused(
        case,
        "R01",
        SYNCHRONISES if synchronises else LATE,
        LIKELY,
        evidence=(waits[0].origin, both[1].origin) if synchronises else (both[1].origin,),
        figures=text,
        remedy=NO_ITEM if synchronises else LAUNCH_REMEDY,
        seconds=case.gap_seconds or None,
    )


def _host_bound(case: RunCase) -> Cause | None:
    e = case.expectation
    if e is None or e.scenario is None or e.plan is None or case.step_seconds is None or not case.above_band:
        return None
    share = e.phases.get(HOST, 0.0) / e.step_seconds
    if share < threshold("R01", "host_share"):
        return None
    cure, cured = None, None
    graphs = with_switches(e.scenario, cuda_graphs=frozenset({FULL_ITERATION}))
    if FULL_ITERATION not in e.scenario.settings(e.plan).cuda_graphs:
        cure = cure_by("graphs", case.step_seconds, (e.scenario, e.plan), (graphs, e.plan), case.budget.measured(), kept=())
        cured = (e.plan, graphs)
    figures = f"{share:.0%} of the expected step is waiting for the host already"
    return caused(
        case,
        "R01",
        "a slow host would explain the step: its launches bound the plan",
        CONSISTENT,
        figures=figures,
        remedy=LAUNCH_REMEDY,
        seconds=case.gap_seconds,
        step_after=cure.step_after if cure else None,
        cured=cured,
    )


FALLBACKS = {
    "softmax_kernel": ("attention is not fused: softmax kernels beside GEMMs", "install flash-attention or cuDNN attention"),
    "fp32_gemm": ("GEMMs run in fp32", "bf16 or TF32 for every GEMM (torch.backends.cuda.matmul)"),
    "eager_norm": ("norms run in plain torch", "fused norms (Apex, Transformer Engine)"),
    "scalar_loop_scan": ("the recurrent layers run in plain torch", "install mamba-ssm and causal-conv1d, or fla"),
}
"""TraceParts.names -> (in words, remedy)."""
WARNED = {
    "plain_torch_layers": (*FALLBACKS["scalar_loop_scan"], CERTAIN),
    "unfused_attention": ("attention is not fused", FALLBACKS["softmax_kernel"][1], CERTAIN),
    "recompile_limit": (
        "torch.compile gave up on a function and runs it eagerly",
        "static shapes or mark_dynamic; a larger torch._dynamo.config.recompile_limit only where shapes are few",
        CONSISTENT,
    ),
}
"""Kind of a library's own warning -> (in words, remedy, certainty)."""
FALLBACK_PARTS = {"unfused_attention": "softmax_kernel", "unfused_attention_seconds": "softmax_kernel"}


def slow_kernels(case: RunCase) -> Finding | None:
    """R04: a trace, or a profiler's table, shows kernels that stand in for faster ones; or the step is so much longer on one
    node that no other cause reaches it."""
    looks = (_stand_ins, _warned_of, _switched_off, _unfused_in_table, _asked_for_unfused)
    if (finding := first_finding(case, looks)) is not None:
        return finding
    return Cleared("no kernel stands in for a faster one") if case.evidence.traces else _far_too_slow(case)


def _stand_ins(case: RunCase) -> Cause | None:
    """Kernels of FALLBACKS in a trace."""
    expects_unfused = case.expectation is not None and "unfused_attention_seconds" in case.expectation.parts
    for trace in case.evidence.traces:
        steps = max(1, trace.steps)
        seconds = sum(trace.parts.get(part, 0.0) for part in FALLBACK_PARTS) / steps
        share = seconds / (trace.span_s / steps) if trace.span_s else 0.0
        names = {name for name in trace.names if name in FALLBACKS and not (expects_unfused and name == "softmax_kernel")}
        if names <= {"softmax_kernel"} and not (names and share >= threshold("R04", "fallback_share")):
            continue
        name = "softmax_kernel" if "softmax_kernel" in names else min(names)
        words, remedy = FALLBACKS[name]
        origin = Origin(file=trace.origin.file, text=f"{name.replace('_', ' ')}: {seconds:.3g} s a step")
        lost = case.gap_seconds or seconds or None
        return caused(case, "R04", words, CERTAIN, evidence=(origin,), remedy=remedy, seconds=lost)
    return None


def _warned_of(case: RunCase) -> Cause | None:
    """A library's own warning."""
    warning = next((one for one in case.evidence.warnings if one.kind in WARNED), None)
    if warning is None:
        return None
    words, remedy, certainty = WARNED[warning.kind]
    return caused(case, "R04", words, certainty, evidence=(warning.origin,), remedy=remedy, seconds=case.gap_seconds or None)


def _unfused_in_table(case: RunCase) -> Cause | None:
    """A profiler's table whose attention is not fused."""
    rows = [row for row in case.evidence.kernels if row.part == "unfused_attention"]
    if sum(row.share for row in rows) < threshold("R04", "fallback_share"):
        return None
    words, remedy = FALLBACKS["softmax_kernel"]
    return caused(case, "R04", words, LIKELY, evidence=(rows[0].origin,), remedy=remedy, seconds=case.gap_seconds or None)


NO_FUSED = ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN")
"""Variables of Transformer Engine that leave attention in separate kernels where both are 0 (its documentation, environment
variables)."""


def _switched_off(case: RunCase) -> Cause | None:
    switches = {one.name: one for one in case.evidence.variables if one.name in NO_FUSED and one.value.strip() == "0"}
    if len(switches) < len(NO_FUSED):
        return None
    words = f"attention is not fused ({' and '.join(f'{name}=0' for name in NO_FUSED)})"
    origins = tuple(switches[name].origin for name in NO_FUSED)
    remedy = f"unset {' and '.join(NO_FUSED)}"
    return caused(case, "R04", words, CERTAIN, evidence=origins, remedy=remedy, seconds=case.gap_seconds or None)


def _asked_for_unfused(case: RunCase) -> Cause | None:
    """The plan itself asks for attention in separate kernels, where its software has fused ones."""
    e = case.expectation
    if e is None or e.scenario is None or e.plan is None or case.step_seconds is None:
        return None
    software, usual = e.scenario.software, load_stack(e.scenario.software.name)
    if software.memory.attention_kernel != "unfused" or usual.memory.attention_kernel == "unfused":
        return None
    fused = replace(e.scenario, software=with_options(software, StackOptions(attention_kernel=usual.memory.attention_kernel)))
    cure = cure_by("fused", case.step_seconds, (e.scenario, e.plan), (fused, e.plan), case.budget.measured(), kept=())
    if cure is None or cure.step_after >= case.step_seconds:
        return None
    return caused(
        case,
        "R04",
        "the plan asks for attention that is not fused",
        CERTAIN,
        figures=f"priced with it: {e.step_seconds:.3g} s a step, {expected_seconds(fused, e.plan):.3g} s with fused kernels",
        remedy="--attention-backend flash, fused or auto; flash_attention_2 or sdpa in transformers",
        seconds=case.step_seconds - cure.step_after,
        step_after=cure.step_after,
        cured=(e.plan, fused),
    )


def _far_too_slow(case: RunCase) -> Cause | None:
    scenario = case.expectation.scenario if case.expectation else None
    if scenario is None or case.ratio is None or not case.above_band or case.ratio < threshold("R04", "ratio"):
        return None
    words = "slower kernels than this software has today would explain it: a fallback or an old build"
    if scenario.cluster.num_gpus <= scenario.cluster.link_domain_size:
        words = "on one node only slower kernels than this software has today reach this: a fallback or an old build"
    remedy = "another container or build (Megatron: --transformer-impl); a trace of one step shows which kernels run"
    figures = f"{case.ratio:.2f} times the expected step"
    return caused(case, "R04", words, CONSISTENT, figures=figures, remedy=remedy, seconds=case.gap_seconds)


def slow_optimizer(case: RunCase) -> Cause | Cleared | None:
    """R13: the optimizer's timer, or its part of a trace, is far above its price, or most of the step where there is none."""
    timer = timers.timed(case.evidence, timers.OPTIMIZER_STEP)
    seconds = timer.most if timer else case.budget.measured().get(OPTIMIZER)
    step = case.step_seconds or timers.timed_step(case.evidence)
    if seconds is None or not step:
        return None
    e = case.expectation
    price = e.phases.get(OPTIMIZER, 0.0) if e else 0.0
    most_of_it = seconds >= threshold("R13", "unmeasured_share") * step
    lost, slow = seconds, most_of_it
    if e is not None and e.plan is not None:
        lost = seconds - price
        slow = seconds > threshold("R13", "growth") * price and lost >= threshold("R13", "share") * step
    if not slow:
        return Cleared("the optimizer takes what it should")
    offloaded = e is not None and e.plan is not None and e.plan.offload > 0
    after, cured = _on_the_gpu(case) if offloaded else (None, None)
    return caused(
        case,
        "R13",
        "the optimizer takes far too long" + (" on the CPU" if offloaded else ""),
        CERTAIN if most_of_it else LIKELY,
        evidence=timer.origins if timer else (),
        figures=f"{seconds:.3g} s, {seconds / step:.0%} of the step" + (f"; {price:.3g} s are expected" if price else ""),
        remedy="it on the GPU where it fits (no offload), fused, its state sharded (Megatron: --use-distributed-optimizer)",
        seconds=lost,
        step_after=after,
        cured=cured,
    )


def _on_the_gpu(case: RunCase) -> tuple[float | None, tuple[TrainPlan, Scenario] | None]:
    """Return the step with the optimizer's state on the GPU (None: nobody can say), and plan and scenario of it."""
    e = case.expectation
    if e is None or e.scenario is None or e.plan is None or not case.step_seconds:
        return None, None
    plan = replace(e.plan, offload=0.0)
    cure = cure_by("", case.step_seconds, (e.scenario, e.plan), (e.scenario, plan), case.budget.measured())
    return cure.step_after if cure else None, (plan, e.scenario)
