"""R05, R06, R07, R11: seconds that no plan holds: the allocator, data, pauses, and a step that grows within the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from autoconfig.diagnosis import profiler_table, timers
from autoconfig.diagnosis.doubt import kinds_of
from autoconfig.diagnosis.finding import (
    CERTAIN,
    CONSISTENT,
    LIKELY,
    Cause,
    Cleared,
    Finding,
    RunCase,
    Undecided,
    caused,
    first_finding,
    threshold,
)
from autoconfig.diagnosis.rules.host import set_variable
from autoconfig.diagnosis.same_job import ALIKE, tokens_of_steps
from autoconfig.evidence.kernels import marks
from autoconfig.evidence.records import MemoryLine, Origin, Pause, StepLine, StepStatistics
from autoconfig.evidence.steps import statistics

UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"
"""torch, notes on CUDA memory management."""
GIVEN_BACK = "memory is given back to the driver and asked for again within steps"
ALLOCATOR_REMEDY = "PYTORCH_ALLOC_CONF=expandable_segments:True, a smaller micro-batch or recomputation of one module more"
KEEP_REMEDY = f"no torch.cuda.empty_cache() in the loop; {ALLOCATOR_REMEDY}"
AS_A_START = 2.0
"""Times the warm-up at the beginning of a log, below which a pause may be that of another start."""
STRETCH = 0.8
"""Share of the steps that pause which follow the one before."""


def allocator(case: RunCase) -> Finding | None:
    """R05: the caching allocator retries, or cudaMalloc and cudaFree run inside steps, or what it has reserved is all there
    is."""
    return first_finding(case, (_allocations_of_traces, _allocations_of_table, _uncached, _retries, _reserved))


def _allocations_of_traces(case: RunCase) -> Cause | None:
    """Idleness of the GPU around calls of the driver."""
    for trace in case.evidence.traces:
        lost = trace.part("allocation")
        if trace.span_s and lost >= threshold("R05", "allocation_share") * trace.step_s:
            text = f"{trace.allocations} cudaMalloc and cudaFree inside steps, {lost:.3g} s a step idle around them"
            origins = (trace.origin.saying(text),)
            return caused(case, "R05", GIVEN_BACK, CERTAIN, evidence=origins, figures=text, remedy=KEEP_REMEDY, seconds=lost)
    return None


def _uncached(case: RunCase) -> Cause | None:
    """A variable of torch that switches the allocator off."""
    if (uncached := set_variable(case, (UNCACHED,))) is None:
        return None
    words = f"nothing is cached: every tensor asks the driver for its memory ({UNCACHED}={uncached.value.strip()})"
    return caused(case, "R05", words, CERTAIN, evidence=(uncached.origin,), remedy=f"unset {UNCACHED}")


def _reserved(case: RunCase) -> Cause | Cleared | None:
    """How much of the memory the allocator has reserved."""
    full = _fullest(case)
    if full is None:
        return Cleared("no allocation inside steps") if case.evidence.traces else None
    share, origin = full
    if share < threshold("R05", "reserved_share") or not case.above_band:
        return Cleared(f"{share:.0%} of the memory reserved")
    words, figures = "the allocator has reserved all there is: retries would explain the step", f"{share:.0%} reserved"
    return caused(case, "R05", words, CONSISTENT, evidence=(origin,), figures=figures, remedy=ALLOCATOR_REMEDY)


def _retries(case: RunCase) -> Cause | None:
    """Retries of the allocator that the lines count: those that were added from line to line of a rank, or that a single line
    says. A count that stands still is of the time before."""
    by_rank: dict[tuple[str, int | None], list[MemoryLine]] = {}
    for line in case.evidence.memory:
        if line.retries is not None:
            by_rank.setdefault((line.origin.file, line.rank), []).append(line)
    if not by_rank:
        return None
    certainty, since = LIKELY, ""
    retries, line = max(((_added(lines), lines[-1]) for lines in by_rank.values()), key=lambda item: item[0])
    if retries < threshold("R05", "least_retries"):
        certainty, since = CONSISTENT, " before the first line, none since"
        retries, line = max(((lines[-1].retries or 0, lines[-1]) for lines in by_rank.values()), key=lambda item: item[0])
    if retries < threshold("R05", "least_retries") or (since and not case.above_band):
        return None
    full = _fullest(case)
    figures = f"{retries} allocation retries{since}" + (f", {full[0]:.0%} of the memory reserved" if full else "")
    words = "the allocator runs into the limit and retries: each retry frees every cached block and waits for the GPU"
    if since:
        words = "the allocator has run into the limit: more of its retries would explain the step"
    return caused(case, "R05", words, certainty, evidence=(line.origin,), figures=figures, remedy=ALLOCATOR_REMEDY)


def _added(lines: Sequence[MemoryLine]) -> int:
    """Retries within the lines of one rank; of a single line all that it counts. A process that begins again counts anew."""
    counts = [line.retries or 0 for line in lines]
    if lines[0].since_last:
        return sum(counts)
    if len(counts) == 1:
        return counts[0]
    return sum(later - count if later >= count else later for count, later in pairwise(counts))


def _allocations_of_table(case: RunCase) -> Cause | None:
    """Calls of the driver in a profiler's table that ask for memory and give it back, while the GPU does not work."""
    rows = profiler_table.allocation_rows(case.evidence)
    share, idle = profiler_table.self_share(rows), profiler_table.idle_share(case.evidence)
    lost = share if idle is None else min(share, idle)
    if lost < threshold("R05", "table_share") or sum(row.calls for row in rows) < threshold("R05", "least_retries"):
        return None
    named = dict.fromkeys(row.name for row in rows)
    text = f"{share:.0%} of the host's time in {', '.join(list(named)[:2])}"
    return caused(
        case,
        "R05",
        GIVEN_BACK,
        LIKELY if idle is None else CERTAIN,
        evidence=tuple(row.origin for row in rows[:2]),
        figures=text,
        remedy=KEEP_REMEDY,
        seconds=lost * case.step_seconds if case.step_seconds else None,
    )


def _fullest(case: RunCase) -> tuple[float, Origin] | None:
    """The largest share of a GPU's memory that is reserved, and where it stands."""
    shares = [(line.memory_share, line.origin) for line in case.evidence.steps if line.memory_share]
    limit = case.expectation.report.limit_bytes / 2**30 if case.expectation and case.expectation.report else None
    for line in case.evidence.memory:
        reserved, device = line.max_reserved_gib or line.reserved_gib, line.device_gib or limit
        if reserved and device:
            shares.append((reserved / device, line.origin))
    return max(shares, key=lambda item: item[0]) if shares else None


def data(case: RunCase) -> Finding | None:
    """R06: the step waits for its data: a timer of the batch, or idleness inside the data loader."""
    return first_finding(case, (_data_of_traces, _data_of_table, _data_of_stacks, _data_of_lines))


def _data_of_traces(case: RunCase) -> Cause | None:
    """Idleness of the GPU inside the data loader."""
    for trace in case.evidence.traces:
        lost = trace.part("data")
        if trace.span_s and lost >= threshold("R06", "share") * trace.step_s:
            text = f"idle {lost:.3g} s a step inside the data loader"
            return _waits_for_data(case, CERTAIN, lost, trace.origin.saying(text), text)
    return None


def _data_of_lines(case: RunCase) -> Cause | Cleared | None:
    """A timer of the batch, or the share of a step that lines say."""
    timer = timers.timed(case.evidence, timers.DATA)
    step = case.step_seconds or timers.timed_step(case.evidence)
    shares = [(line.fields[name], line.origin) for line in case.evidence.steps for name in DATA_FIELDS if name in line.fields]
    if timer is None and not shares:
        return Cleared("no wait for data") if case.evidence.traces else None
    if not step:
        return None
    if timer is not None:
        seconds, origin = timer.most, timer.origins[0]
    else:
        percent, origin = sorted(shares, key=lambda item: item[0])[len(shares) // 2]
        seconds = percent / 100 * step
    share = seconds / step
    least = threshold("R06", "share" if case.expectation is not None else "unmeasured_share")
    if share < least or (timer is not None and _alike_but_small(timer.least, timer.most, step)):
        return Cleared(f"{share:.1%} of the step waits for data")
    certainty = CERTAIN if share >= threshold("R06", "unmeasured_share") else LIKELY
    return _waits_for_data(case, certainty, seconds, origin, f"{seconds:.3g} s, {share:.0%} of the step")


def _data_of_table(case: RunCase) -> Cause | Cleared | None:
    """The data loader's row of a profiler's table: as long as the GPU does not work meanwhile."""
    rows, idle = profiler_table.data_rows(case.evidence), profiler_table.idle_share(case.evidence)
    if not rows:
        return None
    share = rows[0].host_total_share
    lost = share if idle is None else min(share, idle)
    if lost < threshold("R06", "unmeasured_share"):
        return Cleared(f"{lost:.1%} of the host's time waits for data")
    text = f"{share:.0%} of the host's time in {rows[0].name}"
    seconds = lost * case.step_seconds if case.step_seconds else None
    certain = idle is not None and rows[0].calls >= threshold("R18", "least_measured")  # the first batch starts the workers
    return _waits_for_data(case, CERTAIN if certain else LIKELY, seconds, rows[0].origin, text)


def _data_of_stacks(case: RunCase) -> Cause | Cleared | None:
    """The thread that trains, seen in the data loader."""
    if not case.evidence.stacks:
        return None
    seen = _seen_in(case, "data", "the data loader")
    return Cleared("no stack is in the data loader") if seen is None else _waits_for_data(case, seen[0], None, *seen[1:])


def _seen_in(case: RunCase, kind: str, where: str) -> tuple[str, Origin, str] | None:
    """(certainty, evidence, figures) where stacks of the thread that trains are inside what frames of this kind mark: at most
    of the moments at which it was seen, or for long. None where none is."""
    stacks = case.evidence.stacks
    inside = [one for one in stacks if any(marks(frame) == kind for frame in one.frames)]
    if not inside:
        return None
    timed = [one.seconds for one in stacks if one.seconds is not None]
    if timed:
        share, least = max(one.seconds or 0.0 for one in inside) / max(timed), threshold("R06", "unmeasured_share")
        figures = f"{share:.0%} of the time in {inside[0].frames[0]}"
    else:
        share, least = len(inside) / len(stacks), threshold("R06", "seen_share")
        figures = f"in {where} in {len(inside)} of {len(stacks)} stacks"
    return LIKELY if share >= least else CONSISTENT, inside[0].origin, figures


DATA_FIELDS = ("data_loading(%)", "time_metrics/data_loading(%)", "data_loading_percent")


def _alike_but_small(least: float, most: float, step: float) -> bool:
    """A timer of all ranks' batches is a broadcast in part, which waits for the last rank: below a tenth of the step it counts
    where ranks differ."""
    return most < threshold("R06", "unmeasured_share") * step and least > 0.5 * most


def _waits_for_data(case: RunCase, certainty: str, seconds: float | None, origin: Origin, figures: str) -> Cause:
    return caused(
        case,
        "R06",
        "the step waits for its data",
        certainty,
        evidence=(origin,),
        figures=figures,
        remedy="more workers, data tokenised and packed before the run; a run with --mock-data shows the step without it",
        seconds=seconds,
    )


def pauses(case: RunCase) -> Finding | None:
    """R07: steps that stand out at a period or drift, time of day that no step holds, stacks inside a save, or Python's
    garbage collector in a trace."""
    return first_finding(case, (_collections, _inside_a_save, _pauses_of_steps))


def _collections(case: RunCase) -> Cause | None:
    """Python's garbage collector in a trace."""
    for trace in case.evidence.traces:
        if trace.span_s and trace.collections_s >= threshold("R07", "collection_share") * trace.span_s:
            lost = trace.collections_s / max(1, trace.steps)
            text = f"{lost:.3g} s a step in Python's garbage collector"
            origin = trace.origin.saying(text)
            remedy = "collect on all ranks at the same steps (--manual-gc --manual-gc-interval 100)"
            words = "each rank collects Python's garbage at steps of its own, and all wait for it"
            return caused(case, "R07", words, CERTAIN, evidence=(origin,), figures=text, remedy=remedy, seconds=lost)
    return None


def _inside_a_save(case: RunCase) -> Cause | None:
    """Stacks of the thread that trains, inside a save."""
    seen = _seen_in(case, "save", "a save")
    if seen is None:
        return None
    certainty, origin, figures = seen
    _, words, remedy = AT_INTERVALS[0]
    return caused(case, "R07", words, certainty, evidence=(origin,), figures=figures, remedy=remedy, seconds=None)


@dataclass(frozen=True, kw_only=True)
class _Pauses:
    """Pauses of a run whose lines say its steps, starts of the program left out."""

    steps: StepStatistics
    hang: Pause | None
    """The one that takes most of what all take."""

    @classmethod
    def of(cls, steps: StepStatistics) -> _Pauses:
        """Leave out starts, and find the hang."""
        steps = replace(steps, pauses=_no_starts(steps))
        return cls(steps=steps, hang=None if steps.by_clock else _hang(steps))

    @property
    def excess(self) -> float:
        """Seconds a step."""
        return sum(one.excess for one in self.steps.pauses) / self.steps.steps

    @property
    def outside(self) -> float:
        """Seconds a step by the clock that lie in no step."""
        return self.steps.outside_s or 0.0

    @property
    def in_steps(self) -> bool:
        """Whether steps pause."""
        excess = threshold("R07", "pause_share") * self.steps.median_s
        return self.hang is not None or (self.excess >= excess and len(self.steps.pauses) > 1)

    @property
    def between_steps(self) -> bool:
        return self.outside >= threshold("R07", "outside_share") * self.steps.median_s

    @property
    def stretch(self) -> tuple[int, int] | None:
        """The first and last of the steps that pause, where they follow each other."""
        return _stretch(self.steps) if self.in_steps and self.hang is None else None


def _pauses_of_steps(case: RunCase) -> Cause | Cleared | None:
    """Steps that stand out, and time of day that no step holds."""
    steps = case.statistics
    if steps is None or not steps.median_s:
        return None
    few = steps.count < threshold("R07", "least_steps")
    if few and steps.outside_s is None:
        return None
    found = _Pauses.of(steps)
    if not found.in_steps and not found.between_steps:
        return None if few else Cleared("no pauses")
    lost = max(found.excess, found.outside)
    certain = lost >= threshold("R07", "certain_share") * steps.median_s
    if not certain and case.ratio is None:
        return Cleared(f"pauses take {lost / steps.median_s:.1%} of the run")
    words, remedy = _words_of_pauses(case, found)
    seconds = lost if case.step_seconds else None
    numbers = {one.step for one in steps.pauses} - {None}
    return caused(
        case,
        "R07",
        words,
        CERTAIN if certain else LIKELY,
        evidence=[line.origin for line in case.evidence.steps if line.step in numbers][:2],
        figures=_figures_of_pauses(case, found),
        remedy=remedy,
        seconds=seconds,
        step_after=case.step_seconds,
        gain_seconds=seconds,
    )


def _words_of_pauses(case: RunCase, found: _Pauses) -> tuple[str, str]:
    """Return (what pauses, remedy): as the log says it, else by a hang, a stretch of slow steps or a period."""
    hang, period = found.hang, found.steps.pause_period
    if (between := _said_between(case, found.steps, paused=found.in_steps)) is not None:
        return between
    if hang is not None:
        at = _at_interval(case, lambda interval: hang.step is not None and hang.step % interval in (0, 1))
        return at or (
            "the run hung in one step",
            "look at that time for a retried collective, storage, a node that was replaced (NCCL_DEBUG=WARN, the kernel's log)",
        )
    if found.stretch is not None:
        return (
            f"steps {found.stretch[0]:,} to {found.stretch[1]:,} are slower, and the run recovers",
            "what shared the network, storage or power in that time; clocks and heat of the nodes then",
        )
    if period and (at := _at_interval(case, lambda interval: abs(period / interval - 1) < 0.1)) is not None:
        return at
    if not found.in_steps:
        return "time passes between the steps: evaluation, checkpoints or logging", "compare with their intervals; --async-save"
    if period is None:
        words = "single steps pause at no period, as garbage collection on each rank by itself does"
        return words, "--manual-gc --manual-gc-interval 100"
    remedy = "whatever runs at that interval: logging, checkpoints, evaluation, --manual-gc"
    return f"each {period:.0f} steps one pauses", remedy


def _at_interval(case: RunCase, falls: Callable[[int], bool]) -> tuple[str, str] | None:
    """(what happens at an interval of the arguments that the log prints, remedy), of the first on which the pauses fall."""
    values = case.evidence.plans[0].values if case.evidence.plans else {}
    for key, words, remedy in AT_INTERVALS:
        text = values.get(key, "")
        if text.isdigit() and int(text) and falls(int(text)):
            return words, remedy
    return None


def _figures_of_pauses(case: RunCase, found: _Pauses) -> str:
    """Return what the pauses were computed to take, in words."""
    parts, steps = [], found.steps
    if found.hang is not None:
        parts.append(f"one step takes {_long(case, found.hang.seconds, 4)} where the others take {_long(case, steps.median_s)}")
    elif found.in_steps:
        period = f", one each {steps.pause_period:.0f} steps" if steps.pause_period else ", at no period"
        period = ", one behind the other" if found.stretch else period
        parts.append(f"{len(steps.pauses)} steps take {_long(case, steps.pauses[0].excess)} more and the like{period}")
    if found.between_steps:
        parts.append(f"{_long(case, found.outside)} a step by the clock lie in no step")
    return "; ".join(parts)


def _long(case: RunCase, seconds: float, digits: int = 3) -> str:
    """A time in words: in seconds, or where rates alone are known and no plan, in usual steps."""
    measured = case.measured
    if measured is None or not measured.relative:
        return f"{seconds:,.{digits}g} s"
    return f"{seconds / measured.step_seconds:,.3g} times the usual step"


def _no_starts(found: StepStatistics) -> tuple[Pause, ...]:
    """The pauses without a few that are as long as the run's own warm-up, or that only the clock shows: the run may have been
    started again there."""
    few = len(found.pauses) < threshold("R07", "least_pauses")
    return tuple(one for one in found.pauses if not few or (not found.by_clock and one.excess > AS_A_START * found.warmup_s))


def _hang(found: StepStatistics) -> Pause | None:
    """The one pause that takes most of what all pauses take, and a share of the run that counts; None where there is none."""
    longest = max(found.pauses, key=lambda one: one.excess, default=None)
    if longest is None or longest.seconds < threshold("R07", "hang") * found.median_s:
        return None
    if longest.excess < threshold("R07", "certain_share") * found.median_s * found.steps:
        return None
    return longest if longest.excess > 0.5 * sum(one.excess for one in found.pauses) else None


def _stretch(found: StepStatistics) -> tuple[int, int] | None:
    """The first and last of the steps that pause, where most of them follow each other: the run was slower for a while."""
    numbers = [one.step for one in found.pauses if one.step is not None]
    lines = found.steps / found.count
    following = sum(later - before <= lines for before, later in pairwise(numbers))
    if len(numbers) < threshold("R07", "least_pauses") or following < STRETCH * (len(numbers) - 1):
        return None
    return numbers[0], numbers[-1]


AT_INTERVALS = (
    ("save_interval", "checkpoints hold the run up", "--async-save, or fewer checkpoints"),
    ("eval_interval", "evaluations hold the run up", "fewer evaluations, or fewer iterations of one (--eval-iters)"),
)
"""(argument of Megatron-LM, what holds the run up at its interval, remedy)."""


BETWEEN = {
    "checkpoint": (AT_INTERVALS[0], ("save-checkpoint",)),
    "evaluation": (AT_INTERVALS[1], ("evaluate", "evaluate-time", "eval-time")),
}
"""Kind of an interlude -> (what to say of it, Megatron-LM's timers of it)."""


def _said_between(case: RunCase, found: StepStatistics, *, paused: bool) -> tuple[str, str] | None:
    """(what holds the run up, remedy) where the log itself says what it does: before most of the steps that pause, else
    anywhere between two steps."""
    named = _before_pauses(case, found) if paused else {one.kind for one in case.evidence.interludes}
    if not paused:
        named |= {kind for kind, (_, names) in BETWEEN.items() if timers.timed(case.evidence, names) is not None}
    kinds = [BETWEEN[kind][0] for kind in BETWEEN if kind in named]
    if len(kinds) > 1:
        return "checkpoints and evaluations hold the run up", "; ".join(remedy for _, _, remedy in kinds)
    return kinds[0][1:] if kinds else None


def _before_pauses(case: RunCase, found: StepStatistics) -> set[str]:
    """Kinds of interludes that stand before half of the steps that pause, or more."""
    places = [(line.origin.line or 0, line.step) for line in case.evidence.steps if line.step is not None]
    paused = {one.step for one in found.pauses}
    spans = [(before, place) for (before, _), (place, step) in pairwise(sorted(places)) if step in paused]
    counts = Counter(
        one.kind
        for before, place in spans
        for one in {one.kind: one for one in case.evidence.interludes if before < (one.origin.line or 0) < place}.values()
    )
    return {kind for kind, count in counts.items() if 2 * count >= len(paused)}


def growing(case: RunCase) -> Finding | None:
    """R11: steps get longer within the run, by a slope or by one jump, and not because they hold more tokens."""
    steps = case.statistics
    if steps is None or steps.count < 2:
        return None
    few = steps.count < threshold("R11", "few")
    rises, least = (steps.rising, threshold("R11", "few_growth")) if few else (steps.growing, threshold("R11", "growth"))
    growth = max(steps.slope, steps.drift) if steps.count == 2 else steps.slope
    if not rises or growth < least:
        return None if few else Cleared("steps stay as long as they were")
    if (by_tokens := _grows_by_tokens(case, steps, least)) is not None:
        return by_tokens
    words, remedy, certain = _words_of_growth(case, steps, growth)
    comparable = _tokens_alike(case) or case.ratio is not None
    lost, step_after = None, None
    if case.step_seconds:
        lost = steps.growth_s if steps.jump is None else steps.jump_s
        step_after = min(case.step_seconds, steps.start_s)
    return caused(
        case,
        "R11",
        words,
        CERTAIN if all((certain, comparable, not few)) else LIKELY,
        evidence=_lines_of_growth(case, steps),
        figures="" if comparable else "if its steps hold the same tokens from first to last",
        remedy=remedy,
        seconds=lost,
        step_after=step_after,
        gain_seconds=lost,
    )


def _grows_by_tokens(case: RunCase, steps: StepStatistics, least: float) -> Cleared | Undecided | None:
    """Say where steps grow with their tokens, or may; None where they do not."""
    counted = _tokens_of_lines(case)
    if counted and _grows_with_its_tokens(counted, least):
        return Cleared("steps grow with the tokens that they hold")
    if not counted and "reinforcement" in kinds_of(case.evidence):
        return Undecided("the mean length of the answers of each step: longer ones make longer steps")
    if not _tokens_alike(case) and _begins_too_fast(case, steps):
        return Undecided("the tokens of each step: a run that begins with short sequences grows to its price")
    return None


def _words_of_growth(case: RunCase, steps: StepStatistics, growth: float) -> tuple[str, str, bool]:
    """Return (what grows, remedy, whether it is one run that does): where the program began again a jump may be of other
    nodes."""
    if steps.jump is None:
        remedy = "what each step leaves behind: lists that grow, a cache, fragmented memory, logging; bisect, or restart"
        return f"the step grows within the run, by {growth:.0%}", remedy, True
    restarted = steps.jump in steps.starts
    where = "where the run was started again, at" if restarted else "at"
    words = f"the step jumps {where} iteration {steps.jump:,}, from {_long(case, steps.start_s)}, and stays longer"
    if restarted:
        return words, "compare both starts: their nodes, arguments and releases", False
    return words, "what changed at that step: a node's clock or heat, a neighbour on the network or storage; restart", True


TOKEN_FIELDS = (
    *("perf/total_num_tokens", "global_seqlen/mean", "response_length/mean", "completions/mean_length"),
    *("curriculum seqlen", "actual seqlen"),
)
"""Fields that say how many tokens a step or a sequence holds, in words of verl, TRL and Megatron-DeepSpeed."""


def _tokens_of_lines(case: RunCase) -> list[tuple[StepLine, float]]:
    """Lines with the tokens that their step holds, as they say themselves."""
    counted = tokens_of_steps(case.evidence.steps)
    for name in TOKEN_FIELDS:
        counted = counted or [(line, line.fields[name]) for line in case.evidence.steps if line.fields.get(name)]
    return counted


def _grows_with_its_tokens(counted: Sequence[tuple[StepLine, float]], least: float) -> bool:
    """Whether seconds per token do not grow where lines say the tokens of their step: longer answers make longer steps."""
    timed = [(line, line.seconds, tokens) for line, tokens in counted if line.seconds]
    if len(timed) < 2:
        return False
    steps = statistics(replace(line, seconds=seconds / tokens) for line, seconds, tokens in timed)
    return steps is not None and steps.slope < least


def _tokens_alike(case: RunCase) -> bool:
    """Whether lines say that every step holds the same tokens."""
    counted = [tokens for _, tokens in tokens_of_steps(case.evidence.steps)]
    return len(counted) > 1 and max(counted) < (1 + ALIKE) * min(counted)


def _begins_too_fast(case: RunCase, found: StepStatistics) -> bool:
    """Whether the run begins below the band of its plan and does not grow beyond it: what shorter sequences do, too."""
    e = case.expectation or case.doubted
    return (
        e is not None and case.step_seconds is not None and found.start_s < e.p5 and found.start_s * (1 + found.slope) <= e.edge
    )


def _lines_of_growth(case: RunCase, steps: StepStatistics) -> tuple[Origin, ...]:
    """The first and last line that count, or those on both sides of the jump."""
    lines = {line.step: line.origin for line in case.evidence.steps if line.step is not None}
    numbers = sorted(step for step in lines if (steps.first or 0) <= step <= (steps.last or step))
    if steps.jump in numbers[1:]:
        at = numbers.index(steps.jump)
        numbers = numbers[at - 1 : at + 1]
    return tuple(lines[step] for step in dict.fromkeys((numbers[0], numbers[-1]))) if numbers else ()
