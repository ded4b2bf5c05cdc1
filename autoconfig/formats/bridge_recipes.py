"""The recipes of Megatron-Bridge that are known (autoconfig/data/bridge_recipes.csv): by name, and by model."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from importlib import resources

from autoconfig.maps.table import load_map
from autoconfig.specs.models.model_catalogue import model_aliases


@cache
def published_recipes() -> dict[str, dict[str, str]]:
    """Name -> its row of the table."""
    path = resources.files("autoconfig") / "data" / "bridge_recipes.csv"
    return {row["recipe"]: row for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines())}


@cache
def _older_names() -> Mapping[str, list[str]]:
    """Name of before 0.5 (`llama3_8b_sft_config`) -> the bf16 recipes on H100 that it may stand for: without GPUs and
    precision, as megatron/bridge/recipes/*/*.py export them."""
    names = {older: [name] for older, name in load_map("bridge").more["older_names"].items()}
    for name, row in published_recipes().items():
        stem, _, rest = name.partition(f"_{row['task']}_")
        words = rest.split("_")
        if row["kind"] == "library" and words[1:3] == ["h100", "bf16"]:
            names.setdefault("_".join([stem, row["task"], *words[3:]]), []).append(name)
    return names


def row_of(recipe: str) -> Mapping[str, str]:
    """The row of a recipe, also by its older name; empty where the table has none, or several of these."""
    names = [recipe] if recipe in published_recipes() else _older_names().get(recipe, [])
    return published_recipes()[names[0]] if len(names) == 1 else {}


def recipe_of(model: str, task: str) -> str:
    """The older name, by which run_recipe.py loads it, of the recipe of a catalogue model for `task`, peft, sft or pretrain;
    empty where there is none."""
    stems = ((name, name.removesuffix(f"_{task}_config")) for name in _older_names())
    return next((name for name, stem in stems if stem != name and model_aliases().get(stem.replace("_", "-")) == model), "")
