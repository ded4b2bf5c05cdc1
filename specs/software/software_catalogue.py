"""Loads the software stacks of `specs/catalogue/software/*.json`; a file may extend another and say only what differs."""

from __future__ import annotations

import json
from dataclasses import fields
from functools import cache
from importlib import resources
from typing import Any

from autoconfig.specs.errors import CatalogueError, UnknownNameError
from autoconfig.specs.software.software import SoftwareStack, StackMemory, StackTime

DEFAULT_STACK = "transformer-engine"
SUPPORT_FLAGS = {
    "least_compute_capability": 0.0,
    "supports_fp8": True,
    "supports_fsdp": True,
    "supports_fsdp_with_tied_embeddings": False,
    "supports_fp8_param_gather_with_fsdp": False,
    "supports_distributed_optimizer": True,
    "supports_selective_recompute": True,
    "recomputes_by_operator": False,
    "supports_mlp_recompute_with_biases": True,
    "supports_context_parallel": True,
    "supports_sequence_parallel": True,
}
"""What a stack can do, inherited by stacks that extend it, and what holds where no file says so."""


@cache
def _raw(name: str) -> dict[str, Any]:
    text = (resources.files("autoconfig.specs") / "catalogue" / "software" / f"{name}.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    if data["name"] != name:
        raise CatalogueError(f"software/{name}.json says its name is {data['name']!r}")
    if "extends" in data:
        base = _raw(data["extends"])
        for part in ("memory", "time", "sources"):
            data[part] = {**base.get(part, {}), **data.get(part, {})}
        for flag, usual in SUPPORT_FLAGS.items():
            data.setdefault(flag, base.get(flag, usual))
    return data


def software_names() -> list[str]:
    """Canonical names, sorted."""
    folder = resources.files("autoconfig.specs") / "catalogue" / "software"
    return sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json"))


@cache
def load_stack(name: str) -> SoftwareStack:
    """The stack with this canonical name or alias. Raises UnknownNameError with the nearest names."""
    wanted = name.strip().lower()
    if wanted in software_names():
        return _build(_raw(wanted))
    for candidate in software_names():
        if wanted in _raw(candidate).get("aliases", ()):
            return _build(_raw(candidate))
    raise UnknownNameError("software stack", name, software_names(), "autoconfig software lists them all")


def _build(data: dict[str, Any]) -> SoftwareStack:
    return SoftwareStack(
        name=data["name"],
        description=data["description"],
        year=data["year"],
        generation=data["generation"],
        parent=data.get("parent"),
        aliases=tuple(data.get("aliases", ())),
        **{flag: data.get(flag, usual) for flag, usual in SUPPORT_FLAGS.items()},
        memory=StackMemory(**_known(StackMemory, data.get("memory", {}), data["name"])),
        time=StackTime(**_known(StackTime, data.get("time", {}), data["name"])),
        sources=data.get("sources", {}),
    )


def _known(kind: type, values: dict[str, Any], name: str) -> dict[str, Any]:
    unknown = set(values) - {f.name for f in fields(kind)}
    if unknown:
        raise CatalogueError(f"software/{name}.json: unknown keys {sorted(unknown)}")
    return values
