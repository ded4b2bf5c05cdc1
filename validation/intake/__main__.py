"""Write the tables of published runs from what their publishers print, and say what each kind of repair changed.

python -m validation.intake                         validation/tables/*.csv from validation/tables/raw/*.csv
python -m validation.intake --without switches --into DIR      the same with the printed cells alone in one respect
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from autoconfig.runs.table import names_of, write_csv
from validation.intake import nvidia, t5_bert
from validation.intake.repairs import KINDS, Repairs

TABLES = Path(__file__).parents[1] / "tables"
COLUMNS = ("training", "encoders", "encoders_measured", "serving", "post_training")
Intake = Callable[[Iterable[Mapping[str, str]], Repairs], Iterator[dict[str, str]]]
INTAKES: Mapping[str, Intake] = {
    "nvidia_training_measurements": nvidia.rows_to_2025,
    "nvidia_training_2026": nvidia.rows_of_2026,
    "t5_bert": t5_bert.rows,
}
"""Table -> how its rows are read; the other tables were written down in a user's columns."""


def canonical(table: str, repairs: Repairs) -> list[dict[str, str]]:
    """Return the rows of a table in the columns of a user's, each with the same columns."""
    with (TABLES / "raw" / f"{table}.csv").open(encoding="utf-8", newline="") as file:
        rows = [dict(row) for row in INTAKES[table](csv.DictReader(file), repairs)]
    filled = {column for row in rows for column, text in row.items() if text}
    documented = dict.fromkeys(column for kind in COLUMNS for column in names_of("columns")[kind])
    order = [*(column for column in documented if column in filled), *sorted(filled - documented.keys())]
    return [{column: row.get(column, "") for column in order} for row in rows]


def write(table: str, into: Path, repairs: Repairs) -> None:
    """Write one table into a folder."""
    rows = canonical(table, repairs)
    write_csv(into / f"{table}.csv", list(rows[0]), rows, end="\n")


def main(arguments: list[str] | None = None) -> None:
    """Write every table; print how many rows each kind of repair changed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--without", action="append", default=[], choices=list(KINDS), metavar="KIND")
    parser.add_argument("--into", type=Path, default=TABLES, metavar="DIR")
    options = parser.parse_args(arguments)
    for table in INTAKES:
        repairs = Repairs(without=frozenset(options.without))
        write(table, options.into, repairs)
        sys.stdout.write(f"{table}\n")
        for kind, count in sorted(repairs.rows.items()):
            sys.stdout.write(f"  {count:4} rows  {kind}: {KINDS[kind]}\n")


if __name__ == "__main__":
    main()
