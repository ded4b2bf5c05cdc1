"""`python -m validation.sheets.field`: what people printed in public about runs of their own, asked as they would ask.

Rows of `tables/field_reports.csv`: a command (its files in `tables/field/`, written anew without names and paths), its source,
and the figures that the report prints: seconds of a step or a rate, GiB at the peak and after the step, and whether it ran, ran
out of memory, or was refused. Nothing was fitted to them.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from click.testing import CliRunner

from autoconfig.cli.main import cli
from autoconfig.runs.table import number
from validation.published import TABLES, published_rows
from validation.sheets.figures import Line, share, table

MEMORY_WITHIN, STEP_WITHIN, BAND_WITHIN = 0.08, 0.15, 0.25
"""A figure is right where memory is so near, a step so near or in a band no wider."""
LEAST_RIGHT = 0.85
SMALL_MEDIAN, SMALL_INSIDE = 0.12, 0.75
"""Asked of small jobs: median error of the step, and share inside the band."""


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
    error: float | None
    """Predicted over measured, less 1; None of a verdict, and where nothing is said."""
    inside: bool | None
    """Of a step: within its 90 % band."""
    right: bool
    cause: str
    """Why it is wrong, where it is known."""


@cache
def figures() -> tuple[Figure, ...]:
    """Ask every command and compare it with each figure of its report."""
    rows = published_rows("field_reports")
    return tuple(figure for row in rows for figure in figures_of_report(row, *asked(row["command"])))


def asked(command: str) -> tuple[dict[str, Any] | None, str]:
    """Return the JSON of a command run in the folder of the reports' files, and where there is none, what it says."""
    with chdir(TABLES / "field"):
        done = CliRunner().invoke(cli, [*shlex.split(command), "--json"])
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return None, (done.stderr or done.output).strip().splitlines()[-1] if done.output or done.stderr else str(
            done.exception
        )
    return {**answer, **(answer.get("report") or {})}, ""


def after_step(command: str) -> float | None:
    """Return GiB after the step that `predict` says of the file that `check` reads."""
    with chdir(TABLES / "field"):
        done = CliRunner().invoke(cli, ["predict", *shlex.split(command)[1:]])
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    return float(said["pred_mem_after_step_gib"]) if said.get("pred_mem_after_step_gib") else None


def figures_of_report(row: dict[str, str], answer: dict[str, Any] | None, refusal: str) -> Iterator[Figure]:
    """Yield each figure of a report beside the answer to its question, or beside what is said where there is none."""
    common: dict[str, Any] = {"id": row["id"], "source": row["source"], "small": row["kind"] == "small", "cause": row["cause"]}
    outcome = row["outcome"]
    if outcome:
        yield _verdict(answer, refusal, outcome, common)
    yield from _speeds(row, answer, refusal, common)
    yield from _memory(row, answer, refusal, common)


def _speeds(row: dict[str, str], answer: dict[str, Any] | None, refusal: str, common: dict[str, Any]) -> Iterator[Figure]:
    rates = (
        ("step_s", "step_seconds"),
        ("tokens_per_s_per_gpu", "tokens_per_second_per_gpu"),
        ("tflops_per_gpu", "model_tflops_per_gpu"),
    )
    for column, key in rates:
        measured = number(row, column)
        if measured is None:
            continue
        value = (answer or {}).get(key)
        if answer is None or not value:
            yield Figure(
                what="step", said=refusal or "nothing", measured=f"{measured:g}", error=None, inside=None, right=False, **common
            )
            continue
        error = (value / measured if column == "step_s" else measured / value) - 1
        step, band = answer["step_seconds"], answer["confidence"]
        low, high = (band[end] / step for end in ("step_seconds_p5", "step_seconds_p95"))
        inside = low <= 1 / (1 + error) <= high
        right = abs(error) <= STEP_WITHIN or (inside and (high - low) / 2 <= BAND_WITHIN)
        yield Figure(
            what="step", said=f"{value:.4g}", measured=f"{measured:g}", error=error, inside=inside, right=right, **common
        )


def _memory(row: dict[str, str], answer: dict[str, Any] | None, refusal: str, common: dict[str, Any]) -> Iterator[Figure]:
    for column, what in (("peak_gib", "peak"), ("after_step_gib", "after the step")):
        measured = number(row, column)
        if measured is None:
            continue
        gib = (answer or {}).get("memory", {}).get("peak_gib") if what == "peak" else after_step(row["command"])
        error = gib / measured - 1 if gib else None
        right = error is not None and abs(error) <= MEMORY_WITHIN
        said = f"{gib:.4g}" if gib else refusal or "nothing"
        yield Figure(what=what, said=said, measured=f"{measured:g}", error=error, inside=None, right=right, **common)


def _verdict(answer: dict[str, Any] | None, refusal: str, outcome: str, common: dict[str, Any]) -> Figure:
    legal, fits = (answer or {}).get("legal"), (answer or {}).get("fits")
    memory = (answer or {}).get("memory") or {}
    said = {None: "no verdict", True: "fits", False: "does not fit"}[fits] if legal else "illegal"
    right = {
        "refused": answer is None,
        "legal": bool(legal),
        "illegal": not legal and (answer is not None or "(NV" in refusal),
        "runs": bool(legal and fits),
        "oom": answer is not None and bool(legal) and fits is False,
    }[outcome]
    if legal and memory:
        said += f", {memory['peak_gib']:.1f} of {memory['limit_gib']:.1f} GiB"
    return Figure(
        what="verdict",
        said=said if answer is not None else refusal,
        measured=outcome,
        error=None,
        inside=None,
        right=right,
        **common,
    )


def lines() -> Iterator[Line]:
    """Yield what is held to."""
    found = figures()
    yield Line(
        name="field reports: figures right",
        rows=len(found),
        reached=float(np.mean([f.right for f in found])),
        least=LEAST_RIGHT,
    )
    small = [f for f in found if f.small and f.what == "step"]
    errors = [abs(f.error) for f in small if f.error is not None]
    yield Line(
        name="field reports: small jobs, median error of the step",
        rows=len(errors),
        reached=float(np.median(errors)),
        most=SMALL_MEDIAN,
    )
    inside = float(np.mean([bool(f.inside) for f in small]))
    yield Line(name="field reports: small jobs, steps inside the band", rows=len(small), reached=inside, least=SMALL_INSIDE)


def page() -> str:
    """Return the figures as Markdown, those that are wrong first."""
    found = figures()
    kinds = [(what, [f for f in found if f.what == what]) for what in ("step", "peak", "after the step", "verdict")]
    rows = []
    for what, some in kinds:
        errors = [f.error for f in some if f.error is not None]
        middle = share(float(np.median(np.abs(errors)))) if errors else "-"
        bias = share(float(np.median(errors)), "+.1%") if errors else "-"
        rows.append((what, str(len(some)), middle, bias, share(float(np.mean([f.right for f in some])), ".0%")))
    wrong = [
        (f.id, f.source, f.what, f.measured, f.said, share(f.error, "+.0%") if f.error is not None else "-", f.cause)
        for f in found
        if not f.right
    ]
    return "\n".join(
        (
            f"{len(found)} figures of public reports that no constant was fitted to. Right: memory within\n"
            f"{MEMORY_WITHIN:.0%}, a step within {STEP_WITHIN:.0%} or in a band no wider than ±{BAND_WITHIN:.0%}, and what\n"
            "ran, ran out of memory or was refused.\n",
            table("figure | figures | median error | bias | right", rows),
            "## Wrong\n",
            table("report | source | figure | printed | said | error | cause", wrong),
        )
    )


if __name__ == "__main__":
    sys.stdout.write("".join(f"{line.name}: {line.rows}, {share(line.reached)}\n" for line in lines()) + "\n" + page())
