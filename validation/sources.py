"""What each source of published runs is used for, and why (`validation/sources.toml`); NVIDIA's rows as others."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from autoconfig.specs.errors import UnknownNameError
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.run_settings import PLAN_COLUMNS, RecipeSettings, nearest_recipe

from autoconfig.runs.table import Row, cell, format_of, number
from autoconfig.runs.training_model import is_fine_tuning

USES = ("calibrate", "bands", "memory", "fits")


@dataclass(frozen=True, kw_only=True)
class HeldTo:
    """Most mean absolute error of step times, with constants that have not seen what `leave_out` names."""

    name: str
    leave_out: Literal["source", "model", "pair", "release"]
    most: float
    match: str = ""
    """Pattern of the sources; empty: the source that the bar stands in."""
    since: str = ""
    """First release of the software whose rows count."""
    before: str = ""
    """First release whose rows no longer count; empty: none."""
    median: float | None = None
    """Most median absolute error, where that is held too."""
    bias: float | None = None
    """Most median error either way, where that is held too."""


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
class BlindReading:
    """What a run's own stack may not bring when it is predicted blind."""

    times_bar: float
    """Most mean error, over the bar."""
    rates: tuple[str, ...]
    """Fields of StackTime that were read off papers."""
    generic: Mapping[str, str]
    """Stack -> the generic stack of its kind, whose rates and calibration stand in."""


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
    return tomllib.loads(Path(__file__).with_name("sources.toml").read_text(encoding="utf-8"))


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


def untuned(source: str) -> str:
    """Why the best run of this source is not the best of its question; empty where it is taken for it."""
    return next((entry["why"] for entry in _data()["untuned"] if re.fullmatch(entry["match"], source)), "")


@cache
def harder_readings() -> tuple[HarderReading, ...]:
    """Readings that are named there."""
    return tuple(HarderReading(**{**entry, "zero": tuple(entry.get("zero", ()))}) for entry in _data()["reading"])


@cache
def bars_held() -> tuple[HeldTo, ...]:
    """Every bar of step times: those of single sources, and those of several or of a part of one."""
    own = [replace(source.bar, match=source.match) for source in sources() if source.bar is not None]
    return (*own, *(HeldTo(**entry) for entry in _data()["held"]))


@cache
def blind_reading() -> BlindReading:
    """The hardest reading of every bar."""
    data = dict(_data()["blind"])
    times_bar, rates = data.pop("times_bar"), tuple(data.pop("rates"))
    generic = {own: name for name, stacks in data.items() for own in stacks}
    return BlindReading(times_bar=times_bar, rates=rates, generic=generic)


@cache
def serving_figures() -> tuple[ServingFigure, ...]:
    """Figures of serving runs, in the order in which they are printed."""
    return tuple(ServingFigure(**entry) for entry in _data()["serving"])


LONG_CONTEXT = 32_768
"""Rows above this sequence length, and release 24.03's series up to a million tokens, are a group of their own."""
RELEASE_STACK = {
    "moe-modelzoo": "megatron-moe-modelzoo",
    **dict.fromkeys(("v2.0 (2021-01)", "v2.6 (2021-04)", "v2.6"), "megatron-lm-2021"),
    "core_v0.4.0": "megatron-lm-2022",
}
"""Releases that name their software better than the column software does."""
RECOMPUTE = {"": "none", "full": "full", "selective": "selective", "norm,moe_act": "selective([layernorm moe_act])"}


DOUBTFUL = ", plan in doubt"
"""End of the name of a source whose printed plans are not those of their release's recipes: tables copy a plan forward."""


def recipe_row_of_2026(row: Row) -> dict[str, str]:
    """A row of nvidia_training_2026.csv in the columns of training_measurements.csv, with the recomputation of its release's
    recipe (where there is none of its plan, of the recipe beside the row). Raises InputError for a model that is not in the
    catalogue."""
    model = load_model(cell(row, "model"))
    precision, recipe = format_of(cell(row, "precision"))
    gpu, software = cell(row, "gpu"), f"nemo-{cell(row, 'release')}"
    plan = tuple(int(cell(row, column) or 1) for column in PLAN_COLUMNS)
    fine_tuned = is_fine_tuning(row)
    known = None if fine_tuned else nearest_recipe(model.name, gpu.lower(), recipe or precision, software, plan)
    modules = known.row["recompute"] if known is not None else cell(row, "recipe_rmodules")
    doubt = "" if known is None or known.plan[1:] == plan[1:] else DOUBTFUL
    sharded = (number(row, "fsdp") or 0) > 0
    kind = _kind(model)
    task = {"pretrain": ""}.get(cell(row, "task"), f" {cell(row, 'task')}").upper().replace("LORA", "LoRA")
    offloaded = known.row["offload_layers"] if known is not None and known.plan[1:] == plan[1:] else ""
    return {
        "id": cell(row, "id"),
        "source": f"NVIDIA 2026 {gpu} {kind} {(recipe or precision).upper()}{task}{doubt}",
        **{
            column: cell(row, column) for column in ("model", "seq", "gpu", "gpus", "tp", "pp", "vpp", "cp", "ep", "mbs", "gbs")
        },
        "layers": str(model.num_layers),
        "precision": precision,
        "fp8_recipe": recipe,
        "sp": "1" if cell(row, "tp") not in ("", "1") else "0",
        "fsdp": "3" if sharded else "1",
        "offload": "activations" if offloaded and sharded else "",
        "offload_layers": offloaded,
        "recompute": f"selective({modules.replace(' ', ',')})" if modules else "none",
        "software": software,
        "task": cell(row, "task"),
        "metric_tokens_per_s_per_gpu": cell(row, "tokens_per_s_per_gpu"),
        "full_plan": "1",
        "status": "ran",
    }


def _kind(model: ModelSpec) -> str:
    return "hybrid" if model.is_hybrid else "MoE" if model.is_moe else "dense"


def nvidia_source(row: Row) -> str:
    """Group name: GPU, dense or MoE, precision."""
    kind = _kind(load_model(cell(row, "model")))
    precision = "FP8" if "FP8" in cell(row, "precision") else "BF16"
    task = {"pretrain": "", "sft": " SFT", "lora": " LoRA"}.get(cell(row, "task"), f" {cell(row, 'task')}")
    if (number(row, "seq_len") or 0) > LONG_CONTEXT or (cell(row, "release").startswith("24.03") and not task):
        task += " long context"
    return f"NVIDIA {cell(row, 'system').removeprefix('DGX-')} {kind} {precision}{task}"


def _recipe_of(row: Row, model: str, recipe: str) -> tuple[RecipeSettings | None, bool]:
    """The nearest recipe, and whether it has this row's plan: tables do not print what is recomputed."""
    keys = {"gpus": "num_gpus", "vpp": "vp"}
    plan = tuple(int(cell(row, keys.get(column, column)) or 1) for column in PLAN_COLUMNS)
    gpu = cell(row, "system").removeprefix("DGX-").lower()
    found = nearest_recipe(model, gpu, recipe or "bf16", cell(row, "software"), plan)
    return found, found is not None and found.plan[1:] == plan[1:]


def as_training_row(row: Row) -> dict[str, str]:
    """The same run in the columns of training_measurements.csv. Raises InputError for a model that is not in the catalogue."""
    model = load_model(cell(row, "model"))
    precision = cell(row, "precision")
    routing = next((kind for kind in ("tokendrop", "dropless") if kind in cell(row, "model")), "")
    ours, recipe = format_of(precision)
    if ours == "fp8" and not recipe:
        recipe = "tensorwise" if "25.09" <= cell(row, "release") < "26" else "delayed"
    recompute = RECOMPUTE.get(cell(row, "recompute"), "none")
    known, same = (None, False) if is_fine_tuning(row) else _recipe_of(row, model.name.rstrip("*"), recipe)
    doubt = DOUBTFUL if model.is_moe and known is not None and not same and cell(row, "release") != "25.09" else ""
    if not cell(row, "recompute") and known is not None and same and known.row["recompute"]:
        recompute = f"selective({known.row['recompute'].replace(' ', ',')})"
    sharded = (number(row, "fsdp") or 0) > 0
    offloaded = known.row["offload_layers"] if known is not None and same and sharded else ""
    return {
        "id": f"{cell(row, 'release')} {cell(row, 'model')} {cell(row, 'num_gpus')} {cell(row, 'system')} {precision}",
        "source": nvidia_source(row) + doubt,
        "model": cell(row, "model"),
        "layers": str(model.num_layers),
        "seq": cell(row, "seq_len"),
        "gpu": cell(row, "system"),
        "gpus": cell(row, "num_gpus"),
        "precision": "fp8" if "FP8" in precision else "bf16",
        "fp8_recipe": recipe,
        "tp": cell(row, "tp"),
        "sp": "1" if cell(row, "tp") not in ("", "1") else "0",
        "pp": cell(row, "pp"),
        "vpp": cell(row, "vp"),
        "cp": cell(row, "cp"),
        "ep": cell(row, "ep"),
        "etp": cell(row, "etp"),
        "fsdp": "3" if sharded else "1",
        "offload": "activations" if offloaded else "",
        "offload_layers": offloaded,
        "mbs": cell(row, "mbs"),
        "gbs": cell(row, "gbs"),
        "recompute": recompute,
        "software": RELEASE_STACK.get(cell(row, "release"), cell(row, "software")),
        "moe_routing": routing,
        "task": cell(row, "task"),
        "metric_step_s": cell(row, "step_time_s"),
        "metric_tokens_per_s_per_gpu": cell(row, "tokens_per_s_per_gpu"),
        "metric_tflops_per_gpu": cell(row, "model_tflops_per_gpu"),
        "full_plan": cell(row, "full_plan"),
        "status": "ran",
    }
