"""`autoconfig predict`: rows of measured runs, defaults, notes."""

from __future__ import annotations

import csv
from pathlib import Path
from types import SimpleNamespace

import pytest
from autoconfig.specs.errors import InputError, PlanError
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import parse_plan
from autoconfig.specs.serve_plan import parse_serve_plan
from autoconfig.specs.software.software import load_stack
from tables import tabled, write

from autoconfig.runs.predict import COLUMNS, never_read, predict_rows, read_table
from autoconfig.runs.training_model import read_numerics
from autoconfig.runs.training_row import even_ends, measured_step_seconds, published_rows, read_case
from autoconfig.training.plan_rules import broken_rules
from autoconfig.training.price import NOT_LEGAL, flops_per_step, shipped_bands
from autoconfig.training.question import Request, understand
from autoconfig.training.rules import RULE_TEXT

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


@pytest.mark.parametrize(("word", "same_as"), [("Causal", "causal"), ("hfu", "causal"), ("FULL", "full")])
def test_words_for_flops_conventions(word: str, same_as: str) -> None:
    row = next(row for row in SAMPLE if row["full_plan"] == "1")
    found, wanted = (predict_rows([{**row, "flops_convention": name}])[0] for name in (word, same_as))
    assert found.mfu == wanted.mfu is not None


def test_measured_cells_notes_and_status_change_nothing() -> None:
    changed = [
        {k: ("7.77" if never_read(k) and k not in ("id", "status") else "oom" if k == "status" else v) for k, v in row.items()}
        for row in SAMPLE
    ]
    assert any(row["metric_step_s"] for row in SAMPLE)
    assert predict_rows(SAMPLE) == predict_rows(changed)
    dropped = [{k: v for k, v in row.items() if k == "id" or not never_read(k)} for row in SAMPLE]
    assert predict_rows(SAMPLE) == predict_rows(dropped)


def test_blank_cells_take_the_documented_defaults() -> None:
    row = ROWS["KO-0002"] | {"sp": "", "vpp": "", "cp": ""}
    spelled = row | {"sp": "0", "vpp": "1", "cp": "1"}
    blank, full = predict_rows([row, spelled])
    assert blank.step_seconds == full.step_seconds
    assert blank.peak_gib == full.peak_gib
    assert "optimizer state" in predict_rows([row | {"fsdp": "", "optimizer_shard": ""}])[0].note


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


@pytest.mark.parametrize(("change", "reason"), [
    ({"gpu": "TPUv4"}, "TPUv4"), ({"layers": ""}, "layers"), ({"hidden": "x"}, "hidden"), ({"precision": "int3"}, "precision"),
])  # fmt: skip
def test_rows_that_cannot_be_predicted_keep_their_line_with_the_reason(change: dict[str, str], reason: str) -> None:
    good = ROWS["KO-0002"]
    before, bad, after = predict_rows([good, good | {"model": "own"} | change, good])
    assert before.step_seconds == after.step_seconds is not None
    assert bad.step_seconds is None and bad.id == "KO-0002"
    assert reason in bad.note
    assert [cell for name, cell in bad.cells().items() if name not in ("id", "pred_note")] == [""] * (len(COLUMNS) - 2)


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


def test_the_output_is_checked_before_the_work(autoconfig: SimpleNamespace, tmp_path: Path) -> None:
    for output in (tmp_path / "none" / "out.csv", tmp_path, tmp_path / "out.txt"):
        result = autoconfig.run("predict", str(tmp_path / "missing.csv"), "--output", str(output))
        assert result.exit_code == 2
        assert "output" in result.stderr


def test_equal_questions_get_equal_answers_under_their_own_ids() -> None:
    row = ROWS["NA-0006"]
    found = predict_rows([row | {"id": str(n), "notes": str(n)} for n in range(50)])
    assert [p.id for p in found] == [str(n) for n in range(50)]
    assert len({p.step_seconds for p in found}) == 1


@pytest.mark.parametrize(
    ("key", "value"), [("mbs", "0"), ("optimizer_shard", "2\u00b3"), ("optimizer_shard", "9" * 400), ("hidden_dropout", "x")]
)
def test_an_odd_cell_costs_no_other_row(key: str, value: str) -> None:
    good = next(row for row in published_rows() if row["full_plan"] == "1" and row["status"] == "ran")
    first, second = predict_rows([{**good, "id": "odd", key: value}, {**good, "id": "good"}])
    assert (first.id, second.id) == ("odd", "good") and second.step_seconds


def test_a_table_of_a_spreadsheet_keeps_its_ids(tmp_path: Path) -> None:
    good = next(row for row in published_rows() if row["full_plan"] == "1" and row["status"] == "ran")
    rows = [
        {"id": name} | {key: value for key, value in good.items() if key != "id"} for name in ("a\u2028b", "two\nlines", "c")
    ]
    path = write(tmp_path / "in.csv", rows, "utf-8-sig")
    assert [row["id"] for row in read_table(path)] == ["a\u2028b", "two\nlines", "c"]


@tabled
def test_odd_cells_that_decide_the_plan_leave_the_row_empty_with_the_reason(key: str, value: str) -> None:
    found = predict_rows([ROWS["KO-0002"] | {key: value}])[0]
    assert found.step_seconds is None
    assert f"cell {key}=" in found.note and found.note.count(key) == 1


@pytest.mark.parametrize(("key", "value"), [("gpus_per_node", "5"), ("gpu_mem_gb", "77777"), ("flops_convention", "abc")])
def test_odd_cells_with_a_default_are_said(key: str, value: str) -> None:
    good, odd = predict_rows([ROWS["KO-0002"], ROWS["KO-0002"] | {key: value}])
    assert odd.step_seconds == good.step_seconds
    assert value in odd.note and key in odd.note and key not in good.note


def test_words_for_yes_and_no() -> None:
    on, yes, off, no = predict_rows([ROWS["KO-0003"] | {"sp": word} for word in ("1", "True", "0", "false")])
    assert on.step_seconds == yes.step_seconds != off.step_seconds == no.step_seconds


def test_a_model_of_the_catalogue_needs_no_shape(autoconfig: SimpleNamespace, tmp_path: Path) -> None:
    row = {"id": "a", "model": "llama3-8b", "gpu": "H100", "gpus": "64", "tp": "2", "pp": "1", "mbs": "1", "gbs": "128"}
    source, target = write(tmp_path / "in.csv", [row]), tmp_path / "out.csv"
    assert autoconfig.run("predict", str(source), "--output", str(target)).exit_code == 0
    with target.open(newline="") as file:
        (found,) = csv.DictReader(file)
    assert float(found["pred_step_s"]) > 0
    assert "layers, hidden, heads of llama3-8b" in found["pred_note"] and "seq 8192" in found["pred_note"]
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


def test_flops_of_internevo_are_those_of_its_time() -> None:
    """Its TFLOPS by the formula of Narayanan et al. follow from its tokens/s with and without recomputation."""
    rows = [row for row in ROWS.values() if row["source"] == "InternEvo-flops" and row["flops_convention"] == "full+recompute"]
    assert {row["recompute"] for row in rows} == {"none", "full"}
    for row in rows:
        measured, case = measured_step_seconds(row, read_case(row).scenario), read_case(row)
        assert measured is not None
        flops = flops_per_step(case.scenario, row["flops_convention"], case.plan.recompute) / measured / case.plan.world_size
        assert flops / 1e12 == pytest.approx(float(row["metric_tflops_per_gpu"]), rel=0.1), row["id"]


GOOD = {
    "id": "a", "model": "llama-13b", "gpu": "A100", "gpus": "64", "tp": "4", "sp": "1", "pp": "4", "vpp": "1", "cp": "1",
    "mbs": "1", "gbs": "128", "recompute": "none", "seq": "2048", "software": "megatron-core", "optimizer_shard": "dp",
    "full_plan": "1",
}  # fmt: skip


@tabled
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
    assert "sp on (tp is above 1), vpp 1, cp 1, recompute none" in blank.note
    whole = predict_rows([GOOD])[0].note
    assert not any(word in whole for word in ("sp on", "vpp 1", "cp 1", "recompute none"))


@tabled
def test_impossible_cells_leave_the_row_empty_with_the_reason(key: str, value: str) -> None:
    found = predict_rows([GOOD | {key: value}])[0]
    assert found.step_seconds is None and found.id == "a"
    assert f"cell {key}=" in found.note, found.note


@tabled
def test_impossible_shapes_leave_the_row_empty_with_the_reason(key: str, value: str) -> None:
    shape = {"model": "own", "layers": "40", "hidden": "5120", "heads": "40", "experts": "8", "topk": "2", "ffn": "13824"}
    found = predict_rows([{**GOOD, **shape, "sp": "1", key: value}])[0]
    assert found.step_seconds is None and found.note.startswith("not predicted")
    assert key in found.note and value in found.note, found.note


@tabled
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


@pytest.mark.parametrize(("model", "pp", "ends"), [
    ("qwen3-235b-a22b", 8, (11, 11)),  # 94 layers and embedding and loss: 96 / 8
    ("llama3.1-405b", 8, (15, 15)),  # 126 and 2: 128 / 8
    ("deepseek-v3", 16, (4, 1)),  # Megatron-Bridge's layouts: 61 layers
    ("deepseek-v3", 4, (16, 13)),
    ("deepseek-v3", 8, (8, 5)),
    ("gpt3-175b", 8, (None, None)),
    ("deepseek-v3", 1, (None, None)),
])  # fmt: skip
def test_ends_of_uneven_stages(model: str, pp: int, ends: tuple[int | None, int | None]) -> None:
    assumed: list[str] = []
    assert even_ends(load_model(model), pp, assumed) == ends
    assert bool(assumed) == (ends[0] is not None)


@pytest.mark.parametrize(
    ("fsdp", "given", "found"), [("3", "", "bf16"), ("hsdp", "", "bf16"), ("0", "", "fp32"), ("3", "fp32", "fp32")]
)
def test_gradients_under_megatron_fsdp(fsdp: str, given: str, found: str) -> None:
    row = {"fsdp": fsdp, "grad_dtype": given, "precision": "bf16", "model": "llama3-8b"}
    assert read_numerics(row, load_stack("transformer-engine"), load_gpu("h100"), []).grad_reduce_dtype == found
    assert (
        read_numerics({**row, "grad_dtype": ""}, load_stack("llm-foundry-fsdp"), load_gpu("h100"), []).grad_reduce_dtype != ""
    )


@pytest.mark.parametrize(
    ("name", "priced_as"), [("nemo-26.02.01", "nemo-26.02"), ("nemo-26.05", "nemo-26.04"), ("nemo-27.01", "nemo-26.06")]
)
def test_a_release_without_a_file_is_priced_as_the_one_before_it(name: str, priced_as: str) -> None:
    stack, before = load_stack(name), load_stack(priced_as)
    assert (stack.name, stack.release, stack.time, stack.memory) == (name, name, before.time, before.memory)
    assert stack.description.endswith(f"priced as {priced_as}")


def test_a_point_release_may_be_written_without_its_zero() -> None:
    assert load_stack("NeMo-26.06.1") == load_stack("nemo-26.06.01") != load_stack("nemo-26.06.10")


@pytest.mark.parametrize("name", ["nemo-26.13", "nemo-26.00", "nemo-26.05.x", "nemo-26.x", "nemo-26.5"])
def test_what_is_no_date_is_no_release(name: str) -> None:
    with pytest.raises(InputError, match="unknown software stack"):
        load_stack(name)
    assert "unknown software stack" in predict_rows([GOOD | {"software": name}])[0].note


def test_a_question_on_an_unknown_release_has_the_settings_of_the_one_before_it_and_says_so() -> None:
    asked = {"model": "qwen3-30b-a3b", "gpu": "h100", "gpus": 16}
    unknown, before = (understand(Request(software=name, **asked)) for name in ("nemo-26.07", "nemo-26.06.01"))
    assert unknown.scenario.settings() == before.scenario.settings()
    assert any("with the settings of nemo-26.06.01" in text and "33% of the way" in text for text in unknown.assumed)


SHORT = {"model": "llama3-8b", "gpu": "h100-sxm-80gb", "gpus": "16", "seq": "8192", "gbs": "1024", "tp": "2", "mbs": "1"}


def test_numbers_are_read_as_options_read_them() -> None:
    plain, *written = predict_rows([SHORT, {**SHORT, "seq": "8k"}, {**SHORT, "seq": "8,192"}, {**SHORT, "gbs": "1,024"}])
    assert plain.step_seconds and {one.step_seconds for one in written} == {plain.step_seconds}


@pytest.mark.parametrize(("change", "said"), [
    ({"tp": "3"}, "tp x pp x cp is 3, which does not divide the 16 GPUs (NV001)"),
    ({"model": "lama3-8b"}, "unknown model 'lama3-8b'; did you mean llama3-8b"), ({"model": "175"}, "unknown model '175'"),
    ({"gpus": "256,512"}, "may be several counts"), ({"gbs": "1k"}, "cell gbs='1k' is not a number"),
    ({"seq": "8,19"}, "cell seq='8,19' is not a number"), ({"seq": "xk"}, "cell seq: 'xk' is no integer"),
])  # fmt: skip
def test_the_reason_names_what_is_wrong(change: dict[str, str], said: str) -> None:
    (found,) = predict_rows([{**SHORT, **change}])
    assert found.step_seconds is None and found.note.startswith("not predicted: ") and said in found.note
