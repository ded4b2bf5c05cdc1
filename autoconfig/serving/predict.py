"""`autoconfig predict --inference IN.csv --output OUT.csv`: throughput, latency, memory of every row of a table of serving
runs."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autoconfig.files import write_atomically
from autoconfig.row_cells import Row
from autoconfig.serving.evaluate import Setup, offline_throughput, open_loop, set_up, single_request
from autoconfig.serving.rows import MEASURED, NEEDED, Case, read_case
from specs.errors import AutoconfigError, FileError, InputError
from time_model.serving_calibration import ServingCalibration, shipped_calibration

if TYPE_CHECKING:
    from autoconfig.question import Progress

MAX_INPUT_BYTES = 512 * 2**20


@dataclass(frozen=True, kw_only=True)
class Prediction:
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


COLUMNS = tuple(Prediction(row=0).cells())


def predict_file(source: Path, target: Path, progress: Progress | None = None) -> list[Prediction]:
    """Predict every row of `source` into `target` (written beside, then renamed). Raises FileError or InputError."""
    predictions = predict_rows(read_table(source), progress=progress)

    def write(file: Path) -> None:
        with file.open("w", encoding="utf-8", newline="") as out:
            writer = csv.DictWriter(out, COLUMNS)
            writer.writeheader()
            writer.writerows(prediction.cells() for prediction in predictions)

    write_atomically(target, write)
    return predictions


def read_table(source: Path) -> list[dict[str, str]]:
    """Rows of a CSV file. Raises FileError where it cannot be read, InputError where it is no such table."""
    try:
        if source.stat().st_size > MAX_INPUT_BYTES:
            raise FileError(f"{source} is larger than {MAX_INPUT_BYTES // 2**20} MiB")
        text = source.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise FileError(f"{source} cannot be read: {reason}") from error
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        rows = [{k: v or "" for k, v in row.items() if isinstance(k, str)} for row in reader]
    except csv.Error as error:
        raise InputError(f"{source} is not a CSV table: {error}") from error
    missing = set(NEEDED) - set(reader.fieldnames or ())
    if missing:
        raise InputError(
            f"{source} lacks the columns {', '.join(sorted(missing))}; "
            "the columns are those of autoconfig/data/published/inference_measurements.csv"
        )
    return rows


def predict_rows(
    rows: Sequence[Row], calibration: ServingCalibration | None = None, progress: Progress | None = None
) -> list[Prediction]:
    """A prediction per row, in order. Rows that ask the same are answered once."""
    found: dict[tuple[tuple[str, str], ...], Prediction] = {}
    result = []
    constants = calibration or shipped_calibration()
    for index, row in enumerate(rows):
        asked = {k: v.strip() for k, v in row.items() if k not in MEASURED and v.strip()}
        key = tuple(sorted(asked.items()))
        if key not in found:
            found[key] = predict_row(asked, constants)
            if progress is not None and len(found) % 20 == 0:
                progress(f"{len(found):,} different rows, at {index + 1:,} of {len(rows):,}")
        result.append(Prediction(**{**vars(found[key]), "row": index}))
    return result


def predict_row(row: Row, calibration: ServingCalibration) -> Prediction:
    """One row; a row that cannot be predicted keeps the reason."""
    try:
        case = read_case(row)
        setups = [set_up(case, plan, calibration) for plan in case.plans]
        setup = max(setups, key=lambda s: (s.fits, offline_throughput(case, s)))
        return _answer(case, setup)
    except AutoconfigError as error:
        return Prediction(row=0, note=f"not predicted: {error}")


def _answer(case: Case, setup: Setup) -> Prediction:
    notes = [f"assumed: {'; '.join(case.assumed)}"] if case.assumed else []
    if len(case.plans) > 1:
        notes.append(f"plan {setup.job.plan}")
    notes.append(setup.job.constants.origin)
    held = {"fits": setup.fits, "max_concurrency": setup.max_concurrency}
    if not setup.fits:
        free, each = (float(x) / 2**30 for x in (setup.memory.kv_pool_bytes, setup.memory.kv_bytes_per_sequence))
        notes.insert(
            0,
            f"does not fit: {free:.1f} GiB for the cache, a sequence takes {each:.2f}",
        )
        return Prediction(row=0, note="; ".join(notes), **held)  # type: ignore[arg-type]
    if case.load == "single":
        first, each = single_request(case, setup)
        total = first + (case.lengths.osl - 1.0) * each
        rate = case.lengths.osl / total / setup.job.plan.gpus
        return Prediction(
            row=0,
            out_tok_s_gpu=rate,
            ttft_ms=first * 1e3,
            tpot_ms=each * 1e3,
            latency_ms=total * 1e3,
            note="; ".join(notes),
            **held,  # type: ignore[arg-type]
        )
    if case.load == "open":
        found = open_loop(case, setup)
        between = found.tpot_s if not case.requests else found.itl_s
        return Prediction(
            row=0,
            out_tok_s_gpu=found.requests_per_s * case.lengths.osl / case.num_gpus,
            ttft_ms=found.ttft_s * 1e3,
            tpot_ms=between * 1e3,
            latency_ms=found.e2e_s * 1e3,
            requests_per_s=found.requests_per_s,
            note="; ".join(notes),
            **held,  # type: ignore[arg-type]
        )
    return Prediction(row=0, out_tok_s_gpu=offline_throughput(case, setup), note="; ".join(notes), **held)  # type: ignore[arg-type]
