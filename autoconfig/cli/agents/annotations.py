"""`check --format github`: what is wrong with a file as annotations on its lines, as a workflow of GitHub Actions reads them
off standard output: `::error file=NAME,line=LINE,title=TITLE::MESSAGE`
(https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands, which says what is escaped)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from autoconfig.engines.check import StartAnswer
from autoconfig.formats.edit import line_in, line_of, line_of_rule, words_of
from autoconfig.megatron.check import CheckAnswer, FlagChange
from autoconfig.megatron.edit import change_text
from autoconfig.render.check import no_verdict
from autoconfig.render.screen import seconds_text
from autoconfig.specs.errors import GIB, chance_text
from autoconfig.specs.remarks import Effect
from autoconfig.training.price import PlanReport

_MESSAGE = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_PROPERTY = _MESSAGE | str.maketrans({":": "%3A", ",": "%2C"})
_LINE = re.compile(r"(?<!\w)line (\d+)")


def annotation(level: str, file: Path, line: int | None, title: str, message: str) -> str:
    """One command of a workflow: `level` is error, warning or notice. Without a line it is the file's first."""
    said = {"file": str(file).translate(_PROPERTY), "line": str(line or 1), "title": title.translate(_PROPERTY)}
    return f"::{level} {','.join(f'{name}={value}' for name, value in said.items())}::{message.translate(_MESSAGE)}"


def not_read(file: Path, message: str) -> str:
    """Of a file that cannot be read, or has no answer: on the line that the message names."""
    named = _LINE.search(message)
    return annotation("error", file, int(named[1]) if named else None, "autoconfig check", message)


def of_check(file: Path, answer: CheckAnswer, most: float | None) -> Iterator[str]:
    """What is wrong with a training run, then what would be better. `most`: the share by which it may be slower."""
    source, report = answer.source, answer.report
    for one in answer.violations:
        nearest = f" Nearest legal plan: {_changes(answer.fixes)}." if answer.fixes else ""
        yield annotation("error", file, line_of_rule(source, one, answer.fixes), one.rule, f"{one.text}.{nearest}")
    for slip in (one for one in source.unknown if one.effect is Effect.EVERYTHING):
        yield annotation("warning", file, line_of(source, slip.field), "unknown argument", str(slip))
    first = next((line for word in words_of(source, "mbs") if (line := line_of(source, word)) is not None), None)
    if report is not None and no_verdict(answer):
        yield annotation("error", file, first, "no verdict", "What the file says and no formula reads decides whether it fits.")
    elif report is not None and not report.fits:
        worst = report.worst_stage
        beyond = (worst.peak_bytes - report.limit_bytes) / GIB
        text = f"Stage {worst.stage} needs {worst.peak_bytes / GIB:.1f} GiB, {beyond:.1f} more than there are."
        yield annotation("error", file, first, "does not fit", text)
    if answer.better is not None:
        yield _of_better(file, answer, answer.better, most)


def _of_better(file: Path, answer: CheckAnswer, better: PlanReport, most: float | None) -> str:
    lines = (line for one in answer.changes if (line := line_of(answer.source, one.flag)) is not None)
    step = seconds_text(better.step_seconds)
    faster = f" {step} a step" + ("." if answer.speedup is None else f", {1 - 1 / answer.speedup:.0%} less.")
    chance = f" Chance to fit {chance_text(better.confidence.fit_probability)}."
    level = "error" if slower(answer.speedup, most) else "notice"
    return annotation(level, file, next(lines, None), "better plan", f"{_changes(answer.changes)}.{faster}{chance}")


def of_start(file: Path, text: str, answer: StartAnswer, most: float | None) -> Iterator[str]:
    """What is wrong with the start of a server."""
    if answer.starts != "yes":
        flags = (change.split(" ")[0] for change in answer.changes)
        line = next((found for flag in flags if (found := line_in(text, flag)) is not None), None)
        ways = f" What makes it start: {'; '.join(answer.changes)}." if answer.changes else ""
        yield annotation("error", file, line, f"starts: {answer.starts}", f"{answer.why}.{ways}".replace("..", "."))
    for one in answer.unknown:
        yield annotation("warning", file, line_in(text, one.split(" ")[0]), "unknown argument", one)
    better = answer.load.better if answer.load is not None else None
    if better is not None:
        changes = "; ".join(" ".join(filter(None, (flag, old and f"{old} ->", new))) for flag, old, new in better.changes)
        level = "error" if slower(speedup_of(answer), most) else "notice"
        yield annotation(level, file, None, "better start", f"{changes}: {better.tokens_per_s:,.0f} tokens/s.")


def speedup_of(answer: StartAnswer) -> float | None:
    """Tokens a second of the better start over the file's, at the load; None where one of them is not known."""
    load = answer.load
    if load is None or load.better is None or not load.tokens_per_s or not load.better.tokens_per_s:
        return None
    return load.better.tokens_per_s / load.tokens_per_s


def slower(speedup: float | None, most: float | None) -> bool:
    """Whether a run is slower than the better one by more than the share `most`."""
    return most is not None and speedup is not None and speedup - 1.0 > most


def _changes(changes: Iterable[FlagChange]) -> str:
    return "; ".join(change_text(change) for change in changes)
