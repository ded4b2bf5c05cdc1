"""What is said of a study of serving: tokens per second and GPU, time per token."""

from __future__ import annotations

from typing import Any

from optuna.trial import FrozenTrial

from autoconfig.render.study.screen import ended_otherwise, running, table_of
from autoconfig.study import trials as names
from autoconfig.study.serving.found import ServingFound
from autoconfig.study.serving.proposal import TPOT, TTFT
from autoconfig.study.serving.work import MEASURED_TOKENS, PREDICTED_TOKENS, PREDICTED_TPOT
from autoconfig.study.work import Stage
from autoconfig.study.worker import Worker

COLUMNS = (
    "trial", "plan", "tok/s/GPU, predicted", "measured", "corrected", "TPOT ms, predicted", "measured", "corrected", "TTFT ms",
    "",
)  # fmt: skip


class ServingWords:
    """Tokens and times."""

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
            return ended_otherwise(trial)
        ratios = f"{a[MEASURED_TOKENS] / a[PREDICTED_TOKENS]:.2f} and {a[TPOT] / a[PREDICTED_TPOT]:.2f} x predicted"
        ttft = f"TTFT {_ms(a[TTFT])}"
        return f"trial {trial.number}: measured {_speed(a[MEASURED_TOKENS])} at {_ms(a[TPOT])}, {ttft}, {ratios}"

    def status(self, worker: Worker) -> str:
        """Trials, budget left, what runs."""
        trials = worker.study.get_trials(deepcopy=False)
        measured = sum(t.user_attrs.get(names.OUTCOME) == names.MEASURED for t in trials)
        done = f"{worker.study.study_name}: {measured} measured of {len(worker.work.candidates)} deployments"
        return " | ".join([done, *running(worker)])

    def show(self, console: Any, found: ServingFound, reason: str) -> None:
        """The final table, the frontier and what was learned."""
        rows = []
        for line in found.lines:
            word = "frontier" if line.on_frontier else "" if line.outcome == names.MEASURED else line.outcome.replace("_", " ")
            rows.append((
                str(line.trial), line.plan, _n(line.predicted_tokens), _n(line.measured_tokens), _n(line.corrected_tokens),
                _n(line.predicted_tpot_s, 1e3), _n(line.measured_tpot_s, 1e3), _n(line.corrected_tpot_s, 1e3),
                _n(line.measured_ttft_s, 1e3), word,
            ))  # fmt: skip
        console.print(table_of(found.name, COLUMNS, ("plan", ""), rows))
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
            f"{1e3 * c.host_s:.3g} ms an iteration{waits}; error {c.error_before:.0%} before, {c.error_after:.0%} with it "
            "(median)."
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
