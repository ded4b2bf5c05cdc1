"""Whether the plan is that of the run: what its log counts and prints beside what the plan holds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from autoconfig.diagnosis.expectation import EARLIER, Expectation, rules_data
from autoconfig.diagnosis.measured import MeasuredStep
from autoconfig.evidence.records import Evidence, StepLine
from autoconfig.specs.scenario import Scenario

PLAN_DOUBTED = "the plan, global batch, sequence and number of GPUs as the run had them (its arguments)"
UNPADDED = 0.10
"""Tokens of a step differ by less where a log counts those that its batches hold and the plan whole sequences."""
GENERATION = ("gen", "generation", "generate", "generate_sequences", "rollout", "gen_samples")
"""Phases of a step of reinforcement learning that no other training has (verl, NeMo-RL, OpenRLHF, slime)."""
KINDS = {
    "reinforcement": (
        "a step of reinforcement learning holds generation and more than one pass, and the plan is of a training step",
        "a plan and a log of one kind of training: `autoconfig rl` prices a step of reinforcement learning by phase, and "
        "--step takes the seconds of its update alone",
    ),
    "preferences": (
        "the log is of pairs of answers with a reference model beside the policy, and the plan is of a plain training step",
        "a plan and a log of one kind of training",
    ),
    "adapters": (
        "the log trains adapters, and the plan all parameters",
        "the plan as the run had it, with its adapters (--peft)",
    ),
    "fine-tuning": (
        "the log is of fine-tuning, whose samples may be far shorter than the plan's sequences",
        f"tokens of a step as the run counted them; {PLAN_DOUBTED}",
    ),
}
"""Kind of training that a log shows -> (why a plan without it says nothing of its step, what would settle it)."""


@dataclass(frozen=True, kw_only=True)
class Doubt:
    """Why the plan is not that of the run."""

    why: str
    settles: str = PLAN_DOUBTED
    """What would say the run's own."""


def doubt_of(run: Evidence, expectation: Expectation | None, measured: MeasuredStep | None) -> Doubt | None:
    """Return why the plan that is expected says nothing of the run; None where nothing speaks against it."""
    e = expectation
    if e is None or e.scenario is None or e.plan is None or e.level == EARLIER:
        return None
    kinds, tokens = kinds_of(run), _counted(run, measured, e.scenario.cluster.num_gpus)
    return (
        _of_another_kind(kinds, e.scenario)
        or _of_another_batch(run, e.scenario, tokens)
        or _of_tuning(kinds, e.scenario, tokens)
        or _of_a_fast_step(e, measured)
    )


def _of_another_kind(kinds: set[str], scenario: Scenario) -> Doubt | None:
    """Training of another kind than plain steps of all weights, which the plan is not of."""
    adapters = scenario.numerics.peft != "none"
    others = ("reinforcement", "preferences", *(() if adapters else ("adapters",)))
    return next((Doubt(why=KINDS[kind][0], settles=KINDS[kind][1]) for kind in others if kind in kinds), None)


def _of_another_batch(run: Evidence, scenario: Scenario, tokens: float | None) -> Doubt | None:
    """Another number of tokens or samples in a step."""
    workload, samples = scenario.workload, _batch(run)
    planned = float(workload.tokens_per_step)
    if tokens is not None and abs(tokens / planned - 1) > UNPADDED and not workload.decoder_seq_length:
        return Doubt(why=f"the log counts {tokens:,.0f} tokens a step, and the plan has {planned:,.0f}")
    if samples is not None and abs(samples / workload.global_batch_size - 1) > UNPADDED:
        return Doubt(why=f"the log's rates say {samples:,.0f} samples a step, and the plan has {workload.global_batch_size:,}")
    return None


def _of_tuning(kinds: set[str], scenario: Scenario, tokens: float | None) -> Doubt | None:
    """Fine-tuning whose samples the plan does not say, and whose tokens nothing counts."""
    tuned = scenario.numerics.peft != "none" or scenario.workload.packed_length is not None
    if "fine-tuning" not in kinds or tuned or tokens is not None:
        return None
    return Doubt(why=KINDS["fine-tuning"][0], settles=KINDS["fine-tuning"][1])


def _of_a_fast_step(e: Expectation, measured: MeasuredStep | None) -> Doubt | None:
    """A step that is faster than any published run beside its plan."""
    step = None if measured is None or measured.relative else measured.step_seconds
    if step is None or step >= rules_data()["far"]["fast"] * e.step_seconds:
        return None
    times = f"{step / e.step_seconds:.2f} times the expected step"
    return Doubt(why=f"{times}, and no published run is so fast: plan, batch, sequence or GPUs are not those of this step")


def kinds_of(run: Evidence) -> set[str]:
    """Kinds of training that a run's log shows, but for that of plain steps."""
    phases = {one.name.lower().rpartition("/")[2] for one in run.phases}
    return {one.kind for one in run.trainings} | ({"reinforcement"} if phases & set(GENERATION) else set())


def _counted(run: Evidence, measured: MeasuredStep | None, gpus: int) -> float | None:
    """Tokens of a step: by the count of those consumed, by a rate and the time of its own line, or by a rate and the clock;
    None where nothing says them."""
    grown = _mean_tokens(run.steps)
    if grown is not None:
        return grown
    rates = [(line, rate) for line in run.steps if (rate := line.tokens_per_s or gpus * (line.tokens_per_s_per_gpu or 0.0))]
    timed = [line.seconds * rate for line, rate in rates if line.seconds]
    if timed:
        return statistics.median(timed)
    steps = measured.statistics if measured is not None else None
    if steps is None or not steps.by_clock or not rates:
        return None
    return statistics.median(rate for _, rate in rates) * steps.median_s


def _mean_tokens(lines: Sequence[StepLine]) -> float | None:
    """Tokens of a step by the growth of a count over the steps of the last batch: some logs print it with three digits."""
    last = next((line.batch_size for line in reversed(lines) if line.batch_size), None)
    counts = [
        (line.step, line.tokens) for line in lines if line.step is not None and line.tokens and line.batch_size in (None, last)
    ]
    pairs = [(at - then, now - before) for (then, before), (at, now) in pairwise(counts) if at > then and now >= before]
    steps, tokens = sum(step for step, _ in pairs), sum(more for _, more in pairs)
    return tokens / steps if tokens else None


def _batch(run: Evidence) -> float | None:
    """Samples of a step by the rate and the time of a line; None where no line says both."""
    timed = [line.seconds * line.samples_per_s for line in run.steps if line.seconds and line.samples_per_s]
    return statistics.median(timed) if timed else None


def without_unnamed_bars(run: Evidence) -> Evidence | None:
    """The run without the progress bars of files where they have no name and nothing beside them is of a training: they may be
    of anything. None where that changes nothing."""
    files = {line.origin.file for line in run.steps if not _is_unnamed(line)} | {one.origin.file for one in run.trainings}
    steps = tuple(line for line in run.steps if line.origin.file in files)
    return None if len(steps) == len(run.steps) else replace(run, steps=steps)


def _is_unnamed(line: StepLine) -> bool:
    return line.format == "progress-bar" and line.origin.text[:1].isdigit() and "loss" not in line.origin.text
