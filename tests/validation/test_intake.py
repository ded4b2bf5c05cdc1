"""Tables of published runs: what stands in them is what the scripts of validation/intake write, each repair with its reason."""

from pathlib import Path

import pytest
from autoconfig.specs.errors import InputError

from autoconfig.runs.encoder_row import is_encoder_table
from autoconfig.runs.predict import TRAINING_RUNS, known_columns
from autoconfig.runs.table import read_csv
from autoconfig.runs.training_row import read_case
from validation.intake.__main__ import INTAKES, TABLES, canonical, main, write
from validation.intake.nvidia import NOT_IN_THE_CATALOGUE
from validation.intake.recipes import plan_of, recipes_of, with_plan
from validation.intake.repairs import KINDS, Repairs
from validation.published import STEP_TABLES, published_rows


@pytest.mark.parametrize("table", INTAKES)
def test_the_table_is_what_its_script_writes(table: str, tmp_path: Path) -> None:
    write(table, tmp_path, Repairs())
    assert (tmp_path / f"{table}.csv").read_bytes() == (TABLES / f"{table}.csv").read_bytes(), "run python -m validation.intake"


@pytest.mark.parametrize("table", [*STEP_TABLES, "unseen_measurements", "t5_bert"])
def test_its_columns_are_those_of_a_users_table(table: str) -> None:
    columns = read_csv(TABLES / f"{table}.csv")[0]
    known = TRAINING_RUNS.other[2] if is_encoder_table(columns) and TRAINING_RUNS.other else known_columns()
    assert set(columns) <= known


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_repair_can_be_left_out(kind: str) -> None:
    changed = 0
    for table in INTAKES:
        counted = Repairs(without=frozenset({kind}))
        with_it, without = canonical(table, Repairs()), canonical(table, counted)
        assert not counted.rows[kind] and len(with_it) == len(without)
        changed += sum(
            row != {**plain, **{c: "" for c in row if c not in plain}} for row, plain in zip(with_it, without, strict=True)
        )
    assert changed


def test_the_command_counts_what_it_changed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    main(["--without", "switches", "--into", str(tmp_path)])
    said = capsys.readouterr().out
    assert "  18 rows  recompute: what is recomputed is not printed" in said and "switches:" not in said
    assert "moe_dispatcher" not in (tmp_path / "nvidia_training_2026.csv").read_text().splitlines()[0]
    with pytest.raises(SystemExit):
        main(["--without", "everything"])


def test_a_row_has_the_switches_of_its_releases_recipe_or_leaves_them_open() -> None:
    whole = without = 0
    for row in published_rows("nvidia_training_2026"):
        case = read_case(row)
        form = row["fp8_recipe"] or row["precision"]
        gpu = case.scenario.cluster.gpu.id.split("-")[0]
        task = row["task"]
        recipe = with_plan(recipes_of(row["model"], gpu, form, row["software"], task), plan_of(row))
        without += recipe is None
        if recipe is None:
            assert not row["moe_dispatcher"] and not row["cuda_graph"]
        elif case.scenario.model.is_moe:
            settings = case.scenario.given
            assert {name: getattr(settings, name) for name in vars(recipe.settings) if name != "offload_layers"} == {
                name: value for name, value in vars(recipe.settings).items() if name != "offload_layers"
            }
            whole += 1
    assert (whole, without) == (72, 4)


def test_a_model_that_the_catalogue_lacks_is_a_group_of_its_own() -> None:
    rows = [row for row in published_rows("nvidia_training_measurements") if row["source"] == NOT_IN_THE_CATALOGUE]
    assert len(rows) == 14
    for row in rows:
        with pytest.raises(InputError, match="unknown model"):
            read_case(row)
