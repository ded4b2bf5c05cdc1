"""What predictions of training, serving and post-training rows share: rows that ask the same are answered once, and a row that
cannot be predicted keeps the reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from autoconfig.runs.cells import columns_never_read
from autoconfig.runs.table import Row, names_of
from autoconfig.specs.errors import AutoconfigError

if TYPE_CHECKING:
    from autoconfig.planning.progress import Progress

FAILED = "not predicted: "
OUR_ERROR = "an error of autoconfig's own"
ROWS_PER_REPORT = 20

Answer = TypeVar("Answer")


def cells_of(prediction: object, kind: str) -> dict[str, str]:
    """Return column -> text of a prediction for a row of `kind` ([predicted] of data/run_tables.toml): six digits of a number,
    1 and 0 of a flag, `a to b` of a range; empty where there is none."""
    return {column: _text(_attribute(prediction, path)) for column, path in names_of("predicted")[kind].items()}


def _attribute(record: object, path: str) -> object:
    """Return an attribute of an attribute, None where one on the way is None."""
    for name in path.split("."):
        record = None if record is None else getattr(record, name)
    return record


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return " to ".join(map(_text, value))
    if isinstance(value, bool):
        return str(int(value))
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def distinct_rows(rows: Sequence[Row], kind: str) -> tuple[list[dict[str, str]], list[int]]:
    """Return the rows that differ in a cell that a prediction reads, without the other cells, and for every row which one it
    asks."""
    never = columns_never_read(kind)
    asked: dict[tuple[tuple[str, str], ...], int] = {}
    numbers = []
    for row in rows:
        cells = ((name, text.strip()) for name, text in row.items() if text and name not in never)
        numbers.append(asked.setdefault(tuple(sorted((name, text) for name, text in cells if text)), len(asked)))
    return [dict(cells) for cells in asked], numbers


def answer_rows(
    rows: Sequence[Row],
    kind: str,
    answer: Callable[[Row], Answer],
    failed: Callable[[str], Answer],
    progress: Progress | None = None,
) -> list[Answer]:
    """Return the answer to every row, in order; `failed` makes one of a reason."""
    asked, numbers = distinct_rows(rows, kind)
    answers = []
    for count, row in enumerate(asked, 1):
        answers.append(_answer_or_reason(row, answer, failed))
        if progress is not None and count % ROWS_PER_REPORT == 0:
            progress(f"{count:,} of {len(asked):,} different rows")
    return [answers[number] for number in numbers]


def _answer_or_reason(row: Row, answer: Callable[[Row], Answer], failed: Callable[[str], Answer]) -> Answer:
    try:
        return answer(row)
    except AutoconfigError as error:
        return failed(f"{FAILED}{error}")
    except Exception as error:  # a mistake of ours in one row must not cost the thousand others their predictions
        what = f"{type(error).__name__}: {str(error)[:200]}"
        return failed(f"{FAILED}{OUR_ERROR} ({what}); please report the row")
