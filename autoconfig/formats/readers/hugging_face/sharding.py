"""How Hugging Face's Trainer is sharded: its `deepspeed`, `fsdp` and `fsdp_config`, in its file or in files beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from autoconfig.formats.hooks.deepspeed import FULL, not_modelled, sharding_of
from autoconfig.formats.record import Document
from autoconfig.formats.writers import trl
from autoconfig.maps.tree import Section
from autoconfig.specs.errors import InputError
from autoconfig.specs.remarks import Effect, Remark, note

_STAGE = re.compile(r"(?:z|zero[-_]?)([0-3])", re.IGNORECASE)
_STRATEGIES = {"full_shard": 3, "fsdp2": 3, "shard_grad_op": 2, "no_shard": 0}
"""transformers.TrainingArguments.fsdp, and ms-swift's name of a preset, as ZeRO stages."""
_WAITS = "weights, gradients and optimizer wait in CPU memory: less GPU memory"
_OFFLOADED = Remark("fsdp_config.offload_params", None, _WAITS, Effect.LESS_MEMORY)


def require_sharding(section: Section, launcher: Sequence[str]) -> None:
    """Raises InputError where a file of accelerate says it, which a command names."""
    named = "accelerate" in launcher and any(part.startswith("--config_file") for part in launcher)
    if named and not (section.has("fsdp") or names_deepspeed(section)):
        raise InputError(
            "the sharding stands in the file of accelerate --config_file, which is not beside this one: say --set "
            "fsdp=full_shard or --set deepspeed=zero2 (fsdp=no_shard: none)"
        )


def is_named(section: Section, *keys: str) -> bool:
    """Return whether one of the keys has a value that says yes."""
    return str(section.get(*keys)).lower() not in ("none", "false", "0", "0.0", "", "[]")


def names_deepspeed(section: Section) -> bool:
    """Return whether the file says that DeepSpeed shards, in a file of its own or inside."""
    inside = any(path.startswith("deepspeed.") for path in section.flat)
    return inside or section.flat.get("deepspeed") not in (None, False, "", "None")


def sharding(section: Section, document: Document, assumed: list[Remark]) -> tuple[dict[str, Any], list[Remark]]:
    """Return (fields of a TrainerRun, what of it no formula reads). Raises InputError, UnsupportedError."""
    if names_deepspeed(section):
        return _zero(section, document, assumed)
    if not is_named(section, "fsdp"):
        return {}, []
    return _fully_sharded(section, document)


def _fully_sharded(section: Section, document: Document) -> tuple[dict[str, Any], list[Remark]]:
    """Return what transformers' `fsdp` says, a strategy and words like `full_shard auto_wrap offload`, and `fsdp_config`, whose
    keys may begin with fsdp_ (transformers/training_args.py). Raises InputError."""
    words = re.findall(r"\w+", str(section.get("fsdp")).lower())
    stages = [3 if word == "true" else _STRATEGIES[word] for word in words if word in ("true", *_STRATEGIES)]
    if len(stages) != 1 or set(words) - {*_STRATEGIES, "auto_wrap", "offload", "true"}:
        text, names = " ".join(words)[:40], ", ".join((*_STRATEGIES, "auto_wrap", "offload"))
        raise InputError(f"{section.place('fsdp')} is {text!r}: read are {names}")
    stage = stages[0]
    fields: dict[str, Any] = {"software": trl.SOFTWARE, "fsdp": stage, "offload": 1.0 if "offload" in words and stage else 0.0}
    config = _fsdp_config(section, document)
    if stage == 3 and not config.flag("reshard_after_forward", default=True):
        fields["fsdp"] = 2
    if config.flag("activation_checkpointing"):
        fields["recompute"] = FULL
    return fields, [_OFFLOADED] if config.flag("offload_params", "cpu_offload") else []


def _fsdp_config(section: Section, document: Document) -> Section:
    """Return its keys without fsdp_ and places, or those of the file beside that it names. Raises InputError."""
    named, prefix = section.flat.get("fsdp_config"), "fsdp_config."
    section.used |= {path for path in section.flat if path.startswith("fsdp_config")}
    values = {path.removeprefix(prefix): value for path, value in section.flat.items() if path.startswith(prefix)}
    if isinstance(named, str):
        beside = document.beside(named)
        if beside is None:
            raise InputError(
                f"{section.place('fsdp_config')}: {named[:60]!r} is not beside this file: say --set fsdp_config.NAME=VALUE"
            )
        values = beside.values if isinstance(beside.values, dict) else {}
    return Section({str(key).removeprefix("fsdp_"): value for key, value in values.items()}, section.text)


def _zero(section: Section, document: Document, assumed: list[Remark]) -> tuple[dict[str, Any], list[Remark]]:
    """Return what DeepSpeed's JSON says, inside the file, beside it, or by its name."""
    inside = {path.partition(".")[2]: value for path, value in section.flat.items() if path.startswith("deepspeed.")}
    text = section.get("deepspeed")
    beside = None if text is None else document.beside(str(text))
    if inside or beside is not None:
        section.used |= {path for path in section.flat if path.startswith("deepspeed.")}
        values = inside if beside is None else beside.values
        zero = Section(values if isinstance(values, Mapping) else {}, section.text, open_words=frozenset({"auto"}))
        if beside is not None:
            assumed.append(note(f"sharding as {PurePath(str(text)).name[:60]} beside it says"))
        return sharding_of(zero, None, assumed), not_modelled(zero)
    return _zero_by_name(section, str(text).rsplit("/", 1)[-1], assumed), []


def _zero_by_name(section: Section, name: str, assumed: list[Remark]) -> dict[str, Any]:
    """Return the sharding that the name of a DeepSpeed file says, which is not beside. Raises InputError where it says none."""
    match = _STAGE.search(name)
    if match is None:
        raise InputError(
            f"{section.place('deepspeed')}: {name[:60]!r} does not say its ZeRO stage: say --set deepspeed=zero2 (0 to 3)"
        )
    if "autotp" in name.lower() and section.count("autotp_size") is None:
        raise InputError(
            f"{section.place('deepspeed')}: the tensor parallelism of {name[:60]!r} is not known: say --set autotp_size=N"
        )
    stage = int(match[1])
    why = f"which the name {name[:60]!r} says: no such file is beside this one (--set deepspeed=zero{stage})"
    assumed.append(Remark("ZeRO stage", stage, why))
    offload = 1.0 if "offload" in name.lower() and stage else 0.0
    return {"dist_opt": stage == 1, "fsdp": stage if stage > 1 else 0, "offload": offload}
