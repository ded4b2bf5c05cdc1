"""Published steps of post-training, predicted with their model left out and after one measured step; what fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from autoconfig.post_training.frameworks import STANDARD_90, Constants
from autoconfig.runs.predict_post_training import StepPrediction, predict_rows
from autoconfig.runs.table import Row, cell, number
from validation.fit.post_training_fit import MeasuredStep, errors, fit, hidden_rounds, samples_of, scatter
from validation.published import published_rows
from validation.sheets.figures import Group, Line, error_line, groups_of, share_line

TABLE = "post_training_measurements"
PHASE_NAMES = {"step_s": "step", "train_actor_s": "training", "logprob_s": "log-probabilities", "gen_s": "generation"}
"""Measured columns that have a line of their own."""
ENOUGH = 5
"""Steps from which a framework has a scatter of its own."""
DIFFERS = 1.15
"""Two placements count as a pair where their GPU-seconds a step are further apart."""


def published() -> list[dict[str, str]]:
    """The runs of post-training that ship with the project."""
    return list(published_rows(TABLE))


Steps = Sequence[tuple[MeasuredStep, float]]
"""Measured steps, each with ln(measured / predicted) of one of its columns."""


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Measured steps of a table, the constants of all, and by unit those that have not seen it."""

    rows: Sequence[Row]
    samples: Sequence[MeasuredStep]
    unit: Callable[[Row, MeasuredStep], str]
    """What is left out together: a model, a publisher."""
    whole: Constants
    known: Mapping[str, Constants]

    def unit_of(self, sample: MeasuredStep) -> str:
        """What a step is left out with."""
        return self.unit(self.rows[sample.row], sample)

    def error(self, sample: MeasuredStep) -> dict[str, float]:
        """ln(measured / predicted) of each measured column, with constants that have not seen the unit."""
        return errors(sample, sample.predicted(self.known[self.unit_of(sample)]))

    def of(self, column: str, framework: str = "") -> Steps:
        """Steps, of one framework or of all, with their error in this column."""
        own = [s for s in self.samples if framework in ("", s.framework)]
        return [(s, error[column]) for s in own if column in (error := self.error(s))]

    def after_one(self, steps: Steps) -> Iterator[tuple[MeasuredStep, float]]:
        """Yield the mean error of each step where one other run of its unit, framework, model and GPU has been measured, each
        of these in turn: what was measured over what was predicted there scales the prediction here, as `rl calibrate` does. A
        step of dynamic sampling says nothing of one without."""

        def job(sample: MeasuredStep) -> tuple[object, ...]:
            return self.unit_of(sample), sample.framework, sample.model, sample.gpu, hidden_rounds(sample)

        for sample, error in steps:
            others = [other for s, other in steps if s is not sample and job(s) == job(sample)]
            if others:
                yield sample, float(np.mean(np.abs(relative(error - np.array(others)))))


def left_out(rows: Sequence[Row], unit: Callable[[Row, MeasuredStep], str]) -> LeftOut:
    """Fit once with all steps of a table and once without each unit; deterministic."""
    samples = samples_of(rows)
    whole = fit(samples)
    units = [unit(rows[sample.row], sample) for sample in samples]
    constants = {}
    for name in sorted(set(units)):
        touched = {sample.framework for sample, own in zip(samples, units, strict=True) if own == name}
        constants[name] = fit([s for s, own in zip(samples, units, strict=True) if own != name], whole, of=touched)
    return LeftOut(rows=rows, samples=samples, unit=unit, whole=whole, known=constants)


@cache
def blind() -> LeftOut:
    """The steps that ship, each model left out."""
    return left_out(published(), lambda _, sample: sample.model)


def fitted() -> dict[str, dict[str, float]]:
    """Constants of all rows, each framework with the scatter of its blind errors: what ships."""
    constants = {name: {**numbers, **dict(_scatters(name))} for name, numbers in blind().whole.items()}
    lacking = {key: constants["all"][key] for key in ("scatter", "scatter_assumed") if key in constants["all"]}
    return {name: {key: round(x, 5) for key, x in (lacking | numbers).items()} for name, numbers in constants.items()}


def _scatters(framework: str) -> Iterator[tuple[str, float]]:
    """Yield the scatter of steps that say all of their run, and of those that leave something open, where ENOUGH are."""
    steps = blind().of("step_s", "" if framework == "all" else framework)
    for key, missing in (("scatter", False), ("scatter_assumed", True)):
        own = [error for s, error in steps if (bool(s.missing) or hidden_rounds(s)) == missing]
        if len(own) >= ENOUGH:
            yield key, scatter(own)


BARS = {
    ("nemo-rl", "step_s"): (0.22, 0.15),
    ("verl", "train_actor_s"): (0.12, 0.08),
    ("verl", "logprob_s"): (0.20, 0.10),
    ("verl", "gen_s"): (0.30, 0.20),
}
"""(framework, column) -> mean error that is held to: the model left out, and after one measured step."""


def post_training_lines() -> list[Line]:
    """Return what post-training is held to beside memory."""
    rows, answered = published(), predicted_rows()
    pairs = [right for *measured, right in _pairs(rows) if max(measured) > DIFFERS * min(measured)]
    lines = [*_phase_lines("nemo-rl"), *_phase_lines("verl")]
    for framework in ("nemo-rl", "verl"):
        lines.append(share_line(f"post-training: {framework}, steps inside the 90 % band", inside_bands(framework)))
    lines.append(share_line("post-training: synchronous or asynchronous, right", pairs, 0.85))
    return [*lines, _bounds(answered), _predicted(answered)]


def _phase_lines(framework: str) -> Iterator[Line]:
    """By phase: runs that say all that decides it, then all; with the model left out, and after one measured step."""
    for column, phase in PHASE_NAMES.items():
        steps = blind().of(column, framework)
        bars = BARS.get((framework, column), (None, None))
        name = f"post-training: {framework}, {phase}"
        whole = [(s, error) for s, error in steps if _says_all(s, column)]
        for kind, chosen, bar in (("rows that say all of it", whole, bars[0]), ("all rows", steps, None)):
            wrong = relative([error for _, error in chosen])
            yield error_line(f"{name}, model left out, {kind}: mean error", wrong, bar)
        if again := [error for s, error in blind().after_one(steps) if not s.missing]:
            yield error_line(f"{name}, after one measured step: mean error", again, bars[1])


def _says_all(sample: MeasuredStep, column: str) -> bool:
    """Whether nothing is missing that decides this phase of a run."""
    hidden = hidden_rounds(sample) and column in ("step_s", "gen_s")
    return not (hidden or sample.missing or (sample.engine_assumed and column == "gen_s"))


def relative(logs: npt.ArrayLike) -> Any:
    """Predicted over measured, less 1, of ln(measured / predicted)."""
    return np.exp(-np.array(logs)) - 1.0


def inside_bands(framework: str) -> list[bool]:
    """Return for each step whether it lies inside the 90 % band of constants and scatter that have not seen the model
    (of at least ENOUGH steps)."""
    steps = blind().of("step_s", framework)
    inside = []
    for sample, error in steps:
        unseen = [(s, e) for s, e in steps if s.model != sample.model]
        alike = [e for s, e in unseen if bool(s.missing) == bool(sample.missing)]
        others = alike if len(alike) >= ENOUGH else [e for _, e in unseen]
        if len(others) >= ENOUGH:
            inside.append(abs(error) <= STANDARD_90 * scatter(others))
    return inside


def step_errors(*, seen: bool = False) -> Iterator[tuple[str, str, str, float]]:
    """Yield (framework, source, id, predicted / measured step - 1), with the model left out or with constants of all rows."""
    for sample in blind().samples:
        error = errors(sample, sample.predicted(blind().whole)) if seen else blind().error(sample)
        if "step_s" in error:
            row = blind().rows[sample.row]
            yield sample.framework, cell(row, "source"), cell(row, "id"), float(relative(error["step_s"]))


def post_training_groups(*, seen: bool) -> list[Group]:
    """Return the figures of steps by source."""
    return groups_of((f"post-training: {source}", name, error) for _, source, name, error in step_errors(seen=seen))


ALIKE = ("source", "policy_model", "gpu", "prompts_per_step", "group_size", "precision_train", "response_len_max")


def _pairs(rows: Sequence[Row]) -> Iterator[tuple[float, float, bool]]:
    """Yield (GPU-seconds of a synchronous step, of an asynchronous one, whether we order them alike) of runs of the same
    source, model, GPU and batch; of several the first of each."""
    groups: dict[tuple[str, ...], dict[bool, MeasuredStep]] = {}
    for sample in blind().samples:
        row = rows[sample.row]
        if "step_s" in sample.measured and cell(row, "sync_mode"):
            key = tuple(cell(row, name) for name in ALIKE)
            key += (cell(row, "gpus") if cell(row, "framework").startswith("verl") else "",)
            groups.setdefault(key, {}).setdefault(sample.placement.staleness > 0, sample)
    for both in groups.values():
        if len(both) == 2:
            measured = [both[kind].measured["step_s"] * both[kind].placement.gpus for kind in (False, True)]
            told = [
                both[kind].predicted(blind().known[both[kind].model]).total * both[kind].placement.gpus
                for kind in (False, True)
            ]
            yield measured[0], measured[1], (measured[0] < measured[1]) == (told[0] < told[1])


Answered = Sequence[tuple[Row, StepPrediction]]


@cache
def predicted_rows() -> Answered:
    """Every row with its prediction."""
    rows = published()
    return tuple(zip(rows, predict_rows(rows), strict=True))


def fit_lines() -> tuple[list[Line], list[str]]:
    """Return what verdicts on memory are held to, and the rows whose fit is called wrong."""
    wrong: list[str] = []
    verdicts: dict[str, list[bool]] = {"oom": [], "oom with its flags": [], "fits": [], "measured": []}
    for row, predicted in predicted_rows():
        kind = cell(row, "kind")
        if predicted.fits is None or kind not in ("oom", "fits", "measured", "log_step"):
            continue
        right = predicted.fits != (kind == "oom")
        flags = cell(row, "offload") and cell(row, "gpu_mem_util")
        name = "measured" if kind in ("measured", "log_step") else "oom with its flags" if kind == "oom" and flags else kind
        verdicts[name].append(right)
        if not right:
            wrong.append(f"{cell(row, 'id')} ({kind}): {predicted.note.partition('; ')[0] or 'called fit'}")
    lines = [
        share_line(
            "post-training: out-of-memory rows with offload and memory share, right", verdicts["oom with its flags"], 1.0
        ),
        share_line("post-training: other labelled rows, right", verdicts["oom"] + verdicts["fits"], 0.8),
        share_line("post-training: measured rows called fit", verdicts["measured"], 1.0),
    ]
    return lines, wrong


def _bounds(answered: Answered) -> Line:
    """Upper bounds that continuous integration asserts, above the prediction."""
    right = []
    for row, predicted in answered:
        if cell(row, "kind") == "ci_bound" and cell(row, "step_s") and predicted.step is not None:
            right.append(predicted.step.seconds <= (number(row, "step_s") or 0.0))
    return share_line("post-training: upper bounds of CI above the prediction", right, 0.9)


def _predicted(answered: Answered) -> Line:
    kinds = ("measured", "log_step", "ci_bound")
    timed = [not p.failed for row, p in answered if cell(row, "step_s") and cell(row, "kind") in kinds]
    return share_line("post-training: timed rows with a prediction", timed, 0.9)
