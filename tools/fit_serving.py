"""Fits the shipped constants of serving engines: `python -m tools.fit_serving` (what `make calibration` runs)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autoconfig.accuracy.serving import published_rows
from autoconfig.calibration.serving_fit import fit, samples_of

TARGET = Path(__file__).resolve().parent.parent / "time_model" / "data" / "serving_calibration.json"


def rounded(value: Any) -> Any:
    """Four significant digits everywhere."""
    if isinstance(value, Mapping):
        return {key: rounded(one) for key, one in value.items()}
    return float(f"{value:.4g}")


def main() -> None:
    """Write the file."""
    samples, first = samples_of(published_rows())
    found = fit(samples, first)
    sources: dict[str, dict[str, int]] = {}
    for sample in samples:
        by_source = sources.setdefault(sample.engine, {})
        by_source[sample.source] = by_source.get(sample.source, 0) + 1
    data = {
        "about": "Constants of serving engines (time_model/serving/tables.py), fitted on the runs named.",
        "runs": sources,
        "engines": rounded(found.engines),
        "gpus": rounded(found.gpus),
    }
    TARGET.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
