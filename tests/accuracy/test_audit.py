"""`autoconfig audit` over NVIDIA's published recipes: coverage, named violations, accusations, layouts, adapters."""

import csv
import json
from pathlib import Path

import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.json_record import json_text, to_json
from jsonschema import Draft202012Validator

from autoconfig.accuracy.audit import BORDERLINE, DOES_NOT_FIT, FITS, ILLEGAL, NOT_COVERED, audit_file, audit_rows, read_rows
from autoconfig.planning.schemas import schema
from autoconfig.render.audit import audit_json
from autoconfig.runs.recipe_row import family_of_recipe, model_of_recipe, read_recipe
from autoconfig.runs.training_row import published_rows

TABLE = Path(__file__).parents[2] / "autoconfig" / "data" / "published" / "nvidia_recipes.csv"


@pytest.fixture(scope="module")
def quick():
    return audit_file(TABLE, quick=True)


def rows_named(*names):
    return [row for row in published_rows("nvidia_recipes") if row["recipe"] in names]


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


ACCUSED = {
    "NV042": ["glm52_pretrain_416gpu", "glm52_sft_416gpu"],
    "NV046": [
        "glm45_air_106b_pretrain_32gpu",
        "nemotron_3_super_peft_1gpu",
        "nemotron_3_super_sft_16gpu",
        "nemotron_3_ultra_pretrain_24gpu",
        "step35_196b_a11b_pretrain_512gpu",
        "step37_sft_64gpu",
    ],
    "NV048": ["glm45_355b_peft_16gpu", "glm45_355b_sft_128gpu", "qwen3_vl_235b_a22b_sft_32gpu"],
    "NV062": ["gpt_oss_120b_sft_48gpu"],
}
"""An odd number of micro-batches under interleaving, SP at tp 1, experts with tp and no SP, biased experts at etp 2; the
judge's own refusals stand in docs/legality.md."""


def test_recipes_without_violations_are_legal_or_on_this_list(quick):
    found = {}
    for recipe in quick.accused():
        assert len(recipe.violations) == 1
        found.setdefault(recipe.violations[0].rule, []).append(recipe.row["recipe"].partition("_h100")[0])
    assert {rule: sorted(names) for rule, names in found.items()} == ACCUSED


VERDICTS = ("fits", "borderline", "does_not_fit", "illegal", "not_covered")


def test_verdicts_add_up(quick):
    body = json.loads(json_text(audit_json(quick)))
    Draft202012Validator.check_schema(schema("audit"))
    Draft202012Validator(schema("audit")).validate(body)
    counts = body["summary"]
    assert sum(counts[name] for name in VERDICTS) == counts["recipes"] == 405
    assert counts["named_violations_missed"] == []


def test_recipes_on_the_edge_are_borderline(quick):
    """The chance to fit decides: between 0.25 and 0.75 the memory model's own error is larger than what is missing or left."""
    priced = [recipe for recipe in quick.recipes if recipe.report is not None]
    found = {recipe.verdict for recipe in priced}
    assert found == {FITS, BORDERLINE, DOES_NOT_FIT}
    for recipe in priced:
        chance = recipe.report.confidence.fit_probability
        assert (recipe.verdict == BORDERLINE) == (0.25 <= chance <= 0.75), recipe.row
        assert recipe.verdict == BORDERLINE or (recipe.verdict == FITS) == recipe.report.fits
    body = to_json(audit_json(quick))
    assert body["summary"]["borderline"] == sum(recipe.verdict == BORDERLINE for recipe in priced) > 0


def test_progress_is_plain_lines_where_stderr_is_no_terminal(autoconfig, tmp_path):
    table = TABLE.read_text().splitlines()[:51]
    (tmp_path / "fifty.csv").write_text("\n".join(table) + "\n")
    result = autoconfig.run("audit", str(tmp_path / "fifty.csv"), "--quick", "--json")
    lines = result.stderr.splitlines()
    assert lines == [f"{done} of 50 recipes" for done in range(0, 50, 5)] and json.loads(result.stdout)


def test_layouts_and_counted_ends_are_read(quick):
    plans = {(r.row["recipe"], r.row["kind"]): r.recipe for r in quick.recipes if r.recipe is not None}
    deepseek = plans["deepseek_v3_pretrain_1024gpu_h100_bf16_config", "perf"]
    assert deepseek.plan.vpp == 4 and (deepseek.plan.first, deepseek.plan.last) == (7, 6)
    cut = plans["deepseek_v3_pretrain_1024gpu_h100_bf16_config", "library"]
    assert (cut.plan.first, cut.plan.last) == (4, 1) and any("cut off" in text for text in cut.assumed)
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
    audit = audit_rows(rows_named("llama31_8b_peft_1gpu_h100_bf16_config", "llama31_8b_sft_2gpu_h100_bf16_config"), quick=True)
    verdicts = {recipe.row["task"]: recipe for recipe in audit.recipes}
    assert verdicts["peft"].verdict == FITS and verdicts["sft"].verdict == DOES_NOT_FIT
    assert verdicts["peft"].report.peak_bytes < verdicts["sft"].report.peak_bytes


def test_faster_plans_are_searched_once_a_question():
    rows = rows_named("llama3_8b_pretrain_8gpu_h100_bf16_config", "llama3_8b_sft_8gpu_h100_bf16_config")
    audit = audit_rows([*rows, *rows])
    assert audit.questions == 2 and all(recipe.faster is not None and recipe.faster > -0.05 for recipe in audit.recipes)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("qwen3_600m_sft_1gpu", "qwen3-0.6b"),
        ("qwen25_1p5b_x", "qwen2.5-1.5b"),
        ("qwen2_500m_x", "qwen2.5-0.5b"),
        ("pre_train_llama31_405b_h100", "llama3.1-405b"),
        ("llama2_7b_x", "llama2-7b"),
        ("qwen3_235b_a22b_x", "qwen3-235b-a22b"),
        ("pre_train_mixtral_8x22b_h100", "mixtral-8x22b"),
        ("gpt_oss_20b_x", "gpt-oss-20b"),
        ("deepseek_v3_x", "deepseek-v3"),
        ("deepseek_v2_lite_x", "deepseek-v2-lite"),
        ("pre_train_nemotron4_340b_h100", "nemotron4-340b"),
        ("gpt3_175b_x", "gpt3-175b"),
    ],
)
def test_names_of_recipes_name_catalogue_models(name, model):
    assert model_of_recipe(name).name == model


@pytest.mark.parametrize(
    "name",
    [
        "qwen3_vl_30b_a3b",
        "qwen35_vl_9b",
        "qwen3_next_80b",
        "deepseek_v4_flash",
        "neva_llama3_8b",
        "kimi_k2",
        "llama_nemotron_8b",
        "qwen2_audio_7b",
        "wan_1b",
    ],
)
def test_other_models_are_no_text_decoders_of_the_families(name):
    assert family_of_recipe(name) == ""
    with pytest.raises(InputError):
        model_of_recipe(name)


def test_the_command_writes_a_table_and_refuses_others(autoconfig, tmp_path):
    small = tmp_path / "small.csv"
    lines = TABLE.read_text().splitlines()
    small.write_text("\n".join([lines[0], *(line for line in lines if "llama3_8b_sft" in line)]) + "\n")
    out = tmp_path / "out.csv"
    result = autoconfig.run("audit", str(small), "--output", str(out))
    assert result.exit_code == 0 and "covered" in result.stdout
    with out.open(newline="") as file:
        assert len(list(csv.DictReader(file))) == len(small.read_text().splitlines()) - 1
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n")
    for arguments in (
        ("audit", str(tmp_path / "bad.csv")),
        ("audit", str(tmp_path)),
        ("audit", str(small), "--output", "x.txt"),
    ):
        result = autoconfig.run(*arguments)
        assert result.exit_code == 2 and result.stderr.startswith("error: ")
    (tmp_path / "binary.csv").write_bytes(b"\0\1\2")
    result = autoconfig.run("audit", str(tmp_path / "binary.csv"))
    assert "give a CSV table of recipes" in result.stderr and "plan.json" not in result.stderr


def test_odd_cells_are_reasons_not_crashes():
    row = dict(rows_named("llama3_8b_pretrain_8gpu_h100_bf16_config")[0])
    for key, value in (
        ("tp", "x"),
        ("gpus", ""),
        ("precision", "int4"),
        ("hw", "abacus"),
        ("vp", "-1"),
        ("layout", "Ex|L"),
        ("gbs", "0"),
        ("recompute", "full"),
        ("rmodules", "mhc"),
        ("seq", "1e30"),
    ):
        audit = audit_rows([{**row, key: value}], quick=True)
        assert audit.recipes[0].verdict in (NOT_COVERED, FITS, BORDERLINE, ILLEGAL, DOES_NOT_FIT)
    assert read_rows("recipe,gpus,tp,pp,seq,gbs,mbs\n") == []
