"""What people printed in public about runs of their own, asked as they would ask.

Rows of `tables/field_reports.csv`: a command (its files in `tables/field/`, written anew without names and paths), its source,
and the figures that the report prints: seconds of a step or a rate, GiB at the peak and after the step, and whether it ran, ran
out of memory, or was refused. Nothing was fitted to them.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from click.testing import CliRunner, Result

from autoconfig.cli.main import cli
from autoconfig.runs.table import number
from validation.published import TABLES, published_rows
from validation.sheets.figures import Line, error_line, figures_of, share, share_line, table

MEMORY_WITHIN, STEP_WITHIN, BAND_WITHIN = 0.08, 0.15, 0.25
"""A figure is right where memory is so near, a step so near or in a band no wider."""
LEAST_RIGHT = 0.85
SMALL_MEDIAN, SMALL_INSIDE = 0.12, 0.75
"""Asked of small jobs: median error of the step, and share inside the band."""


RATES = (
    ("step_s", "step_seconds"),
    ("tokens_per_s_per_gpu", "tokens_per_second_per_gpu"),
    ("tflops_per_gpu", "model_tflops_per_gpu"),
)
"""Column of a report, and the field of an answer that it is compared with."""
Answer = dict[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One printed figure beside what is said."""

    id: str
    source: str
    what: str
    """step, peak, after the step, verdict."""
    small: bool
    said: str
    measured: str
    error: float | None = None
    """Predicted over measured, less 1; None of a verdict, and where nothing is said."""
    inside: bool | None = None
    """Of a step: within its 90 % band."""
    right: bool
    cause: str
    """Why it is wrong, where it is known."""


@cache
def figures() -> tuple[Figure, ...]:
    """Ask every command and compare it with each figure of its report."""
    rows = published_rows("field_reports")
    return tuple(figure for row in rows for figure in figures_of_report(row, *asked(row["command"])))


def run(words: list[str]) -> Result:
    """Run a command in the folder of the reports' files."""
    with chdir(TABLES / "field"):
        return CliRunner().invoke(cli, words)


def asked(command: str) -> tuple[Answer, str]:
    """Return the JSON of a command, and where there is none, the last line that it says."""
    done = run([*shlex.split(command), "--json"])
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return None, (done.stderr or done.output or str(done.exception)).strip().rpartition("\n")[2]
    return {**answer, **(answer.get("report") or {})}, ""


def after_step(command: str) -> float | None:
    """Return GiB after the step that `predict` says of the file that `check` reads."""
    lines = run(["predict", *shlex.split(command)[1:]]).stdout.splitlines()
    gib = dict(line.split(": ", 1) for line in lines if ": " in line).get("pred_mem_after_step_gib")
    return float(gib) if gib else None


def figures_of_report(row: dict[str, str], answer: Answer, refusal: str) -> Iterator[Figure]:
    """Yield each figure of a report beside the answer to its question, or beside what is said where there is none."""
    figure = partial(Figure, id=row["id"], source=row["source"], small=row["kind"] == "small", cause=row["cause"])
    nothing: dict[str, Any] = {"said": refusal or "nothing", "right": False}
    if row["outcome"]:
        yield figure(what="verdict", measured=row["outcome"], **_verdict(answer, refusal, row["outcome"]))
    for column, key in RATES:
        if (measured := number(row, column)) is not None:
            value = (answer or {}).get(key)
            step = nothing
            if answer and value:
                error = (value / measured if column == "step_s" else measured / value) - 1
                step = {"said": f"{value:.4g}", **_step(answer, error)}
            yield figure(what="step", measured=f"{measured:g}", **step)
    for column, what in (("peak_gib", "peak"), ("after_step_gib", "after the step")):
        if (measured := number(row, column)) is not None:
            gib = (answer or {}).get("memory", {}).get("peak_gib") if what == "peak" else after_step(row["command"])
            error = gib / measured - 1 if gib else None
            near = (
                {"said": f"{gib:.4g}", "error": error, "right": abs(error) <= MEMORY_WITHIN} if error is not None else nothing
            )
            yield figure(what=what, measured=f"{measured:g}", **near)


def _step(answer: dict[str, Any], error: float) -> dict[str, Any]:
    """Error of a step, whether it lies inside its band, whether it is right."""
    low, high = (answer["confidence"][end] / answer["step_seconds"] for end in ("step_seconds_p5", "step_seconds_p95"))
    inside = low <= 1 / (1 + error) <= high
    return {
        "error": error,
        "inside": inside,
        "right": abs(error) <= STEP_WITHIN or (inside and (high - low) / 2 <= BAND_WITHIN),
    }


def _verdict(answer: Answer, refusal: str, outcome: str) -> dict[str, Any]:
    """Verdict of an answer, or the refusal, and whether it is what came of the run."""
    if answer is None:
        return {"said": refusal, "right": outcome == "refused" or (outcome == "illegal" and "(NV" in refusal)}
    legal, fits, memory = answer.get("legal"), answer.get("fits"), answer.get("memory")
    words = {None: "no verdict", True: "fits", False: "does not fit"}[fits] if legal else "illegal"
    if legal and memory:
        words += f", {memory['peak_gib']:.1f} of {memory['limit_gib']:.1f} GiB"
    right = {"refused": False, "legal": legal, "illegal": not legal, "runs": legal and fits, "oom": legal and fits is False}
    return {"said": words, "right": bool(right[outcome])}


def lines() -> Iterator[Line]:
    """Yield what is held to."""
    yield share_line("field reports: figures right", [f.right for f in figures()], LEAST_RIGHT)
    small = [f for f in figures() if f.small and f.what == "step"]
    errors = [f.error for f in small if f.error is not None]
    yield error_line("field reports: small jobs, median error of the step", errors, SMALL_MEDIAN, np.median)
    yield share_line("field reports: small jobs, steps inside the band", [bool(f.inside) for f in small], SMALL_INSIDE)


def page() -> str:
    """Return the figures as Markdown, those that are wrong first."""
    rows = []
    for what in ("step", "peak", "after the step", "verdict"):
        some = [f for f in figures() if f.what == what]
        errors = figures_of([(f.id, f.error) for f in some if f.error is not None])
        right = share(float(np.mean([f.right for f in some])), ".0%")
        rows.append((what, str(len(some)), share(errors.median), share(errors.bias, "+.1%"), right))
    wrong = [(f.id, f.source, f.what, f.measured, f.said, share(f.error, "+.0%"), f.cause) for f in figures() if not f.right]
    return "\n".join(
        (
            f"{len(figures())} figures of public reports that no constant was fitted to. Right: memory within\n"
            f"{MEMORY_WITHIN:.0%}, a step within {STEP_WITHIN:.0%} or in a band no wider than ±{BAND_WITHIN:.0%}, and what\n"
            "ran, ran out of memory or was refused.\n",
            table("figure | figures | median error | bias | right", rows),
            "## Wrong\n",
            table("report | source | figure | printed | said | error | cause", wrong),
        )
    )
