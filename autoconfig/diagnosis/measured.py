"""How long a step takes: of the lines of a run, or as given; rates become seconds where the plan is known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from autoconfig.diagnosis import formulas
from autoconfig.diagnosis.expectation import Expectation
from autoconfig.evidence.records import Evidence, StepLine, StepStatistics, TraceParts
from autoconfig.evidence.steps import statistics
from autoconfig.specs.errors import InputError, option


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """The step of a run."""

    step_seconds: float
    """Median without warm-up."""
    source: str
    """The files, or GIVEN."""
    statistics: StepStatistics | None = None
    """Of the lines; None where the step was given, or stands in one line."""
    relative: bool = False
    """Only rates are known, and no plan that turns them into seconds: `step_seconds` is in units of its own."""
    convention: str = ""
    """What the printed TFLOPS or MFU count, where the step comes from them."""


@dataclass(frozen=True, kw_only=True)
class GivenStep:
    """What the caller says of the step instead of a log; None: nothing."""

    step: float | None = None
    """Seconds."""
    tokens_per_s_per_gpu: float | None = None
    tflops_per_gpu: float | None = None
    """Counted with all of the attention matrix, as Megatron-LM prints it."""
    mfu: float | None = None
    """A share; counted likewise."""


GIVEN = "as given"


def given_step(given: GivenStep, expectation: Expectation | None) -> MeasuredStep | None:
    """The step that the caller gives, or that follows from his rate and the plan; None where he gives none. Raises InputError
    for a rate without a plan."""
    if given.step is not None:
        return MeasuredStep(step_seconds=given.step, source=GIVEN)
    for name in ("tokens_per_s_per_gpu", "tflops_per_gpu", "mfu"):
        value = getattr(given, name)
        if value is None:
            continue
        if expectation is None or expectation.scenario is None:
            raise InputError(
                f"{option(name)} says how long a step takes only with a plan: give the launch file, or {option('model')}, "
                f"{option('gpus')} and a PLAN, or say {option('step')}",
                field=name,
            )
        line = {name: value}
        seconds, convention = _seconds(expectation, "", **line)
        assert seconds is not None
        return MeasuredStep(step_seconds=seconds, source=GIVEN, convention=convention)
    return None


def _seconds(
    expectation: Expectation,
    log_format: str,
    *,
    tokens_per_s_per_gpu: float | None = None,
    tokens_per_s: float | None = None,
    samples_per_s: float | None = None,
    tflops_per_gpu: float | None = None,
    mfu: float | None = None,
) -> tuple[float | None, str]:
    """(seconds of a step, convention of the FLOPs that they come from) of the first rate that is there."""
    scenario, plan = expectation.scenario, expectation.plan
    if scenario is None or plan is None:
        return None, ""
    if tokens_per_s_per_gpu:
        return formulas.seconds_of_tokens(scenario, tokens_per_s_per_gpu), ""
    if tokens_per_s:
        return formulas.seconds_of_tokens(scenario, tokens_per_s / scenario.cluster.num_gpus), ""
    if samples_per_s:
        return scenario.workload.global_batch_size / samples_per_s, ""
    convention = formulas.convention_of(log_format)
    if tflops_per_gpu:
        return formulas.seconds_of_tflops(scenario, plan, tflops_per_gpu, convention), convention
    if mfu:
        return formulas.seconds_of_mfu(scenario, plan, mfu, convention), convention
    return None, ""


RATES = ("tokens_per_s_per_gpu", "tokens_per_s", "samples_per_s", "tflops_per_gpu", "mfu")


def seconds_of_line(line: StepLine, expectation: Expectation | None) -> tuple[float | None, str]:
    """(seconds of the step of a line, convention of the FLOPs that they come from); None where it says neither."""
    if line.seconds is not None:
        return line.seconds, ""
    if expectation is None:
        return None, ""
    return _seconds(expectation, line.format, **{name: getattr(line, name) for name in RATES})


def measured_of(evidence: Evidence, expectation: Expectation | None, given: GivenStep) -> MeasuredStep | None:
    """The step of a run: as given, else of the lines of its logs, else of its traces; None where nothing says it. Raises
    InputError for a given rate without a plan."""
    return given_step(given, expectation) or _of_lines(evidence.steps, expectation) or _of_traces(evidence.traces)


def _of_lines(lines: Sequence[StepLine], expectation: Expectation | None) -> MeasuredStep | None:
    """The lines of the kind that says most: with seconds first, then rates that a plan makes seconds of where the clock between
    lines does not contradict them, then that clock, then any rate. What such seconds are short of the clock is as much the
    plan's error as it is time between steps, and counts for nothing."""
    timed = [line for line in lines if line.seconds is not None]
    if timed:
        return _median(timed, "")
    by_clock = _median([line for line in lines if line.at is not None or line.elapsed is not None], "")
    by_rate = _by_rate(lines, expectation)
    if by_rate is not None and not _contradicts(by_clock, by_rate):
        return by_rate
    planned = expectation is not None and expectation.scenario is not None and expectation.plan is not None
    return by_clock or (None if planned else _relative(lines))


def _by_rate(lines: Sequence[StepLine], expectation: Expectation | None) -> MeasuredStep | None:
    """The step that rates say with the plan; None where they or it say none."""
    rated = [(line, *seconds_of_line(line, expectation)) for line in lines]
    priced = [(replace(line, seconds=seconds, at=None), how) for line, seconds, how in rated if seconds is not None]
    return _median([line for line, _ in priced], priced[0][1]) if priced else None


def _relative(lines: Sequence[StepLine]) -> MeasuredStep | None:
    """The step by the first rate that lines print, in units of its own."""
    for name in RATES:
        rates = [replace(line, seconds=1.0 / value) for line in lines if (value := getattr(line, name))]
        if rates and (measured := _median(rates, "")) is not None:
            return replace(measured, relative=True)
    return None


RATE_OFF = 0.10
"""Of a step, that a rate and the plan's tokens may be off from the clock between the lines: evaluation and saves lie in it."""


def _contradicts(by_clock: MeasuredStep | None, by_rate: MeasuredStep) -> bool:
    """Whether the clock between lines, where it is fine enough, says another step than a rate that the plan makes seconds of:
    the plan's tokens or FLOPs are then not the run's."""
    steps = by_clock.statistics if by_clock is not None else None
    if by_clock is None or steps is None or steps.count < LEAST_LINES or steps.resolution > RATE_OFF:
        return False
    return abs(by_clock.step_seconds / by_rate.step_seconds - 1) > RATE_OFF


LEAST_LINES = 3


def _median(lines: Sequence[StepLine], convention: str) -> MeasuredStep | None:
    steps = statistics(lines)
    if steps is None:
        return None
    return MeasuredStep(step_seconds=steps.median_s, source=_named(lines), statistics=steps, convention=convention)


def _named(lines: Iterable[StepLine]) -> str:
    files = dict.fromkeys(line.origin.file for line in lines)
    return ", ".join(files)


def _of_traces(traces: Sequence[TraceParts]) -> MeasuredStep | None:
    """The median step of the traces; the profiler makes steps longer, which R18 says."""
    seconds = sorted(second for trace in traces for second in trace.step_seconds)
    if not seconds:
        return None
    files = ", ".join(dict.fromkeys(trace.origin.file for trace in traces))
    return MeasuredStep(step_seconds=seconds[len(seconds) // 2], source=f"{files} (under the profiler)")
