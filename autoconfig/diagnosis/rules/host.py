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
from autoconfig.diagnosis.gain import cured_step, with_switches
from autoconfig.evidence.records import Variable
from autoconfig.specs.run_settings import FULL_ITERATION
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
    if not case.evidence.traces:
        return _host_of_table(case) or _blocking(case, CONSISTENT) or _host_bound(case)
    price = case.expected(HOST)
    for trace in case.evidence.traces:
        step, late, waits = trace.step_s, trace.part("late_launch"), trace.part("synchronization")
        lost = late + waits - price
        if lost < threshold("R01", "late_launch_share") * step or late + waits < threshold("R01", "host_growth") * price:
            continue
        why, remedy = (SYNCHRONISES, NO_ITEM) if waits > late else (LATE, LAUNCH_REMEDY)
        text = f"idle {late:.3g} s before late launches, {waits:.3g} s behind synchronisations, of {step:.3g} s"
        origins = (trace.origin.saying(text),)
        return caused(case, "R01", why, CERTAIN, evidence=origins, figures=text, remedy=remedy, seconds=lost)
    return Cleared("the host keeps up")


def _blocking(case: RunCase, certainty: str) -> Cause | None:
    """A variable of BLOCKING of this certainty that the run sets."""
    variable = set_variable(case, [name for name in BLOCKING if BLOCKING[name][1] == certainty])
    if variable is None:
        return None
    words = f"{BLOCKING[variable.name][0]} ({variable.name}={variable.value.strip()})"
    remedy = f"unset {variable.name}: it is for debugging"
    return caused(case, "R01", words, certainty, evidence=(variable.origin,), remedy=remedy)


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
    if not synchronises:
        return caused(case, "R01", LATE, LIKELY, evidence=(both[1].origin,), figures=text, remedy=LAUNCH_REMEDY)
    text += f"; {profiler_table.self_share(waits):.0%} of the host's time in {waits[0].name}, {waits[0].calls} calls"
    origins = (waits[0].origin, both[1].origin)
    return caused(case, "R01", SYNCHRONISES, LIKELY, evidence=origins, figures=text, remedy=NO_ITEM)


def _host_bound(case: RunCase) -> Cause | None:
    """A plan whose own price waits for the host, for a good part of its step."""
    if case.planned is None or case.step_seconds is None or not case.above_band:
        return None
    e, scenario, plan = case.planned
    share = e.phases.get(HOST, 0.0) / e.step_seconds
    if share < threshold("R01", "host_share"):
        return None
    after, cured = None, None
    if FULL_ITERATION not in scenario.settings(plan).cuda_graphs:
        graphs = with_switches(scenario, cuda_graphs=frozenset({FULL_ITERATION}))
        after = cured_step(case.step_seconds, (scenario, plan), (graphs, plan), case.budget.measured(), kept=())
        cured = (plan, graphs)
    words = "a slow host would explain the step: its launches bound the plan"
    figures = f"{share:.0%} of the expected step is waiting for the host already"
    return caused(case, "R01", words, CONSISTENT, figures=figures, remedy=LAUNCH_REMEDY, step_after=after, cured=cured)


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
        seconds = sum(trace.part(part) for part in FALLBACK_PARTS)
        names = trace.names & {*FALLBACKS} - ({"softmax_kernel"} if expects_unfused else set())
        seen = trace.span_s and seconds >= threshold("R04", "fallback_share") * trace.step_s
        if names <= {"softmax_kernel"} and not (names and seen):
            continue
        name = "softmax_kernel" if "softmax_kernel" in names else min(names)
        words, remedy = FALLBACKS[name]
        origins = (trace.origin.saying(f"{name.replace('_', ' ')}: {seconds:.3g} s a step"),)
        lost = case.gap_seconds or seconds or None
        return caused(case, "R04", words, CERTAIN, evidence=origins, remedy=remedy, seconds=lost)
    return None


def _warned_of(case: RunCase) -> Cause | None:
    """A library's own warning."""
    warning = next((one for one in case.evidence.warnings if one.kind in WARNED), None)
    if warning is None:
        return None
    words, remedy, certainty = WARNED[warning.kind]
    return caused(case, "R04", words, certainty, evidence=(warning.origin,), remedy=remedy)


def _unfused_in_table(case: RunCase) -> Cause | None:
    """A profiler's table whose attention is not fused."""
    rows = [row for row in case.evidence.kernels if row.part == "unfused_attention"]
    if sum(row.share for row in rows) < threshold("R04", "fallback_share"):
        return None
    words, remedy = FALLBACKS["softmax_kernel"]
    return caused(case, "R04", words, LIKELY, evidence=(rows[0].origin,), remedy=remedy)


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
    return caused(case, "R04", words, CERTAIN, evidence=origins, remedy=remedy)


def _asked_for_unfused(case: RunCase) -> Cause | None:
    """The plan itself asks for attention in separate kernels, where its software has fused ones."""
    if case.planned is None or case.step_seconds is None:
        return None
    e, scenario, plan = case.planned
    software, usual = scenario.software, load_stack(scenario.software.name)
    if software.memory.attention_kernel != "unfused" or usual.memory.attention_kernel == "unfused":
        return None
    fused = replace(scenario, software=with_options(software, StackOptions(attention_kernel=usual.memory.attention_kernel)))
    after = cured_step(case.step_seconds, (scenario, plan), (fused, plan), case.budget.measured(), kept=())
    if after is None or after >= case.step_seconds:
        return None
    return caused(
        case,
        "R04",
        "the plan asks for attention that is not fused",
        CERTAIN,
        figures=f"priced with it: {e.step_seconds:.3g} s a step, {expected_seconds(fused, plan):.3g} s with fused kernels",
        remedy="--attention-backend flash, fused or auto; flash_attention_2 or sdpa in transformers",
        seconds=case.step_seconds - after,
        step_after=after,
        cured=(plan, fused),
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
    return caused(case, "R04", words, CONSISTENT, figures=figures, remedy=remedy)


def slow_optimizer(case: RunCase) -> Cause | Cleared | None:
    """R13: the optimizer's timer, or its part of a trace, is far above its price, or most of the step where there is none."""
    timer = timers.timed(case.evidence, timers.OPTIMIZER_STEP)
    seconds = timer.most if timer else case.budget.measured().get(OPTIMIZER)
    step = case.step_seconds or timers.timed_step(case.evidence)
    if seconds is None or not step:
        return None
    price = case.expected(OPTIMIZER)
    most_of_it = seconds >= threshold("R13", "unmeasured_share") * step
    lost, slow = seconds, most_of_it
    if case.planned is not None:
        lost = seconds - price
        slow = seconds > threshold("R13", "growth") * price and lost >= threshold("R13", "share") * step
    if not slow:
        return Cleared("the optimizer takes what it should")
    on_cpu, after, cured = "", None, None
    if case.planned is not None and case.planned[2].offload > 0:
        _, scenario, plan = case.planned
        on_cpu, cured = " on the CPU", (replace(plan, offload=0.0), scenario)
        if case.step_seconds:
            after = cured_step(step, (scenario, plan), (scenario, cured[0]), case.budget.measured())
    return caused(
        case,
        "R13",
        f"the optimizer takes far too long{on_cpu}",
        CERTAIN if most_of_it else LIKELY,
        evidence=timer.origins if timer else (),
        figures=f"{seconds:.3g} s, {seconds / step:.0%} of the step" + (f"; {price:.3g} s are expected" if price else ""),
        remedy="it on the GPU where it fits (no offload), fused, its state sharded (Megatron: --use-distributed-optimizer)",
        seconds=lost,
        step_after=after,
        cured=cured if case.step_seconds else None,
    )
