"""Steps of post-training by phase, constants without the publisher: docs/accuracy/post_training.md.

Rows of `post_training_measurements.csv` and `strangers_rl.csv` together; a recipe (everything that a run asks for, its release
and the lengths that came of it left out) weighs once however often it was run.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from autoconfig.specs.errors import AutoconfigError

from autoconfig.post_training.frameworks import STANDARD_90, load_framework
from autoconfig.post_training.weight_sync import sync_seconds
from autoconfig.runs.post_training_row import read_case
from autoconfig.runs.table import Row, cell, number
from validation.fit.post_training_fit import MeasuredStep, hidden_rounds, scatter
from validation.published import published_rows
from validation.sheets.figures import Line, error_line, line_table, share, share_line, table
from validation.sheets.post_training import LeftOut, Steps, left_out, relative

TABLES = ("post_training_measurements", "strangers_rl")
RECIPE = (
    *("algorithm", "policy_model", "critic_model", "gpu", "gpus", "gpus_train", "gpus_rollout", "gpus_critic", "placement"),
    *("sync_mode", "train_backend", "train_plan", "rollout_engine", "rollout_plan", "precision_train", "precision_rollout"),
    *("prompt_len_max", "response_len_max", "prompts_per_step", "group_size", "train_batch", "micro_batch", "recompute"),
    *("offload", "gpu_mem_util", "sync_method", "attention_kernel"),
)
"""Columns that a run asks for."""
TRAINER, LOGPROB = ("train_actor_s", "train_s"), ("logprob_s",)
MOST_TRAINER, MOST_LOGPROB, MOST_AFTER_ONE = 0.18, 0.25, 0.12
"""Asked for: mean errors of trainer steps and of log-probabilities, and of whole steps after one measured step."""
SYNC_FACTOR, LEAST_SYNC = 1.5, 0.8
"""Asked for: share of weight synchronisations within this factor."""
INSIDE = (0.85, 0.95)
MOST_HALF_WIDTH = 0.35
"""Asked for: steps inside their band, and half of the band where length, cap and engine are known."""
UNKNOWN_TRAINING = {"model", "gpu", "batch", "lengths"}


def publisher_of(row: Row) -> str:
    """The repository, or who wrote the page, of a row's source; several issue threads are of several users."""
    reference = cell(row, "source_ref")
    if "/issues/" in reference:
        return reference.partition(" ")[0]
    repository = re.search(r"(?:github:|github\.com/|^)([\w.-]+/[\w.-]+?)(?:@|/pull|/|\s|$)", reference)
    names = {"inclusionai/areal": "areal-project/areal"}
    name = repository[1].lower() if repository else cell(row, "source")
    return names.get(name, name)


def recipe_of(row: Row) -> tuple[str, ...]:
    """What a run asks for; runs alike in it weigh once."""
    whole = "" if cell(row, "response_len_mean") else cell(row, "seq_len_mean")
    return (publisher_of(row), load_name(row), whole, *(cell(row, name) for name in RECIPE))


def load_name(row: Row) -> str:
    """The framework without its release."""
    try:
        return load_framework(cell(row, "framework")).name
    except AutoconfigError:
        return cell(row, "framework").split(" ")[0]


@cache
def unseen() -> LeftOut:
    """The steps of both tables, a recipe after the other, each publisher left out."""
    rows = [row for name in TABLES for row in published_rows(name)]
    return left_out(rows, lambda row, _: publisher_of(row))


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A recipe: how many rows, and its error, the geometric mean over them."""

    name: str
    rows: int
    log_error: float
    """ln(measured / predicted)."""

    @property
    def relative(self) -> float:
        """Predicted over measured, less 1."""
        return float(relative(self.log_error))


def judged(errors: Sequence[tuple[Row, float]]) -> list[Judged]:
    """Recipes of rows with their ln errors."""
    groups: dict[tuple[str, ...], list[tuple[Row, float]]] = defaultdict(list)
    for row, error in errors:
        groups[recipe_of(row)].append((row, error))
    return [
        Judged(
            name=f"{cell(some[0][0], 'id')} {cell(some[0][0], 'source')}, {cell(some[0][0], 'policy_model')}",
            rows=len(some),
            log_error=float(np.mean([error for _, error in some])),
        )
        for some in groups.values()
    ]


def of_column(columns: Sequence[str]) -> list[Judged]:
    """Errors of the first of these columns that a row measured, of rows that say model, GPU, batch and lengths."""
    steps = unseen()
    errors = []
    for sample in steps.samples:
        logs = {} if sample.missing & UNKNOWN_TRAINING else steps.error(sample)
        column = next((name for name in columns if name in logs), None)
        if column and not (column in ("step_s", "gen_s") and hidden_rounds(sample)):
            errors.append((steps.rows[sample.row], logs[column]))
    return judged(errors)


def syncs() -> list[Judged]:
    """Errors of every weight synchronisation that was timed, its model and GPUs known."""
    errors: list[tuple[Row, float]] = []
    for row in unseen().rows:
        measured = number(row, "weight_sync_s")
        with suppress(AutoconfigError):
            case = read_case(row)
            if measured and "model" not in case.missing:
                errors.append((row, float(np.log(measured / sync_seconds(case.job, case.placement)))))
    return judged(errors)


def after_one() -> list[Judged]:
    """Errors of whole steps where one other run of the same publisher, framework, model and GPU calibrates, each in turn."""
    steps = [(s, error) for s, error in unseen().of("step_s") if not s.missing]
    return judged([(unseen().rows[s.row], error) for s, error in unseen().after_one(steps)])


def inside() -> tuple[list[bool], list[bool], float]:
    """(whether each recipe's step lies inside a band of errors of other publishers; of those that say length, cap and engine,
    inside a band of other models alike, as one publisher has nearly all of these; half of that band)."""
    steps = [(s, error) for s, error in unseen().of("step_s") if not hidden_rounds(s)]
    unit = unseen().unit_of
    every, _ = _held(steps, lambda s, one: unit(s) != unit(one) and bool(s.missing) == bool(one.missing))
    whole_steps = [(s, error) for s, error in steps if not s.missing and not s.engine_assumed]
    whole, halves = _held(whole_steps, lambda s, one: s.model != one.model)
    return every, whole, float(np.sinh(np.mean(halves))) if halves else 0.0


def _held(steps: Steps, apart: Callable[[MeasuredStep, MeasuredStep], bool]) -> tuple[list[bool], list[float]]:
    """(of each recipe, whether half of its steps lie in bands of the steps that are `apart`; half of each step's band)."""
    recipes: dict[tuple[str, ...], list[bool]] = defaultdict(list)
    halves = []
    for sample, error in steps:
        halves.append(STANDARD_90 * scatter([e for s, e in steps if apart(s, sample)]))
        recipes[recipe_of(unseen().rows[sample.row])].append(abs(error) <= halves[-1])
    return [float(np.mean(some)) >= 0.5 for some in recipes.values()], halves


def lines() -> list[Line]:
    """Return what is held to."""
    return [replace(line, name=f"post-training, publisher left out: {line.name}") for line in _lines()]


def _lines() -> Iterator[Line]:
    for name, columns, most in (("trainer step", TRAINER, MOST_TRAINER), ("log-probabilities", LOGPROB, MOST_LOGPROB)):
        yield _errors(name, columns, most)
    near = [abs(one.log_error) <= np.log(SYNC_FACTOR) for one in syncs()]
    yield share_line(f"weight sync within a factor of {SYNC_FACTOR}", near, LEAST_SYNC)
    yield _errors("generation", ("gen_s",))
    yield _errors("whole step", ("step_s",))
    again = [one.log_error for one in after_one()]
    yield error_line("whole step after one measured step, mean error", again, MOST_AFTER_ONE)
    held, told, half = inside()
    for name, some in (("whole step", held), ("whole step, length, cap and engine known", told)):
        yield share_line(f"{name}, inside the 90 % band", some, *INSIDE)
    name = "whole step, length, cap and engine known, half of the band"
    yield Line(name=name, rows=len(told), reached=half, most=MOST_HALF_WIDTH)


def _errors(name: str, columns: Sequence[str], most: float | None = None) -> Line:
    return error_line(f"{name}, mean error", [one.relative for one in of_column(columns)], most)


PARTS = {"trainer steps": TRAINER, "log-probabilities": LOGPROB, "generation": ("gen_s",)}
"""Title -> the columns, of which a row has one."""
ABOUT = """Rows of `validation/tables/post_training_measurements.csv` and `strangers_rl.csv` (prime-rl, SkyRL, pull requests of
verl, NeMo-RL's issues) together. Constants have seen no run of the publisher; a recipe counts once, however often it was run.
Of trainer steps and parts the rows that say model, GPU, batch and lengths; whole steps are listed one by one, the rest of them
with what it leaves open.
"""


def whole_steps(*, told: bool) -> list[tuple[str, ...]]:
    """Cells of every whole step that was measured, the farthest off first: what it is, seconds measured and predicted, error,
    what the row does not say (rounds: of dynamic sampling, which no table counts). `told`: those that say all but engines."""
    steps = []
    for sample, error in unseen().of("step_s"):
        if told != (not sample.missing and not hidden_rounds(sample)):
            continue
        row, where = unseen().rows[sample.row], sample.placement
        lacks = [*sorted(sample.missing), *(["engines"] if sample.engine_assumed else [])]
        lacks += ["rounds"] if hidden_rounds(sample) else []
        kind = ("colocated" if where.colocated else "split") + (f", {where.staleness} ahead" if where.staleness else "")
        names = (f"{cell(row, 'id')} {cell(row, 'source')}", f"{sample.model}, {where.gpus} x {sample.gpu}", kind)
        measured = sample.measured["step_s"]
        times = (f"{measured:,.1f}", f"{measured * np.exp(-error):,.1f}", share(float(relative(error)), "+.0%"))
        steps.append((abs(error), (*names, *times, ", ".join(lacks) or "-")))
    return [cells for _, cells in sorted(steps, key=lambda step: -step[0])]


def page() -> str:
    """Return the figures as Markdown: lines, every whole step, and parts recipe by recipe."""
    header = "row | run | engines | measured s | predicted s | predicted / measured - 1 | not said"
    parts = [ABOUT, line_table(lines()), "## Whole steps\n", table(header, whole_steps(told=True))]
    parts += ["## Whole steps that leave something open\n", table(header, whole_steps(told=False))]
    for name, some in (*((name, of_column(columns)) for name, columns in PARTS.items()), ("weight synchronisation", syncs())):
        rows = sorted(some, key=lambda one: -abs(one.log_error))
        header = "recipe | rows | predicted / measured - 1"
        parts += [f"## {name.capitalize()}\n"]
        parts += [table(header, ((one.name, str(one.rows), share(one.relative, "+.0%")) for one in rows))]
    return "\n".join(parts)
