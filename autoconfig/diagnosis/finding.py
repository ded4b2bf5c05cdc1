"""What a rule is asked about, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

from autoconfig.diagnosis.budget import StepBudget
from autoconfig.diagnosis.expectation import Better, Expectation, rules_data
from autoconfig.diagnosis.measured import MeasuredStep
from autoconfig.evidence.records import Evidence, Origin, PhaseSeconds, StepStatistics
from autoconfig.megatron.check import FlagChange
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Scenario

CERTAIN, LIKELY, CONSISTENT = "certain", "likely", "consistent"
CERTAINTIES = (CERTAIN, LIKELY, CONSISTENT)


@dataclass(frozen=True, kw_only=True)
class RunCase:
    """One run: what its step should take and takes, and what it left behind."""

    evidence: Evidence
    measured: MeasuredStep | None = None
    """None: nothing says how long a step takes."""
    expectation: Expectation | None = None
    """None: neither a plan nor an earlier run, or a plan that is not the run's."""
    doubted: Expectation | None = None
    """The expectation of a plan that is not the run's: its GPUs and nodes may be."""
    budget: StepBudget = field(default_factory=StepBudget)
    earlier: RunCase | None = None
    """The same job, before."""
    better: Better | None = None
    """The plan to change to; None where none is better, or none was looked for."""

    @property
    def scenario(self) -> Scenario | None:
        """What the plan was priced for, whether or not it is doubted; None without a plan."""
        e = self.expectation or self.doubted
        return e.scenario if e is not None else None

    @property
    def planned(self) -> tuple[Expectation, Scenario, TrainPlan] | None:
        """The expectation and what it was priced for; None without a plan."""
        e = self.expectation
        return None if e is None or e.scenario is None or e.plan is None else (e, e.scenario, e.plan)

    @property
    def plan(self) -> TrainPlan | None:
        """The plan that is expected."""
        return self.expectation.plan if self.expectation is not None else None

    @property
    def statistics(self) -> StepStatistics | None:
        """Of the measured steps; None where the step was given, or stands in one line."""
        return self.measured.statistics if self.measured is not None else None

    def expected(self, phase: str) -> float:
        """Expected seconds of a phase; 0 without a plan."""
        return self.expectation.phases.get(phase, 0.0) if self.expectation is not None else 0.0

    @property
    def step_seconds(self) -> float | None:
        """Of the measured step; None where it is not known, or known in units of its own only."""
        return None if self.measured is None or self.measured.relative else self.measured.step_seconds

    @property
    def ratio(self) -> float | None:
        """Measured over expected step; None where one of them is not known."""
        if self.expectation is None or self.step_seconds is None:
            return None
        return self.step_seconds / self.expectation.step_seconds

    @property
    def gap_seconds(self) -> float:
        """Seconds to explain; 0 where nothing is."""
        if self.expectation is None or self.step_seconds is None:
            return 0.0
        return max(0.0, self.step_seconds - self.expectation.step_seconds)

    @property
    def above_band(self) -> bool:
        """Whether the step is beyond the edge of its class."""
        step = self.step_seconds
        return self.expectation is not None and step is not None and step > self.expectation.edge

    @property
    def promised(self) -> bool:
        """Whether the step may be called slow by its length alone."""
        e, step = self.expectation, self.step_seconds
        return e is not None and step is not None and self.above_band and (not e.no_promise or step > e.far)

    def share(self, seconds: float) -> float:
        """Of the measured step; 0 where that is not known."""
        return seconds / self.step_seconds if self.step_seconds else 0.0


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A cause with the evidence that it is named for."""

    rule: str
    words: str
    """What is wrong, in a line."""
    certainty: str
    """One of CERTAINTIES: proven by what the run left behind, shown by it, or only consistent with the step's length."""
    seconds: float | None = None
    """Of the step, that it explains; None where the evidence does not say."""
    evidence: tuple[Origin, ...] = ()
    figures: str = ""
    """What was computed from the evidence."""
    remedy: str = ""
    changes: tuple[FlagChange, ...] = ()
    """What to change in the launch file, in its words; empty without one, and where no argument is the cure."""
    step_after: float | None = None
    """Seconds of the step with the cause gone; None where nobody can say."""
    gain_seconds: float | None = None
    """What that saves of a step."""


def caused(
    case: RunCase,
    rule: str,
    words: str,
    certainty: str,
    *,
    evidence: Sequence[Origin] = (),
    figures: str = "",
    remedy: str = "",
    seconds: float | Literal["all"] | None = "all",
    step_after: float | None = None,
    gain_seconds: float | None = None,
    cured: tuple[TrainPlan, Scenario] | None = None,
) -> Cause:
    """A cause; `seconds`: what it explains of the step, all that there is to explain or nobody knows what (None); `cured`: plan
    and scenario of the cure, for the words of the launch file. The step without the cause is the measured one less these
    seconds, where the planner has no price."""
    if seconds == "all":
        seconds = case.gap_seconds or None
    if step_after is None and seconds is not None and case.step_seconds is not None:
        step_after = max(case.step_seconds - seconds, 0.0)
    if gain_seconds is None and step_after is not None and case.step_seconds is not None:
        gain_seconds = case.step_seconds - step_after
    e = case.expectation
    return Cause(
        changes=e.changes(*cured) if e is not None and e.changes is not None and cured is not None else (),
        rule=rule,
        words=words,
        certainty=certainty,
        seconds=seconds,
        evidence=tuple(evidence),
        figures=figures,
        remedy=remedy,
        step_after=step_after,
        gain_seconds=gain_seconds,
    )


@dataclass(frozen=True)
class Cleared:
    """A rule looked at its evidence and is silent."""

    said: str = ""


@dataclass(frozen=True)
class Undecided:
    """A rule's evidence is there and does not settle it."""

    settles: str
    """What evidence would."""


Finding = Cause | Cleared | Undecided


def first_finding(case: RunCase, looks: Sequence[Callable[[RunCase], Finding | None]]) -> Finding | None:
    """Return what the first of several looks at the evidence finds; None where none finds anything."""
    return next((finding for look in looks if (finding := look(case)) is not None), None)


def longest_phase(case: RunCase, words: Collection[str]) -> tuple[PhaseSeconds | None, float]:
    """Return (the longest phase of a step of reinforcement learning whose name holds one of the words, seconds of the step);
    no phase where none does, or nothing says the step."""
    phases = case.evidence.phases
    named = [one for one in phases if any(word in one.name.lower() for word in words)]
    totals = [one.seconds for one in phases if one.name.lower() in ("step", "total", "total step time")]
    total = max(totals, default=case.step_seconds or 0.0)
    return max(named if total else (), key=lambda one: one.seconds, default=None), total


def threshold(rule: str, name: str) -> float:
    """Return one threshold of a rule."""
    return rules_data()[rule][name]
