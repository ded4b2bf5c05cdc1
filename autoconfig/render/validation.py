"""What `autoconfig validate` prints: how far off predictions of each class are, and results of `make gpu`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from autoconfig.calibration.gpu_runs import GpuRun
from autoconfig.training.price import shipped_bands


def class_rows() -> list[dict[str, Any]]:
    """Return a row for each class of runs: how many, of how many sources, and the 90 % band of measured over predicted."""
    return [
        {"class": name, "rows": band.rows, "sources": len(band.sources), "p5": band.p5, "p95": band.p95}
        for name, band in shipped_bands().items()
    ]


def run_rows(runs: Sequence[GpuRun]) -> list[dict[str, Any]]:
    """Return a row of the screen for each job of `make gpu`."""

    def error(predicted: float | None, measured: float | None) -> str:
        return f"{predicted / measured - 1:+.1%}" if measured and predicted else "-"

    def number(value: float | None, spec: str) -> str:
        return "-" if value is None else format(value, spec)

    return [
        {
            "device": run.device,
            "job": f"{run.model} {run.plan}",
            "of": "run" if run.rank is None else f"rank {run.rank}",
            "GiB": "out of memory" if run.measured_gib is None else f"{run.measured_gib:.3f}",
            "predicted": f"{run.predicted_gib:.3f}",
            "error": error(run.predicted_gib, run.measured_gib),
            "fits": "right" if run.agrees else "wrong",
            "seconds": number(run.measured_seconds, ".4g"),
            "predicted s": number(run.predicted_seconds, ".4g"),
            "error of s": error(run.predicted_seconds, run.measured_seconds),
        }
        for run in runs
    ]


def validation_json(runs: Iterable[GpuRun]) -> dict[str, Any]:
    """Return the record of `validate --json`. Times in seconds, memory in GiB."""
    own = [{**asdict(run), "agrees": run.agrees} for run in runs]
    return {"schema_version": 2, "classes": class_rows(), "gpu_runs": own}
