"""Tables of runs (CSV) of `predict` and `calibrate`, for training and for serving: read, checked, and the answer written."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from autoconfig.specs.errors import FileError, InputError, nearest
from autoconfig.specs.files import write_atomically

MAX_INPUT_BYTES = 512 * 2**20
MAX_NAMED = 12
"""Columns that a warning names; the others are counted."""
MEGATRON_NAMES = {
    "num_layers": "layers",
    "hidden_size": "hidden",
    "num_attention_heads": "heads",
    "num_query_groups": "kv_heads",
    "ffn_hidden_size": "ffn",
    "vocab_size": "vocab",
    "seq_length": "seq",
    "num_experts": "experts",
    "moe_router_topk": "topk",
    "num_gpus": "gpus",
    "world_size": "gpus",
    "tensor_model_parallel_size": "tp",
    "sequence_parallel": "sp",
    "pipeline_model_parallel_size": "pp",
    "virtual_pipeline_model_parallel_size": "vpp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
    "expert_tensor_parallel_size": "etp",
    "data_parallel_size": "dp",
    "micro_batch_size": "mbs",
    "global_batch_size": "gbs",
}
"""Megatron's names of columns of training runs, and ours."""


def read_csv(source: Path) -> tuple[list[str], list[dict[str, str]]]:
    """(columns, rows) of a CSV file. Raises FileError where it cannot be read, InputError where it is no table."""
    try:
        if source.stat().st_size > MAX_INPUT_BYTES:
            raise FileError(f"{source} is larger than {MAX_INPUT_BYTES // 2**20} MiB")
        text = source.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text; save it as CSV UTF-8"
        raise FileError(f"{source} cannot be read: {reason}") from error
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        rows = []
        for number, row in enumerate(reader, 1):
            if row.get(None):
                raise InputError(f"{source}: row {number} has more cells than the header: a comma in a cell needs quotes")
            rows.append({k: v or "" for k, v in row.items() if isinstance(k, str)})
    except csv.Error as error:
        raise InputError(f"{source} is not a CSV table: {error}") from error
    columns = list(reader.fieldnames or ())
    if not columns:
        raise InputError(f"{source} is empty: give a header line and one line per run")
    return columns, rows


def check_columns(source: Path, columns: Sequence[str], needed: Iterable[str], shipped: str) -> None:
    """Raises InputError where a column is missing without which no row can be read, or is there twice; `shipped` says which
    table has the columns."""
    if missing := sorted(set(needed) - set(columns)):
        other = [name for mark, name in ((";", "semicolons"), ("\t", "tabs")) if len(columns) == 1 and mark in columns[0]]
        hint = f"; {other[0]} separate its cells: write it with commas" if other else ""
        raise InputError(f"{source} lacks the columns {', '.join(missing)}{hint}; {shipped}")
    if twice := sorted({name for name in columns if name and columns.count(name) > 1}):
        raise InputError(f"{source} has the columns {', '.join(twice)} twice")


def check_rows(source: Path, rows: Sequence[object]) -> None:
    """Raises InputError for a table without a row."""
    if not rows:
        raise InputError(f"{source} has a header and no rows: give one line per run below it")


def with_short_names(columns: Sequence[str], rows: Sequence[Mapping[str, str]]) -> tuple[list[str], list[dict[str, str]]]:
    """The table with MEGATRON_NAMES under our names; a column whose short name (or another of its names) stands beside it keeps
    its own."""
    short: dict[str, str] = {}
    for name in columns:
        ours = MEGATRON_NAMES.get(name.strip().lstrip("-").replace("-", "_"))
        if ours is not None and ours not in columns and ours not in short.values():
            short[name] = ours
    return [short.get(name, name) for name in columns], [{short.get(k, k): v for k, v in row.items()} for row in rows]


def unread_columns(columns: Iterable[str], read: Collection[str]) -> str:
    """A line about columns that nothing reads, each with the known names most like it; empty where all are known."""
    odd = [name for name in columns if name and name not in read]
    if not odd:
        return ""
    named = []
    for name in odd[:MAX_NAMED]:
        close = nearest(name, read, 1)
        named.append(f"{name[:40]!r}" + (f" (did you mean {close[0]}?)" if close else ""))
    more = f" and {len(odd) - MAX_NAMED:,} more" if len(odd) > MAX_NAMED else ""
    return f"nothing reads the column{'s' * (len(odd) > 1)} {', '.join(named)}{more}"


def write_csv(target: Path, columns: Sequence[str], lines: Iterable[Mapping[str, str]]) -> None:
    """Header and lines, written beside `target` and renamed. Raises FileError."""

    def write(file: Path) -> None:
        with file.open("w", encoding="utf-8", newline="") as out:
            writer = csv.DictWriter(out, columns)
            writer.writeheader()
            writer.writerows(lines)

    write_atomically(target, write)


def check_not_the_input(table: Path, output: Path) -> None:
    """Raises InputError where writing the output would replace the table that was measured."""
    if output.exists() and table.exists() and output.samefile(table):
        raise InputError(f"--output {output} is the table itself; name another file")
