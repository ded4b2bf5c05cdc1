"""R12, R15, R18: what is reported is wrong, was measured wrongly, or is of another release."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from autoconfig.diagnosis import formulas
from autoconfig.diagnosis.finding import CERTAIN, CONSISTENT, LIKELY, Cause, Cleared, RunCase, caused, threshold
from autoconfig.diagnosis.formulas import Formula
from autoconfig.diagnosis.measured import seconds_of_line
from autoconfig.evidence.records import Origin, StepLine
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Scenario

TIMES = ("seconds", "tokens_per_s_per_gpu", "tokens_per_s", "samples_per_s")


def wrong_figure(case: RunCase) -> Cause | Cleared | None:
    """R12: the printed TFLOPS or MFU do not follow from the step's time and the plan by any counting that is in use; the slip
    that fits is named. Without a plan: the printed MFU and TFLOPS belong to the peak of no GPU."""
    lines = [line for line in case.evidence.steps if line.tflops_per_gpu or line.mfu]
    if case.planned is None:
        return _no_known_peak(case, lines)
    timed = [
        (line, seconds)
        for line in _beside_times(case, lines)
        if (seconds := _time_of(line, case)) is not None and (line.tflops_per_gpu or line.mfu)
    ]
    if not timed:
        return None
    line, seconds = sorted(timed, key=lambda one: one[1])[len(timed) // 2]
    slip = _checked(case, line, seconds, *case.planned[1:])
    return slip or Cleared("printed TFLOPS or MFU follow from the step's time")


def _beside_times(case: RunCase, lines: Sequence[StepLine]) -> list[StepLine]:
    """Lines with the figure, each with a time of its own or, where a log prints one figure a line, that of the others."""
    if any(getattr(line, name) for line in lines for name in TIMES):
        return [line for line in lines if any(getattr(line, name) for name in TIMES)]
    others = [line for line in case.evidence.steps if any(getattr(line, name) for name in TIMES)]
    return list(lines) if others or (case.measured is not None and not case.measured.convention) else []


def _time_of(line: StepLine, case: RunCase) -> float | None:
    """Seconds of the line's own step, else of the run's."""
    if any(getattr(line, name) for name in TIMES):
        return _own_time(line, case)
    return case.step_seconds


def _own_time(line: StepLine, case: RunCase) -> float | None:
    seconds, convention = seconds_of_line(line, case.expectation)
    return None if convention else seconds


def _checked(case: RunCase, line: StepLine, seconds: float, scenario: Scenario, plan: TrainPlan) -> Cause | None:
    """The cause where the line's TFLOPS or MFU do not follow from `seconds`."""
    right = formulas.right_tflops(scenario, plan, seconds)
    if line.seconds is not None and line.batch_size:  # its own: a batch that is ramped up makes other steps
        ramped = line.batch_size / scenario.workload.global_batch_size
        right = [replace(one, value=one.value * ramped) for one in right]
    peak = scenario.cluster.gpu.peak_flops_per_s(scenario.numerics.gemm_precision) / formulas.TERA
    half = scenario.cluster.gpu.sixteen_bit_flops_per_s / formulas.TERA
    if line.tflops_per_gpu:
        if not _follows(line.tflops_per_gpu, right):
            slip = _slips(line.tflops_per_gpu, right, scenario, plan)
            return _wrong(case, line, "TFLOPS", line.tflops_per_gpu, right, slip)
        if line.mfu is None:
            return None
    if line.mfu is None:
        return None
    shares = [Formula(words=one.words, value=one.value / rate) for one in right for rate in {peak, half}]
    if _follows(line.mfu, shares, rounding=_rounding(line.mfu)):
        return None
    own = [Formula(words=one.words, value=one.value / peak) for one in right]
    slip = _peak_of_line(line, scenario) or _slips(line.mfu, own, scenario, plan, peak)
    return _wrong(case, line, "MFU", line.mfu, own, slip)


def _peak_of_line(line: StepLine, scenario: Scenario) -> str:
    """The peak that the MFU of a line divides its own TFLOPS by, which follow from the step's time; empty without them."""
    if not line.tflops_per_gpu or not line.mfu:
        return ""
    peak = line.tflops_per_gpu / line.mfu
    room = threshold("R12", "agreeing") + _rounding_of_share(line.mfu)
    fitting = [words for words, rate in formulas.other_peaks(scenario) if abs(peak / rate - 1) <= room]
    return f"divided by {'the peak of ' + fitting[0] if fitting else 'the peak of no GPU that is known'}, {peak:,.0f} TFLOPS"


def _rounding_of_share(mfu: float) -> float:
    """What a share that may be printed as a percentage of two digits is off by, relative."""
    return _rounding(mfu) + 0.005 / (100 * mfu)


def _rounding(value: float) -> float:
    """Half a unit of the last of two digits of a percentage, relative: what a printed share may be off by."""
    return 0.005 / value if round(value, 2) == value else 0.0


def _follows(printed: float, right: Sequence[Formula], rounding: float = 0.0) -> bool:
    """Whether a figure lies between the countings that are in use, within what they are rounded by."""
    room = 1.0 + threshold("R12", "agreeing") + rounding
    values = [one.value for one in right]
    return min(values) / room <= printed <= max(values) * room


MOST_SLIPS = 2


def _slips(printed: float, right: Sequence[Formula], scenario: Scenario, plan: TrainPlan, peak: float | None = None) -> str:
    """What would give the figure, of the slips that reports hold; empty where none of them does. `peak`: of an MFU, in
    TFLOPS."""
    factors = list(formulas.wrong_factors(scenario, plan))
    if peak is not None:  # a wrong peak is the commonest slip of an MFU
        own, others = formulas.own_peaks(scenario), formulas.peaks_of_others(scenario)
        factors = [*_peaks(own, peak), *factors, *_peaks(others, peak)]
    room = _rounding(printed) if peak is not None else 0.0
    fitting = [
        words
        for words, factor in factors
        if _follows(printed, [Formula(words=one.words, value=one.value * factor) for one in right], rounding=room)
    ]
    return ", or ".join(fitting[:MOST_SLIPS])


def _peaks(peaks: Iterable[tuple[str, float]], right: float) -> list[tuple[str, float]]:
    """(which peak was taken, by which factor an MFU is then off)."""
    return [(f"the peak of {words}, {rate:,.0f} TFLOPS", right / rate) for words, rate in peaks]


def _wrong(case: RunCase, line: StepLine, what: str, printed: float, right: Sequence[Formula], slip: str) -> Cause | None:
    low, high = min(one.value for one in right), max(one.value for one in right)
    off = low / printed if printed < low else printed / high
    if not slip and off < 1 + threshold("R12", "wrong"):
        return None
    form = ".1%" if what == "MFU" else ",.0f"
    figures = f"printed {printed:{form}}, from the step's time {low:{form}} to {high:{form}}"
    return caused(
        case,
        "R12",
        f"the printed {what} does not follow from the step's time" + (f"; what fits: {slip}" if slip else ""),
        CERTAIN if slip else LIKELY,
        evidence=(line.origin,),
        figures=figures,
        remedy=f"compute {what} from the step's time: model FLOPs of a step / seconds / GPUs"
        + (" / the peak of this GPU at this precision" if what == "MFU" else ""),
        seconds=0.0,
    )


def _no_known_peak(case: RunCase, lines: Sequence[StepLine]) -> Cause | Cleared | None:
    both = [line for line in lines if line.tflops_per_gpu and line.mfu]
    if not both:
        return None
    line = both[len(both) // 2]
    assert line.tflops_per_gpu and line.mfu
    peak = line.tflops_per_gpu / line.mfu
    room = threshold("R12", "agreeing") + _rounding_of_share(line.mfu)
    if any(abs(peak / rate - 1) <= room for _, rate in formulas.catalogue_peaks()):
        return Cleared("printed TFLOPS and MFU belong to the peak of a GPU")
    words = f"the printed MFU divides by {peak:,.0f} TFLOPS, the peak of no GPU that is known"
    remedy = "divide by the dense peak of the GPU at the precision of its GEMMs"
    return caused(case, "R12", words, LIKELY, evidence=(line.origin,), remedy=remedy, seconds=0.0)


def not_a_measurement(case: RunCase) -> Cause | Cleared | None:
    """R18: timers of level 2 synchronise around each part; the step is of a profiler's window; or a mean from the start of the
    run holds its warm-up."""
    level_2 = timed_at_level_2(case)
    if level_2 is not None:
        words = "the step was timed with timers of level 2, which synchronise around each part: it is no measurement"
        return _no_measurement(case, words, "time it with --timing-log-level 0", level_2)
    measured = case.measured
    if measured is None or measured.statistics is None:
        if measured is None or not case.evidence.traces or "profiler" not in measured.source:
            return None
        words = "the step is known under the profiler only, which makes it longer"
        return _no_measurement(case, words, "give the log of steps without the profiler", certainty=CONSISTENT)
    if is_warming_up(case):
        words = "only the first steps of the run are known, in which it warms up: it is no measurement"
        lines = [line.origin for line in case.evidence.steps[:1]]
        return _no_measurement(case, words, "give the log of later steps", *lines) if case.above_band else None
    steps, mean = _steps_of_mean(case), measured.statistics.mean_includes_warmup
    if mean and steps is not None and steps < threshold("R18", "least_steps"):
        words = f"the printed rate is a mean from the start over {steps:.0f} steps, warm-up in it"
        return _no_measurement(case, words, "measure later steps alone")
    return Cleared() if mean or measured.statistics.count >= threshold("R18", "least_measured") else None


def _no_measurement(case: RunCase, words: str, remedy: str, *evidence: Origin, certainty: str = CERTAIN) -> Cause:
    """A cause of R18, which explains no seconds."""
    return caused(case, "R18", words, certainty, evidence=evidence, remedy=remedy, seconds=None)


def is_warming_up(case: RunCase) -> bool:
    """Whether only the first steps of the run are known, or their mean: of the first --log-interval that the log's arguments
    say."""
    steps = case.statistics
    if steps is None or steps.warming_up:
        return steps is not None
    if steps.count != 1 or steps.warmup_dropped or steps.first is None:
        return False
    says = any(one.values.get("log_interval") == str(steps.first) for one in case.evidence.plans)
    return says and steps.first < threshold("R18", "least_steps")


def timed_at_level_2(case: RunCase) -> Origin | None:
    """Where Megatron-LM's timers of level 2 are seen, or asked for by the arguments that the log prints or the launch file;
    None where they are not."""
    found = next((timer.origin for timer in case.evidence.timers if timer.level == 2), None)
    if found is not None:
        return found
    asked = next((one.origin for one in case.evidence.plans if one.values.get("timing_log_level") == "2"), None)
    if asked is not None:
        return replace(asked, text="timing_log_level 2")
    return case.expectation.level_2_timers if case.expectation is not None else None


def _steps_of_mean(case: RunCase) -> float | None:
    """Steps that the last mean from the start is over; None where nothing says it."""
    line = next((one for one in reversed(case.evidence.steps) if one.running_mean), None)
    if line is None:
        return None
    if line.step is not None:
        return float(line.step)
    return line.elapsed / line.seconds if line.elapsed and line.seconds else None


def other_release(case: RunCase) -> Cause | Cleared | None:
    """R15: the same plan ran faster before, and versions or resolved arguments differ."""
    before = case.earlier
    if before is None or before.step_seconds is None or case.step_seconds is None:
        return None
    if case.step_seconds < before.step_seconds * (1 + threshold("R15", "growth")):
        return Cleared("no slower than before")
    differing = _differing(before, case)
    if not differing:
        return Cleared("nothing that the logs print differs")
    words = "it ran faster before, and this differs: " + "; ".join(f"{name} {old} -> {new}" for name, old, new in differing[:3])
    return caused(
        case,
        "R15",
        words,
        LIKELY,
        figures=f"{before.step_seconds:.4g} s before, {case.step_seconds:.4g} s now",
        remedy="go back one of them at a time",
        seconds=case.step_seconds - before.step_seconds,
        step_after=before.step_seconds,
    )


QUIET = (
    *("path", "dir", "save", "load", "log", "port", "rank", "seed", "addr", "name"),
    *("tensorboard", "wandb", "iters", "interval"),
)
"""Words in names of arguments that change no speed."""


def _differing(before: RunCase, now: RunCase) -> list[tuple[str, str, str]]:
    """(name, before, now) of versions first, then of printed arguments."""
    old, new = ([fact.value for fact in run.evidence.links if fact.kind == "version"][-1:] for run in (before, now))
    differing = [("NCCL", was, is_now) for was, is_now in zip(old, new, strict=False)]
    for one, other in zip(before.evidence.plans[:1], now.evidence.plans[:1], strict=False):
        keys = sorted(key for key in {*one.values, *other.values} if not any(word in key for word in QUIET))
        differing += [(key, one.values.get(key, "not given"), other.values.get(key, "not given")) for key in keys]
    return [one for one in differing if one[1] != one[2]]
