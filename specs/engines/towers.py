"""Vision towers of models that read pictures (specs/catalogue/vision_towers.json)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources

from autoconfig.specs.models.model import ModelSpec

_TOWERS = json.loads((resources.files("autoconfig.specs") / "catalogue" / "vision_towers.json").read_text(encoding="utf-8"))


@dataclass(frozen=True, kw_only=True)
class VisionTower:
    """What an engine loads and profiles beside the language model."""

    parameters: int
    layers: int
    hidden_size: int
    ffn_hidden_size: int
    patches: int
    """Of the largest picture."""
    tokens: int
    """Of the language model for it."""
    source: str


def tower_of(model: ModelSpec) -> VisionTower | None:
    """Of the model, or None where it reads text only."""
    for prefix, values in _TOWERS["towers"].items():
        if model.name.startswith(prefix):
            return VisionTower(**values)
    return None
