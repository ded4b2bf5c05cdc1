"""What each source of published runs is used for, and why (`autoconfig/data/sources.toml`); NVIDIA's rows as others."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from autoconfig.runs.table import Row, cell, names_of, number
from autoconfig.specs.errors import UnknownNameError
from autoconfig.specs.models.model_catalogue import load_model

USES = ("calibrate", "bands", "memory", "fits")


@dataclass(frozen=True, kw_only=True)
class HeldTo:
    """Most mean absolute error of step times, with constants that have not seen the source or the model."""

    name: str
    leave_out: str
    most: float


@dataclass(frozen=True, kw_only=True)
class PublishedSource:
    """Tables of one publisher or paper that are used alike."""

    match: str
    use: tuple[str, ...]
    """Some of USES; none: shown only."""
    why: str
    publisher: str = ""
    """Whose one table these sources are parts of."""
    whole_step: bool = True
    listed: bool = True
    """Whether the accuracy page lists rows that resist, not only counts them."""
    bar: HeldTo | None = None
    regret: float | None = None
    """Most mean regret of the first choice."""


@dataclass(frozen=True, kw_only=True)
class HarderReading:
    """How the figure of a bar is read in a harder way."""

    bar: str
    why: str
    also: str = ""
    """Pattern of sources that count too."""
    zero: tuple[str, ...] = ()
    """Times of the software stack that are set to zero, and the calibration fitted again."""


@dataclass(frozen=True, kw_only=True)
class ServingFigure:
    """One figure of published serving runs: which rows, which statistic, and the bar in % that it is held to."""

    name: str
    rows: Mapping[str, str]
    """Column -> pattern of its cells."""
    statistic: str
    measured: str = ""
    predicted: str = ""
    moe: bool | None = None
    bar: float | None = None


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads((resources.files("autoconfig") / "data" / "sources.toml").read_text(encoding="utf-8"))


@cache
def sources() -> tuple[PublishedSource, ...]:
    """Every entry, in the order in which they are tried."""
    return tuple(
        PublishedSource(**{**entry, "use": tuple(entry["use"]), "bar": HeldTo(**entry["bar"]) if "bar" in entry else None})
        for entry in _data()["source"]
    )


@cache
def source_of(name: str) -> PublishedSource:
    """The entry of a source. Raises UnknownNameError where no entry has it."""
    for source in sources():
        if re.fullmatch(source.match, name):
            return source
    raise UnknownNameError("source of published runs", name, [source.match for source in sources()])


@cache
def harder_readings() -> tuple[HarderReading, ...]:
    """Readings that are named there."""
    return tuple(HarderReading(**{**entry, "zero": tuple(entry.get("zero", ()))}) for entry in _data()["reading"])


@cache
def serving_figures() -> tuple[ServingFigure, ...]:
    """Figures of serving runs, in the order in which they are printed."""
    return tuple(ServingFigure(**entry) for entry in _data()["serving"])


LONG_CONTEXT = 32_768
"""Rows above this sequence length, and release 24.03's series up to a million tokens, are a group of their own."""
RELEASE_STACK = {"moe-modelzoo": "megatron-moe-modelzoo"}
"""Releases that name their software better than the column software does."""
RECOMPUTE = {"": "none", "full": "full", "selective": "selective", "norm,moe_act": "selective([layernorm moe_act])"}


def nvidia_source(row: Row) -> str:
    """Group name: GPU, dense or MoE, precision."""
    kind = "MoE" if load_model(cell(row, "model")).is_moe else "dense"
    precision = "FP8" if "FP8" in cell(row, "precision") else "BF16"
    task = {"pretrain": "", "sft": " SFT", "lora": " LoRA"}.get(cell(row, "task"), f" {cell(row, 'task')}")
    if (number(row, "seq_len") or 0) > LONG_CONTEXT or (cell(row, "release").startswith("24.03") and not task):
        task += " long context"
    return f"NVIDIA {cell(row, 'system').removeprefix('DGX-')} {kind} {precision}{task}"


def as_training_row(row: Row) -> dict[str, str]:
    """The same run in the columns of training_measurements.csv. Raises InputError for a model that is not in the catalogue."""
    model = load_model(cell(row, "model"))
    precision = cell(row, "precision")
    routing = next((kind for kind in ("tokendrop", "dropless") if kind in cell(row, "model")), "")
    return {
        "id": f"{cell(row, 'release')} {cell(row, 'model')} {cell(row, 'num_gpus')} {cell(row, 'system')} {precision}",
        "source": nvidia_source(row),
        "model": cell(row, "model"),
        "layers": str(model.num_layers),
        "seq": cell(row, "seq_len"),
        "gpu": cell(row, "system"),
        "gpus": cell(row, "num_gpus"),
        "precision": "fp8" if "FP8" in precision else "bf16",
        "fp8_recipe": names_of("nvidia_precisions").get(precision, ""),
        "tp": cell(row, "tp"),
        "sp": "1" if cell(row, "tp") not in ("", "1") else "0",
        "pp": cell(row, "pp"),
        "vpp": cell(row, "vp"),
        "cp": cell(row, "cp"),
        "ep": cell(row, "ep"),
        "etp": cell(row, "etp"),
        "fsdp": "3" if (number(row, "fsdp") or 0) > 0 else "1",
        "mbs": cell(row, "mbs"),
        "gbs": cell(row, "gbs"),
        "recompute": RECOMPUTE.get(cell(row, "recompute"), "none"),
        "software": RELEASE_STACK.get(cell(row, "release"), cell(row, "software")),
        "moe_routing": routing,
        "peft": "lora" if cell(row, "task") == "lora" else "",
        "metric_step_s": cell(row, "step_time_s"),
        "metric_tokens_per_s_per_gpu": cell(row, "tokens_per_s_per_gpu"),
        "metric_tflops_per_gpu": cell(row, "model_tflops_per_gpu"),
        "full_plan": cell(row, "full_plan"),
        "status": "ran",
    }
