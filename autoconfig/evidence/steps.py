"""How long a step takes, from the lines that a log prints of steps: warm-up, median, spread, drift, growth, pauses.

Bounds are those of 723 series of iteration times in Megatron-LM's golden values: the first iteration takes 7 x the median,
warm-up 2 iterations (13 at the 90th percentile), then the robust deviation is 1.7 %, and the drift between halves below 1.5 %
in nine of ten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from autoconfig.evidence.records import Pause, StepLine, StepStatistics

SETTLED, IN_A_ROW = 0.10, 3
"""Warm-up ends with so many steps in a row that are at most this much above the median of the last three quarters."""
GROWTH = 0.05
ENDS = 0.1
"""Share of the steps at either end of a window that say how long a step was at its start, three of them where there are six."""
LEAST_RISE = 0.25
"""Of the mean rise from step to step, below which a few steps do not grow but one stands out."""
JUMP = 0.5
"""Absolute deviations from two levels over those from a straight line, below which growth is one jump."""
RISING = 0.75
"""Share of all pairs of steps of which the later one is slower, from which on steps grow and do not only scatter."""
FIRST_STEPS = 2
"""Steps of a run that are warm-up wherever others are to be had."""
COUNTED = frozenset(("nemo-rl",))
"""Formats that print no number of the step: theirs is the place in the log, whose first step may be any."""
FEW = 8
"""Steps; fewer grow only where each is slower than the one before."""
PAUSE, PAUSE_SD = 1.2, 6.0
"""A pause is so many times the median, and so many robust deviations above it."""
LEAST_CLOCK_S = 20.0
"""Seconds between the first and last time of day from which on its rounding to a second does not matter."""
SINGLE = 0.75
"""Share of the time between lines in one gap, from which on it is no usual one: a queue, a restart, a look at the run."""
QUEUE_S = 300.0
"""Seconds in no step before a slower line, from which on the program may have begun again there."""
ALIKE = 1.5
"""Longest over shortest of gaps that one thing makes at a period: a save, an evaluation; queues differ by more."""
RANKS_APART = 3.0
"""Intervals by which lines of ranks that print into one log are apart at most; a step that goes back further is a new start."""
_MAD_TO_SD = 1.4826
_MOST_PAIRED = 400


@dataclass(frozen=True, kw_only=True)
class _Point:
    step: float
    seconds: float
    at: float | None
    interval: float
    """Steps that the line is a mean of."""
    start: int = 0
    """How often the program had begun again before."""


def statistics(lines: Iterable[StepLine]) -> StepStatistics | None:
    """Return the statistics of the lines of one file; None where none of them says how long a step takes, or where a few
    figures that stand for no step differ: before and after, two machines, two runs."""
    lines = list(lines)
    starts, of_means, by_clock = _series(lines)
    if not starts:
        return None
    points, settled = _chain(starts)
    numbered, many = points[0].step >= 0, len(points) >= FEW
    counted = lines[0].format in COUNTED
    ordered = many or (numbered and not counted)
    seconds, values = _seconds(points), _seconds(settled)
    if not numbered and not many and seconds.max() > (1 + SETTLED) * seconds.min():
        return None
    median = float(np.median(values))
    course = _Course.of(np.array([point.step for point in settled]), values, median, ordered=ordered)
    sd = _MAD_TO_SD * float(np.median(np.abs(values - course.level))) / median
    pauses = _pauses(settled, values - course.level, median, sd)
    return StepStatistics(
        count=len(settled),
        steps=sum(point.interval for point in settled),
        first=_number(settled[0].step),
        last=_number(settled[-1].step),
        warmup_dropped=len(points) - len(settled),
        warmup_s=_longest_warmup(points, settled, median),
        median_s=median,
        p10=float(np.percentile(values, 10)),
        p90=float(np.percentile(values, 90)),
        robust_sd=sd,
        drift=_drift(values) if ordered else 0.0,
        slope=course.slope,
        growing=course.growing,
        rising=ordered and _rising_evenly(values),
        start_s=course.start_s,
        growth_s=course.growth_s,
        jump=None if course.jump is None else _number(settled[course.jump].step),
        jump_s=course.jump_s,
        starts=_begun_again(settled),
        by_clock=by_clock,
        warming_up=not counted and all(0 <= point.step <= FIRST_STEPS for point in points),
        mean_s=float(np.average(seconds, weights=np.array([point.interval for point in points]))),
        mean_includes_warmup=of_means,
        pauses=pauses,
        pause_period=_period(pauses, settled[0].interval),
        outside_s=_outside(settled),
        resolution=_resolution(points, median, of_means=of_means, by_clock=by_clock),
    )


def _begun_again(points: Sequence[_Point]) -> tuple[float, ...]:
    """Numbers of the first steps of each further start of the program."""
    return tuple(later.step for before, later in pairwise(points) if later.start != before.start)


def _seconds(points: Sequence[_Point]) -> np.ndarray:
    return np.array([point.seconds for point in points])


def _drift(values: np.ndarray) -> float:
    """Median of the later half over that of the earlier one, less 1; 0 for a single step."""
    half = len(values) // 2
    return float(np.median(values[half:]) / np.median(values[:half])) - 1 if half else 0.0


@dataclass(frozen=True, kw_only=True)
class _Course:
    """How the steps of a run change within it: not at all, by a slope, or by one jump."""

    values: np.ndarray
    level: np.ndarray
    """Seconds of each step without scatter."""
    slope: float = 0.0
    growing: bool = False
    jump: int | None = None
    """Place of the first step of the higher level."""

    @classmethod
    def of(cls, steps: np.ndarray, values: np.ndarray, median: float, *, ordered: bool) -> _Course:
        """Find the course; `ordered`: the steps' order is known."""
        level = np.full(len(values), median)
        if not ordered:
            return cls(values=values, level=level)
        jump = _jump(steps, values)
        if jump is not None:
            level = np.repeat([np.median(values[:jump]), np.median(values[jump:])], [jump, len(values) - jump])
            return cls(values=values, level=level, slope=float(level[-1] / level[0]) - 1, growing=True, jump=jump)
        slope, growing = _growth(steps, values, median)
        if growing:
            level = median * (1 + slope * (steps - np.median(steps)) / max(1.0, float(np.ptp(steps))))
        return cls(values=values, level=level, slope=slope, growing=growing)

    @property
    def start_s(self) -> float:
        """Seconds of a step at the beginning."""
        return float(np.median(self.values[: self.jump or _end(len(self.values))]))

    @property
    def growth_s(self) -> float:
        """Seconds of the mean step beyond those at the beginning."""
        return max(0.0, float(np.mean(self.level if self.growing else self.values)) - self.start_s)

    @property
    def jump_s(self) -> float:
        return 0.0 if self.jump is None else float(self.level[-1] - self.level[0])


def _resolution(points: Sequence[_Point], median: float, *, of_means: bool, by_clock: bool) -> float:
    """Relative rounding: of a mean's digits, or of a clock that prints whole seconds."""
    if by_clock:
        return 1.0 / (median * float(np.median([point.interval for point in points])))
    return 0.0005 * median if of_means and points[0].interval == 1 and len(points) == 1 else 0.0


def _number(step: float) -> int | None:
    return int(step) if step >= 0 else None


def _series(lines: list[StepLine]) -> tuple[list[list[_Point]], bool, bool]:
    """Return (one point for each step of each start of the program, whether only means over the warm-up are printed, whether
    the clock between lines is all that says a step)."""
    timed = [(line, line.seconds) for line in lines if line.seconds is not None]
    single = [line for line, _ in timed if not line.running_mean]
    if single:
        most = Counter(line.format for line in single).most_common(1)[0][0]
        last = _of_last_batch([line for line in single if line.format == most])
        return _with_intervals([(line, line.seconds or 0.0) for line in last]), False, False
    if by_difference := _from_means([line for line, _ in timed if line.step is not None]):
        return _with_intervals(by_difference), False, False
    if by_clock := _from_clock(lines):
        return _with_intervals(by_clock), False, True
    return _with_intervals(timed[-1:]), True, False


def _of_last_batch(lines: list[StepLine]) -> list[StepLine]:
    """Lines with the batch that the run ends with: a batch that is ramped up makes other steps."""
    last = lines[-1].batch_size
    return lines if last is None else [line for line in lines if line.batch_size in (None, last)]


def _from_means(lines: list[StepLine]) -> list[tuple[StepLine, float]]:
    """Steps from running means: mean times steps is the time since the start."""
    steps_of = []
    for before, line in pairwise(lines):
        steps = (line.step or 0) - (before.step or 0)
        if steps > 0 and line.rank == before.rank and line.start == before.start:
            taken = (line.seconds or 0.0) * (line.step or 0) - (before.seconds or 0.0) * (before.step or 0)
            if taken > 0:
                steps_of.append((line, taken / steps))
    return steps_of


def _from_clock(lines: list[StepLine]) -> list[tuple[StepLine, float]]:
    """Steps from times of day, or from the time since the start."""
    found = []
    for before, line in pairwise([line for line in lines if line.step is not None]):
        now, then = (line.at, before.at) if line.at is not None else (line.elapsed, before.elapsed)
        steps = (line.step or 0) - (before.step or 0)
        if now is not None and then is not None and steps > 0 and now > then and line.start == before.start:
            found.append((line, (now - then) / steps))
    return found


def _with_intervals(lines: list[tuple[StepLine, float]]) -> list[list[_Point]]:
    """The points of each start in order; of the ranks that print a step the slowest counts."""
    starts: dict[tuple[int, int], dict[float, _Point]] = {}
    for number, ((line, seconds), start) in enumerate(zip(lines, _starts_of([line for line, _ in lines]), strict=True)):
        step = float(line.step) if line.step is not None else -1e9 + number
        now = starts.setdefault(start, {})
        old = now.get(step)
        if old is None or old.seconds < seconds:
            now[step] = _Point(step=step, seconds=seconds, at=line.at, interval=1.0)
    in_order = [[point for _, point in sorted(starts[start].items())] for start in sorted(starts)]
    gaps = [later.step - before.step for points in in_order for before, later in pairwise(points)]
    usual = Counter(gaps).most_common(1)[0][0] if gaps else 1.0
    split = [part for points in in_order for part in _without_queues(_at_intervals(points, usual))]
    return [[replace(point, start=start) for point in points] for start, points in enumerate(split)]


def _at_intervals(points: list[_Point], usual: float) -> list[_Point]:
    gaps = [usual, *(later.step - before.step for before, later in pairwise(points))]
    return [replace(point, interval=gap) for point, gap in zip(points, gaps, strict=True)]


def _starts_of(lines: Sequence[StepLine]) -> list[tuple[int, int]]:
    """Of each line which start of the program it is of: what is printed at a start counts, and steps of a rank that go back."""
    steps = [line.step for line in lines if line.step is not None]
    gaps = [later - before for before, later in pairwise(steps) if later > before]
    ranks_mixed = len(steps) - len(set(steps)) >= 0.4 * len(steps)
    room = RANKS_APART * Counter(gaps).most_common(1)[0][0] if ranks_mixed and gaps else 0.0
    last: dict[int | None, tuple[tuple[int, int], int]] = {}
    starts = []
    for line in lines:
        (begun, again), most = last.get(line.rank, ((line.start, 0), -1))
        if line.start != begun:
            begun, again, most = line.start, 0, -1
        elif line.step is not None and line.step < most - (room if line.rank is None else 0.0):
            again, most = again + 1, -1
        last[line.rank] = ((begun, again), max(most, line.step if line.step is not None else -1))
        starts.append((begun, again))
    return starts


def _without_queues(points: list[_Point]) -> Iterable[list[_Point]]:
    """The points, parted where much time passes in no step and the next line is slower: the program has begun again there,
    but for what comes at a period."""
    if len(points) <= IN_A_ROW:
        return [points]
    usual = float(np.median([point.seconds for point in points]))
    slow = {number for number, point in enumerate(points) if point.seconds > (1 + SETTLED) * usual}
    gaps = {number: gap for number, gap in enumerate(_gaps(points), 1) if gap is not None and gap >= QUEUE_S and number in slow}
    places = list(gaps)
    apart = {later - before for before, later in pairwise(places)}
    if not places or (len(places) >= IN_A_ROW and len(apart) == 1 and max(gaps.values()) < ALIKE * min(gaps.values())):
        return [points]
    return [points[begin:end] for begin, end in pairwise([0, *places, len(points)])]


def _gaps(points: Sequence[_Point]) -> list[float | None]:
    """Seconds by the clock between each two lines that are in no step; None where one of them has no time of day, or they are
    of two starts."""
    return [
        later.at - before.at - later.seconds * later.interval
        if later.at is not None and before.at is not None and later.start == before.start
        else None
        for before, later in pairwise(points)
    ]


def _chain(starts: Sequence[list[_Point]]) -> tuple[list[_Point], list[_Point]]:
    """(the points of the run, those behind the warm-up of each start): a start that goes back takes the place of what it does
    again, unless it is shorter than that."""
    points, settled_points = starts[0], _settled(starts[0], None)
    for later in starts[1:]:
        settled = _settled(later, float(np.median([point.seconds for point in settled_points])))
        before = [point for point in settled_points if point.step < later[0].step]
        if len(before) + len(settled) >= len(settled_points):
            points = [point for point in points if point.step < later[0].step] + later
            settled_points = before + settled
    return points, settled_points


def _longest_warmup(points: Sequence[_Point], kept: Sequence[_Point], median: float) -> float:
    settled = {(point.start, point.step) for point in kept}
    slow = [point for point in points if (point.start, point.step) not in settled]
    return max(((point.seconds - median) * point.interval for point in slow), default=0.0)


def _settled(points: list[_Point], level: float | None) -> list[_Point]:
    """The points behind the warm-up; `level`: seconds of the steps of an earlier start, by which a few are judged."""
    if level is None or len(points) > IN_A_ROW:
        return points[_warmup(np.array([point.seconds for point in points])) or _first_of_few(points) :]
    return points[_leading(points, level) :]


def _leading(points: Sequence[_Point], level: float) -> int:
    """Points at the beginning that are slower than settled ones."""
    return next((number for number, point in enumerate(points) if point.seconds <= (1 + SETTLED) * level), len(points))


def _warmup(seconds: np.ndarray) -> int:
    """Steps before the first IN_A_ROW that are not slower than the settled ones; 0 where there are none such, or too few to
    tell. Steps that are faster at first are no warm-up: they grew."""
    if len(seconds) <= IN_A_ROW:
        return 0
    settled = float(np.median(seconds[len(seconds) // 4 :]))
    return _first_run(seconds / settled - 1 <= SETTLED) or 0


def _first_of_few(points: Sequence[_Point]) -> int:
    """Of so few steps that none of them says what is settled: the first step of the run, where it is slower than the others."""
    if not 1 < len(points) <= IN_A_ROW or not 0 <= points[0].step < FIRST_STEPS:
        return 0
    return int(all(points[0].seconds > (1 + SETTLED) * point.seconds for point in points[1:]))


def _first_run(good: np.ndarray) -> int | None:
    return next((at for at in range(len(good) - IN_A_ROW + 1) if good[at : at + IN_A_ROW].all()), None)


def _growth(steps: np.ndarray, values: np.ndarray, median: float) -> tuple[float, bool]:
    """(growth over the window by the median of the slopes of all pairs (Theil 1950, Sen 1968) over the median; whether it is
    one: GROWTH or more, and not from scatter alone)."""
    if len(values) < 2 or np.ptp(steps) == 0:
        return 0.0, False
    if len(values) > _MOST_PAIRED:
        chosen = np.linspace(0, len(values) - 1, _MOST_PAIRED).astype(int)
        steps, values = steps[chosen], values[chosen]
    first, second = np.triu_indices(len(values), 1)
    slopes = (values[second] - values[first]) / (steps[second] - steps[first])
    slope = float(np.median(slopes)) * float(np.ptp(steps)) / median
    rising = _rising(values) if len(values) < FEW else float(np.mean(slopes > 0)) >= RISING
    return slope, slope >= GROWTH and rising


def _end(count: int) -> int:
    """How many of so many steps are an end of the window."""
    return max(1, min(IN_A_ROW, count // 2), round(ENDS * count))


def _rising(values: np.ndarray) -> bool:
    """Whether each step is slower than the one before."""
    return len(values) > 1 and bool(np.all(np.diff(values) > 0))


def _rising_evenly(values: np.ndarray) -> bool:
    """Whether each step is slower than the one before, and the rise is not that of a single step."""
    steps = np.diff(values)
    return len(steps) > 0 and float(steps.min()) > LEAST_RISE * max(0.0, float(steps.mean()))


def _jump(steps: np.ndarray, values: np.ndarray) -> int | None:
    """Place of the first step of a higher level, GROWTH or more above the level before, where two levels describe the steps far
    better than a straight line; at least an end of the window (ENDS) on either side."""
    if len(values) < FEW:
        return None
    if len(values) > _MOST_PAIRED:
        chosen = np.linspace(0, len(values) - 1, _MOST_PAIRED).astype(int)
        found = _jump(steps[chosen], values[chosen])
        return None if found is None else int(chosen[found])
    end = _end(len(values))
    places = range(end, len(values) - end + 1)
    off = {place: _deviation(values[:place]) + _deviation(values[place:]) for place in places}
    best = min(off, key=lambda place: off[place])
    line = np.polyval(np.polyfit(steps, values, 1), steps)
    higher = float(np.median(values[best:]) / np.median(values[:best])) >= 1 + GROWTH
    return best if higher and off[best] < JUMP * float(np.abs(values - line).sum()) else None


def _deviation(values: np.ndarray) -> float:
    """Sum of absolute deviations from the median."""
    return float(np.abs(values - np.median(values)).sum())


def _pauses(points: Sequence[_Point], excess: np.ndarray, median: float, sd: float) -> tuple[Pause, ...]:
    """Steps far above the level of their time; the excess is that of all steps that a line is a mean of."""
    least = max((PAUSE - 1) * median, PAUSE_SD * sd * median)
    return tuple(
        Pause(step=_number(point.step), seconds=point.seconds, excess=float(above) * point.interval)
        for point, above in zip(points, excess, strict=True)
        if above * point.interval > least and above > 3 * sd * median and len(points) > IN_A_ROW
    )


def _period(pauses: tuple[Pause, ...], interval: float) -> float | None:
    """Steps from pause to pause where that is the same each time, to within the interval of the log."""
    steps = [pause.step for pause in pauses if pause.step is not None]
    gaps = [later - before for before, later in pairwise(steps)]
    if len(gaps) < 2:
        return None
    usual = float(np.median(gaps))
    off = [abs(gap / usual - round(gap / usual)) * usual for gap in gaps]
    return usual if max(off) <= max(interval, 0.05 * usual) * 0.999 or max(off) == 0 else None


def _outside(points: Sequence[_Point]) -> float | None:
    """Seconds a step between the time of day and the steps themselves, without single gaps, which are no usual ones; None
    without times of day. A clock that goes back counts for nothing."""
    pairs = zip(_gaps(points), pairwise(points), strict=True)
    pauses = [(gap, later) for gap, (_, later) in pairs if gap is not None and gap > -LEAST_CLOCK_S]
    pauses.sort(key=lambda one: one[0])
    while pauses and pauses[-1][0] > SINGLE * sum(gap for gap, _ in pauses) > 0:
        pauses.pop()
    clock = sum(gap + later.seconds * later.interval for gap, later in pauses)
    if clock < LEAST_CLOCK_S:
        return None
    return max(0.0, sum(gap for gap, _ in pauses)) / sum(later.interval for _, later in pauses)
