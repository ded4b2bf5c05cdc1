"""Rows of a table of T5, mT5 and BERT runs (columns.encoders of data/run_tables.toml) in the columns of other training runs."""

from __future__ import annotations

from collections.abc import Sequence

from autoconfig.runs.cells import RunRow
from autoconfig.runs.table import CellError, Row, cell, columns_of, names_of
from autoconfig.specs.errors import InputError

SHAPE = ("hidden", "ffn", "heads", "kv_channels")


def is_encoder_table(columns: Sequence[str]) -> bool:
    """Return whether a header is such a table's."""
    return {"enc_layers", "seq_enc"} <= set(columns)


def training_row_of(row: Row) -> dict[str, str]:
    """Return the same run in the columns of other training runs; what cannot be read of it stands in `unreadable`."""
    names, never = names_of("encoder_columns"), columns_of("encoders_measured")
    try:
        name = _name(row)
        encoder, decoder = _layers(RunRow("encoders", row), is_bert="bert" in name.lower())
        if "t5" not in name.lower() and "bert" not in name.lower():
            raise InputError(f"cells family and model: {name[:40]!r} is none of t5, mt5, bert")
    except InputError as error:
        return {"id": cell(row, "id"), "gpu": cell(row, "gpu"), "unreadable": str(error)}
    shape = {"layers": str(encoder + decoder), "encoder_layers": str(encoder)} if encoder else {}
    cells = {names.get(column, column): text for column, text in row.items() if column not in never}
    return cells | shape | {"model": name, "recompute": _recompute(cell(row, "recompute"))}


def _layers(row: RunRow, *, is_bert: bool) -> tuple[int, int]:
    """Return the layers of encoder and decoder; 0 and 0 where the row leaves its whole shape to its name. Raises InputError."""
    encoder, decoder = row.degree("enc_layers"), row.degree("dec_layers")
    if decoder and is_bert:
        raise CellError(f"cells enc_layers={encoder} and dec_layers={decoder} are no BERT")
    layers = {"enc_layers": encoder} if is_bert else {"enc_layers": encoder, "dec_layers": decoder}
    shape = [key for key in SHAPE if row.text(key)] + [key for key, count in layers.items() if count]
    blank = [key for key, count in layers.items() if not count]
    if blank and shape:
        there = f"{' and '.join(blank)}: empty or 0, and {', '.join(shape)} given"
        raise InputError(f"{there}; give the whole shape, or only a name")
    return encoder, decoder


def _name(row: Row) -> str:
    """Return the model's name, with its family before it."""
    name, family = cell(row, "model"), cell(row, "family").lower()
    return name if name.lower().startswith(family) else f"{family}-{name}".strip("-")


def _recompute(text: str) -> str:
    """Return NeMo's granularity/method/layers as ours: full/block/0 recomputes nothing."""
    parts = text.lower().split("/")
    if len(parts) != 3:
        return text
    if parts[0] in ("none", "") or (parts[1] == "block" and parts[2] == "0"):
        return "none"
    return f"full({parts[1]},{parts[2] if parts[2].isdigit() else 1})" if parts[0] == "full" else parts[0]
