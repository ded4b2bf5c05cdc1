"""Tables of T5, mT5 and BERT runs: recognised by their header, all of Megatron-LM's CI predicted, nothing measured read."""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import mean, median

import pytest
from tables import write

from autoconfig.runs.encoder_row import training_row_of
from autoconfig.runs.predict import Prediction, predict_file, predict_rows
from autoconfig.runs.table import columns_of
from validation.published import published_rows
from validation.sheets.encoders import encoder_lines

ROWS = {row["id"]: row for row in published_rows("t5_bert")}


@pytest.fixture(scope="module")
def predicted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Prediction]:
    folder = tmp_path_factory.mktemp("encoder")
    found, remark = predict_file(write(folder / "in.csv", list(ROWS.values())), folder / "out.csv")
    assert remark == ""
    with (folder / "out.csv").open(newline="") as file:
        names = list(csv.DictReader(file).fieldnames or ())
    assert names.index("pred_mem_after_step_gib") == names.index("pred_peak_mem_gib") + 1
    return dict(zip(ROWS, found, strict=True))


def test_ids_stay_and_every_ci_run_has_memory(predicted: dict[str, Prediction]) -> None:
    assert [prediction.id for prediction in predicted.values()] == list(ROWS)
    runs = [row for row in ROWS.values() if row["kind"] == "ci_golden"]
    found = {row["id"]: predicted[row["id"]] for row in runs}
    assert all(p.after_step_gib and p.peak_gib for p in found.values())
    after = [abs(found[row["id"]].after_step_gib / float(row["mem_alloc_gib"]) - 1) for row in runs]
    peak = [abs(found[row["id"]].peak_gib / float(row["mem_peak_gib"]) - 1) for row in runs]
    assert median(after) <= 0.02 and median(peak) <= 0.04


def test_published_throughput_and_the_shape_of_scaling(predicted: dict[str, Prediction]) -> None:
    ratios: dict[tuple[str, bool], list[float]] = {}
    for row in ROWS.values():
        if row["kind"] != "published_training":
            continue
        rate = float(row["tokens_per_s"] or 0) or int(row["gbs"]) * 512 / float(row["step_s"])
        found = predicted[row["id"]].tokens_per_second_per_gpu
        assert found is not None
        ratios.setdefault((row["model"], bool(row["step_s"])), []).append(found * int(row["gpus"]) / rate)
    assert mean(abs(1 / ratio - 1) for group in ratios.values() for ratio in group) <= 0.15
    scaling = [[ratio / mean(group) for ratio in group] for (_, timed), group in ratios.items() if not timed]
    assert len(scaling) == 3 and max(abs(shape - 1) for group in scaling for shape in group) <= 0.08


def test_the_sheets_say_what_these_tests_hold() -> None:
    memory, throughput = encoder_lines()
    lines = (*memory, *throughput)
    assert [(line.rows, line.holds) for line in lines] == [(57, True), (57, True), (29, True), (17, True)], lines


def test_measured_columns_and_notes_change_nothing() -> None:
    row = ROWS["TB-104"]
    blank = {**row, **dict.fromkeys(columns_of("encoders_measured") - {"dec_layers", "family"}, "")}
    assert predict_rows([training_row_of(row)]) == predict_rows([training_row_of(blank)])


def test_a_run_without_a_plan_is_completed_by_search() -> None:
    blank = {**ROWS["TB-003"], **dict.fromkeys(("tp", "pp", "mbs", "gbs", "recompute"), "")}
    (found,) = predict_rows([training_row_of(blank)])
    assert found.step_seconds and "completions" in found.note


@pytest.mark.parametrize(("changes", "said"), [
    ({"enc_layers": "x"}, "cell enc_layers='x' is not a number"),
    ({"tp": "two", "gpus": ""}, "cell tp='two' is not a number"),
    ({"enc_layers": "", "dec_layers": ""}, "enc_layers and dec_layers: empty or 0, and hidden, ffn, heads, kv_channels given"),
    ({"dec_layers": ""}, "dec_layers: empty or 0"),
    ({"family": "", "model": "foo"}, "none of t5, mt5, bert"),
])  # fmt: skip
def test_one_odd_row_keeps_its_line_and_the_others_are_predicted(changes: dict[str, str], said: str, tmp_path: Path) -> None:
    rows = [{**ROWS["TB-003"], **changes}, ROWS["TB-003"]]
    odd, good = predict_file(write(tmp_path / "in.csv", rows), tmp_path / "out.csv")[0]
    assert said in odd.note and odd.peak_gib is None and odd.id == good.id == "TB-003" and good.peak_gib


def test_another_split_of_the_layers_and_other_heads_are_not_the_sizes_own() -> None:
    usual, uneven, narrow = predict_rows([
        training_row_of({**ROWS["TB-003"], **changes})
        for changes in ({}, {"enc_layers": "12", "dec_layers": "36"}, {"kv_channels": "32"})
    ])  # fmt: skip
    assert usual.peak_gib != uneven.peak_gib and "encoder_layers 12, not 24" in uneven.note
    assert usual.peak_gib != narrow.peak_gib and "kv_channels 32, not 64" in narrow.note
    cut = {**ROWS["TB-013"], "enc_layers": "24"}
    assert "encoder_layers 24, not 48" in predict_rows([training_row_of(cut)])[0].note
