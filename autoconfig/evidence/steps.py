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
_MAD_TO_SD = 1.4826
_MOST_PAIRED = 400


@dataclass(frozen=True, kw_only=True)
class _Point:
    step: float
    seconds: float
    at: float | None
    interval: float
    """Steps that the line is a mean of."""


def seconds_from_rates(lines: Iterable[StepLine], tokens_per_gpu: float) -> tuple[StepLine, ...]:
    """The lines with the seconds that their rate gives where they print none; `tokens_per_gpu`: of a step and GPU."""
    return tuple(
        replace(line, seconds=tokens_per_gpu / line.tokens_per_s_per_gpu)
        if line.seconds is None and line.tokens_per_s_per_gpu
        else line
        for line in lines
    )


def statistics(lines: Iterable[StepLine]) -> StepStatistics | None:
    """Of the lines of one file; None where none of them says how long a step takes, or where a few figures that stand for no
    step differ: before and after, two machines, two runs."""
    lines = list(lines)
    points, of_means = _series(lines)
    if not points:
        return None
    numbered, many = points[0].step >= 0, len(points) >= FEW
    ordered = many or (numbered and lines[0].format not in COUNTED)
    seconds = np.array([point.seconds for point in points])
    if not numbered and not many and seconds.max() > (1 + SETTLED) * seconds.min():
        return None
    weights = np.array([point.interval for point in points])
    dropped = _warmup(seconds) or _first_of_few(points)
    kept = points[dropped:]
    values, steps = seconds[dropped:], np.array([point.step for point in kept])
    median = float(np.median(values))
    slope, growing = _growth(steps, values, median) if ordered else (0.0, False)
    level = np.full(len(values), median)
    jump = _jump(steps, values) if ordered else None
    if jump is not None:
        level = np.repeat([np.median(values[:jump]), np.median(values[jump:])], [jump, len(values) - jump])
        slope, growing = float(level[-1] / level[0]) - 1, True
    elif growing:
        level = median * (1 + slope * (steps - np.median(steps)) / max(1.0, float(np.ptp(steps))))
    sd = _MAD_TO_SD * float(np.median(np.abs(values - level))) / median
    half = len(values) // 2
    pauses = _pauses(kept, values - level, median, sd)
    return StepStatistics(
        count=len(kept),
        first=_number(kept[0].step),
        last=_number(kept[-1].step),
        warmup_dropped=dropped,
        median_s=median,
        p10=float(np.percentile(values, 10)),
        p90=float(np.percentile(values, 90)),
        robust_sd=sd,
        drift=float(np.median(values[half:]) / np.median(values[:half])) - 1 if half and ordered else 0.0,
        slope=slope,
        growing=growing,
        rising=ordered and _rising_evenly(values),
        start_s=(start := float(np.median(values[: jump or _end(len(values))]))),
        growth_s=max(0.0, float(np.mean(level if jump is not None or growing else values)) - start),
        jump=_number(kept[jump].step) if jump is not None else None,
        warming_up=lines[0].format not in COUNTED and all(0 <= point.step <= FIRST_STEPS for point in points),
        mean_s=float(np.average(seconds, weights=weights)),
        mean_includes_warmup=of_means,
        pauses=pauses,
        pause_period=_period(pauses, kept[0].interval),
        outside_s=_outside(points),
        resolution=0.0005 * median if of_means and points[0].interval == 1 and len(points) == 1 else 0.0,
    )


def _number(step: float) -> int | None:
    return int(step) if step >= 0 else None


def _series(lines: list[StepLine]) -> tuple[list[_Point], bool]:
    """(one point for each step of the longest stretch without a new start, whether only means over the warm-up are printed)."""
    timed = [line for line in lines if line.seconds is not None and not line.running_mean]
    if timed:
        most = Counter(line.format for line in timed).most_common(1)[0][0]
        chosen = [line for line in timed if line.format == most]
        return _with_intervals([(line, line.seconds or 0.0) for line in _of_last_batch(chosen)]), False
    means = [line for line in lines if line.seconds is not None]
    if by_difference := _from_means([line for line in means if line.step is not None]):
        return _with_intervals(by_difference), False
    if by_clock := _from_clock(lines):
        return _with_intervals(by_clock), False
    return _with_intervals([(line, line.seconds or 0.0) for line in means[-1:]]), True


def _of_last_batch(lines: list[StepLine]) -> list[StepLine]:
    """Lines with the batch that the run ends with: a batch that is ramped up makes other steps."""
    last = lines[-1].batch_size
    return lines if last is None else [line for line in lines if line.batch_size in (None, last)]


def _from_means(lines: list[StepLine]) -> list[tuple[StepLine, float]]:
    """Steps from running means: mean times steps is the time since the start."""
    found = []
    for before, line in pairwise(lines):
        steps = (line.step or 0) - (before.step or 0)
        if steps > 0 and line.rank == before.rank:
            taken = (line.seconds or 0.0) * (line.step or 0) - (before.seconds or 0.0) * (before.step or 0)
            if taken > 0:
                found.append((line, taken / steps))
    return found


def _from_clock(lines: list[StepLine]) -> list[tuple[StepLine, float]]:
    """Steps from times of day, or from the time since the start."""
    found = []
    for before, line in pairwise([line for line in lines if line.step is not None]):
        now, then = (line.at, before.at) if line.at is not None else (line.elapsed, before.elapsed)
        steps = (line.step or 0) - (before.step or 0)
        if now is not None and then is not None and steps > 0 and now > then:
            found.append((line, (now - then) / steps))
    return found


def _with_intervals(lines: list[tuple[StepLine, float]]) -> list[_Point]:
    """Points in order: of the ranks that print a step the slowest counts, of runs that begin again the longest."""
    stretches: list[dict[float, _Point]] = [{}]
    for number, (line, seconds) in enumerate(lines):
        step = float(line.step) if line.step is not None else -1e9 + number
        now = stretches[-1]
        if now and step < max(now) and step not in now:
            stretches.append(now := {})
        old = now.get(step)
        if old is None or old.seconds < seconds:
            now[step] = _Point(step=step, seconds=seconds, at=line.at, interval=1.0)
    points = [point for _, point in sorted(max(stretches, key=len).items())]
    gaps = [later.step - before.step for before, later in pairwise(points)]
    usual = Counter(gaps).most_common(1)[0][0] if gaps else 1.0
    return [replace(point, interval=gap) for point, gap in zip(points, [usual, *gaps], strict=True)] if points else []


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
    """Seconds a step between the time of day and the steps themselves."""
    if len(points) < 2 or points[0].at is None or points[-1].at is None:
        return None
    clock = points[-1].at - points[0].at
    if clock < LEAST_CLOCK_S:
        return None
    inside = sum(point.seconds * point.interval for point in points[1:])
    return max(0.0, clock - inside) / sum(point.interval for point in points[1:])
