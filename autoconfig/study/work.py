"""StudyWork: what a kind of study is, behind one protocol: what to measure next, the jobs that measure it, what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from optuna.trial import FrozenTrial, TrialState

from autoconfig.profiler.outcome import Kind, Outcome
from autoconfig.profiler.runner import Command
from autoconfig.specs.job import Job
from autoconfig.specs.measurement import MOST_TIMES, is_plausible
from autoconfig.specs.remarks import Remark
from autoconfig.study import trials as names
from autoconfig.study.settings import MeasuredQuestion
from autoconfig.study.trials import Choices

MAX_MESSAGE = 1000
LIMIT_TIMES = 5.0
"""A job's time limit: so many times what is expected, and `Stage.min_limit_s` at least."""
FULL = "full"


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """What to measure next."""

    row: int | None
    why: str
    chance: float = 0.0
    chance_to_change: float = 0.0
    """That measuring on changes which candidate is the best."""
    settled: bool = False
    """Nothing that was not measured is likely to be better."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One job of a trial."""

    name: str
    job: Job
    predicted_s: float
    min_limit_s: float = 120.0

    @property
    def expected_s(self) -> float:
        return self.predicted_s * (self.job.steps + self.job.warmup_steps)

    def limit_s(self, most: float) -> float:
        return min(most, max(self.min_limit_s, LIMIT_TIMES * self.expected_s))


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How a trial ends in the storage."""

    state: TrialState
    values: list[float] | None = None
    attributes: dict[str, Any] = field(default_factory=dict)


def not_measured(outcome: Outcome) -> Verdict:
    """Out of memory: pruned, a constraint learned. Everything else: failed, with the reason."""
    attributes = {names.OUTCOME: str(outcome.kind)}
    if outcome.message:
        attributes[names.MESSAGE] = outcome.message[:MAX_MESSAGE]
    state = TrialState.PRUNED if outcome.kind is Kind.OUT_OF_MEMORY else TrialState.FAIL
    return Verdict(state=state, attributes=attributes)


def compared(outcome: Outcome, name: str, value: float | None, predicted: float) -> Outcome:
    """The outcome of a job that was measured; implausible where `value`, its figure `name`, is beyond all prediction."""
    if value is None or is_plausible(value, predicted):
        return outcome
    said = f"{name}={value:g} is beyond {MOST_TIMES:g} times the predicted {predicted:.4g}, either way"
    return replace(outcome, kind=Kind.IMPLAUSIBLE, message=f"{said}: no measurement of this job")


class StudyWork(Protocol):
    """A question as a study measures it: its candidates, their order, their jobs."""

    @property
    def settings(self) -> MeasuredQuestion:
        """As asked of this machine."""

    @property
    def candidates(self) -> Choices:
        """What may be measured."""

    @property
    def assumed(self) -> tuple[Remark, ...]:
        """What the question left open."""

    @property
    def fidelity(self) -> str | None:
        """What sets the study's jobs here apart from full ones; None: nothing."""

    @property
    def gpu(self) -> str:
        """Their type, as the catalogue names it."""

    @property
    def gpus(self) -> int:
        """Of a job, at most."""

    @property
    def gpus_per_node(self) -> int:
        """Of the nodes that a job of all its GPUs has."""

    @property
    def keeps_steps(self) -> bool:
        """Whether steps go to the storage while a job runs."""

    def command(self, python: str, nodes: int) -> Command:
        """The command line of a job under the interpreter `python`."""

    def check_python(self, python: str) -> None:
        """Raises RunnerError where the interpreter cannot run the jobs on this machine."""

    def propose(self, name: str, trials: Sequence[FrozenTrial], number: int) -> Proposal:
        """The candidate of trial `number` of study `name` after the other trials; the same arguments give the same one."""

    def notes(self, row: int) -> dict[str, Any]:
        """Attributes of a trial of the candidate."""

    def stages(self, row: int, repeat: int, fidelity: str | None) -> list[Stage]:
        """The jobs of a trial in order; the same after a kill. `repeat`: earlier measurements of the candidate."""

    def ruled_out(
        self, row: int, stage: Stage, steps: Sequence[float], number: int, trials: Sequence[FrozenTrial]
    ) -> Verdict | None:
        """A verdict where the steps so far of trial `number` leave the candidate no chance; `trials`: the others."""

    def verdict(self, outcome: Outcome, row: int, stage: Stage, planned: Sequence[Stage], jobs_folder: Path) -> Verdict:
        """What the end of a trial's last job is told as."""
