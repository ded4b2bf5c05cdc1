"""What all formats share: which parts of a plan and of its numerics they have words for, and what their first comment says."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any

from autoconfig.planning.export_files import HEADER_CHARACTERS, MARK, priced_as
from autoconfig.specs.errors import option
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model, model_names
from autoconfig.specs.plan import NONE, TrainPlan
from autoconfig.specs.scenario import Numerics, Scenario

Settings = dict[str, tuple[str, ...]]
NumericsWords = Mapping[str, Collection[Any]]
_PLAIN: dict[str, object] = {
    "tp": 1, "pp": 1, "vpp": 1, "cp": 1, "ep": 1, "etp": 1, "sp": False, "recompute": NONE, "first": None, "last": None,
    "dist_opt": False, "fsdp": 0, "offload": 0.0,
}  # fmt: skip
_USUAL = Numerics(attention_dropout=0.0, hidden_dropout=0.0)
_PRICED_ONLY = ("moe_imbalance", "deterministic", "attention_dropout", "hidden_dropout", "lora_rank", "lora_target_modules")


OPTIONS = ("compile", "loss", "async_tp", "zero_bucket")
"""Of GivenSettings: how the software runs, which a file must say or the run is another."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """A plan in one format."""

    file_name: str
    text: str
    unsaid: tuple[str, ...] = ()
    """What stands elsewhere in that trainer (a model's sizes beside a DeepSpeed file), or is lost."""


def foreign(
    scenario: Scenario,
    plan: TrainPlan,
    keys: Collection[str],
    numerics: NumericsWords,
    *,
    packs: bool = False,
    options: Collection[str] = (),
) -> list[str]:
    """What a format has no words for that knows these keys of a plan, values of numerics and options of a run: `pp=4`,
    `precision=fp8`, `compile=True`; `packs`: it packs short sequences."""
    unsaid = {key: getattr(plan, key) for key, usual in _PLAIN.items() if key not in keys and getattr(plan, key) != usual}
    unsaid |= _foreign_numerics(scenario.numerics, numerics)
    chosen = {name: getattr(scenario.given, name) for name in OPTIONS if name not in options}
    unsaid |= {name: value for name, value in chosen.items() if value not in (None, False)}
    if scenario.workload.packed_length is not None and not packs:
        unsaid["packed_length"] = scenario.workload.packed_length
    return [f"{name}={value}" for name, value in unsaid.items()]


def _foreign_numerics(numerics: Numerics, words: NumericsWords) -> dict[str, Any]:
    """Field of numerics -> its value, where the format has no word for it."""
    names = [one.name for one in fields(Numerics) if one.name not in _PRICED_ONLY]
    allowed = {name: words.get(name, {getattr(_USUAL, name)}) for name in names}
    unsaid = {name: getattr(numerics, name) for name in names if getattr(numerics, name) not in allowed[name]}
    if numerics.precision != "fp8":
        unsaid.pop("fp8_recipe", None)
    if (name := "grad_reduce_dtype") in unsaid:
        unsaid[name] = f"{unsaid[name]} (plan with {option(name)} {' or '.join(sorted(allowed[name]))})"
    return unsaid


_SHAPE = (
    "num_layers",
    "hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "ffn_hidden_size",
    "num_moe_experts",
    "kv_channels",
    "gated_linear_unit",
    "normalization",
)


def catalogue_name(model: ModelSpec) -> str:
    """The catalogue's name of a model: its own, else that of one of the same shape and vocabulary; empty: none."""
    if model.name in model_names():
        return model.name
    for name in model_names():
        other = load_model(name)
        if all(getattr(other, key) == getattr(model, key) for key in _SHAPE) and other.vocab_size == model.vocab_size:
            return name
    return ""


def accumulation(scenario: Scenario, plan: TrainPlan) -> int:
    """Micro-batches of a step on each data-parallel rank."""
    return max(1, scenario.workload.global_batch_size // (plan.mbs * plan.dp))


def flat(values: Mapping[str, Any], before: str = "") -> Settings:
    """Dotted paths and texts of nested values."""
    paths: Settings = {}
    for key, value in values.items():
        if isinstance(value, dict):
            paths |= flat(value, f"{before}{key}.")
        elif value is not None:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            paths[f"{before}{key}"] = (text,)
    return paths


def head(scenario: Scenario, plan: TrainPlan) -> str:
    """What a file says of itself in its first comment."""
    cluster, workload = scenario.cluster, scenario.workload
    packed = f" packed from sequences of {workload.packed_length:,}" if workload.packed_length is not None else ""
    return (
        f"Written by megatron-autoconfig: {scenario.model.name} on {cluster.num_gpus:,} x {cluster.gpu.id}, sequence "
        f"{workload.seq_length:,}{packed}, global batch {workload.global_batch_size:,}, {priced_as(scenario)}; plan {plan}"
    )


_HEAD = re.compile(
    rf"^{re.escape(MARK)}: (?P<model>\S+) on (?P<gpus>[\d,]+) x (?P<gpu>[a-z0-9.-]+), sequence [\d,]+"
    r"(?: packed from sequences of (?P<packed>[\d,]+))?, global batch [\d,]+(?:, priced as software \S+)?; plan (?P<plan>\S+)$",
    re.MULTILINE,
)


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a trainer's own settings do not say."""

    model: str
    gpus: int
    gpu: str
    packed_length: int | None
    plan: str


def header_of(text: str) -> Header | None:
    """The header; None in files of others."""
    match = _HEAD.search(text[:HEADER_CHARACTERS])
    if match is None:
        return None
    gpus, packed = (None if text is None else int(text.replace(",", "")) for text in (match["gpus"], match["packed"]))
    return Header(model=match["model"], gpus=gpus or 1, gpu=match["gpu"], packed_length=packed, plan=match["plan"])
