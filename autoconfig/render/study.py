"""What a person sees of a study: while it runs (live on a terminal, else lines, nothing with --quiet), and what it found."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TextIO, cast

from optuna.trial import FrozenTrial

from autoconfig.render.screen import table_of
from autoconfig.study import trials as names
from autoconfig.study.serving.session import ServingFound
from autoconfig.study.training.session import TrainingFound
from autoconfig.study.trials import MEASURED_TOKENS, PREDICTED_TOKENS, PREDICTED_TPOT, TPOT, TTFT
from autoconfig.study.work import FULL, Stage, Verdict
from autoconfig.study.worker import Listener, Worker

REFRESH_S = 0.5
LAST_LINES = 12


class Words(Protocol):
    """What is said of a kind of study."""

    def started(self, trial: FrozenTrial, stage: Stage, again: bool) -> str:
        """What runs now and why."""

    def ended(self, trial: FrozenTrial) -> str:
        """What a trial brought."""

    def status(self, worker: Worker) -> str:
        """How far it is."""

    def show(self, console: Any, found: Any, reason: str) -> None:
        """The final table and what was learned."""


class _Speaking(Listener):
    def __init__(self, words: Words) -> None:
        self._words = words

    def started(self, trial: FrozenTrial, stage: Stage, again: bool) -> None:
        self.say(self._words.started(trial, stage, again))

    def ended(self, trial: FrozenTrial, verdict: Verdict) -> None:
        self.say(self._words.ended(trial))


class Plain(_Speaking):
    """One line per event."""

    def __init__(self, stream: TextIO, words: Words) -> None:
        super().__init__(words)
        self._stream, self._ended = stream, False

    def ended(self, trial: FrozenTrial, verdict: Verdict) -> None:
        super().ended(trial, verdict)
        self._ended = True

    def tick(self, worker: Worker) -> None:
        left = budget_left(worker) if self._ended else ""
        self._ended = False
        if left:
            self.say(f"budget: {left}")

    def say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class Live(_Speaking):
    """A table that is drawn again; the lines of the last events below it."""

    def __init__(self, live: Any, words: Words) -> None:
        super().__init__(words)
        self._live, self._drawn = live, 0.0
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines = [*self.lines, text][-LAST_LINES:]
        self._drawn = 0.0

    def tick(self, worker: Worker) -> None:
        from rich.console import Group
        from rich.text import Text

        now = time.monotonic()
        if now - self._drawn >= REFRESH_S:
            self._drawn = now
            lines = (Text(line) for line in self.lines)
            self._live.update(Group(Text(self._words.status(worker), style="bold"), *lines), refresh=True)


class _Terminal:
    """A terminal that may be closed at any moment: what is written then is lost. SIGHUP, which follows, ends the search."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._out.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._out.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)


@contextmanager
def screen(words: Words, *, quiet: bool) -> Iterator[Listener]:
    """The listener that fits the terminal."""
    out = sys.stderr
    if quiet:
        yield Listener()
    elif not out.isatty():
        yield Plain(out, words)
    else:
        import rich.live
        from rich.console import Console

        out = cast(TextIO, _Terminal(out))
        with rich.live.Live(console=Console(file=out, highlight=False), auto_refresh=False) as live:
            listener = Live(live, words)
            yield listener
            live.update("", refresh=True)
        for line in listener.lines:
            print(line, file=out)


def budget_left(worker: Worker) -> str:
    """`4.2 min, 3 trials left`; empty where nothing is limited."""
    parts, budget = [], worker.budget
    if (seconds := worker.seconds_left()) is not None:
        parts.append(f"{max(0, seconds) / 60:.1f} min")
    if budget.gpu_hours is not None:
        parts.append(f"{max(0, budget.gpu_hours - worker.gpu_hours):.3g} GPU-hours")
    if budget.trials is not None:
        left = max(0, budget.trials - worker.ended_here)
        parts.append(f"{left} trial{'s' * (left != 1)}")
    return f"{', '.join(parts)} left" if parts else ""


def running(worker: Worker) -> list[str]:
    """What is left of the budget, and the trials that run."""
    found = [f"{one.trial.number} for {worker.clock() - one.since:.0f} s" for one in worker.running]
    return [*filter(None, [budget_left(worker)]), f"running: {', '.join(found) or 'nothing'}"]


def ended_otherwise(trial: FrozenTrial) -> str:
    """`trial 3: out of memory. ...`, of one that was not measured."""
    said = f"{str(trial.user_attrs.get(names.OUTCOME)).replace('_', ' ')}. {trial.user_attrs.get(names.MESSAGE, '')}"
    return f"trial {trial.number}: {said}".rstrip(". ")


SERVING_COLUMNS = (
    "trial", "plan", "tok/s/GPU, predicted", "measured", "corrected", "TPOT ms, predicted", "measured", "corrected", "TTFT ms",
    "",
)  # fmt: skip


class ServingWords:
    """Tokens and times."""

    def started(self, trial: FrozenTrial, stage: Stage, again: bool) -> str:
        a = trial.user_attrs
        why = "found again" if again else a.get(names.WHY)
        text = f"trial {trial.number}: {a.get(names.PLAN)}, predicted {_speed(a[PREDICTED_TOKENS])} at {_ms(a[PREDICTED_TPOT])}"
        return text if why is None else f"{text}; {why}"

    def ended(self, trial: FrozenTrial) -> str:
        a = trial.user_attrs
        if a.get(names.OUTCOME) != names.MEASURED:
            return ended_otherwise(trial)
        ratios = f"{a[MEASURED_TOKENS] / a[PREDICTED_TOKENS]:.2f} and {a[TPOT] / a[PREDICTED_TPOT]:.2f} x predicted"
        ttft = f"TTFT {_ms(a[TTFT])}"
        return f"trial {trial.number}: measured {_speed(a[MEASURED_TOKENS])} at {_ms(a[TPOT])}, {ttft}, {ratios}"

    def status(self, worker: Worker) -> str:
        trials = names.stored_trials(worker.study)
        measured = sum(t.user_attrs.get(names.OUTCOME) == names.MEASURED for t in trials)
        done = f"{worker.study.study_name}: {measured} measured of {len(worker.work.candidates)} deployments"
        return " | ".join([done, *running(worker)])

    def show(self, console: Any, found: ServingFound, reason: str) -> None:
        rows = []
        for line in found.lines:
            word = "frontier" if line.on_frontier else "" if line.outcome == names.MEASURED else line.outcome.replace("_", " ")
            rows.append((
                str(line.trial), line.plan, _n(line.predicted_tokens), _n(line.measured_tokens), _n(line.corrected_tokens),
                _n(line.predicted_tpot_s, 1e3), _n(line.measured_tpot_s, 1e3), _n(line.corrected_tpot_s, 1e3),
                _n(line.measured_ttft_s, 1e3), word,
            ))  # fmt: skip
        console.print(table_of(SERVING_COLUMNS, rows, left=("plan", ""), fold=SERVING_COLUMNS, title=f"study {found.name}"))
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


TRAINING_COLUMNS = (
    "trial", "plan", "predicted", "measured", "ratio", "spread", "peak GiB, predicted", "measured", "outcome",
)  # fmt: skip


class TrainingWords:
    """Step times."""

    def started(self, trial: FrozenTrial, stage: Stage, again: bool) -> str:
        attributes = trial.user_attrs
        kind = "" if stage.name == FULL else f" ({stage.name})"
        why = "found again" if again else attributes.get(names.WHY)
        text = f"trial {trial.number}: {attributes.get(names.PLAN)}{kind}, predicted {stage.predicted_s:.4g} s"
        return text if why is None else f"{text}; {why}"

    def ended(self, trial: FrozenTrial) -> str:
        attributes = trial.user_attrs
        seconds = attributes.get(names.STEP_SECONDS)
        if seconds is None:
            return ended_otherwise(trial)
        ratio = seconds / attributes[names.PREDICTED]
        peak = f", peak {attributes[names.PEAK_GIB]:.3g} GiB" if names.PEAK_GIB in attributes else ""
        how = "composed of emulated ranks" if attributes[names.OUTCOME] == names.EMULATED else "measured"
        return f"trial {trial.number}: {how} {seconds:.4g} s, {ratio:.2f} x predicted{peak}"

    def status(self, worker: Worker) -> str:
        trials = names.stored_trials(worker.study)
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
        rows = (
            (
                str(line.trial), line.plan, _s(line.predicted_s), _s(line.measured_s), _x(line.ratio), _s(line.spread_s),
                _x(line.predicted_peak_gib), _x(line.measured_peak_gib), line.outcome.replace("_", " "),
            )
            for line in found.lines
        )  # fmt: skip
        console.print(
            table_of(TRAINING_COLUMNS, rows, left=("plan", "outcome"), fold=TRAINING_COLUMNS, title=f"study {found.name}")
        )
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
