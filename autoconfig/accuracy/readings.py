"""Figures that the project holds itself to, read in the way that is hardest on us: printed beside, never in their place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from autoconfig.accuracy.bands import POOLED, ROWS_OF_A_CLASS, Coverage, banded, coverage
from autoconfig.accuracy.groups import Figures, figures_of
from autoconfig.accuracy.runs import Constants, Predicted, predict_runs, predictions, publisher_of
from autoconfig.calibration.observe import Run, observe, published_runs, useful_for_calibration
from autoconfig.planning.progress import Progress
from autoconfig.runs.sources import PublishedSource, harder_readings, source_of, sources
from autoconfig.training.confidence import MOE

ONE_PUBLISHER = "{}'s tables of all GPUs left out together, constants and bands"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One figure, as it is held to and read harder; shares."""

    name: str
    rows: int
    usual: float
    harder: float
    why: str


def readings(progress: Progress | None = None) -> list[Reading]:
    """Every harder reading. Fits the calibration without NVIDIA, and without what the MoE rows set (some seconds)."""
    if progress is not None:
        progress("harder readings")
    return list(_readings())


@cache
def _readings() -> tuple[Reading, ...]:
    return (*_step_times(), *_bands())


def _bar_sources() -> dict[str, PublishedSource]:
    """Bar -> the sources that it is about."""
    return {source.bar.name: source for source in sources() if source.bar is not None}


def _large(predicted: Sequence[Predicted], source: PublishedSource, also: str = "") -> Figures:
    """Errors of large runs of these sources and of those that `also` names."""
    mine = [p for p in predicted if p.run.large and (source_of(p.source) is source or re.fullmatch(also, p.source))]
    return figures_of([(p.run.case.id, p.ratio) for p in mine])


def _step_times() -> Iterator[Reading]:
    by_model, by_publisher = predictions("model"), predictions("publisher")
    for name, source in _bar_sources().items():
        if source.publisher:
            usual, harder = _large(by_model, source), _large(by_publisher, source)
            why = ONE_PUBLISHER.format(source.publisher)
            yield Reading(name=f"Step time, {name}", rows=usual.rows, usual=usual.mean, harder=harder.mean, why=why)
    for reading in harder_readings():
        source = _bar_sources()[reading.bar]
        harder = _large(_without(reading.zero, source) if reading.zero else by_model, source, reading.also)
        usual = _large(by_model, source)
        name = f"Step time, {reading.bar}"
        yield Reading(name=name, rows=harder.rows, usual=usual.mean, harder=harder.mean, why=reading.why)


def _without(names: Sequence[str], source: PublishedSource) -> list[Predicted]:
    """Large runs of the source, its model left out, where these times of the software are zero and the calibration is fitted
    again."""

    def plain(run: Run) -> Run:
        scenario = run.case.scenario
        zero: dict[str, Any] = dict.fromkeys(names, 0.0)
        stack = replace(scenario.software, time=replace(scenario.software.time, **zero))
        return replace(run, case=replace(run.case, scenario=replace(scenario, software=stack)))

    runs = published_runs().runs
    observed = tuple(observe(plain(run)) for run in runs if useful_for_calibration(run))
    mine = [plain(run) for run in runs if source_of(run.case.source) is source and run.large]
    return predict_runs(mine, Constants("model", observed=observed))


def _bands() -> Iterator[Reading]:
    by_table = coverage(banded())
    by_publisher = {line.level: line for line in coverage(banded("publisher"), publisher_of)}
    publishers = " and ".join(sorted({source.publisher for source in sources()} - {""}))
    for line in by_table:
        if line.level in (POOLED, MOE):
            yield _inside(line, by_publisher[line.level].inside, ONE_PUBLISHER.format(publishers))
    for line in by_table:
        if line.level == POOLED or line.rows >= ROWS_OF_A_CLASS:
            yield _inside(line, line.inside_by_row, "every row counts the same, not every source")


def _inside(line: Coverage, harder: float, why: str) -> Reading:
    return Reading(name=f"90 % bands: {line.level}, inside", rows=line.rows, usual=line.inside, harder=harder, why=why)
