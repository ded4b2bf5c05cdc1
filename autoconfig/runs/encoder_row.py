"""Rows of a table of T5, mT5 and BERT runs (columns.encoders of data/run_tables.toml) in the columns of other training runs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from autoconfig.runs.table import CellError, Row, cell, columns_of, names_of, whole
from autoconfig.specs.errors import InputError

SHAPE = ("hidden", "ffn", "heads", "kv_channels")


def is_encoder_table(columns: Sequence[str]) -> bool:
    """Whether a header is such a table's."""
    return {"enc_layers", "seq_enc"} <= set(columns)


def training_row_of(row: Row) -> dict[str, str]:
    """Return the same run in the columns of other training runs; what cannot be read of it stands in `unreadable`."""
    names, never = names_of("encoder_columns"), columns_of("encoders_measured")
    try:
        encoder, decoder = _layers(row)
        if not re.search("t5|bert", _name(row).lower()):
            raise InputError(f"cells family and model: {_name(row)[:40]!r} is none of t5, mt5, bert")
    except InputError as error:
        return {"id": cell(row, "id"), "gpu": cell(row, "gpu"), "unreadable": str(error)}
    shape = {"layers": str(encoder + decoder), "encoder_layers": str(encoder)} if encoder else {}
    cells = {names.get(column, column): text for column, text in row.items() if column not in never}
    return cells | shape | {"model": _name(row), "recompute": _recompute(cell(row, "recompute"))}


def _layers(row: Row) -> tuple[int, int]:
    """Return the layers of encoder and decoder; 0 and 0 where the row leaves its whole shape to its name. Raises InputError."""
    given = [key for key in SHAPE if cell(row, key)]
    encoder, decoder = whole(row, "enc_layers", 0), whole(row, "dec_layers", 0)
    bert = "bert" in _name(row).lower()
    if min(encoder, decoder) < 0 or (decoder and bert):
        raise CellError(f"cells enc_layers={encoder} and dec_layers={decoder} are no {'BERT' if bert else 'T5'}")
    blank = [] if encoder else ["enc_layers"]
    blank += [] if decoder or bert else ["dec_layers"]
    if blank and (given or encoder or decoder):
        there = ", ".join([*given, *(["enc_layers"] if encoder else []), *(["dec_layers"] if decoder else [])])
        raise InputError(f"{' and '.join(blank)}: empty or 0, and {there} given; give the whole shape, or only a name")
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
