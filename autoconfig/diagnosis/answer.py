"""`autoconfig diagnose`: the verdict, its causes, what was cleared, and what evidence is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autoconfig.diagnosis.budget import StepBudget, subtract
from autoconfig.diagnosis.doubt import Doubt, doubt_of
from autoconfig.diagnosis.expectation import EARLIER, HOST, Better, Expectation
from autoconfig.diagnosis.finding import CERTAIN, CERTAINTIES, CONSISTENT, Cause, Cleared, Finding, RunCase, Undecided
from autoconfig.diagnosis.measured import GivenStep, MeasuredStep, measured_of
from autoconfig.diagnosis.rules.plan import better_plan
from autoconfig.diagnosis.rules.report import is_warming_up, timed_at_level_2
from autoconfig.diagnosis.rules.table import FIRST, RULES
from autoconfig.diagnosis.timers import parts_of
from autoconfig.evidence.records import Evidence

HEALTHY, SLOW, FAST = "healthy", "slow", "fast"
REPORT_WRONG, NO_PROMISE, NOT_ENOUGH = "report_wrong", "no_promise", "not_enough"
VERDICTS = (HEALTHY, SLOW, FAST, REPORT_WRONG, NO_PROMISE, NOT_ENOUGH)
WORTH_NAMING = 0.05
"""Share of a step inside its band, or without an expected one, that a proven cause must take to be named."""
ORDER = (
    *("R12", "R18", "R15", "R09", "R04", "R02", "R08", "R17", "R16"),
    *("R13", "R10", "R11", "R05", "R06", "R07", "R03", "R14", "R01"),
)
"""Of causes that explain the same seconds with the same certainty: is it real, is it the plan, then what the step's length
alone speaks for most (of 45 public cases R02 and R04 held 17, R08 2, R01 3)."""
HOST_BOUND = 0.3
"""Share of the expected step that waits for the host, from which on a slower host is the likeliest of the causes that the
step's length alone speaks for."""
MOST_OF_IT = 0.5
"""Share of the seconds to explain."""
FOLLOWS_FROM = {"R03": ("R02",), "R14": ("R10",), "R17": ("R14", "R16", "R08")}
"""Rule -> those whose cause brings it about: nothing hides a slow link, a low clock makes a slow rank, and the pipeline waits
for a slow rank, stage or expert."""
PLAN_MISSING = "the launch file, the log's own arguments, or --model, --gpus, --gpu and a PLAN"
STEP_MISSING = "a step: lines of the run's log, or --step"


@dataclass(frozen=True, kw_only=True)
class Missing:
    """Evidence that is not there, and the rules that it would settle."""

    evidence: str
    rules: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Everything that `diagnose` says."""

    verdict: str
    """One of VERDICTS."""
    why: str
    """The verdict's reason, in a sentence."""
    case: RunCase
    causes: tuple[Cause, ...]
    """Most likely first."""
    cleared: tuple[tuple[str, str], ...]
    """(rule, what was seen) of rules whose evidence is there and silent."""
    missing: tuple[Missing, ...]

    @property
    def better(self) -> Better | None:
        """The plan to change to after all that."""
        return self.case.better

    @property
    def expectation(self) -> Expectation | None:
        return self.case.expectation

    @property
    def measured(self) -> MeasuredStep | None:
        return self.case.measured

    @property
    def step_after(self) -> float | None:
        """Seconds of the step with every cause gone that says what it costs; None where none does."""
        step = self.case.step_seconds
        proven = [one for one in self.causes if one.certainty != CONSISTENT]
        gains = [step - one.step_after for one in proven if step is not None and one.step_after is not None]
        if step is None or not any(gains):
            return None
        floor = self.expectation.p5 if self.expectation is not None else 0.0
        return max(step - sum(gains), min(floor, step))

    @property
    def why_not_calibrate(self) -> str:
        """Why this run may not calibrate the planner; empty where it may: what is sick would make slow normal."""
        if self.expectation is None or self.expectation.plan is None or self.case.step_seconds is None:
            return "plan or step are not known"
        if self.causes:
            return f"a fault is named: {self.causes[0].words} ({self.causes[0].rule})"
        if timed_at_level_2(self.case) is not None:
            return "timers of level 2 were on, which make a step longer (--timing-log-level)"
        if self.expectation.gpu_taken:
            return "nothing says which GPU it ran on (--gpu)"
        if self.verdict == NOT_ENOUGH:
            return self.why
        if self.case.step_seconds > self.expectation.p95:
            return "its step is above the band of its class"
        return ""


def diagnose(
    evidence: Evidence,
    expectation: Expectation | None,
    given: GivenStep | None = None,
    before: Evidence | None = None,
    *,
    with_better: bool = True,
    unread: str = "",
) -> Diagnosis:
    """Return the diagnosis of one run: what it left behind beside what it should take; `before`: the same job's earlier log,
    which is then the expectation. `with_better` ranks other plans, which takes a second; `unread`: why a launch file says no
    plan. Raises InputError for a rate without a plan."""
    given, earlier = given or GivenStep(), None
    if before is not None:
        earlier = case_of(before, expectation, GivenStep())
        if earlier.measured is not None:
            doubted = doubt_of(before, expectation, earlier.measured)
            expectation = _as_earlier(earlier.measured, expectation if doubted is None else None)
    better = better_plan(expectation) if with_better and expectation is not None else None
    case = replace(case_of(evidence, expectation, given, earlier), better=better)
    doubt = doubt_of(evidence, expectation, case.measured)
    judged = case if doubt is None else _without_plan(case, given)
    findings = {rule.id: rule.test(judged) for rule in RULES}
    causes = _named(judged, [one for one in findings.values() if isinstance(one, Cause)])
    verdict, why = _verdict(judged, causes)
    if doubt is not None:
        case = replace(case, measured=judged.measured, better=None, budget=StepBudget())
        why = doubt.why if verdict == NOT_ENOUGH else f"{why}; the plan is not the run's: {doubt.why}"
    return Diagnosis(
        verdict=verdict,
        why=why,
        case=case,
        causes=tuple(causes),
        cleared=tuple((rule, one.said) for rule, one in findings.items() if isinstance(one, Cleared)),
        missing=_missing(case, verdict, _open(findings), unread, doubt),
    )


def _without_plan(case: RunCase, given: GivenStep) -> RunCase:
    """The case with a plan that is not the run's set aside: rates say no seconds then, but for what the caller gave."""
    step = GivenStep() if given == GivenStep() else GivenStep(step=case.step_seconds)
    return replace(case_of(case.evidence, None, step, case.earlier), doubted=case.expectation)


def _open(findings: Mapping[str, Finding | None]) -> dict[str, str]:
    """Return rule -> what would settle it, of those that their evidence does not."""
    usual = {rule.id: rule.settles for rule in RULES}
    open_rules = {rule: one for rule, one in findings.items() if one is None or isinstance(one, Undecided)}
    return {rule: usual[rule] if one is None else one.settles for rule, one in open_rules.items()}


def case_of(evidence: Evidence, expectation: Expectation | None, given: GivenStep, earlier: RunCase | None = None) -> RunCase:
    """What the rules are asked about."""
    measured = measured_of(evidence, expectation, given)
    budget = StepBudget()
    if measured is not None and not measured.relative:
        expected = expectation.phases if expectation is not None else {}
        budget = subtract(measured.step_seconds, expected, parts_of(evidence))
    return RunCase(evidence=evidence, measured=measured, expectation=expectation, budget=budget, earlier=earlier)


LEAST_EDGE = 0.03
"""Steps of one job on one machine differ by less between two starts."""


def _as_earlier(before: MeasuredStep, planned: Expectation | None) -> Expectation:
    """The earlier run's step as the expectation, with what is known of its plan: the edge lies three of its own robust standard
    deviations off, a few per cent at least."""
    steps = before.statistics
    room = max(LEAST_EDGE, 3.0 * steps.robust_sd if steps is not None else 0.0)
    step = before.step_seconds
    return Expectation(
        step_seconds=step,
        p5=step * (1 - room),
        p95=step * (1 + room),
        edge=step * (1 + room),
        level=EARLIER,
        question=planned.question if planned else None,
        plan=planned.plan if planned else None,
        report=planned.report if planned else None,
    )


def _named(case: RunCase, causes: Sequence[Cause]) -> list[Cause]:
    """Return the causes that may be named, most likely first; what the step's length alone speaks for only where no evidence
    explains most of what there is to explain."""
    named = [one for one in causes if _may_be_named(case, one)]
    explaining = {one.rule for one in named if _explains_most(case, one)}
    if explaining:
        named = [one for one in named if one.certainty != CONSISTENT]
    certain = {one.rule for one in named if one.certainty == CERTAIN}
    left_out = {rule for rule, brought_by in FOLLOWS_FROM.items() if certain.intersection(brought_by)}
    if not explaining <= {*FIRST}:  # timers that show a cause make steps longer, and are not it
        left_out.add("R18")
    return sorted((one for one in named if one.rule not in left_out), key=lambda one: _place(case, one))


def _explains_most(case: RunCase, cause: Cause) -> bool:
    """Return whether evidence of a cause explains most of what there is to explain."""
    return cause.certainty != CONSISTENT and (cause.seconds is None or cause.seconds >= MOST_OF_IT * case.gap_seconds)


def _may_be_named(case: RunCase, cause: Cause) -> bool:
    """Return whether a cause may be named: beyond the band of a class with a promise every one; without plan or promise those
    with evidence of their own, but for a share of the step not worth naming where nothing says how long it should be."""
    if case.ratio is not None and not case.above_band:
        return _may_be_named_inside(case, cause)
    if case.ratio is None and cause.seconds and case.step_seconds and case.share(cause.seconds) < WORTH_NAMING:
        return False
    if cause.rule == "R08" and case.expectation is not None and case.expectation.unknown_load:
        return True  # the very thing that is not known
    return case.promised or cause.certainty != CONSISTENT


def _may_be_named_inside(case: RunCase, cause: Cause) -> bool:
    """Return whether a cause may be named inside the band: what is proven and takes a share of the step worth naming, and a
    plan that is slow by itself."""
    if cause.rule == "R12":
        return True
    if cause.rule == "R09":  # a run that is faster than its plan's band does not run that plan
        return _beside(case) != "below its band"
    if cause.rule == "R18" or cause.certainty != CERTAIN or cause.seconds is None:
        return False
    return case.share(cause.seconds) >= WORTH_NAMING


def _place(case: RunCase, cause: Cause) -> tuple[int, int, bool, float, int]:
    """Is it real, how certain, then what a line of the evidence speaks for before what the step's length alone does."""
    real = cause.rule in FIRST and (cause.rule != "R18" or case.above_band) and cause.certainty != CONSISTENT
    bare = cause.certainty == CONSISTENT and not cause.evidence
    place = _order(case).index(cause.rule)
    return (0 if real else 1, CERTAINTIES.index(cause.certainty), bare, -(cause.seconds or 0.0), place)


def _order(case: RunCase) -> Sequence[str]:
    """ORDER; over several nodes a link before kernels, and of a plan that its host bounds the host before both."""
    e = case.expectation
    if e is None or e.scenario is None:
        return ORDER
    first = ["R02"] if e.scenario.cluster.num_gpus > e.scenario.cluster.link_domain_size else []
    if e.phases.get(HOST, 0.0) >= HOST_BOUND * e.step_seconds:
        first.insert(0, "R01")
    place = ORDER.index("R04")
    return (*ORDER[:place], *first, *(rule for rule in ORDER[place:] if rule not in first))


def _beside(case: RunCase) -> str:
    """Where a step that is not beyond its edge stands to the band."""
    e, step = case.expectation, case.step_seconds
    if e is None or step is None or e.p5 <= step <= e.p95:
        return "inside its band"
    return "below its band" if step < e.p5 else "short of its edge"


def _verdict(case: RunCase, causes: Sequence[Cause]) -> tuple[str, str]:
    """Return (verdict, why)."""
    faults = [one for one in causes if one.rule != "R12"]
    if causes and not faults and not case.above_band:
        inside = f"{case.ratio:.2f} times the expected step, {_beside(case)}" if case.ratio is not None else "of the step"
        return REPORT_WRONG, f"{inside}; what is printed does not follow from it"
    if case.expectation is None:
        return _without_expectation(faults)
    if case.step_seconds is None:
        return (SLOW, faults[0].words) if faults else (NOT_ENOUGH, "nothing says how long a step takes")
    return _of_faults(case, case.expectation, faults) if faults else _of_length(case, case.expectation, case.step_seconds)


def _without_expectation(faults: Sequence[Cause]) -> tuple[str, str]:
    """Return (verdict, why) of a run of which nothing says how long its step should be."""
    if not faults:
        return NOT_ENOUGH, "nothing says how long the step should be, and the evidence proves no cause alone"
    if all(one.rule == "R18" for one in faults):
        return NOT_ENOUGH, faults[0].words
    return SLOW, "without a plan: what the evidence proves alone"


def _of_faults(case: RunCase, e: Expectation, faults: Sequence[Cause]) -> tuple[str, str]:
    """Return (verdict, why) of a step with faults beside the expected one."""
    if is_warming_up(case) and all(one.rule == "R18" for one in faults):
        return NOT_ENOUGH, faults[0].words
    times = f"{case.ratio:.2f} times the expected step"
    if not case.promised and all(one.certainty == CONSISTENT for one in faults):
        return NO_PROMISE, f"{times}, but {e.no_promise}"
    inside = "" if case.above_band else f", {_beside(case)}, but"
    return SLOW, f"{times}{inside}: {faults[0].words}"


def _of_length(case: RunCase, e: Expectation, step: float) -> tuple[str, str]:
    """Return (verdict, why) of a step without faults, by its length alone."""
    times = f"{case.ratio:.2f} times the expected step"
    if e.no_promise and not case.promised and (case.above_band or e.unknown_load):
        return NO_PROMISE, f"{times}, but {e.no_promise}"
    if case.above_band:
        return SLOW, f"{times}, and nothing that was given says why"
    if step < e.p5:
        return FAST, f"{times}, below its band"
    if step > e.p95:
        why = f"above its band, but published runs of its class ({e.level}) reach {e.edge / e.step_seconds:.2f}"
        return NO_PROMISE, f"{times}, {why}"
    return HEALTHY, f"{times}, inside the band of its class"


OF_THE_ANSWER = ("R09", "R12", "R15")
"""Whether the plan, the report or another release is it, is asked where no verdict is given."""
OF_STAGES = ("R16", "R17")


def _missing(case: RunCase, verdict: str, silent: Mapping[str, str], unread: str, doubt: Doubt | None) -> tuple[Missing, ...]:
    """Return what would settle the rules that had no evidence: plan and step first."""
    settles: dict[str, list[str]] = {}
    for rule, evidence in silent.items():
        if _concerns(rule, case, decided=verdict not in (NOT_ENOUGH, NO_PROMISE)):
            settles.setdefault(evidence, []).append(rule)
    others = (Missing(evidence=evidence, rules=tuple(rules)) for evidence, rules in settles.items())
    return (*_missing_expectation(case, unread, doubt), *others)


def _missing_expectation(case: RunCase, unread: str, doubt: Doubt | None) -> list[Missing]:
    """Return what is missing of GPU, plan and step."""
    missing = []
    if case.expectation is not None and (gpu := case.expectation.gpu_taken):
        missing.append(Missing(evidence=f"--gpu: nothing says the GPU, and {gpu} was taken", rules=("R09",)))
    if case.expectation is None:
        missing.append(Missing(evidence=f"{PLAN_MISSING} ({unread})" if unread else PLAN_MISSING, rules=("R09", "R12")))
    if doubt is not None:
        missing.append(Missing(evidence=doubt.settles, rules=("R09", "R12")))
    if case.step_seconds is None:
        missing.append(Missing(evidence=STEP_MISSING, rules=("R09", "R11")))
    return missing


def _concerns(rule: str, case: RunCase, *, decided: bool) -> bool:
    """Return whether a rule may be of this run: of experts and stages where its plan has none it is not, as far as it is
    known."""
    scenario, plan = case.scenario, case.expectation.plan if case.expectation is not None else None
    if decided and rule in OF_THE_ANSWER:
        return False
    if rule == "R08":
        return scenario is None or scenario.model.is_moe
    return rule not in OF_STAGES or plan is None or plan.pp > 1
