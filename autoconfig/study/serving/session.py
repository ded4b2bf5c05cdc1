"""Studies of serving: from their question to what they measure, and what was found."""

from __future__ import annotations

import statistics
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from optuna.trial import FrozenTrial

from autoconfig.planning.serving_calibration import write_serving_calibration
from autoconfig.profiler.runner import RunnerError
from autoconfig.serving.question import ServeQuestion, understand
from autoconfig.specs.errors import GIB, InputError, option
from autoconfig.specs.hardware.local_gpu import gpu_of_file
from autoconfig.specs.remarks import Effect, Remark
from autoconfig.study import trials as names
from autoconfig.study.serving.candidates import DeploymentChoices, RoundFigures, candidates_of
from autoconfig.study.serving.work import ServingSettings, ServingWork, believed, measured_rows, on_frontier
from autoconfig.study.session import Options, Session, StudyKind
from autoconfig.study.this_machine import asked, rank_memory_bytes
from autoconfig.study.trials import MEASURED_TOKENS, PREDICTED_TOKENS, PREDICTED_TPOT, TPOT, TTFT

MIN_TO_RANK = 3
"""Points of a frontier from which a rank correlation is printed."""


@dataclass(frozen=True, kw_only=True)
class ServingLine:
    """One trial. Tokens are output tokens/s/GPU, times seconds; `corrected`: by the constants that all points give."""

    trial: int
    plan: str
    outcome: str
    predicted_tokens: float | None
    measured_tokens: float | None
    corrected_tokens: float | None
    predicted_tpot_s: float | None
    measured_tpot_s: float | None
    corrected_tpot_s: float | None
    measured_ttft_s: float | None
    on_frontier: bool
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class Correction:
    """Constants that the measured points give (serving.rounds.refined), and what is left of the errors."""

    operators: float
    communication: float
    host_s: float
    request_s: float
    """A server's, before a request's first iteration."""
    error_before: float
    """Median of |predicted / measured - 1| over throughput and TPOT of all points."""
    error_after: float


@dataclass(frozen=True, kw_only=True)
class ServingFound:
    """The state of a study of serving."""

    name: str
    engine: str
    best: ServingLine | None
    """Most tokens/s/GPU of those measured within the limits."""
    lines: tuple[ServingLine, ...]
    """Measured ones by batch and tp, then the others in the order of trials."""
    frontier: tuple[int, ...]
    """Trials that no other beats in one value without being worse in the other, fastest user first."""
    predicted_best: str
    """The deployment with most tokens/s/GPU within the limits, before any measurement."""
    candidates: int
    correction: Correction | None
    rank_correlation: tuple[float, float] | None
    """Spearman's, over the frontier: tokens/s/GPU and TPOT, corrected prediction against measurement."""
    unmeasured: tuple[tuple[str, float, float], ...]
    """(plan, tokens/s/GPU, TPOT) still expected on the frontier."""

    @property
    def measured(self) -> bool:
        """Whether there is a measured deployment."""
        return any(line.measured_tokens is not None for line in self.lines)

    def to_json(self) -> dict[str, Any]:
        body = {"schema_version": 1, **asdict(self)}
        body["unmeasured"] = [{"plan": p, "tokens_per_s_per_gpu": s, "tpot_s": t} for p, s, t in self.unmeasured]
        return body


def _predicted_best(question: ServeQuestion, choices: DeploymentChoices) -> str:
    """The deployment of most tokens within the limits by the forecast alone; of all where none is within them."""
    values = choices.values(choices.forecast)
    allowed = [row for row, one in enumerate(choices.forecast) if _within(question, one.ttft_s, one.tpot_s)]
    return str(choices.rows[max(allowed or range(len(choices)), key=lambda row: float(values[row, 0]))].plan)


def _within(limits: ServeQuestion, ttft_s: float | None, tpot_s: float | None) -> bool:
    return (ttft_s or 0.0) <= (limits.ttft_s or np.inf) and (tpot_s or 0.0) <= (limits.tpot_s or np.inf)


def _frontier_rows(choices: DeploymentChoices, measured: dict[int, RoundFigures]) -> set[int]:
    if not measured:
        return set()
    rows = sorted(measured)
    values = np.array([[measured[row].tokens_per_s / choices.rows[row].plan.tp, measured[row].tpot_s] for row in rows])
    return {row for row, kept in zip(rows, on_frontier(values), strict=True) if kept}


def _unmeasured(
    choices: DeploymentChoices, measured: dict[int, RoundFigures], gone: set[int]
) -> tuple[tuple[str, float, float], ...]:
    """(plan, tokens/s/GPU, TPOT) of the frontier that is believed in and was not tried."""
    now = choices.values(believed(choices, measured))
    left = [row for row, keep in enumerate(on_frontier(now)) if keep and row not in gone]
    return tuple((str(choices.rows[row].plan), float(now[row, 0]), float(now[row, 1])) for row in left)


def _line(
    trial: FrozenTrial, choices: DeploymentChoices, corrected: tuple[RoundFigures, ...], frontier: set[int]
) -> ServingLine:
    a, row, outcome = trial.user_attrs, choices.row_of(trial.params), names.outcome_of(trial)
    expected = corrected[row] if row is not None and outcome == names.MEASURED else None
    size = choices.rows[row].plan.tp if row is not None else 1
    return ServingLine(
        trial=trial.number,
        plan=str(a.get(names.PLAN, "-")),
        outcome=outcome,
        predicted_tokens=a.get(PREDICTED_TOKENS),
        measured_tokens=a.get(MEASURED_TOKENS),
        corrected_tokens=None if expected is None else expected.tokens_per_s / size,
        predicted_tpot_s=a.get(PREDICTED_TPOT),
        measured_tpot_s=a.get(TPOT),
        corrected_tpot_s=None if expected is None else expected.tpot_s,
        measured_ttft_s=a.get(TTFT),
        on_frontier=expected is not None and row in frontier,
        message=str(a.get(names.MESSAGE, "")),
    )


def _correction(
    choices: DeploymentChoices, measured: dict[int, RoundFigures], corrected: tuple[RoundFigures, ...]
) -> Correction | None:
    if not measured:
        return None
    learned = choices.learned(measured)

    def error(figures: tuple[RoundFigures, ...]) -> float:
        ratios = [figures[row].tokens_per_s / m.tokens_per_s for row, m in measured.items()]
        ratios += [figures[row].tpot_s / m.tpot_s for row, m in measured.items()]
        return statistics.median(abs(ratio - 1.0) for ratio in ratios)

    return Correction(
        operators=learned.factor,
        communication=learned.communication_factor,
        host_s=learned.host_s,
        request_s=learned.request_s,
        error_before=error(choices.forecast),
        error_after=error(corrected),
    )


def _ranks(front: list[ServingLine]) -> tuple[float, float] | None:
    if len(front) < MIN_TO_RANK:
        return None
    from scipy.stats import spearmanr  # a second of every start

    speed = spearmanr([line.measured_tokens for line in front], [line.corrected_tokens for line in front]).statistic
    step = spearmanr([line.measured_tpot_s for line in front], [line.corrected_tpot_s for line in front]).statistic
    return float(speed), float(step)


CAN_BENCHMARK = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ('torch', 'scipy'))))"


class ServingKind(StudyKind[ServingSettings, ServingWork]):
    """Studies of deployments."""

    command = "autoconfig deployments"
    settings = ServingSettings

    def ask(self, settings: ServingSettings, options: Options, table: Path | None = None) -> ServingWork:
        question = understand(settings.request)
        _check_length(question)
        limit, assumed = settings.device_memory_bytes, question.assumed
        if settings.device == "cpu":
            limit = rank_memory_bytes(question.num_gpus) if limit is None else limit
            settings = replace(settings, device_memory_bytes=limit)
        if table is not None:
            assert limit is not None
            gpu, source = gpu_of_file(str(table))
            assumed = (
                Remark("gpu", gpu.id, f"{source}, in fp32", Effect.EVERYTHING),
                Remark("device_memory", limit / GIB, ""),
                Remark("isl", settings.request.isl, ""),
                Remark("osl", settings.request.osl, ""),
            )
            question = replace(question, gpu=replace(gpu, memory_bytes=limit), gpus_per_node=question.num_gpus)
        elif settings.device == "cuda" and limit is not None:
            question = replace(question, gpu=replace(question.gpu, memory_bytes=limit))
        work = ServingWork(settings=settings, question=question, candidates=candidates_of(question), assumed=assumed)
        work.job(0)
        return work

    def benchmark_python(self, python: str) -> str:
        for one in (python, sys.executable):
            if asked(one, CAN_BENCHMARK).returncode == 0:
                return one
        raise RunnerError(
            f"neither {python} nor {sys.executable} has torch and scipy, which measure this CPU: pip install scipy"
        )

    def found(self, session: Session[ServingWork], price: float | None = None) -> ServingFound:
        trials, choices, question = names.stored_trials(session.study), session.work.candidates, session.work.question
        measured = measured_rows(trials, choices)
        corrected = choices.again(choices.learned(measured)) if measured else choices.forecast
        kept = _frontier_rows(choices, measured)
        lines = [_line(trial, choices, corrected, kept) for trial in names.told(trials)]
        done = [line for line in lines if line.measured_tokens is not None]
        done.sort(key=lambda line: (line.measured_tpot_s or 0.0, line.trial))
        front = [line for line in done if line.on_frontier]
        within = [line for line in done if _within(question, line.measured_ttft_s, line.measured_tpot_s)]
        return ServingFound(
            name=session.name,
            engine=session.work.settings.engine,
            best=max(within, key=lambda line: line.measured_tokens or 0.0, default=None),
            lines=(*done, *(line for line in lines if line.measured_tokens is None)),
            frontier=tuple(line.trial for line in front),
            predicted_best=_predicted_best(question, choices),
            candidates=len(choices),
            correction=_correction(choices, measured, corrected),
            rank_correlation=_ranks(front),
            unmeasured=_unmeasured(choices, measured, {*measured, *names.tried_in_vain(trials, choices)}),
        )

    def write_learned(self, session: Session[ServingWork], target: Path) -> str | None:
        choices, question = session.work.candidates, session.work.question
        measured = measured_rows(names.stored_trials(session.study), choices)
        if not measured:
            return None
        origin = f"study {session.name}, {len(measured)} points"
        return write_serving_calibration(question.engine.name, question.gpu.id, origin, choices.learned(measured), target)


def _check_length(question: ServeQuestion) -> None:
    model, length = question.model, int(question.lengths.isl + question.lengths.osl)
    limited = question.engine.framework == "vllm" or model.position_embedding_type == "learned_absolute"
    if limited and length > model.max_position_embeddings:
        raise InputError(
            f"{option('isl')} + {option('osl')} = {length}: {model.name} has {model.max_position_embeddings} positions"
        )


SERVING = ServingKind()
