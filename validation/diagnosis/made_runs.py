"""Runs made from the parts of `explain`, healthy or with one fault: what a log, timers, traces and samplers would show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from autoconfig.specs.hardware.cluster import ClusterSpec
from autoconfig.specs.layouts import stage_layers

from autoconfig.diagnosis.expectation import Expectation, expectation_of
from autoconfig.evidence.records import (
    ClockSample,
    CollectiveUse,
    Evidence,
    LastArrival,
    LinkFact,
    MemoryLine,
    Origin,
    SlowestRank,
    SourceFile,
    StepLine,
    Timer,
    TraceParts,
)
from autoconfig.training.price import flops_per_step
from autoconfig.training.question import request_of, understand

LOG, TRACE = "run.log", "rank0.json"
STEPS, TRACED = 60, 2
GROUP_OF = {
    "tp_communication_seconds": ("all_reduce", "tp"),
    "cp_communication_seconds": ("send_recv", "cp"),
    "expert_exchange_seconds": ("all_to_all", "ep"),
    "gradient_reduction_seconds": ("reduce_scatter", "dp"),
    "fsdp_seconds": ("all_gather", "fsdp"),
}
WAITING = ("pipeline_bubble_seconds", "straggler_seconds")
DENSE = dict(model="llama3-70b", gpus=64, gpu="h100", seq_length=8192, global_batch_size=256), "tp=4,pp=4,vpp=5,mbs=1,sp=1"
ONE_NODE = dict(model="llama3-8b", gpus=8, gpu="h100", seq_length=8192, global_batch_size=64), "tp=2,mbs=1,sp=1"
EXPERTS = (
    dict(model="qwen3-30b-a3b", gpus=16, gpu="h100", seq_length=4096, global_batch_size=512, moe_imbalance=1.0),
    "tp=1,ep=16,mbs=1,recompute=none",
)


def expected(question: Mapping[str, object], plan: str) -> Expectation:
    """Price the plan of a question."""
    understood = understand(request_of(question))
    return expectation_of(understood, understood.scenario.read_plan(plan))


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a fault changes of what a healthy run leaves behind; empty: nothing."""

    parts: Mapping[str, float] = field(default_factory=dict)
    """Seconds of a step, by part."""
    idle: Mapping[str, float] = field(default_factory=dict)
    hidden: Mapping[str, float] | None = None
    """Seconds of communication beside computation, by group; None: some of the data-parallel group."""
    rates: Mapping[str, float] = field(default_factory=dict)
    """Bytes per second, by group."""
    names: frozenset[str] = frozenset()
    """Kernels that stand in for faster ones."""
    allocations: int = 0
    timed: Mapping[str, float] = field(default_factory=dict)
    """Seconds of timers."""
    level: int = 1
    """Of the timers."""
    ranks: Mapping[int, float] = field(default_factory=dict)
    """Forward pass of a rank, times that of its stage."""
    series: Sequence[float] = ()
    """Seconds of each step."""
    printed: float = 1.0
    """Printed over right TFLOPS."""
    mhz: Mapping[int, float] = field(default_factory=dict)
    reasons: Mapping[int, str] = field(default_factory=dict)
    slowest_rank: float = 1.01
    """Its step over the others', as the straggler line says it."""
    arrivals: tuple[LastArrival, ...] = (LastArrival(rank=3, collectives=64, last=9, others_waited_s=0.001),)


HEALTHY_RUN = Seen()


def scattered(step: float, number: int) -> float:
    """A step with the scatter of a healthy run, 0.5 % either way."""
    return step * (1.0 + 0.005 * ((number * 7919 % 11) / 5.0 - 1.0))


def made(e: Expectation, seen: Seen = HEALTHY_RUN) -> Evidence:
    """What a run with these parts leaves behind: a log with timers, a trace of one rank, samples of clocks."""
    scenario, plan = e.scenario, e.plan
    assert scenario is not None and plan is not None
    parts = {name: seconds for name, seconds in e.parts.items() if seconds} | {**seen.parts}
    idle = {"late_launch": parts.pop("host_floor_seconds", 0.0), **seen.idle}
    idle["waiting"] = idle.get("waiting", 0.0) + sum(parts.pop(name, 0.0) for name in WAITING)
    step = sum(parts.values()) + sum(idle.values())
    series = seen.series or [scattered(step, number) for number in range(STEPS)]
    flops = flops_per_step(scenario, "full", plan.recompute) / scenario.cluster.num_gpus / 1e12
    lines = tuple(
        StepLine(
            origin=Origin(file=LOG, line=number + 1, text=f"iteration {number}"),
            format="megatron",
            step=number,
            seconds=seconds,
            tflops_per_gpu=seen.printed * flops / seconds,
        )
        for number, seconds in enumerate(series, 1)
    )
    return Evidence(
        files=(SourceFile(name=LOG, kind="log"), SourceFile(name=TRACE, kind="kineto")),
        steps=lines,
        timers=tuple(timers(e, parts, idle, seen)),
        memory=(MemoryLine(origin=Origin(file=LOG), max_reserved_gib=0.8 * 80.0, device_gib=80.0),),
        links=(LinkFact(origin=Origin(file=LOG), kind="network", value="IB"),),
        clocks=tuple(clocks(seen)),
        slowest=(slowest("step_seconds", seen.slowest_rank * step, step), slowest("sm_mhz", 1980.0, 1965.0)),
        traces=(traced(scenario.cluster, parts, idle, seen),),
        arrivals=seen.arrivals,
    )


def traced(cluster: ClusterSpec, parts: Mapping[str, float], idle: Mapping[str, float], seen: Seen) -> TraceParts:
    """Make the trace of rank 0."""
    step = sum(parts.values()) + sum(idle.values())
    hidden = {"dp": 0.05 * step} if seen.hidden is None else seen.hidden
    rates = {"dp": cluster.nic_bytes_per_s, "tp": cluster.link_bytes_per_s, **seen.rates}
    return TraceParts(
        origin=Origin(file=TRACE),
        rank=0,
        world_size=cluster.num_gpus,
        device=cluster.gpu.name,
        steps=TRACED,
        span_s=TRACED * step,
        step_seconds=(step,) * TRACED,
        parts={name: TRACED * seconds for name, seconds in parts.items()},
        idle={name: TRACED * seconds for name, seconds in idle.items()},
        collectives=tuple(collectives(parts, hidden, rates)),
        kernel_seconds=TRACED * step,
        names=seen.names,
        allocations=seen.allocations,
    )


def collectives(parts: Mapping[str, float], hidden: Mapping[str, float], rates: Mapping[str, float]) -> Iterator[CollectiveUse]:
    """Yield one use of each group, at its link's rate; the data-parallel one is hidden but for its exposed part."""
    for part, (name, group) in GROUP_OF.items():
        exposed = parts.get(part, 0.0)
        seconds = exposed + hidden.get(group, 0.0)
        if seconds and group in rates:
            size = 0.8 * rates[group] * seconds / (2.0 if name == "all_reduce" else 1.0)
            yield CollectiveUse(
                name=name,
                group=group,
                ranks=4,
                count=32,
                seconds=TRACED * seconds,
                exposed_s=TRACED * exposed,
                size_bytes=TRACED * size,
            )


def timers(e: Expectation, parts: Mapping[str, float], idle: Mapping[str, float], seen: Seen) -> Iterator[Timer]:
    """Yield Megatron's timers, with the forward pass of every rank."""
    plan, scenario = e.plan, e.scenario
    assert plan is not None and scenario is not None
    optimizer, reduction = parts.get("optimizer_seconds", 0.0), parts.get("gradient_reduction_seconds", 0.0)
    gather, lost = parts.get("parameter_gather_seconds", 0.0), idle.get("data", 0.0)
    inside = sum(parts.values()) + sum(idle.values()) - optimizer - reduction - gather - lost
    seconds = {
        "forward-backward": inside,
        "all-grads-sync": reduction,
        "params-all-gather": gather,
        "optimizer": optimizer,
        "batch-generator": 0.001 * inside + lost,
        **seen.timed,
    }
    for name, value in seconds.items():
        yield Timer(
            origin=Origin(file=LOG, text=name), name=name, seconds_min=0.99 * value, seconds_max=value, level=seen.level
        )
    layers = stage_layers(scenario.model, plan)
    each = scenario.cluster.num_gpus // plan.pp
    forward = {
        rank: 0.3 * inside * layers[rank // each] / max(layers) * seen.ranks.get(rank, 1.0 + 0.01 * (rank % 3))
        for rank in range(scenario.cluster.num_gpus)
    }
    yield Timer(
        origin=Origin(file=LOG, text="forward-compute"),
        name="forward-compute",
        seconds_min=min(forward.values()),
        seconds_max=max(forward.values()),
        by_rank=forward,
        level=seen.level,
    )


def clocks(seen: Seen) -> Iterator[ClockSample]:
    """Yield samples of the eight GPUs of a node."""
    for gpu in range(8):
        yield ClockSample(
            origin=Origin(file="nvml.csv", line=gpu),
            gpu=gpu,
            sm_mhz=seen.mhz.get(gpu, 1900.0),
            max_sm_mhz=1980.0,
            limit_watts=700.0,
            utilization=0.98,
            temperature_c=60.0,
            reasons=frozenset({seen.reasons[gpu]} if gpu in seen.reasons else {"power_cap"}),
        )


def slowest(figure: str, most: float, least: float) -> SlowestRank:
    """Make a figure of Megatron's straggler line."""
    return SlowestRank(origin=Origin(file=LOG, text=figure), figure=figure, least=least, least_rank=0, most=most, most_rank=5)
