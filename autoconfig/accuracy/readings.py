"""Figures that the project holds itself to, read in the way that is hardest on us: printed beside, never in their place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from autoconfig.accuracy.bands import POOLED, Coverage, coverage, of_training
from autoconfig.accuracy.groups import figures
from autoconfig.accuracy.lines import ROWS_OF_A_CLASS
from autoconfig.accuracy.runs import (
    Constants,
    Predicted,
    Progress,
    predict_runs,
    predictions,
    published_runs,
    publisher_of,
)
from autoconfig.calibration.observe import Run, observe, useful_for_calibration
from autoconfig.training.confidence import MOE

ONE_PUBLISHER = "NVIDIA's tables of all GPUs left out together, constants and bands"
TABLES = (
    ("NVIDIA dense FP8, H100", r"^NVIDIA H100 dense FP8$", False),
    ("NVIDIA dense FP8, B200 and GB200", r"^NVIDIA G?B200 dense FP8$", False),
    ("NVIDIA mixture of experts", r"^NVIDIA \S+ MoE (FP8|BF16)$", True),
)
"""(name, pattern of the source, mixture of experts) of the lines that rest on NVIDIA's tables (data/accuracy_bars.json)."""
FINE_TUNING = r"^NVIDIA H100 dense FP8( SFT| LoRA)?$"


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


def _mean(predicted: Sequence[Predicted], pattern: str, moe: bool = False) -> tuple[int, float]:
    """(rows, mean absolute error) of large runs of these sources."""
    mine = [p for p in predicted if re.search(pattern, p.source) and p.run.large and p.run.case.scenario.model.is_moe == moe]
    found = figures(mine)
    return (0, float("nan")) if found is None else (found.rows, found.mean)


def _step_times() -> Iterator[Reading]:
    by_model, by_publisher = predictions("model"), predictions("publisher")
    for name, pattern, moe in TABLES:
        rows, usual = _mean(by_model, pattern, moe)
        harder = _mean(by_publisher, pattern, moe)[1]
        yield Reading(name=f"Step time, {name}", rows=rows, usual=usual, harder=harder, why=ONE_PUBLISHER)
    rows, harder = _mean(by_model, FINE_TUNING)
    why = "with NVIDIA's SFT and LoRA rows on H100, whose packed sequences have lengths that are not published"
    yield Reading(name=f"Step time, {TABLES[0][0]}", rows=rows, usual=_mean(by_model, TABLES[0][1])[1], harder=harder, why=why)
    rows, usual = _mean(by_model, *TABLES[2][1:])
    why = (
        "host time of experts and their overlap at zero, calibration fitted again: both were read off these tables (host: "
        "Qwen3-30B on B200 FP8 and Qwen3-235B on H100 BF16 at tp 4; overlap: Megatron-LM's moe-modelzoo, Qwen3)"
    )
    yield Reading(name=f"Step time, {TABLES[2][0]}", rows=rows, usual=usual, harder=_without_moe_constants(), why=why)


def _without_moe_constants() -> float:
    """Mean error of NVIDIA's mixtures of experts, the model left out, where what these rows set is zero."""
    runs = published_runs().runs
    observed = tuple(observe(_plain(run)) for run in runs if useful_for_calibration(run))
    mine = [_plain(run) for run in runs if re.search(TABLES[2][1], run.case.source) and run.large]
    return _mean(predict_runs(mine, Constants("model", observed=observed)), *TABLES[2][1:])[1]


def _plain(run: Run) -> Run:
    scenario = run.case.scenario
    time = replace(scenario.software.time, moe_host_seconds=0.0, expert_host_seconds=0.0, moe_overlap_interleaved_share=0.0)
    stack = replace(scenario.software, time=time)
    return replace(run, case=replace(run.case, scenario=replace(scenario, software=stack)))


def _bands() -> Iterator[Reading]:
    by_table = coverage([p for p in predictions("source") if of_training(p.source)])
    without = coverage([p for p in predictions("publisher") if of_training(p.source)], publisher_of)
    by_publisher = {line.level: line for line in without}
    for line in by_table:
        if line.level in (POOLED, MOE):
            yield _inside(line, by_publisher[line.level].inside, ONE_PUBLISHER)
    for line in by_table:
        if line.level == POOLED or line.rows >= ROWS_OF_A_CLASS:
            yield _inside(line, line.inside_by_row, "every row counts the same, not every source")


def _inside(line: Coverage, harder: float, why: str) -> Reading:
    return Reading(name=f"90 % bands: {line.level}, inside", rows=line.rows, usual=line.inside, harder=harder, why=why)
