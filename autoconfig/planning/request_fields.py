"""The fields of every request, read from `data/request_fields.toml`; the options of the command line, the bodies of HTTP and
Python's keywords derive from them."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any

from autoconfig.planning.money import parse_days, parse_money
from autoconfig.planning.resolve import Bounds, Field, Fields
from autoconfig.specs.errors import InputError, option
from autoconfig.specs.models.overrides import BOOLEAN_FIELDS, INTEGER_FIELDS, SHORT_NAMES
from autoconfig.specs.scenario import CHOICES, PRECISION_WORDS
from autoconfig.specs.software.software import DISPATCHERS
from autoconfig.specs.units import parse_count, parse_seconds, parse_size

LEAST_BARE_TOKENS = 1e5
"""Below it a number of tokens without a unit is asked about: it is less than a step of any published run, and more than any
run's billions (15 trillion are 15,000 of them)."""


def _tokens(given: str | float) -> float:
    """A number of tokens like 300B. Raises ValueError for a small one without a unit, whose billions were likely left out, and
    InputError for one that is no positive number."""
    tokens = parse_count(str(given), "tokens")
    if 0 < tokens < LEAST_BARE_TOKENS and str(given).strip()[-1:].isdigit():
        units = f"{tokens:.6g}B, {tokens:.6g}M or {tokens:.6g}K"
        raise ValueError(f"'{tokens:.6g}' without a unit is {tokens:,.6g} tokens: say {units}")
    return tokens


def _share(given: str | float) -> float:
    """A share like 0.9 or 90%. Raises ValueError."""
    text = str(given).strip()
    try:
        share = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        raise ValueError(f"{text[:20]!r} is no share; write it like 0.9 or 90%") from None
    if 2.0 <= share <= 100.0 and not text.endswith("%"):
        raise ValueError(f"{text[:20]} is above 1; for percent write {text[:20]}% or {share / 100:g}")
    return share


def _size(given: str | float) -> float:
    """Bytes of a size like 4TiB. Raises ValueError."""
    try:
        return float(parse_size(given))
    except InputError as error:
        raise ValueError(error.message) from error


_KINDS: dict[str, type] = {"str": str, "int": int, "float": float, "bool": bool, "path": Path}


def _prices(given: Any) -> float | str:
    """Money per GPU and hour, one or of each type. Raises InputError."""
    from autoconfig.planning.prices import parse_prices  # reads the catalogue, which no option does before it is given

    return parse_prices(given)


_PARSE: dict[str, Any] = {
    "prices": _prices,
    **{"tokens": _tokens, "share": _share, "size": _size, "days": parse_days},
    "money": lambda given: parse_money(given).value,
}
_CHOICES = {**CHOICES, "precision": PRECISION_WORDS, "dispatcher": DISPATCHERS}
_TABLES = tomllib.loads((resources.files("autoconfig") / "data" / "request_fields.toml").read_text(encoding="utf-8"))


def _field(name: str, told: dict[str, Any], group: str) -> Field:
    choices = tuple(told.get("choices", _CHOICES.get(name, ())))
    values = {**told, "group": group, "type": _KINDS[told.get("type", "str")], "choices": choices}
    if "bounds" in told:
        values["bounds"] = Bounds(**told["bounds"])
    if "range" in told:
        values["range"] = (told["range"][0], told["range"][1] if len(told["range"]) > 1 else None)
    if told.get("parse") == "seconds":
        values["parse"] = partial(parse_seconds, most_bare=values.pop("most_bare"))
    elif "parse" in told:
        values["parse"] = _PARSE[told["parse"]]
    if told.get("type") == "path":
        values["default"] = Path(told["default"])
    return Field(name, **values)


_GROUPS = {group: {name: _field(name, told, group) for name, told in table.items()} for group, table in _TABLES.items()}


def _changed(name: str, kind: type, negative: str = "") -> Field:
    return Field(name, f"Change the model: {name}.", kind, negative=negative, group="architecture")


def _all(group: str) -> Fields:
    return tuple(_GROUPS[group].values())


def _some(group: str, *names: str) -> Fields:
    return tuple(_GROUPS[group][name] for name in names)


# Training: what is asked of one plan or of a search, over GPU counts and types, of a file, of a plan that is exported

NUMERICS: Fields = _all("numerics")
SWITCHES: Fields = _all("switches")
ARCHITECTURE: Fields = (
    *(_changed(name, int) for name in INTEGER_FIELDS if name not in SHORT_NAMES.values()),
    *(_changed(name, bool, f"no-{name.replace('_', '-')}") for name in BOOLEAN_FIELDS),
)
VARIANT: Fields = _all("variant")
QUESTION: Fields = (*_all("question"), *VARIANT, *SWITCHES, *NUMERICS, *ARCHITECTURE)
"""Model, cluster, workload, numerics: everything but the plan."""
SEARCH: Fields = _all("search")
OUTPUT: Fields = _all("output")
RELIABILITY: Fields = _all("reliability")
SCALING: Fields = (
    *(_GROUPS["scaling"].get(field.name, field) for field in QUESTION if field.name != "gpu_table"),
    *_some("search", "fix", "max", "exclude", "fit_chance"),
    *_some("scaling", "keep", "days"),
    *RELIABILITY,
    *_some("scaling", "plot"),
)
_NOT_OF_A_BUDGET = ("gpu_table", "cluster", "price", *_GROUPS["budget"])
BUDGET: Fields = (
    *_all("budget"),
    *(field for field in QUESTION if field.name not in _NOT_OF_A_BUDGET),
    *_some("search", "fix", "max", "exclude", "fit_chance"),
    *(field for field in RELIABILITY if field.name != "spares"),
)
"""What money and days train."""
CHECK: Fields = (
    *_some("check", "model", "like", "gpus", "gpu"),
    *_some("question", "cluster", "gpus_per_node"),
    *VARIANT,
    *_some("check", "software", "core_release", "seq_length", "global_batch_size"),
    *_some("question", "memory_margin"),
    *_some("search", "fit_chance"),
    *SWITCHES,
    *_some("check", "set", "without_effect", "apply_to", "force"),
)
SET: Fields = _some("check", "set")
CHECK_OUTPUT: Fields = _all("check_output")
"""What is done with a verdict."""
CHECK_SERVING: Fields = _all("check_serving")
"""Of the start of a serving engine alone."""
DIAGNOSE: Fields = (*_all("diagnose"), *_some("check", "core_release", "set"))
"""Beside QUESTION: a run's step, where no log says it, and what a launch file does not say."""
PREDICT: Fields = tuple(field for field in CHECK if field.name not in ("fit_chance", "without_effect", "apply_to", "force"))
"""What the file of a run does not say."""
CONVERT: Fields = (
    *(field for field in PREDICT if field.name not in ("memory_margin", *(one.name for one in SWITCHES))),
    *_all("convert"),
)
ARGUMENTS = _GROUPS["arguments"]
"""By name: what a command takes without one, and what a body has in its place."""
SLURM: Fields = _some("runner", "partition", "account", "slurm")
"""Of batch scripts: those that an export writes, and those of jobs that measure."""
EXPORT: Fields = (*_all("export"), *SLURM)
LIKE, DOWNLOAD, PRICE = _some("question", "like", "download", "price")
BINDS, CALIBRATION = _GROUPS["explain"]["binds"], _GROUPS["question"]["calibration"]
SORTS = _GROUPS["search"]["sort_by"].choices
DEFAULT_MTBF_HOURS_PER_GPU, DEFAULT_CHECKPOINT_GB_PER_S_PER_NODE, DEFAULT_RESTART_SECONDS, DEFAULT_REPAIR_HOURS = (
    float(field.default) for field in RELIABILITY[1:]
)

COMPARED = ("gpu", "precision")
"""Fields with several values of which one search for each is compared."""


def _names(field: str, given: Any) -> Iterator[str]:
    """The names of one text with commas between them, or of several such texts. Raises InputError for what is no text."""
    for text in (given,) if isinstance(given, str) or not isinstance(given, Sequence | None) else given or ():
        if not isinstance(text, str):
            raise InputError(f"{option(field)} {text!r}: give a name", field=field)
        several = text.replace(",", "").strip()  # what is blank is refused where it is read
        yield from filter(None, (name.strip() for name in text.split(","))) if several else (text,)


def several(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The questions of one: each combination where fields of COMPARED have several values. Raises InputError."""
    values = [tuple(dict.fromkeys(_names(field, given.get(field)))) or (None,) for field in COMPARED]
    return [{**given, **dict(zip(COMPARED, one, strict=True))} for one in product(*values)]


# Serving

SERVING: Fields = _all("serving")
SERVING_OUTPUT: Fields = _all("serving_output")
SERVED_MODEL, SERVING_GPUS = _some("serving", "model", "gpus")
GOALS = _GROUPS["serving"]["goal"].choices
MAX_SERVING_GPUS: int = _TABLES["serving"]["gpus"]["bounds"]["high"]

MAX_RL_GPUS: int = _TABLES["post_training"]["gpus"]["bounds"]["high"]
POST_TRAINING: Fields = _all("post_training")
POST_TRAINING_OUTPUT: Fields = _all("post_training_output")
POST_TRAINING_FILE: Fields = (
    *_all("post_training_file"),
    *_some("post_training", "turns", "tool_time", "tool_spread", "tool_tokens", "sandboxes", "fit_chance"),
)

# Searches that measure

RUNNER: Fields = (*_all("runner")[:-1], replace(_GROUPS["runner"]["python"], default=sys.executable))
PROFILE: Fields = (*_all("profile"), *RUNNER)
SERVING_PROFILE: Fields = tuple(field for field in PROFILE if field.name not in ("gpus_here", "objective"))
"""Of a search that measures serving: nothing is emulated, and there are always two objectives."""
STORED: Fields = _some("profile", "device", "device_memory", "steps", "warmup_steps", "objective", "seed")
"""Those that are stored with the question."""
FOLDER, STORAGE, SAVE_CALIBRATION = _some("profile", "folder", "storage", "save_calibration")
DEVICES, OBJECTIVES = _GROUPS["profile"]["device"].choices, _GROUPS["profile"]["objective"].choices
DEFAULT_FOLDER, DEFAULT_BUDGET = str(FOLDER.default), "30m"
