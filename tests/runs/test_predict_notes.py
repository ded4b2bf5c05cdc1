"""What `autoconfig predict` says of a row: broken rules, defaults, odd cells, contradictions; what it says of the table."""

import csv
from pathlib import Path
from types import SimpleNamespace

import pytest
from autoconfig.specs.errors import PlanError
from autoconfig.specs.plan import parse_plan
from autoconfig.specs.serve_plan import parse_serve_plan

from autoconfig.runs.predict import predict_rows
from autoconfig.runs.training_row import published_rows, read_case
from autoconfig.training.confidence import NOT_LEGAL, shipped_bands
from autoconfig.training.plan_rules import broken_rules
from autoconfig.training.rules import RULE_TEXT

GOOD = {
    "id": "a", "model": "llama-13b", "gpu": "A100", "gpus": "64", "tp": "4", "sp": "1", "pp": "4", "vpp": "1", "cp": "1",
    "mbs": "1", "gbs": "128", "recompute": "none", "seq": "2048", "software": "megatron-core", "optimizer_shard": "dp",
    "full_plan": "1",
}  # fmt: skip


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.mark.parametrize(("change", "rule"), [
    ({"tp": "3", "gpus": "48"}, "NV013"), ({"vpp": "3"}, "NV044"), ({"tp": "1"}, "NV046"), ({"gpus": "65"}, "NV001"),
    ({"dp": "3"}, "AC005"), ({"gbs": "130"}, "NV007"), ({"ep": "2"}, "NV061"), ({"recompute": "selective([moe_act])"}, "NV114"),
    ({"gbs": "8", "vpp": "2"}, "NV041"), ({"fsdp": "3"}, "NV100"),
])  # fmt: skip
def test_a_broken_rule_is_named_and_the_confidence_is_low(change: dict[str, str], rule: str) -> None:
    good, bad = predict_rows([GOOD, GOOD | change])
    assert "breaks" not in good.note and good.confidence is not None and good.confidence.level != NOT_LEGAL
    assert bad.confidence is not None and bad.step_seconds is not None, bad.note
    assert f"{rule} ({RULE_TEXT[rule]})" in bad.note
    assert bad.cells()["pred_confidence"] == NOT_LEGAL and "low" in NOT_LEGAL
    bands = shipped_bands().values()
    assert bad.confidence.step_seconds_p5 == pytest.approx(bad.step_seconds * min(b.p5 for b in bands))
    assert bad.confidence.step_seconds_p95 == pytest.approx(bad.step_seconds * max(b.p95 for b in bands))


def test_rules_over_a_table_are_those_of_each_plan() -> None:
    """One call for many plans of one model, GPUs and batches says what a call for each says."""
    cases = [read_case(row) for row in published_rows() if row["source"].startswith("vTrain") and row["full_plan"] == "1"][::40]
    other = [case.plan.replace(vpp=3, ep=2, cp=3) for case in cases]
    model = cases[0].scenario
    gpus = [case.scenario.cluster.num_gpus for case in cases] * 2
    batches = [case.scenario.workload.global_batch_size + n for n, case in enumerate(cases * 2)]
    together = broken_rules(model, [case.plan for case in cases] + other, gpus, batches)
    alone = [
        broken_rules(model, [plan], [count], [batch])[0]
        for plan, count, batch in zip([case.plan for case in cases] + other, gpus, batches, strict=True)
    ]
    assert together == alone
    assert len({rule for broken in alone for rule in broken}) >= 5


def test_stages_that_do_not_divide_break_one_rule() -> None:
    scenario = read_case(GOOD).scenario
    assert broken_rules(scenario, [parse_plan("tp=4,pp=8,vpp=2,dp=2,mbs=1,sp=1,first=3", 64)]) == [["NV024"]]


def test_published_uneven_stages_are_no_broken_rule() -> None:
    """94 layers over 8 x 2 chunks: embedding and loss count as layers (account_for_..._in_pipeline_split)."""
    row = {**GOOD, "model": "qwen3-235b-a22b", "gpu": "B200", "gpus": "64", "tp": "1", "sp": "0", "pp": "8", "vpp": "2"}
    assert "breaks" not in predict_rows([row | {"ep": "8", "etp": "1"}])[0].note


def test_blank_plan_cells_are_named_with_their_default() -> None:
    blank = predict_rows([GOOD | {"sp": "", "vpp": "", "cp": "", "recompute": ""}])[0]
    assert "sp off, vpp 1, cp 1, recompute none" in blank.note
    whole = predict_rows([GOOD])[0].note
    assert not any(word in whole for word in ("sp off", "vpp 1", "cp 1", "recompute none"))


@pytest.mark.parametrize(("key", "value"), [
    ("seq", "0"), ("gpus", "0"), ("gpus", "-8"), ("dp", "0"), ("gbs", "0"), ("gpu_mem_gb", "-80"), ("cp", "-1"),
    ("layers", "0"), ("vocab", "-5"), ("kv_heads", "0"), ("seq", "-2048"), ("seq", "nan"), ("cuda_graph", "maybe"),
    ("full_plan", "perhaps"), ("tied_embeddings", "2"), ("sp", "sometimes"),
])  # fmt: skip
def test_impossible_cells_leave_the_row_empty_with_the_reason(key: str, value: str) -> None:
    found = predict_rows([GOOD | {key: value}])[0]
    assert found.step_seconds is None and found.id == "a"
    assert f"cell {key}=" in found.note, found.note


@pytest.mark.parametrize(("key", "value"), [
    ("hidden", "0"), ("heads", "-4"), ("ffn", "-1"), ("layers", "-3"), ("experts", "-2"), ("topk", "0"),
    ("hidden_dropout", "7"),
])  # fmt: skip
def test_impossible_shapes_leave_the_row_empty_with_the_reason(key: str, value: str) -> None:
    shape = {"model": "own", "layers": "40", "hidden": "5120", "heads": "40", "experts": "8", "topk": "2", "ffn": "13824"}
    found = predict_rows([{**GOOD, **shape, "sp": "1", key: value}])[0]
    assert found.step_seconds is None and found.note.startswith("not predicted")
    assert key in found.note and value in found.note, found.note


@pytest.mark.parametrize("column", [
    "peak_rank", "peak_kind", "attention_kernel", "norm_kernel", "loss_fusion", "transformer_impl", "overlap", "offload",
    "peft",
])  # fmt: skip
def test_words_that_nobody_knows_are_said(column: str) -> None:
    found = predict_rows([GOOD | {column: "nonsense"}])[0]
    assert found.step_seconds is not None
    assert column in found.note and "'nonsense' is none of" in found.note


def test_published_words_are_known() -> None:
    assert not [row["id"] for row in published_rows() if row["offload"] != "activations" and _odd(row)]


def _odd(row: dict[str, str]) -> bool:
    return "is none of" in predict_note(row)


def predict_note(row: dict[str, str]) -> str:
    from autoconfig.runs.table import odd_words

    return ", ".join(odd_words(row))


def test_a_name_that_the_shape_contradicts_is_said() -> None:
    other, deep, same = predict_rows([
        GOOD | {"hidden": "8192", "heads": "64", "layers": "40"}, GOOD | {"layers": "48"},
        GOOD | {"hidden": "5120", "heads": "40"},
    ])  # fmt: skip
    assert "not llama-13b's (hidden 8192, not 5120, heads 64, not 40)" in other.note
    assert "llama-13b with layers 48, not 40" in deep.note
    assert "llama-13b with" not in same.note and "not llama" not in same.note


@pytest.mark.parametrize("inference", [False, True])
def test_columns_that_nothing_reads_are_named_once(inference: bool, autoconfig: SimpleNamespace, tmp_path: Path) -> None:
    serving = {"model": "llama3-8b", "gpu": "h100", "n_gpus": "1", "isl": "128", "osl": "128", "tp": "1"}
    row = (serving | {"bakend": "x"}) if inference else (GOOD | {"hiden": "1"})
    source = write(tmp_path / "in.csv", [row, row])
    options = ["--inference"] if inference else []
    result = autoconfig.run("predict", *options, str(source), "--output", str(tmp_path / "out.csv"))
    assert result.exit_code == 0, result.stderr
    assert result.stderr.count("did you mean") == 1
    assert ("'bakend' (did you mean backend?)" if inference else "'hiden' (did you mean hidden?)") in result.stderr
    known = write(tmp_path / "known.csv", [serving if inference else GOOD])
    assert "warning" not in autoconfig.run("predict", *options, str(known), "--output", str(tmp_path / "out.csv")).stderr


def test_megatron_names_of_columns_are_read(autoconfig: SimpleNamespace, tmp_path: Path) -> None:
    short = {"model": "22b", "gpu": "a100-80gb", "gpus": "16", "tp": "4", "pp": "2", "sp": "1", "mbs": "2", "gbs": "64"}
    names = ("model", "gpu", "world-size", "tensor_model_parallel_size", "pipeline_model_parallel_size", "sequence_parallel",
             "micro_batch_size", "--global-batch-size")  # fmt: skip
    long = dict(zip(names, short.values(), strict=True))
    answers = []
    for name, row in (("short", short), ("long", long), ("both", short | {"global_batch_size": "8"})):
        source, target = write(tmp_path / f"{name}.csv", [row]), tmp_path / f"{name}-out.csv"
        result = autoconfig.run("predict", str(source), "--output", str(target))
        answers.append(target.read_text())
        assert ("global_batch_size" in result.stderr) == (name == "both"), result.stderr  # two values for one thing are said
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize("inference", [False, True])
def test_tables_without_a_prediction_end_with_a_message(inference: bool, autoconfig: SimpleNamespace, tmp_path: Path) -> None:
    options = ["--inference"] if inference else []
    row = {"model": "llama3-8b", "gpu": "tpu", "n_gpus": "1", "isl": "9", "osl": "9"} if inference else GOOD | {"gpu": "tpu"}
    empty, target = tmp_path / "empty.csv", tmp_path / "out.csv"
    empty.write_text(",".join(row) + "\n")
    result = autoconfig.run("predict", *options, str(empty), "--output", str(target))
    assert result.exit_code == 2 and "header and no rows" in result.stderr and not target.exists()
    result = autoconfig.run("predict", *options, str(write(tmp_path / "in.csv", [row, row])), "--output", str(target))
    assert result.exit_code == 2 and "none of the 2 rows" in result.stderr and "tpu" in result.stderr
    with target.open(newline="") as file:
        assert [found["pred_note"].startswith("not predicted") for found in csv.DictReader(file)] == [True, True]


def test_serving_tables_are_never_written_over(autoconfig: SimpleNamespace, tmp_path: Path) -> None:
    row = {"model": "llama3-8b", "gpu": "h100", "n_gpus": "1", "isl": "9", "osl": "9", "tp": "1"}
    source = write(tmp_path / "in.csv", [row])
    before = source.read_bytes()
    refused = autoconfig.run("predict", "--inference", str(source), "--output", str(source))
    assert refused.exit_code == 2 and "name another file" in refused.stderr and source.read_bytes() == before
    said = autoconfig.run("predict", "--inference", str(source), "--output", str(tmp_path / "out.csv"))
    assert "1 of 1 rows predicted with calibration serving-" in said.output


@pytest.mark.parametrize("text", ["tp=2 pp=2", "tp=2;pp=2", "tp = 2  pp = 2", "tp=2, pp=2 mbs=1"])
def test_a_short_form_without_commas_is_mended_in_the_message(text: str) -> None:
    with pytest.raises(PlanError, match=r"write it with commas: tp=2,\s?pp=2"):
        parse_plan(text, 4)


def test_a_serving_short_form_without_commas_is_mended_in_the_message(autoconfig: SimpleNamespace) -> None:
    with pytest.raises(PlanError, match="write it with commas: tp=2,batch=8"):
        parse_serve_plan("tp=2 batch=8")
    result = autoconfig.run("explain", "--model", "llama3-8b", "--gpus", "4", "tp=2 pp=2")
    assert result.exit_code == 2 and "write it with commas: tp=2,pp=2" in result.stderr
