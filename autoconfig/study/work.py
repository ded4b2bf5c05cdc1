"""Work: what a study measures, behind one protocol: training plans, deployments of a server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from autoconfig.profiler.outcome import Outcome
from autoconfig.study.jobs import Stage
from autoconfig.study.verdicts import Verdict


class Work(Protocol):
    """What is measured: the jobs of a candidate, and what their outcomes mean."""

    @property
    def fidelity(self) -> str | None:
        """What sets the study's jobs here apart from full ones; None: nothing."""

    @property
    def gpus(self) -> int:
        """Of a job, at most."""

    @property
    def keeps_steps(self) -> bool:
        """Whether steps go to the storage while a job runs."""

    def notes(self, row: int) -> dict[str, Any]:
        """Attributes of a trial of the candidate."""

    def stages(self, row: int, repeat: int, fidelity: str | None) -> list[Stage]:
        """The jobs of a trial in order; the same after a kill."""

    def ruled_out(self, row: int, stage: Stage, steps: Sequence[float], number: int) -> Verdict | None:
        """A verdict where the steps so far leave the candidate no chance."""

    def verdict(self, outcome: Outcome, row: int, stage: Stage, planned: Sequence[Stage], jobs_folder: Path) -> Verdict:
        """What the end of a trial's last job is told as."""
