"""NVIDIA's published recipes before the judge: what `autoconfig audit` says of each, and what megatron-core says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autoconfig.specs.errors import InputError

from autoconfig.accuracy.audit import ILLEGAL, NOT_COVERED, Audit, AuditedRecipe, audit_file
from autoconfig.megatron.argument import words
from autoconfig.megatron.read_plan import FOR_EMBEDDING, FOR_LOSS, LAYOUT
from autoconfig.megatron.write import mock_arguments
from autoconfig.megatron.write_run import environment
from autoconfig.runs.recipe_row import Recipe, degrees_of_recipe
from autoconfig.runs.table import cell, whole
from autoconfig.training.pipeline_split import PipelineSplit
from tools.judge.client import ROOT, Judge

TABLE = ROOT / "autoconfig" / "data" / "published" / "nvidia_recipes.csv"


@dataclass(frozen=True, kw_only=True)
class JudgedRecipe:
    """A recipe with both answers."""

    audited: AuditedRecipe
    answer: dict[str, Any]

    @property
    def legal(self) -> bool:
        """Ours."""
        return self.audited.verdict != ILLEGAL

    @property
    def agrees(self) -> bool:
        return self.legal == self.answer["accepted"] and not self.answer["changed"]

    @property
    def words(self) -> str:
        """The judge's, at its refusal."""
        return f"{self.answer['where']}: {self.answer['message']}" if not self.answer["accepted"] else ""


def audited_recipes(path: Path = TABLE) -> Audit:
    """Our verdicts; whether a recipe could be faster is left out."""
    return audit_file(path, quick=True)


def judged_recipes(judge: Judge, audit: Audit) -> list[JudgedRecipe]:
    """Both answers to every recipe of a known model, and to every other one that we accuse."""
    asked = [recipe for recipe in audit.recipes if recipe.verdict != NOT_COVERED]
    return [JudgedRecipe(audited=recipe, answer=_answer(judge, recipe)) for recipe in asked]


def _answer(judge: Judge, audited: AuditedRecipe) -> dict[str, Any]:
    if audited.recipe is None:
        row = audited.row
        degrees = degrees_of_recipe(row) | {"etp": whole(row, "etp", 1) or 1, "vpp": whole(row, "vp", 1) or 1}
        degrees |= {"gpus": whole(row, "gpus"), "gbs": whole(row, "gbs")}
        return judge.degrees(degrees, sequence_parallel=cell(row, "sp") == "True")
    scenario = audited.recipe.scenario
    variables = {name: value for name, value in environment(scenario, audited.recipe.plan).items() if value is not None}
    return judge.arguments(
        recipe_arguments(audited.recipe), scenario.cluster.num_gpus, variables, scenario.cluster.gpu.compute_capability
    )


def recipe_arguments(recipe: Recipe) -> list[str]:
    """A recipe as Megatron-LM's arguments; adapters, which these have none for, are left out (the plan is the same)."""
    scenario = replace(recipe.scenario, numerics=replace(recipe.scenario.numerics, peft="none"))
    split, plan = recipe.split, recipe.plan
    if split is None:
        return words(mock_arguments(scenario, plan))
    if not split.text:
        counted = max(split.layers)
        flags = [FOR_EMBEDDING] * (split.layers[0] < counted) + [FOR_LOSS] * (split.layers[-1] < counted)
        return [*words(mock_arguments(scenario, plan.replace(first=None, last=None))), *flags]
    even = plan.replace(first=None, last=None, vpp=1)
    return [*words(mock_arguments(scenario, even)), LAYOUT, layout_text(split, scenario.model.mtp_num_layers)]


def layout_text(split: PipelineSplit, mtp_layers: int) -> str:
    """The layout as letters; of a list that the table cuts off, the one that its first chunk and the layers give."""
    if not split.text.startswith("[["):
        return split.text
    size = split.layers[0] // split.vpp
    chunks = ["t" * size] * (len(split.layers) * split.vpp - 1)
    if not size or split.layers[-1] < size * (split.vpp - 1):
        raise InputError(f"layout {split.text[:40]!r} is cut off and its stages cannot be guessed")
    last = "t" * (split.layers[-1] - size * (split.vpp - 1)) + "m" * mtp_layers + "L"
    return "|".join(["E" + chunks[0], *chunks[1:], last])
