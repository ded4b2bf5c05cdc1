"""What is said of a study of training: step times."""

from __future__ import annotations

from typing import Any

from optuna.trial import FrozenTrial

from autoconfig.render.study.screen import ended_otherwise, running, table_of
from autoconfig.study import trials as names
from autoconfig.study.training.found import TrainingFound
from autoconfig.study.work import FULL, Stage
from autoconfig.study.worker import Worker

COLUMNS = (
    "trial", "plan", "predicted", "measured", "ratio", "spread", "peak GiB, predicted", "measured", "outcome",
)  # fmt: skip


class TrainingWords:
    """Step times."""

    def started(self, trial: FrozenTrial, stage: Stage, again: bool) -> str:
        """`trial 3: tp=2,... predicted 0.41 s; why`."""
        attributes = trial.user_attrs
        kind = "" if stage.name == FULL else f" ({stage.name})"
        why = "found again" if again else attributes.get(names.WHY)
        text = f"trial {trial.number}: {attributes.get(names.PLAN)}{kind}, predicted {stage.predicted_s:.4g} s"
        return text if why is None else f"{text}; {why}"

    def ended(self, trial: FrozenTrial) -> str:
        """What a trial brought."""
        attributes = trial.user_attrs
        seconds = attributes.get(names.STEP_SECONDS)
        if seconds is None:
            return ended_otherwise(trial)
        ratio = seconds / attributes[names.PREDICTED]
        peak = f", peak {attributes[names.PEAK_GIB]:.3g} GiB" if names.PEAK_GIB in attributes else ""
        how = "composed of emulated ranks" if attributes[names.OUTCOME] == names.EMULATED else "measured"
        return f"trial {trial.number}: {how} {seconds:.4g} s, {ratio:.2f} x predicted{peak}"

    def status(self, worker: Worker) -> str:
        """Trials, best so far, budget left, what runs, what may still change."""
        trials = worker.study.get_trials(deepcopy=False)
        measured = [t for t in trials if t.user_attrs.get(names.STEP_SECONDS) is not None]
        best = min(measured, key=lambda t: t.user_attrs[names.STEP_SECONDS], default=None)
        parts = [f"{worker.study.study_name}: {len(measured)} measured of {len(worker.work.candidates)} candidates"]
        if best is not None:
            predicted, seconds = best.user_attrs[names.PREDICTED], best.user_attrs[names.STEP_SECONDS]
            parts.append(f"best {best.user_attrs[names.PLAN]} {seconds:.4g} s (predicted {predicted:.4g} s)")
            if worker.proposal is not None:
                parts.append(f"another may win: {worker.proposal.chance_to_change:.0%}")
        return " | ".join([*parts, *running(worker)])

    def show(self, console: Any, found: TrainingFound, reason: str) -> None:
        """The final table and what was learned."""
        rows = (
            (
                str(line.trial), line.plan, _s(line.predicted_s), _s(line.measured_s), _x(line.ratio), _s(line.spread_s),
                _x(line.predicted_peak_gib), _x(line.measured_peak_gib), line.outcome.replace("_", " "),
            )
            for line in found.lines
        )  # fmt: skip
        console.print(table_of(found.name, COLUMNS, ("plan", "outcome"), rows))
        console.print(f"Stopped: {reason}.")
        if found.best is None:
            console.print("Nothing was measured.")
            return
        console.print(f"Winner: {found.best.plan}, {_s(found.best.measured_s)}; the prediction's first was {found.prior_best}")
        if (other := found.measured_less) is not None:
            console.print(
                f"Trial {other.trial} measured less, {_s(other.measured_s)}: with the noise of both, the prediction and what "
                "like plans measured, the winner is likelier to be the faster one."
            )
        if found.best.outcome == names.EMULATED:
            console.print("Steps are composed of emulated ranks: compute and memory measured, communication predicted.")
        if found.tokens_per_money is not None:
            console.print(f"Cost: the winner trains {found.tokens_per_money:,.0f} tokens per unit of money (--price).")
        if found.front:
            console.print(
                f"Step time against free memory, the trials that no other beats in both: {', '.join(map(str, found.front))}"
            )
        if found.noise is not None:
            console.print(
                f"Noise: the timed steps of a job spread over {found.noise:.1%} of their median (median of the jobs)."
            )
        if found.noise_between_jobs is not None:
            console.print(
                f"Jobs of one plan scatter by {found.noise_between_jobs:.1%} (measured again): plans closer than that are not "
                "told apart, and where it is large the winner rests on the prediction too."
            )
        if found.correction is not None and found.scatter is not None:
            console.print(
                f"Learned: measured is {found.correction:.2f} x predicted (median), plans up to {found.scatter:.0%} off it; "
                f"peaks {found.memory_correction:.2f} x predicted."
            )
        for shape in found.shapes:
            console.print(f"  {shape.shape}: x {shape.ratio:.2f} ({shape.trials} trial{'s' * (shape.trials > 1)})")
        for plan, seconds, spread in found.unmeasured:
            console.print(f"Not measured: {plan}, now expected {_s(seconds)}, give or take {spread:.0%}")


def _s(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g} s"


def _x(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
