"""`autoconfig predict --inference IN.csv --output OUT.csv`: throughput, latency, memory of every row of a table of serving
runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from autoconfig.runs.serving_case import Setup, offline_throughput, open_loop, rated_loop, set_up, single_request, together
from autoconfig.runs.serving_row import MEASURED, NEEDED, ServingCase, read_case
from autoconfig.runs.table import Row, check_columns, check_rows, read_csv, unread_columns, write_csv
from autoconfig.specs.errors import GIB, AutoconfigError
from autoconfig.time_model.serving.borrowed import borrowed_shares
from autoconfig.time_model.serving.tables import ServingCalibration, shipped_calibration

if TYPE_CHECKING:
    from autoconfig.planning.progress import Progress

SHIPPED_TABLE = "the columns are those of autoconfig/data/published/inference_measurements.csv"
FAILED = "not predicted: "
OUR_ERROR = "an error of autoconfig's own"


@dataclass(frozen=True, kw_only=True)
class ServingPrediction:
    """What one row gets; None where it does not apply or could not be predicted. `note` says why, or what was assumed."""

    row: int
    out_tok_s_gpu: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    latency_ms: float | None = None
    fits: bool | None = None
    max_concurrency: int | None = None
    note: str = ""
    requests_per_s: float | None = None
    """Open loop only; not a column."""
    offered_tpot_ms: float | None = None
    """At the priced speed, limits unread; open loop only, not a column."""

    @property
    def failed(self) -> bool:
        """The row has no prediction."""
        return self.note.startswith(FAILED)

    def cells(self) -> dict[str, str]:
        """The output columns."""
        numbers = {
            "pred_out_tok_s_gpu": self.out_tok_s_gpu,
            "pred_ttft_ms": self.ttft_ms,
            "pred_tpot_ms": self.tpot_ms,
            "pred_latency_ms": self.latency_ms,
        }
        cells = {"row": str(self.row), **{k: "" if v is None else f"{v:.6g}" for k, v in numbers.items()}}
        cells["pred_fits"] = "" if self.fits is None else str(int(self.fits))
        cells["pred_max_concurrency"] = "" if self.max_concurrency is None else str(self.max_concurrency)
        return {**cells, "pred_note": self.note}


COLUMNS = tuple(ServingPrediction(row=0).cells())


def predict_file(source: Path, target: Path, progress: Progress | None = None) -> tuple[list[ServingPrediction], str, str]:
    """Predict every row of `source` into `target` (written beside, then renamed). Returns the predictions, the version of the
    constants, and a remark about columns that nothing reads. Raises FileError or InputError."""
    columns, rows = _read(source)
    check_rows(source, rows)
    constants = shipped_calibration()
    predictions = predict_rows(rows, constants, progress)
    write_csv(target, COLUMNS, (prediction.cells() for prediction in predictions))
    return predictions, version_of(constants), unread_columns(columns, known_columns())


def version_of(calibration: ServingCalibration) -> str:
    """Names the constants behind predictions: a hash of their numbers."""
    numbers = json.dumps([calibration.engines, calibration.gpus], sort_keys=True, default=dict)
    return f"serving-{hashlib.sha256(numbers.encode()).hexdigest()[:8]}"


def read_table(source: Path) -> list[dict[str, str]]:
    """Rows of a table of serving runs. Raises FileError where it cannot be read, InputError where it is no such table."""
    return _read(source)[1]


def _read(source: Path) -> tuple[list[str], list[dict[str, str]]]:
    columns, rows = read_csv(source)
    check_columns(source, columns, NEEDED, SHIPPED_TABLE)
    return columns, rows


@cache
def known_columns() -> frozenset[str]:
    """Columns of the table that ships."""
    path = resources.files("autoconfig") / "data" / "published" / "inference_measurements.csv"
    return frozenset(path.read_text(encoding="utf-8").split("\n", 1)[0].strip().split(","))


def predict_rows(
    rows: Sequence[Row], calibration: ServingCalibration | None = None, progress: Progress | None = None
) -> list[ServingPrediction]:
    """A prediction per row, in order. Rows that ask the same are answered once."""
    found: dict[tuple[tuple[str, str], ...], ServingPrediction] = {}
    result = []
    constants = calibration or shipped_calibration()
    for index, row in enumerate(rows):
        asked = {k: v.strip() for k, v in row.items() if k not in MEASURED and v.strip()}
        key = tuple(sorted(asked.items()))
        if key not in found:
            found[key] = predict_row(asked, constants)
            if progress is not None and len(found) % 20 == 0:
                progress(f"{len(found):,} different rows, at {index + 1:,} of {len(rows):,}")
        result.append(ServingPrediction(**{**vars(found[key]), "row": index}))
    return result


def predict_row(row: Row, calibration: ServingCalibration) -> ServingPrediction:
    """One row; a row that cannot be predicted keeps the reason."""
    try:
        case = read_case(row)
        setups = [set_up(case, plan, calibration) for plan in case.plans]
        setup = max(setups, key=lambda s: (s.fits, offline_throughput(case, s) if s.fits else float(s.memory.kv_pool_bytes)))
        return _answer(case, setup)
    except AutoconfigError as error:
        return ServingPrediction(row=0, note=f"{FAILED}{error}")
    except Exception as error:  # a mistake of ours in one row must not cost the thousand others their predictions
        what = f"{type(error).__name__}: {str(error)[:200]}"
        return ServingPrediction(row=0, note=f"{FAILED}{OUR_ERROR} ({what}); please report the row")


def _answer(case: ServingCase, setup: Setup) -> ServingPrediction:
    notes = [f"assumed: {'; '.join(case.assumed)}"] if case.assumed else []
    job = setup.job
    if len(case.plans) > 1:
        notes.append(f"plan {job.plan}")
    notes.append(job.constants.origin)
    notes.extend(borrowed_shares(job.tables, job.model, job.gpu, [job.plan.weights], [job.plan.kv]))
    figures: dict[str, float] = {}
    if not setup.fits:
        free, each = (float(x) / GIB for x in (setup.memory.kv_pool_bytes, setup.memory.kv_bytes_per_sequence))
        notes.insert(0, f"does not fit: {free:.1f} GiB for the cache, a sequence takes {each:.2f}")
    elif case.load == "single":
        first, each = single_request(case, setup)
        total = first + (case.lengths.osl - 1.0) * each
        figures = {"out_tok_s_gpu": case.lengths.osl / total / job.plan.gpus, **_latency(first, each, total)}
    elif case.load == "open":
        figures = _open(case, setup, notes)
    else:
        figures = {"out_tok_s_gpu": offline_throughput(case, setup)}
        if case.max_batch or case.concurrency:  # a batch of a given size: the latency of its requests, all there from the start
            batch = together(case, setup)
            figures |= _latency(batch.ttft_s, batch.tpot_s, batch.e2e_s)
    return ServingPrediction(
        row=0,
        fits=setup.fits,
        max_concurrency=setup.max_concurrency,
        note="; ".join(notes),
        **figures,
    )


def _latency(first_s: float, between_s: float, total_s: float) -> dict[str, float]:
    return {"ttft_ms": first_s * 1e3, "tpot_ms": between_s * 1e3, "latency_ms": total_s * 1e3}


def _open(case: ServingCase, setup: Setup, notes: list[str]) -> dict[str, float]:
    offered = open_loop(case, setup)
    found = rated_loop(case, setup, case.limits) if case.limits else offered
    if case.limits:
        notes.append(f"rate read as the largest within the limits: iterations {found.slowdown:.2f} times as long as priced")
    return {
        "out_tok_s_gpu": found.requests_per_s * case.lengths.osl / case.num_gpus,
        **_latency(found.ttft_s, found.itl_s if case.requests else found.tpot_s, found.e2e_s),
        "requests_per_s": found.requests_per_s,
        "offered_tpot_ms": offered.tpot_s * 1e3,
    }
