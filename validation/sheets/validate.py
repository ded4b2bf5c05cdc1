"""`autoconfig validate`: the published runs that ship with the project, predicted, and what that says about the predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from autoconfig.calibration.gpu_runs import GpuRun, gpu_runs
from autoconfig.planning.calibration_file import shipped
from autoconfig.planning.progress import Progress
from autoconfig.training.price import Band
from validation.published import published_runs
from validation.sheets.bands import (
    Coverage,
    Reading,
    band_lines,
    banded,
    bands_of,
    by_publisher,
    by_table,
    readings,
)
from validation.sheets.encoders import EncoderFigure, encoder_figures
from validation.sheets.first_plans import FirstPlan, first_plan_lines, first_plans
from validation.sheets.groups import (
    Bar,
    Decisions,
    ErrorGroup,
    LeaveOut,
    Predicted,
    bars,
    decisions,
    error_groups,
    predictions,
    resisting,
)
from validation.sheets.headlines import Headline, headlines
from validation.sheets.memory import (
    VERDICTS_RIGHT,
    MemoryGroup,
    Verdicts,
    labelled_source,
    memory_groups,
    verdicts,
)
from validation.sheets.published_plans import PlacedPlan, placed_plans
from validation.sheets.unseen import MOST, SHORT, Unseen, mean_error_of_short, unseen_runs
from validation.sources import source_of

SCHEMA_VERSION = 1
FIRST_THREE_REGRET = 0.01


@dataclass(frozen=True, kw_only=True)
class Sections:
    """What to work out besides the errors of step times."""

    decisions: bool = False
    memory: bool = False
    headlines: bool = False
    first_plans: bool = False


EVERYTHING = Sections(decisions=True, memory=True, headlines=True, first_plans=True)


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Everything that one way of leaving out says. Sections that were not asked for are empty."""

    leave_out: LeaveOut
    constants: str
    groups: tuple[ErrorGroup, ...]
    bars: tuple[Bar, ...]
    bands: dict[str, Band]
    coverage: tuple[Coverage, ...]
    resisting: tuple[Predicted, ...]
    decisions: tuple[Decisions, ...] = ()
    placed: tuple[PlacedPlan, ...] = ()
    memory: tuple[MemoryGroup, ...] = ()
    verdicts: tuple[Verdicts, ...] = ()
    headlines: tuple[Headline, ...] = ()
    first_plans: tuple[FirstPlan, ...] = ()
    readings: tuple[Reading, ...] = ()
    by_publisher: tuple[Coverage, ...] = ()
    """Bands of publishers that neither constants nor bands have seen."""
    unseen: tuple[Unseen, ...] = ()
    encoders: tuple[EncoderFigure, ...] = ()
    gpu_runs: tuple[GpuRun, ...] = ()


CONSTANTS = {
    None: "the shipped calibration, which has seen these runs (in-sample)",
    "source": "fitted without the run's source",
    "model": "fitted without the run's model in its source",
    "pair": "fitted without the run's model on its GPU",
    "release": "fitted without the run's release",
}


def validate(
    leave_out: LeaveOut = None,
    sections: Sections | None = None,
    progress: Progress | None = None,
    own_runs: Path | None = None,
) -> Validation:
    """Predict every published run with a whole plan and a time. Bands always rest on other sources, whatever is left out.

    `own_runs`: folder of `make gpu`; None: this checkout's. Raises InputError where its results cannot be read.
    """
    sections = sections or Sections()
    own = gpu_runs(own_runs)
    say: Progress = progress or (lambda text: None)
    say("published runs")
    predicted = predictions(leave_out)
    say("bands")
    unseen = banded()
    if sections.memory:
        say("memory")
    return Validation(
        leave_out=leave_out,
        constants=CONSTANTS[leave_out] + (f"; version {shipped().version}" if leave_out is None else ""),
        groups=tuple(error_groups(predicted, published_runs().dropped)),
        bars=tuple(bars(predicted, leave_out)),
        bands=bands_of(unseen),
        coverage=by_table(),
        resisting=tuple(resisting(predicted)),
        decisions=tuple(decisions(predicted, leave_out)) if sections.decisions else (),
        placed=tuple(placed_plans(leave_out, progress)) if sections.decisions else (),
        memory=tuple(memory_groups()) if sections.memory else (),
        verdicts=tuple(verdicts()) if sections.memory else (),
        headlines=tuple(headlines(progress)) if sections.headlines else (),
        first_plans=tuple(first_plans(progress)) if sections.first_plans else (),
        readings=tuple(readings(progress)) if leave_out is not None else (),
        by_publisher=by_publisher() if leave_out is not None else (),
        unseen=unseen_runs(),
        encoders=encoder_figures(),
        gpu_runs=own,
    )


@dataclass(frozen=True, kw_only=True)
class JudgedLine:
    """One line beside step times: what was asked, what was reached, both as shares."""

    name: str
    least: float | None = None
    most: float | None = None
    reached: float

    @property
    def holds(self) -> bool:
        return (self.least is None or self.reached >= self.least) and (self.most is None or self.reached <= self.most)


def judged_lines(found: Validation) -> list[JudgedLine]:
    """The lines that the sections of a validation can judge. In-sample rankings are not judged: their constants have seen the
    rows."""
    lines = [JudgedLine(**line) for line in band_lines(found.coverage, found.by_publisher)]
    if found.unseen:
        name = f"Mean error of torchtitan's runs up to {SHORT:,} tokens"
        lines.append(JudgedLine(name=name, most=MOST, reached=mean_error_of_short(found.unseen)))
    lines += [JudgedLine(**line) for line in first_plan_lines(found.first_plans)]
    if found.leave_out is not None:
        lines += _decision_lines(found.decisions)
    for line in found.verdicts:
        if line.offsets_gib:
            for what, right in (("out of memory", line.oom_right), ("ran", line.ran_right)):
                name = f"{labelled_source()}, cross-validated: {what}, right"
                lines.append(JudgedLine(name=name, least=VERDICTS_RIGHT, reached=right))
    if found.leave_out is not None and found.placed:
        near = sum(plan.holds for plan in found.placed) / len(found.placed)
        lines.append(JudgedLine(name="NVIDIA's published plans near our first", least=1.0, reached=near))
        mixtures = [plan.holds_at_memory for plan in found.placed if plan.recent_mixture]
        if mixtures:
            name = "Published mixtures of 2025 and 2026 near our first at their memory"
            lines.append(JudgedLine(name=name, least=0.8, reached=sum(mixtures) / len(mixtures)))
    return lines


def _decision_lines(found: Sequence[Decisions]) -> Iterator[JudgedLine]:
    for line in found:
        most = source_of(line.source).regret
        if most is not None:
            first, three = (f"Mean regret of the {which}, {line.source}" for which in ("first choice", "best of three"))
            yield JudgedLine(name=first, most=most, reached=line.regret_mean)
            yield JudgedLine(name=three, most=FIRST_THREE_REGRET, reached=line.regret_first_three_mean)
