"""The lines beside step-time errors that the project holds itself to: bands, decisions, memory, published plans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autoconfig.accuracy.bands import POOLED, Coverage
from autoconfig.accuracy.decisions import Decisions
from autoconfig.accuracy.memory import MemoryGroup, Verdicts
from autoconfig.accuracy.plans import PlacedPlan

POOLED_INSIDE = (0.85, 0.95)
CLASS_INSIDE = (0.80, 0.97)
ROWS_OF_A_CLASS = 100
"""Classes with fewer rows are printed without a line."""
HALF_WIDTH = 0.14
MEAN_REGRET = (
    ("AlephAlpha-layouts-2311.05610", "not seen", 0.02),
    ("vTrain-groundtruth-multi", "not seen", 0.02),
    ("vTrain-groundtruth-single", "host floor", 0.08),
)
"""(source, constants, most): mean regret of the first choice."""
FIRST_THREE_REGRET = 0.01
SIMUMAX_PEAK = 0.005


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line: what was asked, what was reached, both as shares."""

    name: str
    least: float | None = None
    most: float | None = None
    reached: float

    @property
    def holds(self) -> bool:
        """Within both ends."""
        return (self.least is None or self.reached >= self.least) and (self.most is None or self.reached <= self.most)


def lines_of(
    bands: Sequence[Coverage],
    decisions: Sequence[Decisions],
    memory: Sequence[MemoryGroup],
    verdicts: Sequence[Verdicts],
    placed: Sequence[PlacedPlan],
) -> list[Line]:
    """Every line that these sections of a validation can judge; a section that was not asked for has none."""
    return [*band_lines(bands), *decision_lines(decisions), *memory_lines(memory, verdicts), *plan_lines(placed)]


def band_lines(found: Sequence[Coverage]) -> Iterator[Line]:
    """Pooled coverage and width, coverage of every class with enough rows; sources weigh the same."""
    for line in found:
        if line.level == POOLED:
            low, high = POOLED_INSIDE
            yield Line(name="90 % bands: pooled, inside", least=low, most=high, reached=line.inside)
            yield Line(name="90 % bands: median half-width, rows equal", most=HALF_WIDTH, reached=line.half_width)
            yield Line(name="90 % bands: median half-width, sources equal", most=HALF_WIDTH, reached=line.half_width_by_source)
        elif line.rows >= ROWS_OF_A_CLASS:
            low, high = CLASS_INSIDE
            yield Line(name=f"90 % bands: {line.level}, inside", least=low, most=high, reached=line.inside)


def decision_lines(found: Sequence[Decisions]) -> Iterator[Line]:
    """Mean regret of the first choice and of the best of three, by source."""
    for source, constants, most in MEAN_REGRET:
        for line in found:
            if line.source == source and line.constants.startswith(constants):
                note = "" if constants == "not seen" else f", {constants} measured"
                yield Line(name=f"Mean regret of the first choice, {source}{note}", most=most, reached=line.regret_mean)
                three = f"Mean regret of the best of three, {source}{note}"
                yield Line(name=three, most=FIRST_THREE_REGRET, reached=line.regret_first_three_mean)


def memory_lines(groups: Sequence[MemoryGroup], verdicts: Sequence[Verdicts]) -> Iterator[Line]:
    """Peaks of SimuMax, each; verdicts with the stack's own constant, cross-validated."""
    for group in groups:
        if group.source.startswith("SimuMax"):
            yield Line(name="SimuMax peak memory, worst run", most=SIMUMAX_PEAK, reached=abs(group.worst))
    for line in verdicts:
        if line.offsets_gib:
            name = "Aleph Alpha 13B, cross-validated:"
            yield Line(name=f"{name} out of memory, right", least=line.least_right, reached=line.oom_right)
            yield Line(name=f"{name} ran, right", least=line.least_right, reached=line.ran_right)


def plan_lines(placed: Sequence[PlacedPlan]) -> Iterator[Line]:
    """NVIDIA's published plans: every one within 1.10 x of our first and in the first 5 % of the ranking."""
    if placed:
        share = sum(plan.holds for plan in placed) / len(placed)
        yield Line(name="NVIDIA's published plans near our first", least=1.0, reached=share)
