"""NVIDIA's recipes before our rules and memory model (validation/judge/audit.py)."""

import csv
from pathlib import Path

import pytest
from autoconfig.specs.errors import InputError
from tables import table, tabled

from validation.judge.audit import BORDERLINE, DOES_NOT_FIT, FITS, ILLEGAL, NOT_COVERED, VERDICTS, audit_file, audit_rows
from validation.judge.recipe_row import family_of_recipe, model_of_recipe, read_recipe

TABLE = Path(__file__).parents[2] / "autoconfig" / "data" / "bridge_recipes.csv"


@pytest.fixture(scope="module")
def quick():
    return audit_file(TABLE)


def rows_named(*names):
    return [row for row in csv.DictReader(TABLE.read_text().splitlines()) if row["recipe"] in names]


def test_at_least_95_percent_of_the_text_decoders_are_covered(quick):
    assert len(quick.recipes) == 405 and len(quick.in_families()) >= 175
    assert quick.covered_share() >= 0.95
    for recipe in quick.in_families():
        assert recipe.verdict != NOT_COVERED or "llama4" in recipe.row["recipe"] or "nvfp4" in recipe.row["recipe"]


def test_named_violations_are_rejected_by_the_named_rule(quick):
    named = [recipe for recipe in quick.recipes if recipe.named]
    assert len(named) == 8
    for recipe in named:
        assert recipe.verdict == ILLEGAL and not recipe.missed


ACCUSED = table(__file__, "accused")
"""An odd number of micro-batches under interleaving, SP at tp 1, experts with tp and no SP, biased experts at etp 2; the
judge's own refusals stand in docs/legality.md."""


def test_recipes_without_violations_are_legal_or_on_this_list(quick):
    found = {}
    for recipe in quick.accused():
        assert len(recipe.violations) == 1
        found.setdefault(recipe.violations[0].rule, []).append(recipe.row["recipe"].partition("_h100")[0])
    assert {rule: sorted(names) for rule, names in found.items()} == ACCUSED


def test_recipes_on_the_edge_are_borderline(quick):
    """The chance to fit decides: between 0.25 and 0.75 the memory model's own error is larger than what is missing or left."""
    priced = [recipe for recipe in quick.recipes if recipe.report is not None]
    assert {recipe.verdict for recipe in priced} == {FITS, BORDERLINE, DOES_NOT_FIT}
    for recipe in priced:
        chance = recipe.report.confidence.fit_probability
        assert (recipe.verdict == BORDERLINE) == (0.25 <= chance <= 0.75), recipe.row
        assert recipe.verdict == BORDERLINE or (recipe.verdict == FITS) == recipe.report.fits


def test_layouts_and_counted_ends_are_read(quick):
    plans = {(r.row["recipe"], r.row["kind"]): r.recipe for r in quick.recipes if r.recipe is not None}
    deepseek = plans["deepseek_v3_pretrain_1024gpu_h100_bf16_config", "perf"]
    assert deepseek.plan.vpp == 4 and (deepseek.plan.first, deepseek.plan.last) == (7, 6)
    cut = plans["deepseek_v3_pretrain_1024gpu_h100_bf16_config", "library"]
    assert (cut.plan.first, cut.plan.last) == (4, 1)
    large = plans["llama31_405b_pretrain_512gpu_h100_bf16_config", "perf"]
    assert large.plan.first == large.plan.last == 15 and large.split.layers[1] == 16
    llama = plans["llama3_70b_pretrain_64gpu_h100_fp8cs_config", "perf"]
    assert sum(llama.split.layers) == 80 and llama.split.vpp == 5


def test_adapters_need_less_memory_than_training_all_weights():
    peft, full = (
        read_recipe(row)
        for row in sorted(
            rows_named("llama31_8b_peft_1gpu_h100_bf16_config", "llama31_8b_sft_2gpu_h100_bf16_config"), key=lambda r: r["gpus"]
        )
    )
    assert peft.scenario.numerics.peft == "lora" and full.scenario.numerics.peft == "none"
    audit = audit_rows(rows_named("llama31_8b_peft_1gpu_h100_bf16_config", "llama31_8b_sft_2gpu_h100_bf16_config"))
    verdicts = {recipe.row["task"]: recipe for recipe in audit.recipes}
    assert verdicts["peft"].verdict == FITS and verdicts["sft"].verdict == DOES_NOT_FIT
    assert verdicts["peft"].report.peak_bytes < verdicts["sft"].report.peak_bytes


@tabled
def test_names_of_recipes_name_catalogue_models(name, model):
    assert model_of_recipe(name).name == model


@tabled
def test_other_models_are_no_text_decoders_of_the_families(name):
    assert family_of_recipe(name) == ""
    with pytest.raises(InputError):
        model_of_recipe(name)


def test_odd_cells_are_reasons_not_crashes():
    row = dict(rows_named("llama3_8b_pretrain_8gpu_h100_bf16_config")[0])
    odd = {"tp": "x", "gpus": "", "precision": "int4", "hw": "abacus", "vp": "-1", "layout": "Ex|L", "gbs": "0", "seq": "1e30"}
    for key, value in {**odd, "recompute": "full", "rmodules": "mhc"}.items():
        (recipe,) = audit_rows([{**row, key: value}]).recipes
        assert recipe.verdict in VERDICTS and (recipe.reason or recipe.verdict not in (ILLEGAL, NOT_COVERED)), key
