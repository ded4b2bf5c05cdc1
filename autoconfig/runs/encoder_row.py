"""Rows of a table of T5, mT5 and BERT runs (their columns: READ) in the columns of other training runs.

What was measured and `notes` are not read. What such a table leaves out is in `data/run_tables.toml`: how Megatron-LM's
functional tests run, by the words in their names, and NeMo's own modules otherwise; a run without a plan has the plan of its
size's default configuration.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources

from autoconfig.runs.table import CellError, Row, cell, degree, names_of, whole
from autoconfig.specs.errors import InputError

COLUMNS = frozenset({"enc_layers", "seq_enc"})
"""A header with these is such a table's."""
READ = frozenset(
    {"id", "source", "family", "model", "enc_layers", "dec_layers", "hidden", "ffn", "heads", "kv_channels", "vocab",
     "seq_enc", "seq_dec", "gpu", "gpus", "precision", "tp", "pp", "pp_split_rank", "vpp", "sp", "mbs", "gbs", "recompute",
     "activation"}
)  # fmt: skip
NOT_READ = frozenset(
    {"kind", "source_ref", "params_printed_b", "params_computed_b", "vocab_source", "max_steps", "time_limit", "tokens",
     "tokens_per_s", "step_s", "days_printed", "tflops_per_gpu", "mem_alloc_gib", "mem_peak_gib", "latency_ms", "notes"}
)  # fmt: skip
PLAN = ("tp", "pp", "vpp", "sp", "mbs", "gbs", "recompute")
SHAPE = ("hidden", "ffn", "heads", "kv_channels")
NODE = 8
SAME = ("id", "source", "hidden", "ffn", "heads", "kv_channels", "vocab", "precision", "tp", "pp", "vpp", "sp", "mbs", "gbs")


def is_encoder_table(columns: Sequence[str]) -> bool:
    """By its header."""
    return set(columns) >= COLUMNS


@cache
def default_plans() -> dict[str, Row]:
    """Size -> the plan of its default configuration. Source: NVIDIA/NeMo-Framework-Launcher@26e42fa91d,
    launcher_scripts/conf/training."""
    text = (resources.files("autoconfig") / "data" / "encoder_plans.csv").read_text(encoding="utf-8")
    return {row["model"]: row for row in csv.DictReader(text.splitlines())}


def training_row_of(row: Row) -> dict[str, str]:
    """The same run in the columns of training_measurements.csv; what cannot be read of it stands in `unreadable`."""
    try:
        if not cell(row, "seq_enc"):
            raise InputError("seq_enc is empty: a run that serves, not one that trains")
        return _readable(row)
    except InputError as error:
        return {"id": cell(row, "id"), "gpu": cell(row, "gpu"), "unreadable": str(error)}


def _layers(row: Row) -> tuple[int, int]:
    """Of encoder and decoder; 0 and 0 where the row leaves its whole shape to its name. Raises InputError."""
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


def _readable(row: Row) -> dict[str, str]:
    """What is taken for granted goes to `row_assumed`."""
    assumed: list[str] = []
    if not re.search("t5|bert", _name(row).lower()):
        raise InputError(f"cells family and model: {_name(row)[:40]!r} is none of t5, mt5, bert")
    row = _with_default_plan(row, assumed)
    test = cell(row, "source").startswith("Megatron-LM") or "mcore" in cell(row, "model")
    layers = _layers(row)
    found = {key: cell(row, key) for key in SAME} | {
        "model": _name(row),
        "layers": str(sum(layers)) if sum(layers) else "",
        "encoder_layers": str(layers[0]) if layers[0] else "",
        "seq": cell(row, "seq_enc"),
        "decoder_seq": cell(row, "seq_dec"),
        "gpu": re.sub(r"\s*\(.*\)", "", cell(row, "gpu")),
        "gpus": cell(row, "gpus"),
        "recompute": _recompute(cell(row, "recompute")),
        "sp": cell(row, "sp") or "0",  # of configurations: what they leave out is off
        "optimizer_shard": "none",
        "grad_dtype": "fp32",
    }
    if not found["gpus"]:
        size = max(NODE, degree(row, "tp") * degree(row, "pp"))
        found["gpus"] = str(size)
        assumed.append(f"{size} GPUs")
    settings = dict(names_of("megatron_tests")["" if not test else _kind_of_test(cell(row, "model"))])
    assumed.append(", ".join(f"{key} {value}" for key, value in settings.items()))
    found = {**settings, **{key: value for key, value in found.items() if value}}
    return found | {"row_assumed": "; ".join(assumed)}


def _name(row: Row) -> str:
    """The model's name, with its family before it."""
    name, family = cell(row, "model"), cell(row, "family").lower()
    return name if name.lower().startswith(family) else f"{family}-{name}".strip("-")


def _kind_of_test(name: str) -> str:
    """The first pattern of `megatron_tests` that the test's name holds."""
    return next(pattern for pattern in names_of("megatron_tests") if pattern and re.search(pattern, name))


def _with_default_plan(row: Row, assumed: list[str]) -> Row:
    """The row with the plan of its size's default configuration where it has no micro-batch of its own."""
    usual = default_plans().get(cell(row, "model").lower())
    if cell(row, "mbs") or usual is None:
        return row
    taken = {key: cell(usual, key) for key in PLAN if not cell(row, key) and cell(usual, key)}
    assumed.append("the default plan of the size (" + ", ".join(f"{key} {value}" for key, value in taken.items()) + ")")
    more = {} if cell(row, "precision") else {"precision": "bf16"}
    seq = {} if cell(row, "seq_dec") or "bert" in _name(row).lower() else {"seq_dec": cell(usual, "seq_dec")}
    return {**row, **taken, **more, **seq}


def _recompute(text: str) -> str:
    """granularity/method/layers of NeMo -> ours: full/block/0 recomputes nothing."""
    parts = text.lower().split("/")
    if len(parts) != 3 or parts[0] in ("none", "") or (parts[1] == "block" and parts[2] == "0"):
        return "none"
    return f"full({parts[1]},{parts[2] if parts[2].isdigit() else 1})" if parts[0] == "full" else parts[0]
