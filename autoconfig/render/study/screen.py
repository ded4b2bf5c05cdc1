"""What a person sees while a study runs: a live table on a terminal, plain lines elsewhere, nothing with --quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TextIO, cast

from optuna.trial import FrozenTrial
from rich.table import Table

from autoconfig.study import trials as names
from autoconfig.study.work import Stage, Verdict
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
    """A line for each event."""

    def __init__(self, words: Words) -> None:
        self._words = words

    def started(self, trial: FrozenTrial, stage: Stage, again: bool) -> None:
        self.say(self._words.started(trial, stage, again))

    def ended(self, trial: FrozenTrial, verdict: Verdict) -> None:
        self.say(self._words.ended(trial))


class Plain(_Speaking):
    """One line per event."""

    def __init__(self, stream: TextIO, words: Words) -> None:
        """`stream`: where lines go."""
        super().__init__(words)
        self._stream, self._ended = stream, False

    def ended(self, trial: FrozenTrial, verdict: Verdict) -> None:
        """What came of it; what is left of the budget follows with the next `tick`."""
        super().ended(trial, verdict)
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


class Live(_Speaking):
    """A table that is drawn again; the lines of the last events below it."""

    def __init__(self, live: Any, words: Words) -> None:
        """`live`: rich's."""
        super().__init__(words)
        self._live, self._drawn = live, 0.0
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        """Remembered."""
        self.lines = [*self.lines, text][-LAST_LINES:]
        self._drawn = 0.0

    def tick(self, worker: Worker) -> None:
        """Draw, twice a second at most."""
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


def table_of(name: str, columns: Sequence[str], left: Collection[str], rows: Iterable[Sequence[str]]) -> Table:
    """A study's final table; columns in `left` are no numbers."""
    table = Table(box=None, padding=(0, 1), header_style="bold", title=f"study {name}", title_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if column in left else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table
