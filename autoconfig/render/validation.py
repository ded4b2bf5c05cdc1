"""What `autoconfig validate` prints: how far off predictions of each class of runs are, and results of `make gpu`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Annotated, Any

from autoconfig.calibration.gpu_runs import GpuRun
from autoconfig.specs.json_record import Keywords, Natural, NotNegative, Share, from_json, to_json


@dataclass(frozen=True, kw_only=True)
class ClassErrors:
    """Errors on the published runs of one class, whose publisher the constants had not seen (serving: source; post-training:
    model)."""

    lane: Annotated[str, Keywords(enum=["training", "serving", "post-training"])]
    name: str
    """Of training the class that an answer's confidence names, or `pooled`, all of them; of serving the kind of run; of
    post-training the framework."""
    rows: Natural
    publishers: Natural
    """Of serving and post-training sources."""
    mean_error: NotNegative
    """Mean of |predicted / measured - 1|: of step seconds, of serving of tokens per second and GPU."""
    median_error: NotNegative
    inside_band: Share | None
    """Share of runs in their 90 % band; null where no band is said."""


@dataclass(frozen=True, kw_only=True)
class GpuJob:
    """A job of `make gpu` beside its prediction."""

    device: str
    part: str
    model: str
    plan: str
    rank: int | None
    """Of an emulated rank; null: a whole run."""
    status: str
    measured_gib: float | None
    predicted_gib: float
    limit_gib: float
    measured_seconds: float | None
    """Of a step of a run, or of one micro-batch's compute of an emulated rank."""
    predicted_seconds: float | None
    agrees: bool
    """Whether the job was called rightly to fit or not to fit."""


@dataclass(frozen=True, kw_only=True)
class ValidationJson:
    """What `autoconfig validate --json` prints."""

    schema_version: Annotated[int, Keywords(const=2)] = 2
    about: str
    """What the errors are of."""
    release: str
    """Of this package, when the errors were counted."""
    date: str
    calibration: str
    """Version of the shipped calibration."""
    classes: tuple[ClassErrors, ...]
    gpu_runs: tuple[GpuJob, ...] = ()


def validation(runs: Sequence[GpuRun] = ()) -> ValidationJson:
    """Return the summary of data/validation.json (made by `make accuracy`) with the results of `make gpu`."""
    text = (resources.files("autoconfig") / "data" / "validation.json").read_text(encoding="utf-8")
    jobs = [{**vars(run), "agrees": run.agrees} for run in runs]
    return from_json(ValidationJson, {**json.loads(text), "schema_version": 2, "gpu_runs": jobs}, "data/validation.json")


def validation_json(found: ValidationJson) -> dict[str, Any]:
    """Return the record as JSON."""
    record: dict[str, Any] = to_json(found)
    return record


LEGEND = (
    "mean and median of the errors (step; of serving tokens/s/GPU) of so many rows from so many publishers; in band: "
    "share of rows inside their 90 % band"
)


def class_rows(found: ValidationJson) -> list[dict[str, str]]:
    """Return a row of the screen for each class."""
    return [
        {
            "lane": one.lane,
            "class": one.name,
            "rows": f"{one.rows:,}",
            "from": str(one.publishers),
            "mean": f"{one.mean_error:.1%}",
            "median": f"{one.median_error:.1%}",
            "in band": "-" if one.inside_band is None else f"{one.inside_band:.0%}",
        }
        for one in found.classes
    ]


def run_rows(runs: Sequence[GpuJob]) -> list[dict[str, str]]:
    """Return a row of the screen for each job of `make gpu`."""

    def error(predicted: float | None, measured: float | None) -> str:
        return f"{predicted / measured - 1:+.1%}" if measured and predicted else "-"

    def number(value: float | None, spec: str) -> str:
        return "-" if value is None else format(value, spec)

    return [
        {
            "of": "run" if run.rank is None else f"rank {run.rank}",
            "GiB": "out of memory" if run.measured_gib is None else f"{run.measured_gib:.3f}",
            "by us": f"{run.predicted_gib:.3f}",
            "error": error(run.predicted_gib, run.measured_gib),
            "fits": "right" if run.agrees else "wrong",
            "s": number(run.measured_seconds, ".4g"),
            "s by us": number(run.predicted_seconds, ".4g"),
            "error of s": error(run.predicted_seconds, run.measured_seconds),
            "job": f"{run.device} {run.model} {run.plan}",
        }
        for run in runs
    ]
