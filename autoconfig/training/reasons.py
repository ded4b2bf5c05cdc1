"""The words of an answer: ties, why a plan is where it is, what to try when nothing is legal or nothing fits."""

from __future__ import annotations

import contextlib

import numpy as np
import numpy.typing as npt

from autoconfig.specs.errors import GIB, InputError, divisors, option
from autoconfig.specs.scenario import Scenario
from autoconfig.training.price import PlanReport
from autoconfig.training.question import Question
from autoconfig.training.rank import Ranking
from autoconfig.training.rules import RULE_TEXT
from autoconfig.training.space import Constraints, Space, axes, enumerate_space

RESOLUTION = 0.06
"""Plans closer than this in predicted step time are a tie: the spread within groups of measured runs that differ only in
their plan is 6 to 9 % (findings on public measurements, section 7)."""
PARTS_NAMED = 2
SHOWN_VALUES = 12
TRIES = 12


PART_WORDS = {
    "gemm_seconds": "GEMMs",
    "grouped_gemm_seconds": "grouped GEMMs",
    "tp_communication_seconds": "TP communication",
    "cp_communication_seconds": "CP communication",
    "expert_all_to_all_seconds": "expert all-to-all",
    "p2p_seconds": "pipeline sends",
    "fsdp_seconds": "FSDP gathers",
    "host_floor_seconds": "waiting for the host",
    "straggler_seconds": "stragglers",
}


def part_words(name: str) -> str:
    """A part of the step in a sentence; tables and JSON have the name of its formula."""
    return PART_WORDS.get(name, name.removesuffix("_seconds").replace("_", " "))


def largest_parts(report: PlanReport) -> str:
    """`GEMMs 74 %, TP communication 8 %, pointwise 4 %`: the largest parts of the step."""
    parts = sorted(report.time_parts.items(), key=lambda item: -item[1])[: PARTS_NAMED + 1]
    return ", ".join(f"{part_words(name)} {100 * s / report.step_seconds:.0f} %" for name, s in parts if s > 0)


def tie_groups(step_seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Group number (from 1) of every plan of a ranking: a group is all plans within RESOLUTION of its first."""
    groups = np.zeros(len(step_seconds), np.int64)
    start, group = 0, 0
    while start < len(step_seconds):
        group += 1
        end = int(np.searchsorted(step_seconds, step_seconds[start] * (1 + RESOLUTION), side="right"))
        groups[start:end] = group
        start = max(end, start + 1)
    return groups


def reason_for(report: PlanReport, first: PlanReport | None, ranking: Ranking, position: int) -> str:
    """Why the plan is at this place: for the first its largest parts and what it beat, for others what they trade."""
    if first is None or position == int(ranking.best[0]):
        return _why_first(report, ranking)
    ratio = report.step_seconds / first.step_seconds - 1
    slower = f"{ratio:.1%} slower than the first" if ratio > 0.0005 else "as fast as the first"
    return f"{slower}{_trade(report, first)}"


def _why_first(report: PlanReport, ranking: Ranking) -> str:
    free = (report.limit_bytes - report.peak_bytes) / GIB
    return (
        f"fastest of {ranking.funnel.priced:,} plans that fit ({largest_parts(report)} of the step), "
        f"{free:.1f} GiB below the limit on stage {report.worst_stage.stage}"
    )


def _trade(report: PlanReport, first: PlanReport) -> str:
    """The parts in which a plan loses and gains most against the first, and the memory that it saves or takes."""
    names = set(report.time_parts) | set(first.time_parts)
    delta = sorted(
        ((report.time_parts.get(n, 0.0) - first.time_parts.get(n, 0.0), n) for n in names), key=lambda item: -item[0]
    )
    small = 0.002 * first.step_seconds
    losses = [f"{part_words(name)} {_signed(seconds)}" for seconds, name in delta[:PARTS_NAMED] if seconds > small]
    gains = [f"{part_words(name)} {_signed(seconds)}" for seconds, name in delta[::-1][:PARTS_NAMED] if seconds < -small]
    memory = (report.peak_bytes - first.peak_bytes) / GIB
    text = "; ".join(losses + gains)
    return (f": {text}" if text else "") + (f"; {memory:+.1f} GiB" if abs(memory) >= 0.05 else "")


def _signed(seconds: float) -> str:
    """A difference with three digits and its unit."""
    return f"{seconds:+.2f} s" if abs(seconds) >= 1 else f"{seconds * 1e3:+.3g} ms"


def nothing_legal(question: Question, space: Space) -> InputError:
    """The error for an empty space: what stopped the most layouts, and what to change."""
    scenario, constraints = question.scenario, question.constraints
    asked = f"{scenario.model.name} on {scenario.cluster.num_gpus} GPUs with global batch {scenario.workload.global_batch_size}"
    if constraints != Constraints() and _legal(scenario):
        values = axes(scenario)
        for key, fixed in constraints.fixed.items():
            if key in values and not fixed & set(values[key]):
                allowed = ", ".join(str(int(v)) for v in values[key][:SHOWN_VALUES])
                more = ", ..." if len(values[key]) > SHOWN_VALUES else ""
                given = " or ".join(str(int(v)) for v in sorted(fixed))
                return InputError(f"no legal plan for {asked}: {key}={given} is not among {key} = {allowed}{more}")
        return InputError(
            f"no legal plan for {asked} is left by {option('fix')}, {option('max')} and {option('exclude')}; loosen one of them"
        )
    reasons = [f"{rule}, {RULE_TEXT[rule]}" for rule in space.rejected_by_rule if rule in RULE_TEXT and rule != "NV001"]
    reason = f"most are stopped by {'; or '.join(reasons[:PARTS_NAMED])}" if reasons else "nothing divides"
    return InputError(f"no legal plan for {asked}: {reason}; try {_what_would_be_legal(scenario)}")


def _legal(scenario: Scenario) -> bool:
    return enumerate_space(scenario).legal > 0


def _what_would_be_legal(scenario: Scenario) -> str:
    """The nearest global batch, else the nearest smaller number of whole nodes, that has a legal plan."""
    gpus, batch = scenario.cluster.num_gpus, scenario.workload.global_batch_size
    node = scenario.cluster.gpus_per_node
    batches = sorted({max(1, round(batch / part)) * part for part in divisors(gpus)}, key=lambda b: abs(b - batch))
    for wanted in batches[:TRIES]:
        with contextlib.suppress(InputError):  # a batch larger than any
            if _legal(scenario.with_batch(wanted)):
                return f"--global-batch-size {wanted}"
    sizes = {2**k // node * node for k in range(gpus.bit_length())} | {gpus // 2**k // node * node for k in range(1, TRIES)}
    for wanted in sorted((n for n in sizes if 0 < n < gpus), reverse=True):
        if _legal(scenario.on(num_gpus=wanted)):
            return f"--gpus {wanted}, or --gpus-at-most {gpus}"
    return "another sequence length, or a model whose heads and layers have more divisors"
