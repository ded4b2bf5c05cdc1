"""90 % bands whose quantiles come from the other sources, and how many left-out runs they hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from autoconfig.runs.table import cell, number
from autoconfig.training.confidence import (
    CALIBRATED,
    CLASSES,
    MAX_GPUS_OF_ONE_NODE,
    MIN_SOURCES,
    NO_RUN,
    NO_RUN_MOE,
    ONE_NODE,
    PART,
    RELATED,
    RELIABLE_ROWS,
    SMALL,
    Band,
    band_of,
)
from validation.sheets.figures import Line
from validation.sheets.strangers import strangers, timed
from validation.sheets.training import (
    Constants,
    LeaveOut,
    Predicted,
    paper_of,
    predict_runs,
    predictions,
    publisher_of,
    unseen_runs,
)
from validation.sources import band_bars, source_of

POOLED = "pooled"
NO_RUN_KINDS = {NO_RUN: False, NO_RUN_MOE: True}
"""Class -> whether it is of mixtures of experts."""
UPPER = 0.95
"""Share of runs below the upper end of a band; as many lie above its lower end."""
LARGE_RUNS = (CALIBRATED, RELATED)
EVERY_DENSE = (*LARGE_RUNS, ONE_NODE, PART, SMALL)
EVIDENCE = {CALIBRATED: LARGE_RUNS, RELATED: LARGE_RUNS, ONE_NODE: EVERY_DENSE, PART: (ONE_NODE, PART), SMALL: EVERY_DENSE}
"""Class -> classes whose runs make its band; a class that is not named stands alone. The two classes of large runs scatter
alike; small and short runs borrow from them, because one paper holds nearly all of their rows. What a part of a node does is
known of one node alone, strangers' runs with it: slow hosts, short steps."""


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """How many runs of a class lie inside bands that know other sources only."""

    level: str
    rows: int
    sources: int
    inside: float
    """Share, every source with equal weight."""
    half_width: float
    """Median of half of (p95 - p5), every row with equal weight."""
    half_width_by_source: float
    inside_by_weight: float
    """Share, every unit that is left out with the weight of its runs, n / (n + RELIABLE_ROWS): of a unit of one run the share
    is 0 or 1 and says little."""


def weighted_quantile(values: npt.ArrayLike, weights: npt.ArrayLike, share: float) -> float:
    """The value below which `share` of the weight lies; between values linear in the weight's midpoints."""
    data, weight = np.asarray(values, float), np.asarray(weights, float)
    order = np.argsort(data, kind="stable")
    data, weight = data[order], weight[order]
    middle = (np.cumsum(weight) - weight / 2) / weight.sum()
    return float(np.interp(share, middle, data))


def banded(leave_out: LeaveOut = "source") -> list[Predicted]:
    """The published runs whose errors make bands, with constants that have not seen them."""
    return [p for p in predictions(leave_out) if "bands" in source_of(p.source).use]


class Scattered(Protocol):
    """A run beside a prediction."""

    @property
    def source(self) -> str: ...
    @property
    def log_ratio(self) -> float:
        """log(measured / predicted step time)."""


def band_from(predicted: Sequence[Scattered]) -> Band:
    """Where a run of a source that nobody has seen lies: the prediction interval of a random-effects model (Higgins, Thompson
    and Spiegelhalter 2009, J. R. Stat. Soc. A 172, section 2.2) of x = log(measured / predicted), with a scatter for each side:

        ln p5, ln p95 = m -+ t sqrt(v + 2 e),   v = 2 sum w (x - m)^2 over the runs on that side,
        e = K / (K - 1) sum over sources W^2 (mean of the source - their mean)^2

    w: weight of a run, RELIABLE_ROWS, sum 1; m: weighted median; W: weight of a source; e: variance of the middle, counted by
    source, because runs of one source err together. v falls short of a new run's scatter by e (the middle was fitted), and the
    middle itself is unsure by e. t: quantile UPPER of Student's distribution with K - 1 degrees of freedom, K = 1 / sum W^2
    sources in effect. One source has no scatter between sources: its own quantiles.
    """
    names, member = np.unique([p.source for p in predicted], return_inverse=True)
    x = np.array([p.log_ratio for p in predicted])
    w = 1.0 / (np.bincount(member)[member] + RELIABLE_ROWS)
    w /= w.sum()
    if len(names) == 1:
        low, high = (weighted_quantile(x, w, share) for share in (1 - UPPER, UPPER))
    else:
        source = np.bincount(member, w)
        effective = 1.0 / float((source**2).sum())
        middle = weighted_quantile(x, w, 0.5)
        means = np.bincount(member, w * x) / source
        unsure = effective / (effective - 1) * float((source**2 * (means - np.average(means, weights=source)) ** 2).sum())
        t = float(stdtrit(effective - 1, UPPER))
        below, above = (2 * float((w * side**2).sum()) for side in (np.minimum(x - middle, 0), np.maximum(x - middle, 0)))
        low, high = middle - t * np.sqrt(below + 2 * unsure), middle + t * np.sqrt(above + 2 * unsure)
    return Band(p5=float(np.exp(low)), p95=float(np.exp(high)), rows=len(predicted), sources=tuple(map(str, names)))


def bands_of(predicted: Sequence[Predicted], one_node: Sequence[Scattered] = ()) -> dict[str, Band]:
    """A band per class that has MIN_SOURCES sources of evidence, and the pooled one; `one_node`: strangers' runs of
    one node, whose long tail asks for quantiles."""
    bands = {POOLED: band_from(predicted)}
    for level in CLASSES:
        rows = [p for p in predicted if p.level in EVIDENCE.get(level, (level,))]
        if len({p.source for p in rows}) >= MIN_SOURCES:
            bands[level] = quantiles_of([*rows, *one_node]) if level == PART else band_from(rows)
    return bands


@dataclass(frozen=True, kw_only=True)
class Stranger:
    """A run of a publisher or with software that nothing was fitted to."""

    source: str
    log_ratio: float
    moe: bool
    gpus: int


@cache
def of_strangers() -> tuple[Stranger, ...]:
    """Return the runs of strangers_training.csv and unseen_measurements.csv beside what their publisher has not moved."""
    runs = []
    for row, _, seconds, measured in timed(strangers(facts=True)):
        source, gpus = f"{cell(row, 'source')}, {cell(row, 'gpu')}", int(number(row, "gpus") or 1)
        error = float(np.log(measured / seconds))
        runs.append(Stranger(source=source, log_ratio=error, moe=bool(cell(row, "experts")), gpus=gpus))
    for seen in predict_runs(unseen_runs(), Constants("publisher")):
        scenario = seen.run.case.scenario
        gpus = scenario.cluster.num_gpus
        runs.append(Stranger(source=seen.source, log_ratio=seen.log_ratio, moe=scenario.model.is_moe, gpus=gpus))
    return tuple(runs)


def strangers_of_one_node() -> list[Stranger]:
    """Return the runs of strangers that belong to ONE_NODE and PART."""
    return [run for run in of_strangers() if not run.moe and run.gpus <= MAX_GPUS_OF_ONE_NODE]


def quantiles_of(runs: Sequence[Scattered]) -> Band:
    """Return the band between the weighted 5 % and 95 % quantiles, sources weighing as in `band_from`: strangers' errors have a
    long tail to one side (real data, slow hosts), whose square would say nothing of the other runs."""
    count = Counter(run.source for run in runs)
    weights = [1 / (count[run.source] + RELIABLE_ROWS) for run in runs]
    low, high = (weighted_quantile([run.log_ratio for run in runs], weights, share) for share in (1 - UPPER, UPPER))
    return Band(p5=float(np.exp(low)), p95=float(np.exp(high)), rows=len(runs), sources=tuple(sorted(count)))


def stranger_bands() -> dict[str, Band]:
    """Return the bands of NO_RUNS."""
    return {name: quantiles_of([run for run in of_strangers() if run.moe == moe]) for name, moe in NO_RUN_KINDS.items()}


def stranger_lines() -> Iterator[Line]:
    """Yield how many strangers' runs lie in the bands that other sources make, and half the bands' width; of PART, whose
    evidence is of one node, every source with equal weight, as in `Coverage`."""
    low, high = band_bars()["class_inside"]
    kinds: dict[str, tuple[list[Scattered], Callable[[str], str]]] = {
        name: ([run for run in of_strangers() if run.moe == moe], str) for name, moe in NO_RUN_KINDS.items()
    }
    kinds[PART] = [*(p for p in banded() if p.level in EVIDENCE[PART]), *strangers_of_one_node()], paper_of
    for name, (runs, apart) in kinds.items():
        held = list(_held_by_source(runs, apart))
        shares = [_mean(own) for own in held] if name == PART else [one for own in held for one in own]
        yield Line(name=f"90 % bands: {name}, inside", rows=len(runs), reached=_mean(shares), least=low, most=high)
        whole = quantiles_of(runs)
        yield Line(name=f"90 % bands: {name}, half-width", rows=len(runs), reached=(whole.p95 - whole.p5) / 2)


def _held_by_source(runs: Sequence[Scattered], apart: Callable[[str], str]) -> Iterator[list[bool]]:
    """Yield of each source whether its runs lie in the band of the sources that `apart` names otherwise."""
    for source in sorted({run.source for run in runs}):
        band = quantiles_of([run for run in runs if apart(run.source) != apart(source)])
        yield [_holds(band, run) for run in runs if run.source == source]


def _holds(band: Band, run: Scattered) -> bool:
    return bool(band.p5 <= np.exp(run.log_ratio) <= band.p95)


Held = tuple[Predicted, bool, float]
"""A run, whether it lies inside its band, half of the band."""


def coverage(
    predicted: Sequence[Predicted],
    apart: Callable[[str], str] = paper_of,
    unit: Callable[[str], str] = str,
    one_node: Sequence[Scattered] = (),
) -> list[Coverage]:
    """Pooled first, then by class. The bands of a source come from sources that `apart` names otherwise; shares are counted by
    what `unit` names (the sources themselves)."""
    held: list[Held] = []
    for source in dict.fromkeys(p.source for p in predicted):
        others = [run for run in one_node if paper_of(run.source) != apart(source)]
        bands = bands_of([p for p in predicted if apart(p.source) != apart(source)], others)
        for p in (p for p in predicted if p.source == source):
            band = band_of(p.level, bands)
            held.append((p, _holds(band, p), (band.p95 - band.p5) / 2))
    by_level = {level: [one for one in held if one[0].level == level] for level in CLASSES}
    return [_count(level, own, unit) for level, own in ({POOLED: held} | by_level).items() if own]


def _count(level: str, held: Sequence[Held], unit: Callable[[str], str]) -> Coverage:
    inside: dict[str, list[bool]] = {}
    for p, holds, _ in sorted(held, key=lambda one: unit(one[0].source)):
        inside.setdefault(unit(p.source), []).append(holds)
    shares, counts = [_mean(own) for own in inside.values()], [len(own) for own in inside.values()]
    widths = [width for *_, width in held]
    return Coverage(
        level=level,
        rows=len(held),
        sources=len(inside),
        inside=_mean(shares),
        half_width=float(np.median(widths)),
        half_width_by_source=weighted_quantile(widths, [1 / len(inside[unit(p.source)]) for p, *_ in held], 0.5),
        inside_by_weight=float(np.average(shares, weights=[count / (count + RELIABLE_ROWS) for count in counts])),
    )


@cache
def covered(left_out: Literal["source", "publisher"]) -> tuple[Coverage, ...]:
    """Return the coverage of the runs whose errors make bands: constants and bands know nothing of the run's source, or of its
    publisher, which then counts once, however many tables it has."""
    apart, unit = (paper_of, str) if left_out == "source" else (publisher_of, publisher_of)
    return tuple(coverage(banded(left_out), apart, unit, strangers_of_one_node()))


def band_lines(left_out: Literal["source", "publisher"]) -> Iterator[Line]:
    """Yield what bands are held to (validation/sources.toml, bands): shares inside, and the median half-width."""
    bars = band_bars()
    for line in covered(left_out):
        pooled = line.level == POOLED
        low, high = bars["pooled_inside" if pooled else "class_inside"]
        inside = line.inside if left_out == "source" else line.inside_by_weight
        name = f"90 % bands without the run's {left_out}: {line.level}"
        if pooled or (left_out == "source" and line.rows >= bars["rows_of_a_class"] and line.level != PART):
            yield Line(name=f"{name}, inside", rows=line.rows, reached=inside, least=low, most=high)
        if pooled:
            most = bars["half_width"][left_out]
            yield Line(name=f"{name}, median half-width", rows=line.rows, reached=line.half_width, most=most)
            if left_out == "source":
                name += ", median half-width with sources equal"
                yield Line(name=name, rows=line.rows, reached=line.half_width_by_source, most=most)


def _mean(values: Iterable[float]) -> float:
    return float(np.mean([float(value) for value in values]))
