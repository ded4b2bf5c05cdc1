"""What a person sees while a study runs: a live table on a terminal, plain lines elsewhere, nothing with --quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TextIO, cast

from optuna.trial import FrozenTrial

from autoconfig.study import trials as names
from autoconfig.study.jobs import FULL, Stage
from autoconfig.study.training.found import Found
from autoconfig.study.verdicts import Verdict
from autoconfig.study.worker import Worker

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


class TrainingWords:
    """Step times."""

    def started(self, trial: FrozenTrial, stage: Stage, again: bool) -> str:
        """`started_line`."""
        return started_line(trial, stage, again)

    def ended(self, trial: FrozenTrial) -> str:
        """`ended_line`."""
        return ended_line(trial)

    def status(self, worker: Worker) -> str:
        """`status_line`."""
        return status_line(worker)


class Quiet:
    """Says nothing."""

    def started(self, trial: FrozenTrial, stage: Stage, again: bool) -> None:
        """Nothing."""

    def ended(self, trial: FrozenTrial, verdict: Verdict) -> None:
        """Nothing."""

    def tick(self, worker: Worker) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""


class Plain(Quiet):
    """One line per event."""

    def __init__(self, stream: TextIO, words: Words) -> None:
        """Where lines go."""
        self._stream, self._words = stream, words
        self._ended = False

    def started(self, trial: FrozenTrial, stage: Stage, again: bool) -> None:
        """What runs now and why."""
        self.say(self._words.started(trial, stage, again))

    def ended(self, trial: FrozenTrial, verdict: Verdict) -> None:
        """What came of it."""
        self.say(self._words.ended(trial))
        self._ended = True

    def tick(self, worker: Worker) -> None:
        """What is left of the budget, after each trial."""
        left = budget_left(worker) if self._ended else ""
        self._ended = False
        if left:
            self.say(f"budget: {left}")

    def say(self, text: str) -> None:
        """The line."""
        print(text, file=self._stream, flush=True)


class Live(Quiet):
    """A table that is drawn again; the lines of the last events below it."""

    def __init__(self, live: Any, words: Words) -> None:
        """`live`: rich's."""
        self._live, self._words = live, words
        self._lines: list[str] = []
        self._drawn = 0.0

    def started(self, trial: FrozenTrial, stage: Stage, again: bool) -> None:
        """Remembered."""
        self.say(self._words.started(trial, stage, again))

    def ended(self, trial: FrozenTrial, verdict: Verdict) -> None:
        """Remembered."""
        self.say(self._words.ended(trial))

    def say(self, text: str) -> None:
        """Remembered."""
        self._lines = [*self._lines, text][-LAST_LINES:]
        self._drawn = 0.0

    def tick(self, worker: Worker) -> None:
        """Draw, twice a second at most."""
        from rich.console import Group
        from rich.text import Text

        now = time.monotonic()
        if now - self._drawn >= REFRESH_S:
            self._drawn = now
            self._live.update(
                Group(Text(self._words.status(worker), style="bold"), *(Text(line) for line in self._lines)), refresh=True
            )


class _Terminal:
    """A terminal that may be closed at any moment: what is written then is lost. SIGHUP, which follows, ends the search."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def write(self, text: str) -> int:
        """All of it, or nothing."""
        with suppress(OSError):
            self._out.write(text)
        return len(text)

    def flush(self) -> None:
        """As far as it goes."""
        with suppress(OSError):
            self._out.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)


@contextmanager
def screen(*, quiet: bool, stream: TextIO | None = None, words: Words | None = None) -> Iterator[Quiet]:
    """The listener that fits the terminal."""
    out, words = sys.stderr if stream is None else stream, words or TrainingWords()
    if quiet:
        yield Quiet()
    elif not out.isatty():
        yield Plain(out, words)
    else:
        from rich.console import Console
        from rich.live import Live as RichLive

        out = cast(TextIO, _Terminal(out))
        with RichLive(console=Console(file=out, highlight=False), auto_refresh=False) as live:
            listener = Live(live, words)
            yield listener
            live.update("", refresh=True)
        for line in listener._lines:
            print(line, file=out)


def started_line(trial: FrozenTrial, stage: Stage, again: bool) -> str:
    """`trial 3: tp=2,... predicted 0.41 s; why`."""
    attributes = trial.user_attrs
    kind = "" if stage.name == FULL else f" ({stage.name})"
    why = "found again" if again else attributes.get(names.WHY)
    text = f"trial {trial.number}: {attributes.get(names.PLAN)}{kind}, predicted {stage.predicted_s:.4g} s"
    return text if why is None else f"{text}; {why}"


def ended_line(trial: FrozenTrial) -> str:
    """What a trial brought."""
    attributes = trial.user_attrs
    outcome, seconds = attributes.get(names.OUTCOME), attributes.get(names.STEP_SECONDS)
    if seconds is None:
        return f"trial {trial.number}: {str(outcome).replace('_', ' ')}. {attributes.get(names.MESSAGE, '')}".rstrip(". ")
    ratio = seconds / attributes[names.PREDICTED]
    peak = f", peak {attributes[names.PEAK_GIB]:.3g} GiB" if names.PEAK_GIB in attributes else ""
    how = "composed of emulated ranks" if outcome == names.EMULATED else "measured"
    return f"trial {trial.number}: {how} {seconds:.4g} s, {ratio:.2f} x predicted{peak}"


def status_line(worker: Worker) -> str:
    """Trials, best so far, budget left, what runs, what may still change."""
    trials = worker.study.get_trials(deepcopy=False)
    measured = [t for t in trials if t.user_attrs.get(names.STEP_SECONDS) is not None]
    best = min(measured, key=lambda t: t.user_attrs[names.STEP_SECONDS], default=None)
    parts = [f"{worker.study.study_name}: {len(measured)} measured of {len(worker.candidates)} candidates"]
    if best is not None:
        predicted, seconds = best.user_attrs[names.PREDICTED], best.user_attrs[names.STEP_SECONDS]
        parts.append(f"best {best.user_attrs[names.PLAN]} {seconds:.4g} s (predicted {predicted:.4g} s)")
    if worker.proposal is not None and best is not None:
        parts.append(f"another may win: {worker.proposal.chance_to_change:.0%}")
    if left := budget_left(worker):
        parts.append(left)
    running = [f"{one.trial.number} for {worker.clock() - one.since:.0f} s" for one in worker.running]
    return " | ".join([*parts, f"running: {', '.join(running) or 'nothing'}"])


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


def show_found(console: Any, found: Found, reason: str) -> None:
    """The final table and what was learned."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 1), header_style="bold", title=f"study {found.name}", title_justify="left")
    for column, justify in (("trial", "right"), ("plan", "left"), ("predicted", "right"), ("measured", "right"),
                            ("ratio", "right"), ("spread", "right"), ("peak GiB, predicted", "right"),
                            ("measured", "right"), ("outcome", "left")):  # fmt: skip
        table.add_column(column, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for line in found.lines:
        table.add_row(
            str(line.trial), line.plan, _s(line.predicted_s), _s(line.measured_s), _x(line.ratio), _s(line.spread_s),
            _g(line.predicted_peak_gib), _g(line.measured_peak_gib), line.outcome.replace("_", " "),
        )  # fmt: skip
    console.print(table)
    console.print(f"Stopped: {reason}.")
    if found.best is None:
        console.print("Nothing was measured.")
        return
    console.print(f"Winner: {found.best.plan}, {_s(found.best.measured_s)}; the prediction's first was {found.prior_best}")
    if (other := found.measured_less) is not None:
        console.print(
            f"Trial {other.trial} measured less, {_s(other.measured_s)}: with the noise of both, the prediction and what like "
            "plans measured, the winner is likelier to be the faster one."
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
        console.print(f"Noise: the timed steps of a job spread over {found.noise:.1%} of their median (median of the jobs).")
    if found.noise_between_jobs is not None:
        console.print(
            f"Jobs of one plan scatter by {found.noise_between_jobs:.1%} (measured again): plans closer than that are not told "
            "apart, and where it is large the winner rests on the prediction too."
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


def _g(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
