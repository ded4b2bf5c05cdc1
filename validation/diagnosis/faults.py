"""Eighteen faults put into runs that are made from the parts of `explain`, the step 1.3 and 2 times as long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

from autoconfig.diagnosis.answer import REPORT_WRONG, SLOW, Diagnosis, diagnose
from autoconfig.diagnosis.expectation import Expectation
from autoconfig.evidence.records import Evidence, LastArrival, LinkFact, MemoryLine, Origin
from validation.diagnosis import made_runs
from validation.diagnosis.made_runs import DENSE, EXPERTS, LOG, STEPS, Seen, made, scattered
from validation.sheets.figures import Line, share_line

TIMES = (1.3, 2.0)


@cache
def dense() -> Expectation:
    """Price the dense plan."""
    return made_runs.expected(*DENSE)


@cache
def experts() -> Expectation:
    """Price the plan with experts."""
    return made_runs.expected(*EXPERTS)


def more(e: Expectation, part: str, lost: float) -> dict[str, float]:
    """Add the lost seconds to a part."""
    return {part: e.parts.get(part, 0.0) + lost}


def slow_network(e: Expectation, lost: float) -> Evidence:
    """Reduce gradients over a slow network."""
    whole = e.parts["gradient_reduction_seconds"] + lost
    return made(e, Seen(parts=more(e, "gradient_reduction_seconds", lost), rates={"dp": 0.02e9 * 50 / whole}, hidden={}))


def exposed(e: Expectation, lost: float) -> Evidence:
    """Reduce gradients beside no computation."""
    parts, hidden = more(e, "gradient_reduction_seconds", lost), {"dp": 0.001 * lost}
    return made(e, Seen(parts=parts, hidden=hidden, timed={"all-grads-sync": 0.0}))


def retries(e: Expectation, lost: float) -> Evidence:
    """Free and allocate in every step."""
    evidence = made(e, Seen(idle={"allocation": lost}, allocations=40))
    lines = [MemoryLine(origin=line.origin, rank=line.rank, retries=number) for number, line in enumerate(evidence.steps)]
    return replace(evidence, memory=tuple(lines))


def throttled(e: Expectation, lost: float) -> Evidence:
    """Lower the clock."""
    gemms = e.parts["gemm_seconds"]
    clock = 1900.0 * gemms / (gemms + lost)
    return made(e, Seen(parts=more(e, "gemm_seconds", lost), mhz=dict.fromkeys(range(8), clock), reasons={2: "sw_thermal"}))


def slow_rank(e: Expectation, lost: float) -> Evidence:
    """Let one rank come last."""
    times = 1.0 + lost / e.step_seconds
    ranks = {rank: 1.0 for rank in range(64)} | {21: times}
    arrivals = (LastArrival(rank=21, collectives=64, last=60, others_waited_s=2 * lost),)
    return made(e, Seen(idle={"waiting": lost}, ranks=ranks, arrivals=arrivals, slowest_rank=times))


def release(e: Expectation, lost: float) -> Evidence:
    """Change NCCL, and run slower GEMMs."""
    evidence = made(e, Seen(parts=more(e, "gemm_seconds", lost)))
    return replace(evidence, links=(*evidence.links, version("2.24.3")))


def version(text: str) -> LinkFact:
    """Say a version of NCCL."""
    return LinkFact(origin=Origin(file=LOG, text=text), kind="version", value=text)


def slow_stage(e: Expectation, lost: float) -> Evidence:
    """Slow the last stage."""
    ranks = {rank: 1.0 + (1.4 * lost / e.step_seconds if rank >= 48 else 0.0) for rank in range(64)}
    return made(e, Seen(idle={"waiting": lost}, ranks=ranks))


FAULTS: dict[str, tuple[str, Callable[[Expectation, float], Evidence]]] = {
    "R01": ("late launches", lambda e, s: made(e, Seen(idle={"late_launch": e.parts["host_floor_seconds"] + s}))),
    "R02": ("gradients over a slow network", slow_network),
    "R03": ("gradients beside no computation", exposed),
    "R04": (
        "attention by softmax kernels",
        lambda e, s: made(e, Seen(parts={"unfused_attention": s}, names=frozenset({"softmax_kernel"}))),
    ),
    "R05": ("memory freed and allocated in every step", retries),
    "R06": ("waiting for the data loader", lambda e, s: made(e, Seen(idle={"data": s}))),
    "R07": (
        "a pause every twenty steps",
        lambda e, s: made(
            e, Seen(series=[scattered(e.step_seconds, n) + (20 * s if n % 20 == 19 else 0.0) for n in range(STEPS)])
        ),
    ),
    "R08": (
        "uneven load of the ranks of experts",
        lambda e, s: made(e, Seen(idle={"waiting": s}, ranks={rank: 1.0 + 0.06 * rank for rank in range(16)})),
    ),
    "R09": ("a slow plan that runs as it must", lambda e, s: made(e)),
    "R10": ("a lower clock", throttled),
    "R11": (
        "steps that grow longer",
        lambda e, s: made(e, Seen(series=[scattered(e.step_seconds + 2 * s * n / STEPS, n) for n in range(STEPS)])),
    ),
    "R12": ("too many TFLOPS printed", lambda e, s: made(e, Seen(printed=1.0 + s / e.step_seconds))),
    "R13": ("a slow optimizer", lambda e, s: made(e, Seen(parts=more(e, "optimizer_seconds", s)))),
    "R14": ("a rank that comes last", slow_rank),
    "R15": ("another NCCL, and slower GEMMs", release),
    "R16": ("a slow last stage", slow_stage),
    "R17": (
        "waiting for neighbouring stages",
        lambda e, s: made(e, Seen(idle={"waiting": s}, timed={"forward-recv": e.phases["bubble and sends"] + s})),
    ),
    "R18": ("timers of level 2", lambda e, s: made(e, Seen(parts=more(e, "pointwise_seconds", s), level=2))),
}
"""Rule -> its fault, and the evidence of a run that loses so many seconds a step by it."""
SLOW_PLANS = {
    1.3: (DENSE[0], "tp=8,pp=4,mbs=1,sp=1,recompute=full:uniform:1"),
    2.0: ({**DENSE[0], "gpus": 128, "seq_length": 4096}, "tp=8,pp=8,mbs=1,sp=1,recompute=full:uniform:1"),
}


@cache
def diagnosed(rule: str, times: float) -> Diagnosis:
    """Diagnose a run with the rule's fault."""
    e = experts() if rule == "R08" else dense()
    if rule == "R09":
        e = made_runs.expected(*SLOW_PLANS[times])
    evidence = FAULTS[rule][1](e, (times - 1.0) * e.step_seconds)
    before = None
    if rule == "R15":
        healthy = made(e)
        before = replace(healthy, links=(*healthy.links, version("2.21.5")))
    return diagnose(evidence, e, before=before, with_better=False)


EVERY = [(rule, times) for rule in FAULTS for times in TIMES]
FIRE, MOST_FALSE, CALLED_SLOW = 34, 0.02, 0.95
"""Asked for: faults whose rule fires, share of rules that fire on another's fault, share of the runs called slow."""


def named(rule: str, times: float) -> list[str]:
    """Return the rules of the causes that are named of a fault."""
    return [one.rule for one in diagnosed(rule, times).causes]


def fault_lines() -> Iterator[Line]:
    """Yield what the made faults are held to."""
    every = len(EVERY)
    yield share_line("rule fires on its made fault", [rule in named(rule, times) for rule, times in EVERY], FIRE / every)
    others = sum(len({*named(rule, times)} - {rule}) for rule, times in EVERY)
    pairs = every * (len(FAULTS) - 1)
    yield Line(name="rule fires on another's made fault", rows=pairs, reached=others / pairs, most=MOST_FALSE)
    slow = [diagnosed(*one).verdict == (REPORT_WRONG if one[0] == "R12" else SLOW) for one in EVERY]
    yield share_line("made faults called slow", slow, CALLED_SLOW)
