"""The answer of `diagnose` as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from autoconfig.diagnosis.answer import VERDICTS, Diagnosis
from autoconfig.diagnosis.expectation import Expectation
from autoconfig.diagnosis.finding import CERTAINTIES, Cause
from autoconfig.diagnosis.rules.table import RULES
from autoconfig.megatron.check import FlagChange
from autoconfig.render.question_json import AnswerJson, QuestionJson, question_json
from autoconfig.render.training_json import PlanJson, PlanReportJson, report_json
from autoconfig.specs.json_record import AboveZero, Keywords, Natural, NotNegative, record_of
from autoconfig.specs.plan_names import NamedPlan, named_plan

Verdict = Annotated[str, Keywords(enum=VERDICTS)]
Certainty = Annotated[str, Keywords(enum=CERTAINTIES)]
RuleId = Annotated[str, Keywords(enum=tuple(sorted(rule.id for rule in RULES)))]
NAMES = {rule.id: rule.name for rule in RULES}


@dataclass(frozen=True, kw_only=True)
class EvidenceFileJson:
    """One file that was given."""

    file: str
    kind: str
    """What it was recognised as, by its content."""
    formats: tuple[str, ...]
    """Whose lines it holds, most first."""
    lines_read: Natural
    """Lines, or events, that were understood."""
    lines_not_understood: Natural
    window: str
    """What is covered."""
    remarks: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class OutlierJson:
    """A step that stands out."""

    step: int | None
    seconds: NotNegative
    excess: float
    """Seconds above the median."""


@dataclass(frozen=True, kw_only=True)
class MeasuredJson:
    """The measured step."""

    step_seconds: AboveZero | None
    """Median without warm-up; null where only rates are known and no plan makes seconds of them."""
    source: str
    """Where it is from."""
    convention: str
    """What the printed TFLOPS or MFU count, where the step comes from them; else empty."""
    steps: Natural | None
    """Behind the median; null where the step was given. So are the next ones."""
    p10: NotNegative | None
    p90: NotNegative | None
    robust_sd: NotNegative | None
    """Share of the median."""
    warmup_dropped: Natural | None
    drift: float | None
    """Second half over first, less 1."""
    outliers: tuple[OutlierJson, ...]


@dataclass(frozen=True, kw_only=True)
class ExpectedJson:
    """What the step should take."""

    step_seconds: AboveZero
    p5: NotNegative
    p95: NotNegative
    """Ends of the 90 % band, seconds."""
    edge: NotNegative
    """Seconds from which on the run is called slow."""
    level: str
    """Class of runs that gave the band, or the run's own earlier steps."""
    no_promise: str
    """Why nothing may be called slow by this alone; empty where it may."""


@dataclass(frozen=True, kw_only=True)
class PhaseJson:
    """A phase of the step."""

    name: str
    expected_seconds: float | None
    measured_seconds: float | None
    """Null where no evidence shows it."""
    gap_seconds: float | None
    source: str


@dataclass(frozen=True, kw_only=True)
class OriginJson:
    """A line of evidence."""

    file: str
    line: Natural | None
    text: str


@dataclass(frozen=True, kw_only=True)
class CauseJson:
    """A named cause."""

    rule: RuleId
    name: str
    words: str
    """What is wrong."""
    certainty: Certainty
    seconds: float | None
    """Of the step, that it explains."""
    evidence: tuple[OriginJson, ...]
    figures: str
    """What was computed from the evidence."""
    remedy: str
    changes: tuple[FlagChange, ...]
    """In the launch file, in its words; empty without one, and where no argument is the cure."""
    gain_seconds: float | None
    """What the cure saves of a step."""
    step_after: NotNegative | None


@dataclass(frozen=True, kw_only=True)
class MissingJson:
    """Evidence that is not there."""

    evidence: str
    rules: tuple[RuleId, ...]
    """What it would settle."""


@dataclass(frozen=True, kw_only=True)
class FasterPlanJson(PlanJson):
    """The plan to change to after all that."""

    step_seconds: AboveZero
    """Its price."""
    gain: float
    """Share of the priced step that it saves."""
    changes: tuple[FlagChange, ...]
    """In the launch file, in its words; empty without one."""


@dataclass(frozen=True, kw_only=True)
class UsableJson:
    """Whether the run may calibrate the planner."""

    usable: bool
    why_not: str


@dataclass(frozen=True, kw_only=True)
class DiagnosisJson(AnswerJson):
    """Why a run is slower than it should be. Times are seconds."""

    verdict: Verdict
    why: str
    question: QuestionJson | None
    """Model, cluster and numerics of the run; null without a plan. So are the next three."""
    plan: NamedPlan | None
    short: str | None
    report: PlanReportJson | None
    """The plan, priced."""
    evidence: tuple[EvidenceFileJson, ...]
    measured: MeasuredJson | None
    expected: ExpectedJson | None
    ratio: NotNegative | None
    """Measured over expected step."""
    phases: tuple[PhaseJson, ...]
    unexplained_seconds: float
    """Measured step less the phases, each as measured, or as expected where it was not: never spread over them."""
    causes: tuple[CauseJson, ...]
    """Most likely first; empty for a healthy run."""
    cleared: tuple[RuleId, ...]
    """Rules whose evidence is there and silent."""
    missing: tuple[MissingJson, ...]
    """What evidence would settle what."""
    step_after: NotNegative | None
    """With every cause gone that says what it costs."""
    better: FasterPlanJson | None
    calibration: UsableJson


def diagnosis_json(found: Diagnosis) -> DiagnosisJson:
    """The whole answer."""
    e, case = found.expectation, found.case
    question, plan, short, report = _planned(e)
    return DiagnosisJson(
        verdict=found.verdict,
        why=found.why,
        question=question,
        plan=plan,
        short=short,
        report=report,
        evidence=tuple(record_of(EvidenceFileJson, one, file=one.name) for one in case.evidence.files),
        measured=_measured(found),
        expected=None if e is None else record_of(ExpectedJson, e),
        ratio=case.ratio,
        phases=tuple(record_of(PhaseJson, one) for one in case.budget.phases),
        unexplained_seconds=case.budget.unexplained_seconds,
        causes=tuple(_cause(one) for one in found.causes),
        cleared=tuple(rule for rule, _ in found.cleared),
        missing=tuple(record_of(MissingJson, one) for one in found.missing),
        step_after=found.step_after,
        better=_better(found),
        calibration=UsableJson(usable=not found.why_not_calibrate, why_not=found.why_not_calibrate),
    )


def _planned(
    e: Expectation | None,
) -> tuple[QuestionJson, NamedPlan, str, PlanReportJson] | tuple[None, None, None, None]:
    """Question, plan, its short form and its report; none of them where one is not known."""
    if e is None or e.question is None or e.plan is None or e.report is None:
        return None, None, None, None
    batch = e.question.scenario.workload.global_batch_size
    return question_json(e.question), named_plan(e.plan, batch), str(e.plan), report_json(e.report, e.question)


def _better(found: Diagnosis) -> FasterPlanJson | None:
    better, e = found.better, found.expectation
    if better is None:
        return None
    scenario = e.question.scenario if e is not None and e.question is not None else None
    return FasterPlanJson(
        plan=named_plan(better.report.plan, scenario.workload.global_batch_size if scenario else 1),
        short=str(better.report.plan),
        step_seconds=better.report.step_seconds,
        gain=better.gain,
        changes=e.changes(better.report.plan, scenario) if e and e.changes and scenario else (),
    )


def _measured(found: Diagnosis) -> MeasuredJson | None:
    measured = found.measured
    if measured is None:
        return None
    steps = measured.statistics
    of_lines = {name: getattr(steps, name, None) for name in ("p10", "p90", "robust_sd", "warmup_dropped", "drift")}
    of_lines |= {"steps": steps.count if steps else None}
    outliers = tuple(record_of(OutlierJson, one) for one in steps.pauses) if steps else ()
    if not measured.relative:
        return record_of(MeasuredJson, measured, **of_lines, outliers=outliers)
    no_seconds = {"step_seconds": None, "p10": None, "p90": None, "outliers": ()}
    return record_of(MeasuredJson, measured, **of_lines | no_seconds)


def _cause(one: Cause) -> CauseJson:
    evidence = tuple(record_of(OriginJson, origin) for origin in one.evidence)
    return record_of(CauseJson, one, name=NAMES[one.rule], evidence=evidence)
