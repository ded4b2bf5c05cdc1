"""Published steps of post-training, predicted with their model left out and after one measured step; what fits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from autoconfig.post_training.frameworks import STANDARD_90
from autoconfig.runs.predict_post_training import StepPrediction, predict_rows
from autoconfig.runs.table import Row, cell, number
from validation.fit.post_training_fit import MeasuredStep, errors, fit, hidden_rounds, samples_of, scatter
from validation.published import published_rows
from validation.sheets.figures import Group, Line, figures_of

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


@dataclass(frozen=True, kw_only=True)
class Blind:
    """Samples, the constants of all, and by model left out those that have not seen it, with the scatter of the others."""

    samples: tuple[MeasuredStep, ...]
    whole: dict[str, dict[str, float]]
    known: dict[str, dict[str, dict[str, float]]]

    def error(self, sample: MeasuredStep) -> dict[str, float]:
        """ln(measured / predicted) with constants that have not seen the model."""
        return errors(sample, sample.predicted(self.known[sample.model]))


def _frameworks(samples: Iterable[MeasuredStep], model: str) -> set[str]:
    return {sample.framework for sample in samples if sample.model == model}


@cache
def blind() -> Blind:
    """Fits once for each model of the table; deterministic."""
    samples = samples_of(published())
    models = sorted({sample.model for sample in samples})
    whole = fit(samples)
    known = {model: fit([s for s in samples if s.model != model], whole, of=_frameworks(samples, model)) for model in models}
    return Blind(samples=tuple(samples), whole=whole, known=known)


def fitted() -> dict[str, dict[str, float]]:
    """Constants of all rows, each framework with the scatter of its blind errors: what ships."""
    found, all_samples = {name: dict(numbers) for name, numbers in blind().whole.items()}, blind().samples
    for name, numbers in found.items():
        own = [(s, e["step_s"]) for s in all_samples if name in ("all", s.framework) and "step_s" in (e := blind().error(s))]
        for key, missing in (("scatter", False), ("scatter_assumed", True)):
            errors_there = [error for s, error in own if (bool(s.missing) or hidden_rounds(s)) == missing]
            if len(errors_there) >= ENOUGH:
                numbers[key] = scatter(errors_there)
    lacking: dict[str, float] = {key: found["all"][key] for key in ("scatter", "scatter_assumed") if key in found["all"]}
    found = {name: {**lacking, **numbers} for name, numbers in found.items()}
    return {name: {key: round(value, 5) for key, value in numbers.items()} for name, numbers in found.items()}


def after_one(column: str, sample: MeasuredStep) -> list[float]:
    """Errors of a run where one other run of the same model, GPU and framework has been measured, each of these in turn: what
    was measured over what was predicted there scales the prediction here, as `rl calibrate` does."""
    mine = blind().error(sample)
    if column not in mine:
        return []
    return [
        mine[column] - other
        for s in blind().samples
        if s is not sample and _job(s) == _job(sample) and (other := blind().error(s).get(column)) is not None
    ]


def _job(sample: MeasuredStep) -> tuple[str, str, str, bool]:
    """Runs that say of each other how far off they are: a step of dynamic sampling says nothing of one without."""
    return sample.framework, sample.model, sample.gpu, hidden_rounds(sample)


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
    lines = [*_errors("nemo-rl"), *_errors("verl"), *_bands()]
    lines.append(_share("post-training: synchronous or asynchronous, right", pairs, 0.85))
    return [*lines, _bounds(answered), _predicted(answered)]


def _errors(framework: str) -> Iterator[Line]:
    """By phase: runs that say all that decides it, then all; with the model left out, and after one measured step."""
    for column, phase in PHASE_NAMES.items():
        own = [s for s in blind().samples if s.framework == framework and column in s.measured]
        bars = BARS.get((framework, column), (None, None))
        whole = [s for s in own if _says_all(s, column)]
        name = f"post-training: {framework}, {phase}"
        for kind, chosen, bar in (("rows that say all of it", whole, bars[0]), ("all rows", own, None)):
            logs = [e[column] for s in chosen if column in (e := blind().error(s))]
            wrong = float(np.mean(np.abs(_relative(logs)))) if logs else 0.0
            yield Line(name=f"{name}, model left out, {kind}: mean error", rows=len(logs), reached=wrong, most=bar)
        again = [float(np.mean(np.abs(_relative(logs)))) for s in own if not s.missing and (logs := after_one(column, s))]
        if again:
            reached = float(np.mean(again))
            yield Line(name=f"{name}, after one measured step: mean error", rows=len(again), reached=reached, most=bars[1])


def _says_all(sample: MeasuredStep, column: str) -> bool:
    """Whether nothing is missing that decides this phase of a run."""
    hidden = hidden_rounds(sample) and column in ("step_s", "gen_s")
    return not (hidden or sample.missing or (sample.engine_assumed and column == "gen_s"))


def _relative(logs: Sequence[float]) -> Any:
    """Predicted over measured, less 1."""
    return np.exp(-np.array(logs)) - 1.0


def _share(name: str, right: Sequence[bool], least: float | None) -> Line:
    return Line(name=name, rows=len(right), reached=float(np.mean(right)) if right else 0.0, least=least)


def inside_bands(framework: str) -> list[bool]:
    """Return for each step whether it lies inside the 90 % band of constants and scatter that have not seen the model
    (of at least ENOUGH steps)."""
    own = [(s, e["step_s"]) for s in blind().samples if s.framework == framework and "step_s" in (e := blind().error(s))]
    inside = []
    for sample, error in own:
        unseen = [(s, e) for s, e in own if s.model != sample.model]
        alike = [e for s, e in unseen if bool(s.missing) == bool(sample.missing)]
        others = alike if len(alike) >= ENOUGH else [e for _, e in unseen]
        if len(others) >= ENOUGH:
            inside.append(abs(error) <= STANDARD_90 * scatter(others))
    return inside


def _bands() -> Iterator[Line]:
    for framework in ("nemo-rl", "verl"):
        yield _share(f"post-training: {framework}, steps inside the 90 % band", inside_bands(framework), None)


def step_errors(*, seen: bool = False) -> Iterator[tuple[str, str, str, float]]:
    """Yield (framework, source, id, predicted / measured step - 1), with the model left out or with constants of all rows."""
    rows = published()
    for sample in blind().samples:
        error = errors(sample, sample.predicted(blind().whole)) if seen else blind().error(sample)
        if "step_s" in error:
            row = rows[sample.row]
            yield sample.framework, cell(row, "source"), cell(row, "id"), float(_relative([error["step_s"]])[0])


def post_training_groups(*, seen: bool) -> list[Group]:
    """Return the figures of steps by source."""
    groups: dict[str, list[tuple[str, float]]] = {}
    for _, source, name, error in step_errors(seen=seen):
        groups.setdefault(f"post-training: {source}", []).append((name, error))
    return [Group(name=name, figures=figures_of(found)) for name, found in sorted(groups.items())]


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
        _share("post-training: out-of-memory rows with offload and memory share, right", verdicts["oom with its flags"], 1.0),
        _share("post-training: other labelled rows, right", verdicts["oom"] + verdicts["fits"], 0.8),
        _share("post-training: measured rows called fit", verdicts["measured"], 1.0),
    ]
    return lines, wrong


def _bounds(answered: Answered) -> Line:
    """Upper bounds that continuous integration asserts, above the prediction."""
    right = []
    for row, predicted in answered:
        if cell(row, "kind") == "ci_bound" and cell(row, "step_s") and predicted.step is not None:
            right.append(predicted.step.seconds <= (number(row, "step_s") or 0.0))
    return _share("post-training: upper bounds of CI above the prediction", right, 0.9)


def _predicted(answered: Answered) -> Line:
    kinds = ("measured", "log_step", "ci_bound")
    timed = [not p.failed for row, p in answered if cell(row, "step_s") and cell(row, "kind") in kinds]
    return _share("post-training: timed rows with a prediction", timed, 0.9)
