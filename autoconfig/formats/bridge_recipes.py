"""The recipes of Megatron-Bridge that are known (autoconfig/data/bridge_recipes.csv): by name, and by model."""

from __future__ import annotations

import csv
import re
from functools import cache
from importlib import resources

from autoconfig.specs.models.model_catalogue import model_aliases


@cache
def published_recipes() -> dict[str, dict[str, str]]:
    """Name -> its row of the table."""
    path = resources.files("autoconfig") / "data" / "bridge_recipes.csv"
    return {row["recipe"]: row for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines())}


_FULL = re.compile(r"((?:(?!_(?:peft|sft|pretrain)_[0-9]++gpu_).)++)_(?:peft|sft|pretrain)_[0-9]++gpu_h100_bf16_config")


def recipe_of(model: str, task: str) -> str:
    """The name by which run_recipe.py loads the recipe of a catalogue model for `task`, peft, sft or pretrain; empty where
    there is none. Its plain recipes are the bf16 ones on H100, which megatron/bridge/recipes/*/*.py export without GPUs and
    precision as they were called before 0.5."""
    aliases = model_aliases()
    for name, row in published_recipes().items():
        match = _FULL.fullmatch(name) if row["kind"] == "library" and row["task"] == task else None
        if match and aliases.get(match[1].replace("_", "-")) == model:
            return f"{match[1]}_{task}_config"
    return ""
