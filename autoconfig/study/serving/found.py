"""What a study of serving found: measured beside predicted, the frontier, the correction; its words on a screen."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from optuna.trial import FrozenTrial, TrialState
from scipy.stats import spearmanr

from autoconfig.render.study import budget_left
from autoconfig.study import trials as names
from autoconfig.study.jobs import Stage
from autoconfig.study.serving.proposal import TPOT, TTFT, believed, measured_rows, on_frontier
from autoconfig.study.serving.rounds import RoundFigures
from autoconfig.study.serving.session import ServingSession
from autoconfig.study.serving.work import MEASURED_TOKENS, PREDICTED_TOKENS, PREDICTED_TPOT
from autoconfig.study.worker import Worker

LEAST_TO_RANK = 3
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


def serving_found(session: ServingSession) -> ServingFound:
    """Everything that the finished trials say."""
    trials, choices = session.study.get_trials(deepcopy=False), session.candidates
    measured = measured_rows(trials, choices)
    corrected = choices.again(choices.learned(measured)) if measured else choices.forecast
    kept = _frontier_rows(session, measured)
    lines = [_line(t, session, corrected, kept) for t in trials if t.user_attrs.get(names.OUTCOME) != names.DUPLICATE]
    done = [line for line in lines if line.measured_tokens is not None]
    done.sort(key=lambda line: (line.measured_tpot_s or 0.0, line.trial))
    front = [line for line in done if line.on_frontier]
    within = [line for line in done if _within(session, line.measured_ttft_s, line.measured_tpot_s)]
    before = choices.values(choices.forecast)
    allowed = [r for r, f in enumerate(choices.forecast) if _within(session, f.ttft_s, f.tpot_s)] or range(len(choices))
    now = choices.values(believed(choices, measured))
    gone = {*measured, *names.tried_in_vain(trials, choices)}
    left = [row for row, keep in enumerate(on_frontier(now)) if keep and row not in gone]
    return ServingFound(
        name=session.name,
        engine=session.settings.engine,
        best=max(within, key=lambda line: line.measured_tokens or 0.0, default=None),
        lines=(*done, *(line for line in lines if line.measured_tokens is None)),
        frontier=tuple(line.trial for line in front),
        predicted_best=str(choices.rows[max(allowed, key=lambda r: float(before[r, 0]))].plan),
        candidates=len(choices),
        correction=_correction(session, measured, corrected),
        rank_correlation=_ranks(front),
        unmeasured=tuple((str(choices.rows[row].plan), float(now[row, 0]), float(now[row, 1])) for row in left),
    )


def _within(session: ServingSession, ttft_s: float | None, tpot_s: float | None) -> bool:
    limits = session.question
    return (ttft_s or 0.0) <= (limits.ttft_s or np.inf) and (tpot_s or 0.0) <= (limits.tpot_s or np.inf)


def _frontier_rows(session: ServingSession, measured: dict[int, RoundFigures]) -> set[int]:
    if not measured:
        return set()
    rows = sorted(measured)
    plans = session.candidates.rows
    values = np.array([[measured[row].tokens_per_s / plans[row].plan.tp, measured[row].tpot_s] for row in rows])
    return {row for row, kept in zip(rows, on_frontier(values), strict=True) if kept}


def _line(trial: FrozenTrial, session: ServingSession, corrected: tuple[RoundFigures, ...], frontier: set[int]) -> ServingLine:
    a, row = trial.user_attrs, names.row_of(trial, session.candidates)
    outcome = a.get(names.OUTCOME) or ("running" if trial.state == TrialState.RUNNING else "unknown")
    ran = row is not None and outcome == names.MEASURED
    expected = corrected[row] if ran and row is not None else None
    size = session.candidates.rows[row].plan.tp if row is not None else 1
    return ServingLine(
        trial=trial.number,
        plan=str(a.get(names.PLAN, "-")),
        outcome=str(outcome),
        predicted_tokens=a.get(PREDICTED_TOKENS),
        measured_tokens=a.get(MEASURED_TOKENS),
        corrected_tokens=None if expected is None else expected.tokens_per_s / size,
        predicted_tpot_s=a.get(PREDICTED_TPOT),
        measured_tpot_s=a.get(TPOT),
        corrected_tpot_s=None if expected is None else expected.tpot_s,
        measured_ttft_s=a.get(TTFT),
        on_frontier=ran and row in frontier,
        message=str(a.get(names.MESSAGE, "")),
    )


def _correction(
    session: ServingSession, measured: dict[int, RoundFigures], corrected: tuple[RoundFigures, ...]
) -> Correction | None:
    if not measured:
        return None
    learned = session.candidates.learned(measured)

    def error(figures: tuple[RoundFigures, ...]) -> float:
        ratios = [figures[row].tokens_per_s / m.tokens_per_s for row, m in measured.items()]
        ratios += [figures[row].tpot_s / m.tpot_s for row, m in measured.items()]
        return statistics.median(abs(ratio - 1.0) for ratio in ratios)

    return Correction(
        operators=learned.factor,
        communication=learned.communication_factor,
        host_s=learned.host_s,
        request_s=learned.request_s,
        error_before=error(session.candidates.forecast),
        error_after=error(corrected),
    )


def _ranks(front: list[ServingLine]) -> tuple[float, float] | None:
    if len(front) < LEAST_TO_RANK:
        return None
    speed = spearmanr([line.measured_tokens for line in front], [line.corrected_tokens for line in front]).statistic
    step = spearmanr([line.measured_tpot_s for line in front], [line.corrected_tpot_s for line in front]).statistic
    return float(speed), float(step)


def serving_json(found: ServingFound) -> dict[str, Any]:
    """For programs."""
    body = {"schema_version": 1, **asdict(found)}
    body["unmeasured"] = [{"plan": p, "tokens_per_s_per_gpu": s, "tpot_s": t} for p, s, t in found.unmeasured]
    return body


class ServingWords:
    """Lines of `study.screen` about deployments."""

    def started(self, trial: FrozenTrial, stage: Stage, again: bool) -> str:
        """`trial 3: tp=2,..., predicted 410 tok/s/GPU at 21 ms; why`."""
        a = trial.user_attrs
        why = "found again" if again else a.get(names.WHY)
        text = f"trial {trial.number}: {a.get(names.PLAN)}, predicted {_speed(a[PREDICTED_TOKENS])} at {_ms(a[PREDICTED_TPOT])}"
        return text if why is None else f"{text}; {why}"

    def ended(self, trial: FrozenTrial) -> str:
        """What a trial brought."""
        a = trial.user_attrs
        if a.get(names.OUTCOME) != names.MEASURED:
            said = f"{str(a.get(names.OUTCOME)).replace('_', ' ')}. {a.get(names.MESSAGE, '')}"
            return f"trial {trial.number}: {said}".rstrip(". ")
        ratios = f"{a[MEASURED_TOKENS] / a[PREDICTED_TOKENS]:.2f} and {a[TPOT] / a[PREDICTED_TPOT]:.2f} x predicted"
        ttft = f"TTFT {_ms(a[TTFT])}"
        return f"trial {trial.number}: measured {_speed(a[MEASURED_TOKENS])} at {_ms(a[TPOT])}, {ttft}, {ratios}"

    def status(self, worker: Worker) -> str:
        """Trials, budget left, what runs."""
        trials = worker.study.get_trials(deepcopy=False)
        measured = sum(t.user_attrs.get(names.OUTCOME) == names.MEASURED for t in trials)
        parts = [f"{worker.study.study_name}: {measured} measured of {len(worker.candidates)} deployments"]
        if left := budget_left(worker):
            parts.append(left)
        running = [f"{one.trial.number} for {worker.clock() - one.since:.0f} s" for one in worker.running]
        return " | ".join([*parts, f"running: {', '.join(running) or 'nothing'}"])


def show_serving(console: Any, found: ServingFound, reason: str) -> None:
    """The final table, the frontier and what was learned."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 1), header_style="bold", title=f"study {found.name}", title_justify="left")
    for column, justify in (("trial", "right"), ("plan", "left"), ("tok/s/GPU, predicted", "right"), ("measured", "right"),
                            ("corrected", "right"), ("TPOT ms, predicted", "right"), ("measured", "right"),
                            ("corrected", "right"), ("TTFT ms", "right"), ("", "left")):  # fmt: skip
        table.add_column(column, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for line in found.lines:
        word = "frontier" if line.on_frontier else "" if line.outcome == names.MEASURED else line.outcome.replace("_", " ")
        table.add_row(
            str(line.trial), line.plan, _n(line.predicted_tokens), _n(line.measured_tokens), _n(line.corrected_tokens),
            _n(line.predicted_tpot_s, 1e3), _n(line.measured_tpot_s, 1e3), _n(line.corrected_tpot_s, 1e3),
            _n(line.measured_ttft_s, 1e3), word,
        )  # fmt: skip
    console.print(table)
    console.print(f"Stopped: {reason}.")
    if found.correction is None:
        console.print("Nothing was measured.")
        return
    if found.best is None:
        console.print("Nothing that was measured is within the limits.")
    else:
        speed, step = _speed(found.best.measured_tokens or 0.0), _ms(found.best.measured_tpot_s or 0.0)
        console.print(f"Best: {found.best.plan}, {speed} at {step}; the prediction's first was {found.predicted_best}")
    console.print(f"Frontier, fastest user first: trials {', '.join(map(str, found.frontier))}")
    c = found.correction
    waits = f" and {1e3 * c.request_s:.3g} ms a request" if c.request_s else ""
    console.print(
        f"Learned: operators take {c.operators:.2f} x their prediction, communication {c.communication:.2f} x, the host "
        f"{1e3 * c.host_s:.3g} ms an iteration{waits}; error {c.error_before:.0%} before, {c.error_after:.0%} with it (median)."
    )
    if found.rank_correlation is not None:
        console.print("Spearman over the frontier: {:.2f} throughput, {:.2f} TPOT.".format(*found.rank_correlation))
    for plan, speed_left, step_left in found.unmeasured:
        console.print(f"Not measured, expected on the frontier: {plan}, {_speed(speed_left)} at {_ms(step_left)}")


def _speed(value: float) -> str:
    return f"{value:,.4g} tok/s/GPU" if value < 1000 else f"{value:,.0f} tok/s/GPU"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def _n(value: float | None, scale: float = 1.0) -> str:
    return "-" if value is None else f"{value * scale:,.4g}" if abs(value * scale) < 1000 else f"{value * scale:,.0f}"
