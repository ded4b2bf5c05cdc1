"""`make calibration`: fits time_model/data/calibration.json on the published runs, then autoconfig/data/bands.json.

Deterministic: the same tables and the same models give the same files.
"""

from __future__ import annotations

import json
from pathlib import Path

from autoconfig.accuracy.bands import banded, bands_of
from autoconfig.calibration.calibrate import published_calibration
from autoconfig.planning.resolve import write_calibration
from autoconfig.training.price import Band

ROOT = Path(__file__).resolve().parents[1]
CALIBRATION = ROOT / "time_model" / "data" / "calibration.json"
BANDS = ROOT / "autoconfig" / "data" / "bands.json"
ABOUT = (
    "5 % and 95 % bounds of measured over predicted step time for a run of a new source, from published runs whose source the "
    "constants had not seen (autoconfig/accuracy/bands.py, band_from). Written by tools/fit_published.py."
)


def bands_json(bands: dict[str, Band]) -> dict[str, object]:
    """What confidence.shipped_bands reads."""
    return {
        "about": ABOUT,
        "bands": {
            name: {"p5": round(band.p5, 4), "p95": round(band.p95, 4), "rows": band.rows, "sources": list(band.sources)}
            for name, band in bands.items()
        },
    }


def main() -> None:
    """Write both files."""
    write_calibration(published_calibration(), CALIBRATION)
    BANDS.write_text(json.dumps(bands_json(bands_of(banded())), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
