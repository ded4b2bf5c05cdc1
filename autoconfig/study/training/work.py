"""What a study of training measures: jobs of a plan, what their outcomes mean, which plans early steps rule out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna.study import Study

from autoconfig.profiler.folder import prepare
from autoconfig.profiler.outcome import Kind, Outcome, outcome_of
from autoconfig.specs.scenario import Scenario
from autoconfig.study import trials as names
from autoconfig.study.candidates import Candidates
from autoconfig.study.jobs import SHORT, Stage, emulated_stages, stages
from autoconfig.study.sampler import PlanSampler
from autoconfig.study.settings import StudySettings
from autoconfig.study.training.emulated import verdict_of_ranks
from autoconfig.study.verdicts import Verdict, hopeless, verdict_of


@dataclass(frozen=True, kw_only=True)
class TrainingWork:
    """`worker.Work` of training plans."""

    study: Study
    scenario: Scenario
    candidates: Candidates
    settings: StudySettings
    sampler: PlanSampler

    @property
    def fidelity(self) -> str | None:
        """`emulated` where full jobs cannot run here."""
        return names.EMULATED if self.sampler.emulated else None

    @property
    def gpus(self) -> int:
        """Of a job."""
        return 1 if self.sampler.emulated else self.scenario.cluster.num_gpus

    @property
    def keeps_steps(self) -> bool:
        """Optuna keeps no steps of studies with two objectives."""
        return self.settings.objective != "headroom"

    def notes(self, row: int) -> dict[str, Any]:
        """The plan and its predicted step."""
        return {names.PLAN: str(self.candidates.plans[row]), names.PREDICTED: float(self.candidates.predicted_s[row])}

    def stages(self, row: int, repeat: int, fidelity: str | None) -> list[Stage]:
        """A short job first where the full one is long; emulated ranks one by one."""
        plan, seconds = self.candidates.plans[row], float(self.candidates.predicted_s[row])
        planned = stages if fidelity is None else emulated_stages
        return planned(self.scenario, plan, seconds, self.settings, repeat)

    def ruled_out(self, row: int, stage: Stage, steps: Sequence[float], number: int) -> Verdict | None:
        """By the steps so far of the stage; of a short job by all of it."""
        ratio = math.log(min(steps) / stage.predicted_s)
        what = "its short job" if stage.name == SHORT else f"its first {len(steps)} steps"
        return hopeless(row, ratio, what, self.study, self.sampler, number)

    def verdict(self, outcome: Outcome, row: int, stage: Stage, planned: Sequence[Stage], jobs_folder: Path) -> Verdict:
        """Of the trial's last job; composed where ranks are emulated."""
        limit = float(self.candidates.limit_bytes[row])
        if outcome.kind is not Kind.MEASURED or stage.job.mode != "emulate":
            return verdict_of(outcome, stage, self.settings, limit)
        ended = [outcome_of(prepare(jobs_folder, one.job)) for one in planned]
        measured = [found.measurement for found in ended if found is not None and found.measurement is not None]
        plan = self.candidates.plans[row]
        return verdict_of_ranks(self.scenario, plan, measured, stage.predicted_s, self.settings, limit)
