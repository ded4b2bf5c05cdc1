"""`make calibration`: fits time_model/data/calibration.json on the published runs, autoconfig/data/bands.json, and the
constants of serving engines.

Deterministic: the same tables and the same models give the same files.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autoconfig.planning.calibration_file import write_calibration
from autoconfig.runs.table import cell
from autoconfig.training.confidence import Band, tflops_of_16_bits
from validation.fit.closed_loop import (
    SHARING,
    as_json,
    fit_pooled,
    generations,
    load_bands,
    predicted_left_out,
    request_seconds,
    runs_of,
)
from validation.fit.serving_fit import fit, samples_of
from validation.fit.steps import published_calibration
from validation.published import published_runs, served_rows
from validation.sheets.bands import banded, bands_of, stranger_bands, strangers_of_one_node
from validation.sheets.post_training import fitted
from validation.sheets.serving import published_rows as serving_rows
from validation.sources import source_of

ROOT = Path(__file__).resolve().parents[2]
SERVING = ROOT / "time_model" / "data" / "serving_calibration.json"
CALIBRATION = ROOT / "time_model" / "data" / "calibration.json"
POST_TRAINING = ROOT / "autoconfig" / "data" / "post_training_calibration.json"
BANDS = ROOT / "autoconfig" / "data" / "bands.json"
ABOUT = (
    "5 % and 95 % bounds of measured over predicted step time for a run of a new source, from published runs whose source the "
    "constants had not seen (validation/sheets/bands.py, band_from). Written by validation/fit/fit_published.py."
)


def bands_json(bands: dict[str, Band]) -> dict[str, object]:
    """What price.shipped_bands reads."""
    cases = [run.case for run in published_runs() if source_of(run.case.source).use]
    peaks: dict[str, set[float]] = defaultdict(set)
    for case in cases:
        gpu = case.scenario.cluster.gpu
        peaks[gpu.architecture].add(tflops_of_16_bits(gpu))
    return {
        "about": ABOUT,
        "peaks_tflops": {name: sorted(found) for name, found in sorted(peaks.items())},
        "stacks": sorted({case.scenario.software.priced_as or case.scenario.software.name for case in cases}),
        "bands": {
            name: {"p5": round(band.p5, 4), "p95": round(band.p95, 4), "rows": band.rows, "sources": list(band.sources)}
            for name, band in bands.items()
        },
    }


def rounded(value: Any) -> Any:
    """Four significant digits everywhere."""
    if isinstance(value, Mapping):
        return {key: rounded(one) for key, one in value.items()}
    return float(f"{value:.4g}")


def write(target: Path, data: Mapping[str, Any]) -> None:
    """Write a file that ships."""
    target.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def fitted_engines() -> dict[str, Any]:
    """Return the shipped constants of serving engines."""
    samples, first = samples_of(serving_rows())
    calibration = fit(samples, first)
    sources: dict[str, Counter[str]] = defaultdict(Counter)
    for sample in samples:
        sources[sample.engine][sample.source] += 1
    runs = runs_of(served_rows())
    engines = {name: dict(numbers) for name, numbers in calibration.engines.items()}
    for name, numbers in engines.items():
        if mine := [run for run in runs if run.case.engine.name == name]:
            numbers["request_s"], numbers["request_token_s"] = request_seconds(mine, calibration)
    calibration = replace(calibration, engines=engines)
    shared, equations = fit_pooled(runs, calibration, SHARING)
    left_out = predicted_left_out([one.run for one in equations], equations, calibration, SHARING)
    bands = load_bands(left_out, equations, SHARING)
    for one in equations:
        sources[one.run.case.engine.name][cell(one.run.row, "source")] += 1
    return {
        "about": "Constants of serving engines (time_model/serving/tables.py), fitted on the runs named; `pooled`: what "
        "engines share, and their factors (validation/fit/closed_loop.py).",
        "runs": sources,
        "engines": rounded(engines),
        "gpus": rounded(calibration.gpus),
        "pooled": as_json(shared, bands, generations(equations, SHARING)),
    }


ABOUT_POST_TRAINING = (
    "Constants of post-training, fitted on validation/tables/post_training_measurements.csv by "
    "validation/fit/post_training_fit.py: ln of the factors of priced phases, seconds beside them, scatter of "
    "steps whose model was left out."
)


def main() -> None:
    """Write all files."""
    write_calibration(published_calibration(), CALIBRATION)
    write(BANDS, bands_json(bands_of(banded(), strangers_of_one_node()) | stranger_bands()))
    write(SERVING, fitted_engines())
    write(POST_TRAINING, {"about": ABOUT_POST_TRAINING, "frameworks": fitted()})


if __name__ == "__main__":
    main()
