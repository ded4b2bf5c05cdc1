"""`autoconfig predict --rl IN.csv --output OUT.csv`: seconds of a step of post-training by phase, and whether it fits, of
every row of a table of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING

from autoconfig.post_training.frameworks import STANDARD_90, Constants, shipped_constants
from autoconfig.post_training.job import LEAST_TOKENS, PassBatch
from autoconfig.post_training.memory import phase_memory
from autoconfig.post_training.phases import REST
from autoconfig.post_training.price import StepEstimate, estimate_step
from autoconfig.runs.post_training_row import FULL, PostTrainingCase, read_case
from autoconfig.runs.predicted import answer_rows, cells_of
from autoconfig.runs.table import Row, TableKind, cell, columns_of
from autoconfig.specs.errors import GIB
from autoconfig.specs.remarks import sentences

if TYPE_CHECKING:
    from autoconfig.planning.progress import Progress


@dataclass(frozen=True, kw_only=True)
class StepPrediction:
    """What one row gets; None where it does not apply or could not be predicted. `note` says why, or what was assumed."""

    row: int = 0
    id: str = ""
    step: StepEstimate | None = None
    fits: bool | None = None
    note: str = ""

    @property
    def failed(self) -> bool:
        return self.step is None

    def _bound(self, sign: int) -> float | None:
        return None if self.step is None else self.step.seconds * exp(sign * STANDARD_90 * self.step.scatter)

    @property
    def step_seconds_p5(self) -> float | None:
        """5 % bound of the step; so for the next, of 95 %."""
        return self._bound(-1)

    @property
    def step_seconds_p95(self) -> float | None:
        return self._bound(1)

    @property
    def other_seconds(self) -> float | None:
        """Of what is no phase."""
        return None if self.step is None else self.step.phases.of(REST)

    def cells(self) -> dict[str, str]:
        return cells_of(self, "post_training")


POST_TRAINING_RUNS = TableKind(
    needed=lambda columns: {"policy_model"},
    known=lambda: columns_of("post_training"),
    said="the columns are those of autoconfig/data/run_tables.toml (columns.post_training)",
)


def predict_file(
    source: Path, target: Path, constants: Constants | None = None, progress: Progress | None = None
) -> tuple[list[StepPrediction], str]:
    """`TableKind.predict` of a table of post-training runs."""
    return POST_TRAINING_RUNS.predict(source, target, lambda rows: predict_rows(rows, constants, progress))


def predict_rows(
    rows: Sequence[Row], constants: Constants | None = None, progress: Progress | None = None
) -> list[StepPrediction]:
    """Return a prediction per row, in order. Rows that ask the same are answered once."""
    chosen = constants or shipped_constants()
    answers = answer_rows(
        rows, "post_training", lambda row: predict_row(row, chosen), lambda reason: StepPrediction(note=reason), progress
    )
    return [
        replace(answer, row=number, id=cell(row, "id")) for number, (row, answer) in enumerate(zip(rows, answers, strict=True))
    ]


def predict_row(row: Row, constants: Constants) -> StepPrediction:
    """Return the prediction of one row. Raises InputError."""
    case = read_case(row)
    step = estimate_step(case.job, case.placement, constants, guessed=bool(case.missing))
    fits, reason = _fits(case, step)
    notes = [f"does not fit: {reason}"] if reason else []
    notes += [f"assumed: {'; '.join(sentences(case.assumed))}"] if case.assumed else []
    return StepPrediction(step=step, fits=fits, note="; ".join(notes))


def _fits(case: PostTrainingCase, step: StepEstimate) -> tuple[bool, str]:
    """Whether it fits, and what does not. Where the row does not say its recomputation all of it counts too, and where it does
    not say its micro-batch one of a single usual sequence."""
    placement = case.placement
    memory = phase_memory(case.job, placement, step.generation)
    if not memory.fits and "recompute" in case.unsaid:
        placement = replace(placement, train=replace(placement.train, recompute=FULL))
        memory = phase_memory(case.job, placement, step.generation)
    if not memory.fits and "micro_batch" in case.unsaid:
        least = max(LEAST_TOKENS, round(case.job.tokens))
        placement = replace(placement, tokens_per_gpu=least, forward=PassBatch(tokens_per_gpu=least))
        memory = phase_memory(case.job, placement, step.generation)
    if not memory.fits and "offload" in case.unsaid:
        hosted = replace(placement, train=replace(placement.train, offload=1.0))
        other = phase_memory(case.job, hosted, step.generation)
        outcome = "would fit" if other.fits else f"would take {other.peak_bytes / GIB:.1f} GiB"
        return False, f"{memory.reason} (with its optimizer on the host, which the row does not say, it {outcome})"
    return memory.fits, memory.reason
