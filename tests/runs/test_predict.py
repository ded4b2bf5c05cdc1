"""`autoconfig predict`: rows of measured runs, their answers, the files."""

from __future__ import annotations

import csv
from pathlib import Path
from types import SimpleNamespace

import pytest
from autoconfig.specs.plan import parse_plan
from tables import write

from autoconfig.runs.cells import columns_never_read
from autoconfig.runs.predict import COLUMNS, predict_rows, read_table
from autoconfig.runs.training_row import read_case
from autoconfig.training.plan_rules import broken_rules
from validation.published import published_rows

ROWS = {row["id"]: row for row in published_rows()}
SAMPLE = [row for number, row in enumerate(ROWS.values()) if number % 61 == 0 and row["full_plan"] != "0"]


def test_one_line_per_row_in_order_with_all_columns(autoconfig: SimpleNamespace, tmp_path: Path) -> None:
    source, target = write(tmp_path / "in.csv", SAMPLE), tmp_path / "out.csv"
    assert autoconfig.run("predict", str(source), "--output", str(target)).exit_code == 0
    with target.open(newline="") as file:
        reader = csv.DictReader(file)
        found = list(reader)
        assert tuple(reader.fieldnames or ()) == COLUMNS
    assert [row["id"] for row in found] == [row["id"] for row in SAMPLE]
    done = [row for row in found if row["pred_step_s"]]
    assert len(done) > 0.8 * len(found)
    for row in done:
        assert float(row["pred_step_s_p5"]) < float(row["pred_step_s"]) < float(row["pred_step_s_p95"])
        assert 0 < float(row["pred_mfu"]) < 1
        assert 0 <= float(row["pred_fit_probability"]) <= 1
        assert (row["pred_fits"] == "1") == (float(row["pred_fit_probability"]) >= 0.5)
        assert row["pred_confidence"]


def test_the_table_itself_is_never_written_over(autoconfig: SimpleNamespace, tmp_path: Path) -> None:
    source = write(tmp_path / "in.csv", SAMPLE[:1])
    before = source.read_bytes()
    refused = autoconfig.run("predict", str(source), "--output", str(source))
    assert refused.exit_code == 2 and "name another file" in refused.stderr and source.read_bytes() == before
    said = autoconfig.run("predict", str(source), "--output", str(tmp_path / "out.csv"))
    assert "with calibration published-" in said.output


def test_measured_cells_notes_and_status_change_nothing() -> None:
    changed = [
        {
            k: ("7.77" if k in columns_never_read("training") and k not in ("id", "status") else "oom" if k == "status" else v)
            for k, v in row.items()
        }
        for row in SAMPLE
    ]
    assert any(row["metric_step_s"] for row in SAMPLE)
    assert predict_rows(SAMPLE) == predict_rows(changed)
    dropped = [{k: v for k, v in row.items() if k == "id" or k not in columns_never_read("training")} for row in SAMPLE]
    assert predict_rows(SAMPLE) == predict_rows(dropped)


def test_blank_cells_take_the_documented_defaults() -> None:
    row = ROWS["KO-0002"] | {"sp": "", "vpp": "", "cp": ""}
    spelled = row | {"sp": "1", "vpp": "1", "cp": "1"}
    blank, full = predict_rows([row, spelled])
    assert blank.step_seconds == full.step_seconds
    assert blank.peak_gib == full.peak_gib
    assert "optimizer_shard " in predict_rows([row | {"fsdp": "", "optimizer_shard": ""}])[0].note


@pytest.mark.parametrize("row_id", ["NX-0001", "SD-0001", "MH-0002"])
def test_incomplete_plans_get_a_completion_and_a_range(row_id: str) -> None:
    row = ROWS[row_id]
    assert row["full_plan"] == "0"
    found = predict_rows([row])[0]
    assert found.step_seconds is not None and found.confidence is not None, found.note
    assert "completions" in found.note
    plan = parse_plan(found.note.split("completions: ")[1].split(";")[0], int(row["gpus"]))
    for key in ("tp", "pp", "cp", "mbs"):
        if row[key]:
            assert getattr(plan, key) == int(row[key])
    assert found.confidence.step_seconds_p5 < found.step_seconds < found.confidence.step_seconds_p95
    assert found.confidence.level == "plan completed by search"


def test_the_row_says_what_a_figure_counts() -> None:
    row = ROWS["KO-0004"]
    counts = ("causal", "full", "full+recompute")
    causal, full, more = predict_rows([row | {"recompute": "full", "flops_convention": name} for name in counts])
    assert causal.step_seconds == full.step_seconds == more.step_seconds
    assert causal.mfu is not None and full.mfu is not None and more.mfu is not None
    assert causal.mfu < full.mfu < more.mfu
    for recompute in ("none", "selective(core_attn)"):
        plain, same = predict_rows([row | {"recompute": recompute, "flops_convention": name} for name in counts[1:]])
        assert plain.tflops_per_gpu == same.tflops_per_gpu, "nothing, or no whole layer, is computed twice"
    last, worst = predict_rows([row | {"peak_rank": rank} for rank in ("last", "worst")])
    assert last.peak_gib is not None and worst.peak_gib is not None and last.peak_gib < worst.peak_gib
    reserved = predict_rows([row | {"peak_kind": "reserved"}])[0]
    assert reserved.peak_gib == pytest.approx(1.03 * worst.peak_gib)


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "\0\0", "layers,hidden,heads,seq\n1,2,3,4\n"])
def test_files_that_are_no_table_of_runs(text: str, autoconfig: SimpleNamespace, tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    source.write_text(text)
    result = autoconfig.run("predict", str(source), "--output", str(tmp_path / "out.csv"))
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ") and "Traceback" not in result.stderr
    assert not (tmp_path / "out.csv").exists()


def test_a_table_of_a_spreadsheet_keeps_its_ids(tmp_path: Path) -> None:
    good = next(row for row in published_rows() if row["full_plan"] == "1" and row["status"] == "ran")
    rows = [
        {"id": name} | {key: value for key, value in good.items() if key != "id"} for name in ("a\u2028b", "two\nlines", "c")
    ]
    path = write(tmp_path / "in.csv", rows, "utf-8-sig")
    assert [row["id"] for row in read_table(path)] == ["a\u2028b", "two\nlines", "c"]


def test_a_model_of_the_catalogue_needs_no_shape(autoconfig: SimpleNamespace, tmp_path: Path) -> None:
    row = {"id": "a", "model": "llama3-8b", "gpu": "H100", "gpus": "64", "tp": "2", "pp": "1", "mbs": "1", "gbs": "128"}
    source, target = write(tmp_path / "in.csv", [row]), tmp_path / "out.csv"
    assert autoconfig.run("predict", str(source), "--output", str(target)).exit_code == 0
    with target.open(newline="") as file:
        (found,) = csv.DictReader(file)
    assert float(found["pred_step_s"]) > 0
    assert "layers, hidden, heads of llama3-8b" in found["pred_note"] and "sequence length 8192" in found["pred_note"]
    other = predict_rows([row | {"model": "no such model"}])[0]
    assert other.step_seconds is None and other.note.count("unknown model") == 1, "a reason is said once"


def test_rows_priced_together_and_alone_are_the_same() -> None:
    row = ROWS["NA-0006"]
    rows = [row | {"id": f"{gpus} {batch}", "dp": "", "gpus": str(gpus), "gbs": str(batch), "recompute": recompute}
            for gpus in (1024, 2048) for batch in (2048, 4096) for recompute in ("none", "full(uniform,1)")]  # fmt: skip
    together, alone = predict_rows(rows), [predict_rows([each])[0] for each in rows]
    assert len({p.step_seconds for p in together}) == len(rows)
    for a, b in zip(together, alone, strict=True):
        assert a.step_seconds == pytest.approx(b.step_seconds, rel=1e-12) and a.peak_gib == pytest.approx(b.peak_gib)


def test_tables_that_a_person_may_bring(autoconfig: SimpleNamespace, tmp_path: Path) -> None:
    text = "id,gpu,layers,hidden,heads,seq,tp,pp,dp,mbs,gbs\r\na,A100,24,4096,32,2048,8,1,1,4,4\r\n"
    plain = tmp_path / "plain.csv"
    for name, content, says in (
        ("semicolons.csv", text.replace(",", ";"), "semicolons"), ("tabs.csv", text.replace(",", "\t"), "tabs"),
        ("empty.csv", "", "is empty"), ("twice.csv", text.replace("dp", "tp"), "tp twice"),
    ):  # fmt: skip
        (tmp_path / name).write_text(content)
        result = autoconfig.run("predict", str(tmp_path / name), "--output", str(plain))
        assert result.exit_code == 2 and says in result.stderr
    (tmp_path / "bom.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert autoconfig.run("predict", str(tmp_path / "bom.csv"), "--output", str(plain)).exit_code == 0
    with plain.open(newline="") as file:
        (found,) = csv.DictReader(file)
    assert found["id"] == "a" and float(found["pred_step_s"]) > 0


GOOD = {
    "id": "a", "model": "llama-13b", "gpu": "A100", "gpus": "64", "tp": "4", "sp": "1", "pp": "4", "vpp": "1", "cp": "1",
    "mbs": "1", "gbs": "128", "recompute": "none", "seq": "2048", "software": "megatron-core", "optimizer_shard": "dp",
    "full_plan": "1",
}  # fmt: skip


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


def test_a_plan_that_is_not_whole_and_fits_nowhere_gets_a_time_and_does_not_fit() -> None:
    row = {"id": "x", "model": "llama3-70b", "gpu": "a100-40gb", "gpus": "4", "mbs": "1", "gbs": "32", "full_plan": "0"}
    [found] = predict_rows([row])
    assert found.fits is False and found.step_seconds and found.peak_gib and found.peak_gib > 40
    assert "no legal completion fits, the nearest to it is tp=4," in found.note


def test_the_expert_tensor_parallelism_of_an_incomplete_plan_counts() -> None:
    row = {"id": "x", "model": "mixtral-8x7b", "gpu": "h100", "gpus": "32", "gbs": "128", "etp": "2", "full_plan": "0"}
    [found] = predict_rows([row])
    assert "etp=2" in found.note
