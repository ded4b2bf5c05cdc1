"""What a step should take: the price of its plan by part, with its band, or an earlier run of the same job."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from autoconfig.evidence.records import Origin
from autoconfig.megatron.check import FlagChange
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.time_model.predict import estimate_step_time
from autoconfig.training.confidence import LONG, NO_RUNS, NOT_LEGAL, UNCALIBRATED, UNFAMILIAR, least_confident, own_runs
from autoconfig.training.price import PlanReport, report_plan
from autoconfig.training.price import violations as broken_rules
from autoconfig.training.question import Question
from autoconfig.training.switches import real_routing

COMPUTE = "compute"
TP, CP, EXPERTS = "TP communication", "CP communication", "expert exchange"
GRADIENTS, GATHERS = "gradient reduction", "parameter gathers"
PIPELINE, HOST, OPTIMIZER, STRAGGLERS = "bubble and sends", "host", "optimizer", "stragglers"
OUTSIDE = "outside the plan"
"""Data, allocator, pauses, evaluation: nothing that a plan has a price for."""
PHASE_OF: Mapping[str, str] = {
    "tp_communication_seconds": TP,
    "cp_communication_seconds": CP,
    "expert_exchange_seconds": EXPERTS,
    "gradient_reduction_seconds": GRADIENTS,
    "embedding_gradient_seconds": GRADIENTS,
    "parameter_gather_seconds": GATHERS,
    "fsdp_seconds": GATHERS,
    "p2p_seconds": PIPELINE,
    "pipeline_bubble_seconds": PIPELINE,
    "host_floor_seconds": HOST,
    "optimizer_seconds": OPTIMIZER,
    "straggler_seconds": STRAGGLERS,
}
"""Part of `explain` -> phase of a diagnosis; every other part is compute."""
PHASES = (COMPUTE, TP, CP, EXPERTS, GRADIENTS, GATHERS, PIPELINE, HOST, OPTIMIZER, STRAGGLERS, OUTSIDE)
COMMUNICATION = (TP, CP, EXPERTS, GRADIENTS, GATHERS)
"""Phases whose time a link's rate decides."""


def phases_of(parts: Mapping[str, float]) -> dict[str, float]:
    """Seconds of each of PHASES of a step with these parts (names of functions of `time_model`); phases without time are left
    out. The sum is kept."""
    phases = dict.fromkeys(PHASES, 0.0)
    for name, seconds in parts.items():
        phases[PHASE_OF.get(name, COMPUTE)] += seconds
    return {name: seconds for name, seconds in phases.items() if seconds}


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """What a step should take."""

    step_seconds: float
    p5: float
    p95: float
    """Ends of the 90 % band, seconds."""
    edge: float
    """Seconds from which on the run is called slow: as far out as 3 % of the published runs of the class, or p95."""
    level: str
    """Class of runs that gave the band (training.price), or EARLIER."""
    no_promise: str = ""
    """Why nothing may be called slow by this figure alone; empty where it may."""
    far: float = math.inf
    """Seconds from which on the run is slow although nothing is promised of its class."""
    unknown_load: bool = False
    """Real routing decides how the experts are loaded: a step inside the band proves nothing either."""
    question: Question | None = None
    plan: TrainPlan | None = None
    report: PlanReport | None = None
    """Of the plan; None where an earlier run is the expectation."""
    level_2_timers: Origin | None = None
    """Where the launch file asks for timers of level 2; None where it does not."""
    changes: Callable[[TrainPlan, Scenario], tuple[FlagChange, ...]] | None = None
    """From the launch file to another plan or scenario, in the file's words; None without a file."""

    @property
    def parts(self) -> Mapping[str, float]:
        """Seconds of the step by part of `explain`, beside an earlier run in proportion to its step; empty without a plan."""
        if self.report is None:
            return {}
        scale = self.step_seconds / self.report.step_seconds
        return {name: seconds * scale for name, seconds in self.report.time_parts.items()}

    @property
    def phases(self) -> dict[str, float]:
        """Seconds of the step by phase; empty without a plan."""
        return phases_of(self.parts)

    @property
    def gpu_taken(self) -> str:
        """The GPU that was taken as nothing says which one it is; empty where something does."""
        request = self.question.request if self.question else None
        if request is None or self.scenario is None or request.gpu or request.gpu_table or request.cluster:
            return ""
        return self.scenario.cluster.gpu.id

    @property
    def scenario(self) -> Scenario | None:
        """What the plan was priced for; None without a plan."""
        return self.question.scenario if self.question else None


@dataclass(frozen=True, kw_only=True)
class Better:
    """Another plan for the same job."""

    report: PlanReport
    gain: float
    """Share of the priced step that it saves."""


EARLIER = "the run's own earlier steps"


def expectation_of(
    question: Question,
    plan: TrainPlan,
    *,
    broken: bool = False,
    changes: Callable[[TrainPlan, Scenario], tuple[FlagChange, ...]] | None = None,
) -> Expectation:
    """The price of a plan as `explain` gives it; `broken`: the file that it is of breaks a rule, or its arguments are refused.
    `changes`: to another plan in the words of that file.
    A run that is there needs no permission: what breaks a rule is priced as it stands, with the widest band. Raises PlanError
    where stages or micro-batches are not whole."""
    scenario = question.scenario
    report = report_plan(scenario, plan, None, question.request.memory_margin)
    confidence = report.confidence
    if broken or broken_rules(scenario, plan):
        confidence = least_confident(confidence, report.step_seconds)
    return Expectation(
        step_seconds=report.step_seconds,
        p5=confidence.step_seconds_p5,
        p95=confidence.step_seconds_p95,
        edge=max(confidence.step_seconds_p95, report.step_seconds * _edge_of(scenario, confidence.level)),
        level=confidence.level,
        no_promise=no_promise(scenario, confidence.level),
        far=report.step_seconds * _far(scenario, confidence.level),
        unknown_load=bool(real_routing(scenario)),
        question=question,
        plan=plan,
        report=report,
        changes=changes,
    )


def _edge_of(scenario: Scenario, level: str) -> float:
    """Measured over expected step from which a run of the class is called slow; 0: the band's end, as with own runs."""
    return 0.0 if own_runs(scenario) is not None else edges().get(level, 0.0)


def _far(scenario: Scenario, level: str) -> float:
    """Measured over expected step that no run of pre-training reaches, whatever is known of its software and its routing."""
    tuned = scenario.numerics.peft != "none" or scenario.workload.packed_length is not None
    if tuned or level == UNCALIBRATED:
        return math.inf
    return rules_data()["far"]["experts" if scenario.model.is_moe else "dense"]


@cache
def edges() -> Mapping[str, float]:
    """Class -> measured over expected step that 3 % of its published runs exceed."""
    return rules_data()["edges"]


@cache
def rules_data() -> Mapping[str, Mapping[str, float]]:
    """Tables of data/diagnosis_rules.toml: thresholds by rule, and the edges of classes."""
    text = (resources.files("autoconfig") / "data" / "diagnosis_rules.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def no_promise(scenario: Scenario, level: str) -> str:
    """Why a step above the band of its class may not be called slow; empty where it may.

    Of 105 published runs of fine-tuning, of adapters and with real routing 23 % lie above the 95 % edge, of dense
    pre-training 0.7 to 4.9 % (validation/diagnosis/alarms.py counts them anew).
    """
    numerics, name = scenario.numerics, scenario.software.name
    if level == NOT_LEGAL:
        return "the plan breaks a rule of legality, and no run of such a plan was measured"
    if numerics.peft != "none":
        return "adapters are trained, and published runs of them scatter too widely"
    if scenario.workload.packed_length is not None:
        return "samples are packed, and published runs of fine-tuning scatter too widely"
    if level in NO_RUNS:
        return f"no published run of the software {name} stands behind the constants"
    if level == UNCALIBRATED:
        return f"no published run on {scenario.cluster.gpu.architecture} stands behind the constants"
    if level == UNFAMILIAR:
        return f"few published runs stand behind {name} on {scenario.cluster.gpu.architecture}"
    if level == LONG:
        return "few published runs with long context stand behind the constants"
    if real_routing(scenario):
        return "how real routing loads the experts is not known (--moe-imbalance, or 1 where the recipe forces balance)"
    return ""


def expected_seconds(scenario: Scenario, plan: TrainPlan) -> float:
    """Seconds of one step of a plan. Raises InputError where it cannot be priced."""
    return float(estimate_step_time(scenario, scenario.layouts([plan]), [plan.recompute]).step_seconds[0, 0])


def expected_parts(scenario: Scenario, plan: TrainPlan) -> dict[str, float]:
    """The parts of one step of a plan, seconds; they sum to the step. Raises InputError where it cannot be priced."""
    estimate = estimate_step_time(scenario, scenario.layouts([plan]), [plan.recompute], detail=True)
    return {name: float(value[0, 0]) for name, value in estimate.parts.items()}
