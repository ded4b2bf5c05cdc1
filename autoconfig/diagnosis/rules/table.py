"""The rules in the order in which they are asked, with what evidence would settle each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autoconfig.diagnosis.finding import Cause, Cleared, RunCase, Undecided
from autoconfig.diagnosis.rules import host, links, outside, plan, ranks, report

TRACE = "a trace of one rank (torch.profiler, a few steps)"
TIMERS = "timers (Megatron: --timing-log-level 1)"


@dataclass(frozen=True, kw_only=True)
class CauseRule:
    """One cause."""

    id: str
    name: str
    test: Callable[[RunCase], Cause | Cleared | Undecided | None]
    """The cause; Cleared where its evidence is there and is silent; None where there is none."""
    settles: str = ""
    """What evidence would settle it."""


RULES = (
    CauseRule(id="R12", name="the report is wrong", test=report.wrong_figure, settles="tokens/s or step time beside the MFU"),
    CauseRule(
        id="R18", name="no measurement", test=report.not_a_measurement, settles="the log of later steps, without a profiler"
    ),
    CauseRule(id="R15", name="a release changed", test=report.other_release, settles="the log of an earlier run"),
    CauseRule(id="R09", name="the plan itself", test=plan.slow_plan, settles="the launch file, or --model, --gpus and a PLAN"),
    CauseRule(id="R10", name="clock, power, heat", test=ranks.low_clock, settles="nvidia-smi or DCGM samples of every GPU"),
    CauseRule(id="R11", name="a step that grows", test=outside.growing, settles="the log of the whole run"),
    CauseRule(id="R05", name="allocator", test=outside.allocator, settles="memory lines of the log, or " + TRACE),
    CauseRule(id="R06", name="data", test=outside.data, settles=TIMERS + ", or a run with mock data"),
    CauseRule(id="R07", name="pauses", test=outside.pauses, settles="the log of a few hundred steps, with times of day"),
    CauseRule(id="R02", name="slow link", test=links.slow_link, settles="NCCL_DEBUG=INFO lines, nccl-tests, or " + TRACE),
    CauseRule(id="R03", name="communication not hidden", test=links.not_hidden, settles=TRACE),
    CauseRule(id="R04", name="slow kernels", test=host.slow_kernels, settles=TRACE),
    CauseRule(id="R13", name="optimizer", test=host.slow_optimizer, settles=TIMERS),
    CauseRule(id="R14", name="slow rank", test=ranks.slow_rank, settles="traces of several ranks, or --log-straggler"),
    CauseRule(id="R08", name="unbalanced experts", test=ranks.unbalanced_experts, settles="timers of every rank"),
    CauseRule(id="R16", name="slow stage", test=ranks.slow_stage, settles="timers of every rank (--timing-log-option all)"),
    CauseRule(id="R17", name="waiting", test=plan.waiting, settles=TIMERS),
    CauseRule(id="R01", name="host", test=host.late_launches, settles=TRACE),
)
FIRST = ("R12", "R18", "R15")
"""Is it real? These come before every other cause."""
